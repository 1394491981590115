# SPDX-License-Identifier: Apache-2.0
"""Who attacks, and when; what they train on; how well it went. For simulations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from archipel import rng
from archipel.adversaries.attack import Attack, Points
from archipel.core import Vector
from archipel.data.federation import Federation
from archipel.errors import ArchipelError
from archipel.models.model import Model
from archipel.rng import Ints

if TYPE_CHECKING:
    from archipel.graphs import Topology

_TESTED = 4000  # points that an attack's success is measured on, at most


@dataclass(frozen=True)
class Adversary:
    """Parties that attack the model in a simulation, together."""

    attack: Attack
    parties: int | float | Sequence[str] = 0.2  # how many, a share of them, or their names
    first: int = 1  # round in which they begin
    last: int | None = None  # round after which they no longer do

    def __post_init__(self) -> None:
        parties = self.parties
        if isinstance(parties, int | float) and not (
            0 < parties < 1 if isinstance(parties, float) else parties >= 1
        ):
            raise ArchipelError(
                f"adversary.parties = {parties}: give a share above 0 and below 1, a number of "
                "parties or their names."
            )
        if not isinstance(parties, int | float) and not parties:
            raise ArchipelError("adversary.parties = []: name somebody, or leave [adversary] out.")
        if self.first < 1 or (self.last is not None and self.last < self.first):
            raise ArchipelError(
                f"adversary.first = {self.first}, last = {self.last}: give rounds from 1, the last "
                "no earlier than the first."
            )

    def at_work(self, t: int) -> bool:
        """Whether they attack in round t, counted from 0."""
        return self.first <= t + 1 and (self.last is None or t + 1 <= self.last)

    @property
    def omniscient(self) -> bool:
        """Whether they know what the honest parties of a round send."""
        return hasattr(self.attack, "colluding")

    @property
    def informed(self) -> bool:
        """The same, also of attacks that are between peers alone."""
        return self.omniscient or bool(getattr(self.attack, "informed", False))

    def who(self, data: Federation, seed: int) -> Ints:
        """Their numbers: as named, or drawn by the seed among those that train."""
        able = data.able
        if not isinstance(self.parties, int | float):
            found = np.unique([data.index(name) for name in self.parties])
            if len(idle := np.setdiff1d(found, able)):
                raise ArchipelError(
                    f"adversary.parties: {data.name(int(idle[0]))} does not train; name others."
                )
        else:
            share = isinstance(self.parties, float)
            count = max(1, int(self.parties * len(able) + 1e-9)) if share else int(self.parties)
            drawn = rng.generator(seed, "adversaries").permutation(len(able))
            found = np.sort(able[drawn[:count]])
        if len(found) >= len(able):
            raise ArchipelError(
                f"adversary.parties = {self.parties!r}: that is all {len(able)} parties that "
                "train; leave somebody honest."
            )
        return found

    def in_words(
        self, data: Federation, seed: int, rounds: int, graph: Topology | None = None
    ) -> str:
        """Who attacks, how and when; in a graph, how many of them an honest peer hears."""
        who = self.who(data, seed)
        named = ", ".join(data.name(int(k)) for k in who[:5]) + (", ..." if len(who) > 5 else "")
        last = min(self.last or rounds, rounds)
        knows = ", knowing what the honest send" if self.informed else ""
        return (
            f"This run simulates adversaries: {len(who)} of {len(data.able)} parties ({named}) "
            f"attack the model with {self.attack!r} in rounds {self.first} to {last}{knows}."
            + ("" if graph is None or graph.period != 1 else _worst(graph, who, data))
        )

    def poisoned(self, data: Federation, who: Ints, seed: int) -> Federation:
        """What the parties train on while adversaries attack: other points of theirs, if any."""
        attack: Any = self.attack
        if not hasattr(attack, "poisoned"):
            return data
        if data.lazy:
            raise ArchipelError(
                f"adversary.attack: {type(attack).__name__} changes points, and these come when "
                "they are asked for; take an attack by what is sent, such as sign_flip."
            )
        x, y = data.x, data.y.clone()
        for k in who.tolist():
            rows = slice(int(data.offsets[k]), int(data.test_from[k]))
            found = attack.poisoned(points_of(data, rows), rng.generator(seed, "poison", k))
            y[rows] = found.y
            if not torch.equal(found.x, data.x[rows]):
                x = data.x.clone() if x is data.x else x
                x[rows] = found.x
        return replace(data, x=x, y=y, scan=False)

    def success(self, data: Federation, model: Model, w: Vector, buffers: Any) -> float | None:
        """How often test points are taken for what the attack wants; None where it wants nothing.

        They are those of all parties that train, as honest parties have them.
        """
        attack: Any = self.attack
        if not hasattr(attack, "wanted") or data.lazy or not data.classes:
            return None
        rows = np.flatnonzero(np.arange(data.points) >= data.test_from.numpy()[data.row_party])
        rows = rows[data.row_party[rows] < data.training]
        rows = rows[:: max(1, -(-len(rows) // _TESTED))]
        asked = attack.wanted(points_of(data, torch.from_numpy(rows)))
        if not len(asked.x):
            return None
        taken = torch.cat([model.predict(w, x, buffers) for x in asked.x.split(512)]).argmax(dim=-1)
        if taken.dim() > 1:
            return float((taken[:, -1] == asked.y[:, -1]).double().mean())
        return float((taken == asked.y).double().mean())


def _worst(graph: Topology, who: Ints, data: Federation) -> str:
    """The honest peer with the largest share of adversaries among its neighbours."""
    joined = graph.affinity() > 0
    around = joined.sum(axis=1)
    lying = joined[:, who].sum(axis=1)
    honest = np.setdiff1d(np.flatnonzero(around > 0), who)
    if not len(honest):
        return ""
    k = int(honest[np.argmax(lying[honest] / around[honest])])
    return f" They are {lying[k]} of the {around[k]} neighbours of {data.name(k)}, and no more."


def points_of(data: Federation, rows: Any) -> Points:
    """Some rows of a federation."""
    return Points(data.x[rows], data.y[rows], data.classes, tuple(data.columns or ()))
