"""Shapley values: their axioms, and what they say of parties that flip labels or send nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel import adversaries as attacks
from archipel.adversaries.adversary import Adversary
from archipel.aggregation.secure import SecureSum
from archipel.engines.local.engine import Watched
from archipel.errors import ArchipelError
from archipel.runs.parts import build_model
from archipel.runs.simulation import build
from archipel.tree import leaves
from archipel.worth.measuring import Ledger, Looking, measure, told
from archipel.worth.shapley import values


def game(m, seed):
    """Any game in which player 0 adds nothing and players 1 and 2 add the same."""
    draw = np.random.default_rng(seed)
    worth = {code: float(draw.normal()) for code in range(2**m)}

    def value(who):
        rest = frozenset(who) - {0, 1, 2}
        both = len(frozenset(who) & {1, 2})
        return worth[sum(1 << i for i in rest)] + both * worth[1 if rest else 2]

    return value


@settings(max_examples=30, deadline=None)
@given(m=st.integers(3, 7), seed=st.integers(0, 999))
def test_efficient_symmetric_and_nothing_for_nothing(m, seed):
    value = game(m, seed)
    found = values(value, m, np.random.default_rng(0))

    assert found.shapley.sum() == pytest.approx(value(range(m)) - value(()), abs=1e-12)
    assert found.shapley[0] == pytest.approx(0, abs=1e-12)
    assert found.shapley[1] == pytest.approx(found.shapley[2], abs=1e-12)
    assert found.alone[0] == 0 and not found.variance.any()


def test_permutations_estimate_what_is_exact_and_say_how_sure_they_are(monkeypatch):
    value, m = game(7, 3), 7
    exact = values(value, m, np.random.default_rng(0)).shapley
    monkeypatch.setattr("archipel.worth.shapley.EXACT", 2)
    found = values(value, m, np.random.default_rng(1), 400, tolerance=0.0)

    assert (abs(found.shapley - exact) <= 5 * np.sqrt(found.variance) + 1e-12).all()
    assert found.shapley.sum() == pytest.approx(exact.sum())
    with pytest.raises(ArchipelError, match="permutations = 1: give 2 or more"):
        values(value, m, np.random.default_rng(1), 1)


def found_of(attack=None, algorithm=None, **options):
    data = ar.load("heart_disease")
    given = {"rounds": 3, "seed": 0, **options}
    if attack is not None:
        given["adversary"] = Adversary(attack, ["hungarian"])
    model = build_model(None, data, None, 0, None, None, None)
    ledger = measure(algorithm or ar.FedAvg(lr=0.1), data, model, given)
    return {row["party"]: row for row in told(ledger)["parties"]}, told(ledger)


def test_values_add_up_and_who_flips_labels_is_last():
    rows, whole = found_of()
    assert whole["exact"] and whole["evaluated"] == 3 * 2**4
    assert sum(row["shapley"] for row in rows.values()) == pytest.approx(whole["total"])
    assert not any(row["suspicion"] for row in rows.values())

    flipped, after = found_of(attacks.LabelFlip())
    assert after["parties"][-1]["party"] == "hungarian"
    assert flipped["hungarian"]["shapley"] < 0 < rows["hungarian"]["shapley"]


@pytest.mark.parametrize("kind", ["plain", "disguised", "delta"])
def test_free_riders_are_seen(kind):
    rows, _ = found_of(attacks.FreeRider(kind))

    assert rows["hungarian"]["suspicion"]
    assert not any(row["suspicion"] for name, row in rows.items() if name != "hungarian")


def test_rounds_of_several_messages_are_taken_again_for_coalitions():
    rows, whole = found_of(attacks.LabelFlip(), ar.PeFLL(server_lr=0.01))
    assert whole["models"] == "the parties' own models"
    assert sum(row["shapley"] for row in rows.values()) == pytest.approx(whole["total"])
    assert whole["parties"][-1]["party"] == "hungarian" and rows["hungarian"]["shapley"] < 0

    idle, _ = found_of(attacks.FreeRider("delta"), ar.PeFLL(), rounds=2)
    assert {name for name, row in idle.items() if row["suspicion"]} == {"hungarian"}


def test_everybody_together_is_the_round_that_was():
    """The coalition of all has the shared state that the run has, message by message."""
    data = ar.load("heart_disease")
    model = build_model(None, data, None, 0, None, None, None)
    ledger = Ledger(data.as_trained(), model, 0, 2)
    watched = Watched(lambda boxes: boxes, lambda boxes: Looking(boxes, ledger), True)
    engine, _ = build(ar.PFedHN(), data, model, {"rounds": 1, "workers": 1}, watched=watched)
    with engine:
        engine.round(0, range(4))
        after = ledger.seen.after(ledger.seen.who)

    for one, other in zip(leaves(after), leaves(engine.shared), strict=True):
        assert torch.equal(one, other)


def test_models_that_do_not_follow_the_shared_one_are_not_scored():
    rows, whole = found_of(algorithm=ar.Ditto(lr=0.1))
    plain, _ = found_of()

    assert whole["models"] == "the shared model" and "so the shared one was" in whole["notes"][-1]
    assert rows["va"]["shapley"] == pytest.approx(plain["va"]["shapley"])
    assert found_of(algorithm=ar.FineTuned(lr=0.1))[1]["models"] == "the parties' own models"


def test_a_simulation_looks_behind_a_secure_sum_but_not_behind_its_noise():
    wire = ar.Wire(sum=SecureSum())
    rows, whole = found_of(wire=wire)
    plain, _ = found_of()

    assert {name: row["shapley"] for name, row in rows.items()} == {
        name: row["shapley"] for name, row in plain.items()
    }
    assert "SecureSum was left out" in whole["notes"][-1]
    promise = ar.Privacy(unit="party", trust="sum", epsilon=10, delta=1e-3, clip=1.0)
    with pytest.raises(ArchipelError, match="what protects is the noise of all"):
        found_of(wire=wire, privacy=promise)


def test_peers_are_refused():
    data = ar.load("heart_disease")
    model = build_model(None, data, None, 0, None, None, None)
    with pytest.raises(ArchipelError, match="has no server that uploads come to"):
        measure(ar.DSGD(lr=0.1), data, model, {"rounds": 1, "topology": "ring"})
