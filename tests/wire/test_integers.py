"""Vectors as integers modulo 2^b: bounds always hold, means are right, wraps are as foretold."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.privacy.encoding import DEVIATIONS, Encoding, rounded_l2
from archipel.privacy.noise import discrete_gaussian
from archipel.privacy.sources import Simulated
from archipel.wire import integers
from archipel.wire.integers import decode, encode, wrapped

few = settings(max_examples=40, deadline=None)


def sender(ids=(0,), lead=(), t=0, number=0):
    return Sender(7, t, number, np.array(ids), lead)


@few
@given(
    size=st.integers(1, 70),
    clip=st.sampled_from([1e-3, 1.0, 40.0]),
    steps=st.sampled_from([1e-3, 0.3, 1.0, 7.7, 1e3, 1e7]),
    lead=st.sampled_from([(), (3,), (2, 3)]),
    kind=st.sampled_from(["normal", "huge", "sparse", "half", "inf", "nan", "zero"]),
    seed=st.integers(0, 99),
)
def test_the_norm_after_rounding_is_within_its_bound_always(size, clip, steps, lead, kind, seed):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(*lead, size, generator=random)
    x = {"normal": x * clip, "huge": x * 1e30, "sparse": x * (torch.rand(x.shape) > 0.9) * 99,
         "half": torch.full_like(x, 0.5 * clip / steps), "inf": x.clone(), "nan": x.clone(),
         "zero": x * 0}[kind]  # fmt: skip
    if kind in ("inf", "nan"):
        x[..., 0] = float(kind)
    encoding = Encoding(clip, size, 5, 32, steps / clip)
    ids = range(3) if lead else [0]

    found = encode(encoding, sender(ids, lead), x)
    assert found.dtype == torch.int64 and found.shape == x.shape
    norm = found.double().norm(dim=-1)
    assert bool((norm <= encoding.contribution).all())
    assert bool((found.abs().sum(dim=-1) <= encoding.contribution * min(
        sqrt(size), encoding.contribution) * (1 + 1e-9)).all())  # fmt: skip


def test_what_no_attempt_keeps_is_rounded_towards_zero(monkeypatch):
    monkeypatch.setattr(integers, "_uniform", lambda me, attempt, lead, size: torch.zeros(size))
    x = torch.full((64,), 1.0) / 8
    encoding = Encoding(1.0, 64, 1, 32, 4.4)
    monkeypatch.setattr(Encoding, "contribution", property(lambda e: 4.5))

    found = encode(encoding, sender(), x).double()
    assert float(found.norm()) <= 4.4


@few
@given(
    size=st.integers(1, 130),
    parties=st.integers(1, 9),
    bits=st.integers(12, 40),
    number=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_without_noise_sums_are_read_back_to_the_step(size, parties, bits, number, seed):
    """Parties that say all the same, and as much as they may: nothing wraps."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=random, dtype=torch.float64)
    x = x / x.norm() * 0.999
    encoding = Encoding.exact(1.0, size, parties, bits)
    them = sender(range(parties), (parties,), number=number)

    found = encode(encoding, them, x.expand(parties, -1))
    assert int(found.sum(dim=0).abs().max()) < 2 ** (bits - 1) and encoding.wraps(0.0) == 0
    total = decode(encoding, sender([-1], number=number), wrapped(encoding, found.sum(dim=0)))
    assert float((total - parties * x).norm()) <= parties * sqrt(size) / encoding.scale


def test_a_stack_is_encoded_as_each_party_would_be_alone():
    x = torch.randn(2, 4, 37, generator=torch.Generator().manual_seed(0))
    encoding = Encoding.exact(1.0, 37, 4, 20)
    together = encode(encoding, sender(range(4), (2, 4)), x)
    for k in range(4):
        alone = encode(encoding, sender([k]), x[1, k])
        assert torch.equal(together[1, k], alone)
    assert not torch.equal(encode(encoding, sender([0], t=1), x[0, 0]), together[0, 0])


def test_decoded_means_are_unbiased():
    """Coarse rounding: each number of the mean error has a t-value as chance has it."""
    size, parties, rounds = 24, 1000, 6
    x = torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x / x.norm()
    encoding = Encoding(1.0, size, 1, 16, 6.0)
    errors = np.concatenate([
        decode(encoding, sender([-1], t=t),
               encode(encoding, sender(range(parties), (parties,), t), x.expand(parties, -1))) - x
        for t in range(rounds)
    ])  # fmt: skip
    runs = len(errors)

    t = errors.mean(axis=0) / errors.std(axis=0, ddof=1) * sqrt(runs)
    assert np.abs(t).max() < stats.norm.isf(1e-4 / 2 / size)
    assert errors.std() * encoding.scale == pytest.approx(sqrt(1 / 6), rel=0.15)


@pytest.mark.parametrize("kind", ["all alike", "few bits"])
def test_no_more_wraps_than_foretold(kind, monkeypatch):
    """With 2.5 deviations in the modulus: in the worst case, all parties saying the same."""
    monkeypatch.setattr("archipel.privacy.encoding.DEVIATIONS", 2.5)
    size, parties = 4096, 40
    bits, noise = (14, 0.4) if kind == "all alike" else (8, 0.01)
    share = lambda contribution: (noise * contribution) ** 2 / parties  # noqa: E731
    encoding = Encoding.fitted(1.0, size, parties, bits, share)
    variance = share(encoding.contribution)
    x = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = 0
    for t in range(5):
        all_ = sender(range(parties), (parties,), t)
        drawn = encode(encoding, all_, (x / x.norm()).expand(parties, -1))
        drawn += torch.from_numpy(
            discrete_gaussian(Simulated(0, t, range(parties), "w"), sqrt(variance), size)
        )
        total = drawn.sum(dim=0)
        found += int((wrapped(encoding, total) != total).sum())

    tried, chance = 5 * size, encoding.wraps(variance)
    assert 0 < found <= stats.binom.isf(1e-4, tried, chance)
    assert chance == pytest.approx(2 * np.exp(-(2.5**2) / 2), rel=1e-6)


def test_a_plan_uses_all_the_bits_there_are():
    def share(contribution):
        return (2.0 * contribution) ** 2 / 90

    plans = [Encoding.fitted(1.0, 50_000, 100, bits, share) for bits in (14, 16, 18, 24, 32)]
    assert [each.scale for each in plans] == sorted(each.scale for each in plans)
    for plan in plans:
        assert plan.wraps(share(plan.contribution)) <= 2 * np.exp(-(DEVIATIONS**2) / 2) * (1 + 1e-6)
        assert plan.contribution == rounded_l2(plan.scale, 50_000)
    assert plans[0].longer > 1.02 and plans[-1].longer < 1 + 1e-6


def test_too_few_bits_are_refused():
    with pytest.raises(ArchipelError, match=r"privacy.bits = 6: too few"):
        Encoding.fitted(1.0, 1000, 1000, 6, lambda contribution: contribution**2)
    with pytest.raises(ArchipelError, match=r"privacy.bits = 4"):
        Encoding.exact(1.0, 100, 50, 4)
