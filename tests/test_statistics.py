# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's statistics: averaged with the model, or each party's own; never one and the other."""

import asyncio
import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import archipel as ar
from archipel.algorithms import DSGD, Alone, Ditto, FedAvg, FedRep, FineTuned, KNNPer, Scaffold
from archipel.engines.network.in_process import meet, play
from archipel.engines.plan import Plan
from archipel.exchange.statistics import Joined
from archipel.graphs import topology
from archipel.tree import leaves, nbytes

ONE = Plan("one", 1, 1)


@dataclass(frozen=True)
class Twice:
    """A round of two messages: a gradient each asks about, and a step along what came back."""

    lr: float = 0.1
    batch_size: int = 4

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        mean = yield me.grad(w)
        return -self.lr * (mean + me.grad(w, me.batch(self.batch_size))), None

    def server(self, w, uploads):
        uploads = yield ar.Each(uploads.stack())
        return w + uploads.stack().mean(dim=-2)


def unlike(parties=4):
    """Parties whose features lie apart, of unequal size."""
    random = np.random.default_rng(0)
    sizes = [14, 9, 22, 11, 17][:parties]
    xs = [torch.from_numpy(random.normal(k, 1 + k, (n, 4))).float() for k, n in enumerate(sizes)]
    ys = [(x.sum(dim=1) > x.sum(dim=1).median()).long() for x in xs]
    return ar.Federation.from_arrays(xs, ys, test=0.3)


def normed(statistics="averaged"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    return ar.Model(module, statistics=statistics)


DATA = unlike()


def test_the_model_of_fedavg_is_the_mean_of_whole_state_dicts():
    """Full batches, two local steps: as an implementation has it that averages a state_dict."""
    model, sizes = normed(), DATA.n[: DATA.training].double()
    whole = copy.deepcopy(model.module)
    for _ in range(3):
        found = []
        for k in range(DATA.training):
            x, y, _, _ = DATA.party(k)
            mine = copy.deepcopy(whole).train()
            for _ in range(2):
                grads = torch.autograd.grad(F.cross_entropy(mine(x), y), [*mine.parameters()])
                with torch.no_grad():
                    for parameter, g in zip(mine.parameters(), grads, strict=True):
                        parameter -= 0.1 * g
            found.append(mine.state_dict())
        shares = sizes / sizes.sum()
        whole.load_state_dict(
            {
                name: sum(s * state[name].double() for s, state in zip(shares, found, strict=True))
                for name in found[0]
            }
        )

    run = ar.simulate(
        FedAvg(lr=0.1, local_steps=2, batch_size=None), DATA, model, rounds=3, plan=ONE
    )

    got = run.model.state_dict()
    for name, tensor in whole.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=1e-5, msg=name)
    x, y = (torch.cat([DATA.party(k)[i] for k in range(DATA.training)]) for i in (2, 3))
    outputs = run.model.eval()(x).detach()
    assert run.metrics["accuracy"] == float((outputs.argmax(dim=1) == y).double().mean())
    assert run.metrics["loss"] == pytest.approx(float(F.cross_entropy(outputs, y)), abs=1e-6)


SERVED = {
    "fedavg": FedAvg(lr=0.1, batch_size=4),
    "scaffold": Scaffold(lr=0.05, batch_size=4, option=1),
    "ditto": Ditto(lr=0.05, batch_size=4),
    "finetuned": FineTuned(lr=0.05, batch_size=4),
    "fedrep": FedRep(lr=0.05, batch_size=4, head_epochs=1),
    "knnper": KNNPer(lr=0.05, batch_size=4, neighbours=3),
    "two messages": Twice(lr=0.05),
}


@pytest.mark.parametrize(
    ("name", "statistics"),
    [*((name, "averaged") for name in SERVED), ("fedavg", "own"), ("finetuned", "own")],
)
def test_engines_agree_on_model_statistics_and_scores(name, statistics):
    algorithm, everybody = SERVED[name], list(range(DATA.training))
    cohorts, found = [everybody, [0, 2]], []
    for plan in (ONE, Plan("one", 3, 2)):
        with ar.LocalEngine(algorithm, DATA, normed(statistics), plan=plan) as engine:
            for t, cohort in enumerate(cohorts):
                engine.round(t, cohort)
            shared = engine.evaluate().parties
            own = engine.evaluate(own=True).parties if engine.has_own else shared
            found.append((leaves(engine.shared), shared["loss"], own["loss"]))

    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    played = asyncio.run(play(algorithm, DATA, normed(statistics), cohorts))
    torch.testing.assert_close(leaves(played.engine.shared), found[0][0], rtol=1e-4, atol=1e-5)
    for k, letter in played.scores.items():
        assert letter["metrics"]["loss"] == pytest.approx(float(found[0][1][k]), abs=1e-4)
        if letter["own"]:
            assert letter["own"]["loss"] == pytest.approx(float(found[0][2][k]), abs=1e-4)
    assert isinstance(played.engine.shared, Joined) == (statistics == "averaged")


@pytest.mark.parametrize("name", ["ring", "complete"])
def test_peers_mix_their_statistics_as_their_models(name):
    algorithm, graph = DSGD(lr=0.1, batch_size=4), topology(name, DATA.training, 0)
    found = []
    for plan in (ONE, Plan("one", 3, 2)):
        with ar.LocalEngine(algorithm, DATA, normed(), plan=plan, topology=graph) as engine:
            for t in range(3):
                engine.round(t, range(DATA.training))
            found.append([leaf.clone() for leaf in leaves(engine.own_states(range(4)))])
            buffers, sent = engine.buffers(), sum(map(nbytes, engine.anatomy.mixed))
            scores = engine.evaluate(own=True).parties["loss"]

    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    states = asyncio.run(meet(algorithm, DATA, normed(), graph, 3))
    for k, state in enumerate(states):
        mine = [leaf[k] for leaf in found[0]]
        torch.testing.assert_close(leaves(state), mine, rtol=1e-5, atol=1e-6)
        module = normed().to_module(state.inner, normed().buffers_with(state.statistics)).eval()
        _, _, x, y = DATA.party(k)
        assert float(F.cross_entropy(module(x).detach(), y)) == pytest.approx(
            float(scores[k]), abs=1e-5
        )
    assert sent == 4 * (normed().p + 12)
    torch.testing.assert_close(buffers[normed().running], found[1][1].mean(dim=0))
    if name == "complete":
        torch.testing.assert_close(found[0][1], found[0][1][:1].expand(4, -1))


def test_dittos_own_model_leaves_the_shared_statistics_alone():
    fields = {"lr": 0.1, "batch_size": 4}
    runs = [
        ar.simulate(kind(**fields), DATA, normed(), rounds=2, plan=ONE) for kind in (FedAvg, Ditto)
    ]

    torch.testing.assert_close(runs[0].vector, runs[1].vector)
    torch.testing.assert_close(runs[0].buffers, runs[1].buffers)


def test_a_party_that_trains_alone_keeps_its_statistics():
    with ar.LocalEngine(Alone(lr=0.1, batch_size=4), DATA, normed(), plan=ONE) as engine:
        engine.round(0, range(4))
        w, buffers = engine.own_model(2)
        others = engine.own_model(1)[1]
        mine = engine.evaluate(own=True).parties["loss"][2]
        everywhere = engine.evaluate(w, buffers=buffers)

    assert not torch.equal(buffers, others)
    module = normed().to_module(w, buffers).eval()
    for k in (1, 2):
        _, _, x, y = DATA.party(k)
        found = float(F.cross_entropy(module(x).detach(), y))
        assert float(everywhere.parties["loss"][k]) == pytest.approx(found, abs=1e-6)
    assert float(mine) == pytest.approx(found, abs=1e-6)


def test_statistics_are_counted_as_what_is_sent():
    with ar.LocalEngine(FedAvg(), DATA, normed(), plan=ONE) as engine:
        assert engine.anatomy.bytes_up == engine.anatomy.bytes_down == 4 * (normed().p + 12)
    with ar.LocalEngine(FedAvg(), DATA, normed("own"), plan=ONE) as engine:
        assert engine.anatomy.bytes_up == 4 * normed().p


def test_a_run_says_that_every_party_keeps_its_own():
    run = ar.simulate(FedAvg(), DATA, normed().module, rounds=1, plan=ONE, statistics="own")

    assert any("keeps its own statistics" in note for note in run.notes)
    assert not ar.simulate(FedAvg(), DATA, normed(), rounds=1, plan=ONE).notes


class Marked(nn.Module):
    """Constants that no mean could be taken of: an infinite mask, numbers of places."""

    def __init__(self, moving=False):
        super().__init__()
        self.layer, self.moving = nn.Linear(4, 2), moving
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("places", torch.arange(33))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training and self.moving:
            self.seen += 1
        return self.layer(x) + self.mask.clamp(min=-1)


def test_constant_buffers_stay_what_they_are():
    run = ar.simulate(FedAvg(), DATA, Marked(), rounds=2, workers=1)

    kept = run.model.state_dict()
    assert kept["mask"].tolist() == [0.0, -torch.inf] and kept["places"].tolist() == [*range(33)]


def test_other_buffers_that_change_are_refused_or_kept_apart():
    with pytest.raises(ar.ArchipelError, match="buffer 'seen' changes in training"):
        ar.simulate(FedAvg(), DATA, Marked(moving=True), rounds=1, workers=1)
    ar.simulate(FedAvg(), DATA, Marked(moving=True), rounds=1, workers=1, statistics="own")


def test_layers_without_a_size_are_refused_in_a_sentence():
    with pytest.raises(ar.ArchipelError, match=r"layer '0' \(LazyLinear\) does not know its size"):
        ar.Model(nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.Linear(3, 2)))


def test_other_words_for_statistics_are_refused():
    with pytest.raises(ar.ArchipelError, match="unknown statistics 'shared'"):
        ar.Model(nn.Linear(2, 2), statistics="shared")
    with pytest.raises(ar.ArchipelError, match="statistics = 'own': the model has its own"):
        ar.simulate(FedAvg(), DATA, normed(), rounds=1, statistics="own")
