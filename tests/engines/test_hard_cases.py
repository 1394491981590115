"""The abstractions against what later algorithms need: several messages, pairwise secrets.

The exchanges alone, of the form that PeFLL, secure aggregation and GOPA have, written as an
algorithm would be and run stacked, one by one and in two processes. None of them hides anything:
there are no keys between parties, no shares and nobody drops out.
"""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

import archipel as ar
from archipel.engines.plan import Plan
from archipel.graphs import topology
from problems import classification, linear, network, regression

PLANS = [Plan("one", 1, 1), Plan("stacked", 2, 1), Plan("stacked", 2, 2)]


class Shared(NamedTuple):
    w: torch.Tensor
    phi: torch.Tensor  # the server's own network: from a descriptor to a model


@dataclass(frozen=True)
class ThreeMessages:
    """A hyper-network at the server: descriptor -> own model -> delta -> gradient -> update."""

    lr: float = 0.1
    local_epochs: int = 1
    local_steps: int | None = 2
    batch_size: int | None = 2
    optimiser: ar.SGD = ar.SGD()

    def init(self, w):
        phi = torch.linspace(-1, 1, 2 * w.shape[-1], dtype=w.dtype).view(2, -1)
        return Shared(w, phi), None

    def party(self, me, shared, own):
        g = me.grad(shared.w)
        v = torch.stack([g.mean(dim=-1), g.square().mean(dim=-1)], dim=-1)  # descriptor [..., 2]
        theta = yield v
        delta = theta - me.descend(theta, self).w
        grad_v = yield delta
        return v * grad_v, None

    def server(self, shared, uploads):
        w, phi = shared
        v = uploads.stack()  # [m, 2]
        theta = w + v @ phi
        uploads = yield ar.Each(theta)
        delta = uploads.stack()  # [m, p]
        phi = phi - v.transpose(-1, -2) @ delta / delta.shape[-2]
        uploads = yield ar.Each(delta @ phi.transpose(-1, -2))
        return Shared(w + uploads.mean().sum(dim=-1, keepdim=True) * 1e-3, phi)


@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_a_round_of_three_messages(plan):
    data, model = classification(5, 3, 3, 0), network(3, 3)
    states = []
    for way in (PLANS[0], plan):
        with ar.LocalEngine(ThreeMessages(), data, model, plan=way) as engine:
            for t in range(3):
                engine.round(t, [0, 3, 1, 4])
            states.append(engine.shared)
            assert [m.asks for m in engine.anatomy.messages] == [{"stack"}, {"stack"}, {"mean"}]
            assert engine.anatomy.messages[0].upload.shape == (2,)
            assert not engine.anatomy.sums_only

    torch.testing.assert_close(states[0], states[1])
    assert not torch.equal(states[0].w, model.w)


@dataclass(frozen=True)
class FourExchanges:
    """As many messages as secure aggregation has, with each kind of reply; it protects nothing.

    Each party's mask is its own noise, which it sends in the clear at the end.
    """

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        everybody = yield me.n  # one value to all
        mine = yield everybody + me.n  # a row to each
        mask = (mine - everybody) / me.n * me.normal(w)  # its own row came back: 1 times the noise
        ones = yield me.grad(w) + mask
        return -mask * ones, None

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        uploads = yield ar.Each(uploads.stack())
        masked = uploads.mean()
        uploads = yield torch.ones(1, dtype=w.dtype)
        return w - (masked + uploads.mean())


@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_a_round_of_four_messages(plan):
    data, model = regression(5, 3, 0), linear(3)
    with ar.LocalEngine(FourExchanges(), data, model, plan=plan) as engine:
        engine.round(0, range(5))
        got = engine.shared

    expected = model.w - torch.stack(
        [model.grad(model.w, *data.party(k)[:2]) for k in range(5)]
    ).mean(dim=0)
    torch.testing.assert_close(got, expected)


@dataclass(frozen=True)
class PairwiseNoise:
    """GOPA's idea with `mix` alone: noise that cancels in the mean hides every single value."""

    sigma: float = 100.0

    def init(self, x):
        return x

    def party(self, me, x):
        noise = self.sigma * me.normal(x)
        hidden = me.grad(x) + noise - me.mix(noise)  # phase 1: terms that cancel over all parties
        return me.mix(hidden)  # phase 2: publish; on the complete graph everybody has the mean


@pytest.mark.parametrize("plan", PLANS, ids=repr)
def test_two_phases_between_peers(plan):
    data, model = regression(6, 3, 0), linear(3)
    graph = topology("complete", 6)
    with ar.LocalEngine(PairwiseNoise(), data, model, plan=plan, topology=graph) as engine:
        engine.round(0, range(6))
        models = engine.own_models()

    expected = torch.stack([model.grad(model.w, *data.party(k)[:2]) for k in range(6)]).mean(dim=0)
    torch.testing.assert_close(models, expected.expand(6, -1))


def stepped(data, k, w, lr):
    x, y = data.party(k)[:2]
    return w - lr * x.T @ (x @ w - y.flatten()) / len(x)


def test_asynchronous_gossip_wakes_two_at_a_time():
    data, model = regression(6, 3, 0), linear(3)
    pairs = [(0, 1), (2, 3), (4, 5), (1, 2), (3, 4)]
    with ar.LocalEngine(
        ar.DSGD(lr=0.05, batch_size=None),
        data,
        model,
        plan=PLANS[0],
        topology=topology("complete", 6),
    ) as engine:
        for t, pair in enumerate(pairs):
            before = engine.own_models()
            engine.round(t, pair)
            after = engine.own_models()
            asleep = [k for k in range(6) if k not in pair]
            assert torch.equal(before[asleep], after[asleep])
            half = {k: stepped(data, k, before[k], 0.05) for k in pair}
            for i, j in (pair, pair[::-1]):  # what the others would weigh stays with each
                torch.testing.assert_close(after[i], (5 * half[i] + half[j]) / 6)


def test_a_site_is_one_party_not_a_stack():
    """The same algorithm code on `[p]`, as a hospital runs it, message by message."""
    import numpy as np

    from archipel.engines.party import LocalParty

    data, model = classification(4, 3, 3, 1), network(3, 3)
    alg = ar.Scaffold(lr=0.1, batch_size=2)
    shared, own = alg.init(model.w)
    uploads = []
    for k in range(4):
        me = LocalParty(data, model, model.one, np.array([k]), 0, 0, ())
        upload, c_i = alg.party(me, shared, own)
        assert upload.dy.shape == model.w.shape == c_i.shape
        uploads.append(upload.dy)

    with ar.LocalEngine(alg, data, model, plan=Plan("stacked", 4, 1)) as engine:
        engine.round(0, range(4))
        torch.testing.assert_close(engine.shared.x, model.w + torch.stack(uploads).mean(dim=0))


def test_server_and_party_must_agree_on_the_number_of_messages():
    @dataclass(frozen=True)
    class Uneven:
        def init(self, w):
            return w, None

        def party(self, me, w, own):
            yield w
            return w, None

        def server(self, w, uploads):
            return uploads.mean()

    with pytest.raises(ar.ArchipelError, match="same number of yields"):
        ar.LocalEngine(Uneven(), regression(2, 2, 0), linear(2))
