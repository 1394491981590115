"""Rounds in which nobody waits for anybody: each party works on the version that it was given."""

import asyncio
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.aggregation.secure import SecureSum
from archipel.algorithms import FedAsync, FedAvg, FedBuff
from archipel.engines.network.buffered import Buffered
from archipel.engines.network.fitting import fitted
from archipel.engines.network.in_process import play
from archipel.engines.network.opened import Patience
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.server import Steps, Upload
from archipel.engines.plan import Plan
from archipel.tree import leaves, tree_map
from archipel.wire.wire import Wire

DATA = ar.load("heart_disease").standardised()
EVERYBODY = list(range(DATA.training))
ONE = Plan("one", 1, 1)
WORK = {"lr": 0.1, "batch_size": 16}


def mlp():
    torch.manual_seed(0)
    return ar.Model(nn.Sequential(nn.Linear(13, 5), nn.ReLU(), nn.Linear(5, 2)))


def locally(algorithm, rounds):
    with ar.LocalEngine(algorithm, DATA, mlp(), plan=ONE) as engine:
        for t in range(rounds):
            engine.round(t, EVERYBODY)
        return engine.shared


def same(found, expected):
    torch.testing.assert_close(leaves(found), leaves(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cuts", [(), [(900, 1e9), (1e9, 2000), (50, 50)]])
def test_with_equal_pace_and_all_in_the_buffer_it_is_fedavg(cuts):
    expected = locally(FedAvg(**WORK), 4)

    played = asyncio.run(
        play(FedBuff(**WORK, by_examples=True), DATA, mlp(), [EVERYBODY] * 4, cuts)
    )

    same(played.engine.shared, expected)
    assert [outcome.arrived.tolist() for outcome in played.outcomes] == [EVERYBODY] * 4
    assert not any(outcome.missing for outcome in played.outcomes)


def recorded(monkeypatch):
    """What was taken, as it came: party, version, and the round that it was weighed for."""
    taken, upload = [], Buffered.upload

    def record(self, party, letter):
        known = party in self.uploads
        upload(self, party, letter)
        if party in self.uploads and not known:
            taken.append((party, letter["version"], letter["round"]))

    monkeypatch.setattr(Buffered, "upload", record)
    return taken


def replayed(algorithm, outcomes, taken):
    """The shared state after the same steps in one process, each upload from its version."""
    boxes, anatomy = fitted(algorithm, DATA, mlp(), 0, 0, None, len(EVERYBODY))
    shared, waiting = [tree_map(torch.Tensor.clone, anatomy.shared)], list(taken)
    for t, outcome in enumerate(outcomes):
        uploads = {}
        for k in outcome.arrived.tolist():
            at = next(i for i, each in enumerate(waiting) if each[0] == k)
            _, version, joined = waiting.pop(at)
            assert joined - version == outcome.stale.get(k, 0)
            state = PartyState(algorithm, DATA.select(np.array([k])), mlp(), party=k, private=False)
            state.admission = lambda *_, joined=joined: (joined, 0)
            arrays, gradients = state.work(version, 0, leaves(shared[version]))
            uploads[k] = Upload(arrays, state.n, gradients)
        steps = Steps(boxes, anatomy, shared[t], len(EVERYBODY), t)
        shared.append(steps.take(uploads)[0])
    return shared[-1]


@pytest.mark.parametrize("algorithm", [FedBuff(**WORK), FedAsync(**WORK)], ids=["buff", "async"])
def test_who_is_slow_holds_nobody_up_and_is_taken_when_it_comes(algorithm, monkeypatch):
    taken, buffer = recorded(monkeypatch), 1 if isinstance(algorithm, FedAsync) else 2
    passed = Counter()

    async def run():
        gate = asyncio.Event()

        async def pace(k):
            passed[k] += 1
            if sum(passed.values()) > 5:
                gate.set()
            if k == 3:
                await gate.wait()

        patience = Patience(buffer=buffer)
        return await play(algorithm, DATA, mlp(), [EVERYBODY] * 8, patience=patience, pace=pace)

    played = asyncio.run(run())

    arrived = [outcome.arrived.tolist() for outcome in played.outcomes]
    assert [len(each) for each in arrived] == [buffer] * 8
    assert not any(outcome.missing for outcome in played.outcomes)
    late = [k for outcome in played.outcomes for k in outcome.stale]
    assert 3 not in arrived[0] and (3 in late or not any(3 in each for each in arrived))
    same(played.engine.shared, replayed(algorithm, played.outcomes, taken))
    assert sorted(played.scores) == EVERYBODY  # who trains scores the model beside it


def test_a_secure_sum_is_made_of_the_first_that_are_ready_and_nobody_waits_for_the_slow_one():
    """Uploads began from several versions; the server sees their sum alone."""
    wire = Wire(sum=SecureSum())

    async def run():
        gate, ready = asyncio.Event(), Counter()

        async def pace(k):
            ready[k] += 1
            if sum(ready.values()) > 12:
                gate.set()
            if k == 3:
                await gate.wait()

        patience = Patience(buffer=3)
        return await play(
            FedBuff(**WORK), DATA, mlp(), [EVERYBODY] * 6, patience=patience, wire=wire, pace=pace
        )

    played = asyncio.run(run())

    arrived = [outcome.arrived.tolist() for outcome in played.outcomes]
    assert arrived[:3] == [[0, 1, 2]] * 3
    assert all(len(each) == 3 for each in arrived)
    late = {k: steps for outcome in played.outcomes for k, steps in outcome.stale.items()}
    assert max(late.values(), default=0) > 1
    steps = [
        (k, t - outcome.stale.get(k, 0), t)
        for t, outcome in enumerate(played.outcomes)
        for k in outcome.arrived.tolist()
    ]
    expected = replayed(FedBuff(**WORK), played.outcomes, steps)
    torch.testing.assert_close(leaves(played.engine.shared), leaves(expected), rtol=1e-4, atol=1e-5)
