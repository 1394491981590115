# SPDX-License-Identifier: Apache-2.0
"""Network differential privacy: what each other party sees, in place of everything at once.

Cyffers, Bellet, AISTATS 2022, https://arxiv.org/abs/2012.05326, Algorithms 1 and 2: a token goes
round a ring of K parties M times, and everybody adds a value to it. Noise enters every K - 1 hops
only, so that between two visits to one party there is one fresh noise, always. The sum has the
deviation σ √⌈M K / (K - 1)⌉ where local noise has σ √(M K): less by √K, about.

Views are exact here (`linear.py`). Party v is shown the token when it comes, and what it adds
itself it knows; so v knows the sum over each stretch of hops between its visits, with the noise of
that stretch, and nothing else. Parties that collude cut the ring into shorter stretches: those of
two neighbours of a victim hold its value alone, without noise, and nothing protects it then.

Gossip [Cyffers, Even, Bellet, Massoulié, NeurIPS 2022, https://arxiv.org/abs/2206.05091]: noise is
added once, x + N(0, σ² I), and everybody mixes with its neighbours, x <- W x. All that v sees are
rows of powers of W times one and the same noisy vector: its loss about u is α / (2 σ²) |P e_u|²,
P the projector on the span of these rows. A sum of losses of single messages is no bound: messages
share one noise, and together tell more than each by itself. On a ring of 16 after 8 steps they tell
v everything that x + N(0, σ²) itself would.

Departures: where the sum is published, the last party adds noise, too, if it does not anyway, since
a party late in the last round would else see exactly what those after it added. The token of the
histogram starts, and ends where it is published, with Bin(K, γ) uniform values in place of γ K of
them: it hides as K further reports would, exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, expm1, log, sqrt

import numpy as np
from numpy.typing import ArrayLike

from archipel.errors import ArchipelError
from archipel.privacy import linear
from archipel.privacy.accounting import epsilon
from archipel.privacy.analytic import epsilon_of
from archipel.privacy.checks import check_count, positive
from archipel.privacy.curves import Array
from archipel.privacy.randomisers import Response
from archipel.privacy.release import Release, Shuffled
from archipel.privacy.sources import Source
from archipel.privacy.uniform import below
from archipel.rng import Ints


def check_ring(parties: int, rounds: int) -> None:
    """Refuse what is no ring."""
    check_count("rounds", rounds)
    if check_count("parties", parties) < 3:
        raise ArchipelError(f"parties = {parties}: a ring has 3 parties or more.")


# -- sums ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RingSum:
    """A private sum on a ring; each party's value is at most 1 away from any other it may be.

    >>> ring = RingSum(parties=100, rounds=10, sigma=1.0)
    >>> len(ring.noisy), round(ring.deviation, 3)
    (11, 3.317)
    """

    parties: int  # K
    rounds: int  # M
    sigma: float
    published: bool = False  # whether everybody is told the sum

    def __post_init__(self) -> None:
        check_ring(self.parties, self.rounds)
        positive("sigma", self.sigma)

    @cached_property
    def noisy(self) -> list[int]:
        """Hops that add noise, counted from 0; party h mod K makes hop h."""
        last = self.parties * self.rounds - 1
        found = [*range(0, last + 1, self.parties - 1)]
        return found if found[-1] == last or not self.published else [*found, last]

    @property
    def deviation(self) -> float:
        """Of the sum: σ √⌈M K / (K - 1)⌉, with one noise more where a published sum needs it."""
        return self.sigma * sqrt(len(self.noisy))

    def run(self, values: ArrayLike, noise: ArrayLike) -> float:
        """The token after all rounds, for values `[M, K]` and as much standard noise as enters."""
        drawn = np.asarray(noise, np.float64)
        if drawn.shape != (len(self.noisy),):
            raise ArchipelError(
                f"noise of shape {drawn.shape}: {len(self.noisy)} numbers of it enter."
            )
        return float(np.sum(np.asarray(values, np.float64)) + self.sigma * drawn.sum())

    def stretches(self, watchers: Collection[int]) -> list[range]:
        """Hops of others between two visits to one who watches; the last if it is told."""
        hops = self.parties * self.rounds
        seen = [h for h in range(hops) if h % self.parties in watchers]
        ends = [*seen, *([hops] if self.published else [])]
        found = [range(a + 1, b) for a, b in zip([-1, *seen], ends, strict=False)]
        return [stretch for stretch in found if len(stretch)]

    def distances(self, watchers: Collection[int] = (0,)) -> Array:
        """mu of each party `[K]` in what those who watch know together; 0 is their own.

        Stretches have noise of their own each, and a party's values are in as many of them as it
        makes hops: squares add up, one for each round.
        """
        stretches = self.stretches(watchers)
        hops = self.parties * self.rounds
        view = np.zeros((len(stretches), hops))
        added = np.zeros((len(stretches), len(self.noisy)))
        for row, stretch in enumerate(stretches):
            view[row, stretch.start : stretch.stop] = 1.0
            for column, hop in enumerate(self.noisy):
                added[row, column] = self.sigma * (hop in stretch)
        single = linear.distances(view, np.zeros(hops), added)
        squares = (single**2).reshape(self.rounds, self.parties).sum(axis=0)
        squares[sorted(watchers)] = 0.0
        found: Array = np.sqrt(squares)
        return found

    def epsilon(self, delta: float) -> float:
        """ε of the party that loses the most to one other party, exactly."""
        worst = max(float(self.distances((v,)).max()) for v in range(self.parties))
        return epsilon_of(worst, delta)

    def theorem(self, delta: float, slack: float) -> tuple[float, float]:
        """(ε, δ) of the paper's Theorem 1: M compositions of one noise at δ, and δ' = `slack`."""
        once, M = sqrt(2 * log(1.25 / delta)) / self.sigma, self.rounds
        total = sqrt(2 * M * log(1 / slack)) * once + M * once * expm1(once)
        return total, M * delta + slack


# -- histograms ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RingHistogram:
    """Counts of values 0 ... k - 1 on a ring, each told by k-ary randomised response."""

    parties: int  # K
    response: Response
    rounds: int = 1  # M
    published: bool = False

    def __post_init__(self) -> None:
        check_ring(self.parties, self.rounds)

    @property
    def uniform(self) -> float:
        """γ: how likely a report is uniform."""
        return self.response.values * self.response.other

    def run(self, values: ArrayLike, parties: Source, token: Source) -> Array:
        """Estimated counts `[k]`, for values `[M, K]`; fillers are drawn from `token`."""
        held = np.asarray(values)
        reports = [self.response.report(row, parties) for row in held]
        fills = [self._filler(token) for _ in range(1 + self.published)]
        k = self.response.values
        counts = np.bincount(np.concatenate([*reports, *fills]), minlength=k)[:k]
        expected = self.response.other * (held.size + self.parties * len(fills))
        apart = self.response.truth - self.response.other
        return np.asarray((counts - expected) / apart, np.float64)

    def variance(self, counts: ArrayLike) -> Array:
        """Of each estimated count, where so many reports are of each value."""
        k, response, fills = self.response.values, self.response, 1 + self.published
        filler = self.parties * self.uniform / k * (1 - self.uniform / k)
        return response.variance(counts) + fills * filler / (response.truth - response.other) ** 2

    def _filler(self, token: Source) -> Ints:
        words = token.words(np.array([self.parties]))
        there = words < np.uint64(min(ceil(self.uniform * 2**64), 2**64 - 1))
        drawn: Ints = below(token, self.response.values, self.parties)[0][there]
        return drawn

    def hidden_among(self, watcher: int) -> list[int]:
        """Reports in each stretch that one other party sees, fillers counted."""
        others = RingSum(self.parties, self.rounds, 1.0, self.published).stretches((watcher,))
        sizes = [len(stretch) for stretch in others]
        if others and others[0].start == 0:
            sizes[0] += self.parties
        if self.published and others and others[-1].stop == self.parties * self.rounds:
            sizes[-1] += self.parties
        return sizes

    @property
    def reports(self) -> int:
        """The fewest reports that one of them is hidden among, in anybody's view."""
        return min(min(self.hidden_among(v), default=1) for v in range(self.parties))

    def epsilon(self, delta: float) -> float:
        """ε of the party that loses the most to one other party, over all rounds."""
        told = Shuffled(self.response.epsilon0, self.reports, self.response.values)
        return epsilon([Release(told, times=self.rounds)], delta, neighbours="replace")


# -- gossip ----------------------------------------------------------------------------------------


def gossip_view(mixing: Sequence[ArrayLike], watcher: int) -> Array:
    """What a party sees of gossip: a row of each message, and its own values, `[k, n]`.

    `mixing` is W of each step: v is sent x_w of every neighbour w before step t, and x is then
    multiplied by W_t.
    """
    first = np.asarray(mixing[0], np.float64)
    power, rows = np.eye(len(first)), []
    for step in mixing:
        W = np.asarray(step, np.float64)
        if W.shape != first.shape or W.shape[0] != W.shape[1]:
            raise ArchipelError(f"mixing of shape {W.shape}: give square matrices of one size.")
        rows += [power[w] for w in np.flatnonzero(W[watcher]).tolist()]
        power = W @ power
    rows.append(power[watcher])
    return np.array(rows)


def gossip_distances(mixing: Sequence[ArrayLike], watcher: int, sigma: float) -> Array:
    """mu of each party in what one sees of gossip, exactly, if its number may move by 1.

    The Rényi divergence of order α is α mu² / 2 = α / (2 σ²) |P e_u|²; no mu is above 1 / σ.

    >>> W = np.full((4, 4), 0.25)
    >>> gossip_distances([W], watcher=0, sigma=1.0).round(3).tolist()
    [0.0, 1.0, 1.0, 1.0]
    """
    view = gossip_view(mixing, watcher)
    own = np.full(view.shape[1], positive("sigma", sigma))
    own[watcher] = 0.0  # it knows its own noise
    found = linear.distances(view, own)
    found[watcher] = 0.0
    return found


def local_epsilon(sigma: float, contributions: int, delta: float) -> float:
    """ε where every contribution has noise of its own and everybody sees it, exactly."""
    return epsilon_of(sqrt(contributions) / positive("sigma", sigma), delta)


def perturbing(epsilon: float, delta: float) -> float:
    """σ with which one value in [0, 1] is (ε, δ)-private, as the theorem has it.

    >>> round(perturbing(1.0, 1e-5), 3)
    4.845
    """
    return sqrt(2 * log(1.25 / delta)) / positive("epsilon", epsilon)
