"""FedPer and FedRep: bodies are averaged, heads stay; and the linear theory of FedRep's paper."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from test_personal import DATA, PLANS
from torch import nn

import archipel as ar
from archipel.algorithms.fedper import FedPer
from archipel.algorithms.fedrep import FedRep
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan
from archipel.tree import first, leaves
from problems import classification, network

ONE = Plan("one", 3, 1)
BOTH = [FedPer, FedRep]
OPTIMISERS = [ar.SGD(), ar.SGD(momentum=0.9, weight_decay=0.1), ar.Adam(weight_decay=0.1)]


class Named(nn.Module):
    """A user's module: two branches, of which one is the head."""

    def __init__(self, dims=3, classes=3):
        super().__init__()
        self.classifier = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, classes))
        self.encoder = nn.Linear(dims, 4)

    def forward(self, x):
        return self.classifier(torch.tanh(self.encoder(x)))


def named(dims=3, classes=3):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ar.Model(Named(dims, classes).double())


def small():
    """A network for the three numbers of a heart patient that come first."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ar.Model(nn.Sequential(nn.Linear(13, 4), nn.Tanh(), nn.Linear(4, 2)))


def heads(engine, ids):
    return first(engine.own_states(ids))


# -- who has what ----------------------------------------------------------------------------------


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
@pytest.mark.parametrize("plan", [ONE, Plan("stacked", 2, 2), Plan("vmapped", 5, 1)], ids=str)
@pytest.mark.parametrize("kind", BOTH)
def test_bodies_are_averaged_and_heads_stay(kind, plan, optimiser):
    data, model = classification(4, 3, 3, 0), network(3, 3)
    algorithm = kind(lr=0.05, batch_size=3, optimiser=optimiser)
    head = model.spec.mask("last")
    alone = []
    for k in range(4):  # a party in a round by itself: nobody to average with
        with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
            engine.round(0, [k])
            alone.append((engine.vector()[~head].clone(), heads(engine, [k])[0]))
    with ar.LocalEngine(algorithm, data, model, plan=plan) as engine:
        engine.round(0, range(4))
        w, own = engine.vector().clone(), heads(engine, range(4))
        anatomy = engine.anatomy

    shares = (data.n / data.n.sum()).to(w.dtype)
    torch.testing.assert_close(w[~head], shares @ torch.stack([body for body, _ in alone]))
    torch.testing.assert_close(own, torch.stack([h for _, h in alone]))
    assert torch.equal(w[head], model.w[head])  # the server keeps the first one
    assert len({tuple(row.tolist()) for row in own}) == 4
    (message,) = anatomy.messages
    assert [leaf.numel() for leaf in leaves(message.upload)] == [int((~head).sum())]
    assert [leaf.numel() for leaf in leaves(anatomy.sent)] == [int((~head).sum())]
    assert anatomy.sums_only


@dataclass(frozen=True)
class Told(FedRep):
    """FedRep that writes down what a party gets and sends."""

    heard: ClassVar[list] = []

    def party(self, me, phi, h):
        upload, own = super().party(me, phi, h)
        self.heard.append((phi.clone(), upload.clone(), h.clone(), own.clone()))
        return upload, own


def test_no_number_of_a_head_is_in_a_message():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    with ar.LocalEngine(Told(batch_size=3), data, model, plan=ONE) as engine:
        Told.heard.clear()  # after the look before the run
        for t in range(3):
            engine.round(t, range(4))

    for phi, upload, *kept in Told.heard:
        said = {float(x) for part in (phi, upload) for x in part.flatten()}
        assert not said & {float(x) for part in kept for x in part.flatten()}


@pytest.mark.parametrize("kind", BOTH)
def test_a_head_goes_on_from_round_to_round_and_waits_while_its_party_is_away(kind):
    data, model = classification(3, 3, 3, 0), network(3, 3)
    with ar.LocalEngine(kind(lr=0.1, batch_size=3), data, model, plan=ONE) as engine:
        engine.round(0, [0, 1])
        after_one = heads(engine, range(3))
        engine.round(1, [1, 2])
        after_two = heads(engine, range(3))
    head = model.spec.mask("last")

    assert torch.equal(after_one[2], model.w[head])  # not trained yet
    assert torch.equal(after_two[0], after_one[0])
    assert not torch.equal(after_two[1], after_one[1])


# -- a round, by hand ------------------------------------------------------------------------------


def test_fedrep_alternates_and_fedper_moves_both_at_once():
    data, model = classification(1, 3, 3, 0), network(3, 3)
    head, w, eta = model.spec.mask("last"), model.w, 0.3
    me = LocalParty(data, model, model.one, np.array([0]), 0, 0, ())
    work = {"lr": eta, "local_epochs": 1, "batch_size": None}

    def after(algorithm):
        with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
            engine.round(0, [0])
            moved = engine.vector().clone()
            moved[head] = heads(engine, [0])[0]
            return moved

    at_once = w - eta * me.grad(w)
    alternating = torch.where(head, w - eta * me.grad(w), w)
    alternating = torch.where(head, alternating, w - eta * me.grad(alternating))
    torch.testing.assert_close(after(FedPer(**work)), at_once)
    torch.testing.assert_close(after(FedRep(head_epochs=1, **work)), alternating)
    assert float((at_once - alternating).abs().max()) > 1e-3


@pytest.mark.parametrize("epochs", [{"head_epochs": 3, "tune_epochs": None}, {"tune_epochs": 3}])
@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
def test_fedreps_own_model_is_the_body_with_a_head_trained_on_it(optimiser, epochs):
    data, model = classification(3, 3, 3, 0).split_test(0.4), network(3, 3)
    algorithm = FedRep(lr=0.1, **epochs, batch_size=2, optimiser=optimiser)
    head = model.spec.mask("last")
    with ar.LocalEngine(algorithm, data, model, plan=Plan("stacked", 2, 1)) as engine:
        engine.round(0, [0, 1])
        w, own = engine.vector().clone(), heads(engine, range(3))
        scores = engine.evaluate(own=True)
        for k in range(3):
            me = LocalParty(data, model, model.one, np.array([k]), 0, 1, ())
            mine = w.clone()
            mine[head] = own[k]
            work = ar.FedAvg(0.1, 3, None, 2, optimiser)
            tuned = me.descend(mine, work, only=head).w
            assert torch.equal(tuned[~head], w[~head])
            expected = float(engine.evaluate(tuned).parties["loss"][k])
            assert float(scores.parties["loss"][k]) == pytest.approx(expected)


def test_fedpers_own_model_is_used_as_it_is_and_a_new_partys_head_is_trained():
    data = classification(3, 3, 3, 0).split_test(0.4)
    model, head = network(3, 3), network(3, 3).spec.mask("last")
    with ar.LocalEngine(FedPer(tune_epochs=3, batch_size=2), data, model, plan=ONE) as engine:
        engine.round(0, [0, 1])
        w, own = engine.vector().clone(), heads(engine, range(3))
        scores = engine.evaluate(own=True)
        mine = []
        for k in range(3):
            mine.append(w.clone())
            mine[k][head] = own[k]
        me = LocalParty(data, model, model.one, np.array([2]), 0, 1, ())
        mine[2] = me.descend(mine[2], ar.FedAvg(0.1, 3, None, 2), only=head).w
        for k in range(3):
            expected = float(engine.evaluate(mine[k]).parties["loss"][k])
            assert float(scores.parties["loss"][k]) == pytest.approx(expected)
        gradients = scores.costs.gradients

    assert gradients.sum() > 0 and bool(torch.equal(mine[2][~head], w[~head]))


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("kind", BOTH)
def test_own_models_do_not_depend_on_the_plan(kind, plan):
    runs = [
        ar.simulate(kind(lr=0.05), DATA, small(), rounds=4, plan=each) for each in (PLANS[0], plan)
    ]

    for metric, values in runs[0].parties.items():
        torch.testing.assert_close(runs[1].parties[metric], values, rtol=1e-4, atol=1e-5)


# -- heads by name ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("classifier.*", ["classifier.0.weight", "classifier.0.bias",
                          "classifier.2.weight", "classifier.2.bias"]),
        ("classifier.2.*", ["classifier.2.weight", "classifier.2.bias"]),
        ("*.bias", ["classifier.0.bias", "classifier.2.bias", "encoder.bias"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", BOTH)
def test_a_head_is_named_by_its_parameters(kind, pattern, names):
    data, model = classification(3, 3, 3, 0), named()
    with ar.LocalEngine(kind(head=pattern, batch_size=3), data, model, plan=ONE) as engine:
        engine.round(0, range(3))
        w, own = engine.vector(), heads(engine, range(3))
    views, start = model.spec.views(w), model.spec.views(model.w)

    assert own.shape[1] == sum(start[name].numel() for name in names)
    for name in model.spec.names:
        assert torch.equal(views[name], start[name]) == (name in names), name


@pytest.mark.parametrize("kind", BOTH)
def test_a_name_that_nothing_has_is_told_in_a_sentence(kind):
    data = classification(3, 3, 3, 0)
    with pytest.raises(ar.ArchipelError) as caught:
        ar.LocalEngine(kind(head="clasifier.*"), data, named(), plan=ONE)

    assert "'clasifier.*' names none" in str(caught.value)
    assert "classifier.0.weight" in str(caught.value)


@pytest.mark.parametrize("kind", BOTH)
def test_a_head_that_is_the_whole_model_is_told_in_a_sentence(kind):
    name = kind.__name__.lower()
    says = f"{name}: head = 'last' is the whole model: take a model with more layers, such as mlp."
    for model in ("logistic", nn.Linear(13, 2)):
        with pytest.raises(ar.ArchipelError) as caught:
            ar.simulate(kind(), DATA, model, rounds=1, plan=ONE)
        assert str(caught.value) == says
    with pytest.raises(ar.ArchipelError, match="head = 3: give a text"):
        ar.simulate(kind(head=3), DATA, "mlp", rounds=1, plan=ONE)


@pytest.mark.parametrize(
    "algorithm",
    [FedPer(tune_epochs=0), FedRep(head_epochs=0), FedRep(tune_epochs=0)],
    ids=repr,
)
def test_bad_epochs_are_told_by_their_own_name(algorithm):
    data, model = classification(3, 3, 3, 0), network(3, 3)
    with pytest.raises(ar.ArchipelError, match=r"(tune|head)_epochs = 0"):
        ar.LocalEngine(algorithm, data, model, plan=ONE)


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOTH)
def test_a_checkpoint_holds_bodies_and_heads(kind):
    def engine():
        return ar.LocalEngine(kind(lr=0.05), DATA, small(), plan=ONE)

    with engine() as one, engine() as two:
        one.round(0, [0, 1])
        two.restore(one.state())
        for each in (one, two):
            each.round(1, [1, 2])
        ids = range(DATA.parties)
        assert torch.equal(one.vector(), two.vector())
        assert torch.equal(heads(one, ids), heads(two, ids))
        same = one.evaluate(own=True).parties["loss"], two.evaluate(own=True).parties["loss"]
        assert torch.equal(*same)


def test_a_restored_engine_makes_the_same_models_of_parties_own():
    def engine():
        return ar.LocalEngine(FedRep(lr=0.05), DATA, small(), plan=ONE)

    with engine() as one, engine() as two:
        one.round(0, range(DATA.training))
        two.restore(one.state())
        assert torch.equal(
            one.evaluate(own=True).parties["loss"], two.evaluate(own=True).parties["loss"]
        )


# -- the linear theory of FedRep: y = x B* w_i -----------------------------------------------------


def linear(points, d=20, k=2, parties=100, seed=0):
    """Parties whose truths share a subspace, and a model that starts from another one."""
    random = np.random.default_rng(seed)
    truth = np.linalg.qr(random.normal(size=(d, k)))[0]
    w = random.normal(size=(parties, k)) @ truth.T
    x = random.normal(size=(parties, points, d))
    y = np.einsum("nmd,nd->nm", x, w)
    data = ar.Federation.from_arrays(
        list(torch.from_numpy(x)), list(torch.from_numpy(y)), test=0.0, task="regression"
    )
    module = nn.Sequential(nn.Linear(d, k, bias=False), nn.Linear(k, 1, bias=False)).double()
    start = np.linalg.qr(random.normal(size=(d, k)))[0].T
    nn.utils.vector_to_parameters(
        torch.from_numpy(np.concatenate([start.ravel(), random.normal(size=k)])),
        module.parameters(),
    )
    return data, ar.Model(module, "squared_error"), truth, w


def angle(w, truth):
    """Sine of the largest principal angle between the body's and the true subspace."""
    d, k = truth.shape
    found = np.linalg.qr(w[: d * k].view(k, d).numpy().T)[0]
    return float(np.linalg.norm(found - truth @ (truth.T @ found), 2))


def test_fedrep_finds_the_shared_subspace_geometrically_and_beats_parties_alone():
    data, model, truth, w = linear(points=15)
    algorithm = FedRep(lr=0.4, head_epochs=15, batch_size=None)
    angles = []
    with ar.LocalEngine(algorithm, data, model, plan=Plan("stacked", 100, 1)) as engine:
        for t in range(81):
            if t % 20 == 0:
                angles.append(angle(engine.vector(), truth))
            engine.round(t, range(100))
        phi, h = engine.vector()[:40].view(2, 20).numpy(), heads(engine, range(100)).numpy()

    assert angles[0] > 0.5 and angles[-1] < 1e-6
    falls = np.diff(np.log(angles[1:]))  # by as much in every twenty rounds
    assert falls.max() < -2 and np.ptp(falls) < 0.5 * abs(falls.mean())
    apart = np.stack([np.linalg.lstsq(*map(np.asarray, data.party(k)[:2]), rcond=None)[0]
                      for k in range(100)])  # fmt: skip
    error = np.linalg.norm(h @ phi - w, axis=1) / np.linalg.norm(w, axis=1)
    alone = np.linalg.norm(apart - w, axis=1) / np.linalg.norm(w, axis=1)
    assert error.max() < 1e-4 and np.median(alone) > 0.3  # 15 points, 20 unknowns


def test_fedper_is_slower_to_find_it():
    data, model, truth, _ = linear(points=15)
    work, found = {"lr": 0.4, "batch_size": None}, []
    for algorithm in (FedRep(head_epochs=15, **work), FedPer(**work)):
        with ar.LocalEngine(algorithm, data, model, plan=Plan("stacked", 100, 1)) as engine:
            for t in range(30):
                engine.round(t, range(100))
            found.append(angle(engine.vector(), truth))

    assert found[0] < 0.5 * found[1]  # heads that fit the body show the body the way
