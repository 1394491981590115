"""Models and graphs learned together, box by box: the paper's loop over parties, in numpy."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.local.engine import LocalEngine
from archipel.runs.parts import build_model
from archipel.tree import first

JOINT = Path(__file__).parents[2] / "benchmarks" / "joint.py"
SPEC = importlib.util.spec_from_file_location("joint_benchmark", JOINT)
assert SPEC is not None and SPEC.loader is not None
joint = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = joint
SPEC.loader.exec_module(joint)

TURNS = {"alone": 2, "graph_rounds": 2, "model_rounds": 2, "kappa": 3}
ROUNDS = 7


def has_turns(algorithm):
    """By hand: 5 rounds alone, then 3 of the graph and 4 of models in turn."""
    algorithm = replace(algorithm, alone=5, graph_rounds=3, model_rounds=4)
    assert [t for t in range(20) if algorithm.asks(t)] == [5, 6, 7, 12, 13, 14, 19]
    assert {algorithm.asks(t) for t in range(20)} == {0, algorithm.kappa}
    given = replace(algorithm, learned=False)
    assert not any(given.asks(t) for t in range(20))
    if isinstance(algorithm, ar.DadaBoosted):
        steps = [algorithm._steps(t) for t in range(19) if not algorithm.asks(t)]
        assert steps == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6, 7]
        assert [given._steps(t) for t in range(20)] == list(range(20))


def is_box(algorithm, loss):
    """The engine's models and edges are those of one party after another."""
    has_turns(algorithm)
    data = ar.load("moons", parties=10, clusters=True, dtype=torch.float64)
    built = build_model("linear_score", data, loss=loss)  # stumps would tie on few points
    plain = joint.Plain(algorithm, data, built)
    with LocalEngine(algorithm, data, built) as engine:
        for t in range(ROUNDS):
            engine.round(t, np.arange(10))
            plain.round(0, t)
        theta = first(engine.own_states(np.arange(10))).numpy()
        W = engine.graph().affinity().toarray()
    np.testing.assert_allclose(theta, plain.theta, atol=1e-9)
    for k, edges in enumerate(plain.edges):
        assert set(np.flatnonzero(W[k])) == set(edges)
        np.testing.assert_allclose([W[k, j] for j in edges], list(edges.values()), atol=1e-9)


@pytest.mark.parametrize("mu2", [0.3, 1.1])
def test_dada_is_its_box(mu2):
    terms = {"mu1": 1.3, "mu2": mu2, "lam": 0.2, "delta": 0.03, "least": 0.02, "confident": 8}
    is_box(ar.Dada(lr=0.7, **terms, **TURNS), None)


@pytest.mark.parametrize("mu2", [0.3, 1.1])
def test_dada_boosted_is_its_box(mu2):
    terms = {"mu1": 1.3, "mu2": mu2, "lam": 0.2, "delta": 0.03, "least": 0.02, "confident": 14}
    is_box(ar.DadaBoosted(beta=2.5, ridge=0.4, **terms, **TURNS), "adaboost")
