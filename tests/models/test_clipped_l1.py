# SPDX-License-Identifier: Apache-2.0
"""Gradients clipped in L1, which Laplace noise needs: against one example at a time."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from archipel.models import build
from archipel.models.clipped import Chained, ways
from archipel.models.model import Model, Points

MODELS = {
    "logistic": (lambda: build("logistic", (5,), 3), (5,), {"chained", "vmapped", "loop"}),
    "mlp": (lambda: build("mlp", (5,), 3, widths=[6]), (5,), {"chained", "vmapped", "loop"}),
    "cnn": (lambda: build("cnn", (8, 8), 3, hidden=7), (8, 8), {"vmapped", "loop"}),
    "sequences": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
        (3, 5),
        {"vmapped", "loop"},
    ),
}


def points(b: int, shape: tuple[int, ...], scale: float = 1.0) -> Points:
    x, y = scale * torch.randn(2, b, *shape).double(), torch.randint(3, (2, b))
    weights = torch.ones(2, b).double()
    weights[1, -1] = 0  # padding
    return Points(x, y, weights, np.array([b, b - 1]))


def by_hand(model: Model, w: Tensor, given: Points, clip: float) -> tuple[Tensor, Tensor]:
    total, norms = torch.zeros_like(w), torch.zeros_like(given.weights)
    for r in range(len(w)):
        for i in range(given.weights.shape[1]):
            if given.weights[r, i] == 0:
                continue
            x, y = given.x[r, i][None, None], given.y[r, i][None, None]
            one = Points(x, y, w.new_ones(1, 1), np.ones(1, np.int64))
            g = model.one.grad(w[r][None], one)[0]
            norms[r, i] = g.abs().sum()
            total[r] += g * min(1.0, clip / float(norms[r, i]))
    return total, norms


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
def test_every_way_equals_one_example_at_a_time(name: str, clip: float) -> None:
    torch.manual_seed(0)
    module, shape, expected = MODELS[name]
    model = Model(module().double())
    given = points(4, shape)
    w = model.w + 0.1 * torch.randn(2, model.p).double()
    found = ways(model, given.x[0], given.y[0], wanted="vmapped", norm=1)
    total, norms = by_hand(model, w, given, clip)

    assert set(found) == expected
    for way in found.values():
        got = way.clipped(w, given, clip)
        torch.testing.assert_close(got.sum, total, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(got.norms, norms, rtol=1e-6, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 99),
    clip=st.sampled_from([1e-3, 0.3, 5.0]),
    wild=st.sampled_from([0.0, 1e8, 1e30, np.inf, np.nan]),
    bias=st.booleans(),
)
def test_no_example_moves_the_sum_by_more_than_the_clip(
    seed: int, clip: float, wild: float, bias: bool
) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 4, bias=bias), nn.ReLU(), nn.Linear(4, 3, bias=bias))
    for model in (Model(deepcopy(module)), Model(deepcopy(module).double())):
        given = points(3, (5,))
        given = given._replace(x=given.x.to(model.dtype), weights=given.weights.to(model.dtype))
        found = ways(model, given.x[0], given.y[0], norm=1)
        other = given.x.clone()
        other[:, 0, 0] = wild
        w = model.w.expand(2, -1)
        assert isinstance(found["chained"], Chained)
        for way in found.values():
            alone = given.weights.clone()
            alone[:, 0] = 0
            with_it = way.clipped(w, given._replace(x=other), clip).sum.double()
            without = way.clipped(w, given._replace(weights=alone), clip).sum.double()
            moved = (with_it - without).abs().sum(dim=-1)
            assert bool((moved <= clip * (1 + 1e-6)).all())
