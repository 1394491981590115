# SPDX-License-Identifier: Apache-2.0
"""How a sum is made: a protocol of its own, between a party's upload and the server's mean.

It has two boxes, as an algorithm has, and each `yield` is one exchange. The engine runs them inside
the algorithm's round: an algorithm that asks for `uploads.mean()` never knows how the mean came
about, and one that asks for single uploads is refused.

A protocol that adds up integers says how numbers become these (`coding`). A simulation may then
add up the same integers without the protocol (`Exact`), to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.coding import Coding, Terms, Vectors, check_examples
from archipel.aggregation.groups import Part, drawn
from archipel.aggregation.keys import Session
from archipel.core import Others, Party, Uploads
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.anatomy import Anatomy, Probe, pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Ask
from archipel.privacy.sources import Source
from archipel.tree import Tree, fill, leaves, tree_map


class Total(NamedTuple):
    """What came of a summation."""

    sums: Vectors  # over the parties that are in it; of groups, a row of each
    present: Tensor  # [m] their numbers
    counts: Tensor | None = None  # [g] of parties, where there are several groups


def grouped(found: Sequence[Total]) -> Total:
    """The sums of groups as one total."""
    sums = tuple(torch.stack(rows) for rows in zip(*(one.sums for one in found), strict=True))
    counts = torch.tensor([len(one.present) for one in found])
    return Total(sums, torch.cat([one.present for one in found]).sort().values, counts)


class Summation(Protocol):
    """Two boxes. `number` is which of the algorithm's messages is added up, from 0."""

    def party(self, me: Party, x: Terms, number: int) -> Generator[Any, Any, Any]:
        """Of one party, `[p]`: yield what it sends, be sent replies, return the last message."""

    def server(self, uploads: Uploads, form: Terms, number: int) -> Generator[Any, Uploads, Total]:
        """Yield replies, be sent uploads, and return the sums; x has this form."""


@runtime_checkable
class OfIntegers(Summation, Protocol):
    """A protocol whose parties add up integers, in a way that a simulation can do at once."""

    def coding(self, parties: int) -> Coding:
        """How terms of so many parties become integers."""


def groups_of(how: Summation | None) -> int:
    """Groups that a round's parties are drawn into."""
    return int(getattr(how, "groups", 1))


def least_of(how: Summation) -> int:
    """Parties of a round, at the fewest: in every sum, where a sum of one is its upload."""
    return max(2, getattr(how, "least", 2)) * groups_of(how)


def check_parties(how: Summation, parties: int) -> None:
    """Refuse rounds of so many parties, at most, of which every sum would be given up."""
    if parties == 1:
        raise ArchipelError(
            f"wire.sum, {type(how).__name__}: a round has 1 party, whose upload would be the sum; "
            'have 2 or more in a round (round.sample, data.parties), or say wire.sum = "plain".'
        )
    if parties < (least := least_of(how)):
        each = least // (groups := groups_of(how))
        if groups > 1:
            raise ArchipelError(
                f"wire.sum, {type(how).__name__}: {each} parties have to be in each sum of groups "
                f"= {groups}, and a round has {parties}; give groups={max(1, parties // each)} or "
                "fewer, or have more in a round."
            )
        raise ArchipelError(
            f"wire.sum, {type(how).__name__}: least = {least} parties have to be in a sum, and a "
            f"round has {parties}; give least={parties} or fewer, or have more in a round."
        )


def counted_of(how: Summation | Exact) -> int:
    """Which of a protocol's messages has what is added up, counted from its last one, -1.

    Whose came is in the sum, also where it is lost later; a protocol says it by `counted`.
    """
    return int(getattr(how, "counted", -1))


class Exact:
    """The sum of the integers that a protocol would add up, made without it: one message.

    Nobody is lost in the middle of it. So it is given up where the protocol would be that begins
    with the same parties: there are fewer than `least`.
    """

    def __init__(self, how: OfIntegers) -> None:
        self.how, self._coding, self._least = how, how.coding, least_of(how)

    def stacked(self, me: Any, x: Terms) -> Tensor:
        return self._coding(me.cohort).encode(x, me.lead)

    def total(self, uploads: Any, form: Terms, number: int) -> Total:
        there, groups = len(uploads.present), groups_of(self.how)
        if there < self._least and not isinstance(uploads, Probe):
            each = f" in {groups} groups" if groups > 1 else ""
            raise BelowQuorum(
                f"wire.sum: {there} parties are in the sum, and {self._least} are needed{each}."
            )
        code = self._coding(uploads.cohort)
        if groups == 1:
            return Total(code.decode(uploads.total(), form), uploads.present)
        session = Session(uploads.session, uploads.round, number)
        ids = drawn(uploads.present.tolist(), groups, session)
        parts = [Part(uploads, group) for group in ids]
        return grouped([Total(code.decode(part.total(), form), part.present) for part in parts])


@runtime_checkable
class Hiding(OfIntegers, Protocol):
    """One that shows nobody a single upload, nor a sum of few: noise may come in shares."""

    @property
    def least(self) -> int:
        """Parties of a sum, at the fewest: all who are in it see to that."""

    def fewest(self, parties: int) -> int:
        """Of so many parties of a round, the fewest that a sum has to be of."""

    def colluders(self, parties: int) -> int:
        """Of so many, the most that are on the server's side."""


class Summed(Around):
    """An algorithm whose server is given sums that a protocol made; `anatomy` is without it."""

    def __init__(self, inner: Boxes, how: Summation | Exact, anatomy: Anatomy, seed: int) -> None:
        super().__init__(inner)
        self._how, self._seed = how, seed
        self._messages, self._round = anatomy.messages, 0
        groups = groups_of(self._protocol)  # of more than one, their means stand for uploads
        for message in anatomy.messages:
            if message.asks & ({"stack", "n"} if groups == 1 else {"n"}):
                name = type(self._protocol).__name__
                raise ArchipelError(
                    f"wire.sum: {name} shows the sum of uploads alone, and {inner.name} looks at "
                    "single uploads (uploads.stack() or uploads.n); take an algorithm that needs "
                    'their mean alone, or wire.sum = "plain".'
                )

    @property
    def _protocol(self) -> Summation:
        return self._how.how if isinstance(self._how, Exact) else self._how

    def check(self, parties: int, n: int) -> None:
        """Refuse rounds of so many parties, at most, of which one has n examples."""
        check_parties(self._protocol, parties)
        most = getattr(self._protocol, "examples", n)
        if any("mean by examples" in message.asks for message in self._messages):
            check_examples(n, most)

    def broadcast(self, shared: Tree, t: int) -> Tree:
        self._round = t  # sums of payloads are undone by it
        return self.inner.broadcast(shared, t)

    def party(self, me: Any, *states: Tree) -> Any:
        talk = Talk(self.inner.party(me, *states))
        for number, message in enumerate(self._messages):
            last, upload, own = talk.ended, talk.said, None
            if last:
                upload, own = pair(f"{self.name}.party", "upload, own", talk.said)
                me.after = own
            x = self._terms(me, message.asks, upload, message.sent)
            how = Talk(self._said(me, x, number))
            while not how.ended:
                how.send((yield how.said))
            if last:
                return how.said, own
            talk.send((yield how.said))
        raise AssertionError("a party sends as often as its anatomy says")

    def _said(self, me: Any, x: Terms, number: int) -> Any:
        """What a party, or each of a stack, says in place of its upload."""
        if isinstance(self._how, Exact):
            return self._how.stacked(me, x)
        return one_by_one(me, partial(self._how.party, number=number), x)

    def _terms(self, me: Any, asks: frozenset[Ask], upload: Tree, form: Tree) -> Terms:
        """What a party has added up: its upload, that times n, and n."""
        vectors = tuple(
            leaf.detach().expand(*me.lead, *one.shape)
            for leaf, one in zip(leaves(upload), leaves(form), strict=True)
        )
        terms = Terms(vectors) if asks & _PLAIN else Terms()
        if "mean by examples" in asks:
            n = me.n
            weighted = tuple(x * n.view(*n.shape, *[1] * (x.dim() - n.dim())) for x in vectors)
            terms = terms._replace(by_examples=weighted, n=(n,))
        return terms

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        talk: Talk | None = None
        for number, message in enumerate(self._messages):
            form = self._form(message.asks, message.sent)
            if isinstance(self._how, Exact):
                how = Talk(self._how.total(uploads, form, number))
            else:
                how = Talk(self._how.server(uploads, form, number))
            while not how.ended:
                how.send((yield how.said))
            total = _Sums(self, number, message.asks, message.sent, how.said, uploads.parties)
            if talk is None:
                talk = Talk(self.inner.server(shared, total))
            else:
                talk.send(total)
            if talk.ended:
                return talk.said
            uploads = yield talk.said
        raise AssertionError("a server answers as often as its anatomy says")

    def _form(self, asks: frozenset[Ask], form: Tree) -> Terms:
        vectors = tuple(leaves(form))
        terms = Terms(vectors) if asks & _PLAIN else Terms()
        if "mean by examples" in asks:
            terms = terms._replace(by_examples=vectors, n=(vectors[0].new_zeros(1),))
        return terms

    def receive(self, number: int, them: Sender, payload: Tree) -> Tree:
        return payload  # a sum is received, not what it is made of

    def undone(self, number: int, sums: Tree) -> Tree:
        """What a sum of payloads stands for."""
        them = Sender(self._seed, self._round, number, np.array([-1]))
        return self.inner.receive(number, them, sums)


_PLAIN: frozenset[Ask] = frozenset({"mean", "stack"})  # what a sum without weights is asked for


class _One:
    """One party of a stack, in one setting of a sweep, as a protocol written for one sees it."""

    def __init__(self, me: Any, at: tuple[int, ...]) -> None:
        step = getattr(me, "step", None)  # of those that began from several versions, the same
        self._me, self._at, self.round, self.lead = me, at, me.round if step is None else step, ()
        self.n, self.number = me.n[at], me.number[at]
        self.others: Others = me.acquainted(int(self.number))

    def secret(self, purpose: str) -> Tensor:
        setting = "".join(f", setting {a}" for a in self._at[:-1])  # no key for two of them
        found: Tensor = self._me.secret(purpose + setting)[self._at]
        return found

    def source(self, purpose: str) -> Source:
        """Noise of one party; alike across a sweep in a simulation, as all noise is."""
        found: Source = self._me.source(purpose, self._at[-1] if self._at else None)
        return found


def one_by_one(
    me: Any, box: Callable[[Any, Terms], Generator[Any, Any, Any]], x: Terms
) -> Generator[Any, Any, Any]:
    """Run a box that is written for one party for every party of `[m, p]` or `[s, m, p]`.

    Who was lost on the way (`me.left`) says nothing more, for which zeros stand.
    """
    if me.lead == ():
        return (yield from box(me if me.step is None else _One(me, ()), x))
    places = list(np.ndindex(*me.lead))
    talks = [Talk(box(_One(me, at), tree_map(lambda leaf, at=at: leaf[at], x))) for at in places]
    there = [*range(len(talks))]
    while not talks[there[0]].ended:
        reply = yield _stacked(talks, there, me.lead)
        there = [i for i in there if places[i][-1] not in me.left]
        for at, talk in ((places[i], talks[i]) for i in there):
            mine = at if me.each else (*at[:-1], 0) if len(at) > 1 else ()
            talk.send(tree_map(lambda leaf, mine=mine: leaf[mine], reply))
    return _stacked(talks, there, me.lead)


def _stacked(talks: Sequence[Talk], there: Sequence[int], lead: tuple[int, ...]) -> Tree:
    def stack(*rows: Tensor) -> Tensor:
        if len(rows) == len(talks):
            return torch.stack(rows).view(*lead, *rows[0].shape)
        out = rows[0].new_zeros(len(talks), *rows[0].shape)
        out[torch.tensor(there)] = torch.stack(rows)
        return out.view(*lead, *rows[0].shape)

    return tree_map(stack, *(talks[i].said for i in there))


class _Sums:
    """Uploads of which the sum alone is known, or that of each group."""

    def __init__(
        self,
        summed: Summed,
        number: int,
        asks: frozenset[Ask],
        form: Tree,
        total: Total,
        parties: int,
    ) -> None:
        self.parties, self.present = parties, total.present
        self._undone, self._form = partial(summed.undone, number), form
        count, self._sums = len(leaves(form)), dict[Ask, Sequence[Tensor]]()
        rest, self._counts = list(total.sums), total.counts
        if asks & _PLAIN:
            self._sums["mean"], rest = rest[:count], rest[count:]
        if "mean by examples" in asks:
            self._sums["mean by examples"], self._weight = rest[:count], rest[count]

    @property
    def sampled(self) -> int:
        return len(self.present)

    @property
    def n(self) -> Tensor:
        raise _hidden("n")

    def mean(self, by_examples: bool = False) -> Tree:
        ask: Ask = "mean by examples" if by_examples else "mean"
        if ask not in self._sums:
            raise _hidden(f"mean(by_examples={by_examples})")
        sums = self._sums[ask]
        over = self._weight if by_examples else torch.tensor(float(self.sampled))
        if self._counts is not None:
            sums = [leaf.sum(dim=0) for leaf in sums]
            over = over.sum(dim=0)
        return self._mean(sums, over)

    def stack(self) -> Tree:
        """Of groups, their means; of one sum, nothing."""
        if self._counts is None or "mean" not in self._sums:
            raise _hidden("stack()")
        means = [
            self._mean([leaf[at] for leaf in self._sums["mean"]], count)
            for at, count in enumerate(self._counts)
        ]
        return tree_map(lambda *rows: torch.stack(rows), *means)

    def _mean(self, sums: Sequence[Tensor], over: Tensor) -> Tree:
        total = self._undone(fill(self._form, sums))
        return tree_map(lambda leaf: leaf / over.to(leaf.dtype), total)


def _hidden(call: str) -> ArchipelError:
    return ArchipelError(
        f"the server calls uploads.{call} now but not in the first round, and sums alone are known."
    )
