# SPDX-License-Identifier: Apache-2.0
"""Values of a study file checked against the annotations of what they are given to.

A table with a name is an object: `optimiser = {name = "adam", beta1 = 0.8}`, `lr = {name = "decay",
start = 0.1}`, or just `optimiser = "adam"`. The word "none" is Python's None.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from archipel.errors import ArchipelError, unknown
from archipel.study.plugins import reason

Json = Any


def hints(target: Callable[..., Any]) -> dict[str, Any]:
    """The names a class or a function takes, and the annotation of each."""
    if dataclasses.is_dataclass(target):
        names = [each.name for each in dataclasses.fields(target) if each.init]
    else:
        names = [
            name
            for name, each in inspect.signature(target).parameters.items()
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
    try:
        known = get_type_hints(_takes(target))
    except (NameError, TypeError):
        known = {}
    return {name: known.get(name, Any) for name in names}


def _takes(target: Callable[..., Any]) -> Callable[..., Any]:
    """What of a target has the annotations: a dataclass, a function, another class's init."""
    if isinstance(target, type) and not dataclasses.is_dataclass(target):
        target = target.__init__  # type: ignore[misc]
    return target


def read(where: str, name: str, hint: Any, value: Json) -> Any:
    """Return a value of a study as the annotation wants it."""
    members = _members(hint)
    objects = {cls.__name__.lower(): cls for cls in _objects(members)}
    if value == "none" and type(None) in members:
        return None
    if objects and (isinstance(value, Mapping) or (isinstance(value, str) and value in objects)):
        return _object(f"{where}.{name}", objects, value)
    plain = [each for each in members if not _is_skipped(each) and not _objects([each])]
    if _finite(value) and (hint is Any or plain):
        kind: Any = Any if hint is Any else Union[tuple(plain)]  # noqa: UP007
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        try:
            return adapter.validate_json(json.dumps(value), strict=True)
        except (ValidationError, TypeError):
            pass
    raise ArchipelError(f"{where}.{name} = {shown(value)}: give {wanted(hint)}.")


def write(value: Any) -> Json:
    """The other way: a value as a study file holds it."""
    if value is None:
        return "none"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = {each.name: write(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return {"name": type(value).__name__.lower(), **kept}
    if isinstance(value, list | tuple):
        return [write(each) for each in value]
    return value


def holds(hint: Any, value: Any) -> bool:
    """Whether a study file can hold a value, so that it is read again as it was."""
    try:
        return bool(read("", "", hint, write(value)) == value)
    except ArchipelError:
        return False


def wanted(hint: Any, none: bool = True) -> str:
    """An annotation in words, with or without the word "none".

    >>> wanted(int | float | None)
    'a whole number, a number or "none"'
    """
    words: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text"}
    words |= {bool: "true or false", type(None): '"none"', Any: "a value"}
    words |= {list: "a list", tuple: "a list", Sequence: "a list"}
    words |= {dict: "a table", Mapping: "a table"}
    parts: list[str] = []
    objects: list[str] = []
    for each in _members(hint):
        if each is type(None) and not none:
            continue
        if get_origin(each) is Literal:
            parts += [json.dumps(choice) for choice in get_args(each)]
        elif found := _objects([each]):
            objects += [json.dumps(cls.__name__.lower()) for cls in found]
        elif not _is_skipped(each):
            kind = get_origin(each) or each
            parts.append(words.get(kind, getattr(kind, "__name__", str(kind))))
    if objects:
        parts.append(f"a table with name = {' | '.join(objects)}")
    parts = list(dict.fromkeys(parts))
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def shown(value: Json) -> str:
    """A value as an error quotes it: short, on one line."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"


def schema(target: Callable[..., Any], leave_out: tuple[str, ...] = ()) -> dict[str, Json]:
    """JSON schema of the fields, for an editor."""
    found: dict[str, Json] = {}
    for name, hint in hints(target).items():
        if name in leave_out:
            continue
        options: list[Json] = []
        for each in _members(hint):
            if each is type(None):
                options.append({"const": "none"})
            elif get_origin(each) is Literal:
                options.append({"enum": list(get_args(each))})
            elif objects := _objects([each]):
                options.append({"enum": [cls.__name__.lower() for cls in objects]})
                options.append({"type": "object", "required": ["name"]})
            elif each in (int, float, str, bool):
                kinds = {int: "integer", float: "number", str: "string", bool: "boolean"}
                options.append({"type": kinds[each]})
            elif not _is_skipped(each):
                options.append({})
        found[name] = {"anyOf": options} if len(options) != 1 else options[0]
    return found


def _members(hint: Any) -> list[Any]:
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [member for each in get_args(hint) for member in _members(each)]
    return [hint]


def _objects(members: list[Any]) -> list[type]:
    """Classes that a named table can stand for."""
    found: list[type] = []
    for each in members:
        if isinstance(each, type) and dataclasses.is_dataclass(each):
            found.append(each)
        found += _step_rules(each)
    return found


def _step_rules(hint: Any) -> tuple[type, ...]:
    """What an optimiser may be; whoever asks for one has loaded them."""
    optimisers: Any = sys.modules.get("archipel.training.optimisers")
    if optimisers is None or hint is not optimisers.Optimiser:
        return ()
    return (optimisers.SGD, optimisers.Adam)


def _is_skipped(hint: Any) -> bool:
    """Whether no file can hold it: torch's own kinds, which are loaded where one is asked for."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and hint in (torch.Tensor, torch.dtype)


def _object(path: str, objects: Mapping[str, type], value: Json) -> Any:
    given = {"name": value} if isinstance(value, str) else dict(value)
    name = given.pop("name", None)
    if not isinstance(name, str):
        raise ArchipelError(f'{path} = {shown(value)}: say which, name = "{next(iter(objects))}".')
    if name not in objects:
        raise unknown(path, name, objects)
    return build(path, objects[name], given)


def build(path: str, target: Callable[..., Any], given: Mapping[str, Json]) -> Any:
    """Call a class or function with checked values."""
    known = hints(target)
    values = {}
    for key, value in given.items():
        if key not in known:
            raise unknown(f"key of {path}", key, known)
        values[key] = read(path, key, known[key], value)
    missing = [name for name in known if name not in values and required(target, name)]
    if missing:
        raise ArchipelError(f"{path}.{missing[0]} is missing: give {wanted(known[missing[0]])}.")
    try:
        return target(**values)
    except ArchipelError:
        raise
    except Exception as error:
        raise ArchipelError(
            f"{path}: {target.__name__} cannot be made with {shown(dict(given))} ({reason(error)})."
        ) from error


def required(target: Callable[..., Any], name: str) -> bool:
    return inspect.signature(target).parameters[name].default is inspect.Parameter.empty


def _finite(value: Json) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    return all(map(_finite, value)) if isinstance(value, list | tuple) else True
