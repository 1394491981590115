"""What goes wrong in the middle, and what a user's own algorithm gets wrong."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.engines.plan import Plan
from archipel.graphs import topology
from archipel.runs import baselines
from problems import classification, learn, linear, network, regression

ONE = Plan("one", 4, 1)


@pytest.mark.parametrize("workers, present", [(2, 1), (3, 2), (8, 5)])
def test_peers_with_fewer_parties_than_workers(workers, present):
    data, model = regression(5, 3, 0), linear(3)
    states = []
    for plan in (ONE, Plan("one", 4, workers)):
        with ar.LocalEngine(
            ar.DSGD(lr=0.05), data, model, plan=plan, topology=topology("ring", 5)
        ) as engine:
            for t in range(4):
                engine.round(t, range(present) if t % 2 else range(5))
            states.append(engine.own_models())

    torch.testing.assert_close(states[0], states[1])


class Interrupting(nn.Module):
    """Acts as Ctrl-C in the main process would: the round ends in the middle."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 2)

    def forward(self, x):
        if x.dim() == 2 and float(x.detach().abs().max()) > 100:
            raise KeyError("in the middle")
        return self.out(x)


def test_an_interrupted_engine_is_closed_rather_than_wrong():
    xs = [torch.ones(12, 2), torch.ones(12, 2) * 1000]
    data = ar.Federation.from_arrays(xs, [torch.tensor([0, 1] * 6)] * 2, test=0.0)
    model = ar.Model(Interrupting())
    with ar.LocalEngine(ar.FedAvg(), data, model, plan=Plan("one", 1, 2)) as engine:
        with pytest.raises(ar.ArchipelError, match="round 1, party 1: KeyError: 'in the middle'"):
            engine.round(0, [0, 1])
        with pytest.raises(ar.ArchipelError, match="interrupted"):
            engine.round(0, [0])


@dataclass(frozen=True)
class Personal:
    """Two messages with a row for each party."""

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        back = yield me.grad(w)
        return back - me.grad(w), None

    def server(self, w, uploads):
        uploads = yield ar.Each(uploads.stack())
        return w + uploads.mean()


def test_each_goes_on_without_a_party_that_diverges():
    xs = [torch.randn(4, 2), torch.full((4, 2), 1e38), torch.randn(4, 2)]
    data = ar.Federation.from_arrays(xs, [torch.randn(4)] * 3, test=0.0)
    model = ar.Model(nn.Linear(2, 1, bias=False), "squared_error")
    for plan in (ONE, Plan("stacked", 3, 1), Plan("one", 1, 2)):
        with ar.LocalEngine(Personal(), data, model, plan=plan) as engine:
            outcome = engine.round(0, [0, 1, 2])
            assert outcome.diverged.tolist() == [1]
            torch.testing.assert_close(engine.shared, model.w)  # each got its own row back


def test_dropout_is_found_whatever_the_data():
    module = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    nn.init.zeros_(module[2].weight)

    assert ar.Model(module).one.draws(torch.zeros(1, 3))
    assert not ar.Model(nn.Linear(3, 2)).one.draws(torch.zeros(1, 3))


def test_full_gradients_move_batchnorm_statistics_and_the_model_has_them():
    data = ar.Federation.from_arrays(
        [torch.randn(20, 3) + 5, torch.randn(20, 3) + 5], [torch.arange(20) % 2] * 2
    )
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    run = ar.simulate(ar.FedSGD(lr=0.1), data, module, rounds=40, workers=1)

    assert run.buffers is not None and bool((run.buffers[:4].abs() > 0.1).any())
    trained = run.model.eval()
    x = torch.cat([data.party(k)[2] for k in range(2)])
    y = torch.cat([data.party(k)[3] for k in range(2)])
    assert float((trained(x).argmax(1) == y).float().mean()) == pytest.approx(
        run.metrics["accuracy"], abs=0.3
    )


def test_the_mean_of_peers_leaves_out_who_cannot_train():
    xs = [torch.randn(5, 2, dtype=torch.float64) for _ in range(3)]
    empty = torch.zeros(0, 2, dtype=torch.float64)
    data = ar.Federation.from_arrays([*xs, empty], [x.sum(1) for x in xs] + [empty.sum(1)], test=0)
    with ar.LocalEngine(
        ar.DSGD(lr=0.1), data, linear(2), plan=ONE, topology=topology("complete", 4)
    ) as engine:
        engine.round(0, [0, 1, 2])

        torch.testing.assert_close(engine.vector(), engine.own_models([0, 1, 2]).mean(dim=0))


def test_one_partys_divergence_does_not_end_the_baseline():
    xs = [torch.randn(8, 3), torch.randn(8, 3) * 1e30, torch.randn(8, 3)]
    data = ar.Federation.from_arrays(xs, [torch.randn(8)] * 3, test=0.25)

    scores = baselines.alone(ar.FedAvg(lr=0.01), data, "linear", rounds=3, workers=1).local

    assert torch.isfinite(scores.parties["loss"][[0, 2]]).all()


@pytest.mark.parametrize("work", [{"local_steps": 4}, {"local_epochs": 2}])
def test_the_pooled_baseline_has_the_budget_of_the_run(work, monkeypatch):
    data = ar.Federation.from_arrays(
        [torch.randn(20, 3)] * 10, [torch.arange(20) % 2] * 10, test=0.0
    )
    alg = ar.FedAvg(lr=0.1, batch_size=5, **work)
    seen = []
    round_ = ar.LocalEngine.round

    def count(self, *arguments, **options):
        outcome = round_(self, *arguments, **options)
        seen.append(outcome.gradients)
        return outcome

    monkeypatch.setattr(ar.LocalEngine, "round", count)
    ar.simulate(alg, data, "logistic", rounds=5, sample=0.5, plan=ONE)
    federated = sum(seen)
    seen.clear()
    baselines.pooled(alg, data, "logistic", rounds=5, sample=0.5)

    assert sum(seen) == pytest.approx(federated, rel=0.1)


def test_peers_may_mix_in_some_rounds_only_and_bytes_are_counted():
    @dataclass(frozen=True)
    class Sometimes:
        lr: float = 0.1

        def init(self, x):
            return x

        def party(self, me, x):
            x = x - self.lr * me.grad(x)
            return me.mix(x) if me.round % 2 else x

    data = regression(4, 3, 0)
    with ar.LocalEngine(
        Sometimes(), data, linear(3), plan=ONE, topology=topology("ring", 4)
    ) as engine:
        engine.round(0, range(4))
        engine.round(1, range(4))
        assert torch.isfinite(engine.vector()).all()
    run = ar.simulate(ar.DSGD(), "heart_disease", rounds=2, topology="ring", workers=1)
    vector = 28 * 4
    assert run.history[-1]["bytes"] == {"up": 2 * 8 * vector, "down": 2 * 8 * vector}


def test_rounds_to_knows_what_is_better():
    run = ar.simulate(ar.FedAvg(lr=0.01), "heart_disease", rounds=6, workers=1)
    losses = run.curve("loss")[1]
    target = (losses[2] + losses[3]) / 2

    assert 3 < run.rounds_to(target, "loss") < 4
    assert run.rounds_to(0.0, "loss") is None


def test_no_test_points_is_said():
    run = ar.simulate(ar.FedAvg(), classification(3, 4, 2, 0), network(4, 2), rounds=1, workers=1)

    assert run.metrics == {}
    with pytest.raises(ar.ArchipelError, match="test point"):
        run.curve()


def test_binary_outputs_without_a_last_dimension():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(13, 1)

        def forward(self, x):
            return self.out(x).squeeze(-1)

    accuracies = [
        ar.simulate(
            ar.FedAvg(lr=0.1),
            "heart_disease",
            module,
            loss="binary_cross_entropy",
            rounds=20,
            workers=1,
        ).metrics["accuracy"]
        for module in (Flat(), nn.Linear(13, 1))
    ]
    assert accuracies[0] > 0.7 and accuracies[1] > 0.7


@dataclass(frozen=True)
class Broken:
    """An algorithm with a mistake of the user's, by name."""

    mistake: str = ""
    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        if self.mistake == "upload only":
            return w
        if self.mistake == "reduces over parties":
            return me.grad(w).sum(dim=0)[None] if me.n.dim() > 1 else me.grad(w).sum()[None], None
        return me.descend(w, self).w - w, None

    def server(self, w, uploads):
        if self.mistake == "no return":
            return None
        if self.mistake == "a scalar":
            return uploads.mean().sum()
        return w + uploads.mean()


@pytest.mark.parametrize(
    "mistake, sentence",
    [
        ("upload only", r"return the pair \(upload, own\)"),
        ("no return", "returns nothing where a tensor"),
        ("a scalar", "same form"),
        ("reduces over parties", "name the last dimension"),
    ],
)
def test_mistakes_in_an_algorithm(mistake, sentence):
    with pytest.raises(ar.ArchipelError, match=sentence):
        learn(Broken(mistake), regression(3, 4, 0), linear(4))


def test_only_lr_is_needed_for_local_work():
    assert not torch.equal(learn(Broken(), regression(3, 4, 0), linear(4)), linear(4).w)


def test_what_the_server_asks_for_may_not_change():
    @dataclass(frozen=True)
    class Changing:
        def init(self, w):
            return (w, torch.zeros((), dtype=w.dtype)), None

        def party(self, me, shared, own):
            return me.grad(shared[0]), None

        def server(self, shared, uploads):
            w, t = shared
            return w - uploads.mean(by_examples=bool(t > 0)), t + 1

    with pytest.raises(ar.ArchipelError, match="in every round"):
        learn(Changing(), regression(3, 4, 0), linear(4))


@pytest.mark.parametrize(
    "algorithm, sentence",
    [
        (ar.FedAvg(lr=-1.0), "lr = -1.0"),
        (ar.FedAvg(lr=float("nan")), "lr = nan"),
        (ar.FedAvg(lr="0.1"), "lr = '0.1'"),
        (ar.FedAvg(optimiser="adam"), r"give SGD\(\) or Adam\(\)"),
        (ar.FedAvg(local_steps=0), "local_steps = 0"),
        (ar.FedAvg(local_epochs=1.5), "local_epochs = 1.5"),
        (ar.FedAvg(batch_size=0), "batch_size = 0"),
        (ar.FedProx(mu=-1.0), "mu = -1.0"),
        (ar.FedOpt(server_optimiser="adm"), "did you mean 'adam'"),
        (ar.Scaffold(option=3), "options 1 and 2"),
        (ar.FedAvg, r"give an instance, FedAvg\(\)"),
        ("fedavg", "give a dataclass"),
    ],
)
def test_bad_hyper_parameters(algorithm, sentence):
    with pytest.raises(ar.ArchipelError, match=sentence):
        ar.simulate(algorithm, "heart_disease", rounds=1, workers=1)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"sampel": 0.1}, "did you mean 'sample'"),
        ({"topology": 5}, "topology = 5"),
        ({"topology": "ring"}, "has a server"),
    ],
)
def test_bad_options(options, sentence):
    with pytest.raises(ar.ArchipelError, match=sentence):
        ar.simulate(ar.FedAvg(), "heart_disease", rounds=1, workers=1, **options)


def test_numbers_of_numpy_are_numbers():
    ar.simulate(ar.FedAvg(lr=np.float32(0.1)), "heart_disease", rounds=1, workers=1)


@pytest.mark.parametrize("settings", [{"lr": []}, {"local_epochs": [1, 2]}, {"batch_size": [1, 2]}])
def test_bad_sweeps(settings):
    with pytest.raises(ar.ArchipelError, match="sweep of"):
        ar.sweep(ar.FedAvg(), "heart_disease", None, settings, rounds=1)


def test_a_model_that_returns_a_tuple():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(13, 2)

        def forward(self, x):
            return self.out(x), x

    with pytest.raises(ar.ArchipelError, match="return one tensor"):
        ar.simulate(ar.FedAvg(), "heart_disease", Two(), rounds=1)


def test_an_engine_is_entered_once():
    data, model = regression(2, 2, 0), linear(2)
    with ar.LocalEngine(ar.FedAvg(), data, model, plan=ONE) as engine:
        with pytest.raises(ar.ArchipelError, match="running already"):
            engine.__enter__()
        with pytest.raises(ar.ArchipelError, match="no model of its own"):
            engine.evaluate(own=True)
