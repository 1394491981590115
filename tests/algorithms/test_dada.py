# SPDX-License-Identifier: Apache-2.0
"""Models and graph learned together: the paper's loop, its identities, and what it is good for."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import archipel as ar
from archipel.algorithms import Dada, DadaBoosted
from archipel.algorithms.dada_boosted import Own
from archipel.conformance import check_algorithm
from archipel.data.federation import Federation
from archipel.engines import schedule
from archipel.engines.local.engine import LocalEngine
from archipel.graphs import topology
from archipel.models.model import Model
from archipel.runs.parts import build_model
from archipel.tree import leaves

ROOT = Path(__file__).parents[2]
BOUNDS = {"low": -2.0, "high": 2.0}
SHORT: Any = {"kappa": 4, "alone": 3, "graph_rounds": 3, "model_rounds": 4, "confident": 14}
BOTH = [Dada(lr=0.5, lam=1.0, **SHORT), DadaBoosted(**SHORT)]


def plain(algorithm: Any, data: Federation, model: Model, kind: str = "Plain") -> Any:
    spec = importlib.util.spec_from_file_location("joint", ROOT / "benchmarks" / "joint.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, kind)(algorithm, data, model)


def problem(parties: int = 20, count: int = 40, **options: Any) -> tuple[Federation, Model]:
    data = ar.load("moons", parties=parties, clusters=True, dtype=torch.float64, **options)
    return data, build_model("stumps", data, options={"count": count, **BOUNDS})


def loss_of(algorithm: Any, data: Federation) -> Model:
    """Features as base models: stumps answer alike on few points, and the first is anybody's."""
    boosted = isinstance(algorithm, DadaBoosted)
    return build_model("linear_score", data, loss="adaboost" if boosted else None)


def weights(engine: LocalEngine, n: int) -> Tensor:
    state, W = engine.state(), torch.zeros(n, n, dtype=torch.float64)
    W[tuple(state["edges"].T)] = state["weights"].double()
    return W


@pytest.mark.parametrize("algorithm", [*BOTH, Dada(learned=False)], ids=lambda a: type(a).__name__)
def test_conformance(algorithm: Any) -> None:
    check_algorithm(algorithm)


@pytest.mark.parametrize("kind", ["Plain", "Autograd"])
@pytest.mark.parametrize("algorithm", BOTH, ids=lambda a: type(a).__name__)
def test_it_equals_the_papers_loop_over_parties(algorithm: Any, kind: str) -> None:
    data, _ = problem()
    model = loss_of(algorithm, data)
    loop, n = plain(algorithm, data, model, kind), data.training
    with LocalEngine(algorithm, data, model, workers=1) as engine:
        for t in range(17):
            engine.round(t, np.arange(n))
            loop.round(0, t)
        own, W = engine.own_states(np.arange(n)), weights(engine, n)

    torch.testing.assert_close(own[0], torch.as_tensor(loop.theta), rtol=1e-9, atol=1e-9)
    expected = loop.W if kind == "Autograd" else torch.zeros_like(W)
    for k, edges in enumerate([] if kind == "Autograd" else loop.edges):
        for other, weight in edges.items():
            expected[k, other] = weight
    assert int((W > 0).sum()) > n
    torch.testing.assert_close(W, expected, rtol=1e-7, atol=1e-12)
    assert torch.equal(W, W.T)


@pytest.mark.parametrize("algorithm", BOTH, ids=lambda a: type(a).__name__)
def test_the_objective_falls_in_rounds_of_the_graph(algorithm: Any) -> None:
    data, _ = problem()
    model, n = loss_of(algorithm, data), data.training
    algorithm = replace(algorithm, graph_rounds=30, least=0.0)
    values = []
    with LocalEngine(algorithm, data, model, workers=1) as engine:
        for t in range(algorithm.alone + 30):
            engine.round(t, np.arange(n))
            if algorithm.asks(t):
                own, W = engine.own_states(np.arange(n)), weights(engine, n)
                apart = torch.cdist(own[0], own[0]).square()
                d = W.sum(1)
                values.append(
                    float(
                        (d * own[1][:, 0]).sum() + algorithm.mu1 / 4 * (W * apart).sum()
                        + algorithm.mu2 * (algorithm.lam / 2 * W.square().sum()
                                           - (d + algorithm.delta).log().sum())
                    )
                )  # fmt: skip

    assert all(after <= before + 1e-9 for before, after in pairwise(values))
    assert values[0] - values[-1] > 10 * (values[-2] - values[-1])  # and settles


def test_models_on_a_given_graph_are_those_of_coordinate_descent() -> None:
    """With mu1 = 1 / mu and lr = 1 / L it is the rule of Bellet et al."""
    data, _ = problem()
    model, graph = build_model("linear_score", data), topology("ring", 20)
    ends = []
    for algorithm in (
        Dada(lr=0.5, mu1=1 / 0.7, confident=14, learned=False),
        ar.algorithms.Coordinate(mu=0.7, smoothness=2.0, confident=14),
    ):
        with LocalEngine(algorithm, data, model, topology=graph, workers=1) as engine:
            for t in range(5):
                engine.round(t, np.arange(20))
            ends.append(leaves(engine.own_states(np.arange(20)))[0])

    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-12)


def test_ensembles_stay_in_the_ball_and_grow_by_one_weight_a_step() -> None:
    data, model = problem()
    algorithm, n = DadaBoosted(beta=2.0, learned=False, confident=14), data.training
    counts = np.zeros(n)
    with LocalEngine(algorithm, data, model, topology=topology("ring", n), workers=1) as engine:
        for t in range(12):
            engine.round(t, np.arange(n))
            counts += np.bincount(schedule.woken(0, t, np.arange(n)), minlength=n)
            alpha = engine.own_states(np.arange(n)).alpha
            assert float(alpha.abs().sum(dim=-1).max()) <= 2.0 + 1e-12
            assert bool(((alpha != 0).sum(dim=-1).numpy() <= counts).all())


def test_the_duality_gap_falls() -> None:
    data, model = problem()
    algorithm, n = DadaBoosted(beta=2.0, mu1=1.0, learned=False, confident=1), data.training
    loop, gaps = plain(algorithm, data, model), []
    loop.edges = [{(k + 1) % n: 1.0, (k - 1) % n: 1.0} for k in range(n)]
    for t in range(300):
        loop.round(0, t)
        if t % 100 == 99:
            gap = 0.0
            for k in range(n):
                around = (loop.theta[(k + 1) % n] + loop.theta[(k - 1) % n]) / 2
                g = loop.slope(k) + loop.theta[k] - around
                gap += float(g @ loop.theta[k] + 2.0 * np.abs(g).max())
            gaps.append(gap)

    assert gaps[0] > 1.5 * gaps[1] and gaps[1] > 1.2 * gaps[2] > 0


def test_what_is_heard_makes_what_is_told() -> None:
    data, model = problem()
    algorithm, n = BOTH[1], data.training
    assert isinstance(algorithm, DadaBoosted)
    one = algorithm.init(model.w)
    assert one.vertex.dtype == torch.int8
    assert algorithm.init(torch.zeros(300)).vertex.dtype == torch.int16
    held = algorithm.told(Own(*(leaf.expand(n, -1).clone() for leaf in one)))
    with LocalEngine(algorithm, data, model, workers=1) as engine:
        for t in range(12):
            before = engine.own_states(np.arange(n))
            engine.round(t, np.arange(n))
            own = engine.own_states(np.arange(n))
            heard = algorithm.hear(held, algorithm.said(own))
            often = np.bincount(schedule.woken(0, t, np.arange(n)), minlength=n)
            for k in np.flatnonzero(often == 1):  # of others, several steps travelled
                if not algorithm.asks(t):
                    torch.testing.assert_close(heard.alpha[k], own.alpha[k])
                    assert int((own.alpha[k] != before.alpha[k]).sum()) >= 1
            held = algorithm.told(own)
    message = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves(algorithm.said(own)))
    assert message == 1 + 8 + 8  # in double precision


def test_a_learned_graph_finds_the_clusters_and_helps() -> None:
    data, model = problem(60, count=40, own_points=True, dims=4)
    n, cluster = data.training, np.repeat(np.arange(4), np.array([1, 2, 3, 4]) * 6)
    algorithm = DadaBoosted(confident=14, alone=30, graph_rounds=15, model_rounds=40, kappa=15)
    scores = []
    with LocalEngine(algorithm, data, model, workers=1) as engine:
        for t in range(85):
            if t == 30:
                scores.append(accuracy(engine, data, model))
            engine.round(t, np.arange(n))
        scores.append(accuracy(engine, data, model))
        W = weights(engine, n).numpy()

    same = cluster[:, None] == cluster
    assert scores[1] > scores[0] + 0.01
    assert ((W > 0) & same).sum() > 0.9 * (W > 0).sum()


def accuracy(engine: LocalEngine, data: Federation, model: Model) -> float:
    alpha, right = engine.own_states(np.arange(data.training)).alpha, []
    for k in range(data.training):
        rows = slice(int(data.test_from[k]), int(data.offsets[k + 1]))
        right.append((model.predict(alpha[k], data.x[rows])[:, 0] > 0) == (data.y[rows] > 0))
    return float(torch.cat(right).double().mean())


def test_a_study_learns_and_keeps_its_graph(tmp_path: Path) -> None:
    study = ar.Study.of(
        "dada",
        data={"name": "moons", "parties": 10},
        model={"name": "linear_score"},
        algorithm={"kappa": 3, "alone": 1, "graph_rounds": 1, "model_rounds": 1},
        study={"rounds": 3},
    )
    run = study.run(tmp_path)

    assert 0 <= run.metrics["accuracy"] <= 1
    assert run.folder is not None
