# SPDX-License-Identifier: Apache-2.0
"""What each party of a simulated run was worth: its rounds again, with some uploads left out.

No upload is kept anywhere: the study is run once more, and in every round the server's step is
taken for coalitions of those who sent something. A coalition is worth what its model gains on the
parties' own test points (the mean log-likelihood, or less squared error): numbers that parties
could send, whose data stays where it is. Values are added up over rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.core import Uploads
from archipel.data.federation import Federation
from archipel.engines.local.engine import Watched
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.statistics import statistics_of
from archipel.exchange.talk import Talk
from archipel.exchange.uploads import Chosen
from archipel.models.model import Model
from archipel.runs.simulation import Options, build
from archipel.tree import Tree, first, leaves, tree_map
from archipel.worth.shapley import Floats, values

_TESTED = 4000  # test points that a coalition's model is scored on, at most
_IDLE = 0.05  # of the others' length: an upload as short as that was not trained
_COPIED = 0.99  # cosine to the last change of the shared model
REPLICATION = (
    "a party that takes part twice under two names is worth more in all than once: values do not "
    "say whose data is the same."
)


@dataclass
class Ledger:
    """What was seen and measured so far, of all parties."""

    data: Federation
    model: Model
    seed: int
    permutations: int
    on: bool = False  # whether rounds are the run's, and not those that are tried before it
    shapley: Floats = field(init=False)
    variance: Floats = field(init=False)
    alone: Floats = field(init=False)
    rounds: Floats = field(init=False)  # that each took part in
    length: list[list[float]] = field(init=False)  # of its uploads over the others' median
    copied: list[list[float]] = field(init=False)  # their cosine to the model's last change
    evaluated: int = 0
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
        found, model = statistics_of(shared), self.model
        buffers = None if not model.buffer_spec.size else model.buffers
        if found is not None:
            buffers = model.buffers_with(found)
        w = first(shared)
        parts = [model.predict(w, x, buffers) for x in self._x.split(1024)]
        weights = torch.full((len(self._y),), 1 / len(self._y), dtype=model.dtype)
        loss = float(model.loss_function(torch.cat(parts), self._y, weights))
        return -loss if np.isfinite(loss) else -1e6

    def round(self, shared: Tree, uploads: Chosen, step: Any) -> None:
        """Take a round's step for coalitions; `step` gives the shared state of some places."""
        nobody, who = self.utility(shared), uploads.present.numpy()
        self._look(shared, uploads, who)

        def value(some: frozenset[int]) -> float:
            if not some:
                return nobody
            try:
                return self.utility(step(torch.tensor(sorted(some))))
            except ArchipelError:  # too few for what the server does: nothing changes
                return nobody

        draw = rng.generator(self.seed, "worth", int(self.rounds.sum()))
        found = values(value, len(who), draw, self.permutations)
        self.shapley[who] += found.shapley
        self.variance[who] += found.variance
        self.alone[who] += found.alone
        self.rounds[who] += 1
        self.evaluated += found.evaluated
        self.total += value(frozenset(range(len(who)))) - nobody

    def _look(self, shared: Tree, uploads: Chosen, who: Any) -> None:
        """What uploads look like, beside the others and the model's last change."""
        rows = [x.flatten(1).double() for x in leaves(uploads.stack()) if x.is_floating_point()]
        x, w = torch.cat(rows, dim=1), first(shared).double()
        norms = x.norm(dim=1)
        usual = float(norms.median())
        change = None if self.before is None else w - self.before
        for k, row, norm in zip(who.tolist(), x, norms.tolist(), strict=True):
            self.length[k].append(norm / max(usual, 1e-300))
            if change is not None and len(change) <= len(row):
                size = float(change.norm()) * float(row[: len(change)].norm())
                self.copied[k].append(float(row[: len(change)] @ change) / max(size, 1e-300))
        self.before = w.clone()


class Looking(Around):
    """An algorithm whose server's step is taken again for coalitions."""

    def __init__(self, inner: Boxes, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        rows = uploads.stack()
        _ = uploads.n
        talk = Talk(self.inner.server(shared, Chosen(uploads, rows)))
        if not talk.ended:
            raise ArchipelError(
                f"{self.name} has rounds of several messages, or a sum that nobody looks into: who "
                "contributed is found for rounds of one message whose uploads the server has; "
                'say wire.sum = "plain", or take FedAvg.'
            )
        if self._ledger.on:
            self._ledger.round(
                shared,
                Chosen(uploads, rows),
                lambda at: Talk(self.inner.server(shared, _some(uploads, rows, at))).said,
            )
        return talk.said


def _some(uploads: Uploads, rows: Tree, at: Tensor) -> Chosen:
    return Chosen(uploads, tree_map(lambda leaf: leaf[at], rows), at)


def measure(
    algorithm: Any, data: Federation, model: Model, options: Options, permutations: int = 50
) -> Ledger:
    """Run the rounds again, and measure what each party is worth in each."""
    if data.lazy:
        raise ArchipelError("parties' points come when they are asked for: nobody has all of them.")
    trained = data.as_trained()
    ledger = Ledger(trained, model, int(options.get("seed", 0)), permutations)
    rounds = options.get("rounds", 100)
    given: Any = {**options, "evaluate_every": rounds, "workers": 1}
    watched = Watched(lambda boxes: boxes, lambda boxes: Looking(boxes, ledger), True)
    engine, loop = build(algorithm, data, model, given, watched=watched)
    if engine.peer:
        raise ArchipelError(
            f"{type(algorithm).__name__} has no server that uploads come to: who contributed is "
            "not found among peers; take an algorithm with a server."
        )
    with engine:
        ledger.on = True
        loop.go(None, None)
    return ledger


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
        "total": ledger.total,
        "parties": sorted(rows, key=lambda row: -float(str(row["shapley"]))),
        "evaluated": ledger.evaluated,
        "exact": bool((ledger.variance == 0).all()),
        "notes": [REPLICATION],
    }
