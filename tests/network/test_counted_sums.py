# SPDX-License-Identifier: Apache-2.0
"""Who is in a sum keeps what the round made of its own state, also if it went before the end."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.gopa import Gopa
from archipel.aggregation.secure import SecureSum
from archipel.engines.engine import Cause, Outcome
from archipel.engines.network.letters import decode
from archipel.engines.network.opened import Patience
from archipel.engines.plan import Plan
from archipel.federation.coordinator.server_study import SiteAttendance
from archipel.runs.participation import Cohort
from archipel.tree import leaves
from network.test_wire import DATA, FEDAVG, PARTIES, Federation, network
from problems import classification

WIRE = ar.Wire(sum=SecureSum())
SCAFFOLD = ar.Scaffold(lr=0.1, batch_size=4)
GRID = 1e-5


def variates(shared, own):
    """SCAFFOLD's c at the server, and the mean of the parties' c_i, which it is."""
    _, c = leaves(shared)
    return c, torch.stack([leaves(each)[0] for each in own]).mean(dim=0)


@pytest.mark.parametrize("before", range(5))
def test_a_party_that_goes_is_in_the_sum_from_its_masked_upload_on(before):
    """Between letters and in a simulation; the server's variate stays the mean of the parties'."""
    with ar.LocalEngine(
        SCAFFOLD, DATA, network(4, 3), plan=Plan("one", 1, 1), wire=WIRE, protocols=True
    ) as engine:
        answers = np.array([before if k == 3 else 9 for k in range(PARTIES)])
        simulated = [engine.round(0, range(PARTIES), answers=answers)]
        simulated.append(engine.round(1, range(PARTIES)))
        own = [leaf.clone() for leaf in leaves(engine.own_states(range(PARTIES)))]
        shared = engine.shared

    async def play():
        federation = Federation(WIRE, SCAFFOLD)
        outcomes = [await federation.round(0, range(PARTIES), {3: before}, restarts=[3])]
        outcomes.append(await federation.round(1, range(PARTIES)))
        return federation, outcomes

    federation, outcomes = asyncio.run(asyncio.wait_for(play(), 600))

    counted = before > 2
    for outcome in (simulated[0], outcomes[0]):
        assert (3 in outcome.arrived) is counted
        assert ({*outcome.left}, {*outcome.missing}) == (({3}, set()) if counted else (set(), {3}))
    assert simulated[0].left.get(3, Cause("dropped out")).why == "dropped out"
    for found, expected in zip(leaves(federation.engine.shared), leaves(shared), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    for k, party in enumerate(federation.parties):
        torch.testing.assert_close(leaves(party.own.state), [leaf[k] for leaf in own])
    kept = [party.own.state for party in federation.parties]
    torch.testing.assert_close(*variates(federation.engine.shared, kept), rtol=0, atol=GRID)


def test_in_a_stack_and_in_two_workers_it_is_the_same():
    found = []
    for plan in (Plan("one", 1, 1), Plan("stacked", 3, 2)):
        with ar.LocalEngine(
            SCAFFOLD, DATA, network(4, 3), plan=plan, wire=WIRE, protocols=True
        ) as engine:
            outcome = engine.round(0, range(PARTIES), answers=np.array([9, 4, 9, 9, 9]))
            assert outcome.arrived.tolist() == [0, 1, 2, 3, 4] and {*outcome.left} == {1}
            own = [*leaves(engine.own_states(range(PARTIES)))]
            found.append([*leaves(engine.shared), *own])
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)
    assert found[0][-1][1].abs().max() > 0


def test_a_site_that_was_killed_hears_of_it_whatever_happened_in_between():
    """It comes back with what is on its disk, and asks for the verdict before anything else."""
    federation = Federation(WIRE, SCAFFOLD)

    async def play():
        engine, parties = federation.engine, federation.parties
        running = asyncio.create_task(engine.round(0, range(PARTIES)))
        disk = None
        while not running.done():
            await asyncio.sleep(0)
            for k in range(PARTIES):
                if (sealed := engine.work_for(k)) is None:
                    continue
                letter = decode(b"".join(sealed.pieces))
                if k == 3 and letter["number"] == 3:
                    disk = parties[3].state()  # killed here
                    engine.lose(3, Cause("silent"))
                else:
                    engine.upload(k, federation.answer(k, letter))
        return await running, disk

    outcome, disk = asyncio.run(asyncio.wait_for(play(), 600))
    assert 3 in outcome.arrived and outcome.left == {3: Cause("silent")}
    for counted in (True, False):
        federation.parties[3].restore(disk)
        back = federation.parties[3]
        before = [leaf.clone() for leaf in leaves(back.own.state)]
        assert back.pending == 0
        again = back.state()  # and killed once more, before it heard
        back.restore(again)
        assert back.pending == 0
        back.verdict(0, counted)
        changed = not all(map(torch.equal, leaves(back.own.state), before))
        assert changed is counted and back.pending == -1


def test_a_party_has_no_verdict_open_before_its_upload_is_masked():
    federation, open_at = Federation(WIRE, SCAFFOLD), {}

    class Looking(Federation):
        def answer(self, k, letter, restarts=False):
            open_at.setdefault(letter["number"], self.parties[k].pending)
            return super().answer(k, letter, restarts)

    federation = Looking(WIRE, SCAFFOLD)
    asyncio.run(asyncio.wait_for(federation.round(0, range(PARTIES)), 600))
    assert open_at == {0: -1, 1: -1, 2: -1, 3: 0, 4: 0}


def test_a_round_that_is_given_up_later_counts_for_nobody():
    """Two of five go after they masked: too few are left to unmask, and all is as before."""
    federation = Federation(WIRE, SCAFFOLD)

    async def play():
        return await federation.round(0, range(PARTIES), {1: 3, 3: 4})

    before = federation.engine.vector().clone()
    outcome = asyncio.run(asyncio.wait_for(play(), 600))

    assert len(outcome.arrived) == 0 and {*outcome.missing} == {1, 3} and not outcome.left
    assert "shares" in outcome.given_up and outcome.given_up.endswith("needed.")
    assert torch.equal(federation.engine.vector(), before)
    assert all(not leaves(party.own.state)[0].any() for party in federation.parties)


def test_a_quorum_is_of_those_in_the_sum():
    """Who went after its upload had counted does not take the round back."""
    federation = Federation(WIRE, SCAFFOLD)
    engine, whole = federation.engine, federation.engine.round
    engine.round = lambda t, parties: whole(t, parties, Patience(needed=PARTIES))

    async def play():
        late = await federation.round(0, range(PARTIES), {3: 4})
        early = await federation.round(1, range(PARTIES), {3: 2})
        return late, early

    late, early = asyncio.run(asyncio.wait_for(play(), 600))
    assert len(late.arrived) == PARTIES and len(early.arrived) == 0


# -- why a sum was given up ------------------------------------------------------------------------


class _Sites:
    """What attendance needs of a study's sites."""

    def __init__(self, on_missing):
        self.said, self.on_missing, self.presence = [], on_missing, self

    def find_scale(self):
        pass

    take_in = find_scale

    def policy(self):
        return self, 3

    def waits(self, why, detail=""):
        self.said.append(f"{why}: {detail}")

    def pause(self, _):
        pass


class _There(SiteAttendance):
    """Sites that are there, and whose sum is given up at first."""

    tries = 0

    def _try(self, t):
        self.tries += 1
        counted, ids = self.tries > 2, np.arange(3)
        outcome = Outcome(ids if counted else ids[:0], given_up="" if counted else _WHY)
        return Cohort(ids, outcome.arrived, np.ones(3), {}, counted), outcome, 3

    def _refuse_spent(self, t):
        pass


_WHY = "wire.sum: 2 of those who hold shares of party 1's keys are left, and 3 are needed."


def test_a_coordinator_says_why_a_sum_was_given_up():
    sites = _Sites("wait")
    attendance = _There(None, sites, SimpleNamespace(algorithm=ar.FedAvg()))
    cohort, outcome = attendance.take_part(4, 0)

    assert cohort.counted and cohort.waited == 2 and outcome.given_up == _WHY
    assert sites.said[0] == f"its sum was given up: {_WHY.rstrip('.')}" and sites.said[-1][0] == ":"

    sites = _Sites("continue")
    cohort, outcome = _There(None, sites, SimpleNamespace(algorithm=ar.FedAvg())).take_part(4, 0)
    assert not cohort.counted and outcome.given_up == _WHY

    sites = _Sites("abort")
    with pytest.raises(ar.ArchipelError, match=r"round 5: .*2 of those who hold shares .*needed"):
        _There(None, sites, SimpleNamespace(algorithm=ar.FedAvg())).take_part(4, 0)


def test_the_run_has_it_in_its_notes():
    data = classification(6, 4, 3, 0)
    options = {"rounds": 4, "wire": WIRE, "protocols": True, "workers": 1, "baselines": False}
    run = ar.simulate(
        ar.FedAvg(lr=0.1), data, network(4, 3), lost=0.25, on_missing="wait", **options
    )
    why = [note for note in run.notes if "its sum was given up" in note]
    went = [note for note in run.notes if "when its upload was in the sum already" in note]
    assert why and went and all(note.count(".") <= 2 for note in why)


# -- killed at every stage: what the drill does with processes -------------------------------------


async def killed_at(federation, t, stage, who):
    """Play a round whose coordinator, or site, is killed when message `stage` is half there."""
    engine, before, task = federation.engine, federation.engine.state(), None
    while True:
        if task is None:
            task = asyncio.create_task(engine.round(t, range(PARTIES)))
        await asyncio.sleep(0)
        if task.done():
            break
        for k in range(PARTIES):
            if (sealed := engine.work_for(k)) is None:
                continue
            letter = decode(b"".join(sealed.pieces))
            engine.upload(k, federation.answer(k, letter))
            if (letter["number"], k) == (stage, 2) and who:
                if who == "coordinator":
                    task.cancel()
                    await asyncio.wait([task])
                    engine.restore(before)
                    task = None
                federation.restart(k)
                who = ""
                break
    outcome = await task
    for k in range(PARTIES):
        federation.restart(k)
        federation.parties[k].verdict(t, k in outcome.arrived)
    return outcome


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [(FEDAVG, SecureSum(bits=64)), (SCAFFOLD, SecureSum(bits=64)), (SCAFFOLD, Gopa(bits=64))],
    ids=lambda each: type(each).__name__,
)
def test_kills_at_every_stage_change_nothing(algorithm, how):
    """Both are what plain sums give, to steps of the grid, at the server and at the parties."""
    secure, plain = Federation(ar.Wire(sum=how), algorithm), Federation(ar.Wire(), algorithm)
    kills = [(stage, who) for stage in range(5) for who in ("site", "coordinator")]

    async def play():
        for t, (stage, who) in enumerate(kills):
            outcome = await killed_at(secure, t, stage, who)
            assert len(outcome.arrived) == PARTIES and not outcome.missing
            await plain.round(t, range(PARTIES))

    asyncio.run(asyncio.wait_for(play(), 600))
    pairs = [(secure.engine.shared, plain.engine.shared)]
    pairs += [
        (one.own.state, other.own.state)
        for one, other in zip(secure.parties, plain.parties, strict=True)
    ]
    for found, expected in pairs:
        torch.testing.assert_close(leaves(found), leaves(expected), rtol=0, atol=1e-9)
