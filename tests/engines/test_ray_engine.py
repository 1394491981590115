"""The Ray engine gives the vectors of the local one, whatever it runs and whoever is lost."""

import os
import signal
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.engines.engine import Evaluation
from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from archipel.exchange.boxes import is_peer
from archipel.wire.wire import Wire
from problems import classification, network

ray = pytest.importorskip("ray")
from archipel.engines.ray.cluster import connected  # noqa: E402

FEW = {"local_steps": 3, "tune_steps": 2}
DATA = classification(6, 3, 3, seed=1)
NET = network(3, 3)
PLAN = Plan("one", 2, 2)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file."""
    with connected(workers=2) as found:
        yield found


def small(make):
    default = make()
    given = {name: getattr(default, name, None) for name in FEW}
    return replace(default, **{k: FEW[k] for k, v in given.items() if v and v > FEW[k]})


def played(algorithm, pools=None, rounds=2, plan=PLAN, data=DATA, model=NET, asked=None, **more):
    """The state after some rounds, how each did, and what everybody's models say."""
    topology = ar.topology("ring", data.training) if is_peer(algorithm) else None
    more = {"topology": topology, **more}
    with LocalEngine(algorithm, data, model, plan=plan, pools=pools, **more) as engine:
        outcomes = [
            engine.round(t, range(data.training), **(asked or {})) for t in range(rounds)
        ]
        scores = [engine.evaluate(split="train")]
        if engine.has_own and "sweep" not in more:
            scores.append(engine.evaluate(own=True, split="train"))
        return engine.state(), outcomes, scores


def same(one, other):
    """Bit for bit."""
    (state, outcomes, scores), (state2, outcomes2, scores2) = one, other
    assert state.keys() == state2.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, state2[name]), name
    for ours, theirs in zip(outcomes, outcomes2, strict=True):
        assert ours.arrived.tolist() == theirs.arrived.tolist()
        assert ours[1:] == theirs[1:]
    for ours, theirs in zip(scores, scores2, strict=True):
        assert isinstance(ours, Evaluation) and ours.pooled == theirs.pooled


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_the_bits_of_the_local_engine(cluster, name):
    algorithm = small(ALGORITHMS[name])

    same(played(algorithm), played(algorithm, cluster.pool))
