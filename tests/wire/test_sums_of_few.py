"""Sums of too few parties: refused before the start, or not counted, with the protocol or not."""

import asyncio

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.gopa import GaussianGopa, Gopa
from archipel.aggregation.secure import SecureSum
from archipel.aggregation.shuffled import ShuffledSum
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, BelowQuorum
from archipel.federation.rehearsal import rehearse
from archipel.privacy.promise import Privacy
from archipel.tree import leaves
from problems import classification, network

DATA, ONE, TWO = classification(6, 4, 3, 0), Plan("one", 1, 1), Plan("stacked", 2, 2)
SUMS = [SecureSum(least=4), Gopa(least=4)]
BOTH = pytest.mark.parametrize("protocols", [False, True])


def named(each):
    return type(each).__name__


def simulate(how, rounds=6, **options):
    algorithm = ar.Scaffold(lr=0.1, batch_size=4)
    return ar.simulate(
        algorithm, DATA, network(4, 3), rounds=rounds, wire=ar.Wire(sum=how), plan=ONE, **options
    )


@BOTH
@pytest.mark.parametrize("how", [SecureSum(least=9), Gopa(least=9), ShuffledSum(least=9)])
def test_a_sum_of_more_parties_than_a_round_has_is_refused_before_the_start(
    how, protocols, tmp_path
):
    with pytest.raises(ArchipelError, match=r"least = 9 .* a round has 6; give least=6 or fewer"):
        simulate(how, protocols=protocols, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@BOTH
@pytest.mark.parametrize("how", [SecureSum(), Gopa(), GaussianGopa(0.1, 1.0)], ids=named)
def test_a_sum_of_one_party_is_refused_before_the_start(how, protocols):
    with pytest.raises(ArchipelError, match=r"wire\.sum, .*: a round has 1 party.* 2 or more"):
        simulate(how, sample=0.2, protocols=protocols)


@BOTH
def test_more_examples_than_a_sum_has_room_for_are_refused_before_the_start(protocols, tmp_path):
    most, out = int(DATA.n.max()), {"protocols": protocols, "out": tmp_path / "run"}
    wire, model = ar.Wire(sum=SecureSum(examples=most - 1)), network(4, 3)
    with pytest.raises(ArchipelError, match=rf"a party has {most} examples.*={most} or more"):
        ar.simulate(ar.FedAvg(lr=0.1), DATA, model, rounds=1, wire=wire, plan=ONE, **out)
    assert not (tmp_path / "run").exists()
    simulate(wire.sum, rounds=1, protocols=protocols)  # every party counts once


@pytest.mark.parametrize(
    ("promise", "how", "said"),
    [
        (
            {"trust": "server"},
            SecureSum(),
            r'"server", wire\.sum = "secure": .*trust = "sum", or',
        ),
        (
            {"trust": "nobody"},
            Gopa(),
            r'"nobody", wire\.sum = "gopa": .*trust = "sum", or',
        ),
        ({"trust": "server"}, ShuffledSum(least=3), r'"shuffled": .*trust = "shuffler", or leave'),
        ({"trust": "server"}, GaussianGopa(0.1, 1.0), r'"gopa-gaussian": .* sum; leave wire\.sum'),
        ({"trust": "sum", "honest": 6}, SecureSum(), r"honest = 6: a round has 6 .*; give 5 at m"),
    ],
)
def test_a_promise_is_refused_with_a_remedy_that_helps(promise, how, said):
    with pytest.raises(ArchipelError, match=said):
        simulate(how, privacy=Privacy("party", noise=1.0, **promise))
    with pytest.raises(ArchipelError, match="a round has 1 party"):
        simulate(SecureSum(), sample=1, privacy=Privacy("party", noise=1.0, trust="sum"))


def test_a_run_whose_sums_would_be_refused_is_still_read():
    """Folders of others, and of sites of which one is known, are looked at without a start."""
    ar.LocalEngine(ar.FedAvg(lr=0.1), DATA, network(4, 3), cohort=1, wire=ar.Wire(sum=SecureSum()))


@pytest.mark.parametrize("how", SUMS, ids=named)
def test_with_and_without_the_protocol_the_same_rounds_are_given_up(how):
    runs = [simulate(how, dropouts=0.4, protocols=each) for each in (False, True)]
    counted = [[cohort.counted for cohort in run.participation] for run in runs]
    there = [len(cohort.present) for cohort in runs[0].participation]

    assert counted[0] == counted[1] == [m >= 4 for m in there]
    assert 0 < sum(counted[0]) < 6 and {2, 3} & set(there)  # both happen, and not for want of any
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert not torch.equal(runs[0].vector, simulate(SecureSum(), dropouts=0.4).vector)


@BOTH
def test_a_sum_that_is_given_up_is_a_round_that_does_not_count(protocols):
    run = simulate(SecureSum(least=4), dropouts=0.4, protocols=protocols)
    few = [t for t, cohort in enumerate(run.participation, 1) if 1 < len(cohort.present) < 4]
    plain = [t for t, cohort in enumerate(run.participation, 1) if len(cohort.present) < 4]

    assert few and run.scorecard.robustness.below_quorum == len(plain)
    assert [row["counted"] for row in run.to_json()["participation"]] == [
        t not in plain for t in range(1, 7)
    ]
    for t in few:
        notes = [note for note in run.notes if note.startswith(f"round {t}: wire.sum: ")]
        assert len(notes) == 1 and notes[0].endswith("4 are needed, not counted.")


@BOTH
def test_a_sum_that_is_given_up_is_waited_for_or_aborts_the_run(protocols):
    how, who = SecureSum(least=4), {"dropouts": 0.4, "quorum": 0, "protocols": protocols}
    run = simulate(how, on_missing="wait", **who)
    assert all(cohort.counted and len(cohort.present) >= 4 for cohort in run.participation)
    assert any(cohort.waited for cohort in run.participation)

    with pytest.raises(BelowQuorum, match=r"wire\.sum: .* 4 are needed: say on_missing = 'cont"):
        simulate(how, on_missing="abort", **who)


@BOTH
@pytest.mark.parametrize("plan", [ONE, TWO], ids=lambda plan: plan.way)
def test_what_parties_keep_is_as_before_a_sum_that_is_given_up(plan, protocols):
    algorithm, wire = ar.Scaffold(lr=0.1, batch_size=4), ar.Wire(sum=SecureSum(least=4))
    with ar.LocalEngine(
        algorithm, DATA, network(4, 3), plan=plan, wire=wire, protocols=protocols
    ) as engine:
        engine.round(0, range(6))
        before = [leaf.clone() for leaf in leaves(engine.own_states(range(6)))]
        outcome = engine.round(1, np.arange(3))
        after = leaves(engine.own_states(range(6)))

        assert len(outcome.arrived) == 0 and "4 are needed" in outcome.given_up
        assert all(map(torch.equal, before, after)) and any(leaf.any() for leaf in before)


def test_who_is_lost_between_messages_of_the_protocol_needs_the_protocol():
    exact, whole, none = (
        simulate(SecureSum(), rounds=1, lost=lost, protocols=protocols)
        for lost, protocols in ((0.01, False), (0.01, True), (0.0, False))
    )
    (note,) = [note for note in exact.notes if note.startswith("lost = 0.01 has no effect")]
    assert "simulate.protocols = true" in note
    assert not [note for run in (whole, none) for note in run.notes if note.startswith("lost")]


def test_a_rehearsal_of_one_site_is_refused_before_anything_is_made(tmp_path):
    study = tmp_path / "heart.toml"
    study.write_text(
        '[study]\nname = "heart"\nrounds = 1\n[data]\nname = "heart_disease"\n'
        '[algorithm]\nname = "fedavg"\nlr = 0.1\n[wire]\nsum = "secure"\n'
    )
    out = tmp_path / "out"
    for sites, changes in ((1, {}), (3, {"wire.sum": "secure:least=4"})):
        with pytest.raises(ArchipelError, match=r"wire\.sum, SecureSum: .*a round has"):
            asyncio.run(rehearse(study, sites, out, changes=changes))
    assert not out.exists()
