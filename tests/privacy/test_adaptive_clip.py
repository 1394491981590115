# SPDX-License-Identifier: Apache-2.0
"""A clip that adapts: it finds the quantile, costs what a fixed clip costs, and believes nobody."""

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.exchange.sender import Sender
from archipel.privacy.party import Counted, planned
from archipel.privacy.promise import Privacy
from archipel.wire import Quantise, Subsample
from problems import linear

NORMS = np.geomspace(0.1, 10.0, 41)


def pulled(norms=NORMS):
    """Parties whose upload is as long as this, in every round: one step towards far away."""
    x = torch.ones(1, 1).double()
    ys = [torch.tensor([1e6]).double()] * len(norms)
    return ar.Federation.from_arrays([x] * len(norms), ys, test=0.0)


class Long(ar.FedAvg):
    """Sends an upload of a length that depends on the party alone."""

    def party(self, me, w, own):
        lengths = torch.from_numpy(NORMS)[me.number.long()].to(w)
        return lengths.expand(*me.lead, w.shape[-1]), own


def clips(promise, rounds=60, **options):
    data, found = pulled(), []
    with ar.LocalEngine(
        Long(0.1), data, linear(1), privacy=promise, rounds=rounds, plan=ar.Plan("one", 8, 1),
        **options,
    ) as engine:  # fmt: skip
        for t in range(rounds):
            engine.round(t, range(data.training))
            found.append(float(engine.shared.clip))
    return found


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("start", [0.05, 30.0])
def test_the_clip_finds_its_quantile(quantile, start):
    promise = Privacy("party", noise=1e-6, clip="adaptive", clip_quantile=quantile,
                      clip_start=start, clip_rate=0.4)  # fmt: skip
    found = np.exp(np.log(clips(promise)[30:]).mean())
    below, above = np.quantile(NORMS, [quantile - 0.12, quantile + 0.12])
    assert below < found < above


def test_the_wire_s_steps_do_not_touch_what_is_counted():
    promise = Privacy("party", noise=1e-6, clip="adaptive")
    wire = ar.Wire(up=(Subsample(0.5), Quantise(8)))
    assert clips(promise, 5) == clips(promise, 5, wire=wire)


@pytest.mark.parametrize(("z", "cohort"), [(0.5, 100), (3.0, 100), (3.0, 10), (40.0, 4)])
def test_sums_and_counts_together_cost_what_a_fixed_clip_does(z, cohort):
    """Where a party is replaced the sum moves by 2 C and the count by 1: distance 2 / z."""
    fixed, adaptive = (
        planned(Privacy("party", noise=z, clip=clip), 1, list(range(cohort)), cohort, 7, 7)
        for clip in (1.0, "adaptive")
    )
    assert fixed.releases(0, 7) == adaptive.releases(0, 7)
    data = pulled()
    with ar.LocalEngine(
        ar.FedAvg(0.1), data, linear(1), privacy=Privacy("party", noise=z, clip="adaptive"),
        rounds=1, drawn=cohort, plan=ar.Plan("one", 8, 1),
    ) as engine:  # fmt: skip
        boxes = engine._settings.apart[0]
    together = (2 / boxes._of_sum) ** 2 + (1 / boxes._of_count) ** 2
    assert together == pytest.approx((2 / z) ** 2)
    assert boxes._of_count >= cohort / 20 and boxes._of_sum <= 1.16 * z


def test_a_server_believes_neither_a_long_upload_nor_a_large_count():
    with ar.LocalEngine(
        ar.FedAvg(0.1), pulled(), linear(1), rounds=1, plan=ar.Plan("one", 8, 1),
        privacy=Privacy("party", noise=1.0, clip="adaptive", clip_start=0.5),
    ) as engine:  # fmt: skip
        boxes = engine._settings.apart[0]
        boxes.broadcast(engine.shared, 0)
        for said, count in ((7.0, 1.0), (-3.0, 0.0), (float("nan"), 0.0), (float("inf"), 1.0)):
            payload = Counted(torch.tensor([1e9]).double(), torch.tensor([said]).double())
            came = boxes.receive(0, Sender(0, 0, 0, np.array([0]), (), None), payload)
            assert float(came.inner.abs().max()) <= 0.5
            assert float(came.fits) == count
