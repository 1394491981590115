# SPDX-License-Identifier: Apache-2.0
"""Wake-ups, meetings and walks: the identities of their papers, on least squares."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from archipel.algorithms import (
    Choco,
    Collaborative,
    Coordinate,
    Dada,
    DadaBoosted,
    Gossip,
    Propagation,
    Walk,
    Walkman,
)
from archipel.data.federation import Federation
from archipel.data.quadratic import quadratics
from archipel.engines.local.engine import LocalEngine
from archipel.errors import ArchipelError
from archipel.graphs import Topology, topology, weighted
from archipel.models.model import Model
from archipel.runs.listing import list_runs
from archipel.study.file import Study
from archipel.tree import leaves

N, P = 8, 2
EVERYBODY = np.arange(N)


@cache
def problem() -> tuple[Federation, Model, Tensor, Tensor]:
    """Least squares of each party: its Hessian and its right-hand side."""
    data, _ = quadratics(N, P, 10, seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model(nn.Linear(P, 1, bias=False).double(), "squared_error")
    parts = [data.party(k)[:2] for k in range(N)]
    hessian = torch.stack([x.T @ x / len(x) for x, _ in parts])
    target = torch.stack([x.T @ y.flatten() / len(x) for x, y in parts])
    return data, model, hessian, target


def learned(algorithm: Any, graph: str | Topology, rounds: int) -> tuple[Any, LocalEngine]:
    data, model, *_ = problem()
    with LocalEngine(algorithm, data, model, topology=topology(graph, N)) as engine:
        for t in range(rounds):
            engine.round(t, EVERYBODY)
        return engine.own_states(EVERYBODY), engine


def smoothed(graph: str, pull: float, own: Tensor) -> Tensor:
    """argmin of pull/2 sum_{i<j} W_ij |t_i - t_j|^2 + sum_i own_i L_i(t_i): a linear system."""
    _, _, hessian, target = problem()
    W = torch.from_numpy(topology(graph, N).affinity().toarray())
    laplacian = pull * (torch.diag(W.sum(1)) - W)
    whole = torch.kron(laplacian, torch.eye(P, dtype=torch.float64))
    whole = whole + torch.block_diag(*(own[:, None, None] * hessian))
    found: Tensor = torch.linalg.solve(whole, (own[:, None] * target).flatten()).view(N, P)
    return found


def degrees(graph: str) -> Tensor:
    return torch.from_numpy(topology(graph, N).affinity().toarray()).sum(1)


def confidence() -> Tensor:
    return (problem()[0].n.double() / 20).clamp(max=1)


def test_coordinate_descent_ends_where_its_objective_says() -> None:
    smooth = float(torch.linalg.eigvalsh(problem()[2]).max())
    own, _ = learned(Coordinate(mu=0.7, smoothness=smooth, confident=20), "ring", 150)

    expected = smoothed("ring", 1.0, 0.7 * degrees("ring") * confidence())
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-8)


def test_coordinate_descent_never_goes_up() -> None:
    data, model, hessian, target = problem()
    smooth = float(torch.linalg.eigvalsh(hessian).max())
    W = torch.from_numpy(topology("torus:2x4", N).affinity().toarray())
    weight = 0.7 * W.sum(1) * confidence()

    def objective(theta: Tensor) -> float:
        apart = (theta[:, None] - theta[None]).square().sum(-1)
        loss = ((hessian @ theta[..., None]).squeeze(-1) / 2 - target).mul(theta).sum(-1)
        return float((W * apart).sum() / 4 + (weight * loss).sum())

    algorithm = Coordinate(mu=0.7, smoothness=smooth, confident=20)
    with LocalEngine(algorithm, data, model, topology=topology("torus:2x4", N)) as engine:
        seen = [objective(engine.own_states(EVERYBODY))]
        for t in range(40):
            engine.round(t, EVERYBODY)
            seen.append(objective(engine.own_states(EVERYBODY)))
    assert all(after <= before + 1e-12 for before, after in pairwise(seen))


def test_models_propagate_to_the_closed_form() -> None:
    algorithm = Propagation(lr=0.5, alpha=0.9, alone=5, confident=20, batch_size=None)
    own, _ = learned(algorithm, "ring", 400)
    W = torch.from_numpy(topology("ring", N).affinity().toarray())
    share, C = W / W.sum(1, keepdim=True), torch.diag(confidence())
    unit = torch.eye(N, dtype=torch.float64)

    expected = 0.1 * torch.linalg.solve(unit - 0.1 * (unit - C) - 0.9 * share, C @ own.solitary)
    torch.testing.assert_close(own.theta, expected, rtol=0, atol=1e-10)


def test_who_was_away_while_others_learned_alone_does_not_hold_them_to_the_first_model() -> None:
    data, model, *_ = problem()
    algorithm, late = Propagation(lr=0.5, alone=5, confident=10, batch_size=None), 3
    with LocalEngine(algorithm, data, model, topology=topology("complete", N)) as engine:
        for t in range(60):
            engine.round(t, np.delete(EVERYBODY, late) if t < 5 else EVERYBODY)
        own = engine.own_states(EVERYBODY)

    others = own.theta[np.delete(EVERYBODY, late)]
    assert torch.equal(own.solitary[late], model.w.double())
    assert (own.theta[late] - others.mean(0)).norm() < 0.1 * (model.w - others.mean(0)).norm()


def test_admm_finds_the_central_solution() -> None:
    """Losses are sums over points, of which parties have 10 to 20."""
    own, _ = learned(Collaborative(lr=0.3, mu=0.07, local_steps=20), "torus:2x4", 40)

    expected = smoothed("torus:2x4", 2.0, 0.07 * degrees("torus:2x4") * problem()[0].n)
    torch.testing.assert_close(own.theta, expected, rtol=0, atol=1e-3)


def test_steps_are_as_short_as_a_strong_pull_needs() -> None:
    """Edges that weigh little beside rho, and a large beta: steps of lr alone would diverge."""
    _, model, hessian, target = problem()
    W = 0.01 * topology("torus:2x4", N).affinity().toarray()
    own, _ = learned(Collaborative(lr=0.3, mu=0.07), weighted(W), 10)
    best = smoothed("torus:2x4", 2.0, 0.07 * degrees("torus:2x4") * problem()[0].n)
    assert float((own.theta - best).norm()) < float((model.w - best).norm())

    _, engine = learned(Walkman(lr=0.3, beta=20.0), "complete", 10)
    (token,) = engine.state()["token.0"]
    optimum = torch.linalg.solve(hessian.mean(0), target.mean(0))
    assert float((token - optimum).norm()) < float((model.w - optimum).norm())


@pytest.mark.parametrize("exchange", ["push-pull", "push", "pull"])
def test_gossip_reaches_agreement(exchange: Any) -> None:
    data, model, *_ = problem()
    start = torch.randn(N, P, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    algorithm = Gossip(lr=0.0, batch_size=None, exchange=exchange)
    with LocalEngine(algorithm, data, model, topology=topology("complete", N)) as engine:
        engine.restore({**engine.state(), "visited": torch.arange(N), "own.0": start})
        for t in range(60):
            engine.round(t, EVERYBODY)
        end = engine.own_states(EVERYBODY)

    assert float(end.std(dim=0).max()) < 1e-6
    if exchange == "push-pull":
        torch.testing.assert_close(end.mean(dim=0), start.mean(dim=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["proximal", "gradient"])
def test_walkmans_token_is_the_mean_and_finds_the_optimum(form: Any) -> None:
    _, _, hessian, target = problem()
    smooth = float(torch.linalg.eigvalsh(hessian).max())
    beta = 1.0 if form == "proximal" else 2 * smooth
    algorithm = Walkman(lr=0.3, beta=beta, form=form, local_steps=20)
    own, engine = learned(algorithm, "complete", 60 if form == "proximal" else 120)
    (token,) = engine.state()["token.0"]

    torch.testing.assert_close(token, (own.y - own.z / beta).mean(0), rtol=0, atol=1e-10)
    optimum = torch.linalg.solve(hessian.mean(0), target.mean(0))
    torch.testing.assert_close(token, optimum, rtol=0, atol=1e-4)


def test_walkman_falls_linearly_and_slower_on_a_ring() -> None:
    data, model, hessian, target = problem()
    optimum = torch.linalg.solve(hessian.mean(0), target.mean(0))
    algorithm = Walkman(beta=2 * float(torch.linalg.eigvalsh(hessian).max()), form="gradient")
    falls = {}
    for graph in ("complete", "ring"):
        with LocalEngine(algorithm, data, model, topology=topology(graph, N)) as engine:
            left = []
            for t in range(61):
                if t % 20 == 0:
                    left.append(float((engine.state()["token.0"][0] - optimum).norm()))
                engine.round(t, EVERYBODY)
        falls[graph] = [np.log(before / after) for before, after in pairwise(left)]

    assert min(falls["complete"]) > 0.7 * max(falls["complete"])
    assert 0 < min(falls["ring"]) < max(falls["ring"]) < min(falls["complete"])


def test_walkmans_gradient_form_needs_a_beta_above_the_smoothness() -> None:
    smooth = float(torch.linalg.eigvalsh(problem()[2]).max())
    _, engine = learned(Walkman(beta=smooth, form="gradient"), "complete", 20)
    assert float(engine.state()["token.0"].abs().max()) > 1e2


def test_walkman_finds_the_lasso() -> None:
    _, _, hessian, target = problem()
    _, engine = learned(Walkman(lr=0.3, l1=0.4, local_steps=20), "complete", 60)
    H, g, x = hessian.mean(0), target.mean(0), torch.zeros(P, dtype=torch.float64)
    for _ in range(5000):  # proximal gradient
        step = x - 0.1 * (H @ x - g)
        x = step.sign() * (step.abs() - 0.1 * 0.4).clamp(min=0)

    (token,) = engine.state()["token.0"]
    found = token.sign() * (token.abs() - 0.4).clamp(min=0)
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)


def test_every_party_holds_the_token_as_often_whatever_its_degree() -> None:
    data, model, *_ = problem()
    with LocalEngine(Walk(lr=0.0), data, model, topology=topology("star", N)) as engine:
        seen = []
        for t in range(200):
            engine.round(t, EVERYBODY)
            seen.append(int(engine.state()["holders"]))
    counts = np.bincount(seen, minlength=N)

    assert abs(counts[0] - 200 / N) < 30  # a plain walk would be there half of the time


@pytest.mark.parametrize(
    "algorithm",
    [Coordinate(), Gossip(batch_size=3), Propagation(alone=2), Collaborative(), Walk(tokens=3)],
    ids=lambda one: type(one).__name__,
)
def test_a_run_goes_on_from_its_checkpoint(algorithm: Any) -> None:
    data, model, *_ = problem()
    graph = topology("ring", N)
    whole, _ = learned(algorithm, graph, 6)
    with LocalEngine(algorithm, data, model, topology=graph) as engine:
        for t in range(3):
            engine.round(t, EVERYBODY)
        state = {name: tensor.clone() for name, tensor in engine.state().items()}
    with LocalEngine(algorithm, data, model, topology=graph) as engine:
        engine.restore(state)
        for t in range(3, 6):
            engine.round(t, EVERYBODY)
        again = engine.own_states(EVERYBODY)

    assert all(torch.equal(a, b) for a, b in zip(leaves(whole), leaves(again), strict=True))


def test_who_is_away_neither_wakes_nor_is_met_but_is_remembered() -> None:
    data, model, *_ = problem()
    for algorithm in (Coordinate(), Gossip(batch_size=None), Walk(batch_size=None)):
        with LocalEngine(algorithm, data, model, topology=topology("ring", N)) as engine:
            before = leaves(engine.own_states([2]))[0].clone()
            for t in range(5):
                engine.round(t, np.delete(EVERYBODY, 2))
            assert torch.equal(leaves(engine.own_states([2]))[0], before)


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    data, model, *_ = problem()
    with pytest.raises(ArchipelError, match="name a topology"):
        LocalEngine(Gossip(), data, model)
    with pytest.raises(ArchipelError, match="start a run per value"):
        LocalEngine(Gossip(), data, model, topology=topology("ring", N), sweep={"lr": [0.1, 0.2]})


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Walk(tokens=0), "tokens = 0: give a whole number from 1"),
        (Walk(tokens=9), "tokens = 9: give one for each of 8 parties at most"),
        (Walkman(beta=0.0), "beta = 0.0: give a finite number above 0"),
        (Choco(consensus_lr=-1.0), "consensus_lr = -1.0: give a finite number above 0"),
        (Collaborative(rho=0.0), "rho = 0.0: give a finite number above 0"),
        (Coordinate(confident=0), "confident = 0: give a whole number from 1"),
        (Propagation(alpha=1.5), "alpha = 1.5: give a share from 0 to 1"),
        (Dada(kappa=0), "kappa = 0: give a whole number from 1"),
        (Dada(graph_rounds=0, model_rounds=0), "graph_rounds = 0: give a whole number from 1"),
        (DadaBoosted(beta=-3.0), "beta = -3.0: give a finite number above 0"),
    ],
)
def test_fields_that_cannot_work_are_refused(algorithm: Any, words: str) -> None:
    data, model, *_ = problem()
    graph = None if isinstance(algorithm, Dada | DadaBoosted) else topology("ring", N)

    with pytest.raises(ArchipelError, match=words):
        LocalEngine(algorithm, data, model, topology=graph)


def test_a_learned_graph_is_recorded_and_goes_on(tmp_path: Path) -> None:
    text = """
[study]
rounds = 4
[data]
name = "moons"
parties = 10
[topology]
learned = true
[algorithm]
name = "dada"
alone = 1
graph_rounds = 1
model_rounds = 1
kappa = 3
"""
    (tmp_path / "study.toml").write_text(text)
    study = Study.read(tmp_path / "study.toml")
    whole = study.run(out=tmp_path / "whole")
    entry = whole.history[-1]["graph"]

    (listed,) = list_runs(tmp_path / "whole")
    assert listed.summary["value"] == whole.scorecard.efficacy.own != whole.metrics["accuracy"]
    assert entry["edges"] > 0
    assert torch.isfinite(whole.vector).all()


def test_a_graph_that_is_learned_is_said_to_be() -> None:
    with pytest.raises(ArchipelError, match=r"say topology\.learned = true to begin with this one"):
        Study.of("dada", data={"name": "moons"}, topology={"name": "ring"})
    Study.of("dada", data={"name": "moons"}, topology={"learned": True})
