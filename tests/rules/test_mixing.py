# SPDX-License-Identifier: Apache-2.0
"""Rules between peers: their papers' formulas, and nothing that a neighbour sends breaks them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel import rules
from archipel.aggregation.mixing import mixed, mixing_rule, of_neighbours
from archipel.aggregation.rule import InTurn
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes
from archipel.graphs import topology

DSGD = Boxes(ar.DSGD())
MIXED = InTurn((rules.NNM(1), rules.TrimmedMean(1)))


def drawn(d, p, seed):
    """One's own vector, the neighbours', and their weights, which leave some for oneself."""
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.standard_normal((d + 1, p)))
    weights = draw.random(d) + 0.1
    return x[0], x[1:], torch.from_numpy(weights / (weights.sum() * draw.uniform(1.1, 3)))


def clipped(mine, theirs, weights, radius):
    """Algorithm 1 as it is written, neighbour by neighbour."""
    out = mine.clone()
    for x, w in zip(theirs, weights, strict=True):
        z = x - mine
        out = out + w * z * min(1.0, float(radius / z.norm()))
    return out


@given(d=st.integers(1, 8), p=st.integers(1, 9), seed=st.integers(0, 999))
def test_a_radius_that_is_given_clips_every_difference(d, p, seed):
    mine, theirs, weights = drawn(d, p, seed)
    found = rules.FixedClippedGossip(0.7).mixed(mine, theirs, weights)

    torch.testing.assert_close(found, clipped(mine, theirs, weights, 0.7))
    assert float((found - mine).norm()) <= 0.7 * float(weights.sum()) + 1e-12


@given(d=st.integers(3, 8), p=st.integers(1, 9), seed=st.integers(0, 999))
def test_the_radius_follows_from_the_nearest(d, p, seed):
    mine, theirs, weights = drawn(d, p, seed)
    delta = float(weights.max())
    apart = (theirs - mine).norm(dim=1)
    trusted, left = 0.0, float(weights.sum()) - delta
    for j in apart.argsort().tolist():
        counts = min(left, float(weights[j]))
        trusted, left = trusted + counts * float(apart[j]) ** 2, left - counts

    found = rules.ClippedGossip(1).mixed(mine, theirs, weights)
    torch.testing.assert_close(found, clipped(mine, theirs, weights, (trusted / delta) ** 0.5))
    same = rules.ClippedGossip(min(delta, 0.49)).mixed(mine, theirs, weights)
    if delta < 0.49:
        torch.testing.assert_close(same, found)


def test_where_nobody_lies_nothing_is_clipped():
    mine, theirs, weights = drawn(5, 4, 0)
    expected = mine + (weights[:, None] * (theirs - mine)).sum(dim=0)

    torch.testing.assert_close(rules.ClippedGossip(0).mixed(mine, theirs, weights), expected)
    got = dict(enumerate(theirs))
    plain = of_neighbours(None, mine, got, dict(enumerate(weights.tolist())))
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize(
    "rule", [rules.TrimmedMean(1), rules.Median(), rules.GeometricMedian(), rules.Krum(1), MIXED]
)
def test_a_rule_of_rows_is_over_ones_own_and_the_neighbours(rule):
    mine, theirs, weights = drawn(7, 4, 1)
    found = mixing_rule(rule, DSGD, topology("complete", 8)).mixed(mine, theirs, weights)

    rows = torch.cat([mine[None], theirs])
    for each in getattr(rule, "rules", (rule,)):
        rows = each.rows(rows)
    assert torch.equal(found, rows.mean(dim=0))


BAD = {
    "not a number": torch.nan,
    "infinite": -torch.inf,
    "too large to be squared": 3e38,
    "too large to be taken from another": -3.4e38,
    "zeros": 0.0,
}
WITHSTAND = {
    "clipped": rules.ClippedGossip(1),
    "a share": rules.ClippedGossip(0.2),
    "fixed": rules.FixedClippedGossip(1.0),
    "trimmed": rules.TrimmedMean(1),
    "median": rules.Median(),
    "mixed": MIXED,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", WITHSTAND)
def test_no_neighbour_leads_a_peer_away(name, bad, dtype):
    """Of six that are close one sends anything: the peer stays among the others."""
    mine, theirs, _ = drawn(6, 5, 2)
    mine, theirs = (10 + 0.1 * mine).to(dtype), (10 + 0.1 * theirs).to(dtype)
    theirs[2] = torch.tensor(BAD[bad], dtype=dtype)
    weights = torch.full((6,), 1 / 7, dtype=torch.float64)
    rule = mixing_rule(WITHSTAND[name], DSGD, topology("complete", 7))

    found = mixed(rule, mine, theirs, weights)
    assert bool(torch.isfinite(found).all()) and found.dtype == dtype
    assert float((found - 10).abs().max()) < 1.5


@pytest.mark.parametrize("name", WITHSTAND)
def test_the_order_of_neighbours_has_no_say(name):
    mine, theirs, weights = drawn(6, 5, 3)
    rule = mixing_rule(WITHSTAND[name], DSGD, topology("complete", 7))
    order = torch.tensor([3, 1, 5, 0, 4, 2])

    torch.testing.assert_close(
        mixed(rule, mine, theirs[order], weights[order]), mixed(rule, mine, theirs, weights)
    )


def test_with_too_few_neighbours_a_peer_keeps_its_own():
    mine, theirs, weights = drawn(6, 5, 4)
    rule = mixing_rule(rules.TrimmedMean(1), DSGD, topology("complete", 7))

    assert torch.equal(mixed(rule, mine, theirs[:1], weights[:1]), mine)
    assert torch.equal(mixed(rule, mine, theirs[:0], weights[:0]), mine)
    assert torch.equal(mixed(rule, mine, theirs * torch.inf, weights), mine)


def test_a_share_that_may_lie_is_one_neighbour_at_the_least():
    """A fifth of three is none: the trimmed mean of a ring would be a mean."""
    mine, theirs, weights = drawn(2, 5, 5)
    rule = mixing_rule(rules.TrimmedMean(0.2), DSGD, topology("ring", 5))

    middle = torch.cat([mine[None], theirs]).sort(dim=0).values[1]
    torch.testing.assert_close(mixed(rule, mine, theirs, weights), middle)


@pytest.mark.parametrize(
    ("rule", "graph", "why"),
    [
        (rules.TrimmedMean(2), "ring", "f = 2 needs 5 vectors, one's own among them, and somebody "
         "has 3"),
        (rules.TrimmedMean(0.2), "matching", "f = 1 needs 3 vectors"),
        (rules.ClippedGossip(2), "ring", "ClippedGossip with f = 2 needs 4"),
        (rules.ClippedGossip(0.6), "complete", "below 0.5"),
        (rules.FixedClippedGossip(0.0), "complete", "give a number above 0"),
        (rules.CentredClipping(), "complete", "is for uploads, which are changes of a model"),
        (rules.NormBound(), "complete", "take clipped_gossip"),
        (rules.Bucketing(), "complete", "is for uploads"),
        (InTurn((rules.NNM(1), rules.ClippedGossip(1))), "complete", "name no other beside it"),
        (rules.TrimmedMean(1), "peer_sampling:3", "peers tell each other who there is"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_start(rule, graph, why):
    with pytest.raises(ArchipelError, match=why):
        mixing_rule(rule, DSGD, topology(graph, 6))


def test_an_algorithm_that_tracks_a_mean_takes_no_rule():
    tracking = Boxes(ar.GradientTracking())
    with pytest.raises(ArchipelError, match=r"GradientTracking has to keep .* take dsgd"):
        mixing_rule(rules.TrimmedMean(1), tracking, topology("complete", 6))
