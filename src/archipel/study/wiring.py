# SPDX-License-Identifier: Apache-2.0
"""The wire that a study's [wire] says: every step, the rule and the sum is one text.

A text is a name or a Python file, with a class where the file has several, then values of its
fields in order or by name: `clip:1.0`, `int8.py`, `krum.py:Krum:1:keep=3`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from archipel.aggregation.rule import InTurn
from archipel.errors import ArchipelError, unknown
from archipel.study import fields, plugins
from archipel.study.sections import PLAIN
from archipel.study.sections import Wire as Section
from archipel.wire.wire import Wire

_NEEDS = {  # what makes an object a thing of its kind
    "step": ("linear", "unbiased", "init", "send", "receive", "bound"),
    "rule": ("__call__",),
    "sum": ("party", "server"),
}
_TEXT = re.compile(r"(?P<name>.*?\.py(?::[A-Z]\w*(?=:|$))?|[^:]*)(?::(?P<values>.*))?", re.DOTALL)


class Part(NamedTuple):
    """One text of [wire]."""

    key: str  # of the section
    kind: plugins.Kind
    text: str

    @property
    def name(self) -> str:
        """What it names, as `plugins` takes it: a name, or a file and its class."""
        return name_of(self.text)


def parts_of(section: Section) -> list[Part]:
    """What [wire] says, text by text."""
    found = [Part("up", "step", text) for text in section.up]
    found += [Part("down", "step", text) for text in section.down]
    found += [Part("rule", "rule", text) for text in _texts(section.rule)]
    return found + ([] if section.sum == PLAIN else [Part("sum", "sum", section.sum)])


def wire_of(section: Section, base: Path) -> Wire:
    """Make what [wire] says; refuse what cannot be."""
    made: dict[str, list[Any]] = {"up": [], "down": [], "rule": [], "sum": []}
    for part in parts_of(section):
        with _said_of(part):
            made[part.key].append(_made(part, base))
    rules, (how,) = made["rule"], made["sum"] or [None]
    rule = InTurn(tuple(rules)) if len(rules) > 1 else (rules or [None])[0]
    return Wire(tuple(made["up"]), tuple(made["down"]), rule, how)


def written(section: Section, base: Path) -> dict[str, Any]:
    """The section with the value of every field."""
    tables: dict[str, Any] = section.model_dump(exclude_none=True)
    made = wire_of(section, base)
    steps = {"up": made.up, "down": made.down}
    for key, each in steps.items():
        names = [name_of(text) for text in getattr(section, key)]
        tables[key] = [_text(name, step) for name, step in zip(names, each, strict=True)]
    if made.sum is not None:
        tables["sum"] = _text(name_of(tables["sum"]), made.sum)
    if made.rule is not None:
        names = [name_of(text) for text in _texts(section.rule)]
        rules = made.rule.rules if isinstance(made.rule, InTurn) else [made.rule]
        texts = [_text(name, rule) for name, rule in zip(names, rules, strict=True)]
        tables["rule"] = texts if isinstance(section.rule, list) else texts[0]
    return tables


def _texts(rule: str | list[str] | None) -> list[str]:
    """One rule, or several."""
    return [rule] if isinstance(rule, str) else rule or []


def name_of(text: str) -> str:
    """What a text names, without its values."""
    return _split(text)[0]


def _split(text: str) -> tuple[str, list[str]]:
    """The name in a text, and its values.

    >>> _split("clip:1.0"), _split("a/krum.py:Krum:1:keep=3")
    (('clip', ['1.0']), ('a/krum.py:Krum', ['1', 'keep=3']))
    """
    found = _TEXT.fullmatch(text)
    assert found is not None, "it takes any text"
    return found["name"], [] if found["values"] is None else found["values"].split(":")


def _made(part: Part, base: Path) -> Any:
    name, values = _split(part.text)
    if not name:
        raise ArchipelError(f"name a {part.kind}, or a Python file with one.")
    known = [*plugins.names(part.kind), *([PLAIN] if part.kind == "sum" else [])]
    if plugins.file_of(name) is None and name not in known:
        raise unknown(part.kind, name, known)
    cls: Any = plugins.find(part.kind, name, base)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ArchipelError(f"{name} is no dataclass: make it one, @dataclass(frozen=True).")
    missing = [each for each in _NEEDS[part.kind] if not hasattr(cls, each)]
    if missing:
        raise ArchipelError(
            f"{cls.__name__} is no {part.kind}: it has no {missing[0]}; see "
            "docs/how-to-own-step.md."
        )
    takes = list(fields.hints(cls))
    given: dict[str, Any] = {}
    for at, value in enumerate(values):
        field, equals, rest = value.partition("=")
        if not equals:
            if at >= len(takes):
                named = ", ".join(takes) or "no values"
                raise ArchipelError(f'{cls.__name__} takes {named}; leave ":{value}" out.')
            field, rest = takes[at], value
        if field in given:
            raise ArchipelError(f'{field} is given twice; leave ":{value}" out.')
        given[field] = _value(rest)
    return fields.build(f"wire.{part.key}: {name}", cls, given)


def _value(text: str) -> Any:
    """A value as a study file would hold it; what is no TOML is a text."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def _text(name: str, made: Any) -> str:
    """The other way: the text with every field by name."""
    values = {
        field: fields.write(getattr(made, field))
        for field, hint in fields.hints(type(made)).items()
        if fields.holds(hint, getattr(made, field))
    }
    words = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    return ":".join([name, *(f"{field}={value}" for field, value in words.items())])


@contextmanager
def _said_of(part: Part) -> Iterator[None]:
    """Have every error name the key and the text."""
    try:
        yield
    except ArchipelError as error:
        said = str(error)
        if not said.startswith("wire."):
            said = f"wire.{part.key} = {fields.shown(part.text)}: {said}"
        raise type(error)(said) from error
