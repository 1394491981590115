# SPDX-License-Identifier: Apache-2.0
"""Gradient tracking: no bias on parties that differ, and minibatch SGD where all average."""

import asyncio

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.network.in_process import meet
from archipel.graphs import topology
from problems import classification, learn, linear, network

ONE, STACK = ar.Plan("one", 1, 1), ar.Plan("stacked", 8, 1)


def quadratics(parties=6, d=3, n=12):
    """Least squares, of matrices that differ much from party to party; and the solution."""
    random = np.random.default_rng(0)
    xs = [random.standard_normal((n, d)) * (1 + k % 3 / 4) for k in range(parties)]
    ys = [x @ random.standard_normal(d) * 3 + random.standard_normal(n) for x in xs]
    a, b = np.concatenate(xs), np.concatenate(ys)  # all of one size: f is the mean of all
    solution = torch.from_numpy(np.linalg.lstsq(a, b, rcond=None)[0])
    xs, ys = ([torch.from_numpy(x) for x in each] for each in (xs, ys))
    data = ar.Federation.from_arrays(xs, ys, test=0.0)
    return data, linear(d), solution


@pytest.mark.parametrize("graph", ["ring", "one_peer_exponential"])
def test_it_removes_the_bias_that_decentralised_sgd_has_with_a_constant_rate(graph):
    parties = 6 if graph == "ring" else 8
    data, model, solution = quadratics(parties)
    found = {}
    for algorithm in (ar.GradientTracking, ar.DSGD):
        with ar.LocalEngine(
            algorithm(lr=0.2, batch_size=None), data, model, plan=STACK,
            topology=topology(graph, parties),
        ) as engine:  # fmt: skip
            for t in range(250):
                engine.round(t, range(parties))
            found[algorithm] = engine.own_models().clone()

    assert (found[ar.GradientTracking] - solution).abs().max() < 1e-8
    assert (found[ar.DSGD] - solution).abs().max() > 1e-2


def test_the_tracked_gradients_sum_up_to_the_gradients_whoever_is_away():
    data, model, _ = quadratics()
    with ar.LocalEngine(
        ar.GradientTracking(lr=0.1, batch_size=2), data, model, plan=STACK,
        topology=topology("ring", 6),
    ) as engine:  # fmt: skip
        for t in range(12):
            engine.round(t, [k for k in range(6) if (t + k) % 4])
            own = engine.own_states(range(6))
            torch.testing.assert_close(own.y.sum(dim=0), own.g.sum(dim=0), rtol=0, atol=1e-10)


def test_where_all_average_it_is_minibatch_sgd():
    data, model = classification(5, 4, 3, 0), network(4, 3)
    graph = topology("complete", 5)
    tracked = learn(ar.GradientTracking(lr=0.1, batch_size=3), data, model, 6, topology=graph)
    parallel = learn(ar.DSGD(lr=0.1, batch_size=3), data, model, 6, topology=graph)
    torch.testing.assert_close(tracked, parallel, rtol=1e-10, atol=1e-10)


def test_rounds_between_peers_are_those_of_a_simulation():
    data, model, _ = quadratics()
    graph, algorithm = topology("ring", 6), ar.GradientTracking(lr=0.02, batch_size=None)
    with ar.LocalEngine(algorithm, data, model, plan=ONE, topology=graph) as engine:
        sent = [engine.round(t, range(6)).up for t in range(5)]
        simulated = engine.own_states(range(6))
    states = asyncio.run(meet(algorithm, data, model, graph, 5))
    for k, state in enumerate(states):
        for mine, theirs in zip(state, simulated, strict=True):
            torch.testing.assert_close(mine, theirs[k], rtol=1e-12, atol=1e-12)
    assert sent == [12 * 2 * 8 * model.p] * 5  # two vectors an edge and way
