# SPDX-License-Identifier: Apache-2.0
"""What each party of a simulated run was worth: its rounds again, with some uploads left out.

No upload is kept anywhere: the study is run once more, and after every round the server's step is
taken for coalitions of those who sent something. A coalition is worth what its model gains on the
parties' own test points (the mean log-likelihood, or less squared error): numbers that parties
could send, whose data stays where it is. Values are added up over rounds.

Where a round has several messages, a coalition's are those that its members sent in it: answers to
what the server told everybody, as models of later rounds are answers to everybody's model. Where
parties use models of their own, those are scored that they make of a coalition's shared state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.aggregation.summation import groups_of
from archipel.core import Uploads
from archipel.data.federation import Federation
from archipel.engines.local.engine import LocalEngine, Watched
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Around, Boxes, is_peer
from archipel.exchange.statistics import statistics_of
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Chosen
from archipel.models.model import Model
from archipel.rng import Ints
from archipel.runs.run import Run
from archipel.runs.simulation import Options, build
from archipel.tree import Tree, first, leaves, tree_map
from archipel.wire.wire import Wire
from archipel.worth.shapley import Floats, values

_TESTED = 4000  # test points that a coalition's model is scored on, at most
_IDLE = 0.05  # of the others' length: an upload as short as that was not trained
_COPIED = 0.99  # cosine to the last change of the shared model
REPLICATION = (
    "a party that takes part twice under two names is worth more in all than once: values do not "
    "say whose data is the same."
)


class Said(NamedTuple):
    """A message of a round, as the server got it."""

    uploads: Uploads
    rows: Tree

    def of(self, parties: Ints) -> Chosen:
        """The same of these parties alone."""
        at = torch.from_numpy(np.flatnonzero(np.isin(self.uploads.present.numpy(), parties)))
        return Chosen(self.uploads, tree_map(lambda leaf: leaf[at].detach(), self.rows), at)


class Seen(NamedTuple):
    """A round that is over: the shared state before it, and what was said in it."""

    server: Callable[[Tree, Uploads], Any]
    shared: Tree
    said: tuple[Said, ...]

    @property
    def who(self) -> Ints:
        """Whose uploads came, to the last message."""
        found: Ints = self.said[-1].uploads.present.numpy()
        return found

    def after(self, parties: Ints) -> Tree:
        """The shared state that the server makes of these parties' messages."""
        talk = Talk(self.server(self.shared, self.said[0].of(parties)))
        for message in self.said[1:]:
            talk.send(message.of(parties))
        return talk.said


@dataclass
class Ledger:
    """What was seen and measured so far, of all parties."""

    data: Federation
    model: Model
    seed: int
    permutations: int
    notes: list[str] = field(default_factory=list)
    engine: LocalEngine | None = None  # where parties make models of their own that are scored
    seen: Seen | None = None  # the last round, until it is measured
    shapley: Floats = field(init=False)
    variance: Floats = field(init=False)
    alone: Floats = field(init=False)
    rounds: Floats = field(init=False)  # that each took part in
    length: list[list[float]] = field(init=False)  # of its uploads over the others' median
    copied: list[list[float]] = field(init=False)  # their cosine to the model's last change
    done: int = 0  # rounds that were measured
    evaluated: int = 0
    seconds: float = 0.0
    total: float = 0.0  # v(all) - v(nobody), over rounds
    before: Tensor | None = None  # the model of the round before

    def __post_init__(self) -> None:
        count = self.data.parties
        self.shapley, self.variance, self.alone, self.rounds = np.zeros((4, count))
        self.length, self.copied = [[] for _ in range(count)], [[] for _ in range(count)]
        rows = np.flatnonzero(
            np.arange(self.data.points) >= self.data.test_from.numpy()[self.data.row_party]
        )
        rows = rows[self.data.row_party[rows] < self.data.training]
        at = torch.from_numpy(rows[:: max(1, -(-len(rows) // _TESTED))])
        self._x, self._y = self.data.x[at], self.data.y[at]

    def utility(self, shared: Tree) -> float:
        """Less the mean loss on test points; a model that is not finite is worth nothing."""
        loss = self._shared_loss(shared) if self.engine is None else self._own_loss(shared)
        return -loss if np.isfinite(loss) else -1e6

    def _shared_loss(self, shared: Tree) -> float:
        found, model = statistics_of(shared), self.model
        buffers = None if not model.buffer_spec.size else model.buffers
        if found is not None:
            buffers = model.buffers_with(found)
        w = first(shared)
        parts = [model.predict(w, x, buffers) for x in self._x.split(1024)]
        weights = torch.full((len(self._y),), 1 / len(self._y), dtype=model.dtype)
        return float(model.loss_function(torch.cat(parts), self._y, weights))

    def _own_loss(self, shared: Tree) -> float:
        """Of the models that parties make of a shared state, each on its own test points."""
        engine = self.engine
        assert engine is not None
        now, engine.shared = engine.shared, shared
        try:
            losses = engine.evaluate(own=True).parties["loss"].double()
        finally:
            engine.shared = now
        points = self.data.tested.double()
        points[self.data.training :] = 0
        there = points > 0
        return float((losses[there] * points[there]).sum() / points.sum())

    def measure(self) -> None:
        """Measure the last round, if there is one that is not measured."""
        seen, self.seen = self.seen, None
        if seen is None:
            return
        began, who = time.perf_counter(), seen.who
        if self.engine is not None and not self.done:
            self._choose(seen)
        nobody = self.utility(seen.shared)
        self._look(seen)

        def value(some: frozenset[int]) -> float:
            if not some:
                return nobody
            try:
                return self.utility(seen.after(who[sorted(some)]))
            except ArchipelError:  # too few for what the server does: nothing changes
                return nobody

        draw = rng.generator(self.seed, "worth", int(self.rounds.sum()))
        found = values(value, len(who), draw, self.permutations)
        self.shapley[who] += found.shapley
        self.variance[who] += found.variance
        self.alone[who] += found.alone
        self.rounds[who] += 1
        self.done += 1
        self.evaluated += found.evaluated
        self.total += found.total
        self.seconds += time.perf_counter() - began

    def _choose(self, seen: Seen) -> None:
        """Score the shared model where parties' own do not depend on it before the next round."""
        if self.utility(seen.shared) == self.utility(seen.after(seen.who)):
            self.engine = None
            self.notes.append(
                "parties' own models do not depend on the shared one before the next round, so the "
                "shared one was scored."
            )

    def _look(self, seen: Seen) -> None:
        """What uploads look like, beside the others and the model's last change."""
        w, who = first(seen.shared).double(), seen.who
        change = None if self.before is None else w - self.before
        for number, message in enumerate(seen.said):
            parts = [x for x in leaves(message.of(who).stack()) if x.is_floating_point()]
            if not parts:
                continue
            x = torch.cat([part.flatten(1).double() for part in parts], dim=1)
            norms = x.norm(dim=1)
            usual = float(norms.median())
            for k, row, norm in zip(who.tolist(), x, norms.tolist(), strict=True):
                share = norm / max(usual, 1e-300)
                if number:  # of several messages, the one that is shortest beside the others'
                    share = min(share, self.length[k].pop())
                self.length[k].append(share)
                if change is not None and len(change) <= len(row):
                    size = float(change.norm()) * float(row[: len(change)].norm())
                    self.copied[k].append(float(row[: len(change)] @ change) / max(size, 1e-300))
        self.before = w.clone()


class Looking(Around):
    """An algorithm whose rounds are kept until they are measured."""

    def __init__(self, inner: Boxes, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        said = [_said(uploads)]
        talk = Talk(self.inner.server(shared, Chosen(uploads, said[0].rows)))
        while not talk.ended:
            uploads = yield talk.said
            said.append(_said(uploads))
            talk.send(Chosen(uploads, said[-1].rows))
        self._ledger.seen = Seen(self.inner.server, shared, tuple(said))
        return talk.said


def _said(uploads: Uploads) -> Said:
    _ = uploads.n
    return Said(uploads, uploads.stack())


class _Measuring:
    """Looks on, and measures every round when it is over; so many of them."""

    def __init__(self, ledger: Ledger, rounds: int) -> None:
        self._ledger, self._rounds = ledger, rounds

    def __call__(self, run: Run) -> bool:
        self._ledger.measure()
        return run.done >= self._rounds

    def say(self, text: str) -> None:
        pass


def measure(
    algorithm: Any,
    data: Federation,
    model: Model,
    options: Options,
    permutations: int = 50,
    rounds: int | None = None,
) -> Ledger:
    """Run the rounds again, or so many of them, and measure what each party is worth in each."""
    if data.lazy:
        raise ArchipelError("parties' points come when they are asked for: nobody has all of them.")
    if is_peer(algorithm):
        raise ArchipelError(
            f"{type(algorithm).__name__} has no server that uploads come to: who contributed is "
            "not found among peers; take an algorithm with a server."
        )
    ledger = Ledger(data.as_trained(), model, int(options.get("seed", 0)), permutations)
    planned = options.get("rounds", 100)
    given: Any = {**options, "evaluate_every": planned, "workers": 1}
    given["wire"] = _in_sight(options, ledger)
    watched = Watched(lambda boxes: boxes, lambda boxes: Looking(boxes, ledger), True)
    engine, loop = build(algorithm, data, model, given, watched=watched)
    with engine:
        ledger.engine, ledger.seen = engine if engine.has_own else None, None  # of rounds tried
        loop.go(_Measuring(ledger, planned if rounds is None else rounds), None)
    return ledger


def _in_sight(options: Options, ledger: Ledger) -> Wire | None:
    """The wire without a sum that nobody looks into: a simulation has what it is made of."""
    wire = options.get("wire")
    if wire is None or wire.sum is None:
        return wire
    name = type(wire.sum).__name__
    promise = options.get("privacy")
    if promise is not None and promise.trust == "sum":
        raise ArchipelError(
            'privacy.trust = "sum": what protects is the noise of all parties together, which is '
            "in no coalition's sum, so who contributed cannot be measured; measure a study without "
            "[privacy]."
        )
    if (groups := groups_of(wire.sum)) > 1:
        raise ArchipelError(
            f"wire.sum, groups = {groups}: round.rule looks at groups' means, which are not those "
            'of a coalition; measure the study with wire.sum = "plain", and the rule on uploads.'
        )
    ledger.notes.append(
        f"{name} was left out of the rounds that were repeated: between sites it shows nobody an "
        "upload, and who contributed cannot be found there."
    )
    return replace(wire, sum=None)


def suspicion(ledger: Ledger, k: int) -> str:
    """Why a party looks like a free rider; empty where it does not."""
    length, copied = ledger.length[k], ledger.copied[k]
    if not length:
        return ""
    if float(np.median(length)) < _IDLE:
        return "sends next to nothing"
    if copied and float(np.median(copied)) > _COPIED:
        return "sends back how the model changed"
    return ""


def told(ledger: Ledger) -> dict[str, Any]:
    """What was found, in plain values."""
    data, took = ledger.data, ledger.rounds > 0
    rows = [
        {
            "party": data.name(k),
            "examples": int(data.n[k]),
            "rounds": int(ledger.rounds[k]),
            "shapley": float(ledger.shapley[k]),
            "error": float(np.sqrt(ledger.variance[k])),
            "leave_one_out": float(ledger.alone[k]),
            "suspicion": suspicion(ledger, k),
        }
        for k in np.flatnonzero(took).tolist()
    ]
    return {
        "of": "mean log-likelihood" if data.classes else "less mean loss",
        "models": "the shared model" if ledger.engine is None else "the parties' own models",
        "rounds": ledger.done,
        "total": ledger.total,
        "parties": sorted(rows, key=lambda row: -float(str(row["shapley"]))),
        "evaluated": ledger.evaluated,
        "seconds": ledger.seconds,
        "exact": bool((ledger.variance == 0).all()),
        "notes": [REPLICATION, *ledger.notes],
    }
