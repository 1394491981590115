# SPDX-License-Identifier: Apache-2.0
"""FedBN: all layers but BatchNorm are shared."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import archipel as ar
from archipel.algorithms import FedAvg, FedBN
from archipel.engines.plan import Plan
from problems import network

ONE = Plan("one", 1, 1)


def unlike(sizes=(14, 9, 22)):
    random = np.random.default_rng(0)
    xs = [torch.from_numpy(random.normal(k, 1 + k, (n, 4))) for k, n in enumerate(sizes)]
    ys = [(x.sum(dim=1) > x.sum(dim=1).median()).long() for x in xs]
    return ar.Federation.from_arrays(xs, ys, test=0.3)


def normed():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    return ar.Model(module.double())


def test_parties_are_those_of_the_papers_box():
    """Algorithm 1 on whole modules: after E steps each, every layer but BatchNorm is the mean."""
    data, model, steps = unlike(), normed(), 2
    modules = [copy.deepcopy(model.module) for _ in range(data.training)]
    for _ in range(3):
        for k, mine in enumerate(modules):
            x, y, _, _ = data.party(k)
            for _ in range(steps):
                grads = torch.autograd.grad(F.cross_entropy(mine(x), y), [*mine.parameters()])
                with torch.no_grad():
                    for parameter, g in zip(mine.parameters(), grads, strict=True):
                        parameter -= 0.1 * g
        for name in ("0.weight", "0.bias", "3.weight", "3.bias"):
            mean = torch.stack([mine.state_dict()[name] for mine in modules]).mean(dim=0)
            for mine in modules:
                mine.state_dict()[name].copy_(mean)

    algorithm = FedBN(lr=0.1, local_steps=steps, batch_size=None)
    with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
        for t in range(3):
            engine.round(t, range(data.training))
        scores = engine.evaluate(own=True).parties["loss"]
        for k, mine in enumerate(modules):
            found = model.to_module(*engine.own_model(k)).state_dict()
            for name, tensor in mine.state_dict().items():
                torch.testing.assert_close(found[name], tensor, msg=name)
            _, _, x, y = data.party(k)
            expected = F.cross_entropy(mine.eval()(x), y).item()
            assert float(scores[k]) == pytest.approx(expected, abs=1e-9)


def test_without_batchnorm_it_is_fedavg_of_equal_parties():
    data, model = unlike((12, 12, 12)), network(4, 2)
    runs = [
        ar.simulate(kind(lr=0.1, batch_size=4), data, model, rounds=2, plan=ONE)
        for kind in (FedAvg, FedBN)
    ]

    torch.testing.assert_close(runs[0].vector, runs[1].vector)
    assert any("has no BatchNorm" in note for note in runs[1].notes)


def test_who_never_trained_uses_the_first_parameters_and_its_own_points():
    data, model = unlike(), normed()
    with ar.LocalEngine(FedBN(lr=0.1, batch_size=4), data, model, plan=ONE) as engine:
        engine.round(0, [0, 1])
        w, buffers = engine.own_model(2)

        x = data.party(2)[0]
        views = model.spec.views(w)
        hidden = x @ views["0.weight"].T + views["0.bias"]
    assert torch.equal(views["1.weight"], torch.ones(6).double())
    torch.testing.assert_close(model.buffer_spec.views(buffers)["1.running_mean"], hidden.mean(0))


def test_no_number_of_batchnorm_leaves():
    with ar.LocalEngine(FedBN(), unlike(), normed(), plan=ONE) as engine:
        assert engine.anatomy.bytes_up == 8 * (normed().p - 12)
