# SPDX-License-Identifier: Apache-2.0
"""What a round of an algorithm sends, found by running one on a single small party.

The engine learns the shape of every message and of a party's state, and what the server asks to
see of each upload: a sum, or individuals. A study can refuse the second before it starts.
"""

from __future__ import annotations

from collections.abc import Generator
from inspect import signature
from typing import Any, Literal, NamedTuple

from torch import Tensor

from archipel.core import Blueprint, Each, Party, PeerAlgorithm, ServerAlgorithm, Vector
from archipel.errors import ArchipelError
from archipel.tree import leaves, nbytes, tree_map

Ask = Literal["mean", "mean by examples", "stack"]


class Message(NamedTuple):
    """One exchange: every party's upload, what the server asks of it, and its reply."""

    upload: Any  # tree of one party's tensors
    asks: frozenset[Ask]
    reply: Any = None  # tree; None after the last upload
    each: bool = False  # whether the reply differs from party to party


class Anatomy(NamedTuple):
    """A round, message by message, with the states before it."""

    shared: Any
    sent: Any  # what parties get of it
    own: Any
    messages: tuple[Message, ...]
    personal: tuple[Message, ...] = ()  # what a party asks the server for a model of its own

    @property
    def sums_only(self) -> bool:
        """Whether the server never asks to see an individual upload."""
        return all("stack" not in m.asks for m in (*self.messages, *self.personal))

    @property
    def bytes_up(self) -> int:
        """Bytes a party sends in a round."""
        return sum(nbytes(message.upload) for message in self.messages)

    @property
    def bytes_down(self) -> int:
        """Bytes a party receives in a round."""
        return nbytes(self.sent) + sum(nbytes(message.reply) for message in self.messages)


class Probe:
    """Some equal uploads that remember what was asked of them."""

    def __init__(self, upload: Any, parties: int) -> None:
        self.parties, self.sampled = parties, min(parties, 8)
        self.asks: set[Ask] = set()
        self._upload = upload

    def mean(self, by_examples: bool = False) -> Any:
        self.asks.add("mean by examples" if by_examples else "mean")
        return self._upload

    def stack(self) -> Any:
        self.asks.add("stack")
        return tree_map(lambda leaf: leaf.expand((self.sampled, *leaf.shape)), self._upload)


def title(algorithm: object) -> str:
    """The algorithm's name, whatever is around it."""
    return type(getattr(algorithm, "inner", algorithm)).__name__


def is_peer(algorithm: object) -> bool:
    """Whether an algorithm has no server."""
    return not hasattr(algorithm, "server")


def examine(
    algorithm: ServerAlgorithm | PeerAlgorithm, me: Party, w: Vector, parties: int
) -> Anatomy:
    """Run one round on a single party `[p]` and write down what is said."""
    name = title(algorithm)
    if hasattr(algorithm, "predict") and not has_personal(algorithm):
        raise ArchipelError(
            f"{name} has predict but no personal: add the method personal, which returns the model "
            "that a party uses."
        )
    if is_peer(algorithm):
        own = first_states(algorithm, w, me.blueprint)
        same_form(f"{name}.party", own, algorithm.party(me, own))  # type: ignore[call-arg]
        return Anatomy(None, None, own, ())
    assert isinstance(algorithm, ServerAlgorithm)
    shared, own = pair(f"{name}.init", "shared, own", first_states(algorithm, w, me.blueprint))
    sent = broadcast(algorithm, shared)
    at_party = Side(algorithm.party(me, sent, own))
    at_server: Side | None = None
    messages: list[Message] = []
    while True:
        last, upload = at_party.ended, at_party.value
        if last:
            upload, after = pair(f"{name}.party", "upload, own", upload)
            same_form(f"the own state {name}.party", own, after)
        upload = tree_map(Tensor.detach, upload)
        probe = Probe(upload, parties)
        if at_server is None:
            at_server = Side(algorithm.server(shared, probe))
        else:
            at_server.send(probe)
        if last != at_server.ended:
            waits, other = ("server", "party") if last else ("party", "server")
            raise ArchipelError(
                f"{name}: after {len(messages) + 1} upload(s) the {waits} "
                f"waits for another message but the {other} has returned: "
                "give both methods the same number of yields."
            )
        if last:
            same_form(f"{name}.server", shared, at_server.value)
            messages.append(Message(upload, frozenset(probe.asks)))
            asked = _asked(algorithm, me, shared, own, w, parties)
            return Anatomy(shared, sent, own, tuple(messages), asked)
        reply, each = at_server.value, isinstance(at_server.value, Each)
        if each:
            reply = tree_map(lambda leaf: leaf[0], reply.rows)
        messages.append(Message(upload, frozenset(probe.asks), reply, each))
        at_party.send(reply)


def first_states(algorithm: Any, w: Vector, blueprint: Blueprint) -> Any:
    """What `init` returns; it may ask for the blueprint."""
    wants = "blueprint" in signature(algorithm.init).parameters
    return algorithm.init(w, blueprint) if wants else algorithm.init(w)


def broadcast(algorithm: Any, shared: Any) -> Any:
    """What parties get of the shared state."""
    return algorithm.broadcast(shared) if hasattr(algorithm, "broadcast") else shared


def has_personal(algorithm: object) -> bool:
    """Whether parties use models of their own, of which the algorithm says how they are made."""
    return hasattr(algorithm, "personal")


def _asked(
    algorithm: Any, me: Party, shared: Any, own: Any, w: Vector, parties: int
) -> tuple[Message, ...]:
    """Have one party make its own model and write down what it asks."""
    if not has_personal(algorithm):
        return ()
    name = f"{title(algorithm)}.personal"
    at_party, messages = Side(algorithm.personal(me, broadcast(algorithm, shared), own)), []
    while not at_party.ended:
        if not hasattr(algorithm, "advise"):
            raise ArchipelError(
                f"{name} yields a question and there is no advise: add the method advise, which "
                "answers it at the server."
            )
        upload = tree_map(Tensor.detach, at_party.value)
        probe = Probe(upload, parties)
        reply = algorithm.advise(shared, probe)
        each = isinstance(reply, Each)
        if each:
            reply = tree_map(lambda leaf: leaf[0], reply.rows)
        messages.append(Message(upload, frozenset(probe.asks), reply, each))
        at_party.send(reply)
    same_form(name, w, at_party.value)
    _check_predict(algorithm, me, at_party.value)
    return tuple(messages)


def _check_predict(algorithm: Any, me: Party, w: Vector) -> None:
    """Refuse predictions of another form than the model's outputs."""
    if not hasattr(algorithm, "predict"):
        return
    x = me.examples().x
    outputs, got = me.outputs(w, x), algorithm.predict(me, w, x, True)
    if not (isinstance(got, Tensor) and got.shape == outputs.shape):
        raise ArchipelError(
            f"{title(algorithm)}.predict returns {_form(got)} where the model's outputs "
            f"are {_form(outputs)}: return predictions of that shape."
        )


class Side:
    """A method that may be a generator: its current value, and whether it has returned."""

    def __init__(self, started: Any) -> None:
        self._steps = started if isinstance(started, Generator) else None
        self.ended = self._steps is None
        self.value: Any = started
        if self._steps is not None:
            self.send(None)

    def send(self, message: Any) -> None:
        assert self._steps is not None
        try:
            self.value = self._steps.send(message)
        except StopIteration as end:
            self.value, self.ended = end.value, True


def pair(what: str, names: str, value: Any) -> tuple[Any, Any]:
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
