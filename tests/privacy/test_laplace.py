# SPDX-License-Identifier: Apache-2.0
"""Laplace noise on gradients that are clipped in L1: at the door, in accounts, under attack."""

from functools import partial

import numpy as np
import pytest
import torch
from auditing import Asking, of_records
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_canaries import again, everybody, halved, holds, is_found, silent, unclipped

import archipel as ar
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.federation.site.account import for_records
from archipel.models.clipped import clipping
from archipel.privacy.accounting import Laplace, Release, epsilon
from archipel.privacy.door import Door, Noised
from archipel.privacy.promise import Privacy
from problems import classification, network

few = settings(max_examples=12, deadline=None)


def door(data, model, clip, noise, t=0, way=None, **options):
    way = way or clipping(model, data.x[:8].nan_to_num(), data.y[:8], norm=1)
    me = LocalParty(data, model, model.one, np.array([0]), 0, t, (), clipping=way, **options)
    return Door(me, Noised(clip, {0: noise}, mechanism="laplace"), "Mine")


@few
@given(
    seed=st.integers(0, 99),
    clip=st.sampled_from([1e-3, 0.3, 5.0]),
    wild=st.sampled_from([0.0, 1e8, np.inf, np.nan]),
)
def test_one_record_moves_a_gradient_by_at_most_two_clips_in_l1(seed, clip, wild):
    """2 C / n where it is replaced, as the paper has it."""
    data, model = classification(1, 4, 3, seed), network(4, 3, seed)
    other = data.x.clone()
    other[0] = other[0] * 1e4 if wild == 0 else wild
    them = ar.Federation(other, data.y, data.offsets, data.test_from, 1, data.task, 3, scan=False)
    found = [door(each, model, clip, 0.0).grad(model.w) for each in (data, them)]

    assert float((found[0] - found[1]).abs().sum()) <= 2 * clip / int(data.n[0]) * (1 + 1e-6)


@pytest.mark.parametrize("private", [False, True])
def test_noise_is_laplace_noise_of_the_scale_that_is_planned(private):
    data, model = classification(1, 4, 3, 0), network(4, 3)
    clip, noise, n = 0.7, 1.3, int(data.n[0])
    way = clipping(model, data.x[:8], data.y[:8], norm=1)
    quiet = door(data, model, clip, 0.0).grad(model.w)
    drawn = [
        door(data, model, clip, noise, t, way, private=private).grad(model.w) for t in range(300)
    ]
    values = (torch.stack(drawn) - quiet).flatten().numpy() * n / clip

    assert stats.kstest(values / noise, "laplace").pvalue > 1e-4
    assert np.abs(values).mean() == pytest.approx(noise, rel=0.1)


def test_noise_makes_up_for_what_rounding_to_a_grid_adds():
    data, model = classification(1, 4, 3, 0), network(4, 3)
    private = door(data, model, 1.0, 1e3)
    wider = private._wider(10**3)[0]
    assert 1e3 < wider < 1e3 * (1 + 1e-3)
    assert 1 / wider + 10**3 * 2.0**-32 <= 1e-3
    with pytest.raises(ArchipelError, match="cannot be rounded"):
        private._wider(10**7)


# -- accounts --------------------------------------------------------------------------------------


def study(**promise):
    data, model = classification(4, 4, 3, 0), network(4, 3)
    options = {"unit": "record", "noise": 4.0, "delta": 1e-3, "mechanism": "laplace", **promise}
    return ar.simulate(
        ar.FedAvg(lr=0.1, batch_size=None), data, model, rounds=3, workers=1,
        privacy=Privacy(**options),
    )  # fmt: skip


@pytest.mark.parametrize(("neighbours", "far"), [("add_or_remove", 1), ("replace", 2)])
def test_a_study_spends_what_its_releases_cost(neighbours, far):
    run = study(neighbours=neighbours)
    kept = run.kept
    assert kept.releases(0, 3) == [Release(Laplace(4.0), None, 3)]
    expected = epsilon([Release(Laplace(4.0), None, 3)], 1e-3, neighbours=neighbours)
    assert kept.spent({0: 3})[0] == expected <= 3 * far / 4.0
    assert for_records(kept.releases(0, 3), neighbours) == (Release(Laplace(4.0 / far), None, 3),)
    assert run.scorecard.privacy.promise.mechanism == "laplace"


def test_noise_is_found_for_a_budget():
    run = study(noise=None, epsilon=2.0)
    assert 1.99 < run.kept.spent({0: 3})[0] <= 2.0


def test_several_gradients_on_one_sample():
    from archipel.privacy.promise import Use
    from archipel.privacy.release import Poisson

    assert Use(None, 2, 3, mechanism="laplace").release(4.0, 5) == Release(Laplace(4.0), None, 30)
    sampled = Use(Poisson(0.1), 2, 4, mechanism="laplace").release(4.0, 5)
    assert sampled == Release(Laplace(1.0), Poisson(0.1), 10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"unit": "party"}, 'privacy.mechanism = "laplace": is for unit = "record"'),
        ({"unit": "party", "mechanism": "gaussian", "neighbours": "replace"}, "privacy.neighbours"),
        ({"correlated": "tree"}, "is Gaussian"),
        ({"mechanism": "cauchy"}, "privacy.mechanism"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(ArchipelError, match=said):
        study(**given)


def test_samples_are_not_counted_by_replacing():
    data, model = classification(4, 4, 3, 0), network(4, 3)
    promise = Privacy("record", noise=4.0, delta=1e-3, neighbours="replace")
    with pytest.raises(ArchipelError, match="takes gradients of samples"):
        ar.simulate(
            ar.FedAvg(lr=0.1, batch_size=2), data, model, rounds=1, workers=1, privacy=promise
        )


# -- attacks ---------------------------------------------------------------------------------------

AUDITS = {
    "one step of all": partial(of_records, Asking(), 0.7, mechanism="laplace"),
    "four steps of all": partial(of_records, Asking(), 2.5, 4, mechanism="laplace"),
    "Poisson samples": partial(of_records, Asking(batch_size=0.5), 0.8, 3, mechanism="laplace"),
    "two gradients of all": partial(of_records, Asking(1, 2), 1.5, 1, mechanism="laplace"),
}


@pytest.mark.parametrize("name", AUDITS)
def test_no_more_is_found_than_is_claimed(name):
    holds(AUDITS[name](parties=8000))


@pytest.mark.parametrize(
    ("name", "breaks"),
    [
        ("one step of all", silent),
        ("one step of all", halved),
        ("one step of all", unclipped),
        ("four steps of all", halved),
        ("Poisson samples", everybody),
        ("two gradients of all", again),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_what_is_broken_is_found(name, breaks, monkeypatch):
    breaks(monkeypatch)
    is_found(AUDITS[name](parties=8000))
