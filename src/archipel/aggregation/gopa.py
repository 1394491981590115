# SPDX-License-Identifier: Apache-2.0
"""How a sum is made: GOPA, noise that cancels along a random graph, and a little that stays.

Sabater, Bellet, Ramon, Machine Learning 111, 2022, https://arxiv.org/abs/2006.07218, Algorithm 1.

1. Every party picks k others. Two that are joined agree on a key, which nobody else has, and draw
   the same pairwise term from it: one adds it, the other takes it away.
2. It adds noise of its own, and publishes the sum. In the sum over all the pairwise terms are gone.
3. It signs who has published. Where enough have signed the same, who was joined to a party that
   has not published tells the key of that pair, so that what is left of its terms can be taken
   away: nothing is left, to the last bit.

`Gopa` (`sum = "gopa"`) has terms that are uniform modulo 2^b: the server sees the sum alone, where
the honest are connected, but for a chance of 2^-40. Noise in shares comes from a study's [privacy].
`GaussianGopa` (`sum = "gopa-gaussian"`) is the form of the paper, with the noise that its fields
say. What is told of whom: `privacy/gopa.py`.

Nobody can choose the graph for another, nor its keys: a party's own picks hide it whatever the
server says, and keys are signed. The server may collude with parties. Who takes part, and who has
published, is what more than half of the honest have signed alike, so that no two of them act on
different lists, and in one round a party signs one list (`roster.check_agreed`). A server that
leaves a party out which has published is refused by that party; one that also keeps it from being
heard is believed by the others, and then sees what that party published without the terms of its
pairs. Secure aggregation has a second mask against that.

Departures: values, noise and terms are integers, of the rounded numbers on a grid. The paper's
parties exchange a term, ours a key that it is drawn from. A party that vanishes between 2 and 3 is
not corrected for: where that was needed, the round changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.aggregation.coding import Coding, Grid, Terms
from archipel.aggregation.keys import KEY, KeyPair, Session, digest
from archipel.aggregation.masks import Words, mask
from archipel.aggregation.roster import (
    check_agreed,
    check_count,
    count_signed,
    read_ids,
    refuse,
    rows_of,
    survivors_of,
)
from archipel.aggregation.summation import Total
from archipel.core import Each, places
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.anatomy import Probe
from archipel.privacy import gopa, noise
from archipel.privacy.grid import grid, rounded
from archipel.privacy.sources import Keystream, Source
from archipel.signing import SIGNATURE

Steps = NDArray[np.uint64]  # numbers in steps of a grid, modulo 2^64

FAILURE = 2.0**-40  # the chance that honest parties are apart, at most
_MOST = 2.0**62  # of a sum, in steps


@dataclass(frozen=True)
class NoiseTerms:
    """What a party adds to its value, on the grid of its noise: that noise, and pairwise terms.

    >>> terms = NoiseTerms("modular", independent=1.0, pairwise=0.0)
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
        return grid(self.independent)

    def steps(self, x: Tensor, parties: int = 1) -> Steps:
        """Numbers as integers, of which so many parties' sum does not overflow."""
        if not bool(x.double().abs().max() * parties < _MOST * self.step):
            raise ArchipelError(
                f"numbers are not finite, or too large for a sum of {parties} on a grid of "
                f"{self.step:.2g}: clip them first."
            )
        found: Steps = rounded(x.double(), self.step).numpy().view(np.uint64)
        return found

    def numbers(self, total: Steps) -> NDArray[np.float64]:
        """What a sum of integers stands for."""
        return np.asarray(total.view(np.int64) * self.step, np.float64)

    def noise(self, source: Source, size: int) -> Steps:
        """A party's independent noise, e."""
        drawn = noise.discrete_gaussian(source, self.independent / self.step, size)
        own: Steps = drawn[0].view(np.uint64)
        return own

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


class _How(Protocol):
    """What the two forms differ in."""

    def degree(self, parties: int) -> int:
        """How many others a party picks: k."""

    def fewest(self, parties: int) -> int:
        """Of so many, those that have to publish."""

    def colluders(self, parties: int) -> int:
        """Of so many, the most that are on the server's side."""

    def join(self, words: Any, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
        """Add and take away terms."""


class _Collected(NamedTuple):
    total: Tensor  # of all who published, with nothing left of pairwise terms
    there: Tensor  # [m] who they are
    asked: int  # parties that the sum began with


def _party(
    how: _How, me: Any, number: int, encoded: Callable[[int], Tensor]
) -> Generator[Any, Any, Tensor]:
    """A party's box; `encoded` has its integers, with its noise, for a sum of so many."""
    pair, mine, others = KeyPair(_bytes(me.secret(f"key {number}"))), int(me.number), me.others
    bare = Session(others.session, me.round, number)
    own = pair.public + others.sign(_signed(bare, mine, pair.public))
    told, rows = yield rows_of([own], KEY + SIGNATURE)[0]
    ids, keys = read_ids(told, "take part"), list(map(_bytes, rows))
    check_count(len(ids), others, "take part")
    known = dict(zip(ids, keys, strict=True))
    if known.get(mine) != own:
        raise refuse("the server has another key for this party than its own")

    picks = picked(_bytes(me.secret(f"picks {number}")), mine, told, how.degree(len(ids)))
    told, picked_me = yield picks  # phase 1
    ready = read_ids(told, "are ready", ids)
    _assure(how, len(ready), len(ids), others.trial)
    check_agreed(ready, number, others, all_stayed=False)
    session = bare._replace(among=digest(b"gopa", str(ids).encode(), *keys))
    at = {j: place for place, j in enumerate(ids)}
    joined = dict[int, bytes]()
    for j in ready:
        if j != mine and (picks[at[j]] or picked_me[at[j]]):
            public, signature = known[j][:KEY], known[j][KEY:]
            if not others.signed(j, signature, _signed(bare, j, public)):
                raise refuse(f"the key of party {j} is not signed by it for this round")
            joined[j] = pair.agree(public, session, "pairwise", sorted((mine, j)))

    integers = encoded(len(ids))
    how.join(
        _words(integers),
        plus=[key for j, key in joined.items() if j > mine],
        minus=[key for j, key in joined.items() if j < mine],
    )
    told = yield integers  # phase 2
    there = read_ids(told, "have published", ready)
    _assure(how, len(there), len(ids), others.trial)
    if mine not in there:
        raise refuse("the server says that this party has not published, and it has")
    check_agreed(there, number, others, all_stayed=True)
    others.agreed[number] = frozenset(there)
    statement = survivors_of(session, ready, there)
    told = yield rows_of([others.sign(statement)], SIGNATURE)[0]
    needed = quorum(how, len(ids))
    agreeing = count_signed(told, "signed who has published", statement, there, needed, others)
    if agreeing < needed and not others.trial:
        raise refuse(
            f"{agreeing} parties signed the same list of those who have published, and {needed} "
            "are needed: the server may have told others something else"
        )
    gone = joined.keys() - {*there}
    return rows_of([joined[j] if j in gone else b"" for j in ids], KEY)  # the roll-back


def _server(how: _How, uploads: Any) -> Generator[Any, Any, _Collected]:
    """The server's box."""
    trial = isinstance(uploads, Probe)
    ids, keys = uploads.present, uploads.stack()
    uploads = yield ids, keys
    ready, picks = uploads.present, uploads.stack()
    _assure(how, len(ready), len(ids), trial, BelowQuorum)
    at = places(ready, ids)
    backs = torch.zeros(len(ready), len(ids), dtype=torch.uint8)
    backs[:, at] = picks.T[at]  # [to, from]
    uploads = yield Each((ready.expand(len(ready), -1), backs))
    there, total = uploads.present, uploads.total().clone()
    _assure(how, len(there), len(ids), trial, BelowQuorum)
    uploads = yield there
    signers, signatures = uploads.present, uploads.stack()
    if (signed := len(signers)) < (needed := quorum(how, len(ids))) and not trial:
        raise BelowQuorum(f"wire.sum: {signed} parties signed who published, {needed} are needed.")
    uploads = yield signers, signatures
    told = dict(zip(uploads.present.tolist(), uploads.stack(), strict=True))
    published = {*there.tolist()}
    both = list(zip(ready.tolist(), at.tolist(), strict=True))
    gone = [(j, i) for j, i in both if j not in published]
    for u, joined in zip(ready.tolist(), (picks | backs).numpy(), strict=True):
        left = [(j, i) for j, i in gone if u in published and joined[i]]
        if left and u not in told:
            raise BelowQuorum(
                f"wire.sum: party {u} vanished after it had published, and before it told the keys "
                "of those who had not."
            )
        how.join(
            _words(total),
            plus=[_bytes(told[u][i]) for j, i in left if j < u],
            minus=[_bytes(told[u][i]) for j, i in left if j > u],
        )
    return _Collected(total, there, len(ids))


def quorum(how: _How, parties: int) -> int:
    """How many have to sign the same list: of two such lots, an honest party is in both."""
    return (parties + how.colluders(parties)) // 2 + 1


def _signed(session: Session, party: int, public: bytes) -> bytes:
    """What a party signs of its key."""
    return session.named("gopa key", b"%d" % party, public)


def _assure(
    how: _How, there: int, asked: int, trial: bool, kind: type[ArchipelError] = ArchipelError
) -> None:
    """Refuse a sum of too few: it would hide too little."""
    if there < how.fewest(asked) and not trial:
        raise kind(
            f"wire.sum: {there} of {asked} parties are there, and {how.fewest(asked)} are needed."
        )


def _check_shares(colluding: float, dropouts: float) -> None:
    for field, share in (("colluding", colluding), ("dropouts", dropouts)):
        if not 0 <= share < 1:
            raise ArchipelError(f"{field} = {share:g}: give a share from 0 to below 1.")


@dataclass(frozen=True)
class Gopa:
    """A sum of uploads hidden by noise that cancels; parties sign who has published.

    `[wire] sum = "gopa"`: the modular form.
    """

    neighbours: int | None = None  # k, or as many as are enough
    bits: int = 32  # of the modulus: 32 or 64
    range: float = 16.0  # of the absolute values that are added up
    examples: int = 65_536  # of one party, at most, where uploads are weighted by them
    colluding: float = 0.3  # 1 - rho: share of a round's parties on the server's side
    dropouts: float = 0.2  # share of a round's parties that may vanish
    least: int = 2  # parties of a sum, at the fewest
    counted: ClassVar[int] = -3  # the message that is published, from the last

    def __post_init__(self) -> None:
        _check_shares(self.colluding, self.dropouts)
        Grid(self.range, self.examples, 2, self.bits).check()

    def coding(self, parties: int) -> Coding:
        return Grid(self.range, self.examples, parties, self.bits)

    def fewest(self, parties: int) -> int:
        stay = ceil((1 - self.dropouts) * parties - 1e-9)
        return max(2, self.least, quorum(self, parties), stay)

    def colluders(self, parties: int) -> int:
        return floor(self.colluding * parties + 1e-9)

    def degree(self, parties: int) -> int:
        return _degree(parties, 1 - self.colluding, self.dropouts, "modular", self.neighbours)

    def join(self, words: Words, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
        mask(words, plus, minus)

    def party(self, me: Any, x: Terms, number: int) -> Generator[Any, Any, Tensor]:
        return (yield from _party(self, me, number, lambda n: self.coding(n).encode(x, ())))

    def server(self, uploads: Any, form: Terms, number: int) -> Generator[Any, Any, Total]:
        found = yield from _server(self, uploads)
        return Total(self.coding(found.asked).decode(found.total, form), found.there)


@dataclass(frozen=True)
class GaussianGopa:
    """GOPA as in its paper: Gaussian noise that cancels, and some that stays, as its fields say.

    `[wire] sum = "gopa-gaussian"`; `privacy/gopa.py` plans its noise.
    """

    independent: float  # s_e, of each party's own noise
    pairwise: float  # s_D
    neighbours: int | None = None  # k, or as many as are enough
    colluding: float = 0.3  # 1 - rho: share of a round's parties on the server's side
    dropouts: float = 0.2  # share of a round's parties that may vanish
    counted: ClassVar[int] = -3

    def __post_init__(self) -> None:
        _check_shares(self.colluding, self.dropouts)
        for field in ("independent", "pairwise"):
            if not 0 < (deviation := getattr(self, field)) < 1e100:
                raise ArchipelError(
                    f"{field} = {deviation}: give a deviation above 0; without noise this form "
                    'hides nothing, where sum = "gopa" does.'
                )

    @property
    def terms(self) -> NoiseTerms:
        return NoiseTerms("gaussian", self.independent, self.pairwise)

    def fewest(self, parties: int) -> int:
        return max(2, quorum(self, parties), ceil((1 - self.dropouts) * parties - 1e-9))

    def colluders(self, parties: int) -> int:
        return floor(self.colluding * parties + 1e-9)

    def degree(self, parties: int) -> int:
        return _degree(parties, 1 - self.colluding, self.dropouts, "gaussian", self.neighbours)

    def join(self, words: Steps, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
        self.terms.join(words, plus, minus)

    def party(self, me: Any, x: Terms, number: int) -> Generator[Any, Any, Tensor]:
        if x.n:
            raise ArchipelError(
                "wire.sum: gopa-gaussian adds noise for means in which every party counts once, "
                'and this one is weighted by examples; take wire.sum = "gopa".'
            )
        flat = torch.cat([v.flatten().double() for v in x.uploads])

        def encoded(parties: int) -> Tensor:
            words = self.terms.steps(flat, parties)
            own = self.terms.noise(me.source(f"gopa {number}"), len(words))
            return torch.from_numpy((words + own).view(np.int64))

        return (yield from _party(self, me, number, encoded))

    def server(self, uploads: Any, form: Terms, number: int) -> Generator[Any, Any, Total]:
        found = yield from _server(self, uploads)
        numbers = torch.from_numpy(self.terms.numbers(_words(found.total)))
        parts = numbers.split([v.numel() for v in form.uploads])
        sums = (s.view_as(v).to(v.dtype) for s, v in zip(parts, form.uploads, strict=True))
        return Total(tuple(sums), found.there)


@lru_cache(maxsize=64)
def _degree(
    parties: int, honest: float, dropouts: float, form: gopa.Form, asked: int | None
) -> int:
    if asked is not None and asked >= parties - 1:
        return parties - 1
    if asked is None and parties <= gopa.FEW:
        return parties - 1
    return gopa.neighbours_of(parties, honest, dropouts, form, FAILURE, asked)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _words(integers: Tensor) -> Any:
    """Integers as words modulo 2^b, of the same memory."""
    return integers.numpy().view("u4" if integers.dtype == torch.int32 else "u8")
