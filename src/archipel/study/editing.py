# SPDX-License-Identifier: Apache-2.0
"""Set one field in a study's text and leave every other byte as it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from archipel.errors import ArchipelError
from archipel.study.file import changed
from archipel.study.template import literal


def with_field(text: str, section: str, field: str, value: Any) -> str:
    """Return the text with the field set, where it stands or at its section's beginning.

    >>> print(with_field('[wire]  # up\\nup = ["clip:1"]  # steps', "wire", "up", ["float16"]))
    [wire]  # up
    up = ["float16"]  # steps
    """
    before = tomllib.loads(text)
    wanted = changed(before, {f"{section}.{field}": value})
    if before == wanted:
        return text
    for made in _ways(text, section, field, literal(value)):
        if _means(made, wanted):  # and not a comment, a text or another section's field
            return made
    raise ArchipelError(
        f"{section}.{field}: cannot be set where [{section}] is no section of its own; write "
        f"[{section}] on a line, and its fields below."
    )


def _ways(text: str, section: str, field: str, value: str) -> Iterator[str]:
    """In place of each value that may be meant, below each heading, at the end."""
    newline = "\r\n" if "\r\n" in text else "\n"
    for found in re.finditer(rf"\b{field}[ \t]*=[ \t]*", text):
        end = _end(text, found.end())
        if end is not None:
            yield text[: found.end()] + value + text[end:]
    line = f"{field} = {value}{newline}"
    for found in re.finditer(rf"^[ \t]*\[[ \t]*{section}[ \t]*\][^\n]*\n", text, re.MULTILINE):
        yield text[: found.end()] + line + text[found.end() :]
    gap = "" if not text else newline if text.endswith("\n") else 2 * newline
    yield f"{text}{gap}[{section}]{newline}{line}"


def _end(text: str, start: int) -> int | None:
    """Where the list that begins here ends; None where there is none."""
    for found in re.finditer(r"\]", text[start:]):
        if isinstance(_value(text[start : start + found.end()]), list):
            return start + found.end()
    return None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}").get("value")
    except tomllib.TOMLDecodeError:
        return None


def _means(text: str, tables: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == tables
    except tomllib.TOMLDecodeError:
        return False
