# SPDX-License-Identifier: Apache-2.0
"""CHOCO between peers: copies that neighbours hold, whoever is killed or misses a change."""

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.network.coding import Coding
from archipel.engines.network.copies import Copies, Unheld
from archipel.engines.network.exchanges import Exchange
from archipel.engines.network.in_process import Circle
from archipel.engines.network.liveness import Words
from archipel.engines.network.transport import Refused
from archipel.engines.plan import Plan
from archipel.exchange.sender import Sender
from archipel.graphs import topology
from archipel.wire import Entropy, Quantise, TopK
from archipel.wire.chain import Chain
from archipel.wire.changes import Changes
from network.clocked import with_death, with_kills
from network.test_peers import (
    check_doubly_stochastic,
    loop_time,
    problem,
    rounds_of,
    run,
)

__all__ = ["loop_time"]  # a fixture: circles of peers have the loop's time

CHOCO = ar.Choco(lr=0.1, batch_size=4, consensus_lr=0.3)
WIRE = ar.Wire(up=(TopK(0.2),))


def simulated(graph, rounds, away=lambda t: (), wire=WIRE):
    data, model = problem()
    with ar.LocalEngine(
        CHOCO, data, model, plan=Plan("one", 1, 1), topology=graph, wire=wire
    ) as engine:
        everybody = range(data.training)
        sent = [engine.round(t, [k for k in everybody if k not in away(t)]).up
                for t in range(rounds)]  # fmt: skip
        return engine.own_states(everybody).inner, sent


def close(states, expected):
    for k, state in enumerate(states):
        for mine, theirs in zip(state.inner, expected, strict=True):
            torch.testing.assert_close(mine, theirs[k], rtol=1e-9, atol=1e-10)


def circle_of(graph, rounds, **options):
    data, model = problem()
    return Circle(CHOCO, data, model, graph, rounds, wire=options.pop("wire", WIRE), **options)


@pytest.mark.parametrize("name", ["ring", "alternate:ring,star"])
@pytest.mark.parametrize("steps", [(TopK(0.2),), (Quantise(4), Entropy())], ids=repr)
def test_rounds_between_peers_are_those_of_a_simulation_with_its_bytes(name, steps):
    """Whole vectors go to those that missed a change, where the graph changes."""
    graph, wire = topology(name, 5), ar.Wire(up=steps)

    async def play():
        circle = circle_of(graph, 6, wire=wire)
        for k in range(5):
            circle.begin(k)
        return circle, await circle.done()

    circle, states = run(play())
    expected, sent = simulated(graph, 6, wire=wire)
    close(states, expected)
    for way in ("up", "down"):
        told = [sum(getattr(each[t], way) for each in circle.reports) for t in range(6)]
        assert told == sent


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("forgets", [False, True], ids=["disk", "disk without copies"])
def test_peers_that_are_killed_anywhere_end_up_where_they_would_have(seed, forgets):
    """Killed right before or after an answer, and started again: copies stay those of the others.

    Who comes back without any is sent whole vectors.
    """
    graph, rounds = topology("complete", 5), 6
    random = np.random.default_rng(seed)

    async def play():
        circle = circle_of(graph, rounds)

        def down(k):
            kept = circle.disks[k].kept().get("own")
            if forgets and kept is not None:
                own = {name: x for name, x in kept.items() if not name.startswith("copy")}
                circle.disks[k].keep("own", own)

        return await with_kills(circle, ("vector",), random, 8, 0.2, down)

    kills, states = run(play())
    assert kills == 8
    close(states, simulated(graph, rounds)[0])


def test_a_peer_that_dies_is_routed_around_and_is_sent_whole_vectors_when_it_is_back():
    graph, rounds = topology("ring", 5), 40

    async def play():
        circle = circle_of(graph, rounds, silence=2.0)
        return circle, await with_death(circle)

    circle, states = run(play())
    away = set(range(rounds)) - rounds_of(circle, 2)
    assert {2, 3, 4} <= away and len(away) < 30
    check_doubly_stochastic(circle, graph, rounds)
    expected, _ = simulated(graph, rounds, lambda t: (2,) if t in away else ())
    close(states, expected)
    sizes = sorted({report.down for report in circle.reports[2]})
    assert sizes[-1] >= sizes[0] + 2 * (8 * problem()[1].p - sizes[0] / 2)  # of both neighbours


def test_a_change_is_added_to_no_other_copy_than_it_is_of():
    chain = Chain.fitted((TopK(0.2),), torch.zeros(20, dtype=torch.float64), Sender(0, 0, 0, [0]))
    changes = Changes(chain, 0.2)
    coding, words, random = Coding([changes], 0), Words("twin", 9), np.random.default_rng(0)
    first, x, other = (torch.from_numpy(random.standard_normal(20)) for _ in range(3))
    (one, two), at = (Copies(k, words, coding) for k in (1, 2)), (3, 0)
    change, arrives = changes.send(Sender(0, *at, np.array([2])), x - first)
    sent = coding.sent(x, ar.wire.wired.Coded(change, changes, first))
    asked = Exchange(at, first + arrives, sent, 0.0, {1}, two.begin(0, first))
    here = Exchange(at, other, [], 0.0, {2}, one.begin(0, first))

    letter = two.question(asked, 1)
    assert torch.equal(one.read(2, letter, here), first + arrives)
    one.keep(here, {2: other})
    with pytest.raises(Unheld):
        one.read(2, letter, here)
    whole = two.question(asked, 1, whole=True)
    assert torch.equal(one.read(2, whole, here), first + arrives)
    bad = two.question(Exchange(at, x * float("nan"), sent, 0.0, {1}, asked.base), 1, whole=True)
    with pytest.raises(Refused):
        one.read(2, bad, here)


def test_peers_at_their_own_pace_have_no_copies():
    async def play():
        circle_of(topology("ring", 5), 3, asynchronous=True).begin(0)

    with pytest.raises(ar.ArchipelError, match=r"asynchronous = true: Choco adds up"):
        run(play())
