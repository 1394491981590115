# SPDX-License-Identifier: Apache-2.0
"""The network engine agrees with the local one, whatever the transport does to the letters."""

import asyncio

import pytest
import torch
from torch import nn

import archipel as ar
from archipel.algorithms import FedAvg, FedRep, PeFLL, Scaffold
from archipel.engines.engine import Cause
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.in_process import play
from archipel.engines.network.opened import Patience
from archipel.engines.plan import Plan
from archipel.tree import leaves

DATA = ar.load("heart_disease").standardised()
ONE = Plan("one", 1, 1)
ALGORITHMS = {
    "fedavg": FedAvg(lr=0.1, batch_size=16),
    "scaffold": Scaffold(lr=0.05, local_steps=3, batch_size=8),
    "fedrep": FedRep(lr=0.05, batch_size=16),
    "pefll": PeFLL(local_steps=3, batch_size=8, size=4, hidden=5),
}


def mlp():
    torch.manual_seed(0)
    return ar.Model(nn.Sequential(nn.Linear(13, 5), nn.ReLU(), nn.Linear(5, 2)))


def locally(algorithm, cohorts):
    with ar.LocalEngine(algorithm, DATA, mlp(), plan=ONE) as engine:
        for t, cohort in enumerate(cohorts):
            engine.round(t, cohort)
        own = engine.evaluate(own=True) if engine.has_own else engine.evaluate()
        states = engine.own_states(range(DATA.training))
        return engine.shared, states, own.parties


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("cuts", [(), [(900, 1e9), (1e9, 2000), (50, 50)]])
def test_rounds_over_the_wire_are_those_of_a_simulation(name, cuts):
    algorithm, everybody = ALGORITHMS[name], list(range(DATA.training))
    cohorts = [everybody, [0, 2], [1, 2, 3], everybody, [3]]
    shared, states, metrics = locally(algorithm, cohorts)

    engine, party_states, outcomes, scores = asyncio.run(
        play(algorithm, DATA, mlp(), cohorts, cuts)
    )

    torch.testing.assert_close(leaves(engine.shared), leaves(shared), rtol=1e-6, atol=1e-6)
    for k, party_state in enumerate(party_states):
        mine = [leaf[k] for leaf in leaves(states)]
        torch.testing.assert_close(leaves(party_state.own.state), mine, rtol=1e-6, atol=1e-6)
        found = scores[k]["own"] or scores[k]["metrics"]
        assert found["accuracy"] == pytest.approx(float(metrics["accuracy"][k]), abs=1e-6)
    assert [outcome.arrived.tolist() for outcome in outcomes] == cohorts
    assert not any(outcome.missing for outcome in outcomes)


def engine_alone():
    algorithm, model = ALGORITHMS["fedavg"], mlp()
    boxes, anatomy = fitted(algorithm, DATA, model, 0, 0)
    return NetworkEngine(boxes, model, anatomy, 4, "s")


def test_a_silent_party_is_named_and_the_others_go_on():
    async def wait():
        engine = engine_alone()
        before = engine.vector().clone()
        outcome = await engine.round(0, [0, 1], Patience(silence=0.05))
        assert torch.equal(engine.vector(), before)
        return outcome

    outcome = asyncio.run(wait())
    assert len(outcome.arrived) == 0
    assert outcome.missing == dict.fromkeys([0, 1], Cause("silent", "has not asked for work"))


@pytest.mark.parametrize("what", ["round", "evaluation"])
def test_who_moves_bytes_is_waited_for_however_slowly_and_who_falls_silent_is_not(what):
    async def wait():
        engine, now = engine_alone(), 0.0
        engine.clock = lambda: now
        answers = Answers(engine, silence=0.01)
        waiting = asyncio.create_task(
            engine.round(0, [1], Patience(silence=0.01))
            if what == "round"
            else answers.evaluate(0, [1])
        )
        await asyncio.sleep(0)
        for _ in range(5):
            now += 0.009
            answers.moved(1)
            await asyncio.sleep(0.02)  # time for it to look at the clock
            assert not waiting.done()
        now += 0.01
        return await asyncio.wait_for(waiting, 600)

    found = asyncio.run(wait())
    assert list(found[1] if what == "round" else found) == ([1] if what == "round" else [])
