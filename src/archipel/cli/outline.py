# SPDX-License-Identifier: Apache-2.0
"""What is bundled, by name and in a line, as the source says it: nothing is loaded for that."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import archipel
from archipel.study.plugins import Kind, added

_ROOT = Path(archipel.__file__).parent


class _Piece(NamedTuple):
    """A piece of a module's source."""

    module: str
    node: Any


_TABLES = {
    "algorithm": ("algorithms", "ALGORITHMS"),
    "model": ("models", "MODELS"),
    "step": ("wire", "STEPS"),
    "rule": ("rules", "RULES"),
    "sum": ("aggregation", "SUMS"),
    "attack": ("attacks", "ATTACKS"),
    "adversary": ("adversaries", "ATTACKS"),
}


def names(kind: Kind) -> list[str]:
    """What there is by name: as `plugins.names`."""
    bundled = data() if kind == "data" else bundled_of(kind)
    return sorted({*bundled, *added(kind)})


def bundled_of(kind: Kind) -> dict[str, str]:
    """The first line of the docstring of each."""
    found = {name: _defined(each).node for name, each in _table(*_TABLES[kind]).items()}
    return {
        name: (ast.get_docstring(node) or "").partition("\n")[0] for name, node in found.items()
    }


def file_of(name: str) -> Path | None:
    """The file with a bundled algorithm, model or part of a wire."""
    for table in _TABLES.values():
        if name in (known := _table(*table)):
            return _path(_defined(known[name]).module)
    return None


def data() -> dict[str, str]:
    """Where each dataset comes from: the second field of what it says about itself."""
    found = {}
    for name, (module, pair) in _table("data", "DATASETS").items():
        home, call = _defined(_Piece(module, pair.elts[1]))
        named = {each.arg: each.value for each in call.keywords}
        source = named["source"] if "source" in named else call.args[1]
        found[name] = ast.literal_eval(_defined(_Piece(home, source)).node)
    return found


def topologies() -> dict[str, str]:
    """How a study writes each topology."""
    return {
        name: ast.literal_eval(each.node) for name, each in _table("graphs", "TOPOLOGIES").items()
    }


def _table(module: str, name: str) -> dict[str, _Piece]:
    """The entries of a dictionary that a module has."""
    table = _named(module, name).node
    keys = map(ast.literal_eval, table.keys)
    return {key: _Piece(module, value) for key, value in zip(keys, table.values, strict=True)}


def _defined(piece: _Piece) -> _Piece:
    """What a name, or a name of a module, stands for; other pieces stand for themselves."""
    module, node = piece
    if isinstance(node, ast.Attribute):
        return _named(f"{module}.{ast.unparse(node.value)}", node.attr)
    return _named(module, node.id) if isinstance(node, ast.Name) else piece


def _named(module: str, name: str) -> _Piece:
    """Where a name of a module is defined: there, or in what it is imported from."""
    for node in _source(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return _Piece(module, node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                return _Piece(module, node.value)
        if isinstance(node, ast.ImportFrom) and any(each.name == name for each in node.names):
            return _named((node.module or "").removeprefix("archipel."), name)
    raise LookupError(f"{module} has no {name}")


@cache
def _source(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


def _path(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
