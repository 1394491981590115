# SPDX-License-Identifier: Apache-2.0
"""The graph of a peer-sampling service, in simulations and between peers."""

import pickle

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.algorithms import DSGD, Gossip
from archipel.engines.network.in_process import meet
from archipel.graphs import PeerSampling, Topology, peer_sampling, topology
from network.test_peers import close, problem, run, simulated


@pytest.mark.parametrize("name", ["peer_sampling:4", "peer_sampling:5:swapper"])
def test_edges_join_whom_one_has_in_its_view(name):
    graph = topology(name, 20, seed=3)
    for t in (0, 1, 7):
        peer = graph.views.after(t).peer
        pairs = {(min(i, j), max(i, j)) for i in range(20) for j in peer[i].tolist() if j >= 0}

        assert {tuple(edge) for edge in graph.edges(t).tolist()} == pairs
        W = graph.weights(t, absent=[3])
        torch.testing.assert_close(W, W.T)
        torch.testing.assert_close(W.sum(dim=1), torch.ones(20, dtype=torch.float64))
        assert W[3, 3] == 1
    assert graph.name == name and graph.connected and 0 < graph.p < 1


def test_a_round_is_the_same_whoever_asks_and_when():
    graph = topology("peer_sampling:4", 30, seed=1)
    late = graph.weights(9)
    early = graph.weights(2)
    other = topology("peer_sampling:4", 30, seed=1)

    assert torch.equal(other.weights(2), early) and torch.equal(other.weights(9), late)
    assert not torch.equal(early, late)
    assert not torch.equal(topology("peer_sampling:4", 30, seed=2).weights(9), late)
    assert torch.equal(pickle.loads(pickle.dumps(graph)).weights(9), late)


def test_partners_are_those_of_the_view_who_are_there():
    graph, present = peer_sampling(20, 6), np.setdiff1d(np.arange(20), [2, 5])
    number, count = graph.partners(4, present)
    peer = graph.views.after(4).peer
    for i in range(20):
        there = [j for j in peer[i].tolist() if j in present]

        assert number[i, : count[i]].tolist() == there
    assert graph.partners(4, np.arange(0))[1].sum() == 0


def test_parties_that_are_away_are_forgotten_and_come_back():
    away = np.arange(50)
    graph = peer_sampling(100, 10).without(lambda t: away if 5 <= t < 25 else away[:0])

    def dead(t):
        """Which part of the views of the others names them."""
        return float((graph.views.after(t).peer[50:] < 50).mean())

    assert 0.35 < dead(5) < 0.65 and dead(25) < 0.01 and dead(60) > 0.2
    assert torch.equal(graph.weights(5), peer_sampling(100, 10).weights(5))


def test_a_simulation_knows_who_is_away():
    data, model = problem(8)
    sampled = topology("peer_sampling:4", 8)

    def losses(graph):
        options = {"rounds": 8, "away": {"0": "2-4", "3": "3-6"}, "workers": 1, "baselines": False}
        return ar.simulate(DSGD(lr=0.1), data, model, topology=graph, **options).parties["loss"]

    def away(t):
        return np.flatnonzero([1 <= t <= 3, 0, 0, 2 <= t <= 5])

    heals, stays = (
        losses(Topology("views", 8, graph.rule, 0)) for graph in (sampled.without(away), sampled)
    )
    assert torch.equal(losses("peer_sampling:4"), heals)
    assert not torch.equal(heals, stays)


def test_gossip_draws_from_views():
    data, model = problem()
    one = ar.simulate(Gossip(lr=0.1), data, model, rounds=3, topology="peer_sampling:2")

    assert one.history[-1]["metrics"]["loss"] > 0


@pytest.mark.parametrize("asked", ["peer_sampling:2", "peer_sampling:3:swapper"])
def test_rounds_between_peers_are_those_of_the_simulation(asked):
    data, model = problem()
    algorithm = DSGD(lr=0.1, batch_size=4)
    states = run(meet(algorithm, data, model, topology(asked, 5), 4))

    close(states, simulated(algorithm, data, model, topology(asked, 5), 4))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("peer_sampling", "write peer_sampling:PLACES"),
        ("peer_sampling:many", "write peer_sampling:PLACES"),
        ("peer_sampling:4:heeler", "healer"),
        ("peer_sampling:1", "c of 2 or more"),
    ],
)
def test_what_is_no_service_is_said(spec, why):
    with pytest.raises(ar.ArchipelError, match=why):
        topology(spec, 10)


def test_weights_of_another_kind_keep_the_views():
    graph = topology("peer_sampling:4", 12).weighed("max_degree")

    assert isinstance(graph, PeerSampling) and graph.partners(1, np.arange(12))[1].min() == 4
