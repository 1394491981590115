# SPDX-License-Identifier: Apache-2.0
"""What stands between parties and server in a study: every step, rule and sum is one text.

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
from archipel.study.sections import PLAIN, Round
from archipel.study.sections import Wire as Section
from archipel.wire.wire import Wire

_NEEDS = {  # what makes an object a thing of its kind
    "step": ("linear", "unbiased", "init", "send", "receive", "bound"),
    "rule": ("__call__ or mixed",),  # of uploads, or of neighbours
    "sum": ("party", "server"),
}
_TEXT = re.compile(r"(?P<name>.*?\.py(?::[A-Z]\w*(?=:|$))?|[^:]*)(?::(?P<values>.*))?", re.DOTALL)


class Part(NamedTuple):
    """One text of [wire], or a rule of [round]."""

    key: str  # of the study
    kind: plugins.Kind
    text: str

    @property
    def name(self) -> str:
        """What it names, as `plugins` takes it: a name, or a file and its class."""
        return name_of(self.text)


class Between(NamedTuple):
    """What a study says of all that stands between parties and server."""

    wire: Section
    round: Round
    base: Path  # that paths are relative to
    liars: int | float | None = None  # parties of [adversary], for rules that are not told how many

    @property
    def parts(self) -> list[Part]:
        """Text by text."""
        found = [Part("wire.up", "step", text) for text in self.wire.up]
        found += [Part("wire.down", "step", text) for text in self.wire.down]
        found += [Part("round.rule", "rule", text) for text in _texts(self.round.rule)]
        return found + ([] if self.wire.sum == PLAIN else [Part("wire.sum", "sum", self.wire.sum)])

    def made(self) -> Wire:
        """Make what it says; refuse what cannot be."""
        made: dict[str, list[Any]] = {part.key: [] for part in self.parts}
        for part in self.parts:
            with _said_of(part):
                made[part.key].append(_made(part, self.base, self.liars))
        up, down, rules = (made.get(key, []) for key in ("wire.up", "wire.down", "round.rule"))
        rule = InTurn(tuple(rules)) if len(rules) > 1 else (rules or [None])[0]
        return Wire(tuple(up), tuple(down), rule, made.get("wire.sum", [None])[0])

    def written(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """[wire], and the key of [round], with the value of every field."""
        tables: dict[str, Any] = self.wire.model_dump(exclude_none=True)
        made = self.made()
        steps = {"up": made.up, "down": made.down}
        for key, each in steps.items():
            names = [name_of(text) for text in getattr(self.wire, key)]
            tables[key] = [_text(name, step) for name, step in zip(names, each, strict=True)]
        if made.sum is not None:
            tables["sum"] = _text(name_of(tables["sum"]), made.sum)
        if made.rule is None:
            return tables, {}
        names = [name_of(text) for text in _texts(self.round.rule)]
        rules = made.rule.rules if isinstance(made.rule, InTurn) else [made.rule]
        texts = [_text(name, rule) for name, rule in zip(names, rules, strict=True)]
        return tables, {"rule": texts if isinstance(self.round.rule, list) else texts[0]}


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


def _made(part: Part, base: Path, liars: int | float | None) -> Any:
    name, values = _split(part.text)
    if not name:
        raise ArchipelError(f"name a {part.kind}, or a Python file with one.")
    known = [*plugins.names(part.kind), *([PLAIN] if part.kind == "sum" else [])]
    if plugins.file_of(name) is None and name not in known:
        raise unknown(part.kind, name, known)
    cls: Any = plugins.find(part.kind, name, base)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ArchipelError(f"{name} is no dataclass: make it one, @dataclass(frozen=True).")
    own = {name for base in cls.__mro__ for name in vars(base)}  # every class has __call__ itself
    missing = [each for each in _NEEDS[part.kind] if own.isdisjoint(each.split(" or "))]
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
    if part.kind == "rule" and "f" in takes and "f" not in given and fields.required(cls, "f"):
        if liars is None:
            raise ArchipelError(
                f"how many parties may lie is not said: give a number or a share of them, such as "
                f'"{name}:0.2", or say who does in adversary.parties.'
            )
        given["f"] = liars
    return fields.build(f"{part.key}: {name}", cls, given)


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
        if not said.startswith(("wire.", "round.")):
            said = f"{part.key} = {fields.shown(part.text)}: {said}"
        raise type(error)(said) from error
