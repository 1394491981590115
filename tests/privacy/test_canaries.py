"""Attacks on our own privacy never find more than is claimed; on what is broken they do.

A bound is above what holds with a chance of 1e-4. Seeds are fixed. Every way to break privacy that
the field knows (no noise, too little, used again; no clip; sampling claimed and not performed) is
tried on every kind of promise it can be tried on, and is found: the bound is above the claim.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from auditing import (
    DELTA,
    FAR,
    Asking,
    SeenFedAvg,
    SeenPFedMe,
    bound,
    likelier,
    of_models,
    of_records,
    of_rounds,
    of_sums,
    of_training,
    of_uploads,
    records,
)
from scipy import stats

from archipel.engines import protection
from archipel.engines.local import engine as local
from archipel.engines.party import LocalParty
from archipel.models.clipped import clipping
from archipel.models.private import window
from archipel.privacy import noisy_sum
from archipel.privacy import party as parties
from archipel.privacy.accounting import Gaussian, Poisson, Release, epsilon
from archipel.privacy.door import Door, Noised
from archipel.privacy.encoding import Share
from archipel.privacy.mechanisms import Gaussian as OnGrid
from archipel.privacy.sources import Simulated
from archipel.runs.participation import Participation
from archipel.wire import integers
from problems import linear

POWER = 0.25  # of what is claimed, at least found


def holds(found, power=POWER):
    assert power * found.claimed <= found.bound <= found.claimed, found


def is_found(found):
    assert found.bound > found.claimed, found


# -- ways to break it ------------------------------------------------------------------------------

NOISED, CLIPPED, SAMPLED = LocalParty.noised, LocalParty.clipped, LocalParty.sampled
PRIVATELY, FUSED = LocalParty.descend_privately, LocalParty._sampled


def told(patch, change):
    """Break the steps that are taken at once: they are told something else."""

    def descend_privately(me, w, work, private, *rest):
        return PRIVATELY(me, w, work, change(private), *rest)

    patch.setattr(LocalParty, "descend_privately", descend_privately)


def silent(patch):
    patch.setattr(LocalParty, "noised", lambda me, values, *how: values)
    told(patch, lambda private: private._replace(deviations=0 * private.deviations))


def halved(patch):
    patch.setattr(
        LocalParty, "noised", lambda me, values, *how: (values + NOISED(me, values, *how)) / 2
    )
    told(patch, lambda private: private._replace(deviations=private.deviations / 2))


def again(patch):
    patch.setattr(
        LocalParty, "noised", lambda me, values, purpose, *how: NOISED(me, values, "always", *how)
    )


def unclipped(patch):
    patch.setattr(LocalParty, "clipped", lambda me, w, batch, clip: CLIPPED(me, w, batch, 1e9))
    told(patch, lambda private: private._replace(clip=1e9))


def everybody(patch):
    """All records in every sample, where a Poisson sample is claimed."""
    patch.setattr(
        LocalParty, "sampled", lambda me, rates, draw: SAMPLED(me, (rates > 0) * 1.0, draw)
    )
    patch.setattr(
        LocalParty,
        "_sampled",
        lambda me, private, counts: FUSED(me, private._replace(rates=private.rates**0), counts),
    )


# -- the bound itself ------------------------------------------------------------------------------


def test_the_bound_is_below_epsilon_of_scores_whose_epsilon_is_known_and_not_far():
    random = np.random.default_rng(0)
    for mu in (0.5, 1.0, 2.0):
        outside = random.standard_normal(100_000)
        inside = mu + random.standard_normal(100_000)
        known = epsilon([Release(Gaussian(1 / mu))], DELTA)
        for scores in ((inside, outside), (-inside, -outside)[::-1]):
            assert 0.6 * known < bound(*scores, DELTA) <= known
        assert bound(outside, inside, DELTA) == 0  # who has it the wrong way round finds nothing


def test_scores_that_tell_nothing_bound_nothing_and_scores_that_tell_all_bound_by_their_number():
    same = np.random.default_rng(1).standard_normal(8000)
    assert bound(same[:4000], same[4000:], 0.0) < 0.2
    assert bound(np.ones(4000), np.zeros(4000), 0.0) == pytest.approx(np.log(2666 / 9.9), rel=0.01)


def test_the_bound_is_wrong_as_rarely_as_it_says():
    """At alpha = 0.2, 200 audits of one mechanism: Clopper and Pearson are right on average."""
    random, wrong = np.random.default_rng(2), 0
    known = epsilon([Release(Gaussian(1.0))], DELTA)
    for _ in range(200):
        draws = random.standard_normal((2, 400))
        wrong += bound(draws[0] + 1.0, draws[1], DELTA, alpha=0.2) > known
    assert stats.binomtest(wrong, 200, 0.2, "greater").pvalue > 1e-4


# -- noise alone -----------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_gaussian_mechanism(factor):
    mechanism = OnGrid(sigma=0.7, sensitivity=1.0, size=2)
    source = Simulated(0, 0, range(8000), "audit")
    values = torch.zeros(8000, 2).double()
    values[::2, 0] = 1.0
    noise = mechanism.add(values, source) - values
    scores = (values + factor * noise)[:, 0].numpy()
    found = bound(scores[::2], scores[1::2], DELTA)
    claimed = mechanism.epsilon(DELTA)
    assert POWER * claimed < found
    assert (found <= claimed) == (factor == 1.0)


# -- by record -------------------------------------------------------------------------------------

CONFIGURATIONS = {
    "one step of all": partial(of_records, Asking(), 0.7),
    "four steps of all": partial(of_records, Asking(), 1.4, 4),
    "Poisson samples": partial(of_records, Asking(batch_size=0.5), 0.8, 3),
    "Poisson samples at a small rate": partial(of_records, Asking(batch_size=0.2), 0.5, 6),
    "two gradients on a batch": partial(of_records, Asking(2, 2, batch_size=2), 1.1, 1),
}
BROKEN = [
    ("one step of all", silent),
    ("one step of all", halved),
    ("one step of all", unclipped),
    ("four steps of all", halved),
    ("Poisson samples", silent),
    ("Poisson samples", halved),
    ("Poisson samples", unclipped),
    ("Poisson samples", everybody),
    ("two gradients on a batch", again),
    ("two gradients on a batch", halved),
    ("two gradients on a batch", everybody),
]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_by_record_no_more_is_found_than_is_claimed(name):
    holds(CONFIGURATIONS[name](parties=8000))


@pytest.mark.parametrize(
    ("name", "breaks"), BROKEN, ids=lambda each: getattr(each, "__name__", each)
)
def test_by_record_what_is_broken_is_found(name, breaks, monkeypatch):
    breaks(monkeypatch)
    is_found(CONFIGURATIONS[name](parties=8000))


def test_by_record_in_two_workers(monkeypatch):
    ask = partial(of_records, noise=0.7, rounds=2, parties=6000, workers=2)
    holds(ask(Asking(batch_size=2)))
    everybody(monkeypatch)
    is_found(ask(Asking(batch_size=2)))


@pytest.mark.parametrize(
    ("algorithm", "noise", "rounds"),
    [
        (partial(SeenFedAvg, 0.1, local_steps=2, batch_size=0.5), 0.8, 2),
        (partial(SeenFedAvg, 0.1, local_steps=4, batch_size=None), 1.4, 1),
        (partial(SeenPFedMe, 0.05, local_steps=1, batch_size=None), 1.2, 1),
    ],
    ids=["FedAvg, samples", "FedAvg, all", "pFedMe"],
)
def test_by_record_what_algorithms_send(algorithm, noise, rounds, monkeypatch):
    """The server sees less than every gradient, and so may find less."""
    holds(of_training(algorithm(), noise, rounds), power=0.1)
    silent(monkeypatch)
    is_found(of_training(algorithm(), noise, rounds))


def test_by_record_in_windows_of_steps(monkeypatch):
    """Three steps at once, with noise for what is read of them alone: as of three steps."""
    data, model = records(2), linear(2)
    assert window(clipping(model, data.x, data.y), 2) == 3

    def audit():
        return of_training(SeenFedAvg(0.1, local_steps=3, batch_size=2), 0.8, 1)

    holds(audit())
    for breaks in (silent, halved, unclipped, everybody):
        with monkeypatch.context() as patch:
            breaks(patch)
            is_found(audit())


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_by_record_between_institutions(factor):
    """There, noise is on a grid and samples are of secrets, which are fixed here."""
    m, clip, noise, q = 6000, 0.5, 0.7, 0.5
    data, model = records(m, y=FAR), linear(2)
    secrets = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (m, 32), np.uint8))
    me = LocalParty(
        data, model, model.one, np.arange(m), 0, 0, (m,), private=True, secrets=secrets,
        clipping=clipping(model, data.x[:8], data.y[:8]),
    )  # fmt: skip
    door = Door(me, Noised(clip, dict.fromkeys(range(m), factor * noise)), "Mine")
    steps = [door.grad(torch.zeros(2).double(), door.batch(q))[..., 0] for _ in range(2)]
    x = -torch.stack(steps).numpy() * q * 4 / clip
    scores = likelier(x[:, None], q, noise)
    found = bound(scores[::2], scores[1::2], DELTA)
    claimed = epsilon([Release(Gaussian(noise), Poisson(q), 2)], DELTA)
    assert POWER * claimed < found
    assert (found <= claimed) == (factor == 1.0)


# -- by party --------------------------------------------------------------------------------------


def unbounded(patch):
    patch.setattr(parties, "clipped", lambda vectors, lead, clip: vectors)


def silent_server(patch):
    patch.setattr(local, "simulated", lambda seed: lambda values, purpose, t: values)


def halved_server(patch):
    whole = protection.simulated
    patch.setattr(
        local, "simulated",
        lambda seed: lambda values, *key: (values + whole(seed)(values, *key)) / 2,
    )  # fmt: skip


def same_cohort(patch):
    """The first parties in every round, where a fresh sample is claimed."""
    drawn = Participation.draw

    def draw(self, *given, **options):
        cohort = drawn(self, *given, **options)
        return cohort._replace(present=np.arange(len(cohort.present)))

    patch.setattr(Participation, "draw", draw)


def test_by_party_noise_of_their_own(monkeypatch):
    audit = partial(of_uploads, 2.4, 3)
    holds(audit())
    for breaks in (silent, halved, unbounded):
        with monkeypatch.context() as patch:
            breaks(patch)
            is_found(audit())


ALL = partial(of_models, 2.8, 4, 400, among=400, seeds=range(8))
MOST = partial(of_models, 2.0, 4, 450, among=600, seeds=range(7))
SOME = partial(of_models, 1.0, 4, 150, among=600, seeds=range(16), attacked=150)


@pytest.mark.parametrize(
    ("audit", "power"), [(ALL, POWER), (MOST, POWER), (SOME, 0.0)], ids=["all", "most", "some"]
)
def test_by_party_noise_in_the_sum(audit, power):
    """Of small samples these canaries show little: others would have to pull the other way."""
    holds(audit(), power)


@pytest.mark.parametrize(
    ("audit", "breaks"),
    [
        (ALL, silent_server),
        (ALL, halved_server),
        (ALL, unbounded),
        (MOST, silent_server),
        (MOST, halved_server),
        (SOME, same_cohort),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_by_party_what_is_broken_is_found(audit, breaks, monkeypatch):
    breaks(monkeypatch)
    is_found(audit())


# -- in shares, under a sum that nobody looks into -------------------------------------------------

DRAWN = noisy_sum.drawn


def shareless(patch):
    patch.setattr(noisy_sum, "drawn", lambda *share: 0 * DRAWN(*share))


def half_shares(patch):
    patch.setattr(noisy_sum, "drawn", lambda *share: DRAWN(*share) // 2)


def long_uploads(patch):
    """Four times as long as they may be, at both clips."""
    patch.setattr(parties, "clipped", lambda vectors, lead, clip: vectors)
    short = integers._clipped
    patch.setattr(integers, "_clipped", lambda x, clip: short(x, 4 * clip))


def for_everybody(patch):
    """Shares as if nobody told the adversary theirs, and claimed for the honest ones."""
    variance = Share.variance
    patch.setattr(
        Share, "variance", lambda it, noise: variance(it, noise) * it.counted / it.parties
    )
    told = Share.mechanism
    patch.setattr(
        Share, "mechanism", lambda it, noise, n=None: told(replace(it, counted=it.parties), noise)
    )


SHARED = {
    "all but one": partial(of_sums, 2.0, 2, 399),
    "a fifth is honest": partial(of_sums, 1.4, 1, 80, seeds=range(24)),
    "few bits": partial(of_sums, 1.4, 1, 399, bits=14),
    "Skellam": partial(of_sums, 1.4, 1, 399, shares="skellam"),
}


@pytest.mark.parametrize("name", SHARED)
def test_in_shares_no_more_is_found_than_is_claimed(name):
    holds(SHARED[name]())


@pytest.mark.parametrize(
    ("name", "breaks"),
    [("all but one", shareless), ("all but one", half_shares), ("all but one", long_uploads),
     ("a fifth is honest", for_everybody), ("Skellam", shareless)],
    ids=lambda each: getattr(each, "__name__", each),
)  # fmt: skip
def test_in_shares_what_is_broken_is_found(name, breaks, monkeypatch):
    breaks(monkeypatch)
    is_found(SHARED[name]())


# -- longer: more canaries find more of what is claimed --------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_many_canaries_find_most_of_what_is_claimed(name):
    holds(CONFIGURATIONS[name](parties=60_000, seed=1), power=0.6)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("breaks", [silent, halved, unclipped, everybody, again])
def test_many_canaries_find_all_that_is_broken(name, breaks, monkeypatch):
    if breaks is everybody and "Poisson" not in name and "batch" not in name:
        pytest.skip("everybody is in it")
    if breaks is again and "batch" not in name:
        pytest.skip("one gradient a round")
    breaks(monkeypatch)
    is_found(CONFIGURATIONS[name](parties=20_000, seed=1))


@pytest.mark.slow
def test_by_party_where_all_others_pull_the_other_way(monkeypatch):
    """The worst neighbours of a sample of a fixed size: who comes in its place pulls back.

    One canary, so that every round of a run is an audit by itself.
    """

    def audit():
        return of_rounds(noise=1.0, sample=5, among=10, rounds=4000)

    holds(audit(), power=0.5)
    halved_server(monkeypatch)
    is_found(audit())
