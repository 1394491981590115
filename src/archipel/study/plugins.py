# SPDX-License-Identifier: Apache-2.0
"""Algorithms, models, data, metrics and parts of a wire: by name, entry point, or Python file.

A package adds names with the entry-point groups `archipel.algorithms`, `archipel.models`,
`archipel.data`, `archipel.metrics`, `archipel.wire` (steps), `archipel.sums`, `archipel.rules`,
`archipel.adversaries` (attacks on the model), and `archipel.attacks` for an audit; a study also
takes a path, `mine.py` or `mine.py:Mine`.
Nothing is ever loaded from a wire: the files are on this machine, put there by its owner.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Set
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from archipel.errors import ArchipelError, unknown

Kind = Literal["algorithm", "model", "data", "metric", "step", "rule", "sum", "attack", "adversary"]

_GROUPS = {
    "algorithm": "archipel.algorithms",
    "model": "archipel.models",
    "data": "archipel.data",
    "metric": "archipel.metrics",
    "step": "archipel.wire",
    "rule": "archipel.rules",
    "sum": "archipel.sums",
    "attack": "archipel.attacks",
    "adversary": "archipel.adversaries",
}

_METHODS: dict[str, tuple[str, ...]] = {  # by which a class of a file is known to be of a kind
    "algorithm": ("party",),
    "step": ("send", "receive"),
    "rule": ("__call__",),
    "sum": ("party", "server"),
    "attack": ("family", "needs"),
    "adversary": (),
}

_PREFIX = "archipel_file_"  # of the modules that files become
_BESIDE: dict[str, list[Path]] = {}  # by module: files of its own folder that it imports


def names(kind: Kind) -> list[str]:
    """What there is by name, with what installed packages add."""
    if kind == "metric":
        from archipel.metrics import METRICS

        return sorted({*METRICS, *added(kind)})
    return sorted({*_bundled(kind), *added(kind)})


def find(kind: Kind, name: str, base: Path | None = None) -> Callable[..., Any]:
    """Return an algorithm's class, or what makes a model or a federation."""
    path = file_of(name, base)
    if path is not None:
        return _in_file(kind, path, name.rpartition(".py:")[2] if ".py:" in name else "")
    if name in _bundled(kind):
        return _bundled(kind)[name]
    points = added(kind)
    if name not in points:
        raise unknown("dataset" if kind == "data" else kind, name, names(kind))
    try:
        found: Callable[..., Any] = points[name].load()
    except Exception as error:
        raise ArchipelError(
            f"{kind} '{name}' of the package {points[name].value} cannot be loaded: "
            f"{reason(error)}."
        ) from error
    return found


def files_of(kind: Kind, name: str, base: Path | None = None) -> list[Path]:
    """The Python file that a name means, and those beside it that it imports."""
    path = file_of(name, base)
    return [] if path is None else [path, *_BESIDE[_load(kind, path).__name__]]


def file_of(name: str, base: Path | None = None) -> Path | None:
    """The Python file that a name means, if it means one."""
    head, dot, tail = name.rpartition(".py")
    if not dot or (tail and not tail.startswith(":")):
        return None
    path = Path(f"{head}.py")
    with suppress(RuntimeError):  # a home that nobody has
        path = path.expanduser()
    return path if path.is_absolute() or base is None else base / path


def _bundled(kind: Kind) -> dict[str, Callable[..., Any]]:
    if kind == "algorithm":
        from archipel.algorithms import ALGORITHMS

        return dict(ALGORITHMS)
    if kind == "model":
        from archipel.models import MODELS

        return dict(MODELS)
    if kind == "metric":  # Archipel's own are measured for all parties at once
        return {}
    if kind == "step":
        from archipel.wire import STEPS

        return dict(STEPS)
    if kind == "rule":
        from archipel.rules import RULES

        return dict(RULES)
    if kind == "sum":
        from archipel.aggregation import SUMS

        return dict(SUMS)
    if kind == "attack":
        from archipel.attacks import ATTACKS

        return dict(ATTACKS)
    if kind == "adversary":
        from archipel.adversaries import ATTACKS as ON_MODELS

        return dict(ON_MODELS)
    from archipel.data import DATASETS

    return {name: make for name, (make, _) in DATASETS.items()}


def added(kind: Kind) -> dict[str, EntryPoint]:
    """What installed packages add, by name."""
    return {point.name: point for point in entry_points(group=_GROUPS[kind])}


def _in_file(kind: Kind, path: Path, wanted: str) -> Callable[..., Any]:
    module = _load(kind, path)
    here = {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }
    fit: dict[str, Callable[..., Any]]
    methods = _METHODS.get(kind)
    if methods is not None:
        fit = {n: v for n, v in here.items() if _has(v, methods)}
        many = "methods" if len(methods) > 1 else "a method"
        sort = f"class with {many} {' and '.join(methods)}"
    else:
        fit = {n: v for n, v in here.items() if callable(v)}
        sort = "function or class"
    if wanted:
        if wanted not in fit:
            raise unknown(f"{kind} in {path.name}", wanted, fit)
        return fit[wanted]
    if len(fit) != 1:
        listed = (
            f"has {', '.join(fit)}: say which, {path.name}:{next(iter(fit))}" if fit else "has none"
        )
        raise ArchipelError(f"{kind} '{path}': one {sort} is wanted, and the file {listed}.")
    return next(iter(fit.values()))


def _has(found: Any, methods: tuple[str, ...]) -> bool:
    """Whether a class says itself what these methods do."""
    return inspect.isclass(found) and all(
        any(name in vars(each) for each in found.__mro__) for name in methods
    )


def _load(kind: Kind, path: Path) -> ModuleType:
    """Run a file as a module; its own folder is searched for what it imports."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ArchipelError(f"{kind} '{path}': cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ArchipelError(f"{kind} '{path}': cannot be read ({error}).") from None
    print_ = sha256(str(path.resolve()).encode() + content).hexdigest()[:12]
    name = f"{_PREFIX}{path.stem}_{print_}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    folder, before = path.resolve().parent, set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        # not the loader's: what Python keeps compiled can be of another text of the same second
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ArchipelError(f"{kind} '{path}' cannot be loaded: {reason(error)}.") from error
    finally:
        sys.path.remove(str(folder))
        _BESIDE[name] = _forget(folder, before)
    return module


def _forget(folder: Path, before: Set[str]) -> list[Path]:
    """Take what a file imported from its own folder out of sight: another's may be called alike."""
    files = []
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            files.append(Path(file))
            del sys.modules[name]
    return sorted(files)


def reason(error: BaseException) -> str:
    """What went wrong in a user's own code, and in which line of it."""
    line, trace = getattr(error, "lineno", None), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith(_PREFIX):
            line = trace.tb_lineno
        trace = trace.tb_next
    said = " ".join(str(error).split()).rstrip(".")
    return (f"line {line}: " if line else "") + f"{type(error).__name__}: {said}".rstrip(": ")
