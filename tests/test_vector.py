"""Modules as vectors, arithmetic along the last dimension, trees, schedules."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import archipel as ar
from archipel.training.schedules import rate
from archipel.tree import first, leaves, nbytes, tree_map
from archipel.vector import ParamSpec, clip, dot, norm, trainable

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=4)


@given(shapes, st.sampled_from([(), (2,), (3, 2)]))
def test_views_share_memory_and_round_trip(event, lead):
    spec = ParamSpec(tuple(f"p{i}" for i in range(len(event))), tuple(event))
    w = torch.randn(*lead, spec.size)
    views = spec.views(w)

    assert [tuple(view.shape) for view in views.values()] == [(*lead, *shape) for shape in event]
    assert torch.equal(spec.flatten(views), w)
    next(iter(views.values())).fill_(7.0)
    assert bool((w[..., 0] == 7.0).all())


def test_tied_parameters_count_once_and_frozen_never():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    module[1].weight = module[0].weight
    module[2].bias.requires_grad_(False)

    assert [name for name, _ in trainable(module)] == ["0.weight", "0.bias", "1.bias", "2.weight"]
    assert ar.Model(module).p == 9 + 3 + 3 + 6


def test_a_model_does_not_touch_the_users_module():
    module = nn.Linear(3, 2)
    before = module.weight.clone()
    model = ar.Model(module)
    model.w.zero_()
    trained = model.to_module(torch.ones(8))

    assert torch.equal(module.weight, before)
    assert torch.equal(trained.weight, torch.ones(2, 3))


@given(st.floats(0.01, 10.0), st.integers(1, 5))
def test_clip_bounds_the_norm_and_keeps_what_is_small(bound, m):
    x = torch.randn(m, 6, dtype=torch.float64) * 3
    clipped = clip(x, bound)

    assert bool((norm(clipped) <= bound * (1 + 1e-12)).all())
    small = norm(x) <= bound
    assert torch.equal(torch.where(small, x, 0.0), torch.where(small, clipped, 0.0))
    torch.testing.assert_close(dot(x, x), norm(x) ** 2)


def test_clip_of_zero_is_zero():
    assert torch.equal(clip(torch.zeros(4), 1.0), torch.zeros(4))


def test_trees():
    tree = (torch.ones(2), None, (torch.zeros(3),))

    assert len(leaves(tree)) == 2 and nbytes(tree) == 20
    assert torch.equal(first(tree), torch.ones(2))
    doubled = tree_map(lambda leaf: leaf * 2, tree)
    assert torch.equal(doubled[0], torch.full((2,), 2.0)) and doubled[1] is None
    with pytest.raises(ar.ArchipelError, match="holds a dict"):
        leaves({"w": torch.ones(1)})


def test_schedules():
    assert rate(0.1, 50) == 0.1
    assert rate(ar.Decay(0.1, 0.5, every=10), 25) == pytest.approx(0.025)
    assert rate(ar.Inverse(0.1, half=10), 10) == pytest.approx(0.05)
    cosine = ar.Cosine(0.1, rounds=100, end=0.01, warmup=5)
    assert rate(cosine, 0) == pytest.approx(0.02)
    assert rate(cosine, 5) == pytest.approx(0.1)
    assert rate(cosine, 500) == pytest.approx(0.01)
