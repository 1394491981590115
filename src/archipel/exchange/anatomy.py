# SPDX-License-Identifier: Apache-2.0
"""What a round of an algorithm sends, found by running one on a single small party.

The engine learns the shape of every message and of a party's state, what of it grows with the
number of parties in the round, and what the server asks to see of each upload: a sum, or
individuals. The round runs through all that is around the algorithm, so that what is written down
is what travels. A study can refuse what it did not promise before it starts.

One file, since rounds with a server and turns of peers are found, and refused, in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.core import Each, Party, Vector
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes
from archipel.exchange.neighbours import Trial
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Ask
from archipel.tree import Tree, leaves, nbytes, tree_map

_ROUNDS = 10_000  # among which there is one of each kind


class Growth(NamedTuple):
    """An axis of a message that grows with the cohort: `per` rows for each of its parties."""

    axis: int
    per: int
    plus: int


Growths = Sequence[Growth | None]  # of a tree's tensors, from left to right


class Message(NamedTuple):
    """One exchange: every party's upload, what the server asks of it, and its reply."""

    upload: Tree  # tree of one party's tensors, as the server is given them
    asks: frozenset[Ask]
    reply: Tree = None  # tree; None after the last upload
    each: bool = False  # whether the reply differs from party to party
    payload: Tree = None  # tree of what travels; the upload itself where nothing is done to it
    grows: tuple[Growths, Growths] = ((), ())  # of payload and reply; none where empty

    @property
    def sent(self) -> Tree:
        """What travels from a party."""
        return self.upload if self.payload is None else self.payload

    def in_cohort(self, m: int) -> Message:
        """The same message in a round of m parties."""
        if not any(self.grows):
            return self
        return self._replace(
            payload=None if self.payload is None else sized(self.payload, self.grows[0], m),
            upload=self.upload
            if self.payload is not None
            else sized(self.upload, self.grows[0], m),
            reply=sized(self.reply, self.grows[1], m),
        )


def sized(form: Tree, growths: Growths, m: int) -> Tree:
    """A message's form in a round of m parties."""
    grown = iter(growths or [None] * len(leaves(form)))

    def one(leaf: Tensor) -> Tensor:
        growth = next(grown)
        if growth is None:
            return leaf
        shape = list(leaf.shape)
        shape[growth.axis] = growth.per * m + growth.plus
        return leaf.new_zeros(shape)

    return tree_map(one, form)


def fits_cohort(form: Tree, growths: Growths, tensors: Sequence[Tensor], most: int) -> bool:
    """Whether tensors have a message's form; an axis that grows is right for up to `most`."""
    wanted = leaves(form)
    grown = growths or [None] * len(wanted)
    return len(wanted) == len(tensors) and all(
        found.dtype == one.dtype
        and found.dim() == one.dim()
        and found.shape == shape_of(one, growth, found)
        and (growth is None or found.shape[growth.axis] <= growth.per * most + growth.plus)
        for one, growth, found in zip(wanted, grown, tensors, strict=True)
    )


def shape_of(one: Tensor, growth: Growth | None, found: Tensor) -> tuple[int, ...]:
    """The shape of one party's tensor; the axis that grows has the size that it came with."""
    if growth is None:
        return tuple(one.shape)
    shape = list(one.shape)
    shape[growth.axis] = found.shape[growth.axis - one.dim()]
    return tuple(shape)


class OnWire(NamedTuple):
    """What messages pass, as Python writes it: for those who read what was done."""

    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    rule: str = ""
    sum: str = ""


class Anatomy(NamedTuple):
    """A round, message by message, with the states before it."""

    shared: Tree
    sent: Tree  # what parties get of it
    own: Tree
    messages: tuple[Message, ...]
    personal: tuple[Message, ...] = ()  # what a party asks the server for a model of its own
    mixed: tuple[Tree, ...] = ()  # of a peer's round: what each `me.mix` sends to a neighbour
    whole: int = 0  # bytes of all that, for a neighbour that holds no copy, where it has to
    token: Tree = None  # what travels from peer to peer in a walk
    told: Tree = None  # what others hold of a peer that wakes
    said: Tree = None  # what it sends to its neighbours then, where that is something else
    swapped: tuple[Tree, ...] = ()  # what each `me.swap` of a meeting gives the other
    summed: bool = False  # whether messages are those of a protocol that shows sums alone
    weighed: bool = False  # whether that adds up numbers of examples as well
    counted: int = -1  # the message whose uploads the round is made of, from its end
    wire: OnWire = OnWire()

    @property
    def between(self) -> list[Tensor]:
        """What a peer sends to another in its round, or in its turn."""
        return leaves((self.mixed, self.told, self.said, self.swapped, self.token))

    @property
    def counts_at(self) -> int:
        """The message from which on a party is in the round, whatever becomes of it later."""
        return len(self.messages) + self.counted

    @property
    def sums_only(self) -> bool:
        """Whether the server never sees an individual upload."""
        messages = self.personal if self.summed else (*self.messages, *self.personal)
        return all("stack" not in message.asks for message in messages)

    def seen_as(self, other: Anatomy) -> Anatomy:
        """This round as it was found with something around it, on the same wire."""
        return other._replace(
            summed=self.summed, weighed=self.weighed, wire=self.wire, mixed=self.mixed,
            whole=self.whole, counted=self.counted,
        )  # fmt: skip

    def in_cohort(self, m: int) -> Anatomy:
        """The same round with m parties."""
        return self._replace(messages=tuple(message.in_cohort(m) for message in self.messages))

    @property
    def bytes_up(self) -> int:
        """Bytes a party sends in a round."""
        return sum(nbytes(message.sent) for message in self.messages)

    @property
    def bytes_down(self) -> int:
        """Bytes a party receives in a round."""
        return nbytes(self.sent) + sum(nbytes(message.reply) for message in self.messages)


class Probe:
    """Some equal uploads that remember what was asked of them."""

    def __init__(
        self, upload: Tree, parties: int, cohort: int, dtype: torch.dtype, me: int = 0
    ) -> None:
        self.parties, self.sampled, self._dtype = parties, cohort, dtype
        self.cohort, self.session, self.round = cohort, b"trial", 0
        self.present = torch.arange(me, me + cohort)
        self.asks: set[Ask] = set()
        self._upload = upload

    @property
    def n(self) -> Tensor:
        self.asks.add("n")
        return torch.ones(self.sampled, dtype=self._dtype)

    def mean(self, by_examples: bool = False) -> Tree:
        self.asks.add("mean by examples" if by_examples else "mean")
        return self._upload

    def total(self) -> Tree:
        self.asks.add("mean")
        return self._upload

    def stack(self) -> Tree:
        self.asks.add("stack")
        return tree_map(lambda leaf: leaf.expand((self.sampled, *leaf.shape)), self._upload)


def examine(boxes: Boxes, me: Party, w: Vector, parties: int, cohort: int | None = None) -> Anatomy:
    """Run one round on a single party `[p]` and write down what is said.

    `cohort` is how many parties a round has, about; a round of several messages is run with one
    more as well, to see which of them grow.
    """
    if boxes.has_predict and not boxes.has_personal:
        raise ArchipelError(
            f"{boxes.name} has predict but no personal: add the method personal, which returns the "
            "model that a party uses."
        )
    if boxes.peer:
        return _peer(boxes, me, w)
    size = min(parties, 8) if cohort is None else cohort
    found, _ = _walk(boxes, me, w, parties, size)
    if len(found.messages) > 1:
        found = _growing(boxes.name, found, size, _walk(boxes, me, w, parties, size + 1)[0])
    return found._replace(personal=_asked(boxes, me, found.shared, found.own, w))


def _peer(boxes: Boxes, me: Any, w: Vector) -> Anatomy:
    """A turn of one peer, whose neighbours are as it is."""
    name, states = boxes.name, boxes.init(w, me.blueprint)
    if boxes.clock == "rounds":
        same_form(f"{name}.party", states, boxes.party(me, states))
        return Anatomy(None, None, states, ())
    if boxes.clock == "walk":
        token, own = pair(f"{name}.init", "token, own", states)
        passed, after = pair(f"{name}.party", "token, own", boxes.party(me, token, own))
        same_form(f"the token {name}.party", token, passed)
        same_form(f"the own state {name}.party", own, after)
        return Anatomy(None, None, own, (), token=token)
    own, wakes, began = states, boxes.clock == "wakes", me.round
    told = boxes.told(own) if wakes else None
    swapped: list[Tree] = []
    for t in _unlike(boxes):  # rounds in which others are asked, and in which not
        near = me.blueprint.degree or (2 if wakes else 0)
        trial = Trial(told, near, boxes.asks(t), w.dtype)
        me.round, me.neighbours = t, trial
        after = boxes.party(me, own)
        same_form(f"{name}.party", own, after)
        swapped = trial.swapped
        if wakes:
            same_form(f"{name}.hear", told, boxes.hear(told, boxes.said(after)))
    me.round = began
    said = boxes.said(own) if wakes and hasattr(boxes.algorithm, "said") else None
    return Anatomy(None, None, own, (), told=told, said=said, swapped=tuple(swapped))


def _unlike(boxes: Boxes) -> list[int]:
    """The first rounds of each kind: in which others are asked, and in which they are not."""
    kinds = {boxes.asks(t) > 0: t for t in reversed(range(_ROUNDS))}
    return sorted(kinds.values())


def go_on(boxes: Boxes, mes: Sequence[Party], w: Vector, parties: int) -> None:
    """Run one round after another, with what the one before left: for checks of what is sent.

    The mean is half of what the party sends, as if others had sent nothing: it is not alone.
    """
    states = None
    for me in mes:
        _, states = _walk(boxes, me, w, parties, min(parties, 8), states, share=0.5)


def _walk(
    boxes: Boxes,
    me: Any,
    w: Vector,
    parties: int,
    cohort: int,
    states: tuple[Tree, Tree] | None = None,
    share: float = 1.0,  # of the party's upload in the mean
) -> tuple[Anatomy, tuple[Tree, Tree]]:
    """One round of a server and a party that stands for a cohort, and the states after it."""
    name, number_of = boxes.name, int(me.number.flatten()[0])
    first = boxes.init(w, me.blueprint) if states is None else states
    shared, own = pair(f"{name}.init", "shared, own", first)
    sent = boxes.broadcast(shared, me.round)
    at_party = Talk(boxes.party(me, sent, own))
    at_server: Talk | None = None
    messages: list[Message] = []
    while True:
        payload = at_party.said
        if at_party.ended:
            payload, after = pair(f"{name}.party", "upload, own", payload)
            same_form(f"the own state {name}.party", own, after)
        payload = tree_map(Tensor.detach, payload)
        upload = boxes.receive(len(messages), me.sender(len(messages)), payload)
        mean = upload if share == 1 else tree_map(lambda x: (share * x).to(x.dtype), upload)
        probe = Probe(mean, parties, cohort, w.dtype, number_of)
        if at_server is None:
            at_server = Talk(boxes.server(shared, probe))
        else:
            at_server.send(probe)
        if at_party.ended != at_server.ended:
            waits, other = ("server", "party") if at_party.ended else ("party", "server")
            raise ArchipelError(
                f"{name}: after {len(messages) + 1} upload(s) the {waits} "
                f"waits for another message but the {other} has returned: "
                "give both methods the same number of yields."
            )
        travels = None if upload is payload else payload
        if at_party.ended:
            same_form(f"{name}.server", shared, at_server.said)
            messages.append(Message(upload, frozenset(probe.asks), payload=travels))
            return Anatomy(shared, sent, own, tuple(messages)), (at_server.said, after)
        reply, each = one_of(at_server.said)
        messages.append(Message(upload, frozenset(probe.asks), reply, each, travels))
        at_party.send(reply)


def one_of(reply: Tree) -> tuple[Tree, bool]:
    """What one party gets of a server's reply, and whether others get something else."""
    if not isinstance(reply, Each):
        return reply, False
    return tree_map(lambda leaf: leaf[0], reply.rows), True


def _growing(name: str, few: Anatomy, size: int, more: Anatomy) -> Anatomy:
    """Mark what grows with the cohort: few has `size` parties, more one more."""
    if len(few.messages) != len(more.messages):
        raise ArchipelError(
            f"{name}: the number of messages depends on how many parties there are: give every "
            "round the same number of yields."
        )
    messages = tuple(
        a._replace(
            grows=(_growths(name, a.sent, b.sent, size), _growths(name, a.reply, b.reply, size))
        )
        for a, b in zip(few.messages, more.messages, strict=True)
    )
    return few._replace(messages=messages)


def _growths(name: str, few: Any, more: Any, size: int) -> Growths:
    found = [_growth(name, a, b, size) for a, b in zip(leaves(few), leaves(more), strict=True)]
    return tuple(found) if any(found) else ()


def _growth(name: str, few: Tensor, more: Tensor, size: int) -> Growth | None:
    if few.shape == more.shape:
        return None
    axes = [i for i, (a, b) in enumerate(zip(few.shape, more.shape, strict=False)) if a != b]
    if few.dim() != more.dim() or len(axes) != 1:
        raise ArchipelError(
            f"{name}: a message has shape {list(few.shape)} among {size} parties and "
            f"{list(more.shape)} among {size + 1}: let one axis alone grow with the parties."
        )
    per = more.shape[axes[0]] - few.shape[axes[0]]
    return Growth(axes[0], per, few.shape[axes[0]] - per * size)


def _asked(boxes: Boxes, me: Party, shared: Tree, own: Tree, w: Vector) -> tuple[Message, ...]:
    """Have one party make its own model and write down what it asks."""
    if not boxes.has_personal:
        return ()
    name = f"{boxes.name}.personal"
    talk, messages = Talk(boxes.personal(me, boxes.broadcast(shared, me.round), own)), []
    while not talk.ended:
        if not boxes.has_advise:
            raise ArchipelError(
                f"{name} yields a question and there is no advise: add the method advise, which "
                "answers it at the server."
            )
        upload = tree_map(Tensor.detach, talk.said)
        probe = Probe(upload, 1, 1, w.dtype)
        reply, each = one_of(boxes.advise(shared, probe))
        messages.append(Message(upload, frozenset(probe.asks), reply, each))
        talk.send(reply)
    same_form(name, w, talk.said)
    _check_predict(boxes, me, talk.said)
    return tuple(messages)


def _check_predict(boxes: Boxes, me: Party, w: Vector) -> None:
    """Refuse predictions of another form than the model's outputs."""
    if not boxes.has_predict:
        return
    x = me.examples().x
    outputs, got = me.outputs(w, x), boxes.predict(me, w, x, True)
    if not (isinstance(got, Tensor) and got.shape == outputs.shape):
        raise ArchipelError(
            f"{boxes.name}.predict returns {_form(got)} where the model's outputs "
            f"are {_form(outputs)}: return predictions of that shape."
        )


def pair(what: str, names: str, value: Any) -> tuple[Tree, Tree]:
    """Refuse anything but a pair."""
    if not (isinstance(value, tuple) and len(value) == 2):
        raise ArchipelError(f"{what} returns {_form(value)}: return the pair ({names}).")
    return value


def same_form(what: str, expected: Any, got: Any, lead: int = 0) -> None:
    """Refuse a state of another form than the one it replaces; got may have leading dimensions."""
    try:
        before, after = leaves(expected), leaves(got)
        same = len(before) == len(after) and all(
            a.shape == b.shape[lead:] for a, b in zip(before, after, strict=True)
        )
    except ArchipelError:
        same = False
    if not same:
        raise ArchipelError(
            f"{what} returns {_form(got)} where {_form(expected)} went in: "
            "return a state of the same form."
        )


def _form(value: Any) -> str:
    """A state in words."""
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple):
        return f"{type(value).__name__}({', '.join(_form(part) for part in value)})"
    return "nothing" if value is None else f"a {type(value).__name__}"
