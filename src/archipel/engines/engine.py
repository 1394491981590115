# SPDX-License-Identifier: Apache-2.0
"""An engine runs rounds: what every engine offers to the loop, and what it says of a round.

`local` has all parties on one machine, `network` has them elsewhere. The loop
(`archipel.runs.loop`) knows no more of either than `Engine`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    get_args,
    runtime_checkable,
)

import numpy as np
from numpy.typing import NDArray

from archipel.measures import ALL_POINTS
from archipel.rng import Ints

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.core import Vector
    from archipel.engines.local.personal import Costs
    from archipel.engines.plan import Plan
    from archipel.exchange.anatomy import Anatomy
    from archipel.graphs import Topology
    from archipel.privacy.promise import Kept

Floats = NDArray[np.float64]

Why = Literal[
    "not needed",
    "not visited yet",
    "dropped out",
    "too slow",
    "silent",
    "diverged before",
    "diverged",
    "refused",
    "paused",
    "declined",
    "spent",
    "left",
    "revoked",
    "away",
]
# those that were never sent the round's work
_NOT_REACHED = {
    "not visited yet", "diverged before", "paused", "declined", "spent", "left", "revoked", "away",
}  # fmt: skip


class Cause(NamedTuple):
    """Why a party is missing: one of a few words, and for people what it did last or says itself.

    >>> str(Cause("silent", "trains, 512 gradients"))
    'silent (trains, 512 gradients)'
    >>> Cause.read("silent (trains, 512 gradients)"), Cause.read("the disk is full").why
    (Cause(why='silent', detail='trains, 512 gradients'), 'away')
    """

    why: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.why} ({self.detail})" if self.detail else self.why

    @property
    def reached(self) -> bool:
        """Whether the party was sent the round's work."""
        return self.why not in _NOT_REACHED

    @classmethod
    def read(cls, text: str) -> Cause:
        """A cause as journals have it, and as a site gives it in its own words."""
        for why in get_args(Why):
            if match := re.fullmatch(rf"{why}\b(?:[:\s]*\(?(.*?)\)?)?", text):
                return cls(why, match[1] or "")
        return cls("away", text)


class Outcome(NamedTuple):
    """What became of a round."""

    arrived: Ints  # parties whose last upload counted
    missing: Mapping[int, Cause] = {}  # party -> why it did not arrive, of those that were asked
    gradients: int = 0  # gradients of single examples that were computed
    up: int = 0  # bytes that all parties sent
    down: int = 0  # bytes that all parties were sent
    given_up: str = ""  # why what makes the sum did not go on with those who were there, if ever
    left: Mapping[int, Cause] = {}  # party -> why it went, after its upload had counted
    stale: Mapping[int, int] = {}  # steps since a party that arrived was sent the shared state

    @property
    def diverged(self) -> Ints:
        """Parties left out because their numbers were not finite, or spoilt the shared state."""
        found = [k for k, cause in self.missing.items() if cause.why == "diverged"]
        return np.array(sorted(found), np.int64)


class Some(NamedTuple):
    """Parties that a model is scored at, drawn for all."""

    parties: Ints  # in ascending order
    of: tuple[int, int]  # parties that train, and new ones, for which they stand


class Evaluation(NamedTuple):
    """Metrics of each party that was scored (NaN where it has no such points) and over all."""

    parties: dict[str, Tensor]  # [K], or a row for each of `who`
    pooled: dict[str, float]  # training parties
    new: dict[str, float]  # new parties; empty where there are none
    costs: Costs | None = None  # of the models of their own that parties made
    over: str = ALL_POINTS  # what `pooled` is taken over
    who: Some | None = None  # who was scored; None: everybody
    intervals: Mapping[str, tuple[float, float]] = {}  # of `pooled`, 95 %, where a sample was
    new_intervals: Mapping[str, tuple[float, float]] = {}  # of `new`


class Engine(Protocol):
    """Runs rounds of an algorithm; used in a `with` block."""

    @property
    def anatomy(self) -> Anatomy:
        """What a round sends, found before the first one."""

    @property
    def plan(self) -> Plan:
        """How it computes."""

    @property
    def has_own(self) -> bool:
        """Whether parties use models of their own."""

    @property
    def own_statistics(self) -> bool:
        """Whether every party keeps BatchNorm's statistics for itself."""

    @property
    def kept(self) -> Kept | None:
        """What is promised, with its plan; None where nothing is, or each party has its own."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def round(
        self,
        t: int,
        parties: Sequence[int] | Ints,
        effort: Floats | None = None,
        *,
        answers: Ints | None = None,
        needed: int = 1,
        enough: int | None = None,
        unheard: int = 0,
    ) -> Outcome:
        """Do round t with these parties; the shared state changes all at once, or not at all.

        `effort` in [0, 1) is how far a straggler gets; `answers`, how many of the round's messages
        a party answers before it is lost (all without any). With fewer than `needed` uploads the
        round changes nothing, and none has arrived; with `enough` first uploads the others are not
        waited for. `unheard` parties are sent the round's work, too, and nothing comes of them.
        """

    def evaluate(
        self, w: Vector | None = None, *, own: bool = False, who: Some | None = None
    ) -> Evaluation:
        """Score the shared model, or w, or with `own` every party's model, at every party.

        With `who` these are scored alone, where all parties are at hand.
        """

    def vector(self, setting: int | None = None) -> Vector:
        """The model `[p]`, of one setting of a sweep."""

    def buffers(self) -> Tensor | None:
        """Buffers that go with the vector; None where there are none."""

    def state(self) -> dict[str, Tensor]:
        """All that the next round depends on besides its number: a checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of an engine made alike."""


@runtime_checkable
class Joined(Protocol):
    """An engine whose parties talk to each other."""

    def graph(self) -> Topology | None:
        """Who talks to whom: of a graph that is learned, as it is now; None where nobody does."""


class SteppingEngine(Engine, Protocol):
    """An engine for parties that do not wait for each other, run by a clock of events."""

    def step(
        self,
        t: int,
        parties: Sequence[int] | Ints,
        versions: Sequence[int] | Ints,
        held: Collection[int] = (),
        *,
        unheard: int = 0,
    ) -> Outcome:
        """Do the server's step t with an upload of each of these parties, none of them twice.

        `versions` says which shared state each began from: t, or one before it. `held` are those
        that others are still at work on, and that are kept. `unheard` parties were sent the shared
        state, too, and nothing came of them.
        """
