"""DP-SGD in windows: the same steps as one by one, and noise of the same joint distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from archipel.models.clipped import clipping, ways
from archipel.models.model import Model
from archipel.models.normals import Normals
from archipel.models.private import Rule, Samples, descend, window

few = settings(max_examples=40, deadline=None)
NONE = Normals(0, np.zeros(0, np.int64))


def chain(inputs, hidden, outputs, bias, act=nn.Tanh, kind=torch.float64, seed=0):
    torch.manual_seed(seed)
    sizes = [inputs, *hidden, outputs]
    layers = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1], bias=bias)]
        layers += [act()] if i < len(sizes) - 2 else []
    return Model(nn.Sequential(*layers).to(kind))


def points(n, inputs, outputs, kind=torch.float64, seed=0):
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.standard_normal((n, inputs))).to(kind)
    return x, torch.from_numpy(random.integers(0, outputs, n))


def samples_of(x, y, counts, steps, seed=0):
    """Rows at random; a party takes none after its last step."""
    counts = np.where(np.arange(counts.shape[1]) < steps[:, None], counts, 0)
    rows = np.random.default_rng(seed).integers(0, len(x), counts.sum())
    return Samples(x, y, rows, counts, steps)


def by_hand(model, w, samples, rule, noise=None):
    """One party, one step, one example after the other; noise `[r, T, p]` is of each step."""
    w, at = w.clone(), 0
    for r in range(len(w)):
        for t in range(samples.counts.shape[1]):
            total = torch.zeros_like(w[r])
            for row in samples.rows[at : at + samples.counts[r, t]]:
                g = model.grad(w[r], samples.x[row][None], samples.y[row][None])
                if bool(g.isfinite().all()):
                    total += g * min(1.0, rule.clip / max(float(g.norm()), 1e-300))
            at += samples.counts[r, t]
            if t >= samples.steps[r]:
                continue
            drag = torch.zeros_like(total)
            lr, pull = (v[r] if isinstance(v, torch.Tensor) else v for v in (rule.lr, rule.pull))
            if rule.shift is not None:
                drag += lr * rule.shift[r]
            if rule.towards is not None:
                drag += lr * pull * (w[r] - rule.towards[r])
            w[r] -= rule.rate[r] * total + drag
            if noise is not None:
                w[r] += rule.deviation[r] * noise[r, t]
    return w


@st.composite
def problems(draw):
    """A chain, samples of unequal parties, some empty, and a rule."""
    inputs, outputs = draw(st.integers(1, 6)), draw(st.integers(2, 4))
    hidden = draw(st.lists(st.integers(1, 6), max_size=2))
    act = draw(st.sampled_from([nn.Tanh, nn.ReLU]))
    model = chain(inputs, hidden, outputs, draw(st.booleans()), act)
    r, total = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    steps = np.array(sorted(draw(st.lists(st.integers(0, total), min_size=r, max_size=r))))[::-1]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    counts = random.poisson(draw(st.sampled_from([0.3, 2.0])), (r, max(1, int(steps.max()))))
    x, y = points(12, inputs, outputs)
    samples = samples_of(x, y, counts, steps.copy())
    of = {"generator": torch.Generator().manual_seed(int(random.integers(99)))}
    w = model.w + 0.3 * torch.randn(r, model.p, dtype=torch.float64, **of)
    lr = draw(st.sampled_from([0.4, torch.linspace(0.1, 0.5, r)[:, None].double()]))
    pulled = draw(st.booleans())
    rule = Rule(
        draw(st.sampled_from([0.1, 1.0, 1e6])),
        lr,
        lr * torch.linspace(0.2, 1.0, r)[:, None].double(),
        None,
        torch.randn(r, model.p, dtype=torch.float64, **of) if draw(st.booleans()) else None,
        0.3 if pulled else 0.0,
        torch.randn(r, model.p, dtype=torch.float64, **of) if pulled else None,
    )
    return model, w, samples, rule, draw(st.integers(1, 5))


@few
@given(problems())
def test_windows_take_the_steps_of_one_example_at_a_time(problem):
    model, w, samples, rule, size = problem
    way = clipping(model, samples.x[:8], samples.y[:8])
    expected = by_hand(model, w, samples, rule)
    got = descend(way, w.clone(), samples, rule, NONE, size)
    torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6)  # the clip is lowered


@pytest.mark.parametrize("way", ["recorded", "loop"])
def test_other_ways_take_the_same_steps(way):
    model = chain(5, (4,), 3, True)
    x, y = points(12, 5, 3)
    samples = samples_of(x, y, np.array([[2, 0, 3], [1, 4, 0]]), np.array([3, 2]))
    w = model.w.expand(2, -1).clone()
    rate = torch.full((2, 1), 0.2, dtype=torch.float64)
    rule = Rule(0.5, 0.3, rate, None, w * 0.1, 0.2, w * 0.5)
    got = descend(ways(model, x, y)[way], w.clone(), samples, rule, NONE, 3)
    torch.testing.assert_close(got, by_hand(model, w, samples, rule), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("wild", [1e8, 1e160, np.inf, np.nan])
@pytest.mark.parametrize("size", [1, 3])
def test_a_wild_example_moves_its_own_party_alone_and_by_the_clip(wild, size):
    model = chain(4, (5,), 3, True, nn.ReLU)
    x, y = points(12, 4, 3)
    counts, steps = np.array([[3, 2, 2], [2, 3, 1]]), np.array([3, 3])
    rate = torch.full((2, 1), 0.5, dtype=torch.float64)
    rule = Rule(0.7, 0.5, rate, None)
    way, w = clipping(model, x[:8], y[:8]), model.w.expand(2, -1).clone()
    rows = np.arange(13) % 12
    found = []
    for value in (None, wild):
        other = x.clone()
        if value is not None:
            other[6] = value  # the last of party 0, in its last step: no later step is moved
        samples = Samples(other, y, rows, counts, steps)
        found.append(descend(way, w.clone(), samples, rule, NONE, size))
    moved = (found[0] - found[1]).norm(dim=1)
    assert bool(found[1].isfinite().all())
    assert moved[1] == 0 and moved[0] <= 2 * 0.5 * 0.7 * (1 + 1e-9)


def test_noise_does_not_depend_on_who_is_stacked():
    model = chain(6, (20,), 3, True)
    x, y = points(30, 6, 3)
    random = np.random.default_rng(1)
    steps = np.array([7, 5, 5, 2, 0])
    samples = samples_of(x, y, random.poisson(2.0, (5, 7)), steps)
    rate = torch.full((5, 1), 0.2, dtype=torch.float64)
    rule = Rule(0.5, 0.3, rate, rate * 0.7, torch.ones(5, model.p, dtype=torch.float64) * 0.01)
    way, ids = clipping(model, x[:8], y[:8]), np.array([4, 2, 7, 1, 9])
    w = model.w.expand(5, -1)
    for size in (1, 3):
        whole = descend(way, w.clone(), samples, rule, Normals(3, ids), size)
        for some in ([0, 3], [1, 2, 4], [4]):
            part = descend(
                way, w[some].clone(), samples.some(np.array(some)),
                rule.some(torch.tensor(some)), Normals(3, ids[some]), size,
            )  # fmt: skip
            torch.testing.assert_close(part, whole[some], rtol=1e-9, atol=1e-10)


# -- the joint distribution of noise ---------------------------------------------------------------


def ends(model, x, y, counts, rule, size, seeds, ids):
    """Where each of many parties ends, all alike but for their noise: `[r, p]`."""
    r = len(ids)
    rows = np.tile(np.arange(counts.sum()) % len(x), r)
    samples = Samples(
        x, y, rows, np.tile(counts, (r, 1)), np.full(r, len(counts), np.int64)
    )  # fmt: skip
    way = clipping(model, x[:8], y[:8])
    return descend(way, model.w.expand(r, -1).clone(), samples, rule, Normals(seeds, ids), size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_linear_model_ends_with_the_covariance_of_independent_noises(size):
    """With squared errors and no clip, the end is linear in the noises: its law is known exactly.

    w_j+1 = w_j - rate sum_i x_i (x_i' w_j - y_i) + c N_j, so that noises before a step change it.
    """
    torch.manual_seed(0)
    model = Model(nn.Linear(3, 1, bias=False).double(), "squared_error")
    x, y = torch.randn(9, 3).double(), torch.randn(9).double()
    x[4] = x[3]  # twice the same row: the small matrix has no full rank
    counts, r = np.array([2, 3, 0, 2, 2]), 20_000
    rate, c = 0.3, 0.5
    rule = Rule(1e9, rate, torch.full((r, 1), rate).double(), torch.full((r, 1), c).double())
    end = ends(model, x, y, counts, rule, size, 11, np.arange(r))

    mean, covariance = model.w.clone(), torch.zeros(3, 3).double()
    for part, target in zip(x.split(counts.tolist()), y.split(counts.tolist()), strict=True):
        by = torch.eye(3).double() - rate * part.T @ part
        mean = by @ mean + rate * part.T @ target
        covariance = by @ covariance @ by.T + c * c * torch.eye(3).double()
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(covariance), (end - mean).T, upper=False
    )
    products = white @ white.T
    assert stats.kstest(white.reshape(-1).numpy(), "norm").pvalue > 1e-4
    for i in range(3):
        assert abs(float(white[i].mean())) < stats.norm.isf(5e-5 / 3) / r**0.5
        low, high = stats.chi2.ppf([5e-5 / 3, 1 - 5e-5 / 3], r)
        assert low < float(products[i, i]) < high
        for j in range(i):
            assert abs(float(products[i, j])) < stats.norm.isf(5e-5 / 3) * r**0.5


def strong(r):
    """A rule by which a step's gradients depend much on the noise before it, some being clipped."""
    return Rule(1.0, 2.0, torch.full((r, 1), 2.0).double(), torch.full((r, 1), 0.7).double())


@pytest.mark.parametrize("hidden", [(), (12,)], ids=["logistic", "mlp"])
def test_windows_end_as_steps_one_by_one_do(hidden):
    """Clipped, and not linear: ends in windows and step by step are samples of one law."""
    model = chain(4, hidden, 3, True)
    x, y = points(10, 4, 3)
    x[3] = x[2]
    counts, r = np.array([2, 1, 3, 0, 2, 2]), 6000
    rule = strong(r)
    found = [ends(model, x, y, counts, rule, size, size, np.arange(r)) for size in (1, 4)]
    first, second = (each.numpy() for each in found)
    apart = [((each - model.w) ** 2).sum(dim=1, keepdim=True).numpy() for each in found]
    tests = [
        stats.ks_2samp(a, b).pvalue
        for one, other in ((first, second), apart)
        for a, b in zip(one.T, other.T, strict=True)
    ]
    assert min(tests) > 1e-4 / len(tests)
    one, other = (np.cov(each.T) for each in (first, second))
    error = np.sqrt(2 * (np.outer(np.diag(one), np.diag(one)) + one**2) / r)
    limit = stats.norm.isf(5e-5 / one.size)
    assert float((np.abs(one - other) / error).max()) < limit


def test_a_law_of_other_noise_is_found():
    """The test above has power: noise that is drawn once for a window, and not read inside."""
    model = chain(4, (), 3, True)
    x, y = points(10, 4, 3)
    counts, r = np.array([2, 1, 3, 0, 2, 2]), 6000
    rule = strong(r)
    right = ends(model, x, y, counts, rule, 1, 1, np.arange(r))
    still = ends(model, x, y, counts, rule._replace(deviation=None), 1, 1, np.arange(r))
    added = Normals(2, np.arange(r)).draw(0, torch.full((r,), 0.7 * 6**0.5).double(), model.p)
    p = [stats.ks_2samp(a, b).pvalue for a, b in zip(right.T, (still + added).T, strict=True)]
    assert min(p) < 1e-4 / len(p)


def test_a_window_is_where_it_pays():
    x, y = points(8, 784, 10, torch.float32)
    wide = chain(784, (200, 200), 10, True, nn.ReLU, torch.float32)
    narrow = chain(784, (), 10, True, kind=torch.float32)
    way = clipping(wide, x, y)
    assert 5 < window(way, 10) < 20
    assert window(way, 4) > window(way, 10) > window(way, 50) >= 1
    assert window(way, 1000) == window(way, None) == window(way, 0.1) == 1
    assert window(clipping(narrow, x, y), 10) == 1
    assert window(ways(wide, x, y)["loop"], 10) == 1
