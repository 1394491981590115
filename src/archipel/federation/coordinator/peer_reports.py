# SPDX-License-Identifier: Apache-2.0
"""An engine that does nothing: peers run a study's rounds, and it hears what they tell of them.

There is no model here: every peer has its own, and no vector of theirs ever comes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from archipel.core import Vector
from archipel.engines.engine import Cause, Evaluation, Floats, Outcome, Some
from archipel.engines.network.bounds import LARGEST, check_scores
from archipel.engines.network.letters import Letter
from archipel.engines.network.presence import Presence
from archipel.engines.network.remote import over_sites
from archipel.engines.network.transport import Refused
from archipel.engines.plan import Plan
from archipel.errors import clean
from archipel.exchange.anatomy import Anatomy
from archipel.graphs import Topology
from archipel.graphs.fixed import fixed
from archipel.privacy.promise import Kept
from archipel.rng import Ints


class PeerReports:
    """What peers told of their rounds, as the loop wants it."""

    plan = Plan("one", 1, 1)
    has_own = False  # the models that are scored are the peers' own
    own_statistics = False  # those of the peers' own models are the peers' own anyway
    kept: Kept | None = None  # what peers plan, where that is known here
    topology: Topology | None = None  # the graph that the study gives
    unheard = Cause("silent")  # of a round, where nobody says why

    def __init__(self, anatomy: Anatomy, parties: int, metric: str, silence: float) -> None:
        """A peer of which nothing is heard for `silence` seconds is not waited for."""
        self.anatomy, self.presence = anatomy, Presence()
        self._parties, self._metric, self._silence = parties, metric, silence
        self.told: dict[int, dict[int, Letter]] = {}  # round -> party -> what it told
        self.last: dict[int, int] = {}  # party -> the last round it told of
        self._heard: dict[int, float] = {}  # party -> when it first told of that
        self.edges: dict[int, dict[int, float]] = {}  # party -> those it last told, learned
        self._done = 0
        self._letters: dict[int, Letter] = {}  # of the last round

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Peers go on without it."""

    def adjourn(self) -> None:
        """Wait for nobody any more."""
        self.presence.adjourn()

    def gone(self, party: int, cause: Cause) -> None:
        """A peer will not tell for a while, or ever: nobody waits for it."""
        self.presence.gone(party, cause)

    def knows(self, party: int, n: int, n_test: int) -> None:
        """How much data a peer has is the peers' business."""

    def tell(self, party: int, letter: Letter) -> None:
        """Note what a peer tells of a round; of all it may say, what is used and no more."""
        self._check(letter)
        t = letter["round"]
        if t > self._done:
            missing = {k: clean(str(why)[:80]) for k, why in letter["missing"].items()}
            kept = Letter("told", {**letter.fields, "missing": missing, "signature": b""})
            self.told.setdefault(t, {})[party] = kept
        if t > self.last.get(party, 0):  # a round that was told before is no sign of life
            self.last[party], self._heard[party] = t, time.monotonic()
        if t >= self.last.get(party, 0) and (edges := letter.fields.get("edges")) is not None:
            self.edges[party] = {int(k): weight for k, weight in edges.items()}

    def _check(self, letter: Letter) -> None:
        """Refuse counts that are none, and peers that are not in the study."""
        metrics = letter["metrics"] or {}  # None is one that is undefined there
        defined = {name: value for name, value in metrics.items() if value is not None}
        check_scores(dict.fromkeys(metrics, 0.0) | defined, letter["points"])
        counts = [letter[name] for name in ("gradients", "up", "down")]
        known = {str(k) for k in range(self._parties)}
        edges = letter.fields.get("edges") or {}
        weights = all(type(each) is float and 0 <= each <= LARGEST for each in edges.values())
        if not (known.issuperset(edges) and weights):
            raise Refused(f"round {letter['round']}: the edges that the peer tells cannot be.")
        if not known.issuperset(letter["missing"]) or any(not 0 <= n < 1 << 53 for n in counts):
            raise Refused(f"round {letter['round']}: what the peer tells of it cannot be.")

    def round(
        self,
        t: int,
        parties: Sequence[int] | Ints,
        effort: Floats | None = None,
        *,
        answers: Ints | None = None,
        needed: int = 1,
        enough: int | None = None,
        unheard: int = 0,
    ) -> Outcome:
        """Wait until the peers have told of round t; it is done, whoever took part in it."""
        asked = [int(k) for k in parties]
        self._wait_for(t + 1, asked)
        told = self._letters = self.told.pop(t + 1, {})
        self._done = t + 1
        causes: dict[int, Cause] = {}
        for letter in told.values():
            causes |= {int(k): Cause.read(why) for k, why in letter["missing"].items()}
        away = self.presence.away
        missing = {k: away.get(k) or causes.get(k, self.unheard) for k in asked if k not in told}
        arrived = np.array(sorted(set(told) & set(asked)), np.int64)
        sums = [sum(each[name] for each in told.values()) for name in ("gradients", "up", "down")]
        return Outcome(arrived, missing, *sums)

    def _wait_for(self, t: int, parties: Sequence[int]) -> None:
        """Wait until all have told of round t, but for those that others went on without."""
        until = time.monotonic() + self._silence
        while True:
            told, away = dict(self.told.get(t, {})), self.presence.away
            dropped = {name for letter in told.values() for name in letter["missing"]}
            waits = [
                k for k in parties if k not in told and k not in away and self.last.get(k, 0) < t
            ]
            if not waits:
                return
            here = [k for k in waits if str(k) not in dropped]
            heard = max((self._heard.get(k, 0.0) for k in here), default=0.0) + self._silence
            if time.monotonic() >= (max(until, heard) if here else 0.0):
                return
            self.presence.pause(0.02)

    def evaluate(
        self, w: Vector | None = None, *, own: bool = False, who: Some | None = None
    ) -> Evaluation:
        """The peers' own models, each scored by its peer on its own test points."""
        return over_sites(self._letters, "metrics", self._parties, self._metric)

    def graph(self) -> Topology | None:
        """Who talks to whom; where that is learned, as peers last told: weights, and no more.

        Of an edge the lower end decides.
        """
        if not self.edges:
            return self.topology
        table = np.zeros((self._parties, self._parties))
        for k in sorted(self.edges, reverse=True):
            for j, weight in self.edges[k].items():
                if j > k or j not in self.edges:
                    table[k, j] = table[j, k] = weight
        return fixed("learned", csr_array(table))

    def vector(self, setting: int | None = None) -> Vector:
        return torch.zeros(0)

    def buffers(self) -> None:
        return None

    def state(self) -> dict[str, Tensor]:
        return {"done": torch.tensor([self._done])}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._done = int(state["done"])
