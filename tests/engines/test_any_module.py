"""Any module a user brings gives the same result however it is computed."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import archipel as ar
from archipel.engines.plan import Plan, ways
from problems import learn

CLASSES = 3


class Tied(nn.Module):
    """One matrix used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Residual(nn.Module):
    """Not a chain: a skip connection, functional calls."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        h = F.relu(self.a(x))
        return self.out(h + F.gelu(self.b(h)))


class Chain(nn.Module):
    """A chain written with functions rather than modules."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.b(F.relu(self.a(torch.flatten(x, 1))))


class Recurrent(nn.Module):
    def __init__(self, kind, dropout=0.0):
        super().__init__()
        self.rnn = kind(1, 4, num_layers=2, batch_first=True, dropout=dropout)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(self.rnn(x.unsqueeze(-1))[0][:, -1])


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(10, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(self.embedding(x.abs().mul(3).long().clamp(max=9)).mean(dim=1))


class Branching(nn.Module):
    """Looks at values, so it can be neither traced nor vmapped."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.out(x) if float(x.detach().sum()) > -1e9 else self.out(-x)


class Images(nn.Module):
    """Convolutions over images, flattened the careful way or with a view."""

    def __init__(self, careful):
        super().__init__()
        self.careful = careful
        self.a, self.b = nn.Conv2d(1, 3, 2, padding=1), nn.Conv2d(3, 4, 2)
        self.out = nn.Linear(24, CLASSES)

    def forward(self, x):
        h = F.max_pool2d(self.b(F.relu(self.a(x.reshape(len(x), 1, 2, 3)))), (1, 1))
        return self.out(h.flatten(1) if self.careful else h.view(len(x), -1))


def frozen():
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    module[0].weight.requires_grad_(False)
    return module


def convolution(*norm):
    return nn.Sequential(
        nn.Unflatten(1, (1, 6)),
        nn.Conv1d(1, 4, 3, padding=1),
        *norm,
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


MODULES = {
    "one layer": lambda: nn.Linear(6, CLASSES),
    "chain of modules": lambda: nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 5),
        nn.Sigmoid(),
        nn.Linear(5, 4, bias=False),
        nn.SiLU(),
        nn.Linear(4, 4),
        nn.ELU(),
        nn.Linear(4, 4),
        nn.GELU(),
        nn.Linear(4, CLASSES),
        nn.Tanh(),
    ),
    "chain of functions": Chain,
    "residual": Residual,
    "tied": Tied,
    "frozen": frozen,
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)),
    "BatchNorm": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)),
    "GroupNorm": lambda: convolution(nn.GroupNorm(2, 4)),
    "convolution": convolution,
    "images": lambda: Images(careful=True),
    "images with a view": lambda: Images(careful=False),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM with dropout": lambda: Recurrent(nn.LSTM, 0.5),
    "embedding": Words,
    "branching": Branching,
    "LayerNorm": lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, CLASSES)),
}
STACKED = {"one layer", "chain of modules", "chain of functions"}
ONE_BY_ONE = {"dropout", "BatchNorm", "LSTM with dropout", "branching"}


def federation():
    random = np.random.default_rng(3)
    sizes = [6, 4, 9, 4]
    return ar.Federation.from_arrays(
        [torch.from_numpy(random.standard_normal((n, 6))).float() for n in sizes],
        [torch.from_numpy(np.arange(n) % CLASSES) for n in sizes],
        test=0.25,
    )


def build(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ar.Model(MODULES[name]())


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap loops over LSTMs
@pytest.mark.parametrize("name", MODULES)
def test_every_way_gives_the_same(name):
    data, model = federation(), build(name)
    alg = ar.FedAvg(lr=0.1, local_epochs=2, batch_size=3)
    right = ways(model, data, "vmapped")
    expected = learn(alg, data, model, rounds=2, plan=Plan("one", 1, 1))

    assert ("stacked" in right) == (name in STACKED)
    assert ("vmapped" in right) == (name not in ONE_BY_ONE)
    assert ("channels_last" in right) == (name == "images")
    assert not torch.equal(expected, model.w)
    for plan in [Plan(way, 3, 1) for way in right] + [Plan("one", 2, 2)]:
        got = learn(alg, data, model, rounds=2, plan=plan)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, msg=str(plan))


@pytest.mark.parametrize("name", MODULES)
def test_result_is_plain_torch_training(name):
    """One party, full batches: the optimiser loop of any tutorial."""
    model = build(name)
    if model.one.draws(federation().x[:1]):
        pytest.skip("dropout draws its own numbers")
    data = federation().select([2])
    x, y, _, _ = data.party(0)
    module = model.to_module(model.w).train()
    optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    expected = torch.cat(
        [p.detach().flatten() for _, p in module.named_parameters() if p.requires_grad]
    )

    w = learn(ar.FedAvg(lr=0.1, local_steps=3, batch_size=None), data, model, rounds=1)

    torch.testing.assert_close(w, expected, rtol=1e-4, atol=1e-5)


def test_batchnorm_statistics_stay_with_the_party():
    data, model = federation(), ar.Model(MODULES["BatchNorm"](), statistics="own")
    with ar.LocalEngine(
        ar.FedAvg(lr=0.1, batch_size=3), data, model, plan=Plan("one", 2, 1)
    ) as engine:
        engine.round(0, [0, 2])
        *_, statistics, _ = engine._memory.kept.take([0, 2])

        assert not torch.equal(*statistics)
        assert not bool(engine._memory.kept.visited[1])
        scores = engine.evaluate()
        assert torch.isfinite(scores.parties["loss"]).all()


def test_dropout_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    learn(ar.FedAvg(batch_size=3), federation(), build("dropout"), rounds=1)

    assert torch.equal(torch.rand(3), expected)
