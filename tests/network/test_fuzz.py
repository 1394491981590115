# SPDX-License-Identifier: Apache-2.0
"""A member that lies, in every state of every algorithm: the others are done with their study.

Each walk is one study. One of its members follows the protocol for a while and then says anything.
A walk that fails prints its algorithm and its seed: `ARCHIPEL_FUZZ="pefll 7"` draws those lies
again. `ARCHIPEL_FUZZ_SECONDS` is how long the slow test goes on.
"""

import asyncio
import gc
import itertools
import os
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch

from archipel.algorithms import ALGORITHMS, DSGD, Alone, PeFLL, PerFedAvg, PFedHN
from archipel.data.shadow import Facts, shadow
from archipel.engines.engine import Cause
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.in_memory import MemoryLink
from archipel.engines.network.in_process import Circle
from archipel.engines.network.letters import Letter, decode
from archipel.engines.network.liveness import Words
from archipel.engines.network.opened import Patience
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Partials, Refused
from archipel.errors import ArchipelError
from archipel.exchange.boxes import is_peer
from archipel.federation.audit import Audit
from archipel.federation.certificates import Identity
from archipel.federation.coordinator.peer_study import PeerStudy
from archipel.federation.coordinator.refusals import Refusals
from archipel.federation.roster import Signed
from archipel.graphs import topology
from archipel.study.file import Study
from archipel.tree import leaves
from network import circles
from network.liar import Lies, Teller, held_by
from network.test_federation import coordinator, joined, party, text_of
from network.test_member import DATA, Late, linear
from network.test_peers import problem
from network.walks import HONEST, LIAR, ROUNDS, Tables, Walk, text_for, text_of_tables

SECONDS = float(os.environ.get("ARCHIPEL_FUZZ_SECONDS", "600"))
AGAIN = os.environ.get("ARCHIPEL_FUZZ")
SERVER = [name for name, made in ALGORITHMS.items() if not is_peer(made())]
PEERS = {
    "dsgd, complete": (DSGD(lr=0.1, batch_size=4), "complete", False),
    "dsgd, ring": (DSGD(lr=0.1, batch_size=4, overlap=True), "ring", False),
    "dsgd, gossip": (DSGD(lr=0.1, batch_size=4), "complete", True),
    "alone": (Alone(lr=0.1, local_steps=1, batch_size=4), "complete", False),
}
TOLD = "dsgd, told"  # what peers tell the coordinator
TABLES = "fedavg, tables"  # whose features need a scale

Tallies = dict[str, Counter[tuple[str, str]]]  # algorithm -> (state, kind of letter) -> letters


async def at_coordinator(one, sites, algorithm, seed, tally):
    """A study at a coordinator: the honest sites were in every round of it."""
    if algorithm == TABLES:
        walk = Tables(one, sites, text_of_tables(seed), f"{algorithm} {seed}", tally)
    else:
        walk = Walk(one, sites, text_for(algorithm, seed), f"{algorithm} {seed}", tally)
    run = await walk.go()

    assert run.done == ROUNDS
    assert bool(torch.isfinite(run.vector).all())
    for cohort in run.participation:
        assert cohort.counted
        assert {0, 1, 2} <= set(cohort.present.tolist()), cohort.missing


async def among_peers(name, seed, tally):
    """A study among peers: the honest ones did every round, and have a model each.

    One that gossips and is left when all others are done leaves its last rounds out.
    """
    algorithm, graph, asynchronous = PEERS[name]
    walk = circles.Round(algorithm, graph, f"{name} {seed}", tally, asynchronous=asynchronous)
    states = await walk.go()

    assert all(bool(torch.isfinite(leaf).all()) for leaf in leaves(tuple(states)))
    assert not walk.skipped
    did = [{report.round for report in walk.circle.reports[j]} for j in walk.honest]
    every = set(range(1, circles.ROUNDS + 1))
    assert every in did
    assert all(circles.ROUNDS in rounds if asynchronous else rounds == every for rounds in did)


def peer_study(rounds, silence):
    """What a coordinator hears of a study among four peers."""
    text = text_of("dsgd", **{"study.rounds": rounds})
    study = Study.parse(text.decode())
    sites = {name: Facts.of(party(text, k)) for k, name in enumerate((*HONEST, LIAR))}
    fed = shadow("s", sites)
    return PeerStudy(
        study.algorithm_object, fed, study.build_model(fed), study.policy(), sites,
        Signed(b"", b""), lambda: Signed(b"", b""), silence,
    )  # fmt: skip


def told(t, **changes):
    fields = {"study": "s", "round": t, "metrics": {"accuracy": 0.5}, "points": 3, "missing": {},
              "gradients": 1, "up": 8, "down": 8, "signature": b""}  # fmt: skip
    return Letter("told", fields | changes)


async def at_gathering(seed, tally):
    """What peers tell: the coordinator is done when they are."""
    lies, one = Lies(f"{TOLD} {seed}"), peer_study(ROUNDS, 0.5)
    for t, k in itertools.product(range(1, ROUNDS + 1), range(3)):
        await one.answer(k, told(t))
    run = one.run

    def where():
        return "told" if one.engine.last.get(3, 0) > run.done else "round open"

    async def answer(who, letter):
        return await one.answer(int(who), letter)

    teller = Teller("3", answer, where, tally)
    going = asyncio.create_task(asyncio.to_thread(one.loop.go, None, None))
    kinds = ["told"] * 12 + ["roster", "scale", "sums", "away", "next", "upload", "vector"]
    sizes = []
    try:
        async with asyncio.timeout(600):
            while not going.done():
                right = told(lies.draws.randrange(1, ROUNDS + 1))
                kind = lies.draws.choice(kinds)
                await teller.say(lies.letter(kind, right if kind == "told" else None, "s"))
                sizes.append(held_by(one.engine))
                await asyncio.sleep(0.01)
    finally:
        print("the last letters:", *teller.last, *teller.faults, sep="\n  ")
    await going

    assert not teller.faults
    assert run.done == ROUNDS
    assert all({0, 1, 2} <= set(cohort.present.tolist()) for cohort in run.participation)
    assert max(sizes) < sizes[0] + 20_000


async def walks(path, plan, tallies):
    """Walk as the plan says: (algorithm, seed), one after another."""
    async with coordinator(path / "c", silence=30.0) as one:
        text = text_of()
        names = enumerate((*HONEST, LIAR))
        sites = {name: (await joined(one, path, name), party(text, k)) for k, name in names}
        before, strays = _resources(), list[str]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: strays.append(str(context)))
        for name, seed in plan:
            tally = tallies.setdefault(name.partition(",")[0], Counter())
            try:
                if name in SERVER or name == TABLES:
                    await at_coordinator(one, sites, name, seed, tally)
                elif name in PEERS:
                    await among_peers(name, seed, tally)
                else:
                    await at_gathering(seed, tally)
            except BaseException:
                print(f'ARCHIPEL_FUZZ="{name} {seed}"')
                raise
        await asyncio.sleep(0.1)
        gc.collect()  # tasks that failed and that nobody asked speak up
        assert not strays
        tasks, files = _resources()
        assert tasks <= before[0] + 2
        assert files <= before[1] + 4


def _resources():
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))


def needed(name, for_long):
    """The states and letters that walks through an algorithm have to reach."""
    if name == "alone":
        return {("done", "beat")}
    if name == "dsgd":
        states = ["open, is to ask", "gossips", "done"]
        if for_long:
            states += ["open, is asked", "closed", "counted", "dropped", "unsure", "asked"]
        return {(state, "vector") for state in states} | {("round open", "told")}
    made, data = Study.parse(text_for(name, 0).decode()), party(text_of(), 0)
    _, anatomy = fitted(made.algorithm_object, data, made.build_model(data), 0, 0)
    found = {(f"message {i + 1}", "upload") for i in range(len(anatomy.messages))}
    found |= {("evaluation", "scores"), ("done", "model")}
    found |= {("no scale", "sums")} if name == TABLES.partition(",")[0] else set()
    return found | ({("evaluation", "ask")} if anatomy.personal else set())


def shown(tallies: Tallies):
    """The table of states and letters."""
    for name, tally in tallies.items():
        states = {state for state, _ in tally}
        print(f"{name}: {tally.total()} letters in {len(tally)} pairs of state and kind")
        for state in sorted(states):
            kinds = {kind: count for (each, kind), count in sorted(tally.items()) if each == state}
            said = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            print(f"  {state}: {sum(kinds.values())} ({said})")
    print(f"{sum(tally.total() for tally in tallies.values())} letters")


def missed(tallies: Tallies, for_long: bool):
    """What was not reached, by algorithm."""
    lacks = {name: needed(name, for_long) - tally.keys() for name, tally in tallies.items()}
    if for_long:
        states = ("withdrawn", "message 1 anew", "message 1, answered", "message 1, lost")
        lacks["any"] = {(state, "upload") for state in states}.difference(*tallies.values())
    return {name: each for name, each in lacks.items() if each}


ALL = [*SERVER, *PEERS, TOLD, TABLES]


def test_a_member_that_lies_ends_no_study_and_holds_none(tmp_path):
    plan = [(name, seed) for seed in (1, 2) for name in ("pefll", "ditto", "pfedhn", *PEERS, TOLD)]
    plan += [(TABLES, seed) for seed in (1, 2, 3)]
    plan += [(name, 3) for name in ("fedavg", "fedopt", "scaffold", "l2gd")]
    if AGAIN is not None:
        name, _, seed = AGAIN.rpartition(" ")
        plan = [(name, int(seed))]
    tallies: Tallies = {}
    asyncio.run(walks(tmp_path, plan, tallies))

    assert AGAIN is not None or not missed(tallies, for_long=False)


@pytest.mark.slow
def test_a_member_that_lies_for_long_ends_no_study_and_holds_none(tmp_path, capsys):
    until, tallies = time.monotonic() + SECONDS, Tallies()
    first = int(time.time())
    everything = ((name, first + i) for i in itertools.count() for name in ALL)
    plan = itertools.takewhile(lambda _: time.monotonic() < until, everything)
    try:
        asyncio.run(walks(tmp_path, plan, tallies))
    finally:
        with capsys.disabled():
            shown(tallies)

    assert tallies.keys() == ALGORITHMS.keys()
    assert not missed(tallies, for_long=True)


# -- what it found ---------------------------------------------------------------------------------

SMALL = {"local_steps": 1, "batch_size": 8, "size": 4, "hidden": 5}


def seat_of(algorithm, k):
    return PartyState(algorithm, DATA.select(np.array([k])), linear(), party=k)


async def reaches(engine, number, t=0):
    """What is open once a message is, and not the one before it."""
    while engine.opened is None or (engine.opened.round, engine.opened.number) != (t, number):
        await asyncio.sleep(0.001)
    return engine.opened


def upload_to(opened, k, arrays, n=0.0):
    fields = {"study": "s", "round": opened.round, "number": opened.number, "n": n, "gradients": 1,
              "attempt": opened.attempt, "answers": opened.letters[k].name,
              "signature": b""}  # fmt: skip
    return Letter("upload", fields, arrays)


def test_who_takes_all_the_time_of_a_rounds_first_message_leaves_the_others_theirs():
    """The deadline was that of all messages together: one that was late lost the round for all."""

    async def play():
        algorithm, now = PeFLL(**SMALL), 0.0
        boxes, anatomy = fitted(algorithm, DATA, linear(), 0, 0)
        engine = NetworkEngine(boxes, linear(), anatomy, 3, "s")
        engine.clock = lambda: now
        patience = Patience(deadline=90.0, silence=1000.0)
        running = asyncio.create_task(engine.round(0, [0, 1, 2], patience))
        party_states = [seat_of(algorithm, k) for k in (0, 1)]
        for number in range(3):
            opened = await reaches(engine, number)
            for k, party_state in enumerate(party_states):
                came = decode(b"".join(opened.letters[k].pieces))
                arrays, _ = party_state.work(0, number, list(came.arrays))
                engine.upload(k, upload_to(opened, k, arrays))
            while engine.opened is opened and number == 0:
                now += 10.0  # party 2 says nothing
                opened.moved.set()
                await asyncio.sleep(0.01)
        return await running

    outcome = asyncio.run(asyncio.wait_for(play(), 600))
    assert outcome.arrived.tolist() == [0, 1]
    assert outcome.missing == {2: Cause("too slow", "has not asked for work")}


def test_a_round_that_begins_anew_has_time_of_its_own():
    """One that was late and spoilt the round, too, left the others no time to do it again."""

    async def play():
        algorithm, now = Late(), 0.0
        boxes, anatomy = fitted(algorithm, DATA, linear(), 0, 0)
        engine = NetworkEngine(boxes, linear(), anatomy, 3, "s")
        engine.clock = lambda: now
        running = asyncio.create_task(engine.round(0, [0, 1, 2], Patience(100.0, 1000.0, needed=2)))
        small, w = torch.full_like(linear().w, 1e-3), linear().w
        for parties, first in (([0, 1, 2], [small, small, 9e11 + 0 * w]), ([0, 1], [small] * 2)):
            for number, arrays in enumerate((first, [0 * w] * 3)):
                opened = await reaches(engine, number)
                now += 49.0
                for k in parties:
                    engine.upload(k, upload_to(opened, k, [arrays[k]]))
                while engine.opened is opened:
                    await asyncio.sleep(0.001)
        return await running

    outcome = asyncio.run(asyncio.wait_for(play(), 600))
    assert outcome.arrived.tolist() == [0, 1]
    assert outcome.missing == {2: Cause("diverged")}


def test_a_site_that_restarts_before_a_message_without_arrays_goes_on_with_its_round():
    """PFedHN's third upload is empty: it was taken for sent, and the state was unreadable."""
    algorithm = PFedHN(new_steps=1, **SMALL)
    party_state, again = seat_of(algorithm, 0), seat_of(algorithm, 0)
    first, second, _ = party_state.anatomy.messages
    party_state.work(0, 0, [])
    party_state.work(0, 1, leaves(first.reply))
    again.restore(party_state.state())
    for each in (party_state, again):
        assert each.pending == -1
        assert each.work(0, 2, leaves(second.reply))[0] == []

    assert again.pending == 0
    torch.testing.assert_close(leaves(again.turn.own.state), leaves(party_state.turn.own.state))


def test_a_gradient_of_zero_at_large_weights_is_no_step_of_per_fedavg():
    """After a lie of 2e4 an honest site's loss was 0: it sent NaN, and no quorum was left."""

    class Line:
        def grad(self, w, batch):
            return 2 * w

    w = torch.full((9,), 5e3)
    found = PerFedAvg().curvature(Line(), w, torch.zeros_like(w), None)

    assert torch.equal(found, torch.zeros_like(w))


@pytest.mark.parametrize("value", [1e30, -1e13, float("inf")])
def test_a_peers_vector_beyond_all_numbers_is_refused(value):
    """A finite 1e30 was mixed in, and ended the honest peers' study: no longer finite."""
    words, like = Words("s", 3), torch.zeros(4)
    with pytest.raises(Refused, match="not finite, or beyond 1e"):
        words.read(1, words.vector((0, 0), torch.full_like(like, value)), like)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["rounds", "gossip"])
@pytest.mark.parametrize("says", ["thanks", "beyond", "no"])
def test_a_peer_that_answers_what_no_peer_says_is_left_out(says, asynchronous):
    """The task that asked it died of a KeyError; a refusal of a megabyte was told as it came."""

    class Odd:
        async def answer(self, j, letter):
            if says == "no":
                raise Refused("\x1b[2J" + 3000 * "x")
            beyond = {"study": "twin", "round": 1 << 62, "number": 0, "doing": "", "gave_up": None}
            return Letter("thanks") if says == "thanks" else Letter("beat", beyond)

    async def play():
        data, model = problem(3)
        graph = topology("complete", 3)
        circle = Circle(
            DSGD(lr=0.1, batch_size=4), data, model, graph, 2, silence=5.0,
            asynchronous=asynchronous,
        )  # fmt: skip
        circle.up[0] = Odd()
        circle.begin(1)
        circle.begin(2)
        await asyncio.wait_for(circle.done(), 600)
        return circle.reports

    reports = asyncio.run(play())
    missing = [report.missing for j in (1, 2) for report in reports[j]]
    assert len(missing) == 4
    causes = {why for each in missing for k, why in each.items() if k == 0}
    assert all(len(why) < 100 and why.isprintable() for why in causes)
    assert asynchronous or all(each[0].startswith("refused: ") for each in missing[::2])


def test_a_peer_that_tells_of_old_rounds_again_and_again_does_not_hold_the_coordinator():
    """Every letter was a sign of life, so that a round was waited for without an end."""

    async def play():
        one = peer_study(2, 0.3)
        for t, k in itertools.product((1, 2), range(3)):
            await one.answer(k, told(t))
        going = asyncio.create_task(asyncio.to_thread(one.loop.go, None, None))
        async with asyncio.timeout(600):
            while not going.done():
                await one.answer(3, told(1))
                with suppress(Refused):
                    await one.answer(3, Letter("scale", {"study": "s"}))
                await asyncio.sleep(0.01)
        await going
        return one.run

    run = asyncio.run(play())
    assert run.done == 2
    assert run.participation[1].missing == {3: Cause("silent")}


def test_of_what_peers_tell_of_rounds_to_come_little_is_kept():
    """A megabyte of words for each round of a study was kept until that round."""

    async def play():
        one = peer_study(60, 0.3)
        words = {"missing": {"0": 500_000 * "x"}, "signature": bytes(100_000)}
        for t in range(1, 61):
            letter = told(t, **words)
            await one.answer(3, Letter("told", letter.fields, [torch.zeros(9000)]))
        return held_by(one.engine.told)

    assert asyncio.run(play()) < 60 * 1000


def test_a_refusal_is_short_whatever_was_sent(tmp_path):
    """A shape of half a million sides was said again in the audit log, and in no letter at all."""
    facts = Facts.of(party(text_of(), 0)).to_json() | {"shape": 500_000 * "1x"}
    with pytest.raises(ArchipelError) as no:
        Facts.of_json(facts | {"task": "none"})
    audit = Audit(tmp_path / "audit.jsonl", Identity.create())
    Refusals(audit).add("ulm", "approve", 2_000_000 * "x")

    async def asks():
        async def answer(who, letter):
            raise Refused(2_000_000 * "x")

        await MemoryLink("ulm", answer, Partials()).ask(Letter("thanks"))

    assert len(str(no.value)) < 1000
    assert (tmp_path / "audit.jsonl").stat().st_size < 2000
    with pytest.raises(Refused) as refused:
        asyncio.run(asyncio.wait_for(asks(), 600))
    assert len(str(refused.value)) < 5000
