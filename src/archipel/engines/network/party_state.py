# SPDX-License-Identifier: Apache-2.0
"""A party's seat in a study: its data, its own state, and its side of every round.

A seat answers letters and never asks. It is told after a round whether it counted, and only then
keeps what the round made of its own state: so a round that is done again, because the coordinator
or the site was killed, starts from the same state and gives the same upload. An upload that was
sent before is sent again, not computed again. A party that is lost after it masked its upload is
in a secure sum: its verdict is open from that message on, and when it comes back it is told that it
counted.

Where a study promises privacy, a round's noise is of the round's secrets: what is sent again has
the noise that it had. The secrets are on the disk, and what the round costs is charged, before
anything of it is computed: under a name of that noise, so that a round which is computed again with
the same noise is the same charge, and one with other noise another. One file, since every letter
finds the same state here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from math import inf
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.others import Between, Identities, Simulated, session_of
from archipel.core import Algorithm, Others
from archipel.data.federation import Federation
from archipel.engines import plan as planning
from archipel.engines.checks import check_algorithm_fields, check_fit
from archipel.engines.network.fitting import fitted, numbered, protected
from archipel.engines.network.scoring import Answer, Learnt, Rules, Test
from archipel.engines.network.transport import Refused
from archipel.engines.network.turn import Arrays, Own, Turn, same, tree
from archipel.engines.party import LocalParty, drawn_secrets
from archipel.engines.protection import Protection, simulated
from archipel.errors import ArchipelError, RunFailed
from archipel.exchange import statistics
from archipel.exchange.anatomy import pair, same_form
from archipel.exchange.neighbours import Neighbours
from archipel.exchange.talk import Talk
from archipel.models.model import Model
from archipel.privacy.budgeted import spent
from archipel.privacy.correlated import begun_anew, kept_on
from archipel.privacy.promise import Kept, Privacy, Uses
from archipel.tree import Tree, first, leaves, nbytes, tree_map
from archipel.wire.wire import Wire

DROPPED = "dropped"  # in a state: a round was open that nobody knows any more
_COHORT = 1024  # parties of a round at most, where a site does not know how many there are


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
        wire: Wire | None = None,
        parties: int | None = None,
        private: bool = True,
        privacy: Privacy | None = None,
        charge: Callable[[int, Kept, bytes], None] | None = None,
        separation: int = 1,
        study: str = "",
        identities: Identities | None = None,
        edges: int = 0,
    ) -> None:
        """`data` holds this party alone; `party` is its number in the study of so many rounds.

        `parties` are those of the study, where that is known. Without `private`, noise that
        protects people is drawn from the seed, as in a simulation. `charge` keeps this state, and
        writes down what round t costs by what keeps `privacy`, once for each name of a noise; or
        it raises: then nothing is computed. After a round the party sits out the next
        `separation` - 1. `study` and `identities` are for protocols between parties: what names the
        study at both ends, and the keys that parties know each other by, those of a simulation
        unless given. `edges` are those of a peer at most, in a graph that stays.
        """
        check_algorithm_fields(algorithm)
        check_fit(model, data)
        self.model, self.party, self.seed = model, party, seed
        self.data = numbered(data.as_trained(), party)
        self._test = Test.of(self.data, party, model)
        self._cohort, self._private = parties or _COHORT, private
        self._parties, self._edges = parties, edges
        self.rule = None if wire is None else wire.rule
        at = (algorithm, self.data, model, party)
        several = min(self._cohort, 8)
        self.protection: Protection | None = None
        if privacy is not None:
            self.protection = protected(
                privacy, *at[:3], [party], seed=seed, rounds=rounds, wire=wire, parties=several,
                noise=simulated(seed), separation=separation,
            )  # fmt: skip
        self._charge, self._separation = charge, separation
        self._study, self._identities = study, identities or Simulated(party, seed)
        self.boxes, self.anatomy = fitted(*at, seed, wire, several, self.protection, edges, parties)
        if self.boxes.peer and separation > 1:
            raise ArchipelError(
                f"round.separation = {separation}: {self.boxes.name} has no server that asks, and "
                "between institutions its peers are in every round; leave it out."
            )
        self.asynchronous, self._lock = self.boxes.asynchronous, Lock()
        self.admission: Callable[[int, bytes], tuple[int, int]] | None = None  # round, attempt
        self._scorer = copy.deepcopy(model) if self.asynchronous else model  # beside the training
        self._keeps_own = statistics.keep_own(self.boxes, model)
        self._draws = model.one.draws(data.x[:2])
        self._separable = planning.separable(model, data)
        buffers = model.buffers.clone() if self._keeps_own else None
        self.own = Own(self.anatomy.own, buffers, False)
        self.turn: Turn | None = None
        self.me: LocalParty | None = None  # in a round without a server
        self._rounds = rounds
        self._last = -1  # round that was worked on; earlier ones are over
        self._again = 0  # messages that were answered anew, to another letter
        self.paid = -1  # the round that was charged last
        self._every, self._rules = evaluate_every, rules
        self._scored = 0, b""  # the round after which a model was scored, and the letter's name
        self.answer: Answer | None = None  # what was said to that letter
        self._scores = 0  # models that were scored
        self._used = self._unused()  # points behind what a peer mixes next
        self.secrets: tuple[int, Tensor] | None = None  # of a peer's open round

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
        else:
            self._use_up(self.turn)
        self.turn = None

    def _use_up(self, turn: Turn) -> None:
        """Correlated noise of a round that is over is not used again, whether it counted or not."""
        if not self._rows or not turn.inbox:
            return
        state = (
            begun_anew(self.own.state, self._rows)
            if turn.own is None
            else kept_on(self.own.state, turn.own.state)
        )
        self.own = replace(self.own, state=state)

    @property
    def _rows(self) -> int:
        """Rows of correlated noise that a round uses."""
        return 0 if self.protection is None else self.protection.rows.get(self.party, 0)

    def work(
        self, t: int, number: int, arrays: Arrays, attempt: int = 0, name: bytes = b""
    ) -> tuple[Arrays, int]:
        """Upload number `number` of round t, in an attempt of the server's; gradients it took.

        `name` is that of the letter that asks for it.
        """
        if not 0 <= number < len(self.anatomy.messages):
            raise Refused(f"round {t + 1}: message {number + 1} is none of the algorithm's.")
        turn = self.turn
        if turn is None or not turn.is_of(t, number):
            self._begin(t)
            if turn is not None:
                self._use_up(turn)
            turn = Turn(t, attempt, [], [], [], name=name)
        if attempt < turn.attempt:
            raise Refused(
                f"round {t + 1}: attempt {attempt} came after attempt {turn.attempt}, and what "
                "others signed for an earlier one must not hold again; give a larger number."
            )
        if turn.hides and turn.attempt != attempt:
            turn = self._hide_anew(turn, number, arrays, attempt)
        if number > len(turn.inbox):
            raise Refused(f"round {t + 1}: message {number + 1} came before the ones before.")
        if number < len(turn.inbox) and not same(turn.inbox[number], arrays):
            self._anew(t, number, may=number > 0 and not turn.hides and not self._rows)
            turn = turn.until(number)  # done again, with other parties
        is_next = number == len(turn.inbox)
        if is_next:
            self._look_at(number, self._said(number, arrays))
        if self._shown and turn.attempt != attempt:
            turn.charged = b""  # others may have seen a mean of the attempt before
        self.turn, turn.attempt = turn, attempt
        self._pay(turn, number, arrays)
        if is_next:
            turn.inbox.append(arrays)
            try:
                self._advance(turn)
            except Exception:
                del turn.inbox[number]  # it was not answered
                turn.talk = turn.me = None
                raise
        return turn.outbox[number], turn.gradients[number]

    def _look_at(self, number: int, said: Tree) -> None:
        """Have the owner's rules look at the model that came, where it comes as it is."""
        if number > 0 or self._rules is None:
            return
        for w in leaves(said)[:1]:  # the model, where anything comes at all
            if w.shape == self.model.w.shape:
                self._rules.check_model(self.model, w)

    def _said(self, number: int, arrays: Arrays) -> Tree:
        """What the server says in message `number`: the shared state, then replies."""
        if number == 0:
            return tree(self.anatomy.sent, arrays, "the shared state")
        before = self.anatomy.messages[number - 1]
        return tree(before.reply, arrays, f"reply {number}", before.grows[1], self._cohort)

    def _begin(self, t: int) -> None:
        """A party computes what it agreed to: each round of the study once, in their order."""
        if not self._last < t < (inf if self._rounds is None else self._rounds):
            raise Refused(
                f"round {t + 1} is not one that this party may still take part in: it was in round "
                f"{self._last + 1} of {self._rounds or 'any'}."
            )
        if self._last >= 0 and t - self._last < self._separation:
            raise Refused(
                f"round {t + 1}: this party was in round {self._last + 1}, and the study's "
                f"round.separation is {self._separation}: it sits out."
            )
        self._last = t

    def _join(self, turn: Turn) -> int:
        """The round that a turn's upload is for: asked once, when the party has trained.

        A party is in a round once: what it is given next is of a later one.
        """
        if turn.joined is None:
            joined, attempt = turn.round, turn.attempt
            if self.admission is not None:
                joined, attempt = self.admission(turn.round, turn.name)
            if not turn.round <= joined < (inf if self._rounds is None else self._rounds):
                raise Refused(
                    f"version {turn.round}: its upload is for round {joined + 1}, which is none "
                    f"that comes after it, of {self._rounds or 'any'}."
                )
            turn.joined, turn.attempt = joined, attempt
            self._last = max(self._last, joined)
        return turn.joined

    @property
    def last(self) -> int:
        """The last round that the party was in."""
        return self._last

    def again(self, version: int) -> tuple[Turn, Arrays]:
        """What was made of a version and is not judged yet."""
        turn = self.turn
        if turn is None or turn.round != version or turn.own is None or turn.joined is None:
            raise Refused(f"version {version}: nothing of it is here.")
        return turn, turn.outbox[-1]

    def _pay(self, turn: Turn, number: int, arrays: Arrays) -> None:
        """Have it written down what the noise costs with which a letter is answered."""
        if self.kept is None or self._charge is None or turn.charged:
            return
        if turn.secrets is None:
            turn.secrets = drawn_secrets(1)
        name = turn.noise(number, arrays, self._shown)
        self._charge(turn.round, self.kept, name)
        turn.charged, self.paid = name, turn.round

    @property
    def _shown(self) -> bool:
        """Whether the server adds the noise, and means with it are seen before a round is done."""
        promise = None if self.kept is None else self.kept.promise
        by_server = promise is not None and (promise.unit, promise.trust) == ("party", "server")
        return by_server and len(self.anatomy.messages) > 1

    @property
    def kept(self) -> Kept | None:
        """What is promised, with the plan of this party."""
        return None if self.protection is None else self.protection.kept

    @property
    def by_record(self) -> bool:
        """Whether noise hides who is in a sample: then how many are does not leave either."""
        return self.kept is not None and self.kept.promise.unit == "record"

    def _anew(self, t: int, number: int, may: bool, how: str = "with other contents") -> None:
        """The first letter of a round never changes; later ones do when another party is lost.

        Two answers under one key could show what it hides: where there is one, none changes.
        """
        self._again += 1
        most = inf if self._rounds is None else self._rounds + 20
        if not may or self._again > most:
            raise Refused(f"round {t + 1}, message {number + 1}: came again {how}.")

    def _hide_anew(self, turn: Turn, number: int, arrays: Arrays, attempt: int) -> Turn:
        """The round with fresh secrets, from its first message on: the server began it anew."""
        if number > 0:
            raise Refused(
                f"round {turn.round + 1}, message {number + 1}: is of another attempt than the "
                "messages before, and keys hold for one; begin with the first message."
            )
        if turn.inbox and not same(turn.inbox[0], arrays):
            self._anew(turn.round, 0, may=False)
        self._anew(turn.round, 0, may=True, how="too often")
        self._use_up(turn)
        return Turn(turn.round, attempt, [], [], [], agreed=turn.agreed)

    def _advance(self, turn: Turn) -> None:
        """Run the algorithm up to its next upload; from the round's start where it is not running.

        After a restart the letters of the round so far are there, and the same uploads come again.
        """
        messages, at = self.anatomy.messages, len(turn.outbox)
        if turn.talk is None:
            at = 0
            turn.me = self._me(turn.round, self.own.buffers)
            turn.me.secrets = turn.secrets
            turn.me.acquainted = partial(self._others, turn)
            if self.asynchronous:
                turn.me.joins = partial(self._join, turn)
        assert turn.me is not None
        while True:
            said, turn.me.heard = self._said(at, turn.inbox[at]), cache(partial(turn.heard, at))
            if turn.talk is None:
                turn.talk = Talk(self.boxes.party(turn.me, said, self.own.state))
            else:
                turn.talk.send(said)
            if turn.talk.ended != (at == len(messages) - 1):
                raise ArchipelError(
                    f"{self.boxes.name}.party sends another number of messages than before the "
                    "first round: give every round the same number of yields."
                )
            if at == len(turn.outbox):
                break
            at += 1  # again: it was sent before the restart
        turn.secrets, turn.hides = turn.me.secrets, turn.hides or turn.me.hides
        self._put(turn, turn.talk, turn.me)

    def _others(self, turn: Turn, number: int) -> Others:
        """What this party knows of the others, in an attempt of the server's."""
        session = session_of(self._study, turn.attempt)
        return Between(number, self._identities, session, self._least, turn.agreed)

    def _least(self) -> int:
        return 0 if self._rules is None else self._rules.least

    def _put(self, turn: Turn, talk: Talk, me: LocalParty) -> None:
        """Keep what the algorithm said as the next upload; with the last, the own state."""
        if self._rules is not None:
            self._rules.check_upload(self._behind(me.records), self.rows)
        upload, own = talk.said, None
        if talk.ended:
            upload, own = pair(f"{self.boxes.name}.party", "upload, own", talk.said)
        gradients = self._told_gradients(me) if talk.ended or not self.by_record else 0
        number = len(turn.outbox)
        with self._lock:
            turn.put(self.anatomy.messages[number], upload, gradients)
            if number == self.anatomy.counts_at:  # with this upload it may be in the round's sum
                turn.own = self._kept(me, own if talk.ended else me.after)
            if talk.ended:
                turn.talk = turn.me = None

    def _behind(self, records: int) -> int:
        """Records behind what leaves, as rules are told: those of a private sample are secret."""
        return 0 if self.by_record else records

    def _told_gradients(self, me: LocalParty) -> int:
        """Gradients of a round; of samples that are secret as many as there are on average."""
        if self.kept is None or not self.by_record:
            return me.gradients
        return round(sum(use.rate * self.rows * use.draws * use.noised for use in self._uses))

    @property
    def _uses(self) -> Uses:
        return () if self.kept is None else self.kept.uses[self.party]

    def alone(self, t: int, mixing: Callable[..., Tensor]) -> tuple[Own, int]:
        """A round without a server: the own state after it, and the gradients it took.

        What `secrets` are when something is mixed must be on the disk before it leaves.
        """

        def checked(x: Tensor, *coded: Any) -> Tensor:
            self.leaving()
            mixed = mixing(x, *coded)
            heard.update(mixed.detach().numpy().tobytes())
            return mixed

        heard = sha256()
        self.me = me = self._me(t, self.own.buffers, checked)
        me.heard = lambda: heard.digest()  # after other words, other noise
        self.draw(t)
        self._pay_alone(t)
        me.secrets, me.used = None if self.secrets is None else self.secrets[1], self._used
        try:
            state = self.boxes.party(me, self.own.state)
        except Exception:  # of what was computed, something may have left
            if self._rows:
                self.own = replace(self.own, state=begun_anew(self.own.state, self._rows))
                self.secrets = None  # other rows have other noise
            raise
        same_form(f"{self.boxes.name}.party", self.anatomy.own, state)
        self.secrets = None
        return self._kept(me, state), self._told_gradients(me)

    def awake(
        self, t: int, company: Neighbours | None, *token: Tree, again: int = 0
    ) -> tuple[Own, Tree, int]:
        """A turn by a clock of the peer's own: its state after it, the token, the gradients.

        It had `again` turns in round t before. What it asks of others goes through `company`;
        nothing else may leave before the state is on the disk.
        """
        me = self._me(t, self.own.buffers, company=company, again=again)
        self.me = me
        self.draw(t)
        self._pay_alone(t)
        me.secrets, me.used = None if self.secrets is None else self.secrets[1], self._used
        name = f"{self.boxes.name}.party"
        found = self.boxes.party(me, *token, self.own.state)
        passed, state = pair(name, "token, own", found) if token else (None, found)
        same_form(name, self.anatomy.own, state)
        same_form(f"the token {name}", token[0] if token else None, passed)
        if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves((passed, state))):
            remedy = self.boxes.remedy
            raise RunFailed(f"round {t + 1}: the model is no longer finite: {remedy}.")
        self.leaving()
        self.secrets = None
        passed = tree_map(lambda leaf: leaf.detach().clone(), passed)
        return self._kept(me, state), passed, self._told_gradients(me)

    def leaving(self) -> None:
        """Something of a peer's turn leaves: refuse what the owner does not allow.

        What `secrets` are then must be on the disk first.
        """
        used, self._used[:] = int(self._used.sum()), False
        if self._rules is not None and used:
            self._rules.check_upload(self._behind(used), self.rows)
        if self.secrets is None and self.me is not None and self.me.secrets is not None:
            self.secrets = self.me.round, self.me.secrets

    def draw(self, t: int) -> None:
        """Have secrets for round t without a server, where its noise is promised.

        They must be on the disk before the round is charged.
        """
        if self.secrets is not None and self.secrets[0] != t:
            self.secrets = None
        if self.secrets is None and self.kept is not None:
            self.secrets = t, drawn_secrets(1)

    def _pay_alone(self, t: int) -> None:
        """Pay for a round without a server, whose noise is that of its secrets.

        Where several vectors are mixed, the later ones may be made of other words than before, and
        then have other noise.
        """
        if self.kept is None or self._charge is None:
            return
        if self.kept.wakes and spent(self.own.state, self.kept.rounds):
            return  # nothing of the records is read
        assert self.secrets is not None
        name = sha256(b"noise" + self.secrets[1].numpy().tobytes())
        if len(leaves(self.anatomy.mixed)) > 1:
            name.update(drawn_secrets(1).numpy().tobytes())
        self._charge(t, self.kept, name.digest())
        self.paid = t

    def _kept(self, me: LocalParty, own: Tree) -> Own:
        """What the party keeps after a round, with statistics where they are its own."""
        buffers = me.buffers[0].clone() if self._keeps_own and me.buffers is not None else None
        return Own(tree_map(lambda leaf: leaf.detach().clone(), own), buffers, True)

    def _me(
        self,
        t: int,
        buffers: Tensor | None,
        mixing: Any = None,
        company: Neighbours | None = None,
        again: int = 0,
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
            neighbours=company,
            turns=np.array([again]) if again else None,
            edges=self._edges,
            parties=self._parties,
            private=self._private,
            used=self._unused(),
            clipping=None if self.protection is None else self.protection.clipping,
        )

    def _unused(self) -> Tensor:
        return torch.zeros(len(self.data.x), dtype=torch.bool)

    @property
    def rows(self) -> int:
        """Training points."""
        return int(self.data.n[self.party])

    @property
    def n(self) -> float:
        """Training points, where the server asks for them; 0 where it need not know."""
        asks = {ask for message in self.anatomy.messages for ask in message.asks}
        return float(self.rows) if asks & {"n", "mean by examples"} else 0.0

    # -- models ------------------------------------------------------------------------------------

    def personal(self, t: int, sent: Arrays) -> Generator[Arrays, Arrays, Learnt]:
        """Make this party's model after t rounds: yields what it asks, is sent the advice."""
        me = self._me(t, self.own.buffers)
        shared = tree(self.anatomy.sent, sent, "the shared state")
        talk, number = Talk(self.boxes.personal(me, shared, self.own.state)), 0
        while not talk.ended:
            if self._rules is not None:
                self._rules.check_upload(me.records, self.rows)
            advice = yield leaves(tree_map(Tensor.detach, talk.said))
            form = self.anatomy.personal[number].reply
            talk.send(tree(form, advice, f"advice {number + 1}"))
            number += 1
        w = talk.said.detach()
        return Learnt(w, me.buffers_for(0, w))

    @property
    def has_personal(self) -> bool:
        return self.boxes.has_personal

    @property
    def asks(self) -> bool:
        """Whether a model of the party's own takes the server's advice."""
        return bool(self.anatomy.personal)

    def may_score(self, t: int, name: bytes, arrays: Arrays) -> bool:
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

    def learnt(self, arrays: Arrays) -> Learnt:
        """The shared model that came, before what else came with it."""
        form = statistics.handed_over(self.anatomy.shared)
        model = tree(form, arrays[: len(leaves(form))], "the model")
        if not isinstance(model, statistics.Joined):
            return Learnt(model, self._buffers(model))
        assert model.statistics is not None
        return Learnt(model.inner, self.model.buffers_with(model.statistics))

    def rest(self, arrays: Arrays) -> Arrays:
        """What came with the shared model: that of which a party's own is made."""
        return arrays[len(leaves(statistics.handed_over(self.anatomy.shared))) :]

    def mine(self) -> Learnt:
        """A peer's own model."""
        w, found = first(self.own.state), statistics.statistics_of(self.own.state)
        return Learnt(w, self._buffers(w) if found is None else self.model.buffers_with(found))

    @property
    def most(self) -> int:
        """Bytes of the largest letter that the study brings here."""
        anatomy = self.anatomy.in_cohort(self._cohort)
        replies = (message.reply for message in (*anatomy.messages, *anatomy.personal))
        model = nbytes(self.model.w) + nbytes(self.model.buffers)
        return model + nbytes(self.anatomy.sent) + sum(map(nbytes, replies))

    def score(self, model: Learnt, t: int, own: bool = False) -> dict[str, float]:
        """Metrics of a model on this party's test points; empty where it has none."""
        return self._test.score(partial(self._outputs, model, t, own))

    def told(self, model: Learnt, t: int, own: bool = False) -> dict[str, float]:
        """The same as it may leave: what its owner allows, and as exactly as that."""
        return self._test.told(partial(self._outputs, model, t, own), self._rules)

    def _outputs(self, model: Learnt, t: int, own: bool, x: Tensor) -> Tensor:
        w, buffers = model
        outputs = self._scorer.one.outputs(w, x, None if buffers is None else buffers.clone())
        if own and self.boxes.has_predict:
            outputs = self.boxes.predict(self._me(t, buffers), w, x, False)
        return outputs

    def _buffers(self, w: Tensor) -> Tensor | None:
        """Buffers that go with a model that came without any."""
        if not self.model.buffer_spec.size or not self._keeps_own:
            return self.model.buffers if self.model.buffer_spec.size else None
        return self.own.buffers if self.own.trained else self._me(0, None).settled(0, w)

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """The own state and the open round, as tensors by name."""
        with self._lock:  # a model may be scored, and that kept, while another is trained
            return self._state()

    def _state(self) -> dict[str, Tensor]:
        found = {"own.trained": torch.tensor([int(self.own.trained)])}
        found["last"] = torch.tensor([self._last, self._again])
        found["paid"] = torch.tensor([self.paid])
        found["scored"] = torch.tensor([self._scored[0], self._scores])
        found["scored.name"] = torch.tensor(list(self._scored[1]), dtype=torch.uint8)
        if self.answer is not None:
            said = json.dumps(self.answer).encode()
            found["scored.answer"] = torch.tensor(list(said), dtype=torch.uint8)
        found |= self.own.tensors("own")
        if self.secrets is not None:
            found["secrets.round"] = torch.tensor([self.secrets[0]])
            found["secrets"] = self.secrets[1]
        if self.turn is not None:
            found |= self.turn.tensors()
        return {name: tensor.clone().contiguous() for name, tensor in found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what another process left."""
        self.own = Own.read(self.anatomy.own, state, "own", bool(state["own.trained"]))
        if self._rows and DROPPED in state:
            self.own = replace(self.own, state=begun_anew(self.own.state, self._rows))
        self.turn = Turn.read(self.anatomy, state)
        self.secrets = None
        if "secrets" in state:
            self.secrets = int(state["secrets.round"]), state["secrets"].clone()
        self._last, self._again = state["last"].tolist()
        self.paid = int(state["paid"]) if "paid" in state else self._last  # of an older version
        scored, self._scores = state["scored"].tolist()
        self._scored = scored, state["scored.name"].numpy().tobytes()
        self.answer = None
        if "scored.answer" in state:
            scores, own = json.loads(state["scored.answer"].numpy().tobytes())
            self.answer = scores, own
