# SPDX-License-Identifier: Apache-2.0
"""Identities of the papers behind the steps, over shapes, stacks and precisions."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import archipel as ar
from archipel.engines.plan import threads
from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.tree import leaves, tree_map
from archipel.vector import ParamSpec
from archipel.wire import (
    Clip,
    Entropy,
    Float16,
    LowRank,
    PowerSGD,
    Quantise,
    RandomK,
    RandomMask,
    Rotate,
    Sign,
    Subsample,
    TopK,
    bits,
)
from archipel.wire.chain import Chain
from archipel.wire.rotate import hadamard
from archipel.wire.subsets import drawn as chosen
from archipel.wire.subsets import how_many, stretches
from problems import classification, network

DTYPES = [torch.float32, torch.float64]
LEADS = [(), (3,), (2, 3)]
SHAPES = st.one_of(
    st.lists(st.integers(1, 9), min_size=2, max_size=2).map(tuple),
    st.sampled_from([(1, 1), (1, 257), (31, 9), (16, 16), (2, 64), (100, 3)]),
)
over_stacks = pytest.mark.parametrize("lead", LEADS, ids=str)
over_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
some = settings(max_examples=25, deadline=None)
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices are quicker alone."""
    with threads(1):
        yield


def sender(lead=(), t=0, number=0, step=0):
    return Sender(0, t, number, np.arange(lead[-1] if lead else 1), lead, step=step)


def drawn(shape, lead=(), dtype=torch.float64, seed=0, size=1.0):
    random = torch.Generator().manual_seed(seed)
    return size * torch.randn((*lead, *shape), generator=random, dtype=dtype)


def first_own(step, form, lead):
    return tree_map(lambda x: x.expand(*lead, *x.shape).clone(), step.init(form))


def passed(step, x, lead, t=0, own=None):
    """What arrives of a matrix, and what travelled."""
    form = (x[(0,) * len(lead)].new_zeros(x.shape[len(lead) :]),)
    own = first_own(step, form, lead) if own is None else own
    payload, own = step.send(sender(lead, t), (x,), own)
    (arrives,) = step.receive(sender(lead, t), payload, form)
    return arrives, payload, own


# -- rotation --------------------------------------------------------------------------------------


@over_stacks
@over_dtypes
@some
@given(power=st.integers(0, 9), seed=st.integers(0, 99))
def test_hadamard_is_the_matrix_of_the_books_and_its_own_inverse(lead, dtype, power, seed):
    d = 1 << power
    x = drawn((d,), lead, dtype, seed)
    book = torch.from_numpy(scipy.linalg.hadamard(d)).to(dtype) / math.sqrt(d)
    y = hadamard(x)

    torch.testing.assert_close(y, x @ book, rtol=0, atol=10 * TOLERANCE[dtype])
    torch.testing.assert_close(hadamard(y), x, rtol=0, atol=10 * TOLERANCE[dtype])


@over_stacks
@over_dtypes
@some
@given(shape=SHAPES, common=st.booleans(), seed=st.integers(0, 99))
def test_rotation_keeps_norms_and_is_undone(lead, dtype, shape, common, seed):
    x = drawn(shape, lead, dtype, seed)
    arrives, (y,), _ = passed(Rotate(common), x, lead)

    assert y.shape == (*lead, 1, math.prod(shape))
    torch.testing.assert_close(arrives, x, rtol=0, atol=10 * TOLERANCE[dtype])
    norms = [z.flatten(-2).norm(dim=-1) for z in (x, y)]
    torch.testing.assert_close(*norms, rtol=10 * TOLERANCE[dtype], atol=0)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 100, 200])
def test_rotation_is_orthogonal(n):
    turned = torch.stack(
        [passed(Rotate(), row[None], ())[1][0][0] for row in torch.eye(n, dtype=torch.float64)]
    )
    torch.testing.assert_close(turned @ turned.mT, torch.eye(n, dtype=torch.float64))


def test_rotation_spreads_one_large_number_over_all():
    for n in (4096, 5000, 8191):
        x = torch.zeros(1, n, dtype=torch.float64)
        x[0, 17] = 1.0
        y = passed(Rotate(), x, ())[1][0]
        assert float(y.abs().max()) <= 4 / math.sqrt(n)


def test_rotation_helps_few_bits_as_much_as_the_paper_has_it():
    """Of a vector with few large numbers, 2^14 long: the error falls by a factor of 20 or more."""
    random = np.random.default_rng(0)
    heavy = random.standard_t(1.5, 1 << 14) * (random.random(1 << 14) < 0.01)
    x = torch.from_numpy(heavy).view(128, 128)
    form = (torch.zeros(128, 128, dtype=torch.float64),)
    spec = ParamSpec(("w",), ((128, 128),))

    def error(*steps):
        chain = Chain.fitted(steps, torch.zeros(1 << 14, dtype=torch.float64), sender(), spec)
        payload, _ = chain.send(sender(), x.flatten(), chain.init())
        return float((chain.receive(sender(), payload) - x.flatten()).square().sum())

    assert form[0].shape == x.shape
    for b in (1, 2, 4):
        assert error(Quantise(b)) > 20 * error(Rotate(), Quantise(b))


# -- subsets ---------------------------------------------------------------------------------------


@over_stacks
@some
@given(n=st.integers(1, 500), share=st.floats(0.001, 1.0), common=st.booleans())
def test_one_number_of_each_stretch_is_drawn(lead, n, share, common):
    k = how_many(share, n)
    starts, lengths = stretches(k, n)
    at = chosen(sender(lead), "x", k, n, common)

    assert at.shape == ((k,) if common else (*lead, k))
    assert bool((at >= starts).all()) and bool((at < starts + lengths).all())
    assert torch.equal(starts, lengths.cumsum(0) - lengths) and lengths.sum() == n
    assert 1 <= k <= n and lengths.max() - lengths.min() <= 1
    if len(lead) == 2 and not common:
        assert torch.equal(at[0], at[1])  # settings of a sweep draw alike


@over_stacks
@over_dtypes
@some
@given(shape=SHAPES, share=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_subsample_scales_what_it_keeps_by_its_stretch(lead, dtype, shape, share, seed):
    x, n = drawn(shape, lead, dtype, seed), math.prod(shape)
    arrives, (values,), _ = passed(Subsample(share), x, lead)
    k = how_many(share, n)
    lengths = stretches(k, n)[1].to(dtype)

    assert values.shape == (*lead, 1, k)
    flat, found = x.flatten(-2), arrives.flatten(-2)
    at = chosen(sender(lead), "0", k, n)
    torch.testing.assert_close(found.gather(-1, at), flat.gather(-1, at) * lengths)
    assert int((found != 0).sum()) == math.prod(lead) * k


@over_stacks
@some
@given(shape=SHAPES, share=st.floats(0.01, 1.0), rounds=st.integers(1, 4))
def test_random_k_sends_numbers_as_they_are_and_the_rest_later(lead, shape, share, rounds):
    step, total, own = RandomK(share), 0.0, None
    for t in range(rounds):
        x = drawn(shape, lead, seed=t)
        arrives, _, own = passed(step, x, lead, t, own)
        total = total + x - arrives
        torch.testing.assert_close(own[0], total)  # all that did not arrive so far, and no more


# -- bits ------------------------------------------------------------------------------------------


@over_stacks
@some
@given(b=st.integers(1, 8), n=st.integers(1, 100), seed=st.integers(0, 99))
def test_codes_are_packed_without_a_gap(lead, b, n, seed):
    random = np.random.default_rng(seed)
    codes = torch.from_numpy(random.integers(0, 1 << b, (*lead, n), dtype=np.uint8))
    data = bits.packed(codes, b)

    assert data.shape == (*lead, math.ceil(n * b / 8)) and data.dtype == torch.uint8
    assert torch.equal(bits.unpacked(data, b, n), codes)
    whole = np.unpackbits(data.numpy(), axis=-1, bitorder="little")[..., : n * b]
    weights = 1 << np.arange(b)
    assert np.array_equal(whole.reshape(*lead, n, b) @ weights, codes.numpy())


@over_stacks
@some
@given(n=st.integers(1, 3000), share=st.floats(0.0, 1.0), seed=st.integers(0, 99))
def test_positions_take_about_two_bits_more_than_they_must(lead, n, share, seed):
    k, random = max(1, round(share * n)), np.random.default_rng(seed)
    rows = [np.sort(random.choice(n, k, False)) for _ in range(math.prod(lead))]
    at = torch.from_numpy(np.stack(rows)).view(*lead, k)
    lows, marks = bits.positions_coded(at, n)

    assert torch.equal(bits.positions(lows, marks, n, k), at)
    size = 8 * (lows.shape[-1] + marks.shape[-1])
    assert size <= k * (2 + math.log2(n / k)) + 8 * 6  # and no byte for each of few parts is half


def test_positions_at_both_ends():
    for n, k in ((1, 1), (70000, 1), (70000, 2), (1 << 20, 3), (256, 256), (257, 256)):
        for at in (torch.arange(k), torch.arange(n - k, n)):
            assert torch.equal(bits.positions(*bits.positions_coded(at, n), n, k), at)


# -- few bits --------------------------------------------------------------------------------------


@over_stacks
@over_dtypes
@some
@given(
    shape=SHAPES, b=st.integers(1, 8), seed=st.integers(0, 99), size=st.sampled_from([1e-6, 1, 1e6])
)
def test_quantised_numbers_are_levels_and_off_by_an_interval_at_most(
    lead, dtype, shape, b, seed, size
):
    x = drawn(shape, lead, dtype, seed, size)
    arrives, payload, _ = passed(Quantise(b), x, lead)
    flat, found = x.flatten(-2), arrives.flatten(-2)
    least, most = flat.aminmax(dim=-1, keepdim=True)
    interval, slack = (most - least) / (2**b - 1), 10 * TOLERANCE[dtype] * size

    assert bool(((found - flat).abs() <= interval + slack).all())
    assert len(set(found.reshape(-1, found.shape[-1])[0].tolist())) <= 2**b
    place = ((found - least) / interval.clamp_min(1e-30)).nan_to_num()
    torch.testing.assert_close(place, place.round(), rtol=0, atol=1e-2)
    for end in (least, most):  # numbers at an end stay there
        at = flat == end
        off = torch.where(at, (found - end).abs(), 0.0)
        assert bool((off <= slack).all())
    assert payload[0].codes.shape[-1] == bits.packed_size(flat.shape[-1], b)
    assert torch.equal(payload[0].ends, torch.cat([least, most], dim=-1))


@over_dtypes
@pytest.mark.parametrize("value", [0.0, 1.0, -3.7e-5, 1e10, 1e-40])
@pytest.mark.parametrize("b", [1, 3, 8])
def test_a_matrix_of_one_number_is_exact(dtype, value, b):
    x = torch.full((5, 7), value, dtype=dtype)
    assert torch.equal(passed(Quantise(b), x, ())[0], x)


@over_dtypes
@pytest.mark.parametrize("b", [1, 4, 8])
@pytest.mark.parametrize("offset", [-1e6, -100.0, 1.0, 1e4])
def test_numbers_far_from_zero_are_off_by_an_interval_at_most(dtype, b, offset):
    """And by what their own precision leaves open."""
    x = offset + drawn((20, 30), dtype=dtype, size=abs(offset) * 1e-5)
    arrives, _, _ = passed(Quantise(b), x, ())
    least, most = x.aminmax()
    interval = float(most - least) / (2**b - 1)
    slack = 3 * abs(offset) * torch.finfo(dtype).eps

    assert float((arrives - x).abs().max()) <= interval + slack
    assert float((arrives - x).double().mean().abs()) <= 0.2 * interval + slack


@over_stacks
@over_dtypes
@some
@given(shape=SHAPES, b=st.integers(1, 8), seed=st.integers(0, 99))
def test_with_dither_the_same_bytes_are_off_by_half_an_interval_at_most(
    lead, dtype, shape, b, seed
):
    x = drawn(shape, lead, dtype, seed)
    arrives, payload, _ = passed(Quantise(b, dither=True), x, lead)
    _, plain, _ = passed(Quantise(b), x, lead)
    flat = x.flatten(-2)
    least, most = flat.aminmax(dim=-1, keepdim=True)
    interval = (most - least) / (2**b - 1)

    off = (arrives.flatten(-2) - flat).abs()
    assert bool((off <= (0.5 + 1e-4) * interval + 10 * TOLERANCE[dtype]).all())
    assert torch.equal(payload[0].codes, plain[0].codes)


@pytest.mark.parametrize("b", [1, 2, 4])
def test_dither_halves_the_error_of_numbers_that_lie_anywhere(b):
    """Of a uniform position in its interval: 1 / 12 of its square, in place of 1 / 6."""
    x = torch.rand(300, 300, dtype=torch.float64)
    errors = [(passed(Quantise(b, on), x, ())[0] - x).square().mean() for on in (False, True)]
    interval = 1 / (2**b - 1)
    torch.testing.assert_close(
        torch.stack(errors) / interval**2, torch.tensor([1 / 6, 1 / 12]).double(), rtol=0.03, atol=0
    )


def test_few_bits_of_16():
    """Least and largest are of 16 bits already, so that they travel as they are."""
    for short in (torch.float16, torch.bfloat16):
        x = drawn((9, 13)).to(short)
        arrives, payload, _ = passed(Quantise(8), x, ())
        assert arrives.dtype == short and payload[0].ends.dtype == short
        assert float((arrives.double() - x.double()).abs().max()) < 0.05


# -- the largest, and signs ------------------------------------------------------------------------


@over_stacks
@over_dtypes
@some
@given(shape=SHAPES, share=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_top_k_are_the_largest_k(lead, dtype, shape, share, seed):
    x, n = drawn(shape, lead, dtype, seed), math.prod(shape)
    arrives, _, own = passed(TopK(share), x, lead)
    k = how_many(share, n)
    flat, found = x.flatten(-2), arrives.flatten(-2)

    assert bool(((found != 0).sum(dim=-1) == k).all())
    assert torch.equal(torch.where(found != 0, flat, 0), found)
    largest = flat.abs().topk(k, dim=-1).values.sum(dim=-1)
    torch.testing.assert_close(found.abs().sum(dim=-1), largest)
    assert torch.equal(own[0], x - arrives)


def test_top_k_of_equal_numbers_is_k_of_them():
    arrives, _, _ = passed(TopK(0.3), torch.ones(10, 10), ())
    assert int((arrives != 0).sum()) == 30
    arrives, _, own = passed(TopK(0.3), torch.zeros(10, 10), ())
    assert not arrives.any() and not own[0].any()


@over_stacks
@over_dtypes
@some
@given(shape=SHAPES, seed=st.integers(0, 99))
def test_signs_arrive_with_the_mean_magnitude(lead, dtype, shape, seed):
    x = drawn(shape, lead, dtype, seed)
    arrives, payload, own = passed(Sign(), x, lead)
    scale = x.abs().mean(dim=(-2, -1), keepdim=True)

    torch.testing.assert_close(arrives, scale * x.sign())
    assert payload[0].signs.shape[-1] == math.ceil(math.prod(shape) / 8)
    torch.testing.assert_close(own[0], x - arrives)


# -- power iterations ------------------------------------------------------------------------------


def best(x, rank):
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]


@over_stacks
@pytest.mark.parametrize(("shape", "rank"), [((12, 7), 2), ((5, 30), 1), ((9, 9), 3), ((1, 8), 1)])
def test_power_sgd_without_feedback_comes_to_the_best_low_rank(lead, shape, rank):
    x = drawn(shape, lead) + 5 * drawn((shape[0], 1), lead) @ drawn((1, shape[1]), lead, seed=2)
    step = PowerSGD(rank)
    own = first_own(step, (torch.zeros(shape, dtype=torch.float64),), lead)
    for t in range(300):
        arrives, _, own = passed(step, x, lead, t, own)
        own = tuple(each._replace(error=torch.zeros_like(each.error)) for each in own)
    torch.testing.assert_close(arrives, best(x, min(rank, *shape)), rtol=1e-5, atol=1e-5)


FEEDBACK = [TopK(0.1), RandomK(0.2), Sign(), PowerSGD(1), PowerSGD(3)]


@pytest.mark.parametrize("step", FEEDBACK, ids=repr)
@over_stacks
def test_with_feedback_the_mean_of_what_arrives_is_what_was_sent(step, lead):
    x, own, total = drawn((9, 14), lead), None, torch.zeros(())
    errors = []
    for t in range(400):
        arrives, _, own = passed(step, x, lead, t, own)
        total = total + arrives
        errors.append(float((total / (t + 1) - x).norm() / x.norm()))
    kept = own[0].error if isinstance(step, PowerSGD) else own[0]

    torch.testing.assert_close(total + kept, 400 * x)  # nothing is lost, and nothing comes twice
    assert errors[-1] < 0.06 and errors[-1] < 0.5 * errors[50]


def test_power_sgd_goes_on_after_a_matrix_of_zeros():
    """A layer that does not learn at first, with rows that never do."""
    step, zeros = PowerSGD(1), torch.zeros(6, 5, dtype=torch.float64)
    _, _, own = passed(step, zeros, ())
    x = zeros.clone()
    x[3] = torch.arange(5) + 1.0
    for t in range(3):
        arrives, _, own = passed(step, x, (), t, own)

    torch.testing.assert_close(arrives, x)


@pytest.mark.parametrize("short", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("step", [*FEEDBACK, Rotate(), Clip(1.0), Subsample(0.5)], ids=repr)
def test_numbers_of_16_bits_are_coded(step, short):
    x = drawn((8, 8)).to(short)
    arrives, _, _ = passed(step, x, ())
    assert arrives.dtype == short and bool(torch.isfinite(arrives).all())
    if isinstance(step, Rotate):
        torch.testing.assert_close(arrives, x, rtol=0.05, atol=0.1)


def test_clip_knows_norms_that_16_bits_do_not_hold():
    x = torch.full((20, 20), 60000.0, dtype=torch.float16)
    arrives, _, _ = passed(Clip(1000.0), x, ())
    assert float(arrives.double().norm()) == pytest.approx(1000.0, rel=0.01)


# -- training in a subspace ------------------------------------------------------------------------

STRUCTURED = [LowRank(0.4), LowRank(0.4, True), RandomMask(0.4), RandomMask(0.4, True)]
LAYERS = st.lists(
    st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
).map(tuple)


@pytest.mark.parametrize("step", STRUCTURED, ids=repr)
@over_stacks
@over_dtypes
@settings(max_examples=10, deadline=None)
@given(shapes=LAYERS)
def test_the_projection_is_one(step, lead, dtype, shapes):
    spec = ParamSpec(tuple(map(str, range(len(shapes)))), shapes)
    project = step.restrict(sender(lead), spec, dtype)
    x, y = (drawn((spec.size,), lead, dtype, seed) for seed in (1, 2))
    inside = project(x)

    torch.testing.assert_close(project(inside), inside, rtol=0, atol=10 * TOLERANCE[dtype])
    one, other = (inside * y).sum(dim=-1), (x * project(y)).sum(dim=-1)
    torch.testing.assert_close(one, other, rtol=0, atol=100 * TOLERANCE[dtype])
    assert bool((inside.norm(dim=-1) <= x.norm(dim=-1) * (1 + 1e-5)).all())


@pytest.mark.parametrize("step", STRUCTURED, ids=repr)
@pytest.mark.parametrize("plan", [ar.Plan("one", 1, 1), ar.Plan("stacked", 4, 1)], ids=str)
def test_of_a_trained_upload_all_arrives(step, plan):
    """The same rounds with what restricts training alone, and nothing left out of uploads."""
    data = classification(4, 6, 3, 0)

    @dataclass(frozen=True)
    class Whole(type(step)):
        def send(self, me, upload, own):
            return upload, own

        def receive(self, them, payload, form):
            return payload

    def learn(each):
        wire = ar.Wire(up=(each,))
        model = network(6, 3, hidden=8)
        work = ar.FedAvg(lr=0.1, batch_size=4)
        with ar.LocalEngine(work, data, model, plan=plan, wire=wire) as engine:
            return [engine.round(t, range(4)).up for t in range(3)], engine.vector().clone()

    (few, found), (many, expected) = learn(step), learn(Whole(**step.__dict__))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert few[0] < 0.7 * many[0]


def by_hand(step, model, data, k, lr, steps, layer_shapes):
    """Full gradient steps on the coordinates B alone, by autograd: W = W_0 + A B."""
    me = Sender(0, 0, 0, np.array([k]))
    parts = list(model.w.split([math.prod(s) for s in layer_shapes]))
    zeros, bases, at = [], [], 0
    for part, shape in zip(parts, layer_shapes, strict=True):
        if len(shape) > 1:
            one = torch.zeros(shape, dtype=part.dtype)
            bases.append(step.basis(me, str(at), one))
            zeros.append(torch.zeros_like(step.inside(one, bases[-1])))
            at += 1
        else:
            bases.append(None)
            zeros.append(torch.zeros_like(part))
    inner = [z.requires_grad_() for z in zeros]
    rows = data.select(np.array([k]))

    def whole():
        moved = []
        for part, shape, b, basis in zip(parts, layer_shapes, inner, bases, strict=True):
            if basis is None:
                moved.append(part + b)
                continue
            one = torch.zeros(shape, dtype=part.dtype)
            moved.append(part + step.outside(b, basis, one).flatten())
        return torch.cat(moved)

    for _ in range(steps):
        w = whole()
        names = [name for name, _ in model.module.named_parameters()]
        tensors = [
            t.view(s)
            for t, s in zip(w.split([math.prod(s) for s in layer_shapes]), layer_shapes,
                            strict=True)
        ]  # fmt: skip
        outputs = torch.func.functional_call(
            model.module, dict(zip(names, tensors, strict=True)), (rows.x,)
        )
        loss = nn.functional.cross_entropy(outputs, rows.y)
        grads = torch.autograd.grad(loss, inner)
        inner = [(b - lr * g).detach().requires_grad_() for b, g in zip(inner, grads, strict=True)]
    return (whole() - model.w).detach()


@pytest.mark.parametrize("step", STRUCTURED, ids=repr)
def test_training_in_the_subspace_is_training_of_its_coordinates(step):
    data, model = classification(2, 4, 3, 0), network(4, 3)
    work = ar.FedAvg(lr=0.2, local_steps=4, batch_size=1.0)
    shapes = [tuple(p.shape) for p in model.module.parameters()]
    start = model.w.clone()
    with ar.LocalEngine(
        work, data, model, plan=ar.Plan("one", 1, 1), wire=ar.Wire(up=(step,))
    ) as engine:
        engine.round(0, [1])
        found = engine.vector() - start

    expected = by_hand(step, network(4, 3), data, 1, 0.2, 4, shapes)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_a_vector_outside_the_subspace_is_refused():
    x = drawn((8, 8))
    for step in (LowRank(0.2), RandomMask(0.2)):
        with pytest.raises(ArchipelError, match=f"{type(step).__name__} restricts training"):
            step.send(replace(sender(), layers=(0,)), (x,), None)


# -- right on average ------------------------------------------------------------------------------

PARTIES, ROUNDS = 100, 100
SIGMAS = 5
UNBIASED = {
    "rotate": (Rotate(),),
    "subsample": (Subsample(0.25),),
    "subsample of a third": (Subsample(0.3),),
    "1 bit": (Quantise(1),),
    "3 bits": (Quantise(3),),
    "8 bits": (Quantise(8),),
    "1 bit, dither": (Quantise(1, dither=True),),
    "3 bits, dither": (Quantise(3, dither=True),),
    "entropy": (Entropy(),),
    "rotate, 1 bit": (Rotate(), Quantise(1)),
    "rotate, 2 bits": (Rotate(), Quantise(2)),
    "subsample, 4 bits": (Subsample(0.25), Quantise(4)),
    "all": (Rotate(), Subsample(0.25), Quantise(2)),
    "all, dither": (Rotate(), Subsample(0.25), Quantise(2, dither=True)),
    "all, coded": (Rotate(), Subsample(0.5), Quantise(4), Entropy()),
}
CUT = ParamSpec(("w", "b"), ((5, 7), (4,)))  # a matrix of 35 numbers, no power of two


@dataclass(frozen=True)
class Forgets(Subsample):
    """Without the factor 1 / p."""

    def code(self, me, place, x):
        at = self._at(me, place, x.shape[-1] * x.shape[-2])
        return x.flatten(-2).gather(-1, at).unsqueeze(-2)


@dataclass(frozen=True)
class Alike(Quantise):
    """The same draws in every round: errors never average out."""

    def code(self, me, place, x):
        return super().code(replace(me, round=0, ids=np.array([0])), place, x)


def worst(steps, dtype=torch.float64):
    """The largest error of the mean of 10,000 decodes, in its standard errors."""
    x = torch.cat([drawn((CUT.size - 3,), dtype=dtype), torch.tensor([9.0, -4.0, 0.0]).to(dtype)])
    chain = Chain.fitted(steps, x, sender(), CUT)
    many, found = x.expand(PARTIES, -1), []
    for t in range(ROUNDS):
        me = sender((PARTIES,), t)
        payload, _ = chain.send(me, many, chain.init())
        found.append(chain.receive(me, payload))
    errors = (torch.cat(found) - x).double()
    spread = errors.std(dim=0) / math.sqrt(len(errors))
    return float((errors.mean(dim=0).abs() / (spread + 1e-6)).max())


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_of_ten_thousand_is_what_was_sent(name):
    assert all(step.unbiased for step in UNBIASED[name])
    assert worst(UNBIASED[name], torch.float32) < SIGMAS


@pytest.mark.parametrize(
    "steps",
    [(Forgets(0.25),), (Rotate(), Forgets(0.5), Quantise(4)), (Clip(1.0),), (Alike(2),)],
    ids=repr,
)
def test_a_bias_would_be_found(steps):
    assert worst(steps) > 2 * SIGMAS


# -- exactly ---------------------------------------------------------------------------------------


@over_stacks
@some
@given(shape=SHAPES, seed=st.integers(0, 99), dtype=st.sampled_from(
    [torch.float64, torch.float32, torch.float16, torch.bfloat16]))  # fmt: skip
def test_entropy_loses_no_bit(lead, shape, seed, dtype):
    few = (drawn(shape, lead, dtype=torch.float64, seed=seed) * 3).round().to(dtype)
    odd = torch.full((*lead, 3), seed, dtype=torch.uint8)
    far = drawn((7,), lead, seed=seed)
    upload = (odd, few, far)
    form = tuple(x[(0,) * len(lead)].new_zeros(x.shape[len(lead) :]) for x in upload)
    payload, _ = Entropy().send(sender(lead), upload, None)
    arrives = Entropy().receive(sender(lead), payload, form)

    for x, y in zip(upload, arrives, strict=True):
        assert x.dtype == y.dtype and torch.equal(x, y)


def test_entropy_keeps_what_is_no_number():
    x = torch.tensor([[math.nan, math.inf, -math.inf, -0.0, 5e-324]], dtype=torch.float64)
    arrives, _, _ = passed(Entropy(), x, ())
    assert torch.equal(arrives.view(torch.int64), x.view(torch.int64))


def test_entropy_is_never_more_than_a_byte_longer():
    noise = torch.randint(0, 256, (50, 50), dtype=torch.uint8)
    for x in (noise, torch.zeros(50, 50, dtype=torch.uint8)):
        payload, _ = Entropy().send(sender(), (x,), None)
        assert int(payload.length) <= x.numel() + 1
    assert int(payload.length) < 60


@given(st.lists(st.floats(width=16, allow_nan=False, allow_infinity=False), min_size=1))
@some
def test_float16_keeps_its_own_numbers(numbers):
    for dtype in DTYPES:
        x = torch.tensor([numbers], dtype=dtype)
        assert torch.equal(passed(Float16(), x, ())[0], x)


def test_the_whole_chain_of_the_paper_takes_the_bits_that_it_says():
    """HD, 6.25 %, 2 bits: 256 times smaller, and two numbers a layer."""
    spec = ParamSpec(("w", "b"), ((256, 256), (16,)))
    form = torch.zeros(spec.size)
    chain = Chain.fitted((Rotate(), Subsample(0.0625), Quantise(2)), form, sender(), spec)
    sizes = [x.numel() * x.element_size() for x in leaves(chain.payload)]
    assert sizes == [4 * 256 * 256 // 256, 2 * 4, 4 * 16]
