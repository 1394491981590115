# SPDX-License-Identifier: Apache-2.0
"""Messages are cut into the matrices of layers and joined again, whatever vectors they have."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import archipel as ar
from archipel.exchange.sender import Sender
from archipel.tree import leaves, tree_map
from archipel.vector import ParamSpec
from archipel.wire import STEPS, Clip, LowRank, Quantise, RandomK, RandomMask, Subsample, TopK
from archipel.wire.chain import Chain
from archipel.wire.layout import FEW, Layout

LEADS = [(), (1,), (3,), (2, 3)]
SIDES = st.integers(1, 5)
LAYERS = st.lists(st.lists(SIDES, max_size=4).map(tuple), min_size=1, max_size=6).map(tuple)
OTHERS = st.lists(
    st.one_of(
        st.lists(SIDES, max_size=3).map(tuple), st.integers(FEW - 1, FEW + 1).map(lambda n: (n,))
    ),
    max_size=3,
)


def spec_of(shapes):
    return ParamSpec(tuple(f"layer{i}" for i in range(len(shapes))), shapes)


def drawn(shape, lead, dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn((*lead, *shape), generator=random, dtype=dtype)


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=40, deadline=None)
@given(shapes=LAYERS, others=OTHERS, models=st.integers(0, 2))
def test_what_is_cut_is_joined_again(lead, dtype, shapes, others, models):
    spec = spec_of(shapes)
    form = tuple(torch.zeros(s, dtype=dtype) for s in [(spec.size,)] * models + others)
    layout = Layout.of(form, spec)
    vectors = [drawn(x.shape, lead, dtype, i) for i, x in enumerate(form)]

    parts = layout.cut(vectors)
    whole = layout.join(parts)

    assert all(map(torch.equal, whole, vectors)) and len(whole) == len(vectors)
    assert len(layout.layers) == len(parts)
    assert all(len(lead) + 1 <= part.dim() <= len(lead) + 2 for part in parts)
    assert all(part.shape[: len(lead)] == lead for part in parts)
    assert sum(part.numel() for part in parts) == sum(x.numel() for x in vectors)


@settings(max_examples=40, deadline=None)
@given(shapes=LAYERS)
def test_each_layer_is_a_matrix_and_what_has_one_dimension_is_together(shapes):
    spec = spec_of(shapes)
    layout = Layout.of(torch.zeros(spec.size), spec)
    x = drawn((spec.size,), (2,), torch.float64)
    tensors = [
        part.view(2, *shape) for part, shape in zip(x.split(spec.sizes, -1), shapes, strict=True)
    ]

    parts = list(layout.cut([x]))

    for tensor, shape in zip(tensors, shapes, strict=True):
        if len(shape) > 1:
            assert torch.equal(parts.pop(0), tensor.reshape(2, shape[0], -1))
    short = [t.reshape(2, -1) for t, s in zip(tensors, shapes, strict=True) if len(s) < 2]
    assert len(parts) == (1 if short else 0)
    if short:
        assert torch.equal(parts[0], torch.cat(short, dim=-1))


def test_of_a_convolution_a_row_is_an_output_channel():
    model = ar.Model(
        nn.Sequential(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    )
    spec = model.spec
    layout = Layout.of(torch.zeros(spec.size), spec)
    parts = layout.cut([model.w])

    assert [tuple(x.shape) for x in parts] == [(4, 75), (2, 16), (4 + 4 + 4 + 2,)]
    assert layout.layers == (0, 1, 2)
    assert torch.equal(layout.join(parts)[0], model.w)


class Said(NamedTuple):
    """An upload with all kinds of tensors."""

    model: torch.Tensor
    loss: torch.Tensor  # a scalar
    count: torch.Tensor  # a whole number
    table: torch.Tensor
    long: torch.Tensor


SPEC = spec_of(((6, 7), (7,), ()))
SAID = Said(
    torch.zeros(50), torch.zeros(()), torch.tensor(3), torch.zeros(3, 2), torch.zeros(FEW + 3)
)
STEP = {
    "clip": Clip(1e6), "low_rank": LowRank(0.5), "quantise": Quantise(8), "random_k": RandomK(0.5),
    "random_mask": RandomMask(0.5), "subsample": Subsample(0.5), "top_k": TopK(0.5),
}  # fmt: skip


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_scalars_and_whole_numbers_pass_every_step(name, lead):
    step = STEP[name] if name in STEP else STEPS[name]()
    me = Sender(0, 0, 0, np.arange(lead[-1] if lead else 1), lead)
    chain = Chain.fitted([step], SAID, Sender(0, 0, 0, np.array([0])), SPEC)
    said = Said(
        torch.zeros(*lead, 50), drawn((), lead, torch.float32), torch.full(lead, 3),
        drawn((3, 2), lead, torch.float32), drawn((FEW + 3,), lead, torch.float32),
    )  # fmt: skip
    own = chain.init()
    if lead:
        own = tree_map(lambda x: x.expand(*lead, *x.shape).clone(), own)
    payload, _ = chain.send(me, said, own)
    arrives = chain.receive(me, payload)

    assert isinstance(arrives, Said) and torch.equal(arrives.count, said.count)
    assert [x.shape for x in leaves(arrives)] == [x.shape for x in leaves(said)]
    torch.testing.assert_close(arrives.loss, said.loss, rtol=2e-3, atol=1e-4)
