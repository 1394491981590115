"""Normal numbers in bulk: right in distribution, and a function of party and place alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from archipel.models.normals import PIECE, Normals

few = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_they_are_standard_normal_and_independent(kind):
    drawn = Normals(3, np.arange(6)).draw(1, torch.ones(6, dtype=kind), 40_001).double().numpy()

    assert stats.kstest(drawn.reshape(-1), "norm").pvalue > 1e-4
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], drawn.size)
    assert low < (drawn**2).sum() < high
    tail = stats.binom(drawn.size, 2 * stats.norm.sf(3.5))
    assert tail.ppf(5e-5) <= (np.abs(drawn) > 3.5).sum() <= tail.ppf(1 - 5e-5)
    half = drawn.shape[1] // 2  # the two that are made of the same words
    pairs = [(drawn[0], drawn[1]), (drawn[:, :half], drawn[:, half + 1 :][:, :half])]
    pairs += [(drawn[:, :-1], drawn[:, 1:])]
    for one, other in pairs:
        for power in (1, 2):
            found = np.corrcoef(one.reshape(-1) ** power, other.reshape(-1) ** power)[0, 1]
            assert abs(found) < stats.norm.isf(5e-5) / one.size**0.5


@few
@given(
    parties=st.integers(1, 5),
    count=st.sampled_from([0, 1, 2, 7, 100, PIECE - 1, PIECE, PIECE + 3, 2 * PIECE]),
    place=st.integers(0, 5),
    wide=st.booleans(),
)
def test_a_draw_does_not_depend_on_who_draws_at_the_same_time(parties, count, place, wide):
    ids, kind = np.arange(10, 10 + parties), torch.float64 if wide else torch.float32
    scales = torch.arange(1, parties + 1).to(kind)
    drawn = Normals(5, ids).draw(place, scales, count)
    assert drawn.shape == (parties, count) and bool(drawn.isfinite().all())
    for i in range(parties):
        alone = Normals(5, ids[i : i + 1]).draw(place, scales[i : i + 1], count)
        assert torch.equal(alone[0], drawn[i])
    into = torch.full((parties, count + 2), 7.0, dtype=kind)
    Normals(5, ids).add(place, scales, into[:, 1:-1])
    assert torch.equal(into[:, 1:-1], 7.0 + drawn)
    assert bool((into[:, [0, -1]] == 7).all())
    if count > 2:
        other = Normals(5, ids).draw(place + 1, scales, count)
        assert not torch.equal(other, drawn)
        assert not torch.equal(Normals(6, ids).draw(place, scales, count), drawn)


@few
@given(piece=st.integers(1, 40), few_=st.integers(0, 30), more=st.integers(0, 3000))
def test_fewer_pieces_are_the_first(piece, few_, more):
    ids, ones = np.array([4, 9]), torch.ones(2)
    short = Normals(1, ids).draw(2, ones, few_ * piece, piece)
    long = Normals(1, ids).draw(2, ones, (few_ + more) * piece, piece)
    assert torch.equal(long[:, : few_ * piece], short)
