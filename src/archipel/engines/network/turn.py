# SPDX-License-Identifier: Apache-2.0
"""What a party keeps, and a round that is under way; as tensors by name, for its disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor

from archipel.engines.network.bounds import LARGEST, tame
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.engines.party import LocalParty
from archipel.exchange.anatomy import Anatomy, Growths, Message, fits_cohort, shape_of
from archipel.exchange.talk import Talk
from archipel.exchange.varying import arrived, parts_of, travelling
from archipel.tree import Tree, fill, leaves

Arrays = list[Tensor]


@dataclass
class Own:
    """What a party keeps from round to round."""

    state: Tree  # tree
    buffers: Tensor | None  # [q] BatchNorm statistics, where parties keep theirs
    trained: bool

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        found = {f"{prefix}.{i}": leaf for i, leaf in enumerate(leaves(self.state))}
        return found if self.buffers is None else {**found, f"{prefix}.buffers": self.buffers}

    @classmethod
    def read(cls, form: Tree, state: Mapping[str, Tensor], prefix: str, trained: bool) -> Own:
        tree = fill(form, [state[f"{prefix}.{i}"].clone() for i in range(len(leaves(form)))])
        buffers = state.get(f"{prefix}.buffers")
        return cls(tree, None if buffers is None else buffers.clone(), trained)


@dataclass
class Turn:
    """A round that is under way, or done and not judged yet."""

    round: int
    attempt: int  # of the server at this round
    inbox: list[Arrays]  # what the server said so far
    outbox: list[Arrays]  # what was answered
    gradients: list[int]
    secrets: Tensor | None = None  # of this round and attempt, where any were needed
    hides: bool = False  # whether the algorithm made keys or masks of them
    agreed: dict[int, frozenset[int]] = field(default_factory=dict)  # sums that were signed
    charged: bytes = b""  # the name under which what its noise costs is written down
    own: Own | None = None  # after the upload with which the round may count
    name: bytes = b""  # of the letter that it began with, where nobody waits for anybody
    joined: int | None = None  # the round that its upload is for, which may be a later one
    me: LocalParty | None = None
    talk: Talk | None = None

    def is_of(self, t: int, number: int) -> bool:
        """Whether message `number` of round t is of this one: later ones of that it has joined."""
        return t == (self.round if number == 0 or self.joined is None else self.joined)

    def until(self, number: int) -> Turn:
        """The same round as it was before message `number`."""
        inbox, outbox = self.inbox[:number], self.outbox[:number]
        gradients = self.gradients[:number]
        return Turn(self.round, self.attempt, inbox, outbox, gradients, self.secrets)

    def heard(self, number: int) -> bytes:
        """A name of what the server said up to message `number`."""
        return _name(self.inbox[: number + 1])

    def noise(self, number: int, arrays: Arrays, shown: bool) -> bytes:
        """A name of the noise with which message `number`, `arrays`, would be answered.

        The same secrets after the same words give the same noise, also after a restart. Where the
        server adds it and it is `shown` within a round, every attempt of the server has its own.
        """
        assert self.secrets is not None
        attempt = str(self.attempt).encode() if shown else b""
        said = _name([*self.inbox[:number], arrays])
        return sha256(b"noise" + self.secrets.numpy().tobytes() + said + attempt).digest()

    def put(self, message: Message, upload: Tree, gradients: int) -> None:
        """Answer with this upload, after so many gradients in the round."""
        growths = message.grows[0] or [None] * len(leaves(message.sent))
        found = zip(leaves(upload), leaves(message.sent), growths, strict=True)
        whole = [leaf.detach().expand(shape_of(one, growth, leaf)) for leaf, one, growth in found]
        self.outbox.append(travelling(fill(message.sent, whole)))
        self.gradients.append(gradients - sum(self.gradients))

    def tensors(self) -> dict[str, Tensor]:
        found = {"turn.round": torch.tensor([self.round])}
        found["turn.attempt"] = torch.tensor([self.attempt, int(self.hides)])
        if self.joined is not None:
            found["turn.joined"] = torch.tensor([self.joined])
            found["turn.name"] = torch.tensor(list(self.name), dtype=torch.uint8)
        for number, parties in self.agreed.items():
            found[f"turn.agreed.{number}"] = torch.tensor(sorted(parties))
        found["turn.charged"] = torch.tensor(list(self.charged), dtype=torch.uint8)
        found["turn.gradients"] = torch.tensor(self.gradients, dtype=torch.int64)
        if self.secrets is not None:
            found["turn.secrets"] = self.secrets
        for name, box in (("inbox", self.inbox), ("outbox", self.outbox)):
            for i, arrays in enumerate(box):
                found |= {f"turn.{name}.{i}.{j}": a for j, a in enumerate(arrays)}
        if self.own is not None:
            found["turn.settled"] = torch.ones(1, dtype=torch.int64)
            found |= self.own.tensors("turn.own")
        return found

    @classmethod
    def read(cls, anatomy: Anatomy, state: Mapping[str, Tensor]) -> Turn | None:
        """The round in what another process left; None where none is under way."""
        if "turn.round" not in state:
            return None
        attempt, hides = (
            state["turn.attempt"].tolist() if "turn.attempt" in state else (-1, 0)
        )  # not of an older version
        turn = cls(int(state["turn.round"]), attempt, [], [], state["turn.gradients"].tolist())
        turn.secrets, turn.hides = state.get("turn.secrets"), bool(hides)
        if "turn.joined" in state:
            turn.joined, turn.name = int(state["turn.joined"]), state["turn.name"].numpy().tobytes()
        for number in range(len(anatomy.messages)):
            if (parties := state.get(f"turn.agreed.{number}")) is not None:
                turn.agreed[number] = frozenset(parties.tolist())
        messages, answered = anatomy.messages, len(turn.gradients)  # one may have no array
        forms = [anatomy.sent, *(message.reply for message in messages[:-1])]
        for name, box, all_forms in (
            ("inbox", turn.inbox, forms),
            ("outbox", turn.outbox, [message.sent for message in messages]),
        ):
            for i, form in enumerate(all_forms[:answered]):
                keys = [f"turn.{name}.{i}.{j}" for j in range(len(parts_of(form)))]
                if all(key in state for key in keys) and len(box) == i:
                    box.append([state[key].clone() for key in keys])
        turn.inbox = turn.inbox[: len(turn.outbox)]
        if "turn.charged" in state:
            turn.charged = state["turn.charged"].numpy().tobytes()
        elif turn.outbox:  # of an older version, which charged a round before it answered
            turn.charged = b"before"
        if "turn.settled" in state or len(turn.outbox) == len(messages):  # of an older version
            turn.own = Own.read(anatomy.own, state, "turn.own", True)
        return turn


def _name(letters: list[Arrays]) -> bytes:
    """A name of what the server said in some letters."""
    digests = (Letter("work", {}, arrays).digests for arrays in letters)
    return sha256(b"".join(b"".join(each) for each in digests)).digest()


def same(some: Arrays, others: Arrays) -> bool:
    """Whether two letters say the same."""
    return len(some) == len(others) and all(
        one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(some, others, strict=True)
    )


def tree(form: Tree, arrays: Arrays, what: str, growths: Growths = (), most: int = 1) -> Tree:
    """Tensors as the tree that is expected; what grows, for a cohort of at most `most`."""
    arrays = arrived(form, arrays)
    if not fits_cohort(form, growths, arrays, most):
        raise Refused(f"{what} has another form than the study's algorithm gives it.")
    if not tame(arrays):
        raise Refused(f"{what} has a number that is not finite, or beyond {LARGEST:g}.")
    return fill(form, arrays)
