# SPDX-License-Identifier: Apache-2.0
"""Gradients over all points of a party: layers of which nothing is learnt see them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archipel as ar
from archipel.algorithms import Coordinate, DadaBoosted
from archipel.engines import plan
from archipel.engines.local import whole
from archipel.engines.local.engine import LocalEngine
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan
from archipel.exchange.neighbours import mean_of
from archipel.graphs import Topology, topology
from archipel.models.model import Model
from archipel.models.stacked import Stacked
from archipel.runs.parts import build_model
from archipel.tree import leaves

DATA = ar.load("moons", parties=12, dtype=torch.float64)
SHORT: Any = {"kappa": 3, "alone": 2, "graph_rounds": 2, "model_rounds": 2, "confident": 14}


def frozen() -> Model:
    """A given network under a layer that is learnt."""
    torch.manual_seed(0)
    given = nn.Sequential(nn.Linear(DATA.shape[0], 9), nn.Tanh(), nn.LayerNorm(9))
    given.requires_grad_(requires_grad=False)
    return Model(nn.Sequential(given, nn.Linear(9, 1)).double(), "binary_cross_entropy")


def stumps() -> Model:
    return build_model("stumps", DATA, options={"count": 30, "low": -2.0, "high": 2.0})


def learn(algorithm: Any, model: Model, graph: Topology | None = None) -> list[Tensor]:
    one = Plan("stacked", 5, 1)
    with LocalEngine(algorithm, DATA, model, topology=graph, plan=one) as engine:
        for t in range(6):
            engine.round(t, np.arange(DATA.training))
        return leaves(engine.own_states(np.arange(DATA.training)))


@pytest.mark.parametrize("make", [frozen, stumps])
@pytest.mark.parametrize("room", [whole.ROOM, 0])
def test_they_are_those_of_each_party_by_itself(
    make: Callable[[], Model], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "ROOM", room)
    model, ids = make(), np.array([7, 0, 3])
    ring, stacked = topology("ring", 12), Plan("stacked", 5, 1)
    with LocalEngine(Coordinate(), DATA, model, topology=ring, plan=stacked) as engine:
        found = whole.whole_of(engine._job)
        assert found is not None
        assert isinstance(engine._job.way, Stacked)
    some, w = whole.Some(found, ids), torch.randn(3, model.p, dtype=torch.float64)
    me = LocalParty(DATA, model, model.one, ids, 0, 0, (3,))

    assert (found.way is engine._job.way) == (room == 0)
    torch.testing.assert_close(some.grad(w), me.grad(w))
    torch.testing.assert_close(some.loss(w)[:, None], me.loss(w))


def test_a_run_is_the_same_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, model = DadaBoosted(**SHORT), stumps()
    kept = learn(algorithm, model)
    monkeypatch.setattr(whole, "ROOM", 0)

    for one, other in zip(kept, learn(algorithm, model), strict=True):
        torch.testing.assert_close(one, other)


def test_given_layers_that_draw_are_not_stacked() -> None:
    given = nn.Sequential(nn.Dropout(0.5), nn.Linear(DATA.shape[0], 1)).double()

    assert Stacked.of(Model(given, "binary_cross_entropy")) is None
    assert "stacked" in plan.ways(frozen(), DATA)


class Slow(Coordinate):
    """What is told is a copy, so that nothing is read off the states themselves."""

    def told(self, theta: Tensor) -> Tensor:
        return theta + 0


class Near(Coordinate):
    """The mean of what neighbours told, one by one."""

    def party(self, me: Any, theta: Tensor) -> Tensor:
        around = mean_of(me.near, me.degree)
        torch.testing.assert_close(around, me.around)
        assert bool((me.near.degree[me.near.number < 0] == 0).all())
        return super().party(me, theta)


@pytest.mark.parametrize("kind", [Slow, Near])
def test_what_is_around_is_the_mean_of_what_is_near(kind: type[Coordinate]) -> None:
    graph = topology("erdos_renyi:0.3", 12)
    model = build_model("linear_score", DATA, loss="binary_cross_entropy")
    given: Any = {"mu": 0.7, "confident": 14}

    for one, other in zip(
        learn(Coordinate(**given), model, graph), learn(kind(**given), model, graph), strict=True
    ):
        torch.testing.assert_close(one, other)
