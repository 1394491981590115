# SPDX-License-Identifier: Apache-2.0
"""A member that says anything to peers that wake, meet or pass a token on: they go on."""

import asyncio
from collections import Counter

import pytest
import torch

from archipel.algorithms import DSGD, Gossip, Walk
from archipel.engines.network.in_process import Circle
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import Words
from archipel.engines.network.transport import Cut, Refused
from archipel.graphs import topology
from archipel.tree import first, leaves
from network.clocked import Joining, Short
from network.liar import Lies, Teller
from network.test_peers import loop_time, problem, run  # noqa: F401

PEERS, LIAR, ROUNDS = 4, 3, 4
CASES = {
    "waking": Short(),
    "joining": Joining(),
    "meeting": Gossip(lr=0.1, batch_size=None),
    "walking": Walk(lr=0.1, batch_size=None),
}


def right_letters(model):
    """What a member could say."""
    at = {"study": "twin", "round": 1, "number": 1}
    told, sign = {"degree": 1.0}, {"signature": b""}
    x = [torch.zeros_like(model.w)]
    return [
        Letter("news", at | told | sign, x),
        Letter("copy", at | told | sign, x),
        Letter("asks", at),
        Letter("holds", at),
        Letter("edge", at | {"number": 0, "weight": 0.5} | sign),
        Letter("meet", at | {"number": 0, "meeting": 1} | sign, x),
        Letter("met", at | {"meeting": 1, "counts": None}),
        Letter("token", at | {"number": 0, "hop": 2, "epoch": 0} | sign, x),
        Letter("seen", at | {"number": 0, "hop": 2, "epoch": 0, "lost": False}),
        Letter("beat", at | {"doing": "wakes", "gave_up": None}),
        Letter("vector", at | sign, x),
    ]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_peers_go_on_whatever_a_member_says(name, seed):
    data, model = problem(PEERS)
    algorithm, lies = CASES[name], Lies(f"{name} {seed}")
    graph = None if name == "joining" else topology("complete", PEERS)
    rights = right_letters(model)

    async def play():
        circle = Circle(
            algorithm, data, model, graph, ROUNDS, silence=1.0, deadline=0.3, pause=0.02
        )
        for k in range(LIAR):
            circle.begin(k)

        def teller(k):
            async def answer(who, letter):
                return await circle.up[k].answer(LIAR, letter)

            return Teller("liar", answer, lambda: "running", Counter())

        tellers = [teller(k) for k in range(LIAR)]

        async def babble():
            while True:
                right = lies.draws.choice(rights)
                takes_token = name == "walking" and right.kind in ("token", "seen")
                if lies.draws.random() < 0.3 or takes_token:  # a walk trusts its members
                    letter = lies.letter(right.kind, None, "twin")
                else:
                    letter = lies.letter(right.kind, right, "twin")
                asking = asyncio.create_task(lies.draws.choice(tellers).say(letter))
                await asyncio.wait([asking], timeout=0.2)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                await asyncio.sleep(0.001)

        chatter = asyncio.create_task(babble())
        try:
            tasks = [circle.tasks[k] for k in range(LIAR)]
            states = await asyncio.gather(*tasks)
        finally:
            chatter.cancel()
            await asyncio.gather(chatter, return_exceptions=True)
        faults = [fault for each in tellers for fault in each.faults]
        mixing = [circle.up[k].mixing for k in range(LIAR)]
        await circle.done()
        return states, faults, mixing

    states, faults, mixing = run(play(), 100)
    assert not faults
    assert all(bool(torch.isfinite(leaf).all()) for leaf in leaves(tuple(states)))
    assert all(first(state).abs().max() < 1e13 for state in states)
    if name == "joining":  # of edges between honest peers nobody else decides
        for k in range(LIAR):
            for j in set(mixing[k].neighbours) - {LIAR}:
                assert mixing[j].edges[k] == mixing[k].edges[j]


def test_a_peer_refuses_what_no_clock_of_its_own_says():
    data, model = problem(PEERS)

    async def play():
        circle = Circle(Short(), data, model, topology("complete", PEERS), 2)
        peer = circle.begin(0)
        for letter in right_letters(model):
            if letter.kind in ("meet", "met", "token", "seen", "vector", "holds"):
                with pytest.raises(Exception, match="is nothing that a peer sends"):
                    await peer.answer(1, letter)
        with pytest.raises(Exception, match="learns no graph"):
            await peer.answer(1, right_letters(model)[4])
        await circle.end(0)
        with pytest.raises(Cut):
            await circle._link(1, 0).ask(right_letters(model)[2])

    run(play(), 30)


@pytest.mark.parametrize("name", ["waking", "meeting"])
def test_on_a_graph_that_is_given_who_is_no_neighbour_gets_nothing_of_a_peer(name):
    data, model = problem(PEERS)

    async def play():
        circle = Circle(CASES[name], data, model, topology("ring", PEERS), 2)
        peer = circle.begin(0)
        for letter in right_letters(model):
            if letter.kind in peer.mixing.kinds:
                with pytest.raises(Refused, match="no edge between"):
                    await peer.answer(2, letter)
        await circle.end(0)

    run(play(), 30)


@pytest.mark.parametrize("name", ["meeting", "rounds"])
def test_who_asks_the_same_again_and_again_fills_no_log_with_answers(name):
    data, model = problem(PEERS)
    algorithm = CASES[name] if name in CASES else DSGD(lr=0.1, batch_size=None)
    x, at = [model.w], {"study": "twin", "round": 0, "number": 0, "signature": b""}
    asked = Letter("meet", at | {"meeting": 1}, x) if name in CASES else Letter("vector", at, x)

    async def play():
        circle, signed = Circle(algorithm, data, model, topology("complete", PEERS), 2), []
        peer = circle.begin(0)
        peer.mixing.words = words = Words("twin", 2, lambda letter: signed.append(letter) or b"me")
        if name == "rounds":
            peer.mixing._copies._words = words
        answers = [await peer.answer(LIAR, asked) for _ in range(20)]
        await circle.end(0)
        return answers, signed

    answers, signed = run(play(), 30)
    assert {(letter.kind, letter["signature"]) for letter in answers} == {(asked.kind, b"me")}
    assert len(signed) == 1


def test_signatures_that_are_remembered_are_of_the_very_letter_and_no_more_than_some():
    words = Words("twin", 2, lambda letter: f"{letter.fields} {letter.arrays}".encode())
    x = torch.arange(4.0)
    letters = [words.vector((0, 0), x), words.vector((0, 1), x), words.vector((0, 0), x[:2])]
    letters += [words.vector((0, 0), x.view(2, 2)), words.vector((0, 0), x + 1)]
    assert len({letter["signature"] for letter in letters}) == 5
    for k in range(1000):
        words.vector((0, 0), x + k)
    assert len(words._signatures) < 1000
