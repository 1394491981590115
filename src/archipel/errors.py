# SPDX-License-Identifier: Apache-2.0
"""What a user reads when something is wrong: one sentence with field, value and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ArchipelError(ValueError):
    """Bad input. The message is one sentence naming the field, the value and the remedy."""

    exit_code = 2  # of the command line

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class RunFailed(ArchipelError):
    """The input was right, but the run did not reach its end: it diverged, a worker died."""

    exit_code = 1


class DatabaseAway(RunFailed):
    """A database does not answer: what was asked of it may be asked again."""


class BelowQuorum(ArchipelError):
    """Fewer parties answered than the study wants, and it says to stop then."""

    exit_code = 3


class BudgetSpent(ArchipelError):
    """A privacy budget does not last for what was asked; what was done before is kept."""

    exit_code = 4


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
