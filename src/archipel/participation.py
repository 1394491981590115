# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a round: sampling, drop-outs and stragglers of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from archipel import rng
from archipel.errors import ArchipelError
from archipel.rng import Ints


class Cohort(NamedTuple):
    """The parties of one round."""

    sampled: Ints
    present: Ints  # those that will send something
    effort: NDArray[np.float64]  # of the present ones: in [0, 1) for a straggler, else 1
    missing: dict[int, str]  # party -> cause


@dataclass(frozen=True)
class Participation:
    """A float `sample` is a rate (at least one party), a whole number so many parties.

    `stragglers` is the share of a round's parties that do not finish their local work in time: an
    algorithm either keeps what they have (`keeps_partial_work`) or goes on without them.
    """

    sample: float | int = 1.0
    dropouts: float = 0.0  # chance that a sampled party does not answer
    stragglers: float = 0.0

    def __post_init__(self) -> None:
        whole = isinstance(self.sample, int) and not isinstance(self.sample, bool)
        if not (self.sample >= 1 if whole else 0 <= self.sample <= 1):
            raise ArchipelError(
                f"sample = {self.sample}: give a rate between 0 and 1, or a whole number of "
                "parties from 1."
            )
        for name in ("dropouts", "stragglers"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ArchipelError(f"{name} = {value}: give a share between 0 and 1.")

    def count(self, parties: int) -> int:
        """How many of the parties a round samples."""
        if isinstance(self.sample, int):
            if self.sample > parties:
                raise ArchipelError(
                    f"sample = {self.sample}: only {parties} parties have training points; "
                    "sample fewer."
                )
            return self.sample
        return max(int(self.sample * parties + 1e-9), 1)

    def draw(self, eligible: Ints, seed: int, t: int, keeps_partial_work: bool) -> Cohort:
        """Draw round t's parties, uniformly without replacement, in ascending order."""
        count = self.count(len(eligible))
        sampled = eligible
        if count < len(eligible):
            chosen = rng.generator(seed, t, "sample").choice(
                len(eligible), count, replace=False, shuffle=False
            )
            sampled = eligible[np.sort(chosen)]
        missing: dict[int, str] = {}
        lost = _draws(seed, t, "dropouts", sampled) < self.dropouts
        late = np.zeros(count, bool)
        late[
            np.argsort(_draws(seed, t, "stragglers", sampled))[: round(self.stragglers * count)]
        ] = 1
        effort = np.where(late, _draws(seed, t, "effort", sampled), 1.0)
        missing |= dict.fromkeys(sampled[lost].tolist(), "dropped out")
        stays = ~lost
        if not keeps_partial_work:
            missing |= dict.fromkeys(sampled[late & ~lost].tolist(), "too slow")
            stays &= ~late
        return Cohort(sampled, sampled[stays], effort[stays], missing)


def _draws(seed: int, t: int, purpose: str, parties: Ints) -> NDArray[np.float64]:
    return rng.uniform(rng.keys(rng.key(seed, t, purpose), parties))
