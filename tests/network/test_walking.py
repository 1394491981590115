# SPDX-License-Identifier: Apache-2.0
"""Tokens that walk between peers: the walk of a simulation; a token that is lost is found again."""

import asyncio

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.algorithms import Walk, Walkman
from archipel.engines.network.in_process import Circle, meet
from archipel.engines.network.walking import Walking
from archipel.graphs import topology
from network.clocked import with_kills
from network.test_peers import ONE, loop_time, problem, run  # noqa: F401

PEERS, ROUNDS = 5, 4


def simulated(algorithm, data, model, graph, rounds):
    with ar.LocalEngine(algorithm, data, model, plan=ONE, topology=graph) as engine:
        for t in range(rounds):
            engine.round(t, range(PEERS))
        return engine.own_models(range(PEERS)).clone()


WALKS = {
    "walk": Walk(lr=0.2, batch_size=4),
    "two tokens": Walk(lr=0.2, batch_size=None, tokens=2),
    "walkman": Walkman(form="gradient", beta=4.0),
}


@pytest.mark.parametrize("name", ["walk", "walkman"])
@pytest.mark.parametrize("graph", ["ring", "star"])
def test_a_walk_between_peers_is_that_of_a_simulation(name, graph):
    data, model = problem(PEERS)
    algorithm, graph = WALKS[name], topology(graph, PEERS)
    states = run(meet(algorithm, data, model, graph, ROUNDS), 60)

    models = torch.stack([state if name == "walk" else state.x for state in states])
    expected = simulated(algorithm, data, model, graph, ROUNDS)
    torch.testing.assert_close(models, expected, rtol=1e-6, atol=1e-6)


@pytest.fixture
def ends(monkeypatch):
    """The tokens as they are when their walks are over."""
    found, finish = {}, Walking._finish

    def finished(walking, token, one):
        found[token] = one
        finish(walking, token, one)

    monkeypatch.setattr(Walking, "_finish", finished)
    return found


def check_mean(token, states, beta):
    """Walkman's token is the mean over peers, as they have it."""
    mean = torch.stack([state.y - state.z / beta for state in states]).mean(dim=0)
    torch.testing.assert_close(token.tree.u, mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_peers_that_are_killed_anywhere_walk_on_as_if_nothing_was(seed, ends):
    data, model = problem(PEERS)
    algorithm, graph = WALKS["walkman"], topology("complete", PEERS)
    circle = Circle(algorithm, data, model, graph, 6)
    kills, states = run(with_kills(circle, ("seen",), np.random.default_rng(seed), 8, 0.2), 60)

    expected = simulated(algorithm, data, model, graph, 6)
    models = torch.stack([state.x for state in states])
    torch.testing.assert_close(models, expected, rtol=1e-6, atol=1e-6)
    assert kills >= 4
    check_mean(ends[0], states, algorithm.beta)


@pytest.mark.parametrize("moment", ["came", "worked"])
def test_a_token_that_is_lost_is_found_again_and_the_mean_stays_exact(moment, ends):
    """The holder is killed and comes back when the others have gone on with another token."""
    data, model = problem(PEERS)
    algorithm, graph, rounds = WALKS["walkman"], topology("complete", PEERS), 16

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds, silence=1.0)
        for k in range(PEERS):
            circle.begin(k)
        lost = None
        while lost is None:
            for k, peer in circle.up.items():
                for one in peer.mixing.held.values():
                    worked = one.turns > 0 and peer.party_state.own is not one.before
                    if one.at[1] >= 5 and worked == (moment == "worked"):
                        lost = k
            await asyncio.sleep(0)
        held = circle.disks[lost].copied()
        ended = circle.kill(lost)
        circle.disks[lost] = held
        while max(p.mixing.newest[0][1] for p in circle.up.values()) < 30:
            await asyncio.sleep(0.01)
        epoch = max(p.mixing.newest[0][0] for p in circle.up.values())
        back = circle.begin(lost)
        was_held = dict(back.mixing.held)
        states = await circle.done()
        await asyncio.gather(ended, return_exceptions=True)
        return epoch, was_held, back, states

    epoch, held, back, states = run(play(), 60)
    assert epoch > 0
    assert held
    assert not back.mixing.held
    check_mean(ends[0], states, algorithm.beta)


def test_several_tokens_walk_at_once(ends):
    data, model = problem(PEERS)
    graph = topology("ring", PEERS)
    states = run(meet(WALKS["two tokens"], data, model, graph, 5), 60)

    assert ends.keys() == {0, 1}
    assert all(one.at == (0, 10) for one in ends.values())
    assert bool(torch.isfinite(torch.stack(states)).all())
