"""What `me` shows an algorithm: its points, its model's layers, a part of a vector to train."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import archipel as ar
from archipel.algorithms.knnper import KNNPer
from archipel.core import Blueprint
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan, ways
from archipel.training.descent import descend
from archipel.tree import nbytes
from problems import classification, network, regression

few = settings(max_examples=25)
ONE = Plan("one", 2, 1)
OPTIMISERS = [
    ar.SGD(),
    ar.SGD(momentum=0.9),
    ar.SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
    ar.SGD(weight_decay=0.1),
    ar.Adam(weight_decay=0.1),
]


def stack(data, model, way, ids, lead=None, **options):
    lead = (len(ids),) if lead is None else lead
    return LocalParty(data, model, way, np.array(ids), 0, 0, lead, **options)


def split(data, fraction=0.4):
    return data.split_test(fraction)


# -- descend(only=...) -----------------------------------------------------------------------------


@few
@given(
    parties=st.integers(1, 5),
    seed=st.integers(0, 999),
    size=st.sampled_from([None, 1, 3]),
    way=st.sampled_from(["one", "vmapped", "stacked"]),
    optimiser=st.sampled_from(OPTIMISERS),
    shifted=st.booleans(),
    pull=st.sampled_from([0.0, 0.7]),
    block=st.sampled_from([1, 2, 100]),
    whole=st.booleans(),
)
def test_only_a_part_moves_and_as_plain_steps_move_it(
    parties, seed, size, way, optimiser, shifted, pull, block, whole
):
    data, model = classification(parties, 4, 3, seed), network(4, 3, seed)
    random = torch.Generator().manual_seed(seed)
    only = model.spec.mask("last" if whole else "0.*")
    if not whole:  # and a part of a parameter
        only[:3] = False
    start = torch.randn(parties, model.p, generator=random, dtype=torch.float64)
    shift = torch.randn(model.p, generator=random, dtype=torch.float64) if shifted else None
    work = ar.FedAvg(0.1, 2, None, size, optimiser)
    ids = list(range(parties))
    fused = stack(data, model, ways(model, data, way)[way], ids, block=block)
    plain = stack(data, model, model.one, ids)

    got = fused.descend(start, work, shift, pull, only=only)
    expected = descend(plain, start, work, shift, pull, only=only)

    torch.testing.assert_close(got.w, expected.w, rtol=1e-9, atol=1e-9)
    assert torch.equal(got.w[:, ~only], start[:, ~only])
    assert bool((got.w[:, only] != start[:, only]).any(dim=1).all())
    assert torch.equal(got.steps, expected.steps)


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
@pytest.mark.parametrize("way", ["one", "vmapped", "stacked"])
def test_a_mask_of_everything_is_no_mask(way, optimiser):
    data, model = classification(3, 4, 3, 0), network(4, 3)
    work = ar.FedAvg(0.1, 2, None, 3, optimiser)
    chosen = ways(model, data, way)[way]
    masked, free = (stack(data, model, chosen, [0, 1, 2]) for _ in range(2))
    all_of_it = torch.ones(model.p, dtype=torch.bool)

    torch.testing.assert_close(
        masked.descend(model.w, work, only=all_of_it).w, free.descend(model.w, work).w
    )


@pytest.mark.parametrize(
    "way",
    [
        "one",
        "vmapped",
        "stacked",
    ],
)
def test_a_mask_of_nothing_moves_nothing(way):
    data, model = classification(3, 4, 3, 0), network(4, 3)
    me = stack(data, model, ways(model, data, way)[way], [0, 1, 2])
    nothing = torch.zeros(model.p, dtype=torch.bool)

    assert torch.equal(me.descend(model.w, ar.FedAvg(), only=nothing).w, model.w.expand(3, -1))


# -- examples --------------------------------------------------------------------------------------


@few
@given(parties=st.integers(1, 5), seed=st.integers(0, 999), settings_=st.sampled_from([None, 2]))
def test_all_of_a_partys_training_points_and_none_besides(parties, seed, settings_):
    data, model = split(classification(parties, 3, 3, seed)), network(3, 3)
    ids = [k for k in range(parties) if data.n[k] > 0]
    lead = (len(ids),) if settings_ is None else (settings_, len(ids))
    x, y, weights = stack(data, model, model.one, ids, lead).examples()

    assert x.shape == (*lead, int(data.n[ids].max()), 3)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(lead, dtype=torch.float64))
    for s in range(settings_ or 1):
        at = () if settings_ is None else (s,)
        for i, k in enumerate(ids):
            own_x, own_y, _, _ = data.party(k)
            n = len(own_x)
            assert torch.equal(x[(*at, i)][:n], own_x)
            assert torch.equal(y[(*at, i)][:n], own_y)
            assert bool((weights[(*at, i)][:n] == 1 / n).all())
            assert bool((weights[(*at, i)][n:] == 0).all())


@few
@given(parties=st.integers(1, 5), seed=st.integers(0, 999), size=st.sampled_from([1, 3, 50, 0.5]))
def test_a_batchs_points_are_those_its_gradient_is_of(parties, seed, size):
    data, model = classification(parties, 3, 3, seed), network(3, 3, seed)
    me = stack(data, model, model.one, list(range(parties)))
    batch = me.batch(size)
    x, y, weights = me.examples(batch)
    g = me.grad(model.w, batch)

    for k in range(parties):
        used = weights[k] > 0
        torch.testing.assert_close(g[k], model.grad(model.w, x[k][used], y[k][used]))
        assert bool((weights[k][used] == 1 / int(used.sum())).all())


def test_one_party_has_no_leading_dimension():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    x, y, weights = stack(data, model, model.one, [1], ()).examples()

    assert torch.equal(x, data.party(1)[0])
    assert y.shape == weights.shape == (int(data.n[1]),)


# -- outputs and features --------------------------------------------------------------------------


class Forked(nn.Module):
    """Two branches that meet before the last layer."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 2)
        self.out = nn.Linear(6, 3)

    def meet(self, x):
        return torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], dim=-1)

    def forward(self, x):
        return 2 * self.out(self.meet(x))


class HeadFirst(nn.Module):
    """Registers its last layer before the others."""

    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(4, 3), nn.Linear(3, 4)

    def meet(self, x):
        return torch.relu(self.body(x))

    def forward(self, x):
        return self.head(self.meet(x))


def chain():
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))


def normed():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def before_last(module, x):
    """The input of a module's last layer, as the module itself computes it."""
    return module.meet(x) if hasattr(module, "meet") else module[:-1](x)


MODULES = [
    chain,
    normed,
    Forked,
    HeadFirst,
]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("make", MODULES)
def test_features_are_what_reaches_the_last_layer(make, lead):
    data = classification(3, 3, 3, 0)
    torch.manual_seed(0)
    model = ar.Model(make().double())
    if model.buffer_spec.size:
        lead = lead[-1:]  # a sweep has no buffers
    ids = [1] if lead == () else [0, 1, 2]
    random = torch.Generator().manual_seed(1)
    buffers = None
    if model.buffer_spec.size:
        buffers = 1 + torch.rand(len(ids), model.buffer_spec.size, generator=random).double()
    kept = None if buffers is None else buffers.clone()
    me = stack(data, model, model.one, ids, lead, buffers=buffers)
    w = torch.randn(*lead, model.p, generator=random, dtype=torch.float64)
    x = torch.randn(*lead, 4, 3, generator=random, dtype=torch.float64)
    outputs, features = me.outputs(w, x), me.features(w, x)

    rows = w.view(-1, model.p), x.view(-1, 4, 3), outputs.view(-1, 4, 3)
    for i, (vector, points, got) in enumerate(zip(*rows, strict=True)):
        own = None if kept is None else kept[i % len(ids)]
        module = model.to_module(vector, own).eval()
        with torch.no_grad():
            torch.testing.assert_close(got, module(points))
            inner = before_last(module, points)
        torch.testing.assert_close(features.reshape(-1, *inner.shape)[i], inner)
    assert buffers is None or torch.equal(buffers, kept)  # looking does not count as training


def test_features_of_a_lone_layer_are_the_examples():
    data, model = classification(2, 3, 3, 0), ar.Model(nn.Linear(3, 3).double())
    me = stack(data, model, model.one, [0], ())

    assert torch.equal(me.features(model.w, data.x), data.x)


def test_no_points_have_no_outputs():
    data, model = classification(2, 3, 3, 0), network(3, 3)
    me = stack(data, model, model.one, [0], ())
    none = data.x[:0]

    assert me.outputs(model.w, none).shape == (0, 3)
    assert me.features(model.w, none).shape == (0, 5)


# -- broadcast, init, predict ----------------------------------------------------------------------


@dataclass(frozen=True)
class Whole(ar.FedAvg):
    """FedAvg with a number at the server that every party gets, too."""

    def init(self, w):
        return (w, torch.zeros(1000, dtype=w.dtype)), None

    def party(self, me, shared, own):
        assert len(shared) == 2
        return super().party(me, shared[0], own)

    def server(self, shared, uploads):
        return super().server(shared[0], uploads), shared[1] + 1


@dataclass(frozen=True)
class Part(Whole):
    """The same, but the number stays at the server."""

    def broadcast(self, shared):
        return shared[0]

    def party(self, me, w, own):
        assert w.shape[-1] == me.blueprint.spec.size
        return ar.FedAvg.party(self, me, w, own)


def test_what_is_not_broadcast_costs_nothing_and_is_not_seen():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    found = {}
    for kind in (Whole, Part, ar.FedAvg):
        with ar.LocalEngine(kind(), data, model, plan=ONE) as engine:
            outcome = engine.round(0, range(3))
            found[kind] = engine.vector().clone(), (outcome.up, outcome.down), engine.anatomy

    p = model.p * 8
    assert found[Whole][1] == (3 * p, 3 * (p + 8000))
    assert found[Part][1] == (3 * p, 3 * p) == found[ar.FedAvg][1]
    assert nbytes(found[Part][2].sent) == p and nbytes(found[Part][2].shared) == p + 8000
    for kind in (Whole, Part):
        assert torch.equal(found[kind][0], found[ar.FedAvg][0])


def test_fedopt_sends_the_model_and_keeps_its_moments():
    run = ar.simulate(ar.FedOpt(), "heart_disease", rounds=2, workers=1)
    p = run.task_model.p

    assert run.anatomy.bytes_down == run.anatomy.bytes_up == 4 * p
    assert run.spent.down == run.spent.up == 2 * 4 * 4 * p  # rounds, parties


@dataclass(frozen=True)
class Knowing(ar.FedAvg):
    """Asks what is learnt, before the first round and at every party."""

    def init(self, w, blueprint):
        assert isinstance(blueprint, Blueprint)
        facts = [len(blueprint.spec.names), *blueprint.shape, blueprint.classes, blueprint.seed]
        return (w, torch.tensor(facts, dtype=w.dtype)), None

    def party(self, me, shared, own):
        assert me.blueprint.seed == int(shared[1].reshape(-1)[-1])
        return super().party(me, shared[0], own)

    def server(self, shared, uploads):
        return super().server(shared[0], uploads), shared[1]


def test_init_may_ask_what_is_learnt():
    data, model = classification(3, 4, 3, 0), network(4, 3)
    with ar.LocalEngine(Knowing(), data, model, plan=ONE, seed=7) as engine:
        engine.round(0, range(3))

        assert engine.shared[1].tolist() == [4, 4, 3, 7]
    with ar.LocalEngine(Knowing(), data, model, plan=ONE, sweep={"lr": [0.1, 0.2]}) as engine:
        engine.round(0, range(3))

        assert engine.shared[1].tolist() == [[4, 4, 3, 0]] * 2


def test_targets_that_are_not_classes_have_none():
    data = regression(2, 3, 0)
    model = ar.Model(nn.Linear(3, 1).double(), "squared_error")

    assert stack(data, model, model.one, [0], ()).blueprint.classes is None


@dataclass(frozen=True)
class Doubling(ar.FedAvg):
    """A party says twice what its model says, plus its own mean example."""

    def personal(self, me, w, own):
        return w + 0 * me.n

    def predict(self, me, w, x, own):
        return 2 * me.outputs(w, x) + me.examples().x.mean()


@pytest.mark.parametrize("plan", [ONE, Plan("stacked", 3, 1), Plan("stacked", 2, 2)], ids=str)
def test_predict_says_what_a_partys_model_makes_of_its_points(plan):
    data, model = split(classification(5, 3, 3, 0)), network(3, 3)
    with ar.LocalEngine(Doubling(), data, model, plan=plan) as engine:
        engine.round(0, range(5))
        w, scores = engine.vector().clone(), engine.evaluate(own=True)

    for k in range(5):
        x, _, x_test, y_test = data.party(k)
        expected = 2 * model.predict(w, x_test) + x.mean()
        loss = nn.functional.cross_entropy(expected, y_test)
        assert scores.parties["loss"][k] == pytest.approx(float(loss))


def test_a_model_is_predicted_with_where_a_party_has_no_test_point():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    only_first = data.test_from.clone()
    only_first[0] -= 1
    with ar.LocalEngine(KNNPer(), replace(data, test_from=only_first), model, plan=ONE) as engine:
        scores = engine.evaluate(own=True)

    assert scores.parties["loss"].isnan().tolist() == [False, True, True]
