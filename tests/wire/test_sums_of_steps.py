"""Steps whose draws are common to a round go below a sum that shows the server no single upload."""

import pytest
import torch

import archipel as ar
from archipel.errors import ArchipelError
from archipel.wire import LowRank, Quantise, RandomK, RandomMask, Rotate, Subsample, TopK
from problems import classification
from wire.examples import SecureSum

DATA = classification(5, 4, 3, 0)
COMMON = [
    (Rotate(common=True), Subsample(0.5, common=True)),
    (RandomK(0.5, common=True),),
    (RandomMask(0.5, common=True),),
    (LowRank(0.5, common=True),),
]


@pytest.mark.parametrize("up", COMMON, ids=repr)
def test_a_sum_of_coded_uploads_is_undone_as_each_would_be(up):
    single, summed = (
        ar.simulate(ar.FedAvg(lr=0.1), DATA, "linear", rounds=3, wire=wire, workers=1)
        for wire in (ar.Wire(up=up), ar.Wire(up=up, sum=SecureSum()))
    )
    assert summed.anatomy.sums_only
    torch.testing.assert_close(summed.vector, single.vector, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("step", [Rotate(), Subsample(0.5), TopK(0.1), Quantise(4)], ids=repr)
def test_draws_of_each_party_are_refused_below_a_sum(step):
    with pytest.raises(ArchipelError, match=f"wire.up: {type(step).__name__} .* wire.sum: Secure"):
        ar.Wire(up=(step,), sum=SecureSum())
