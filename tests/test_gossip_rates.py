# SPDX-License-Identifier: Apache-2.0
"""Consensus falls at the rate of the spectral gap, and DSGD's error as the unified theory says.

Koloskova et al., ICML 2020, https://arxiv.org/abs/2003.10422.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.graphs import Topology, complete, local_steps, own, ring, topology
from problems import linear

ONE = ar.Plan("stacked", 64, 1)
DIMS = 4


def quadratics(truths: np.ndarray) -> ar.Federation:
    """f_i = 1/2 |w - b_i|² for rows b_i: a point per dimension, squared errors halved in mean."""
    x = torch.eye(DIMS, dtype=torch.float64) * np.sqrt(DIMS)
    ys = [torch.from_numpy(b * np.sqrt(DIMS)) for b in truths]
    return ar.Federation.from_arrays([x] * len(truths), ys, test=0.0)


def own_models(data: ar.Federation, graph: Topology, lr: float, rounds: int) -> torch.Tensor:
    with ar.LocalEngine(
        ar.DSGD(lr=lr, batch_size=None), data, linear(DIMS), plan=ONE, topology=graph
    ) as engine:
        for t in range(rounds):
            engine.round(t, range(data.training))
        return engine.own_models(range(data.training)).clone()


def apart(x: torch.Tensor) -> float:
    return float((x - x.mean(dim=0)).norm())


@pytest.mark.parametrize(
    "name", ["ring", "torus", "hypercube", "small_world:4", "random_regular:4"]
)
@pytest.mark.parametrize("weights", ["metropolis", "max_degree"])
def test_the_consensus_error_has_the_slope_of_the_gap(name: str, weights: str) -> None:
    graph = topology(name, 32, seed=1).weighed(weights)
    rate = 1 - graph.spectral_gap
    x = torch.randn(32, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    errors = [apart(x)]
    while errors[-1] > 1e-9 * errors[0]:
        x = graph.mix(x)
        errors.append(apart(x))
    later = np.log(errors[len(errors) // 2 :])

    slope = np.polyfit(np.arange(len(later)), later, 1)[0]

    assert slope == pytest.approx(np.log(rate), rel=0.1)


@pytest.mark.parametrize("name", ["matching", "changing_regular:2", "local_steps:3:ring"])
def test_graphs_that_change_have_it_on_average(name: str) -> None:
    squares = []
    for seed in range(20):
        graph = topology(name, 16, seed)
        x = torch.randn(16, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        start, rounds = apart(x) ** 2, 12
        for t in range(rounds):
            x = graph.mix(x, t)
        squares.append(apart(x) ** 2 / start)

    left = np.mean(squares) ** (1 / rounds)

    if name.startswith("local"):  # a fixed graph: the bound is its slowest mode
        assert left < 1 - graph.p + 0.02
    else:  # all modes fall alike
        assert left == pytest.approx(1 - graph.p, rel=0.05)


def slowest(graph: Topology) -> np.ndarray:
    """The truths of parties that disagree in the graph's slowest mode alone, `[n, DIMS]`."""
    _, vectors = np.linalg.eigh(graph.weights().numpy())
    return np.outer(vectors[:, -2] * np.sqrt(graph.n), np.ones(DIMS))


def test_the_error_on_quadratics_grows_as_the_square_of_the_rate() -> None:
    graph = ring(8)
    data = quadratics(slowest(graph))
    rates = [0.001, 0.002, 0.004]

    left = [apart(own_models(data, graph, lr, 150)) ** 2 for lr in rates]

    assert np.polyfit(np.log(rates), np.log(left), 1)[0] == pytest.approx(2, abs=0.1)


def test_the_error_on_quadratics_falls_as_the_square_of_p() -> None:
    fast, lr = ring(8).weights().numpy(), 1e-4
    lazy = [own((1 - s) * np.eye(8) + s * fast) for s in (0.1, 0.2, 0.4)]  # the same modes
    data = quadratics(slowest(ring(8)))

    left = [apart(own_models(data, graph, lr, 400)) ** 2 for graph in lazy]

    slope = np.polyfit(np.log([graph.p for graph in lazy]), np.log(left), 1)[0]
    assert slope == pytest.approx(-2, abs=0.15)


def test_the_error_on_quadratics_grows_as_the_square_of_how_unlike_parties_are() -> None:
    graph = ring(8)
    left = [apart(own_models(quadratics(z * slowest(graph)), graph, 0.01, 100)) for z in (1, 2)]

    assert left[1] == pytest.approx(2 * left[0], rel=1e-6)


@pytest.mark.parametrize("tau", [1, 2, 5])
def test_local_sgd_is_mixing_that_waits(tau: int) -> None:
    """W = I for tau - 1 rounds and then the mean: FedAvg with tau local steps."""
    random = np.random.default_rng(0)
    data, rounds = quadratics(random.standard_normal((6, DIMS))), 3
    graph = local_steps(tau, complete(6))

    peers = own_models(data, graph, 0.1, tau * rounds)

    average = ar.FedAvg(lr=0.1, local_epochs=tau, batch_size=None)
    with ar.LocalEngine(average, data, linear(DIMS), plan=ONE) as engine:
        for t in range(rounds):
            engine.round(t, range(6))
        shared = engine.vector()
    torch.testing.assert_close(peers, shared.expand(6, -1), rtol=1e-9, atol=1e-9)
