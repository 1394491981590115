"""Rules equal those of ByzFL, an implementation by others, to 1e-6 on random uploads.

ByzFL is in the development environment alone, without what its simulations need: its aggregators
are imported past its package's `__init__`, which loads torchvision and seaborn.
"""

import functools
import importlib
import importlib.util
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel import rules


@functools.cache
def byzfl():
    """ByzFL's aggregators and pre-aggregators."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        pytest.skip("ByzFL is not installed: make test has it from requirements/byzfl.txt")
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    before = importlib.import_module("byzfl.aggregators.preaggregators")
    return importlib.import_module("byzfl.aggregators.aggregators"), before


# a number of liars, ours, theirs; they count one neighbour more in Krum, so that theirs with f + 1
# liars has the paper's m - f - 2
PAIRS = {
    "median": (lambda f: rules.Median(), lambda they, _, f: they.Median()),
    "trimmed_mean": (lambda f: rules.TrimmedMean(f), lambda they, _, f: they.TrMean(f)),
    "krum": (lambda f: rules.Krum(f), lambda they, _, f: they.Krum(f + 1)),
    "centred_clipping": (
        lambda f: rules.CentredClipping(radius=1.5, steps=4),
        lambda they, _, f: they.CenteredClipping(L=4, tau=1.5),
    ),
    "nnm": (lambda f: rules.NNM(f), lambda _, before, f: before.NNM(f)),
    "norm_bound": (lambda f: rules.NormBound(1.5), lambda _, before, f: before.Clipping(1.5)),
}


def uploads(f, more, p, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(draw.normal(size=p), 1.0, (2 * f + 3 + more, p))
    x[:f] *= draw.choice([-5.0, 0.1, 20.0])
    return x


SHAPES = {
    "f": st.integers(0, 5),
    "more": st.integers(0, 12),
    "p": st.integers(1, 40),
    "seed": st.integers(0, 2**32 - 1),
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=100, deadline=None)
@given(**SHAPES)
def test_equal_to_byzfl(name, f, more, p, seed):
    ours, theirs = PAIRS[name]
    x = uploads(f, more, p, seed)
    found = ours(f).rows(torch.from_numpy(x)).numpy()
    wanted = np.atleast_2d(theirs(*byzfl(), f)(x))

    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * max(1.0, np.abs(x).max()))


@settings(max_examples=100, deadline=None)
@given(**SHAPES)
def test_multi_krum_averages_those_that_byzfl_averages(f, more, p, seed):
    x = uploads(f, more, p, seed)
    found = rules.Krum(f, keep=len(x) - f - 1).rows(torch.from_numpy(x)).mean(dim=0)
    wanted = byzfl()[0].MultiKrum(f + 1)(x)

    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-6 * max(1.0, abs(x).max()))


@settings(max_examples=25, deadline=None)
@given(**{**SHAPES, "p": st.integers(2, 40)})
def test_the_geometric_median_is_byzfl_s_where_there_is_one(f, more, p, seed):
    x = uploads(f, more, p, seed)  # on a line it may be any point of an interval
    found = rules.GeometricMedian(steps=600, smoothing=0.1).rows(torch.from_numpy(x))[0]
    wanted = byzfl()[0].GeometricMedian(nu=0.1, T=600)(x)

    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-6 * max(1.0, abs(x).max()))


@settings(max_examples=50, deadline=None)
@given(**SHAPES)
def test_mixing_then_trimming_is_byzfl_s(f, more, p, seed):
    x = uploads(f, more, p, seed)
    after, before = byzfl()
    found = rules.TrimmedMean(f).rows(rules.NNM(f).rows(torch.from_numpy(x)))[0]
    wanted = after.TrMean(f)(before.NNM(f)(x))

    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-6 * max(1.0, abs(x).max()))
