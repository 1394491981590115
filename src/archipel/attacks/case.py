# SPDX-License-Identifier: Apache-2.0
"""What an attack is given, and what it gives back. The page to read first.

An attack never sees the truth it is judged by. Attacks of a family are given the same, and the
audit (`archipel.audit`) judges what they give back:

- **membership**: what an adversary has of a run, as far as it tells of given records (`Signals`),
  and the same of runs that it made itself, where it knows who was in (`Shadow`). Gives a number per
  record: the larger, the more likely it was used.
- **active**: as membership, of runs in which it acts: it says what a party trains on and sends, or
  which model a server sends.
- **inversion**: one upload, with the model it belongs to (`Letter`). Gives records.
- **property**: uploads of runs the adversary made, with and without a property, and one of which it
  wants to know. Gives a number.
- **differencing**: sums over different parties. Gives what follows of each.
- **imprint**: says which model is sent, and is given the `Letter` that comes back. Gives records.

An attack is a frozen dataclass of its settings with one method; its class attributes say its
`family`, and `needs`, of which an adversary must have one. A package adds names with the group of
entry points `archipel.attacks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from archipel.core import Vector
from archipel.models.model import Model

Family = Literal["membership", "active", "inversion", "property", "differencing", "imprint"]
Tells = Literal["records", "labels", "symbols"]  # what an inversion makes of an upload
Has = Literal[
    "final",  # the model at the end
    "models",  # the model of every round
    "mean",  # the mean of a round's uploads
    "single",  # uploads one by one
    "sends",  # what parties are sent is its own to choose
    "acts",  # what it uploads as a party is its own to choose
]


class Signals(NamedTuple):
    """What an adversary has of a run, as far as it tells of N records; NaN where it has nothing."""

    loss: Tensor  # [N] of the model at the end
    sure: Tensor  # [N, 3] how sure that model is: its largest log-probabilities, falling
    rounds: Tensor  # [N, f] losses over rounds: before and after what it saw of the record's party


class Shadow(NamedTuple):
    """A run that the adversary made itself, on records that it has."""

    signals: Signals
    used: Tensor  # bool [N] which of the records were used


class Membership(Protocol):
    """Tells which records were used."""

    family: ClassVar[Family]
    needs: ClassVar[frozenset[Has]]

    def scores(self, seen: Signals, shadows: Sequence[Shadow]) -> Tensor:
        """A number per record, `[N]`: the larger, the more likely it was used."""


@dataclass(frozen=True)
class Letter:
    """An upload as it arrived, with what everybody knows of how it was made."""

    model: Model
    w: Vector  # [p] the model that the party was sent
    gradient: Vector  # [p] the upload as a gradient: divided by what the party multiplies it with
    records: int  # that are behind it
    steps: int  # local steps that it is the sum of
    batch: int  # records of a step
    lr: float  # of a step
    shape: tuple[int, ...]  # of a record
    classes: int  # 0 where targets are not classes
    low: Tensor  # [*shape] the least that a feature can be
    high: Tensor  # [*shape] the most
    seed: int = 0
    quick: bool = False


class Records(NamedTuple):
    """Records that an attack made of an upload."""

    x: Tensor  # [r, *shape]; [r] symbols of a text where these are told
    y: Tensor | None = None  # [r] classes, where it found them


class Inversion(Protocol):
    """Makes records of an upload, or tells their labels or symbols."""

    family: ClassVar[Family]
    needs: ClassVar[frozenset[Has]]
    tells: ClassVar[Tells]

    def applies(self, letter: Letter) -> str:
        """Why it does not apply; empty where it does."""

    def records(self, letter: Letter) -> Records: ...


class Property(Protocol):
    """Tells whether a party's records have a property, from what it sends."""

    family: ClassVar[Family]
    needs: ClassVar[frozenset[Has]]

    def scores(self, known: Tensor, has: Tensor, seen: Tensor) -> Tensor:
        """Of uploads `[a, p]` with the property or not `[a]`, and others `[b, p]`: `[b]`."""
