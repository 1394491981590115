# SPDX-License-Identifier: Apache-2.0
"""What a user reads when something is wrong: one sentence with field, value and remedy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class ArchipelError(ValueError):
    """Bad input. The message is one sentence naming the field, the value and the remedy."""

    exit_code = 2  # of the command line

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class RunFailed(ArchipelError):
    """The input was right, but the run did not reach its end: it diverged, a worker died."""

    exit_code = 1


class BelowQuorum(ArchipelError):
    """Fewer parties answered than the study wants, and it says to stop then."""

    exit_code = 3


def clean(text: str, escaped: bool = False) -> str:
    """Text on one line without anything that a terminal would obey.

    Each such character becomes a space, or where `escaped` the code that Python writes for it.

    >>> clean("a\\x1b[2Jb"), clean("a\\x1b[2Jb", escaped=True)
    ('a [2Jb', 'a\\\\x1b[2Jb')
    """
    return "".join(c if c.isprintable() else _code(c) if escaped else " " for c in text)


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


def one_line(text: str) -> str:
    """A message that shows line ends and the like, cut in the middle where it is endless."""
    line = clean(text, escaped=True)
    return line if len(line) <= 600 else f"{line[:300]} ... {line[-200:]}"


def unknown(kind: str, name: str, choices: Iterable[str]) -> ArchipelError:
    """Return the error for a name that is not among `choices`, with the nearest right one.

    >>> print(unknown("algorithm", "fedavgg", ["fedavg", "scaffold"]))
    unknown algorithm 'fedavgg': did you mean 'fedavg'? Known: fedavg, scaffold.
    """
    known, name = sorted(choices), str(name)  # a number, where the caller did not look
    near = get_close_matches(name.lower(), known, n=1) or [
        each for each in known if len(name) > 2 and each.startswith(name.lower())
    ]
    hint = f"did you mean '{near[0]}'? " if near else ""
    return ArchipelError(f"unknown {kind} '{name}': {hint}Known: {', '.join(known)}.")


def at_least(holder: object, **least: float) -> None:
    """Refuse fields below these bounds: whole numbers where the bound is whole.

    Tensors, which are sweeps, and schedules pass.

    >>> at_least(complex(-1, 0), real=0.0)
    Traceback (most recent call last):
    ...
    archipel.errors.ArchipelError: real = -1.0: give a finite number from 0.
    """
    for name, low in least.items():
        value, whole = getattr(holder, name), isinstance(low, int)
        if not _varies(value) and not (_is_number(value, whole) and value >= low):
            kind = "whole number" if whole else "finite number"
            raise ArchipelError(f"{name} = {value!r}: give a {kind} from {low:g}.")


def above_zero(holder: object, *names: str) -> None:
    """Refuse fields that are not finite numbers above 0; tensors and schedules pass."""
    for name in names:
        value = getattr(holder, name)
        if not _varies(value) and not (_is_number(value) and value > 0):
            raise ArchipelError(f"{name} = {value!r}: give a finite number above 0.")


def texts(holder: object, *names: str) -> None:
    """Refuse fields that are not texts."""
    for name in names:
        value = getattr(holder, name)
        if not isinstance(value, str):
            raise ArchipelError(f"{name} = {value!r}: give a text.")


def optimisers(holder: object, *names: str) -> None:
    """Refuse fields that are not optimisers."""
    for name in names:
        value = getattr(holder, name)
        if isinstance(value, type) or not (hasattr(value, "init") and hasattr(value, "step")):
            raise ArchipelError(f"{name} = {value!r}: give SGD() or Adam().")


def largest(value: Any) -> float:
    """A number, the largest of a tensor, or the largest rate of a schedule, warm-up or not."""
    if hasattr(value, "at"):
        return float(max(value.start, getattr(value, "end", value.start)))
    return float(value.max() if _varies(value) else value)


def _varies(value: Any) -> bool:
    """Whether a value is a tensor or a schedule."""
    return hasattr(value, "broadcast_to") or hasattr(value, "at")


def _is_number(value: Any, whole: bool = False) -> bool:
    kind = numbers.Integral if whole else numbers.Real
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)
