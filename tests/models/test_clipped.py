# SPDX-License-Identifier: Apache-2.0
"""Clipped gradients: against one example at a time, and no example moves the sum by more than C."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from archipel.errors import ArchipelError
from archipel.models import build, losses
from archipel.models.clipped import ByParty, Chained, Clipped, Clipping, clipping, ways
from archipel.models.ghost import factors, lengths, scaled, squares_of_products
from archipel.models.model import Model, Points
from archipel.models.recorded import Recorded, Unrecorded
from archipel.models.stacked import Stacked

TEXT = 11  # characters


class Mixed(nn.Module):
    """Every layer that has a rule, with a row that has no gradient and a step in place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TEXT, 6, padding_idx=0)
        self.convolution = nn.Conv1d(6, 8, 3, padding="same", dilation=2)
        self.groups = nn.GroupNorm(2, 8)
        self.norm = nn.LayerNorm([8])
        self.head = nn.Linear(8, TEXT)

    def forward(self, x: Tensor) -> Tensor:
        h = self.groups(self.convolution(self.embedding(x).mT)).relu_()
        return self.head(self.norm(h.mean(-1)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TEXT, 6), nn.Linear(6, TEXT)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))


class Two(nn.Module):
    """Two layers that subclasses use in ways that hooks do not see."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(5, 5), nn.Linear(5, 3)


class Functional(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.linear(self.a(x).relu(), self.a.weight))


class Twice(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(self.a(x)))


class Overwritten(Two):
    """What autograd refuses, too, where it needs the numbers."""

    def forward(self, x: Tensor) -> Tensor:
        h = x.tanh()
        out = self.a(h)
        return self.head(h.mul_(2) + out)


class TimeFirst(Two):
    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(4, *x.shape)  # [t, b, f]
        return self.head(self.a(x).mean(0))


class Backwards(Two):
    """The examples in another order in one layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x.flip(0)).flip(0).relu())


class Scaled(Two):
    """A parameter that is in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * self.a(x))


class Looking(Two):
    """One example decides for its batch, where it has a large feature."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x) * (2 if bool((x > 100).any()) else 1))


class Finding(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x)) * (1 + len((x > 100).nonzero()))


class Masking(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x)) * (1 + len(x[x > 100]))


class Listing(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x[:, torch.arange(5)])) * (2 if max(x.tolist()[0]) > 100 else 1)


class Moody(Two):
    """Does now and then what it did not on the probe, for no reason that is in the numbers."""

    mood = "plain"

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        match Moody.mood:
            case "functional":
                h = h @ self.a.weight
            case "twice":
                h = self.a(h)
        return self.head(h)


class Sequences(nn.Module):
    """Dense layers on `[b, t, f]`: few t and wide layers, then many t and narrow ones."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(5, 40), nn.Linear(40, 2, bias=False)
        self.head = nn.Linear(2 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.narrow(self.wide(x).tanh()).flatten(1))


def images(b: int, *shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(b, *shape), torch.randint(3, (b,))


def text(b: int, length: int, every: bool = False) -> tuple[Tensor, Tensor]:
    x = torch.randint(TEXT, (b, length))
    return x, torch.randint(TEXT, (b, length) if every else (b,))


CHAIN = {"chained", "recorded", "vmapped", "loop"}
LAYERS = {"recorded", "vmapped", "loop"}
IMAGES = {"channels_last", *LAYERS}
ANY = {"vmapped", "loop"}
CASES = {  # module, points, ways that must be right (others may be)
    "logistic": (lambda: build("logistic", (5,), 3), lambda: images(12, 5), CHAIN),
    "mlp": (lambda: build("mlp", (5,), 3, widths=[6, 4]), lambda: images(12, 5), CHAIN),
    "sequences": (Sequences, lambda: images(12, 4, 5), CHAIN),
    "cnn": (lambda: build("cnn", (8, 8), 3, hidden=7), lambda: images(12, 8, 8), IMAGES),
    "lenet": (
        lambda: build("lenet", (2, 16, 17), 3, kernels=3),
        lambda: images(12, 2, 16, 17),
        IMAGES,
    ),
    "lstm": (
        lambda: build("char_lstm", (6,), TEXT, embedding=3, hidden=5),
        lambda: text(12, 6, every=True),
        {"recorded", "loop"},
    ),
    "mixed": (Mixed, lambda: text(12, 7), LAYERS),
    "grouped": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="circular"),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(6 * 9, 3),
        ),
        lambda: images(12, 4, 6, 6),
        IMAGES,
    ),
    "tied": (Tied, lambda: text(12, 7), ANY),
    "functional": (Functional, lambda: images(12, 5), ANY),
    "twice": (Twice, lambda: images(12, 5), ANY),
    "time first": (TimeFirst, lambda: images(12, 5), ANY),
    "backwards": (Backwards, lambda: images(12, 5), ANY),
    "scaled": (Scaled, lambda: images(12, 5), ANY),
    "looking": (Looking, lambda: images(12, 5), {"loop"}),
}


def model_of(name: str, dtype: torch.dtype) -> tuple[Model, Tensor, Tensor]:
    torch.manual_seed(0)
    module, points, _ = CASES[name]
    x, y = points()
    return Model(module().to(dtype)), x.to(dtype) if x.is_floating_point() else x, y


@cache
def tried(name: str, dtype: torch.dtype) -> tuple[Model, Tensor, Tensor, dict[str, Clipping]]:
    model, x, y = model_of(name, dtype)
    return model, x, y, ways(model, x, y, wanted="vmapped")


def stack(x: Tensor, y: Tensor, lengths: list[int], dtype: torch.dtype) -> Points:
    """Points of several parties, padded to the longest."""
    b = max(lengths)
    rows = torch.arange(len(lengths) * b).view(len(lengths), b) % len(x)
    weights = torch.arange(b) < torch.tensor(lengths)[:, None]
    return Points(x[rows], y[rows], weights.to(dtype) / 7, np.array(lengths))


def vectors(model: Model, r: int) -> Tensor:
    return model.w + 0.1 * torch.randn(r, model.p, dtype=model.dtype)


def singles(model: Model, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradients of single examples by plain autograd, `[b, p]`."""
    module = model.to_module(w)
    wanted = [p for p in module.parameters() if p.requires_grad]
    rows = [torch.zeros(0, model.p, dtype=torch.float64)]
    for i in range(len(x)):
        ones = torch.ones(1, dtype=model.dtype)
        value = model.loss_function(module(x[i : i + 1]), y[i : i + 1], ones)
        found = torch.autograd.grad(value, wanted, allow_unused=True)
        parts = [
            torch.zeros_like(p) if g is None else g for g, p in zip(found, wanted, strict=True)
        ]
        rows.append(torch.cat([part.reshape(-1) for part in parts]).double()[None])
    return torch.cat(rows)


def by_hand(model: Model, w: Tensor, points: Points, clip: float) -> Clipped:
    total, norms = torch.zeros_like(w).double(), torch.zeros(points.weights.shape).double()
    for r in range(len(w)):
        real = points.weights[r] > 0
        grads = singles(model, w[r], points.x[r][real], points.y[r][real])
        length = grads.norm(dim=1, keepdim=True)
        total[r] = (grads * (clip / length).clamp(max=1)).nan_to_num(0.0).sum(0)
        norms[r, real] = length.squeeze(1)
    return Clipped(total, norms)


def assert_equal(got: Clipped, expected: Clipped, tolerance: float) -> None:
    assert (got.sum - expected.sum).norm() <= tolerance * expected.sum.norm() + 1e-30
    torch.testing.assert_close(got.norms.double(), expected.norms, rtol=tolerance, atol=1e-30)


def middle(expected: Clipped) -> float:
    """A clip that about half of the examples exceed."""
    return float(expected.norms[expected.norms > 0].median())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)], ids=["double", "float"]
)
def test_every_way_equals_one_example_at_a_time(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    model, x, y = model_of(name, dtype)
    points, w = stack(x, y, [4, 3, 0, 1], dtype), vectors(model, 4)
    clip = middle(by_hand(model, w, points, 1.0))
    expected = by_hand(model, w, points, clip)

    right = ways(model, x, y, wanted="vmapped")

    assert CASES[name][2] <= set(right), "a way is missing"
    assert not CASES[name][2] <= ANY or "recorded" not in right, (
        "hooks do not see all of this module"
    )
    for way in right.values():
        assert_equal(way.clipped(w, points, clip), expected, tolerance)


@pytest.mark.parametrize(
    ("module", "points", "why"),
    [
        (Overwritten, lambda: images(3, 5), "written into"),
        (TimeFirst, lambda: images(3, 5), "first dimension"),
        (Twice, lambda: images(3, 5), "twice"),
        (Functional, lambda: images(3, 5), "outside its layer"),
        (Tied, lambda: text(3, 7), "several layers"),
        (Scaled, lambda: images(3, 5), "no rule"),
        (Looking, lambda: images(3, 5), "looks at numbers"),
        (Finding, lambda: images(3, 5), "looks at numbers"),
        (Masking, lambda: images(3, 5), "looks at numbers"),
        (Listing, lambda: images(3, 5), "looks at numbers"),
    ],
)
def test_what_hooks_do_not_see_is_noticed_before_numbers_differ(
    module: type[nn.Module], points: Callable[[], tuple[Tensor, Tensor]], why: str
) -> None:
    with pytest.raises(Unrecorded, match=why):
        Recorded(Model(module()), *points(), 1 << 20)


def test_quickest_first() -> None:
    model, x, y = model_of("mlp", torch.float32)

    assert list(ways(model, x, y)) == ["chained", "recorded", "loop"]
    assert isinstance(clipping(model, x, y), Chained)


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error", "huber", "binary", "own"])
def test_other_losses(loss: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(6, 4).double()
    k, y = 1, torch.randn(6).double()
    chosen: object = loss
    if loss == "cross_entropy":
        k, y = 3, torch.randint(3, (6,))
        chosen = losses.weighted(losses.loss(loss), [0.1, 2.0, 5.0], "classification", 3)
    elif loss == "binary":
        y, chosen = torch.randint(2, (6,)), "binary_cross_entropy"
    elif loss == "own":
        chosen = lambda outputs, targets: (outputs.squeeze(-1) - targets).pow(4).mean()  # noqa: E731
    model = Model(build("mlp", (4,), k).double(), chosen)
    points, w = stack(x, y, [3, 2], torch.float64), vectors(model, 2)
    expected = by_hand(model, w, points, 0.5)

    for way in ways(model, x, y, wanted="vmapped").values():
        assert_equal(way.clipped(w, points, 0.5), expected, 1e-6)


@settings(max_examples=25, deadline=None)
@given(
    widths=st.lists(st.integers(1, 5), max_size=2),
    inner=st.lists(st.integers(1, 3), max_size=2),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    clip=st.sampled_from([1e-12, 1e-3, 0.3, 1.0, 1e6]),
    bias=st.booleans(),
    seed=st.integers(0, 5),
)
def test_chains_of_any_shape(
    widths: list[int], inner: list[int], lengths: list[int], clip: float, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    sizes, layers = [3, *widths], []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), nn.Tanh()]
    last = sizes[-1] * int(np.prod(inner))
    model = Model(nn.Sequential(*layers, nn.Flatten(), nn.Linear(last, 2, bias=bias)).double())
    x, y = torch.randn(5, *inner, 3).double(), torch.randint(2, (5,))
    points, w = stack(x, y, lengths, torch.float64), vectors(model, len(lengths))
    stacked = Stacked.of(model)
    assert stacked is not None
    few = stack(x, y, [2], torch.float64)
    chained = Chained(stacked, model.w[None], few, 1 << 20)
    recorded = ByParty(Recorded(model, x, y, 1 << 20))
    expected = by_hand(model, w, points, clip)

    for way in (chained, recorded):
        assert_equal(way.clipped(w, points, clip), expected, 1e-6)


@settings(max_examples=40, deadline=None)
@given(
    one=st.booleans(),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.sampled_from([0, 1, "same"]),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    mode=st.sampled_from(["zeros", "reflect", "circular"]),
    bias=st.booleans(),
)
def test_convolutions_of_any_kind(
    one: bool,
    kernel: int,
    stride: int,
    padding: int | str,
    dilation: int,
    groups: int,
    mode: str,
    bias: bool,
) -> None:
    torch.manual_seed(0)
    stride = 1 if padding == "same" else stride
    kind, shape = (nn.Conv1d, (4, 7)) if one else (nn.Conv2d, (4, 7, 6))
    layer = kind(4, 6, kernel, stride, padding, dilation, groups, bias, mode).double()
    x, y = torch.randn(3, *shape).double(), torch.randint(3, (3,))
    outputs = layer(x)[0].numel()
    model = Model(nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.Linear(outputs, 3)).double())
    points, w = stack(x, y, [3], torch.float64), vectors(model, 1)

    got = ByParty(Recorded(model, x, y, 1 << 20)).clipped(w, points, 0.7)

    assert_equal(got, by_hand(model, w, points, 0.7), 1e-6)


def test_a_large_convolution_takes_torchs_own_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archipel.models.ghost._LARGE", 0)
    model, x, y = model_of("lenet", torch.float64)
    points, w = stack(x, y, [3, 2], torch.float64), vectors(model, 2)

    got = ByParty(Recorded(model, x, y, 1 << 20)).clipped(w, points, 0.7)

    assert_equal(got, by_hand(model, w, points, 0.7), 1e-6)


def test_frozen_parameters_are_left_out() -> None:
    module = build("mlp", (5,), 3, widths=[4, 4])
    module[1].weight.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    model = Model(module.double())
    x, y = images(6, 5)
    x = x.double()
    points, w = stack(x, y, [3, 2], torch.float64), vectors(model, 2)
    right = ways(model, x, y, wanted="vmapped")
    expected = by_hand(model, w, points, 0.5)

    assert set(right) == LAYERS
    for way in right.values():
        assert_equal(way.clipped(w, points, 0.5), expected, 1e-6)


# -- no example moves the sum by more than C -------------------------------------------------------

WILD = {
    "huge": lambda x: torch.full_like(x, 1e30),
    "opposite": lambda x: torch.where(torch.arange(x.numel()).view(x.shape) % 2 == 0, 1e30, -1e30),
    "largest": lambda x: torch.full_like(x, torch.finfo(x.dtype).max),
    "nan": lambda x: torch.full_like(x, torch.nan),
    "one nan": lambda x: torch.cat([torch.tensor([torch.nan], dtype=x.dtype), x.flatten()[1:]]),
    "infinite": lambda x: torch.full_like(x, torch.inf),
    "tiny": lambda x: torch.full_like(x, 1e-38),
    "zero": torch.zeros_like,
    "far apart": lambda x: x * 10.0 ** torch.linspace(-36, 36, x.numel()).view(x.shape),
}


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("name", ["logistic", "mlp", "sequences", "cnn", "grouped", "functional"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
def test_no_example_moves_the_sum_by_more_than_the_clip(
    name: str, wild: str, dtype: torch.dtype
) -> None:
    model, x, y, right = tried(name, dtype)
    w = vectors(model, 1)
    bad = x[:5].clone()
    bad[2] = WILD[wild](bad[2]).view(bad[2].shape).to(dtype)
    for clip in (1e-8, 10.0):
        for way_name, way in right.items():
            points = stack(bad, y[:5], [5], dtype)
            got = way.clipped(w, points, clip)
            without = way.clipped(
                w, points._replace(weights=points.weights.index_fill(1, torch.tensor([2]), 0)), clip
            )
            alone = way.clipped(w, stack(bad[2:3], y[2:3], [1], dtype), clip)

            assert got.sum.isfinite().all(), way_name
            assert alone.sum.double().norm() <= clip, way_name
            moved = (got.sum.double() - without.sum.double()).norm()
            rounding = 16 * torch.finfo(dtype).eps * got.sum.norm()  # of two sums
            assert moved <= clip + rounding, way_name
            others = torch.tensor([0, 1, 3, 4])
            torch.testing.assert_close(got.norms[:, others], without.norms[:, others])
            assert without.norms[0, 2] == 0


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    power=st.tuples(st.integers(-37, 37), st.integers(-37, 37), st.integers(-37, 37)),
    clip=st.integers(-19, 19),
    steps=st.sampled_from([1, 3]),
    seed=st.integers(0, 3),
)
@example(power=(35, -10, 0), clip=-10, steps=1, seed=0)  # a factor times d is subnormal
def test_an_example_alone_adds_at_most_the_clip_whatever_the_scales(
    power: tuple[int, int, int], clip: int, steps: int, seed: int
) -> None:
    """Inputs, weights and targets of any size a float has: what is added up has norm <= C."""
    torch.manual_seed(seed)
    inputs, weights, targets = (10.0**e for e in power)
    shape = (4,) if steps == 1 else (steps, 4)
    chain = nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(3 * steps, 1))
    model = Model(chain, "squared_error")
    w = weights * torch.randn(1, model.p)
    x, y = inputs * torch.randn(1, *shape), targets * torch.randn(1)
    points = stack(x, y, [1], torch.float32)
    stacked = Stacked.of(model)
    assert stacked is not None
    few = stack(torch.ones(2, *shape), torch.ones(2), [2], torch.float32)

    for way in (
        Chained(stacked, model.w[None], few, 1 << 20),
        ByParty(Recorded(model, few.x[0], few.y[0], 1 << 20)),
    ):
        got = way.clipped(w, points, 10.0**clip).sum.double()
        assert got.norm() <= 10.0**clip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "float"])
@settings(max_examples=60, deadline=None)
@given(
    gap=st.sampled_from([0.0, 1e-9, 1e-7, 1e-6, 1e-4]),
    t=st.integers(2, 6),
    width=st.sampled_from([1, 40]),
    biases=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_cancellation_lets_nothing_through(
    dtype: torch.dtype, gap: float, t: int, width: int, biases: int, seed: int
) -> None:
    """Large terms whose sum over t is small: in both forms the norm covers what is added up."""
    torch.manual_seed(seed)
    d, h = torch.randn(1, t, width, dtype=dtype), torch.randn(1, t, 3, dtype=dtype)
    h[:, :, 1:] = h[:, :, :1] * torch.randn(2, dtype=dtype)
    d[:, -1] = -(d[:, :-1] * h[:, :-1, :1]).sum(1) / h[:, -1, :1] * (1 + gap)
    factor = torch.rand(1, dtype=dtype)

    squares = squares_of_products(d, h, lengths(d), True, biases)

    def norm(d: Tensor) -> float:
        long_d, long_h = (part[0].numpy().astype(np.longdouble) for part in (d, h))
        weight = np.square(long_d.T @ long_h).sum()
        return float(np.sqrt(weight + biases * np.square(long_d.sum(0)).sum()))

    added = norm(scaled(d, factor, lengths(d)))
    assert added <= float(factor) * float(squares.sqrt()) * (1 + torch.finfo(dtype).eps)
    most = float((lengths(d) * (lengths(h) + biases)).sum())
    assert float(squares.sqrt()) <= norm(d) + 1e-5 * most


@pytest.mark.parametrize("n", [1, 127, 128, 1000, 70_000])
def test_lengths_of_many_floats_are_hardly_short(n: int) -> None:
    torch.manual_seed(0)
    rows = (1 << 15) // n + 8
    for scale in (1e-42, 1e-25, 1e-10, 1.0, 1e15, 1e25, 3e38):
        for x in (torch.rand(rows, n) * scale, torch.full((rows, n), 0.7 * scale)):
            x[0], x[1, 0], x[2, 0] = 0.0, torch.nan, torch.inf
            x[3, : n // 2] = 0.0
            x[4, n // 2 :] *= 1e-10

            got, exact = lengths(x), x.double().norm(dim=1)

            torch.testing.assert_close(got, exact, rtol=4e-6, atol=0.0, equal_nan=True)


def test_a_small_gradient_of_a_large_input_is_not_rounded_up() -> None:
    """Here d times the factor is subnormal: a few bits, and an input of 1e35 to show them."""
    model = Model(nn.Linear(1, 1, bias=False), "squared_error")
    few = stack(torch.ones(2, 1), torch.ones(2), [2], torch.float32)
    stacked = Stacked.of(model)
    assert stacked is not None
    x, y = torch.linspace(5e34, 2e35, 60)[:, None], torch.full((60,), 1e-20)

    for way in (
        Chained(stacked, model.w[None], few, 1 << 20),
        ByParty(Recorded(model, few.x[0], few.y[0], 1 << 20)),
    ):
        for i in range(60):
            points = stack(x[i : i + 1], y[i : i + 1], [1], torch.float32)
            assert way.clipped(torch.zeros(1, 1), points, 1e-8).sum.norm() <= 1e-8


def test_factors_of_padding_and_of_what_is_no_number() -> None:
    squares = torch.tensor([4.0, 4.0, torch.nan, torch.inf, 0.0, 1e60]).double()
    real = torch.tensor([True, False, True, True, True, True])

    found = factors(squares, 1.0, torch.float32, real)

    assert found.values.tolist() == pytest.approx([0.5, 0, 0, 0, 1, 0], abs=1e-5)
    assert found.values[0] < 0.5
    assert found.norms.tolist() == [2.0, 0.0, torch.inf, torch.inf, 0.0, torch.inf]


@pytest.mark.parametrize("name", ["mlp", "cnn", "functional"])
def test_what_has_no_finite_gradient_adds_nothing_and_says_so(name: str) -> None:
    model, x, y = model_of(name, torch.float32)
    x[1] = torch.nan
    points, w = stack(x, y, [3], torch.float32), vectors(model, 1)
    rest = points._replace(weights=torch.tensor([[1.0, 0.0, 1.0]]))

    for way in ways(model, x, y, wanted="vmapped").values():
        got = way.clipped(w, points, 1.0)

        torch.testing.assert_close(got.sum, way.clipped(w, rest, 1.0).sum)
        assert got.norms.isinf().tolist() == [[False, True, False]]


def test_a_target_that_is_no_number_spoils_no_embedding() -> None:
    torch.manual_seed(0)
    model = Model(
        nn.Sequential(nn.Embedding(TEXT, 4), nn.Flatten(), nn.Linear(12, 1)), "squared_error"
    )
    x, y = text(4, 3)[0], torch.tensor([1.0, torch.nan, 2.0, 3.0])
    points, w = stack(x, y, [4], torch.float32), vectors(model, 1)
    rest = points._replace(weights=torch.tensor([[1.0, 0.0, 1.0, 1.0]]))

    for way in ways(model, x[2:], y[2:], wanted="vmapped").values():
        got = way.clipped(w, points, 1.0)

        torch.testing.assert_close(got.sum, way.clipped(w, rest, 1.0).sum)
        assert got.sum.isfinite().all()


def test_padding_may_hold_anything() -> None:
    for name in ("mlp", "cnn"):
        model, x, y = model_of(name, torch.float32)
        points, w = stack(x, y, [4, 2], torch.float32), vectors(model, 2)
        spoilt = points._replace(x=points.x.clone())
        spoilt.x[1, 2:] = torch.inf

        for way in ways(model, x, y).values():
            for got, expected in zip(
                way.clipped(w, spoilt, 1.0), way.clipped(w, points, 1.0), strict=True
            ):
                torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "tied"])
def test_no_examples(name: str) -> None:
    model, x, y = model_of(name, torch.float32)
    w = vectors(model, 2)
    none = Points(
        x[:0][None].expand(2, *x[:0].shape), y[:0][None].expand(2, *y[:0].shape),
        torch.zeros(2, 0), np.zeros(2, np.int64),
    )  # fmt: skip

    for way in ways(model, x, y).values():
        for points in (
            none,
            stack(x, y, [2, 1], torch.float32)._replace(weights=torch.zeros(2, 2)),
        ):
            got = way.clipped(w, points, 1.0)

            assert got.sum.abs().max() == 0
            assert got.norms.shape == points.weights.shape
            assert not got.norms.any()


# -- memory, steps, layers that draw ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "sequences", "cnn", "lstm", "tied"])
def test_parts_that_fit_into_memory_add_up_to_the_same(name: str) -> None:
    model, x, y = model_of(name, torch.float64)
    points, w = stack(x, y, [9, 5, 0], torch.float64), vectors(model, 3)
    whole = ways(model, x, y, wanted="vmapped")
    parts = ways(model, x, y, limit=1, wanted="vmapped")

    for way, small in zip(whole.values(), parts.values(), strict=True):
        assert_equal(small.clipped(w, points, 0.5), way.clipped(w, points, 0.5), 1e-12)
        ends = w.clone(), w.clone()
        for each, end in zip((way, small), ends, strict=True):
            each.move(end, points, 0.5, 0.3)
        torch.testing.assert_close(*ends)


def test_memory_bounds_the_examples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = model_of("cnn", torch.float32)
    seen: list[int] = []
    add = Recorded.add

    def spy(self: Recorded, w: Tensor, x: Tensor, *rest: object) -> Tensor:
        seen.append(len(x))
        return add(self, w, x, *rest)

    monkeypatch.setattr(Recorded, "add", spy)
    points, w = stack(x, y, [12], torch.float32), vectors(model, 1)
    each = (1 << 40) / Recorded(model, x, y, 1 << 40).size  # bytes of an example
    ways(model, x, y, limit=int(5.5 * each))["recorded"].clipped(w, points, 1.0)

    assert seen[-3:] == [5, 5, 2]


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "lstm", "functional"])
def test_a_step_is_the_sum_times_its_rate(name: str) -> None:
    model, x, y = model_of(name, torch.float64)
    points, w = stack(x, y, [4, 2, 0], torch.float64), vectors(model, 3)
    rate, clip = torch.tensor([[0.1], [0.2], [0.3]]).double(), torch.tensor([[1.0], [0.1], [1.0]])

    for way in ways(model, x, y, wanted="vmapped").values():
        total, norms = way.clipped(w, points, clip.double())
        first, second = w.clone(), w.clone()

        torch.testing.assert_close(way.move(first, points, clip.double(), rate), norms)
        way.move(second, points, clip.double(), 0.25)
        torch.testing.assert_close(first, w - rate * total)
        torch.testing.assert_close(second, w - 0.25 * total)


@pytest.mark.parametrize("mood", ["functional", "twice"])
def test_a_pass_that_is_not_as_on_the_probe_goes_another_way(
    mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Model(Moody().double())
    x, y = images(6, 5)
    x = x.double()
    points, w = stack(x, y, [2, 3], torch.float64), vectors(model, 2)
    right = ways(model, x, y)
    alone = ByParty(Recorded(model, x[2:4], y[2:4], 1 << 20))
    monkeypatch.setattr(Moody, "mood", mood)

    with pytest.raises(Unrecorded):
        alone.clipped(w, points, 1.0)
    expected = by_hand(model, w, points, 1.0)
    assert_equal(right["recorded"].clipped(w, points, 1.0), expected, 1e-9)
    end = w.clone()
    right["recorded"].move(end, points, 1.0, 0.5)
    torch.testing.assert_close(end, w - 0.5 * expected.sum)


def test_dropout_draws_for_each_example_and_repeats_with_its_seed() -> None:
    torch.manual_seed(0)
    model = Model(nn.Sequential(nn.Linear(5, 30), nn.Dropout(), nn.Linear(30, 3)))
    x, y = torch.ones(4, 5), torch.zeros(4, dtype=torch.int64)
    points = stack(x, y, [4, 4], torch.float32)._replace(seeds=np.array([3, 4], np.uint64))
    w = vectors(model, 1).expand(2, -1)
    right = ways(model, x, y, wanted="vmapped")
    before = torch.get_rng_state()

    assert set(right) == LAYERS
    for way in right.values():
        first, again = way.clipped(w, points, 0.5), way.clipped(w, points, 0.5)

        assert torch.equal(first.sum, again.sum)
        assert len(first.norms.flatten().unique()) == 8
        assert (first.sum.norm(dim=1) <= 4 * 0.5).all()
    assert torch.equal(torch.get_rng_state(), before)


# -- what has no gradient of single examples -------------------------------------------------------


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


class Counting(Centred):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum(0)
        return self.layer(x)


class Remembering(Centred):
    """What it saw is in an attribute that is no buffer."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach().mean(0) + getattr(self, "seen", 0.0)
        return self.layer(x + self.seen.mean())


class Constant(Counting):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.seen)


def test_refusals_say_what_and_what_to_do() -> None:
    x, y = images(6, 5)
    survival = torch.rand(6, 2).round() + 1.0

    with pytest.raises(ArchipelError, match=r"loss 'cox' compares examples.*unit = \"party\""):
        ways(Model(build("cox", (5,), 1), "cox"), x, survival)
    with pytest.raises(ArchipelError, match=r"layer '1' \(BatchNorm1d\) mixes.*GroupNorm"):
        ways(Model(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))), x, y)
    with pytest.raises(ArchipelError, match="Centred mixes the examples"):
        ways(Model(Centred()), x, y)
    with pytest.raises(ArchipelError, match="Remembering gives other gradients"):
        ways(Model(Remembering()), x, y)
    with pytest.raises(ArchipelError, match="Counting keeps statistics"):
        ways(Model(Counting()), x, y)
    with pytest.raises(ArchipelError, match="0 points"):
        ways(Model(nn.Linear(5, 3)), x[:0], y[:0])
    assert "recorded" in ways(Model(Constant()), x, y)


@pytest.mark.parametrize(
    "clip", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([[1.0], [0]])]
)
def test_a_clip_that_is_no_length(clip: float | Tensor) -> None:
    for name in ("mlp", "cnn"):
        model, x, y = model_of(name, torch.float32)
        points, w = stack(x, y, [2, 1], torch.float32), vectors(model, 2)

        for way in ways(model, x, y).values():
            with pytest.raises(ArchipelError, match="clip = "):
                way.clipped(w, points, clip)
            with pytest.raises(ArchipelError, match="clip = "):
                way.move(w, points, clip, 0.1)
