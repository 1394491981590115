# SPDX-License-Identifier: Apache-2.0
"""Peers that wake by clocks of their own: what a loop computes, whoever is killed or lies."""

import asyncio

import numpy as np
import pytest
import torch

from archipel.algorithms.dada import Dada
from archipel.engines.network.in_process import Circle
from archipel.engines.network.party_state import PartyState
from archipel.graphs import topology
from network.clocked import Coordinate, Joining, Short, driven, with_kills
from network.test_peers import loop_time, problem, run  # noqa: F401

PEERS, ROUNDS = 5, 6


def order_of(rounds=ROUNDS, seed=0):
    """Every peer wakes so often, in a random order."""
    turns = np.repeat(np.arange(PEERS), rounds)
    return np.random.default_rng(seed).permutation(turns).tolist()


def gradients(data, model):
    """The gradient of each party's loss over all its points."""
    algorithm = Coordinate()
    parties = [
        PartyState(algorithm, data.select(np.array([k])), model, party=k, private=False)
        for k in range(PEERS)
    ]
    return [party._me(0, None).grad for party in parties]


def looped(algorithm, data, model, graph, order):
    """The same, one wake-up after another."""
    grad, A = gradients(data, model), torch.from_numpy(graph.affinity().toarray())
    w = [model.w.clone() for _ in range(PEERS)]
    for k in order:
        mean = sum(A[k, j] * w[j] for j in range(PEERS)) / A[k].sum()
        w[k] = (w[k] + mean) / 2 - algorithm.lr * grad[k](w[k])
    return w


@pytest.mark.parametrize("algorithm", [Coordinate(), Short()], ids=["whole", "changes"])
@pytest.mark.parametrize("name", ["ring", "complete"])
def test_wake_ups_in_some_order_are_those_of_a_loop(algorithm, name):
    data, model = problem(PEERS)
    graph, order = topology(name, PEERS), order_of()
    _, states = run(driven(algorithm, data, model, graph, order, ROUNDS))
    expected = looped(algorithm, data, model, graph, order)

    for state, w in zip(states, expected, strict=True):
        torch.testing.assert_close(state.w, w, rtol=1e-6, atol=1e-6)


def learnt(algorithm, data, model, order, whom):
    """Models and graph, one wake-up after another."""
    grad, w = gradients(data, model), [model.w.clone() for _ in range(PEERS)]
    A, turns = torch.zeros(PEERS, PEERS, dtype=torch.float64), [0] * PEERS
    for k in order:
        t, turns[k] = turns[k], turns[k] + 1
        if not algorithm.asks(t):
            mean = (sum(A[k, j] * w[j] for j in range(PEERS)) + w[k]) / (A[k].sum() + 1)
            w[k] = mean - algorithm.lr * grad[k](w[k])
            continue
        asked = whom(k, t)[: algorithm.kappa]
        degree = A.sum(dim=1)
        for j in asked:
            new = torch.exp(-(w[k] - w[j]).square().sum()) / (1 + degree[j])
            A[k, j] = A[j, k] = new * (new > 1e-3)
    return w, A


def edges_of(circle):
    """The learned graph, as each peer has it."""
    A = torch.zeros(PEERS, PEERS, dtype=torch.float64)
    for k, reports in enumerate(circle.reports):
        for j, weight in reports[-1].edges.items():
            A[k, j] = weight
    return A


def test_a_learned_graph_is_that_of_a_loop_and_the_same_at_both_ends():
    data, model = problem(PEERS)
    algorithm, order = Joining(), order_of(9)
    circle, states = run(driven(algorithm, data, model, None, order, 9))
    whom = {k: circle.peers[k].mixing._whom for k in range(PEERS)}
    w, A = learnt(algorithm, data, model, order, lambda k, t: whom[k](t))

    torch.testing.assert_close(torch.stack(states), torch.stack(w), rtol=1e-6, atol=1e-6)
    found = torch.zeros_like(A)
    for k in range(PEERS):
        for j, weight in circle.peers[k].mixing.learnt().items():
            found[k, j] = weight
    torch.testing.assert_close(found, A, rtol=1e-6, atol=1e-6)
    assert (A > 0).any()
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("algorithm", [Short(), Joining()], ids=["given", "learned"])
@pytest.mark.parametrize("seed", range(2))
def test_peers_that_are_killed_anywhere_hold_what_others_tell_and_the_same_edges(seed, algorithm):
    data, model = problem(PEERS)
    graph = None if isinstance(algorithm, Joining) else topology("ring", PEERS)
    circle = Circle(algorithm, data, model, graph, 12, pause=0.01)
    peers = {}
    begin = circle.begin

    def begun(k):
        peers[k] = begin(k)
        return peers[k]

    circle.begin = begun
    kinds = ("holds", "copy", "edge")
    kills, _ = run(with_kills(circle, kinds, np.random.default_rng(seed), 10), 100)

    assert kills == 10
    wakers = {k: peer.mixing for k, peer in peers.items()}
    for k, waker in wakers.items():
        assert waker.at[0] == 12
        for j in waker.neighbours:
            assert wakers[j].edges[k] == waker.edges[j]
            held = waker._copy(j)
            assert held.number == wakers[j].version
            own = peers[j].party_state.own.state
            torch.testing.assert_close(held.told, algorithm.told(own), rtol=1e-9, atol=1e-9)
    if graph is None:
        assert any(waker.neighbours for waker in wakers.values())


def test_eight_peers_learn_models_and_graph_and_one_that_is_killed_returns():
    """In one process what `test_graph_gate` does with real ones."""
    data, model = problem(8)
    algorithm = Dada(kappa=3, alone=2, graph_rounds=3, model_rounds=3, mu2=1.0)

    async def play():
        circle = Circle(algorithm, data, model, None, 20, silence=1.0, pause=0.02)
        peers = {k: circle.begin(k) for k in range(8)}
        while peers[2].round < 6:
            await asyncio.sleep(0.005)
        await circle.end(2)
        while min(peers[k].round for k in peers if k != 2) < 10:
            await asyncio.sleep(0.005)
        peers[2] = circle.begin(2)
        states = await circle.done()
        return circle, peers, states

    circle, peers, states = run(play(), 100)
    assert all(peer.done for peer in peers.values())
    assert all(bool(torch.isfinite(state.theta).all()) for state in states)
    found = {k: peer.mixing.edges for k, peer in peers.items()}
    for k, peer in peers.items():
        assert circle.reports[k][-1].edges is not None
        for j in peer.mixing.neighbours:
            assert found[j][k] == found[k][j]
    assert any(peer.mixing.neighbours for peer in peers.values())


def restored(algorithm, graph, rounds, victim):
    """The peers of a study in which one, the quickest, is started again from an older disk."""
    data, model = problem(3)

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds, pause=0.01)
        old = []

        def watch(k, report):
            if (k, report.round) == (victim, 6) and not old:
                old.append(circle.disks[k].copied())

        circle.watch = watch
        peers = [circle.begin(k) for k in range(3)]
        peers[victim].mixing.pace.seconds = 0.0
        while min(peer.round for peer in peers) < 7:
            await asyncio.sleep(0.002)
        await circle.end(victim)
        circle.disks[victim] = old[0]
        peers[victim] = circle.begin(victim)
        await circle.done()
        return [peer.mixing for peer in peers], peers

    return run(play(), 60)


def test_news_of_an_older_disk_are_added_to_no_copy_of_what_was_after_it():
    wakers, peers = restored(Short(), topology("ring", 3), 12, 1)
    for k in (0, 2):
        held = wakers[k]._copy(1)
        assert held.number == wakers[1].version
        torch.testing.assert_close(held.told, peers[1].party_state.own.state.w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("victim", [0, 2])
def test_both_ends_agree_about_an_edge_after_one_had_an_older_disk(victim):
    class Once(Joining):  # the graph is learned in the first half alone
        def asks(self, t):
            return self.kappa if t < 6 else 0

    wakers, _ = restored(Once(), None, 12, victim)
    for k, waker in enumerate(wakers):
        for j in set(range(3)) - {k}:
            assert wakers[j]._edge(k) == waker._edge(j)
