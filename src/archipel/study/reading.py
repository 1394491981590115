# SPDX-License-Identifier: Apache-2.0
"""A study's text as tables, and what its writer is told where it cannot be read."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from archipel.errors import ArchipelError, unknown
from archipel.study import fields
from archipel.study.sections import SECTIONS, keys


def read_tables(content: str | Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a study, each with a name that is known."""
    if isinstance(content, str):
        content = _loaded(content)
    for name, section in content.items():
        if name not in SECTIONS:
            raise unknown("section", f"[{name}]", [f"[{each}]" for each in SECTIONS])
        if not isinstance(section, Mapping):
            raise ArchipelError(f"{name} = {fields.shown(section)}: write a section, [{name}].")
        _check_size(section, name)
    return {name: _as_now(name, section) for name, section in content.items()}


def _as_now(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section as this version has it: [wire] had a list that was always empty, and the rule."""
    if name == "wire" and "rule" in section:
        rule = fields.shown(section["rule"])
        raise ArchipelError(f"wire.rule = {rule}: is a key of [round]; say round.rule = {rule}.")
    if name == "wire" and section.get("steps") == []:
        return {key: value for key, value in section.items() if key != "steps"}
    return section


def _loaded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, str(error)) from None
    except RecursionError:
        raise ArchipelError("not TOML that can be read: lists are nested too deep.") from None
    except ValueError:  # Python reads no whole number of thousands of digits
        raise ArchipelError("not TOML that can be read: a number has too many digits.") from None


def split_key(path: str) -> list[str]:
    """The parts of a dotted key, quoted where a dot belongs to a name.

    >>> split_key('simulate.away."St. Mary"')
    ['simulate', 'away', 'St. Mary']
    """
    try:
        inside: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        return path.split(".")
    parts = []
    while isinstance(inside, dict):
        ((key, inside),) = inside.items()
        parts.append(key)
    return parts


def _not_toml(text: str, said: str) -> ArchipelError:
    """The sentence for a file that is no TOML, with the line in question."""
    reason, _, place = said.rpartition(" (at ")
    lines = text.rstrip().split("\n")
    found = re.match(r"line (\d+)", place)
    number = min(int(found[1]), len(lines)) if found else len(lines)
    line = lines[number - 1].strip()
    reason = reason[:1].lower() + reason[1:]
    return ArchipelError(f"line {number}, {fields.shown(line)}: not TOML, {reason}.")


def _check_size(value: Any, path: str) -> None:
    """Refuse numbers that are computed with in too few bits: whole ones in 64, others in 32."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_size(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            _check_size(each, path)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ArchipelError(f"{path} = {fields.shown(value)}: give a number of at most 64 bits.")
    elif isinstance(value, float) and 3e38 < abs(value) < math.inf:
        raise ArchipelError(f"{path} = {value}: give a number below 3e38.")


def sentence(error: ValidationError) -> ArchipelError:
    """The first thing that pydantic found wrong with a study, in our words."""
    first = error.errors(include_url=False)[0]
    section, field, *inside = (str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown(f"key of [{section}]", field, keys(section))
    hint = SECTIONS[section].model_fields[field].annotation
    if inside and get_origin(hint) in (dict, list):
        field, hint = f"{field}.{inside[0]}", get_args(hint)[-1]
    wanted = re.sub("a whole number(,| or) a number", "a number", fields.wanted(hint, none=False))
    limits = "".join(
        f" {word} {first['ctx'][limit]}"
        for limit, word in _LIMITS.items()
        if limit in first.get("ctx", {})
    )
    value = fields.shown(first["input"])
    return ArchipelError(f"{section}.{field} = {value}: give {wanted}{limits}.")


_LIMITS = {  # pydantic's names
    "ge": "from",
    "le": "up to",
    "lt": "below",
    "min_length": "with a length from",
    "max_length": "with a length up to",
}
