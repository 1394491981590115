# SPDX-License-Identifier: Apache-2.0
"""How a sum is made: GOPA, noise that cancels along a random graph, and a little that stays.

Sabater, Bellet, Ramon, Machine Learning 111, 2022, https://arxiv.org/abs/2006.07218, Algorithm 1.

    [wire]
    sum = "gopa"

1. Every party picks k others. Two that are joined agree on a key, which nobody else has, and draw
   the same pairwise term from it: one adds it, the other takes it away.
2. It adds noise of its own, and publishes the sum. In the sum over all the pairwise terms are gone.
3. Who was joined to a party that has not published tells the key of that pair, so that what is
   left of its terms can be taken away: nothing is left, to the last bit.

Nobody can choose the graph for another: a party's own picks hide it whatever the server says. The
server passes on what it gets, and may collude with a share 1 - honest of the parties; it does not
lie about who has published. What is told of whom: `privacy/gopa.py`.

Departures: values, noise and terms are integers, of the rounded numbers on a grid; in the modular
form terms are uniform modulo 2^64. The paper's parties exchange a term, ours a key that it is drawn
from. A party that vanishes between 2 and 3 is not corrected for: where that was needed, the round
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.aggregation.keys import KeyPair, Session, digest
from archipel.aggregation.masks import mask
from archipel.aggregation.summation import Total, Vectors
from archipel.core import Each, Uploads, places
from archipel.errors import ArchipelError, BelowQuorum, unknown
from archipel.privacy import gopa, noise
from archipel.privacy.grid import grid, rounded
from archipel.privacy.sources import Keystream, Source

Steps = NDArray[np.uint64]  # numbers in steps of the grid, modulo 2^64

_MOST = 2.0**62  # of a sum, in steps
_PLAIN = 2.0**-32  # the grid's step, where there is no noise


@dataclass(frozen=True)
class NoiseTerms:
    """What a party adds to its value: of a grid, noise and pairwise terms.

    >>> terms = NoiseTerms("modular", independent=0.0, pairwise=0.0)
    >>> one, other = terms.steps(torch.tensor([0.25])), terms.steps(torch.tensor([1.0]))
    >>> terms.join(one, plus=[bytes(32)])
    >>> terms.join(other, minus=[bytes(32)])
    >>> terms.numbers(one + other)
    array([1.25])
    """

    form: gopa.Form
    independent: float  # s_e
    pairwise: float  # s_D

    @property
    def step(self) -> float:
        return grid(self.independent) if self.independent else _PLAIN

    def steps(self, x: Tensor, parties: int = 1) -> Steps:
        """Numbers as integers, of which so many parties' sum does not overflow."""
        if not bool(x.double().abs().max() * parties < _MOST * self.step):
            raise ArchipelError(
                f"wire.sum: an upload has numbers that are not finite or too large for a sum of "
                f"{parties} on a grid of {self.step:.2g}: clip it first."
            )
        found: Steps = rounded(x.double(), self.step).numpy().view(np.uint64)
        return found

    def numbers(self, total: Steps) -> NDArray[np.float64]:
        """What a sum of integers stands for."""
        return total.view(np.int64) * self.step

    def noise(self, source: Source, size: int) -> Steps:
        """A party's independent noise, e."""
        if not self.independent:
            return np.zeros(size, np.uint64)
        return noise.discrete_gaussian(source, self.independent / self.step, size)[0].view(
            np.uint64
        )

    def join(self, words: Steps, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
        """Add the terms of some pairs' keys, and take those of others away, in place."""
        if self.form == "modular":
            mask(words, plus, minus)
            return
        deviation = self.pairwise / self.step
        for keys, put in ((plus, np.add), (minus, np.subtract)):
            for key in keys:
                drawn = noise.discrete_gaussian(Keystream(key), deviation, len(words))[0]
                put(words, drawn.view(np.uint64), out=words)


def picked(key: bytes, mine: int, ids: Tensor, neighbours: int) -> Tensor:
    """Whom a party picks, `[m]` of 0 and 1: every set of so many others is as likely."""
    others = np.flatnonzero(ids.numpy() != mine)
    order = np.argsort(Keystream(key).words(np.array([len(others)])), kind="stable")
    chosen = torch.zeros(len(ids), dtype=torch.uint8)
    chosen[torch.from_numpy(others[order[:neighbours]])] = 1
    return chosen


@dataclass(frozen=True)
class Gopa:
    form: gopa.Form = "modular"
    honest: float = 0.7  # rho: the share of a round's parties that do not collude
    neighbours: int | None = None  # k, or as many as are enough
    dropouts: float = 0.1  # the share of a round's parties that may vanish, at most
    independent: float = 0.0  # s_e, of a party's own noise; none unless something is promised
    pairwise: float = 0.0  # s_D, of the Gaussian form

    def __post_init__(self) -> None:
        if self.form not in get_args(gopa.Form):
            raise unknown("form", str(self.form), get_args(gopa.Form))

    def planned(self, deviation: float, parties: int, moved: float, failure: float) -> Gopa:
        """The same with the noise that tells no more than a sum with this deviation does.

        It is for rounds of so many parties, any of which moves the sum by `moved` at most.
        """
        made = gopa.plan(
            deviation, parties, honest=self.honest, dropouts=self.dropouts, form=self.form,
            neighbours=self.neighbours, moved=moved, failure=failure,
        )  # fmt: skip
        return replace(
            self, neighbours=made.neighbours, independent=made.independent, pairwise=made.pairwise
        )

    @property
    def terms(self) -> NoiseTerms:
        if self.form == "gaussian" and not (self.independent and self.pairwise):
            raise ArchipelError(
                'wire.sum: form = "gaussian" hides nothing without noise; give independent and '
                'pairwise, or take form = "modular".'
            )
        return NoiseTerms(self.form, self.independent, self.pairwise)

    def least(self, parties: int) -> int:
        """Parties that have to publish."""
        return max(2, parties - ceil(self.dropouts * parties - 1e-9))

    def party(self, me: Any, x: Vectors, number: int) -> Any:  # one; a stack is run one by one
        pair, mine = KeyPair(bytes(me.secret(f"key {number}"))), int(me.number)
        ids, keys = yield torch.frombuffer(bytearray(pair.public), dtype=torch.uint8)
        k = self.neighbours or _neighbours(len(ids), self.honest, self.dropouts, self.form)
        picks = picked(bytes(me.secret(f"picks {number}")), mine, ids, k)
        ready, picked_me = yield picks  # phase 1
        self._assure(ready, len(ids), ArchipelError)
        known, among = dict(zip(ids.tolist(), keys, strict=True)), ids.numpy().tobytes()
        session = Session(b"gopa", me.round, number, digest(among, keys.numpy().tobytes()))
        joined = {
            j: pair.agree(bytes(known[j]), session, "pairwise", sorted((mine, j)))
            for j in ids[_joined(picks, picked_me, places(ready, ids))].tolist()
        }
        flat = torch.cat([v.flatten().double() for v in x])
        words = self.terms.steps(flat, len(ids))  # phase 2
        words = words + self.terms.noise(me.source(f"gopa {number}"), len(words))
        self.terms.join(
            words,
            plus=[key for j, key in joined.items() if j > mine],
            minus=[key for j, key in joined.items() if j < mine],
        )
        there = yield torch.from_numpy(words.view(np.int64))
        self._assure(there, len(ids), ArchipelError)
        told, gone = torch.zeros(len(ids), 32, dtype=torch.uint8), joined.keys() - {*there.tolist()}
        for at, j in enumerate(ids.tolist()):  # the roll-back
            if j in gone:
                told[at] = torch.frombuffer(bytearray(joined[j]), dtype=torch.uint8)
        return told

    def server(self, uploads: Uploads, form: Vectors, number: int) -> Any:
        ids, keys = uploads.present, uploads.stack()
        self._assure(ids, len(ids))
        uploads = yield ids, keys
        ready, picks = uploads.present, uploads.stack()
        self._assure(ready, len(ids))
        at = places(ready, ids)
        backs = torch.zeros(len(ready), len(ids), dtype=torch.uint8)
        backs[:, at] = picks.T[at]  # [to, from]
        uploads = yield Each((ready.expand(len(ready), -1), backs))
        there, total = uploads.present, uploads.stack().sum(dim=0)
        self._assure(there, len(ids))
        uploads = yield there
        words = total.numpy().view(np.uint64)
        told = dict(zip(uploads.present.tolist(), uploads.stack(), strict=True))
        published = {*there.tolist()}
        gone = [(j, i) for j, i in zip(ready.tolist(), at.tolist(), strict=True)
                if j not in published]  # fmt: skip
        for u, joined in zip(ready.tolist(), (picks | backs).numpy(), strict=True):
            left = [(j, i) for j, i in gone if u in published and joined[i]]
            if left and u not in told:
                raise BelowQuorum(
                    f"wire.sum: party {u} vanished after it had published, and before it told the "
                    "keys of those who had not."
                )
            self.terms.join(
                words,
                plus=[bytes(told[u][i]) for j, i in left if j < u],
                minus=[bytes(told[u][i]) for j, i in left if j > u],
            )
        sums = torch.from_numpy(self.terms.numbers(words)).split([v.numel() for v in form])
        made = tuple(s.view_as(v).to(v.dtype) for s, v in zip(sums, form, strict=True))
        return Total(made, there)

    def _assure(self, parties: Tensor, asked: int, kind: type[ArchipelError] = BelowQuorum) -> None:
        """Refuse a round that too few are in: noise of fewer would be too little."""
        if len(parties) < self.least(asked):
            raise kind(
                f"wire.sum: {len(parties)} of {asked} parties are there, and dropouts = "
                f"{self.dropouts} has {self.least(asked)} at least."
            )


def _joined(picks: Tensor, picked_me: Tensor, ready: Tensor) -> Tensor:
    """Who is joined to a party and still there, `[m]` of bool."""
    there = torch.zeros(len(picks), dtype=torch.bool)
    there[ready] = True
    return (picks | picked_me).bool() & there


@lru_cache(maxsize=64)
def _neighbours(parties: int, honest: float, dropouts: float, form: gopa.Form) -> int:
    return gopa.neighbours_of(parties, honest, dropouts, form)
