"""GOPA in studies: over letters as in a simulation, and with a promise of privacy."""

import asyncio

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.gopa import GaussianGopa, Gopa
from archipel.aggregation.summation import Hiding, OfIntegers
from archipel.engines.network.in_process import play
from archipel.errors import ArchipelError
from archipel.privacy.encoding import counted
from archipel.privacy.promise import Privacy
from archipel.wire.wire import Wire
from problems import classification, learn, network

PARTIES = 6
ALGORITHMS = [ar.FedAvg(0.1), ar.Scaffold(0.1)]


def problem():
    return classification(PARTIES, 4, 3, 0), network(4, 3)


def over_letters(algorithm, wire, rounds=2, **options):
    played = asyncio.run(
        play(algorithm, *problem(), [range(PARTIES)] * rounds, wire=wire, **options)
    )
    return played.engine.vector(), played


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_letters_carry_the_simulations_integers(algorithm):
    wire = Wire(sum=Gopa())
    vector, played = over_letters(algorithm, wire)

    assert torch.equal(vector, learn(algorithm, *problem(), 2, wire=wire))
    assert torch.equal(vector, learn(algorithm, *problem(), 2, wire=wire, protocols=True))
    assert [each.arrived.tolist() for each in played.outcomes] == [[*range(PARTIES)]] * 2


def test_noise_of_the_gaussian_form_comes_from_the_seed_only_in_a_simulation():
    wire, algorithm = Wire(sum=GaussianGopa(0.01, 2.0, colluding=0.0)), ar.Scaffold(0.1)
    expected = learn(algorithm, *problem(), 1, wire=wire, protocols=True)
    same, _ = over_letters(algorithm, wire, 1)
    real = [over_letters(algorithm, wire, 1, private=True)[0] for _ in range(2)]

    assert torch.equal(same, expected)
    assert not (real[0] == real[1]).any() and not (real[0] == expected).any()
    assert (real[0] - expected).abs().max() < 0.1


def test_forms_say_what_they_are():
    assert isinstance(Gopa(), OfIntegers) and isinstance(Gopa(), Hiding)
    assert not isinstance(GaussianGopa(1.0, 1.0), OfIntegers)  # its noise is not in a coding
    assert (Gopa().fewest(100), Gopa().colluders(100)) == (80, 30)


def test_a_promise_is_kept_with_shares_of_noise_that_gopa_hides():
    wire, noisy = Wire(sum=Gopa(colluding=0.2)), Privacy("party", noise=1.0, trust="sum")
    runs = [
        learn(ar.FedAvg(0.1), *problem(), 2, wire=wire, privacy=noisy, protocols=each)
        for each in (False, True)
    ]
    assert torch.equal(*runs)

    promise = Privacy("party", epsilon=8.0, delta=1e-3, trust="sum")
    run = ar.simulate(ar.FedAvg(0.1), *problem(), rounds=3, wire=wire, privacy=promise, workers=1)
    assert 7.9 < run.scorecard.privacy.epsilon <= 8.0
    fewest, colluders = wire.sum.fewest(PARTIES), wire.sum.colluders(PARTIES)
    assert (fewest, colluders) == (5, 1)
    assert run.kept.counted == counted(fewest, colluders) < fewest


def test_the_gaussian_form_has_its_own_noise_and_no_promise_of_a_study():
    promise = Privacy("party", epsilon=8.0, delta=1e-3, trust="sum")
    with pytest.raises(ArchipelError, match=r'privacy\.trust = "sum", wire\.sum = "gopa-gaussian"'):
        learn(ar.FedAvg(0.1), *problem(), 1, privacy=promise, wire=Wire(sum=GaussianGopa(0.1, 1.0)))


def test_a_party_that_is_lost_in_mid_round_is_rolled_back_with_a_promise_too():
    promise = Privacy("party", noise=1.0, trust="sum", honest=3)
    how = {"wire": Wire(sum=Gopa(colluding=0.0, dropouts=0.2)), "privacy": promise}
    data, model = problem()
    found = []
    for protocols, answers in ((True, np.array([9, 9, 2, 9, 9, 9])), (False, None)):
        with ar.LocalEngine(
            ar.Scaffold(0.1), data, model, plan=ar.Plan("stacked", 3, 1), rounds=2,
            protocols=protocols, **how,
        ) as engine:  # fmt: skip
            there = range(PARTIES) if protocols else [0, 1, 3, 4, 5]
            engine.round(0, there, answers=answers)
            found.append(engine.vector().clone())

    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


@pytest.mark.parametrize("graph", ["complete", "ring"])
def test_peers_mix_with_each_other_and_not_in_a_sum(graph):
    data, model = problem()
    with pytest.raises(ArchipelError, match=r"wire\.sum = Gopa: a peer of DSGD weighs what each"):
        ar.LocalEngine(
            ar.DSGD(0.1), data, model, wire=Wire(sum=Gopa()), topology=ar.topology(graph, PARTIES)
        )
