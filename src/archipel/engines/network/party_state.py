# SPDX-License-Identifier: Apache-2.0
"""A party's seat in a study: its data, its own state, and its side of every round.

A seat answers letters and never asks. It is told after a round whether it counted, and only then
keeps what the round made of its own state: so a round that is done again, because the coordinator
or the site was killed, starts from the same state and gives the same upload. An upload that was
sent before is sent again, not computed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from archipel import metrics
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.data.scaling import Scaling
from archipel.engines import plan as planning
from archipel.engines.checks import check_algorithm_fields, check_fit
from archipel.engines.network.bounds import LARGEST, tame
from archipel.engines.network.transport import Refused
from archipel.engines.party import LocalParty
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy, examine, same_form
from archipel.exchange.boxes import has_personal, is_peer
from archipel.metrics import Guarded
from archipel.models.model import Model
from archipel.tree import fill, first, fits, leaves, nbytes, tree_map

_MOST_PARTIES = 1 << 20  # of a study between sites


class Rules(Protocol):
    """What the party's owner allows to leave; both raise where it must not."""

    @property
    def scores(self) -> int:
        """Models that are scored at most."""

    def check_upload(self, records: int, rows: int) -> None:
        """An upload was computed from so many of the party's training points."""

    def rounded(
        self, scores: Mapping[str, float], guarded: Mapping[str, Guarded], points: int
    ) -> dict[str, float]:
        """Scores as they may leave, made of the exact ones or of those that no point moves far."""


Answer = tuple[dict[str, float], dict[str, float] | None]  # scores of the shared model, of the own


@dataclass
class Own:
    """What a party keeps from round to round."""

    state: Any  # tree
    buffers: Tensor | None  # [q] BatchNorm statistics, where parties keep theirs
    trained: bool


class Learnt(NamedTuple):
    """A model, and the buffers that go with it; None where it has none."""

    w: Tensor
    buffers: Tensor | None


@dataclass
class Turn:
    """A round that is under way, or done and not judged yet."""

    round: int
    inbox: list[list[Tensor]]  # what the server said so far
    outbox: list[list[Tensor]]  # what was answered
    gradients: list[int]
    own: Own | None = None  # after the last upload
    me: LocalParty | None = None
    steps: Generator[Any, Any, tuple[Any, Any]] | None = None

    def until(self, number: int) -> Turn:
        """The same round as it was before message `number`."""
        inbox, outbox = self.inbox[:number], self.outbox[:number]
        return Turn(self.round, inbox, outbox, self.gradients[:number])


def anatomy_of(
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    k: int,
    seed: int,
    mixed: list[Tensor] | None = None,
) -> Anatomy:
    """What a round of the algorithm sends, found on two points of party k.

    What a peer mixes with its neighbours is added to `mixed`.
    """
    buffers = model.buffers[None].clone() if model.buffer_spec.size else None

    def mixing(x: Tensor) -> Tensor:
        if mixed is not None:
            mixed.append(x.detach())
        return x

    me = LocalParty(
        data, model, model.one, np.array([k]), seed, 0, (), buffers=buffers, limit=2,
        draws=model.one.draws(data.x[:2]), mixing=mixing if is_peer(algorithm) else None,
    )  # fmt: skip
    with planning.threads(1):
        found = examine(statistics.joined(algorithm, model), me, model.w.clone(), 8)
    if not statistics.keep_own(algorithm, model):
        statistics.check_others(model, model.buffers, me.buffers)
    return found


class PartyState:
    """One party of one study."""

    def __init__(
        self,
        algorithm: Algorithm,
        data: Federation,
        model: Model,
        *,
        party: int,
        seed: int = 0,
        rounds: int | None = None,
        evaluate_every: int = 1,
        rules: Rules | None = None,
    ) -> None:
        """`data` holds this party alone; `party` is its number in the study of so many rounds."""
        check_algorithm_fields(algorithm)
        check_fit(model, data)
        self.algorithm: Any = statistics.joined(algorithm, model)
        self._keeps_own = statistics.keep_own(algorithm, model)
        self.model, self.party, self.seed = model, party, seed
        self.data = _numbered(data.as_trained(), party)
        self.mixed: list[Tensor] = []  # what a peer's round mixes, in order
        self.anatomy = anatomy_of(algorithm, self.data, model, party, seed, self.mixed)
        self._draws = model.one.draws(data.x[:2])
        self._separable = planning.separable(model, data)
        buffers = model.buffers.clone() if self._keeps_own else None
        self.own = Own(self.anatomy.own, buffers, False)
        self.turn: Turn | None = None
        self.me: LocalParty | None = None  # in a round without a server
        self._rounds = rounds
        self._last = -1  # round that was worked on; earlier ones are over
        self._again = 0  # messages that were answered anew, to another letter
        self._every, self._rules = evaluate_every, rules
        self._scored = 0, b""  # the round after which a model was scored, and the letter's name
        self.answer: Answer | None = None  # what was said to that letter
        self._scores = 0  # models that were scored
        self._used = self._unused()  # points behind what a peer mixes next

    # -- rounds ------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """The round whose verdict is open, or -1."""
        return -1 if self.turn is None or self.turn.own is None else self.turn.round

    def verdict(self, t: int, counted: bool) -> None:
        """Keep what round t made of the own state, or forget it."""
        if self.turn is None or self.turn.round != t:
            return
        if counted and self.turn.own is not None:
            self.own = self.turn.own
        self.turn = None

    def work(self, t: int, number: int, arrays: list[Tensor]) -> tuple[list[Tensor], int]:
        """Upload number `number` of round t, and the gradients it took."""
        if not 0 <= number < len(self.anatomy.messages):
            raise Refused(f"round {t + 1}: message {number + 1} is none of the algorithm's.")
        turn = self.turn
        if turn is None or turn.round != t:
            self._begin(t)
            turn = Turn(t, [], [], [])
        if number > len(turn.inbox):
            raise Refused(f"round {t + 1}: message {number + 1} came before the ones before.")
        if number < len(turn.inbox) and not _same(turn.inbox[number], arrays):
            self._anew(t, number)
            turn = turn.until(number)  # done again, with other parties
        self.turn = turn
        if number == len(turn.inbox):
            turn.inbox.append(arrays)
            self._advance(turn)
        return turn.outbox[number], turn.gradients[number]

    def _begin(self, t: int) -> None:
        """A party computes what it agreed to: each round of the study once, in their order."""
        if not self._last < t < (inf if self._rounds is None else self._rounds):
            raise Refused(
                f"round {t + 1} is not one that this party may still take part in: it was in round "
                f"{self._last + 1} of {self._rounds or 'any'}."
            )
        self._last = t

    def _anew(self, t: int, number: int) -> None:
        """The first letter of a round never changes; later ones do when another party is lost."""
        self._again += 1
        if number == 0 or self._again > (inf if self._rounds is None else self._rounds + 20):
            raise Refused(f"round {t + 1}, message {number + 1}: came again with other contents.")

    def _advance(self, turn: Turn) -> None:
        """Run the algorithm up to its next upload; from the round's start where it is not running.

        After a restart the letters of the round so far are there, and the same uploads come again.
        """
        messages = self.anatomy.messages
        if turn.steps is None:
            turn.me = self._me(turn.round, self.own.buffers)
            sent = _tree(self.anatomy.sent, turn.inbox[0], "the shared state")
            started = self.algorithm.party(turn.me, sent, self.own.state)
            if not isinstance(started, Generator):
                self._end(turn, *started)
                return
            turn.steps, at, reply = started, 0, None
        else:
            at = len(turn.outbox)
            reply = _tree(messages[at - 1].reply, turn.inbox[at], f"reply {at}")
        while True:
            try:
                upload = turn.steps.send(reply)
            except StopIteration as end:
                self._end(turn, *end.value)
                return
            if at == len(turn.outbox):
                self._put(turn, upload)
                return
            at += 1  # again: it was sent before the restart
            reply = _tree(messages[at - 1].reply, turn.inbox[at], f"reply {at}")

    def _put(self, turn: Turn, upload: Any) -> None:
        assert turn.me is not None
        if self._rules is not None:
            self._rules.check_upload(turn.me.records, self.rows)
        form = self.anatomy.messages[len(turn.outbox)].upload
        found = zip(leaves(upload), leaves(form), strict=True)
        turn.outbox.append([leaf.detach().expand(one.shape) for leaf, one in found])
        turn.gradients.append(turn.me.gradients - sum(turn.gradients))

    def _end(self, turn: Turn, upload: Any, own: Any) -> None:
        if len(turn.outbox) < len(self.anatomy.messages):
            self._put(turn, upload)
        assert turn.me is not None
        state = tree_map(lambda leaf: leaf.detach().clone(), own)
        turn.own = Own(state, self._kept(turn.me), True)
        turn.steps = turn.me = None

    def alone(self, t: int, mixing: Callable[[Tensor], Tensor]) -> tuple[Own, int]:
        """A round without a server: the own state after it, and the gradients it took."""

        def checked(x: Tensor) -> Tensor:
            used, self._used[:] = int(self._used.sum()), False
            if self._rules is not None and used:
                self._rules.check_upload(used, self.rows)
            return mixing(x)

        self.me = me = self._me(t, self.own.buffers, checked)
        me.used = self._used
        state = self.algorithm.party(me, self.own.state)
        same_form(f"{title(self.algorithm)}.party", self.anatomy.own, state)
        state = tree_map(lambda leaf: leaf.detach().clone(), state)
        return Own(state, self._kept(me), True), me.gradients

    def _kept(self, me: LocalParty) -> Tensor | None:
        """Statistics that the party keeps for itself."""
        return me.buffers[0].clone() if self._keeps_own and me.buffers is not None else None

    def _me(
        self,
        t: int,
        buffers: Tensor | None,
        mixing: Callable[[Tensor], Tensor] | None = None,
    ) -> LocalParty:
        if buffers is None and self.model.buffer_spec.size:
            buffers = self.model.buffers
        return LocalParty(
            self.data,
            self.model,
            self.model.one,
            np.array([self.party]),
            self.seed,
            t,
            (),
            buffers=None if buffers is None else buffers[None].clone(),
            draws=self._draws,
            separable=self._separable,
            mixing=mixing,
            used=self._unused(),
        )

    def _unused(self) -> Tensor:
        return torch.zeros(len(self.data.x), dtype=torch.bool)

    @property
    def rows(self) -> int:
        """Training points."""
        return int(self.data.n[self.party])

    @property
    def n(self) -> float:
        """Training points, where the server weighs by them; 0 where it need not know."""
        asks = {ask for message in self.anatomy.messages for ask in message.asks}
        return float(self.rows) if "mean by examples" in asks else 0.0

    # -- models ------------------------------------------------------------------------------------

    def personal(self, t: int, sent: list[Tensor]) -> Generator[list[Tensor], list[Tensor], Learnt]:
        """Make this party's model after t rounds: yields what it asks, is sent the advice."""
        me = self._me(t, self.own.buffers)
        shared = _tree(self.anatomy.sent, sent, "the shared state")
        started = self.algorithm.personal(me, shared, self.own.state)
        if not isinstance(started, Generator):
            return _made(me, started)
        asked, number = next(started), 0
        while True:
            if self._rules is not None:
                self._rules.check_upload(me.records, self.rows)
            advice = yield leaves(tree_map(Tensor.detach, asked))
            form = self.anatomy.personal[number].reply
            try:
                asked = started.send(_tree(form, advice, f"advice {number + 1}"))
            except StopIteration as end:
                return _made(me, end.value)
            number += 1

    @property
    def has_personal(self) -> bool:
        return has_personal(self.algorithm)

    @property
    def asks(self) -> bool:
        """Whether a model of the party's own takes the server's advice."""
        return bool(self.anatomy.personal)

    def may_score(self, t: int, name: bytes, arrays: list[Tensor]) -> bool:
        """Whether a letter with a model comes for the first time; refuse more than was agreed to.

        Every score says something of the data: one letter after each round that the study
        evaluates, and no more models than the owner allows. What was answered to a letter is
        answered again as it was: what the server said on the way may be something else now.
        """
        before = self._scored[0]
        if not max(before, 1) <= t <= (inf if self._rounds is None else self._rounds):
            raise Refused(f"no model is scored after round {t} any more.")
        if t % self._every and t != self._rounds:
            raise Refused(f"the study scores no model after round {t}.")
        if (t, name) == self._scored:
            return False
        if t == before:
            raise Refused(f"another model was scored after round {t}.")
        scores = self._scores + 1 + self.has_personal
        if self._rules is not None and scores > self._rules.scores:
            raise Refused(f"{self._scores} models were scored, and this site scores no more.")
        self.learnt(arrays)
        self._scored, self._scores, self.answer = (t, name), scores, None
        return True

    def learnt(self, arrays: list[Tensor]) -> Learnt:
        """The shared model that came, before what else came with it."""
        form = statistics.handed_over(self.anatomy.shared)
        model = _tree(form, arrays[: len(leaves(form))], "the model")
        if not isinstance(model, statistics.Joined):
            return Learnt(model, self._buffers(model))
        assert model.statistics is not None
        return Learnt(model.inner, self.model.buffers_with(model.statistics))

    def rest(self, arrays: list[Tensor]) -> list[Tensor]:
        """What came with the shared model: that of which a party's own is made."""
        return arrays[len(leaves(statistics.handed_over(self.anatomy.shared))) :]

    def mine(self) -> Learnt:
        """A peer's own model."""
        w, state = first(self.own.state), self.own.state
        if isinstance(state, statistics.Joined) and state.statistics is not None:
            return Learnt(w, self.model.buffers_with(state.statistics))
        return Learnt(w, self._buffers(w))

    @property
    def most(self) -> int:
        """Bytes of the largest letter that the study brings here."""
        replies = (message.reply for message in (*self.anatomy.messages, *self.anatomy.personal))
        model = nbytes(self.model.w) + nbytes(self.model.buffers)
        return model + nbytes(self.anatomy.sent) + sum(map(nbytes, replies))

    def score(self, model: Learnt, t: int, own: bool = False) -> dict[str, float]:
        """Metrics of a model on this party's test points; empty where it has none."""
        x, y = self._test()
        if len(x) == 0:
            return {}
        outputs = self._outputs(model, t, own, x)
        return metrics.pool(self.data.task, outputs, y, self._loss, self.model.metrics, self._unit)

    def told(self, model: Learnt, t: int, own: bool = False) -> dict[str, float]:
        """The same as it may leave: what its owner allows, and as exactly as that."""
        x, y = self._test()
        if len(x) == 0:
            return {}
        outputs = self._outputs(model, t, own, x)
        how = (self._loss, self.model.metrics, self._unit)
        found = metrics.pool(self.data.task, outputs, y, *how)
        if self._rules is None:
            return found
        guarded = metrics.guarded(self.data.task, outputs, y, *how)
        return self._rules.rounded(found, guarded, len(x))

    @property
    def _loss(self) -> Any:
        return self.model.loss_function

    @property
    def _unit(self) -> Scaling | None:
        return self.data.features.target

    def _test(self) -> tuple[Tensor, Tensor]:
        data, k = self.data, self.party
        rows = slice(int(data.test_from[k]), int(data.offsets[k + 1]))
        return data.x[rows], data.y[rows]

    def _outputs(self, model: Learnt, t: int, own: bool, x: Tensor) -> Tensor:
        w, buffers = model
        outputs = self.model.one.outputs(w, x, None if buffers is None else buffers.clone())
        if own and hasattr(self.algorithm, "predict"):
            outputs = self.algorithm.predict(self._me(t, buffers), w, x, False)
        return outputs

    def _buffers(self, w: Tensor) -> Tensor | None:
        """Buffers that go with a model that came without any."""
        if not self.model.buffer_spec.size or not self._keeps_own:
            return self.model.buffers if self.model.buffer_spec.size else None
        return self.own.buffers if self.own.trained else self._me(0, None).settled(0, w)

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """The own state and the open round, as tensors by name."""
        found = {"own.trained": torch.tensor([int(self.own.trained)])}
        found["last"] = torch.tensor([self._last, self._again])
        found["scored"] = torch.tensor([self._scored[0], self._scores])
        found["scored.name"] = torch.tensor(list(self._scored[1]), dtype=torch.uint8)
        if self.answer is not None:
            said = json.dumps(self.answer).encode()
            found["scored.answer"] = torch.tensor(list(said), dtype=torch.uint8)
        found |= _named("own", self.own)
        if self.turn is not None:
            turn = self.turn
            found["turn.round"] = torch.tensor([turn.round])
            found["turn.gradients"] = torch.tensor(turn.gradients, dtype=torch.int64)
            for name, box in (("inbox", turn.inbox), ("outbox", turn.outbox)):
                for i, arrays in enumerate(box):
                    found |= {f"turn.{name}.{i}.{j}": a for j, a in enumerate(arrays)}
            if turn.own is not None:
                found |= _named("turn.own", turn.own)
        return {name: tensor.clone().contiguous() for name, tensor in found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what another process left."""
        self.own = self._own(state, "own", bool(state["own.trained"]))
        self.turn = None
        self._last, self._again = state["last"].tolist()
        scored, self._scores = state["scored"].tolist()
        self._scored = scored, state["scored.name"].numpy().tobytes()
        self.answer = None
        if "scored.answer" in state:
            scores, own = json.loads(state["scored.answer"].numpy().tobytes())
            self.answer = scores, own
        if "turn.round" not in state:
            return
        messages = self.anatomy.messages
        forms = [self.anatomy.sent, *(m.reply for m in messages[:-1])]
        turn = Turn(int(state["turn.round"]), [], [], state["turn.gradients"].tolist())
        answered = len(turn.gradients)  # a message may have no array
        for name, box, all_forms in (
            ("inbox", turn.inbox, forms),
            ("outbox", turn.outbox, [m.upload for m in messages]),
        ):
            for i, form in enumerate(all_forms[:answered]):
                keys = [f"turn.{name}.{i}.{j}" for j in range(len(leaves(form)))]
                if all(key in state for key in keys) and len(box) == i:
                    box.append([state[key].clone() for key in keys])
        turn.inbox = turn.inbox[: len(turn.outbox)]
        if len(turn.outbox) == len(messages):
            turn.own = self._own(state, "turn.own", True)
        self.turn = turn

    def _own(self, state: Mapping[str, Tensor], prefix: str, trained: bool) -> Own:
        form = self.anatomy.own
        tree = fill(form, [state[f"{prefix}.{i}"].clone() for i in range(len(leaves(form)))])
        buffers = state.get(f"{prefix}.buffers")
        return Own(tree, None if buffers is None else buffers.clone(), trained)


def _made(me: LocalParty, w: Tensor) -> Learnt:
    w = w.detach()
    return Learnt(w, me.buffers_for(0, w))


def _named(prefix: str, own: Own) -> dict[str, Tensor]:
    found = {f"{prefix}.{i}": leaf for i, leaf in enumerate(leaves(own.state))}
    return found if own.buffers is None else {**found, f"{prefix}.buffers": own.buffers}


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _tree(form: Any, arrays: list[Tensor], what: str) -> Any:
    """Tensors as the tree that is expected."""
    if not fits(form, arrays):
        raise Refused(f"{what} has another form than the study's algorithm gives it.")
    if not tame(arrays):
        raise Refused(f"{what} has a number that is not finite, or beyond {LARGEST:g}.")
    return fill(form, arrays)


def _numbered(data: Federation, party: int) -> Federation:
    """A federation in which the only party is number `party`: draws are keyed by that number."""
    if data.parties != 1:
        raise Refused(f"a seat holds the data of one party, not of {data.parties}.")
    if not 0 <= party < _MOST_PARTIES:
        raise Refused(f"party = {party}: is no party's number.")

    def after(rows: Tensor) -> Tensor:  # so many parties without a point
        return torch.cat([rows.new_zeros(party), rows])

    return Federation(
        data.x, data.y, after(data.offsets), after(data.test_from), party + 1, data.task,
        data.classes, features=data.features,
        scan=False,
    )  # fmt: skip
