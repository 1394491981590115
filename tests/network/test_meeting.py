# SPDX-License-Identifier: Apache-2.0
"""Peers that meet in pairs: what a loop computes; a meeting counts at both or at neither."""

import asyncio
from contextlib import suppress

import numpy as np
import pytest
import torch

from archipel import rng
from archipel.algorithms import Gossip
from archipel.engines.network.in_process import Circle
from archipel.engines.network.letters import Letter
from archipel.errors import ArchipelError
from archipel.graphs import topology
from network.clocked import Averaging, driven, with_kills
from network.test_peers import loop_time, problem, run  # noqa: F401
from network.test_waking import PEERS, gradients, order_of

ROUNDS = 4


def partner(k, t, graph, tries=0):
    """Whom peer k meets in its t-th meeting, where everybody is there and free."""
    near = graph.neighbours(k)
    draw = rng.generator(0, t, k, "partner", tries)
    return near[int(draw.integers(len(near)))]


@pytest.mark.parametrize("exchange", ["push-pull", "push", "pull"])
def test_meetings_in_some_order_are_those_of_a_loop(exchange):
    data, model = problem(PEERS)
    graph, order = topology("ring", PEERS), order_of(ROUNDS)
    algorithm = Gossip(lr=0.2, batch_size=None, exchange=exchange)
    _, states = run(driven(algorithm, data, model, graph, order, ROUNDS), 60)

    grad, turns = gradients(data, model), [0] * PEERS
    w = [model.w.clone() for _ in range(PEERS)]
    for k in order:
        t, turns[k] = turns[k], turns[k] + 1
        j = partner(k, t, graph)
        for i in (k, j):
            w[i] = w[i] - 0.2 * grad[i](w[i])
        mean = (w[k] + w[j]) / 2
        if exchange != "push":
            w[k] = mean
        if exchange != "pull":
            w[j] = mean
    torch.testing.assert_close(torch.stack(states), torch.stack(w), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("swaps", [1, 2])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_meeting_counts_at_both_or_at_neither_whoever_is_killed(seed, swaps):
    data, model = problem(PEERS)
    circle = Circle(Averaging(swaps=swaps), data, model, topology("complete", PEERS), 8)
    kills, states = run(with_kills(circle, ("meet", "met"), np.random.default_rng(seed), 10), 100)

    turns = torch.cat([state.turns for state in states])
    assert kills == 10
    assert turns.sum() == 2 * PEERS * 8
    total = torch.stack([state.x for state in states]).sum(dim=0)
    torch.testing.assert_close(total, torch.full_like(total, 15.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("decides", [True, None])
def test_a_member_that_asks_for_meetings_all_the_time_keeps_nobody_from_its_own(decides):
    """It counts each at once, or never says what became of it."""
    data, model = problem(3)
    circle = Circle(Averaging(), data, model, topology("complete", 3), 6, silence=2.0, deadline=0.1)

    def said(kind, arrays=(), **more):
        fields = {"study": "twin", "round": 0, "number": 0, **more}
        return Letter(kind, fields, arrays)

    async def says(letter):
        if letter.kind == "beat":
            return said("beat", doing="meets", gave_up=None)
        return said("met", meeting=letter["meeting"], counts=None)

    async def flood(peer):
        x = [torch.zeros_like(model.w)]
        for meeting in range(1, 10_000):
            with suppress(ArchipelError):
                asked = said("meet", x, meeting=meeting, signature=b"")
                answer = await peer.answer(2, asked)
                if answer.kind == "meet" and decides:
                    await peer.answer(2, said("met", meeting=meeting, counts=True))
            await asyncio.sleep(0)

    async def play():
        peers = [circle.begin(k) for k in (0, 1)]
        for peer in peers:
            peer.liveness.links[2].ask = says
        floods = [asyncio.create_task(flood(peer)) for peer in peers]
        while not all(peer.done for peer in peers):
            await asyncio.sleep(0.01)
        for task in floods:
            task.cancel()
        for k in (0, 1):
            await circle.end(k)
        return peers

    peers = run(play(), 15)
    most = 2 * 6 + 16
    assert all(peer.party_state.own.state.turns <= 2 * 6 + most for peer in peers)
    assert all(peer.liveness.of[2].late == (decides is None) for peer in peers)
