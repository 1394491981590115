"""Secure sums in a simulation: the same integers with and without the protocol, on all plans."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.coding import Terms
from archipel.aggregation.keys import SEAL
from archipel.aggregation.roster import ADVERTISED, HELD
from archipel.aggregation.secure import SecureSum
from archipel.aggregation.shamir import SHARE
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError
from archipel.signing import SIGNATURE
from archipel.tree import leaves
from archipel.wire import Clip, Quantise, Rotate, Subsample
from problems import classification, network

DATA = classification(6, 4, 3, 0)
ONE, STACKED, TWO = Plan("one", 1, 1), Plan("stacked", 4, 1), Plan("stacked", 2, 2)
SECURE = ar.Wire(sum=SecureSum())


def learn(algorithm, wire, plan=ONE, rounds=2, *, parties=range(6), answers=None, **options):
    with ar.LocalEngine(algorithm, DATA, network(4, 3), plan=plan, wire=wire, **options) as engine:
        for t in range(rounds):
            outcome = engine.round(t, list(parties), answers=answers)
        return [leaf.clone() for leaf in leaves(engine.shared)], outcome, engine.anatomy


def assert_equal(found, expected):
    assert all(map(torch.equal, found, expected))


@dataclass(frozen=True)
class Twice:
    """Two messages in a round: the gradient's mean comes back, and the step is weighted by it."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        g = me.grad(w)
        mean = yield g
        return -self.lr * (g + mean), own

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        return w + uploads.mean(by_examples=True)


ALGORITHMS = [
    Twice(),
    ar.FedAvg(lr=0.1, batch_size=4),
    ar.Scaffold(lr=0.1, batch_size=4),
    ar.FedProx(lr=0.1, mu=0.1, batch_size=4),
]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("bits", [32, 64])
def test_the_protocol_and_its_simulation_give_the_same_bits(algorithm, bits):
    wire = ar.Wire(sum=SecureSum(bits=bits))
    whole, _, anatomy = learn(algorithm, wire, protocols=True)
    exact, _, short = learn(algorithm, wire)

    assert_equal(exact, whole)
    assert len(anatomy.messages) == 5 * len(short.messages)
    assert anatomy.sums_only and short.sums_only and short.summed


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_it_is_the_plain_run_to_the_grid(algorithm):
    plain, secure = (learn(algorithm, wire)[0] for wire in (ar.Wire(), SECURE))

    step = SecureSum().coding(6).by_examples.step / float(DATA.n.min())
    for one, other in zip(plain, secure, strict=True):
        assert (one - other).abs().max() <= 20 * step


@pytest.mark.parametrize("plan", [STACKED, TWO], ids=["stacked", "two workers"])
@pytest.mark.parametrize("protocols", [False, True])
def test_stacks_and_workers_add_up_the_same_integers(plan, protocols):
    """Rounds differ in the last bits of what is trained; the sum itself has no order."""
    algorithm = ar.Scaffold(lr=0.1, batch_size=4)
    expected = learn(algorithm, SECURE, rounds=1)[0]
    found = learn(algorithm, SECURE, plan, 1, protocols=protocols)[0]

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "up", [(Clip(0.5),), (Rotate(common=True),), (Subsample(0.5, common=True),)],
    ids=lambda up: type(up[0]).__name__,
)  # fmt: skip
def test_steps_that_are_linear_go_before_it(up):
    algorithm = ar.FedAvg(lr=0.1, batch_size=4)
    wire = ar.Wire(up=up, sum=SecureSum())
    whole, exact = (learn(algorithm, wire, protocols=each)[0] for each in (True, False))
    plain = learn(algorithm, ar.Wire(up=up))[0]

    assert_equal(whole, exact)
    torch.testing.assert_close(exact, plain, rtol=0, atol=2e-3)


def test_every_setting_of_a_sweep_has_its_own_sum():
    sweep = {"lr": [0.05, 0.1]}
    algorithm = ar.FedAvg(batch_size=4)
    for protocols in (False, True):
        found = learn(algorithm, SECURE, STACKED, sweep=sweep, protocols=protocols)[0][0]
        for row, lr in zip(found, sweep["lr"], strict=True):
            alone = learn(ar.FedAvg(lr=lr, batch_size=4), SECURE, STACKED)[0][0]
            torch.testing.assert_close(row, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("answered", [1, 2, 3, 4])
def test_a_party_that_is_lost_counts_once_its_masked_upload_is_there(answered):
    algorithm = ar.Scaffold(lr=0.1, batch_size=4)
    answers = np.array([9, 9, answered, 9, 9, 9])
    there = range(6) if answered >= 3 else [0, 1, 3, 4, 5]
    plain = learn(algorithm, ar.Wire(), rounds=1, parties=there)[0]

    found, outcome, _ = learn(algorithm, SECURE, rounds=1, answers=answers, protocols=True)

    gone = outcome.left if answered >= 3 else outcome.missing
    assert gone[2].detail == f"after message {answered}"
    torch.testing.assert_close(found[0], plain[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("answered", [1, 2, 3, 4])
def test_below_the_threshold_the_round_changes_nothing(answered):
    answers = np.array([9, 9, answered, answered, 9, 9])
    with ar.LocalEngine(
        ar.FedAvg(lr=0.1), DATA, network(4, 3), plan=ONE, wire=SECURE, protocols=True
    ) as engine:
        before = engine.vector().clone()
        outcome = engine.round(0, range(6), answers=answers)
        assert torch.equal(engine.vector(), before)
    assert len(outcome.arrived) == 0


def test_a_study_asks_for_the_whole_protocol():
    tables = {
        "study": {"name": "both", "rounds": 2},
        "data": {"name": "heart_disease"},
        "algorithm": {"name": "scaffold", "lr": 0.05},
        "wire": {"sum": "secure:range=4"},
    }
    runs = [
        ar.Study.parse({**tables, "simulate": simulate}).run(None, baselines=False)
        for simulate in ({}, {"protocols": True}, {"protocols": True, "lost": 0.02})
    ]
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert runs[0].spent.up < runs[1].spent.up
    assert "secure aggregation" in runs[0].scorecard.privacy.sees


def test_a_masked_upload_is_as_long_as_float32():
    """At most a tenth more in all, of a model that is large enough for keys not to matter."""
    p = 10**6
    masked = SecureSum().coding(100).encode(Terms((torch.zeros(p),)), ())
    degree = SecureSum().neighbours(100).degree
    keys, shares = ADVERTISED + SIGNATURE, degree * (8 + HELD + SEAL)
    told = 99 * (1 + SHARE)  # of everybody, where all have drawn this party

    assert masked.nbytes == 4 * p
    assert masked.nbytes + keys + shares + SIGNATURE + told <= 1.1 * 4 * p


@pytest.mark.parametrize(
    "make, says",
    [
        (
            lambda: ar.Wire(up=(Quantise(),), sum=SecureSum()),
            r"wire.up: Quantise .* and wire.sum: SecureSum shows their sum alone",
        ),
        (lambda: learn(_Stacks(), SECURE), r"wire.sum: SecureSum .* and _Stacks looks at single"),
    ],
)
def test_what_needs_single_uploads_is_refused_before_the_start(make, says):
    with pytest.raises(ArchipelError, match=says):
        make()


class _Stacks(ar.FedAvg):
    def server(self, w, uploads):
        return w + uploads.stack().mean(dim=0)


def test_an_upload_beyond_the_range_ends_the_run_with_the_remedy():
    with pytest.raises(ArchipelError, match=r"beyond range = .* clip it, or give a larger range"):
        learn(ar.Scaffold(lr=0.1), ar.Wire(sum=SecureSum(range=1e-9)))
