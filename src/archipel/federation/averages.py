# SPDX-License-Identifier: Apache-2.0
"""What private means between institutions have in common, however what they say gets across."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.averaging import Numbers, Said
from archipel.errors import ArchipelError, RunFailed
from archipel.exchange.talk import Talk
from archipel.federation.numbers import NumbersFile
from archipel.store.files import write
from archipel.verifiable.bulletin import Board, is_name
from archipel.verifiable.terms import Terms, agreed
from archipel.verifiable.verification import Verdict

BULLETIN = "bulletin.jsonl"  # in a party's folder, unless it is written elsewhere
PATIENCE = 60.0  # seconds that a party is waited for in a step
T = TypeVar("T")
Say = Callable[[str], None]
Step = Callable[[int, bytes, set[int], float], Awaitable[dict[int, bytes]]]
_NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True)
class Average:
    """What came of a private mean."""

    estimate: Numbers
    parties: tuple[str, ...]  # that are in it


async def converse(
    box: Generator[bytes, Said, T],
    others: Mapping[int, str],
    step: Step,
    wait: float,
    patience: float,
    before: Callable[[int], None] = lambda _: None,
    say: Say = lambda _: None,
) -> T:
    """Run a party to its end: `step` tells the others something and returns what they told.

    `wait` is how long they are waited for at first. Who tells nothing in a step has vanished.
    `before` is called with the number of what is about to be told, from 1.
    """
    talk, alive, number = Talk(box), set(others), 0
    while not talk.ended:
        before(number + 1)
        told = await step(number, talk.said, alive, patience if number else wait)
        for j in sorted(alive - told.keys()):
            say(f"goes on without {others[j]}")
        alive &= told.keys()
        talk.send(told)
        number += 1
    found: T = talk.said
    return found


def as_array(content: bytes) -> Tensor:
    """Bytes as a letter carries them."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else _NOTHING


def terms_of(file: NumbersFile, identities: Mapping[str, str]) -> Terms:
    """What parties with proofs agree on, as their file has it."""
    question = file.question
    for name, identity in identities.items():
        if not identity:
            raise ArchipelError(
                f"peers: {name} has no identity, with which it signs what it proves; have it run "
                "'archipel average --card' again and send you what that prints."
            )
        if not is_name(name):
            raise ArchipelError(
                f"{name!r}: cannot be written in a bulletin; name it with up to 80 letters, "
                "digits, dots, dashes and spaces."
            )
    question.plan(len(identities))  # what cannot be promised is refused first
    return agreed(
        identities, file.session, names=question.names, low=question.low, high=question.high,
        contribution=question.contribution, epsilon=question.epsilon, delta=question.delta,
        honest=question.honest, dropouts=question.dropouts, neighbours=question.neighbours,
    )  # fmt: skip


def assure_new(bulletin: Path) -> None:
    if bulletin.exists():
        raise ArchipelError(f"--bulletin {bulletin}: is there; name a file that is not.")


def keep(board: Board, bulletin: Path) -> None:
    """Write a bulletin in which something was published, or that came to its end."""
    ended = bool(board.entries) and board.entries[-1].what == "end"
    if ended or any(each.what == "publish" for each in board.entries):
        write(bulletin, b"".join(board.lines))


def proved(verdict: Verdict) -> Average:
    """The mean that a bulletin proves; without one, who is to blame."""
    (outcome,) = verdict.outcomes
    if outcome.mean is None:
        named = "; ".join(
            f"{each.party or 'the bulletin'}: {each.kind}: {each.detail}" for each in verdict.told
        )
        raise RunFailed(f"no verified mean: {named}; run it again without those named.")
    return Average(np.array(outcome.mean), outcome.counted)
