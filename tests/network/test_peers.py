# SPDX-License-Identifier: Apache-2.0
"""Peers among themselves: the rounds of a simulation, whoever is cut off, dies and comes back."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import archipel as ar
from archipel import load_bundle
from archipel.algorithms import DSGD
from archipel.data.shadow import Facts
from archipel.engines.network import liveness as liveness
from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.in_process import Circle, meet
from archipel.engines.network.letters import Letter
from archipel.engines.network.liveness import Liveness
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.peers import Report
from archipel.engines.network.presence import Adjourned
from archipel.engines.network.transport import Cut, Refused
from archipel.engines.plan import Plan
from archipel.federation import rehearsal
from archipel.federation.audit import check
from archipel.federation.certificates import Authority, Invitation, verify
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.peer import port
from archipel.federation.peer.peer import PeerSite
from archipel.federation.peer.record import Log
from archipel.federation.rehearsal import _free_port
from archipel.federation.roster import Signed
from archipel.federation.site.part import party_state_at
from archipel.federation.site.site import signed
from archipel.graphs import topology
from archipel.study.file import Study
from network.clocked import with_death, with_kills

ONE = Plan("one", 1, 1)


def problem(parties=5):
    """Parties of unequal size in double precision."""
    random = np.random.default_rng(0)
    sizes = [7, 9, 12, 5, 8, 6, 10, 4][:parties]
    xs = [torch.from_numpy(random.standard_normal((n, 4))) for n in sizes]
    ys = [torch.from_numpy(random.integers(0, 3, n)) for n in sizes]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return ar.Federation.from_arrays(xs, ys, test=0.2), ar.Model(module)


def simulated(algorithm, data, model, graph, rounds, away=lambda t: ()):
    with ar.LocalEngine(algorithm, data, model, plan=ONE, topology=graph) as engine:
        for t in range(rounds):
            engine.round(t, [k for k in range(data.training) if k not in away(t)])
        return engine.own_models(range(data.training)).clone()


def run(play, seconds=600):
    async def main():
        threads = ThreadPoolExecutor(64)  # those of peers that were killed may still be at work
        asyncio.get_running_loop().set_default_executor(threads)
        return await asyncio.wait_for(play, seconds)

    return asyncio.run(main())


class LoopTime:
    """Time as this process's loop has had it: what a busy machine takes away does not pass.

    Peers in one process stand still together; by the machine's clock they would take each other
    for silent.
    """

    def __init__(self):
        self._now = self._last = time.monotonic()

    def __call__(self):
        now = time.monotonic()
        self._now, self._last = self._now + min(now - self._last, 0.03), now
        return self._now

    async def runs(self):
        while True:
            self()
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def loop_time(monkeypatch):
    """Circles of peers have the loop's time."""
    begin, clocks = Circle.begin, {}

    def begun(circle, k):
        if circle not in clocks:
            clock = LoopTime()
            clocks[circle] = clock, asyncio.create_task(clock.runs())
        peer = begin(circle, k)
        peer.liveness.clock = clocks[circle][0]
        return peer

    monkeypatch.setattr(Circle, "begin", begun)


@pytest.mark.parametrize("turns", range(4))
def test_a_peer_that_is_ended_just_when_something_moves_ends(turns):
    """The loop takes some turns from a bell to whoever waits for it; an end may come in each."""

    async def play():
        liveness = Liveness({}, 60.0)
        waiting = asyncio.create_task(liveness.moved(60.0))
        await asyncio.sleep(0.01)
        liveness.ring()
        for _ in range(turns):
            await asyncio.sleep(0)
        returned = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        return returned or waiting.cancelled()

    assert run(play())


def close(states, expected, tolerance=1e-9):
    torch.testing.assert_close(torch.stack(states), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cuts", [(), [(900, 1e9), (1e9, 200), (50, 50)]], ids=["whole", "cut"])
@pytest.mark.parametrize(
    ("name", "overlap"),
    [("ring", False), ("complete", True), ("matching", False), ("local_steps:2:ring", True)],
)
def test_rounds_between_peers_are_those_of_a_simulation(name, cuts, overlap):
    data, model = problem()
    algorithm, graph = DSGD(lr=0.1, batch_size=4, overlap=overlap), topology(name, 5)
    for rounds in (1, 5):
        states = run(meet(algorithm, data, model, graph, rounds, cuts))
        close(states, simulated(algorithm, data, model, graph, rounds))


def rounds_of(circle, k):
    """The rounds, from 0, in which peer k took part."""
    return {report.round - 1 for report in circle.reports[k]}


def check_doubly_stochastic(circle, graph, rounds, honest=None):
    """Of every edge both ends say the same: so W is symmetric, and its rows sum to 1."""
    who = range(graph.n) if honest is None else honest
    told = [{r.round - 1: r.missing for r in reports} for reports in circle.reports]
    for t in range(rounds):
        used = torch.zeros(graph.n, graph.n)
        for i in who:
            if t in told[i]:
                for j in set(graph.neighbours(i, t)) & set(who):
                    used[i, j] = j not in told[i][t]
        assert torch.equal(used, used.T), f"round {t}: {used}"


def test_a_peer_that_dies_is_routed_around_and_catches_up():
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology("ring", 5), 40

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds, silence=2.0)
        return circle, await with_death(circle)

    circle, states = run(play())
    away = set(range(rounds)) - rounds_of(circle, 2)
    assert min(away) == 2
    assert {4} < away
    assert len(away) == max(away) - 1 < 30  # one stretch, and it came back
    for k in (0, 1, 3, 4):
        assert rounds_of(circle, k) == set(range(rounds))
    causes = {r.missing.get(2) for k in (1, 3) for r in circle.reports[k]}
    assert any(cause and cause.startswith("silent") for cause in causes)
    check_doubly_stochastic(circle, graph, rounds)
    expected = simulated(algorithm, data, model, graph, rounds, lambda t: (2,) if t in away else ())
    close(states, expected)


@pytest.mark.parametrize("weights", ["metropolis", "max_degree"])
def test_a_departure_leaves_the_w_of_a_simulation(weights):
    """On a star, whose degrees fall where somebody leaves: nobody weighs by what is left."""
    data, model = problem()
    algorithm, rounds = DSGD(lr=0.1, batch_size=4), 3
    graph = topology("star", 5).weighed(weights)

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds, silence=0.5)
        for k in range(4):  # peer 4 never comes
            circle.begin(k)
        return await circle.done()

    states = run(play())
    expected = simulated(algorithm, data, model, graph, rounds, lambda t: (4,))
    close(states, expected[:4])


def test_an_edge_counts_on_both_sides_or_on_none_also_when_an_answer_is_lost_for_good():
    """The lower end is killed with its answer on the way, and stays away."""
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology("ring", 5), 40

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds, silence=2.0)
        ended = []

        def fault(k, j, reply):
            if (k, j) == (3, 2) and reply.kind == "vector" and reply["round"] == 2 and not ended:
                ended.append(circle.kill(2))
                raise Cut("the answer is lost")

        def watch(k, report):
            others = min(len(circle.reports[j]) for j in (0, 1, 3, 4))
            if ended and others >= 5 and 2 not in circle.up:
                circle.begin(2)

        circle.fault, circle.watch = fault, watch
        for k in range(5):
            circle.begin(k)
        await asyncio.gather(*(circle.tasks[k] for k in (0, 1, 3, 4)))
        await circle.done()
        await asyncio.gather(*ended, return_exceptions=True)
        return circle

    circle = run(play())
    told = {report.round - 1: report.missing for report in circle.reports[2]}
    assert 2 not in told or 3 in told[2]
    assert next(r for r in circle.reports[3] if r.round == 3).missing.keys() == {2}
    check_doubly_stochastic(circle, graph, rounds)


def test_a_peer_that_nobody_reaches_waits_and_does_not_run_on_alone():
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology("ring", 5), 40

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds, silence=2.0)

        def watch(k, report):
            if (k, report.round) == (2, 3):
                circle.cut_off.add(2)
            if k != 2 and report.round >= 10:
                circle.cut_off.clear()

        circle.watch = watch
        for k in range(5):
            circle.begin(k)
        return circle, await circle.done()

    circle, _ = run(play())
    mine = rounds_of(circle, 2)
    assert len(mine) < rounds
    assert max(mine) >= 10  # it came back
    check_doubly_stochastic(circle, graph, rounds)


@pytest.mark.parametrize("seed", range(3))
def test_peers_that_are_killed_anywhere_end_up_where_they_would_have(seed):
    """Killed right before or after an answer, and started again: nothing counts twice or never."""
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology("complete", 5), 6
    random = np.random.default_rng(seed)

    circle = Circle(algorithm, data, model, graph, rounds)
    kills, states = run(with_kills(circle, ("vector",), random, 8, 0.2, lambda k: None))
    assert kills == 8
    close(states, simulated(algorithm, data, model, graph, rounds))


# -- without rounds in common ----------------------------------------------------------------------


@dataclass(frozen=True)
class Averaging:
    """Nothing but mixing, of two vectors; the sum over peers stays what it was."""

    def init(self, x):
        return x, 2 * x

    def party(self, me, own):
        x, y = own
        if me.round == 0:
            x, y = x + me.normal(x), y + me.normal(y)
        return me.mix(x), me.mix(y)


@pytest.mark.parametrize("seed", range(3))
def test_gossip_keeps_the_sum_whatever_is_lost_and_whoever_is_killed(seed):
    data, model = problem()
    random = np.random.default_rng(seed)
    graph = topology(["complete", "ring", "star"][seed % 3], 5)

    async def play():
        circle = Circle(Averaging(), data, model, graph, 12, asynchronous=True)
        again = []

        async def restart(k):
            await circle.end(k)
            circle.begin(k)

        def fault(k, j, reply):
            if reply.kind == "vector" and random.random() < 0.2:
                victim = int(random.choice([k, j]))
                if len(again) < 3 and victim in circle.up and not circle.up[victim].done:
                    del circle.up[victim]
                    again.append(asyncio.create_task(restart(victim)))
                raise Cut("the answer is lost")

        circle.fault = fault
        for k in range(5):
            circle.begin(k)
        while any(len(circle.up) < 5 or not circle.tasks[k].done() for k in range(5)):
            await asyncio.sleep(0.01)
        await asyncio.gather(*again)
        gossips = [circle.up[k].mixing for k in range(5)]
        return gossips, await circle.done()

    gossips, states = run(play())
    started = []
    for k in range(5):
        party_state = PartyState(Averaging(), data.select(np.array([k])), model, party=k)
        started.append(party_state.alone(0, lambda x: x)[0].state)
    for i in range(2):  # what came after a peer's last mix of the second vector is still pending
        total = sum(
            state[i] + (gossips[k].pending.get(1, 0) if i else 0) for k, state in enumerate(states)
        )
        expected = sum(state[i] for state in started)
        torch.testing.assert_close(total, expected, rtol=1e-10, atol=1e-10)
    spread = torch.stack([state[0] for state in states]).std(dim=0).mean()
    before = torch.stack([state[0] for state in started]).std(dim=0).mean()
    assert spread < before / 2


def test_gossip_waits_for_nobody():
    data, model = problem()

    async def play():
        circle = Circle(
            DSGD(lr=0.1, batch_size=4), data, model, topology("complete", 5), 20,
            asynchronous=True, silence=0.5,
        )  # fmt: skip
        for k in range(4):  # the fifth never comes
            circle.begin(k)
        states = await circle.done()
        return circle, states

    circle, states = run(play())
    assert all(circle.reports[k][-1].round == 20 for k in range(4))
    assert max(len(circle.reports[k]) for k in range(4)) == 20
    assert all(bool(torch.isfinite(state).all()) for state in states)


# -- who is refused --------------------------------------------------------------------------------


def asked(letter, who=1, **options):
    """What peer 0, which waits in its first exchange on a ring, says to a letter."""
    data, model = problem()

    async def play():
        circle = Circle(DSGD(lr=0.1, batch_size=4), data, model, topology("ring", 5), 3, **options)
        peer = circle.begin(0)
        while getattr(peer.mixing, "open", True) is None:
            await asyncio.sleep(0.001)
        try:
            return await asyncio.wait_for(peer.answer(who, letter(peer)), 600)
        finally:
            await circle.end(0)

    return run(play())


def vector(study="twin", t=0, number=0, x=None):
    def letter(peer):
        fields = {"study": study, "round": t, "number": number, "signature": b""}
        return Letter("vector", fields, [peer.mixing.open.x if x is None else x])

    return letter


def test_a_right_vector_is_answered_with_ones_own():
    answer = asked(vector())
    assert (answer.kind, answer["round"], answer["number"]) == ("vector", 0, 0)


@pytest.mark.parametrize(
    ("letter", "who", "why"),
    [
        (vector(study="other"), 1, "another study"),
        (vector(t=4), 1, "there is none"),
        (vector(t=-1), 1, "there is none"),
        (vector(number=-1), 1, "there is none"),
        (vector(), 2, "no edge"),
        (vector(), 7, "not a peer"),
        (vector(x=torch.zeros(3, dtype=torch.float64)), 1, "a vector of shape"),
        (vector(x=torch.zeros(51)), 1, "float32"),
        (vector(x=torch.full((51,), torch.nan, dtype=torch.float64)), 1, "not finite"),
        (lambda _: Letter("thanks"), 1, "nothing that a peer sends"),
    ],
)
def test_what_does_not_belong_is_refused(letter, who, why):
    with pytest.raises(Refused, match=why):
        asked(letter, who)


def test_a_vector_of_a_round_that_is_over_gets_no_answer_but_where_the_peer_is():
    """Of the higher end: it was dropped. The letter may be a copy of an older one, too."""
    data, model = problem()

    async def play():
        circle = Circle(DSGD(lr=0.1, batch_size=4), data, model, topology("ring", 5), 3)
        for k in range(5):
            circle.begin(k)
        while not circle.up[0].done:
            await asyncio.sleep(0.001)
        peer = circle.up[0]
        fields = {"study": "twin", "round": 0, "number": 0, "signature": b""}
        answer = await peer.answer(1, Letter("vector", fields, [torch.zeros(51).double()]))
        await circle.done()
        return answer

    answer = run(play())
    assert (answer.kind, answer["round"]) == ("beat", 3)


# -- deadlines, and who is left alone --------------------------------------------------------------


class Liar:
    """A peer that says it trains, and gets further all the time, and never exchanges anything."""

    done = False

    def __init__(self, circle, k):
        self._circle, self._k, self._said = circle, k, 0
        circle.up[k] = self

    async def answer(self, j, letter):
        self._said += 1
        fields = {"study": "twin", "round": letter["round"], "number": 0, "gave_up": None}
        return Letter("beat", {**fields, "doing": f"trains, {self._said} gradients"})

    async def talk(self):
        while True:
            for j in set(self._circle.up) - {self._k}:
                at = self._circle.up[j].mixing.at
                letter = Letter("beat", {"round": at[0], "number": at[1], "study": "twin"})
                with suppress(ar.ArchipelError):
                    await self._circle.up[j].answer(self._k, await self.answer(j, letter))
            await asyncio.sleep(0.02)


async def with_liar(circle, liar, honest):
    """The states of honest peers in the end, with one that only says that it trains."""
    talking = asyncio.create_task(Liar(circle, liar).talk())
    for k in honest:
        circle.begin(k)
    try:
        return await circle.done()
    finally:
        talking.cancel()


@pytest.mark.parametrize("liar", [0, 2, 4])
@pytest.mark.parametrize(
    ("name", "asynchronous"), [("ring", False), ("matching", False), ("complete", True)]
)
def test_a_peer_that_only_says_it_trains_holds_nobody(name, asynchronous, liar):
    """M2: it used to keep all others in round 0."""
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology(name, 5), 6
    honest = [k for k in range(5) if k != liar]

    async def play():
        circle = Circle(
            algorithm, data, model, graph, rounds,
            asynchronous=asynchronous, silence=60.0, deadline=0.2,
        )  # fmt: skip
        await with_liar(circle, liar, honest)
        return circle

    circle = run(play())
    took_part = set.union(*(rounds_of(circle, k) for k in honest))
    assert took_part == set(range(rounds))
    told = [{r.round - 1: r.missing for r in reports} for reports in circle.reports]
    if not asynchronous:
        assert any("past the deadline (trains" in why for k in honest for t in told[k]
                   for why in told[k][t].values())  # fmt: skip
        check_doubly_stochastic(circle, graph, rounds, honest)


def test_without_a_deadline_there_is_a_limit(monkeypatch):
    """M2: a study need not name a deadline for its peers to be safe."""
    monkeypatch.setattr(liveness, "LIMIT", 0.2)
    data, model = problem()

    async def play():
        circle = Circle(DSGD(lr=0.1, batch_size=4), data, model, topology("ring", 5), 3)
        await with_liar(circle, 1, [0, 2, 3, 4])
        return circle

    circle = run(play())
    assert set.union(*(rounds_of(circle, k) for k in range(5))) == {0, 1, 2}


class Slow(Circle):
    """Peers whose training and whose letters take their time, there and back."""

    def __init__(self, *parts, seed, pace, **options):
        super().__init__(*parts, **options)
        self._random, self._pace = np.random.default_rng(seed), pace

    def _link(self, k, j):
        link = super()._link(k, j)
        answer = link._answer

        async def late(who, letter):
            await asyncio.sleep(self._random.exponential(self._pace))
            reply = await answer(who, letter)
            await asyncio.sleep(self._random.exponential(self._pace))
            return reply

        link._answer = late
        return link


@pytest.mark.parametrize("name", ["ring", "complete", "matching"])
@pytest.mark.parametrize("seed", range(3))
def test_deadlines_leave_w_doubly_stochastic_whatever_the_clocks_say(name, seed):
    """M2: an edge counts on both sides or on neither, also when an answer comes past the deadline.

    Letters take as long as the deadline, so that the ends of an edge disagree about time in most
    exchanges.
    """
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology(name, 5), 12

    async def play():
        circle = Slow(
            algorithm, data, model, graph, rounds,
            seed=seed, pace=0.02, silence=15.0, deadline=0.05,
        )  # fmt: skip
        for k in range(5):
            circle.begin(k)
        return circle, await circle.done()

    circle, _ = run(play())
    causes = [why for reports in circle.reports for r in reports for why in r.missing.values()]
    assert any("past the deadline" in why for why in causes)
    check_doubly_stochastic(circle, graph, rounds)


def test_the_last_question_is_answered_as_before_or_never_again():
    """The lower end decides: having answered, it says the same; or else it drops the edge."""
    data, model = problem()

    async def play():
        circle = Circle(DSGD(lr=0.1, batch_size=4), data, model, topology("ring", 5), 3)
        peer = circle.begin(0)
        while peer.mixing.open is None:
            await asyncio.sleep(0.001)
        right = vector()(peer)
        last = Letter("beat", {
            "study": "twin", "round": 0, "number": 0, "doing": "waits", "gave_up": [0, 0],
        })  # fmt: skip
        first = await peer.answer(1, right)
        again = await peer.answer(1, last)
        never = await peer.answer(4, last)
        after = await peer.answer(4, right)
        await circle.end(0)
        return first, again, never, after

    first, again, never, after = run(play())
    assert torch.equal(first.arrays[0], again.arrays[0])
    assert (never.kind, after.kind) == ("beat", "beat")
    assert (after["round"], after["number"]) > (0, 0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_last_peer_does_not_go_on_alone(asynchronous):
    """E13: once nobody else is there it waits, and goes on when somebody comes back."""
    data, model = problem(3)

    async def play():
        circle = Circle(
            DSGD(lr=0.1, batch_size=4), data, model, topology("complete", 3), 2000,
            asynchronous=asynchronous, silence=0.5, deadline=0.5,
        )  # fmt: skip
        for k in range(3):
            circle.begin(k)
        while min(map(len, circle.reports)) < 3:
            await asyncio.sleep(0.01)
        await circle.end(1)
        await circle.end(2)
        while not circle.up[0].is_alone:
            await asyncio.sleep(0.01)
        waits = len(circle.reports[0])
        await asyncio.sleep(2.0)
        waited = len(circle.reports[0])
        circle.begin(1)
        while len(circle.reports[0]) < waited + 3:
            await asyncio.sleep(0.01)
        for k in (0, 1):
            await circle.end(k)
        return waits, waited

    waits, waited = run(play())
    assert waited <= waits + 1  # the round that was under way


def test_a_peer_that_everybody_refuses_does_not_go_on_alone():
    """E13: all others left the study, and say so."""
    data, model = problem(3)

    async def play():
        circle = Circle(
            DSGD(lr=0.1, batch_size=4), data, model, topology("complete", 3), 2000, silence=0.5
        )
        left = []

        def fault(k, j, reply):
            if left and k == 2:
                raise Refused("not both in this study.")

        circle.fault = fault
        for k in range(3):
            circle.begin(k)
        while min(map(len, circle.reports)) < 3:
            await asyncio.sleep(0.01)
        left.append(True)
        for k in (0, 1):
            circle.tasks.pop(k).cancel()
        while not circle.up[2].is_alone:
            await asyncio.sleep(0.01)
        waits = len(circle.reports[2])
        await asyncio.sleep(1.5)
        waited = len(circle.reports[2])
        await circle.end(2)
        return waits, waited

    waits, waited = run(play())
    assert waited <= waits + 1  # the round that was under way


def test_who_is_left_when_others_are_done_is_done_and_trains_no_further():
    """E13, at everyone's own pace: what others would not hear of is not trained."""
    data, model = problem(2)

    async def play():
        circle = Circle(
            DSGD(lr=0.1, batch_size=4), data, model, topology("complete", 2), 5, asynchronous=True
        )
        peer = circle.begin(0)
        done = circle.up[1] = Circle(*circle._parts, 5, asynchronous=True).begin(1)
        done.round = 5
        done.mixing.begin(5)
        await circle.tasks[0]
        await circle.end(0)
        return circle.reports[0], peer.round

    reports, reached = run(play())
    assert reached == 5
    assert len(reports) < 5
    assert (reports[-1].round, reports[-1].gradients) == (5, 0)


def test_a_revoked_peer_is_neither_heard_nor_waited_for():
    """H4: from the moment that peers know."""
    data, model = problem()
    algorithm, graph, rounds = DSGD(lr=0.1, batch_size=4), topology("ring", 5), 30

    async def play():
        circle = Circle(algorithm, data, model, graph, rounds)
        dropped = []

        def watch(k, report):
            if report.round == 5 and k not in dropped and k != 2:
                dropped.append(k)
                circle.up[k].liveness.drop(2)

        circle.watch = watch
        for k in range(5):
            circle.begin(k)
        await asyncio.gather(*(circle.tasks[k] for k in (0, 1, 3, 4)))
        with pytest.raises(Refused, match="revoked"):
            await circle.up[1].answer(2, Letter("beat", {
                "study": "twin", "round": 5, "number": 0, "doing": "", "gave_up": None,
            }))  # fmt: skip
        for k in list(circle.tasks):
            await circle.end(k)
        return circle

    circle = run(play())
    for k in (1, 3):
        assert {r.missing.get(2) for r in circle.reports[k] if r.round > 6} == {"revoked"}
        assert len(circle.reports[k]) == rounds


@dataclass(frozen=True)
class Held:
    """Training that takes until somebody lets it go."""

    gate = threading.Event()

    def init(self, x):
        return x

    def party(self, me, own):
        self.gate.wait(30)
        return me.mix(own)


def test_nothing_leaves_a_peer_in_a_pause():
    """Low: neither how far it is, nor the answer to a question that came before the pause."""
    data, model = problem(2)

    async def play():
        circle = Circle(Held(), data, model, topology("complete", 2), 3)
        paused, sent = [], []
        Held.gate.set()
        peer = circle.begin(0)
        Held.gate.clear()
        peer.liveness.paused = lambda: bool(paused)

        async def hear(letter):
            sent.append(letter)
            raise Cut("heard.")

        peer.liveness.links[1].ask = hear
        peer.liveness.every = 0.01
        fields = {"study": "twin", "round": 0, "number": 0, "signature": b""}
        asked = peer.answer(1, Letter("vector", fields, [torch.zeros(51).double()]))
        asking = asyncio.create_task(asked)  # held until it has trained
        await asyncio.sleep(0.05)
        paused.append(True)
        await asyncio.sleep(0.05)  # a beat that was on its way
        sent.clear()
        Held.gate.set()
        with pytest.raises(Cut, match="paused"):
            await asking
        beats = asyncio.create_task(peer.liveness.beat(lambda: [1], peer.told))
        await asyncio.sleep(0.2)
        beats.cancel()
        await circle.end(0)
        return sent

    assert run(play()) == []


# -- with keys, certificates and a roster ----------------------------------------------------------

STUDY = """
[study]
name = "heart"
rounds = 5
[data]
name = "heart_disease"
[algorithm]
name = "dsgd"
lr = 0.05
[topology]
name = "ring"
"""


def party(text, k):
    return Study.parse(text).federation().select(np.array([k]))


async def gathered(one, path, text, count=4):
    """Peers that joined and approved, with their data, as the coordinator numbers them."""
    digest, found = one.home.submit(text.encode()), []
    for k in range(count):
        invitation = Invitation.read(one.home.invite(f"peer-{k}").token())
        address = f"localhost:{_free_port()}"
        site = await PeerSite.join_as_peer(path / f"peer-{k}", invitation, address)
        link, data = site.link(), party(text, k)
        fetched, _ = await site.fetch(link, digest)
        site.decide(fetched, "approved", Facts.of(data))
        await site.tell(link)
        await link.close()
        found.append((site, data))
    return digest, found


async def attend(site, data, digest):
    link = site.link()
    try:
        async with site.listening(site.listens):
            return await site.attend(link, digest, data)
    finally:
        await link.close()


@asynccontextmanager
async def coordinator(path):
    home = CoordinatorFolder(path) if (path / "coordinator.json").exists() else None
    home = home or CoordinatorFolder.create(path, "test", f"localhost:{_free_port()}")
    one = Coordinator(home)
    await one.up(home.address)
    try:
        yield one
    finally:
        await one.down()


def test_a_study_between_peers_over_tls_is_its_simulation(tmp_path):
    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, STUDY)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            outcome = await one.run(digest)
            assert await asyncio.gather(*tasks) == [5] * 4
            return outcome, digest, peers, one.home

    outcome, digest, peers, home = run(play())
    study = Study.parse(STUDY)
    expected = study.run(None, baselines=False)
    vectors = simulated(*study.parts(), topology("ring", 4), 5)
    for k, (site, data) in enumerate(peers):
        folder = site.home / "studies" / digest
        party_state, _ = party_state_at(site, digest, data)
        party_state.restore(safetensors.torch.load_file(folder / "peer" / "own.safetensors"))
        torch.testing.assert_close(party_state.own.state, vectors[k], rtol=1e-6, atol=1e-6)
        scores = party_state.score(party_state.mine(), 5)
        assert scores["accuracy"] == pytest.approx(float(expected.parties["accuracy"][k]), abs=1e-6)
        assert scores["loss"] == pytest.approx(float(expected.parties["loss"][k]), rel=1e-5)
        model = safetensors.torch.load_file(folder / "model.safetensors")
        for name, tensor in (
            party_state.model.to_module(party_state.own.state, None).state_dict().items()
        ):
            assert torch.equal(model[name], tensor)
        bundle = load_bundle(folder / "bundle")
        assert bundle.about.party == site.name and bundle.columns[0] == "age"
        assert bundle.about.metrics == pytest.approx(scores)
        assert check(site.audit.path, site.identity.public) > 5
    assert outcome.done == 5
    assert not any(cohort.missing for cohort in outcome.participation)
    assert outcome.history[-1]["metrics"]["loss"] > 0
    assert outcome.spent.up == 5 * 4 * 2 * 28 * 4  # rounds, peers, neighbours, numbers, bytes
    assert not (outcome.folder / "model.safetensors").exists()
    entries = [entry.what for entry in home.audit.entries()]
    assert "roster" in entries


def test_without_counts_nobody_is_told_how_many_points_a_peer_has(tmp_path, monkeypatch):
    """Gradients of a round are as many as training points; they were told whatever the policy."""
    sent, ask = [], GrpcLink.ask

    async def noted(self, letter):
        sent.append(letter)
        return await ask(self, letter)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, STUDY)
            for site, _ in peers:
                site.policy.changed(["counts=false"]).write(site.home)
            monkeypatch.setattr(GrpcLink, "ask", noted)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            await one.run(digest)
            await asyncio.gather(*tasks)

    run(play())
    told = [letter for letter in sent if letter.kind == "told"]
    assert len(told) >= 4
    assert {letter["gradients"] for letter in told} == {letter["points"] for letter in told} == {0}
    assert not any("gradients" in letter.fields.get("doing", "") for letter in sent)


@pytest.mark.slow
def test_peers_need_no_coordinator_once_they_have_the_roster(tmp_path):
    text = STUDY.replace("rounds = 5", "rounds = 30")

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, text)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            running = asyncio.create_task(one.run(digest))
            while len([site for site, _ in peers if site.members.begun()]) < 4:
                await asyncio.sleep(0.01)
        with suppress(Adjourned):  # it went down, maybe in the midst of a round
            await running
        models = [site.home / "studies" / digest / "model.safetensors" for site, _ in peers]
        while not all(path.exists() for path in models):
            await asyncio.sleep(0.05)
        async with coordinator(tmp_path / "c") as one:
            outcome = await one.run(digest)
            await asyncio.gather(*tasks)
            return outcome

    outcome = run(play())
    assert outcome.done == 30
    expected = Study.parse(text).run(None, baselines=False)
    scores = outcome.parties["loss"]
    torch.testing.assert_close(scores, expected.parties["loss"], rtol=1e-4, atol=1e-5)


def test_only_members_are_answered_and_only_for_themselves(tmp_path):
    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, STUDY, 2)
            invitation = Invitation.read(one.home.invite("stranger").token())
            stranger = await PeerSite.join_as_peer(tmp_path / "x", invitation, "localhost:1")
            (first, data), (second, _) = peers
            running = asyncio.create_task(one.run(digest))
            task = asyncio.create_task(attend(first, data, digest))
            while not first.trusted:
                await asyncio.sleep(0.01)

            async def ask(who, signer, name="peer-0", x=None, shown=None, **changed):
                fields = {"study": digest, "round": 0, "number": 0, **changed}
                letter = Letter("vector", fields, [torch.zeros(28) if x is None else x])
                letter = letter.adding(signature=signer.identity.sign(signed(letter)))
                trusted = port.certificate((first if name == "peer-0" else second).home)
                shown = shown or port.credentials(who.home, [trusted])
                link = GrpcLink(first.listens, name, shown, 1 << 20)
                try:
                    return await asyncio.wait_for(link.ask(letter), 600)
                finally:
                    await link.close()

            with pytest.raises(Cut):  # TLS: of no study
                await ask(stranger, stranger)
            with pytest.raises(Cut):  # TLS: peers trust each other's own certificates alone
                await ask(second, second, shown=second.credentials())
            with pytest.raises(Refused, match="not signed by peer-1"):
                await ask(second, stranger)
            with pytest.raises(Refused, match="there is none"):
                await ask(second, second, round=7)
            with pytest.raises(Refused, match="a vector of shape"):
                await ask(second, second, x=torch.zeros(3))
            with pytest.raises(Cut):  # a study that peer-0 does not serve
                await ask(second, second, study="0" * 64)
            with pytest.raises(Cut):  # TLS: the port is not peer-1's
                await ask(second, second, name="peer-1")
            answer = await ask(second, second)
            assert answer.kind == "vector"
            assert verify(first.identity.public, answer["signature"], signed(answer))
            running.cancel()
            task.cancel()
            one.server_studies[digest].engine.adjourn()
            await asyncio.gather(task, running, return_exceptions=True)
            return digest, first, one.home

    digest, site, home = run(play())
    path = site.home / "studies" / digest / "roster.json"
    found = Signed.of_json(path.read_bytes())
    roster = found.read(home.authority.pem)
    assert [member.name for member in roster.peers] == ["peer-0", "peer-1"]
    forged = found._replace(text=found.text.replace(b"localhost", b"elsewhere"))
    other = roster.sign(Authority.create("test"))
    for bad in (forged, other):
        path.write_bytes(bad.to_json())
        with pytest.raises(ar.ArchipelError, match="not signed by the federation's authority"):
            asyncio.run(site.members.roster(None, digest))
    mine, other = roster.peers
    moved = mine._replace(facts={**mine.facts, "address": "x:1"})
    path.write_bytes(replace(roster, peers=(moved, other)).sign(home.authority).to_json())
    with pytest.raises(ar.ArchipelError, match="another number, address, certificate or key"):
        asyncio.run(site.members.roster(None, digest))


def test_a_log_that_was_cut_goes_on(tmp_path):
    path, report = tmp_path / "rounds.jsonl", Report(1, None, {}, 1, 1, 1)

    async def play():
        log = Log(path)
        log.add(report)
        log.told()
        with path.open("a") as file:
            file.write('{"round": 2, "met')
        (tmp_path / "told").write_text("")
        log = Log(path)
        log.add(report._replace(round=2))
        first = await log.untold()
        log.told()
        return first, await log.untold()

    first, second = run(play())
    assert (first["round"], second["round"]) == (1, 2)
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_process_that_is_killed_goes_on_where_it_was(tmp_path):
    path = tmp_path / "heart.toml"
    path.write_text(STUDY.replace("rounds = 5", "rounds = 60\nevaluate_every = 20"))
    study = Study.read(path)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, processes, given = one.home.submit(study.toml().encode()), [], []
            for k in range(4):
                given.append({
                    "home": str(tmp_path / f"peer-{k}"), "hash": digest, "party": k, "sites": 4,
                    "token": one.home.invite(f"peer-{k}").token(), "study": str(path),
                    "table": "", "silence": 60.0, "listens": f"localhost:{_free_port()}",
                })  # fmt: skip
                processes.append(await rehearsal._start())
                rehearsal._tell(processes[k], given[k])
                await one.approved(digest, k + 1)
            running = asyncio.create_task(one.run(digest))
            for victim, after in ((2, 10), (0, 30)):
                while (
                    digest not in one.server_studies or one.server_studies[digest].run.done < after
                ):
                    await asyncio.sleep(0.02)
                processes[victim].kill()  # -9
                await processes[victim].wait()
                processes[victim] = await rehearsal._start()
                rehearsal._tell(processes[victim], given[victim])
            outcome = await running
            return outcome, [await process.wait() for process in processes]

    outcome, codes = run(play())
    assert codes == [0] * 4
    assert outcome.done == 60
    expected = study.run(None, baselines=False)
    torch.testing.assert_close(
        outcome.parties["loss"], expected.parties["loss"], rtol=1e-4, atol=1e-5
    )
