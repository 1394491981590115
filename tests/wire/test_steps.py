"""Steps do what they say of themselves, and one that does not is caught."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.errors import ArchipelError
from archipel.wire import (
    STEPS,
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
)
from archipel.wire.conformance import (
    _Uploads,
    check_step_bound,
    check_step_form,
    check_step_linear,
    check_step_stacked_equals_looped,
)
from wire.examples import ClipAndNoise, Int8

GOOD = [
    Clip(1.0),
    Clip(100.0),
    Float16(),
    Float16("bfloat16"),
    Rotate(),
    Rotate(common=True),
    Subsample(0.25),
    Subsample(0.3, common=True),
    *(Quantise(bits) for bits in range(1, 9)),
    *(Quantise(bits, dither=True) for bits in (1, 2, 3, 8)),
    TopK(0.1),
    RandomK(0.2),
    RandomK(0.2, common=True),
    Sign(),
    PowerSGD(1),
    PowerSGD(3),
    LowRank(0.2),
    LowRank(0.2, common=True),
    RandomMask(0.2),
    RandomMask(0.2, common=True),
    Entropy(),
    Int8(),
    ClipAndNoise(),
    ClipAndNoise(2.0, 0.0),
]


@pytest.mark.parametrize("step", GOOD, ids=repr)
def test_steps_are_what_they_say(step):
    ar.check_step(step)


def test_every_bundled_step_is_tried():
    assert set(STEPS.values()) <= {type(step) for step in GOOD}


SHAPES = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=2).map(tuple), min_size=1, max_size=3
).map(tuple)


@pytest.mark.parametrize("step", GOOD, ids=repr)
@settings(max_examples=15, deadline=None)
@given(shapes=SHAPES)
def test_of_any_shape(step, shapes):
    for check in (check_step_form, check_step_stacked_equals_looped, check_step_bound):
        check(step, _Uploads(step, shapes))


@settings(max_examples=15, deadline=None)
@given(shapes=SHAPES)
def test_clipping_is_linear_for_who_receives(shapes):
    check_step_linear(Clip(1.0), _Uploads(Clip(1.0), shapes))


@settings(max_examples=50, deadline=None)
@given(
    norm=st.floats(1e-3, 1e3),
    numbers=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8),
    split=st.integers(1, 7),
)
def test_clip_keeps_what_is_short_and_the_direction_of_what_is_long(norm, numbers, split):
    whole = torch.tensor(numbers, dtype=torch.float64)
    at = min(split, len(numbers) - 1)
    on = _Uploads(Clip(norm), ((at,), (len(numbers) - at,)))
    sent, _ = Clip(norm).send(on.me(0), (whole[:at], whole[at:]), None)
    found = torch.cat(sent)

    long = float(whole.norm())
    torch.testing.assert_close(found, whole * min(1.0, norm / max(long, 1e-30)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float16_halves_what_travels_and_leaves_whole_numbers_alone(dtype):
    upload = (torch.tensor([1.0, 1e-3, 3.14159]), torch.tensor([7, 8]))
    on = _Uploads(Float16(dtype), ((3,),))
    payload, own = Float16(dtype).send(on.me(0), upload, None)
    arrives = Float16(dtype).receive(on.me(0), payload, upload)

    assert own is None and [x.element_size() for x in payload] == [2, 8]
    assert [x.dtype for x in arrives] == [torch.float32, torch.int64]
    torch.testing.assert_close(arrives[0], upload[0], rtol=2.0**-8, atol=0)


def test_clip_refuses_what_has_no_norm():
    with pytest.raises(ArchipelError, match=r"norm = 0.0: give a number above 0"):
        Clip(0.0)
    with pytest.raises(ArchipelError, match="Clip needs numbers"):
        Clip(1.0).init((torch.zeros(3, dtype=torch.int8),))


# -- steps that lie --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """Does nothing; those below change one thing each."""

    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def init(self, form):
        return None

    def send(self, me, upload, own):
        return upload, own

    def receive(self, them, payload, form):
        return payload

    def bound(self, before):
        return before


class MixesParties(Plain):
    def send(self, me, upload, own):
        return tuple(x / x.abs().max() for x in upload), own


class WantsOneStack(Plain):
    def send(self, me, upload, own):
        factor = torch.ones(me.lead[:1])
        return tuple(
            x * factor.view(*factor.shape, *[1] * (x.dim() - factor.dim())) + len(me.lead)
            for x in upload
        ), own


class DrawsWithoutKey(Plain):
    unbiased = False

    def send(self, me, upload, own):
        return tuple(x + torch.randn_like(x) for x in upload), own


class DrawsAlike(Plain):
    unbiased = False

    def send(self, me, upload, own):
        draw = torch.Generator().manual_seed(me.round)
        return tuple(x + torch.randn((), generator=draw) for x in upload), own

    def bound(self, before):
        return None


class SaysLinear(Plain):
    def send(self, me, upload, own):
        return tuple(x**3 for x in upload), own

    def receive(self, them, payload, form):
        return tuple(x.sign() * x.abs() ** (1 / 3) for x in payload)


class SaysNotLinear(Plain):
    linear = False

    def send(self, me, upload, own):
        return tuple(2 * x for x in upload), own

    def receive(self, them, payload, form):
        return tuple(x / 2 for x in payload)


class SaysUnbiased(Plain):
    def send(self, me, upload, own):
        return tuple(x.floor() for x in upload), own

    def bound(self, before):
        return None


class SaysBound(Plain):
    unbiased = False

    def send(self, me, upload, own):
        return tuple(2 * x for x in upload), own


class SaysBoundOfOneVector(Plain):
    """Clips every vector for itself: of two of them, the norm is larger."""

    unbiased = False

    def send(self, me, upload, own):
        norms = [x.flatten(len(me.lead)).norm(dim=-1) for x in upload]
        factors = [(1 / norm.clamp_min(1e-12)).clamp_max(1.0) for norm in norms]
        return tuple(
            x * f.view(*f.shape, *[1] * (x.dim() - f.dim()))
            for x, f in zip(upload, factors, strict=True)
        ), own

    def bound(self, before):
        return 1.0


class LeavesZerosOut(Plain):
    linear = False
    unbiased = False

    def send(self, me, upload, own):
        if bool((upload[0] == 0).all()):
            return tuple(x[..., :1] for x in upload), own
        return upload, own

    def receive(self, them, payload, form):
        lead = payload[0].dim() - form[0].dim()
        return tuple(
            x.expand(*x.shape[:lead], *f.shape) for x, f in zip(payload, form, strict=True)
        )


class ForgetsTheForm(Plain):
    def receive(self, them, payload, form):
        return tuple(x.float() for x in payload)


class WritesIntoArguments(Plain):
    unbiased = False

    def send(self, me, upload, own):
        return tuple(x.mul_(0.5) for x in upload), own


class KeepsElsewhere(Plain):
    """What it left out is kept on the class, where no checkpoint finds it."""

    unbiased = False
    left: ClassVar[dict[str, float]] = {}

    def send(self, me, upload, own):
        before = self.left.get("over", 0.0)
        self.left["over"] = before + 1.0
        return tuple(x + before for x in upload), own

    def bound(self, before):
        return None


class StateGrows(Plain):
    def init(self, form):
        return torch.zeros(0)

    def send(self, me, upload, own):
        return upload, torch.cat([own, own.new_zeros(*me.lead, 1)], dim=-1)


LIES = {
    MixesParties: "alone differs from the same in a stack",
    WantsOneStack: "alone differs|differs from a stack",
    DrawsWithoutKey: "sent otherwise the second time|alone differs|differs from a stack",
    DrawsAlike: "all parties draw the same numbers",
    SaysLinear: "linear = True is stated, and what comes of a sum of payloads is not",
    SaysNotLinear: "linear = False is stated, and what comes of a sum of payloads is the sum",
    SaysUnbiased: "unbiased = True is stated",
    SaysBound: r"bound\(0.5\) = 0.5 is stated",
    SaysBoundOfOneVector: r"bound\(None\) = 1.0 is stated, and .* with the norm 1.41",
    LeavesZerosOut: "depend on the numbers in an upload",
    ForgetsTheForm: "has not the shapes and dtypes",
    WritesIntoArguments: "wrote into its arguments|alone differs",
    KeepsElsewhere: "second time|alone differs|differs from a stack|survive its bytes",
    StateGrows: "own state changes its shapes",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda cls: cls.__name__)
def test_a_step_that_lies_is_caught(lie):
    with pytest.raises(AssertionError, match=LIES[lie]) as caught:
        ar.check_step(lie())
    assert str(caught.value).startswith(f"{lie.__name__}: check_step_")


def test_a_step_that_tells_the_truth_passes():
    ar.check_step(Plain())


@dataclass(frozen=True)
class Rounded(Plain):
    """Whole numbers, up or down at random: right on average."""

    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def send(self, me, upload, own):
        sizes = [x[(0,) * len(me.lead)].numel() for x in upload]
        drawn = me.uniform(sum(sizes), "round").split(sizes, dim=-1)
        return tuple((x + u.view(x.shape)).floor() for x, u in zip(upload, drawn, strict=True)), own

    def bound(self, before):
        return None


class RoundedAlike(Rounded):
    """The same draws at all parties, and that is meant."""

    def send(self, me, upload, own):
        sizes = [x[(0,) * len(me.lead)].numel() for x in upload]
        drawn = me.uniform(sum(sizes), "round", common=True).split(sizes, dim=-1)
        shapes = [x.shape[len(me.lead) :] for x in upload]
        each = zip(upload, drawn, shapes, strict=True)
        return tuple((x + u.view(shape)).floor() for x, u, shape in each), own


@pytest.mark.parametrize("step", [Rounded(), RoundedAlike()])
def test_draws_of_both_ends_are_keyed_and_unbiased(step):
    ar.check_step(step)


def test_what_is_no_step():
    with pytest.raises(AssertionError, match="FedAvg is no step: it needs linear"):
        ar.check_step(ar.FedAvg())
