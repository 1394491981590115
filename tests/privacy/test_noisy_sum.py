"""trust = "sum": shares of noise in integers, under a sum that nobody looks into."""

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
import pytest
import torch
from scipy import stats

import archipel as ar
from archipel.aggregation.secure import SecureSum
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.privacy import noisy_sum
from archipel.privacy.accounting import Release, epsilon
from archipel.privacy.encoding import Share, counted
from archipel.privacy.promise import Privacy
from archipel.privacy.sources import Keystream, Simulated
from archipel.wire import Quantise, Rotate
from archipel.wire.wire import Wire
from problems import learn, linear, network

TINY, WIDE = 1e-9, 50.0
SECURE = Wire(sum=SecureSum(colluding=0.0))


def equal(parties=6, seed=0):
    random = np.random.default_rng(seed)
    xs = [torch.from_numpy(random.standard_normal((5, 4))) for _ in range(parties)]
    ys = [torch.from_numpy(random.integers(0, 3, 5)) for _ in range(parties)]
    return ar.Federation.from_arrays(xs, ys, test=0.0)


def promised(noise=1.0, clip=1.0, **more):
    return Privacy("party", noise=noise, clip=clip, trust="sum", **more)


@dataclass(frozen=True)
class TwoMessages:
    """Asks for a mean, and then for one of two vectors around it."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        mean = yield me.grad(w)
        return (me.grad(w - self.lr * mean), mean[..., :3] + 0 * me.n), None

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        step, _ = uploads.mean(by_examples=True)
        return w - self.lr * step


ALGORITHMS = [ar.FedAvg(0.1), ar.Scaffold(0.1), TwoMessages()]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_without_noise_and_clip_it_is_the_plain_algorithm(algorithm):
    data, model = equal(), network(4, 3)
    got = learn(algorithm, data, model, 3, privacy=promised(TINY, WIDE), wire=SECURE)
    torch.testing.assert_close(got, learn(algorithm, data, model, 3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shares", ["gaussian", "skellam"])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_the_protocol_adds_up_the_same_integers_to_the_last_bit(algorithm, shares):
    data, model = equal(), network(4, 3)
    how = {"privacy": promised(shares=shares), "wire": SECURE}
    plain = learn(algorithm, data, model, 2, **how)
    assert torch.equal(plain, learn(algorithm, data, model, 2, protocols=True, **how))
    stacked = learn(algorithm, data, model, 2, ar.Plan("stacked", 3, 2), **how)
    torch.testing.assert_close(plain, stacked, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("shares", "bits"), [("gaussian", 32), ("gaussian", 14), ("skellam", 20)])
def test_noise_in_the_mean_has_the_deviation_that_is_planned(shares, bits):
    random = np.random.default_rng(0)
    xs = [torch.from_numpy(random.standard_normal((2, 700))) for _ in range(6)]
    data = ar.Federation.from_arrays(xs, [torch.ones(2).double()] * 6, test=0.0)
    model, kinds, found = linear(700), {"shares": shares, "bits": bits, "honest": 4}, []
    for seed in range(3):
        runs = [
            learn(ar.FedAvg(0.1), data, model, 1, seed=seed, wire=SECURE,
                  privacy=promised(noise, 0.5, **kinds))
            for noise in (TINY, 2.0)
        ]  # fmt: skip
        found.append(runs[1] - runs[0])
    share = Share(shares, 0.5, model.p, 6, 4, bits)
    code = share.encoding(2.0)
    rounding = 2 * 6 / 6 * (bits < 20)  # of both runs, about 1/6 of a step squared each
    planned = sqrt(6 * share.variance(2.0) + rounding) / code.scale / 6
    assert planned == pytest.approx(2.0 * 0.5 / 6 * sqrt(6 / 4), rel=0.05)
    values = torch.cat(found).numpy() / planned
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(values))
    assert low < (values**2).sum() < high
    assert stats.kstest(values, "norm").pvalue > 1e-4


def test_one_party_moves_the_sum_by_two_bounds_whatever_it_sends(monkeypatch):
    """Of the integers before noise: a model of numbers that overflow is no longer than R."""
    sent = []
    monkeypatch.setattr(noisy_sum, "drawn", lambda share, noise, source: np.zeros(
        (source.parties, share.size), np.int64))  # fmt: skip
    wrapped = noisy_sum.wrapped
    monkeypatch.setattr(noisy_sum, "wrapped", lambda code, x: sent.append((code, x)) or
                        wrapped(code, x))  # fmt: skip
    data, model = equal(), network(4, 3)
    data.x[:5] *= 1e30
    learn(ar.FedAvg(0.1), data, model, 1, privacy=promised(), wire=SECURE)
    for code, x in sent:
        assert float(x.double().norm(dim=-1).max()) <= code.contribution


def test_shares_are_new_in_every_round_party_and_message_and_protect_between_institutions():
    data, model, draws = equal(), network(4, 3), []
    for t, ids, purpose in ((0, [0, 1], "share 0"), (1, [0, 1], "share 0"), (0, [0, 1], "share 1")):
        me = LocalParty(data, model, model.one, np.array(ids), 0, t, (2,))
        source = me.source(purpose)
        assert isinstance(source, Simulated) and not source.protects
        draws += list(noisy_sum.drawn(Share("gaussian", 1.0, 50, 6, 5, 32), 1.0, source))
    assert len({tuple(row) for row in draws}) == 6
    secrets = torch.zeros(2, 32, dtype=torch.uint8)
    real = replace(me, private=True, secrets=secrets).source("share 0")
    assert isinstance(real, Keystream) and real.protects


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", ["gaussian", "skellam"])
def test_the_budget_is_kept_and_used_up(shares):
    data = equal(12)
    run = ar.simulate(
        ar.FedAvg(0.1), data, network(4, 3), rounds=4, wire=SECURE, workers=1,
        privacy=Privacy("party", epsilon=3.0, delta=1e-3, trust="sum", shares=shares),
    )  # fmt: skip
    assert run.kept is not None
    assert 2.99 < run.scorecard.privacy.epsilon <= 3.0
    (use,) = run.kept.uses[0]
    least = SecureSum(colluding=0.0).fewest(12)
    assert use.share.counted == run.kept.counted == least - 1 and use.sampling is None
    assert f"as long as {least - 1} parties of every sum" in run.scorecard.privacy.guarantee
    assert run.scorecard.privacy.promise.trust == "sum"


def test_more_survivors_than_planned_cost_less_and_fewer_more():
    share = Share("gaussian", 1.0, 1000, 100, 80, 24)
    costs = [
        epsilon([Release(share.mechanism(3.0, n))], 1e-5, neighbours="replace")
        for n in (40, 79, 80, 90, 99)
    ]
    assert costs == sorted(costs, reverse=True) and len(set(costs)) == 5
    assert costs[2] == epsilon([Release(share.mechanism(3.0))], 1e-5, neighbours="replace")


@pytest.mark.parametrize("protocols", [False, True])
def test_a_round_of_fewer_than_planned_releases_nothing(protocols):
    data, model = equal(), network(4, 3)
    with ar.LocalEngine(
        ar.FedAvg(0.1), data, model, plan=ar.Plan("one", 4, 1), rounds=3, protocols=protocols,
        privacy=promised(honest=4), wire=SECURE,
    ) as engine:  # fmt: skip
        assert engine.protection.least == 5
        before = engine.vector().clone()
        outcome = engine.round(0, range(4))
        assert torch.equal(engine.vector(), before) and len(outcome.arrived) == 0
        engine.round(1, range(5))
        assert not torch.equal(engine.vector(), before)


def test_who_is_lost_in_mid_round_is_counted_out():
    """Six begin, and the sum is of those whose message came: five pass, four do not."""
    data, model = equal(), network(4, 3)
    with ar.LocalEngine(
        ar.FedAvg(0.1), data, model, plan=ar.Plan("one", 4, 1), rounds=3, protocols=True,
        privacy=promised(honest=4), wire=SECURE,
    ) as engine:  # fmt: skip
        before = engine.vector().clone()
        engine.round(0, range(6), answers=np.array([9, 2, 2, 9, 9, 9]))
        assert torch.equal(engine.vector(), before)
        outcome = engine.round(1, range(6), answers=np.array([9, 2, 9, 9, 9, 9]))
        assert not torch.equal(engine.vector(), before)
        assert outcome.arrived.tolist() == [0, 2, 3, 4, 5]


def test_how_many_are_counted_on():
    assert SecureSum(colluding=0.1, dropouts=0.1).fewest(1000) == 900
    assert counted(900, SecureSum(colluding=0.1).colluders(1000)) == 800
    assert SecureSum(least=15).fewest(16) == 15
    with pytest.raises(ArchipelError, match="nobody's can be counted on"):
        counted(2, 2)


# -- what is refused -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Looking:
    """Looks at single uploads."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        return me.grad(w), None

    def server(self, w, uploads):
        return w - self.lr * uploads.stack().mean(dim=0)


@pytest.mark.parametrize(
    ("algorithm", "promise", "wire", "told"),
    [
        (ar.FedAvg(0.1), {}, Wire(), 'wire.sum = "plain": it shows single uploads'),
        (ar.FedAvg(0.1), {}, Wire(sum=SECURE.sum, up=(Rotate(common=True),)), "wire.up: Rotate"),
        (ar.FedAvg(0.1), {"honest": 6}, SECURE, "privacy.honest = 6: a round has 6 parties"),
        (ar.FedAvg(0.1), {"bits": 8, "noise": 1e5}, SECURE, "privacy.bits = 8: too few"),
        (Looking(), {}, SECURE, "single uploads|sums alone are seen"),
        (ar.DSGD(0.1), {}, SECURE, "has no server"),
    ],
    ids=["plain", "steps", "honest", "bits", "single uploads", "peers"],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_the_start(algorithm, promise, wire, told):
    topology = {"topology": "ring"} if isinstance(algorithm, ar.DSGD) else {}
    with pytest.raises(ArchipelError, match=told):
        ar.simulate(
            algorithm, equal(), network(4, 3), rounds=1, workers=1, wire=wire,
            privacy=promised(**promise), **topology,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"trust": "nobody", "honest": 3}, 'privacy.honest = 3: is for trust = "sum"'),
        ({"trust": "server", "bits": 16}, 'privacy.bits = 16: is for trust = "sum"'),
        ({"trust": "sum", "honest": 0}, "privacy.honest = 0: give a whole number from 1"),
        ({"trust": "sum", "bits": 33}, "privacy.bits = 33: give a whole number from 8 to 32"),
        ({"trust": "sum", "shares": "cauchy"}, "privacy.shares"),
        ({"trust": "all"}, "privacy.trust"),
    ],
)
def test_fields_that_cannot_be(fields, told):
    with pytest.raises(ArchipelError, match=told):
        Privacy("party", epsilon=1.0, **fields)


def test_other_sums_do_not_go_with_other_trust():
    with pytest.raises(ArchipelError, match=r"leave wire.sum out"):
        learn(ar.FedAvg(0.1), equal(), network(4, 3), 1, wire=SECURE,
              privacy=Privacy("party", noise=1.0))  # fmt: skip
    with pytest.raises(ArchipelError, match="not linear"):
        Wire(sum=SecureSum(), up=(Quantise(4),))
