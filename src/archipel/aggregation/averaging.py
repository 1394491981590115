# SPDX-License-Identifier: Apache-2.0
"""A private mean of plain numbers between peers, without anybody in the middle: GOPA, whole.

Sabater, Bellet, Ramon, Machine Learning 111, 2022, https://arxiv.org/abs/2006.07218, Algorithm 1.
Every party is one generator, `member`; each `yield` tells all others the same, and is answered by
what they told, by number. Who is not in the answer has vanished.

1. A public key for this run.
2. Whom a party has heard, and whom it picks. Those whom everybody hears are in; with each other
   party that it picked, or that picked it, a party has a pairwise term.
3. Its value with all terms and its noise. From here on it counts.
4. What it has heard of 3, so that one who vanished while telling it has told all or nobody.
5. The keys of its pairs with those who have not published: what is left of their terms is taken
   away, and every party has the same sum of integers.

Departures: as in `aggregation/gopa.py`. Parties follow the protocol, and may look at all that they
are told: a share 1 - honest of them together. Whether they did follow it can be proved, which is a
protocol of its own.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, sqrt
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.aggregation.gopa import NoiseTerms, Steps, picked
from archipel.aggregation.keys import KEY, KeyPair, Session, digest, hkdf
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.talk import Talk
from archipel.privacy import gopa
from archipel.privacy.checks import check_delta_among
from archipel.privacy.sources import Source

Flags = NDArray[np.bool_]  # [n]: which of the parties
Numbers = NDArray[np.float64]
Said = Mapping[int, bytes]  # what others told, by number
Member = Generator[bytes, Said, "Sum"]


@dataclass(frozen=True)
class Question:
    """What is averaged, and what is promised to everybody who answers.

    >>> Question(("deaths",), (0.0,), (50.0,), epsilon=1.0).plan(1000).neighbours
    11
    """

    names: tuple[str, ...]
    low: tuple[float, ...]  # of each number
    high: tuple[float, ...]
    epsilon: float
    delta: float = 1e-5
    honest: float = 0.7  # rho: the share of the parties that do not collude
    dropouts: float = 0.0  # the share of them that may vanish
    neighbours: int | None = None  # k, or as many as are enough
    form: gopa.Form = "modular"
    contribution: tuple[float, ...] | None = None  # of one person to each number, at most

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ArchipelError(
                f"names = {[*self.names]}: name one number or more, each by a name of its own."
            )
        for field in ("low", "high", "contribution"):
            given = getattr(self, field)
            if given is not None and len(given) != len(self.names):
                raise ArchipelError(
                    f"{field} = {[*given]}: give one for all numbers, or one for each of "
                    f"{', '.join(self.names)}."
                )
        for name, low, high in zip(self.names, self.low, self.high, strict=True):
            if not (isfinite(low) and isfinite(high) and low < high):
                raise ArchipelError(
                    f"low = {low}, high = {high} of {name}: give a range that {name} is in "
                    "whatever the data is, low before high."
                )
        for each in self.contribution or ():
            if not 0 < each < inf:
                raise ArchipelError(
                    f"contribution = {each}: give how far one person moves a number at most, above "
                    "0; or leave it out, and whole parties are protected."
                )

    def plan(self, parties: int) -> gopa.Plan:
        """The noise for so many parties, in units."""
        check_delta_among("average.delta", self.delta, parties, "the mean", "parties")
        return gopa.planned(
            self.epsilon, self.delta, parties, honest=self.honest, dropouts=self.dropouts,
            neighbours=self.neighbours, form=self.form, moved=self.moved, size=len(self.names),
        )  # fmt: skip

    @property
    def moved(self) -> float:
        """How far all numbers together move, in units: if a party is another, or one person is."""
        return sqrt(len(self.names))

    @property
    def unit(self) -> Numbers:
        """What noise is measured in, of each number: how far it moves."""
        width = np.array(self.high) - np.array(self.low)
        return np.asarray(
            width if self.contribution is None else np.minimum(self.contribution, width)
        )

    def least(self, parties: int) -> int:
        """Parties that have to publish."""
        return max(2, parties - ceil(self.dropouts * parties - 1e-9))

    def scaled(self, values: Sequence[float] | Numbers, whose: str) -> Numbers:
        """One party's numbers above their ranges' ends, in units; one beyond is refused."""
        found = np.asarray(values, np.float64)
        if found.shape != (len(self.names),):
            raise ArchipelError(
                f"values of {whose}: {found.size} of them; give {len(self.names)}, one for each of "
                f"{', '.join(self.names)}."
            )
        for name, value, low, high in zip(self.names, found, self.low, self.high, strict=True):
            if not low <= value <= high:
                raise ArchipelError(
                    f"values of {whose}: {name} is not in its range of {low:g} to {high:g}; agree "
                    "on a wider range with all others before anybody publishes."
                )
        return np.asarray((found - np.array(self.low)) / self.unit)

    def mean(self, total: Numbers, parties: int) -> Numbers:
        """Of a sum in units."""
        return np.asarray(np.array(self.low) + self.unit * total / parties)

    def deviation(self, plan: gopa.Plan, parties: int) -> Numbers:
        """Of the mean of so many that published."""
        return np.asarray(self.unit * plan.independent / sqrt(parties))


class Sum(NamedTuple):
    """What every party ends up with."""

    words: Steps  # of all that published, in steps of the grid
    there: tuple[int, ...]  # their numbers


def member(
    question: Question,
    plan: gopa.Plan,
    mine: int,
    x: Numbers,
    secret: bytes,
    source: Source,
    opens: bool = True,
) -> Member:
    """One of n parties, with its numbers in units.

    `secret` is 32 bytes that are used for this run alone; `source` has its noise. Where somebody
    between the parties could keep back what one has published, nobody `opens` a term: then all that
    are in publish, or there is no mean.
    """
    n, size = plan.parties, len(x)
    terms = NoiseTerms(plan.form, plan.independent, plan.pairwise)
    pair = KeyPair(hkdf(secret, b"", b"key"))

    told = yield pair.public  # 1
    keys = {mine: pair.public, **_sized(told, KEY)}
    ids, heard = torch.arange(n), _flags(n, keys)
    picks = picked(hkdf(secret, b"", b"picks"), mine, ids, plan.neighbours).numpy().astype(bool)

    told = yield _packed(heard) + _packed(picks)  # 2
    rows = {j: _two(n, said) for j, said in _sized(told, 2 * _bytes(n)).items()}
    rows[mine] = heard, picks
    ready = np.logical_and.reduce([_flags(n, rows), *(row[0] for row in rows.values())])
    if not ready[mine]:
        raise BelowQuorum("the others have gone on without this party: run it with them.")
    _assure(question, int(ready.sum()), n)
    graph = np.zeros((n, n), bool)
    for j, (_, theirs) in rows.items():
        graph[j] = theirs
    graph = (graph | graph.T) & ready & ~np.eye(n, dtype=bool)
    joined = np.flatnonzero(graph[mine]).tolist()
    among = digest(_packed(ready), *(keys[j] for j in np.flatnonzero(ready).tolist()))
    session = Session(b"average", 0, 0, among)
    agreed = {j: pair.agree(keys[j], session, "pairwise", sorted((mine, j))) for j in joined}

    words = terms.steps(torch.from_numpy(x), n) + terms.noise(source, size)
    terms.join(
        words,
        plus=[key for j, key in agreed.items() if j > mine],
        minus=[key for j, key in agreed.items() if j < mine],
    )
    told = yield among + words.tobytes()  # 3
    published = {mine: words}
    for j, said in _sized(told, len(among) + words.nbytes).items():
        if ready[j] and said[: len(among)] != among:
            raise BelowQuorum(f"party {j} has heard others than this one: run it again.")
        if ready[j]:
            published[j] = _words(said[len(among) :])

    if not opens:
        if len(published) < int(ready.sum()):
            raise BelowQuorum(
                f"{len(published)} of {int(ready.sum())} parties have published, and no mean is "
                "without the others: run it again, which costs another epsilon."
            )
        whole: Steps = np.stack(list(published.values())).sum(axis=0, dtype=np.uint64)
        return Sum(whole, tuple(sorted(published)))
    there = _flags(n, published)
    echo = np.stack([published.get(j, np.zeros(size, np.uint64)) for j in range(n)])
    told = yield _packed(there) + echo.tobytes()  # 4
    for said in _sized(told, _bytes(n) + echo.nbytes).values():
        if said[: _bytes(n)] == _packed(there):
            continue
        rows_heard = _words(said[_bytes(n) :]).reshape(n, size)
        for v in np.flatnonzero(_unpacked(said[: _bytes(n)], n) & ready).tolist():
            published.setdefault(v, rows_heard[v])

    there = _flags(n, published)
    _assure(question, int(there.sum()), n)
    gone = [j for j in joined if not there[j]]
    of_gone = b"".join(agreed[j] if j in gone else bytes(KEY) for j in range(n))
    told = yield _packed(there) + of_gone  # 5
    answers = _sized(told, _bytes(n) + KEY * n)
    answers[mine] = _packed(there) + of_gone
    total: Steps = np.stack(list(published.values())).sum(axis=0, dtype=np.uint64)
    for u in np.flatnonzero(there).tolist():
        left = np.flatnonzero(graph[u] & ~there).tolist()
        if u not in answers:
            if left:
                raise BelowQuorum(
                    f"party {u} vanished after it had published, and before it told the keys of "
                    "those who had not: run it again."
                )
            continue
        if answers[u][: _bytes(n)] != _packed(there):
            raise BelowQuorum(f"party {u} knows of others who have published: run it again.")
        at = {j: _bytes(n) + KEY * j for j in left}
        terms.join(
            total,
            plus=[answers[u][at[j] : at[j] + KEY] for j in left if j < u],
            minus=[answers[u][at[j] : at[j] + KEY] for j in left if j > u],
        )
    return Sum(total, tuple(np.flatnonzero(there).tolist()))


STEPS = 5  # that a member tells something in
PUBLISHED = 3  # the one that counts


def together(
    members: Mapping[int, Member], stays: Mapping[int, int] | None = None
) -> tuple[dict[int, Sum], list[dict[int, bytes]]]:
    """Run members in one process; party j vanishes after it has told `stays[j]` things.

    Returns what those who stay end up with, and all that was told.
    """
    talks, stays = {j: Talk(each) for j, each in members.items()}, stays or {}
    transcript: list[dict[int, bytes]] = []
    while talks and not all(talk.ended for talk in talks.values()):
        talks = {j: talk for j, talk in talks.items() if stays.get(j, STEPS) > len(transcript)}
        said = {j: talk.said for j, talk in talks.items()}
        transcript.append(said)
        for j, talk in talks.items():
            talk.send({i: each for i, each in said.items() if i != j})
    return {j: talk.said for j, talk in talks.items()}, transcript


def estimate(question: Question, plan: gopa.Plan, found: Sum) -> Numbers:
    """The mean that a sum of integers stands for."""
    terms = NoiseTerms(plan.form, plan.independent, plan.pairwise)
    return question.mean(terms.numbers(found.words), len(found.there))


def simulated(
    question: Question, plan: gopa.Plan, values: Numbers, source: Source, repetitions: int = 1
) -> Numbers:
    """Estimates `[repetitions, d]` of the mean of values `[n, d]`, in units, as the whole gives.

    Pairwise terms cancel to the last bit, so they are not drawn. `source` is of n parties.
    """
    from archipel.privacy.noise import discrete_gaussian

    terms, (n, d) = NoiseTerms(plan.form, plan.independent, plan.pairwise), values.shape
    drawn = discrete_gaussian(source, plan.independent / terms.step, repetitions * d)
    words = terms.steps(torch.from_numpy(values.reshape(-1)), n).reshape(n, d)
    total = words.sum(axis=0, dtype=np.uint64) + drawn.view(np.uint64).sum(
        axis=0, dtype=np.uint64
    ).reshape(repetitions, d)
    return np.stack([question.mean(row, n) for row in terms.numbers(total)])


def _assure(question: Question, there: int, parties: int) -> None:
    if there < question.least(parties):
        raise BelowQuorum(
            f"{there} of {parties} parties are there, and dropouts = {question.dropouts} has "
            f"{question.least(parties)} at least: run it again when more are."
        )


# -- as bytes --------------------------------------------------------------------------------------


def _bytes(n: int) -> int:
    return (n + 7) // 8


def _packed(flags: Flags) -> bytes:
    return np.packbits(flags).tobytes()


def _unpacked(content: bytes, n: int) -> Flags:
    return np.unpackbits(np.frombuffer(content, np.uint8), count=n).astype(bool)


def _two(n: int, said: bytes) -> tuple[Flags, Flags]:
    return _unpacked(said[: _bytes(n)], n), _unpacked(said[_bytes(n) :], n)


def _flags(n: int, numbers: Mapping[int, object]) -> Flags:
    return np.isin(np.arange(n), list(numbers))


def _words(content: bytes) -> Steps:
    return np.frombuffer(content, "<u8").astype(np.uint64)


def _sized(told: Said, size: int) -> dict[int, bytes]:
    """What has the right form; who tells something else has not told anything."""
    return {j: said for j, said in told.items() if len(said) == size}
