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

import pytest
import torch

from archipel.algorithms import ALGORITHMS, DSGD, Alone, PeFLL, PFedHN
from archipel.data.shadow import Facts, shadow
from archipel.engines.network.engine import Patience
from archipel.engines.network.letters import Letter
from archipel.engines.network.seat import Seat, anatomy_of
from archipel.exchange import is_peer
from archipel.federation.gathering import Gathering
from archipel.federation.roster import Signed
from archipel.study import Study
from archipel.tree import leaves
from network import circles
from network.liar import Lies, Teller, held_by
from network.test_federation import coordinator, joined, party, text_of
from network.test_member import opened
from network.walks import HONEST, LIAR, ROUNDS, Walk, text_for

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

Tallies = dict[str, Counter[tuple[str, str]]]  # algorithm -> (state, kind of letter) -> letters


async def at_coordinator(one, sites, algorithm, seed, tally):
    """A study at a coordinator: the honest sites were in every round of it."""
    run = await Walk(one, sites, text_for(algorithm, seed), f"{algorithm} {seed}", tally).go()

    assert run.done == ROUNDS
    assert bool(torch.isfinite(run.vector).all())
    for cohort in run.participation:
        assert cohort.counted
        assert {0, 1, 2} <= set(cohort.present.tolist()), cohort.missing


async def among_peers(name, seed, tally):
    """A study among peers: the honest ones did every round, and have a model each."""
    algorithm, graph, asynchronous = PEERS[name]
    walk = circles.Round(algorithm, graph, f"{name} {seed}", tally, asynchronous=asynchronous)
    states = await walk.go()

    assert all(bool(torch.isfinite(leaf).all()) for leaf in leaves(tuple(states)))
    for j in walk.honest:
        rounds = {report.round for report in walk.circle.reports[j]}
        assert rounds == set(range(1, circles.ROUNDS + 1))


def gathering(rounds, silence):
    """What a coordinator hears of a study among four peers."""
    text = text_of("dsgd", **{"study.rounds": rounds})
    study = Study.parse(text.decode())
    sites = {name: Facts.of(party(text, k)) for k, name in enumerate((*HONEST, LIAR))}
    fed = shadow("s", sites)
    found = Gathering(
        study.algorithm_object, fed, study.build_model(fed), study.policy(), "s", sites,
        asyncio.get_running_loop(), silence,
    )  # fmt: skip
    found.roster = Signed(b"", b"")
    return found


def told(t, **changes):
    fields = {"study": "s", "round": t, "metrics": {"accuracy": 0.5}, "points": 3, "missing": {},
              "gradients": 1, "up": 8, "down": 8, "signature": b""}  # fmt: skip
    return Letter("told", fields | changes)


async def at_gathering(seed, tally):
    """What peers tell: the coordinator is done when they are."""
    lies, one = Lies(f"{TOLD} {seed}"), gathering(ROUNDS, 0.5)
    for t, k in itertools.product(range(1, ROUNDS + 1), range(3)):
        await one.answer(k, told(t))
    (run,) = one.runs

    def where():
        return "told" if one.engine.last.get(3, 0) > run.done else "round open"

    async def answer(who, letter):
        return await one.answer(int(who), letter)

    teller = Teller("3", answer, where, tally)
    going = asyncio.create_task(asyncio.to_thread(one.go, None, None))
    kinds = ["told"] * 12 + ["roster", "scale", "sums", "away", "next", "upload", "vector"]
    sizes = []
    try:
        async with asyncio.timeout(120):
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
                if name in SERVER:
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
    anatomy = anatomy_of(made.algorithm_object, data, made.build_model(data), 0, 0)
    found = {(f"message {i + 1}", "upload") for i in range(len(anatomy.messages))}
    found |= {("evaluation", "scores"), ("done", "model")}
    if for_long:
        others = ("closed", "next"), ("withdrawn", "upload"), ("message 1 anew", "upload")
        found |= {*others, ("message 1, answered", "upload"), ("message 1, lost", "upload")}
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
    return {name: each for name, each in lacks.items() if each}


ALL = [*SERVER, *PEERS, TOLD]


def test_a_member_that_lies_ends_no_study_and_holds_none(tmp_path):
    plan = [(name, seed) for seed in (1, 2) for name in ("pefll", "ditto", "pfedhn", *PEERS, TOLD)]
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
