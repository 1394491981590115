"""Curves, intervals and distances."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from archipel.audit.judging import NEAR, clopper_pearson, curve, epsilon_at_least, judge, match


def test_the_area_is_scikit_learns_with_ties():
    random = np.random.default_rng(0)
    member = random.random(300) < 0.4
    scores = np.round(random.normal(size=300) + member, 1)

    found = curve(torch.from_numpy(scores), torch.from_numpy(member))

    assert found.area == pytest.approx(roc_auc_score(member, scores))


def test_no_more_is_found_than_false_alarms_allow():
    scores, member = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([False, True, True, True])

    assert curve(scores, member).at(0.5) == 0.0


def test_the_interval_covers_as_often_as_it_says():
    random = np.random.default_rng(1)
    held = [
        low <= 0.03 <= high
        for low, high in (clopper_pearson(k, 200) for k in random.binomial(200, 0.03, 2000))
    ]

    assert np.mean(held) >= 0.95


def test_guessing_shows_no_epsilon_and_stays_within():
    random = torch.Generator().manual_seed(0)
    scores = torch.randn((4, 500), generator=random)
    member = torch.rand((4, 500), generator=random) < 0.5

    found = judge(scores, member, 500, 0.5, 1e-5)

    assert found.within
    assert found.epsilon < 0.5


def test_what_is_sure_breaks_a_small_epsilon():
    member = torch.rand((4, 500), generator=torch.Generator().manual_seed(0)) < 0.5

    assert judge(member.float(), member, 500, 1.0, 1e-5).within is False
    assert epsilon_at_least((0.9, 1.0), (0.0, 0.02), 1e-5) > 3.8


def test_records_are_matched_in_standard_deviations():
    true = torch.tensor([[0.0, 0.0], [10.0, 2.0]])
    made = torch.tensor([[10.0, 2.1], [0.0, 1.0]])

    found = match(true, made, torch.tensor([1.0, 1.0]), 10.0)

    assert found.nearest.tolist() == [1, 0]
    assert found.distance[0] > NEAR > found.distance[1]
    assert found.found == 1
