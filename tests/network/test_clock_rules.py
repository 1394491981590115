# SPDX-License-Identifier: Apache-2.0
"""Pauses, revocation and what a policy says, for peers with clocks of their own."""

import asyncio
import itertools

import pytest

from archipel.algorithms import Walk, Walkman
from archipel.data.shadow import Facts, shadow
from archipel.engines.network.in_process import Circle
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation.coordinator.peer_study import PeerStudy
from archipel.federation.roster import Signed
from archipel.graphs import topology
from archipel.study.file import Study
from network.clocked import Averaging, Coordinate, Joining
from network.test_peers import loop_time, party, problem, run  # noqa: F401

PEERS, ROUNDS = 4, 6
CLOCKS = {
    "wakes": Coordinate(),
    "learned": Joining(),
    "meetings": Averaging(),
    "walk": Walk(lr=0.2, batch_size=4),
    "walkman": Walkman(form="gradient", beta=4.0),
}


def circle_of(name, **options):
    data, model = problem(PEERS)
    graph = None if name == "learned" else topology("complete", PEERS)
    return Circle(CLOCKS[name], data, model, graph, ROUNDS, pause=0.01, **options)


@pytest.mark.parametrize("name", CLOCKS)
def test_a_revoked_peer_is_neither_heard_nor_waited_for(name):
    """From the moment that peers know; the others end their rounds."""

    async def play():
        circle, heard = circle_of(name, silence=1.0), []
        dropped = set()

        def watch(k, report):
            if len(circle.reports[k]) == 2 and not dropped:
                dropped.add(2)
                for j in {0, 1, 3} & circle.up.keys():
                    circle.up[j].liveness.drop(2)

        def noted(ask):
            async def asked(letter):
                if dropped:
                    heard.append(letter.kind)
                return await ask(letter)

            return asked

        circle.watch = watch
        for k in range(PEERS):
            links = circle.begin(k).liveness.links
            if k != 2:
                links[2].ask = noted(links[2].ask)
        await asyncio.gather(*(circle.tasks[k] for k in (0, 1, 3)))
        with pytest.raises(Refused, match="revoked"):
            await circle.up[1].answer(2, Letter("beat", {
                "study": "twin", "round": 1, "number": 0, "doing": "", "gave_up": None,
            }))  # fmt: skip
        for k in list(circle.tasks):
            await circle.end(k)
        return circle, heard

    circle, heard = run(play(), 100)
    assert [circle.reports[k][-1].round for k in (0, 1, 3)] == [ROUNDS] * 3
    assert not heard


@pytest.mark.parametrize("name", CLOCKS)
def test_nothing_leaves_a_peer_in_a_pause_and_it_goes_on_afterwards(name):
    async def play():
        circle, paused, left = circle_of(name, silence=30.0), [], []

        def watch(k, report):
            if k == 1 and len(circle.reports[1]) == 2 and not paused:
                paused.append(True)

        def guarded(ask):  # as `federation.peer.lane.Lane` does
            async def asked(letter):
                if paused == [True]:
                    raise Cut("this peer is paused.")
                return await ask(letter)

            return asked

        def fault(k, j, reply):
            if paused == [True] and j == 1 and reply.kind != "beat":
                left.append(reply.kind)

        circle.watch, circle.fault = watch, fault
        for k in range(PEERS):
            peer = circle.begin(k)
            peer.liveness.paused = lambda k=k: k == 1 and paused == [True]
            for link in peer.liveness.links.values() if k == 1 else ():
                link.ask = guarded(link.ask)
        while not paused:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # what was on its way
        left.clear()
        before = len(circle.reports[1])
        await asyncio.sleep(0.5)
        seen, turns = list(left), len(circle.reports[1]) - before
        paused.append(False)
        await circle.done()
        return circle, seen, turns

    circle, seen, turns = run(play(), 100)
    assert seen == [] and turns <= 1  # the one that it was in
    assert {reports[-1].round for reports in circle.reports} == {ROUNDS}


@pytest.mark.parametrize("name", CLOCKS)
def test_without_counts_nobody_is_told_of_gradients(name):
    async def play():
        circle, said = circle_of(name), []
        for k in range(PEERS):
            peer = circle.begin(k)
            peer._counts = False
            told = peer.told
            peer.told = lambda j, told=told: said.append(told(j)) or said[-1]
        await circle.done()
        return circle, said

    circle, said = run(play(), 100)
    assert {report.gradients for each in circle.reports for report in each} == {0}
    assert not any("gradients" in letter["doing"] for letter in said)


# -- in the coordinator's words --------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "cause"), [("walk", "not visited yet"), ("dsgd", "silent")])
def test_a_peer_that_no_token_came_to_is_not_silent(algorithm, cause):
    text = f"""
    [study]
    name = "heart"
    rounds = 2
    [data]
    name = "heart_disease"
    [algorithm]
    name = "{algorithm}"
    [topology]
    name = "ring"
    """
    study = Study.parse(text)
    sites = {f"site {k}": Facts.of(party(text, k)) for k in range(3)}
    fed, nothing = shadow("heart", sites), Signed(b"", b"")
    model, policy = study.build_model(fed), study.policy()
    one = PeerStudy(
        study.algorithm_object, fed, model, policy, sites, nothing, lambda: nothing, 0.1
    )

    async def tell(k, t):
        await one.answer(k, Letter("told", {
            "study": "heart", "round": t, "metrics": {"accuracy": 0.5}, "points": 3,
            "missing": {}, "gradients": 1, "up": 8, "down": 8, "signature": b"",
        }))  # fmt: skip

    for k, t in [*itertools.product((0, 1), (1, 2)), (2, 2)]:  # the third tells of the second alone
        asyncio.run(tell(k, t))
    one.loop.go(None, None)

    assert [
        {k: str(why) for k, why in cohort.missing.items()} for cohort in one.run.participation
    ] == [{2: cause}, {}]
    robustness = one.run.scorecard.robustness
    assert robustness.missing == {cause: 1}
    assert robustness.longest_absence == (0 if algorithm == "walk" else 1)


@pytest.mark.parametrize("algorithm", ["coordinate", "gossip", "walk"])
def test_peers_with_a_clock_of_their_own_are_not_asked_to_be_asynchronous(algorithm):
    text = f"""
    [study]
    name = "heart"
    rounds = 2
    [data]
    name = "heart_disease"
    [algorithm]
    name = "{algorithm}"
    [topology]
    name = "ring"
    asynchronous = true
    """
    with pytest.raises(ArchipelError, match=r"topology.asynchronous = true: .* has clock = "):
        Study.parse(text)
