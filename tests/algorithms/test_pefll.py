"""PeFLL against autograd through its two networks, and what goes over the wire."""

import os
import signal
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_personal import DATA, PLANS
from torch import nn
from torch.func import functional_call

import archipel as ar
from archipel.algorithms.pefll import PeFLL, Scale
from archipel.engines.party import LocalParty
from archipel.engines.plan import Plan
from archipel.models.networks import Embedding, Perceptron
from archipel.tree import leaves
from problems import classification, network, regression

FLOOR = 1e-12  # of a variance
ONE = Plan("one", 3, 1)
SMALL = {"size": 4, "hidden": 7}
ONE_STEP = {"lr": 1.0, "local_steps": 1, "optimiser": ar.SGD(), "clip_at": 1e9, **SMALL}


def images(parties, seed, dtype=torch.float64):
    """Random pictures and labels, parties of unequal size."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 6, parties)
    xs = [torch.from_numpy(random.standard_normal((n, 1, 16, 17))).to(dtype) for n in sizes]
    ys = [torch.from_numpy(random.integers(0, 3, n)) for n in sizes]
    ys[0][0] = 2
    return ar.Federation.from_arrays(xs, ys, test=0.0)


def picture_model(dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(16 * 17, 3))
    return ar.Model(module.to(dtype))


def networks(algorithm, model, data):
    """The embedding and the hyper-network of a problem."""
    phi = Embedding(algorithm.embedding, tuple(data.shape), data.classes, algorithm.size)
    return phi, Perceptron((algorithm.size, *[algorithm.hidden] * 3, model.p))


def standardised(v, scale):
    """What the hyper-network gets of embeddings, their mean and variance being constants."""
    least = 1e-3 * (scale.mean**2).mean(dim=-1, keepdim=True) + FLOOR
    return ((v - scale.mean) / (scale.variance + least).sqrt()).clamp(-10, 10)


def composed(algorithm, model, data, shared, scale, ids, seed=0, t=0):
    """Gradients of mean_i f_i(h(phi(B_i; eta_v); eta_h)), all in one graph."""
    phi, h = networks(algorithm, model, data)
    eta_v, eta_h = (part.clone().requires_grad_() for part in (shared.eta_v, shared.eta_h))
    total = 0.0
    for k in ids:
        me = LocalParty(data, model, model.one, np.array([k]), seed, t, ())
        first, second = (me.examples(me.batch(algorithm.batch_size)) for _ in range(2))
        theta = h(eta_h, standardised(phi(eta_v, first), scale)[None])[0]
        outputs = functional_call(model.module, model.spec.views(theta), (second.x,))
        losses = nn.functional.cross_entropy(outputs, second.y, reduction="none")
        total = total + (second.weights * losses).sum() / len(ids)
    return torch.autograd.grad(total, (eta_v, eta_h))


def after_a_round(algorithm, data, model, ids, plan=ONE, **options):
    """The shared state before and after, and the gradient that the server's optimiser got."""
    with ar.LocalEngine(algorithm, data, model, plan=plan, **options) as engine:
        before = engine.shared
        engine.round(0, ids)
        return before, engine.shared, engine.shared.moments.m / (1 - ar.Adam().beta1)


# -- steps 4 to 6 ----------------------------------------------------------------------------------


@settings(max_examples=12)
@given(
    parties=st.integers(1, 5),
    seed=st.integers(0, 99),
    batch_size=st.sampled_from([None, 1, 3]),
    kind=st.sampled_from(["perceptron", "labels"]),
    plan=st.sampled_from([ONE, Plan("stacked", 2, 1), Plan("vmapped", 5, 1)]),
)
def test_a_round_is_autograd_through_both_networks(parties, seed, batch_size, kind, plan):
    data, model = classification(parties, 3, 3, seed), network(3, 3, seed)
    embedding = "labels" if kind == "labels" else "examples"
    algorithm = PeFLL(batch_size=batch_size, embedding=embedding, **ONE_STEP)
    before, after, g = after_a_round(algorithm, data, model, range(parties), plan, seed=seed)
    d_eta_v, d_eta_h = composed(algorithm, model, data, before, after.scale, range(parties), seed)

    torch.testing.assert_close(g[: len(d_eta_v)], d_eta_v, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(g[len(d_eta_v) :], d_eta_h, rtol=1e-8, atol=1e-10)
    if parties > 1:  # the mean of one is itself, and nothing may pass the first ReLU
        assert float(d_eta_v.norm()) > 0 and float(d_eta_h.norm()) > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("plan", [ONE, Plan("stacked", 2, 2)], ids=str)
def test_a_round_is_autograd_through_a_convolutional_embedding(plan, dtype):
    data, model = images(4, 1, dtype), picture_model(dtype)
    algorithm = PeFLL(batch_size=3, **ONE_STEP)
    before, after, g = after_a_round(algorithm, data, model, [0, 2, 3], plan)
    d_eta_v, d_eta_h = composed(algorithm, model, data, before, after.scale, [0, 2, 3])

    torch.testing.assert_close(g[: len(d_eta_v)], d_eta_v, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(g[len(d_eta_v) :], d_eta_h, rtol=1e-5, atol=1e-5)
    assert float(d_eta_v.norm()) > 0


def test_several_steps_are_not_differentiated_through():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    algorithm = PeFLL(batch_size=None, **{**ONE_STEP, "lr": 0.1, "local_steps": 4})
    before, after, g = after_a_round(algorithm, data, model, range(3))
    phi, h = networks(algorithm, model, data)
    eta_v, eta_h = (part.clone().requires_grad_() for part in (before.eta_v, before.eta_h))
    surrogate = 0.0
    for k in range(3):  # <theta_i, delta_i> with delta_i a constant
        me = LocalParty(data, model, model.one, np.array([k]), 0, 0, ())
        theta = h(eta_h, standardised(phi(eta_v, me.examples()), after.scale)[None])[0]
        moved = theta.detach()
        for _ in range(4):
            moved = moved - 0.1 * me.grad(moved)
        surrogate = surrogate + (theta * (theta.detach() - moved)).sum() / 3
    expected = torch.cat(torch.autograd.grad(surrogate, (eta_v, eta_h)))

    torch.testing.assert_close(g, expected)


def test_a_first_round_of_one_party_teaches_both_networks():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    algorithm = PeFLL(batch_size=None, **ONE_STEP)
    phi, _ = networks(algorithm, model, data)
    _, _, g = after_a_round(algorithm, data, model, [0])
    d_eta_v, d_eta_h = g.split([phi.spec.size, len(g) - phi.spec.size])

    assert float(d_eta_v.norm()) < 100 * float(d_eta_h.norm())


# -- step 7 ----------------------------------------------------------------------------------------


def test_the_server_adds_the_regularisers_gradient():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    before, _, plain = after_a_round(PeFLL(**ONE_STEP), data, model, range(3))
    _, _, pulled = after_a_round(PeFLL(weight_decay=0.3, **ONE_STEP), data, model, range(3))

    x = torch.cat([before.eta_v, before.eta_h])
    torch.testing.assert_close(pulled - plain, 2 * 0.3 * x)


@pytest.mark.parametrize("share", [0.2, 5.0])
def test_the_server_clips_both_gradients_together(share):
    data, model = classification(3, 3, 3, 0), network(3, 3)
    _, _, free = after_a_round(PeFLL(**ONE_STEP), data, model, range(3))
    bound = share * float(free.norm())
    clipped = PeFLL(**{**ONE_STEP, "clip_at": bound})
    _, _, g = after_a_round(clipped, data, model, range(3))

    torch.testing.assert_close(g, free * min(1.0, share))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_the_server_steps_with_one_adam_for_all_parties(share):
    data, model = classification(4, 3, 3, 0), network(3, 3)
    algorithm = PeFLL(server_lr=0.01, embedding_lr=share, **ONE_STEP)
    with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
        phi, _ = networks(algorithm, model, data)
        v, h = (eta.clone().requires_grad_() for eta in engine.shared[1:3])
        adam = torch.optim.Adam([{"params": [v], "lr": share * 0.01}, {"params": [h]}], lr=0.01)
        for t in range(3):
            before = engine.shared
            engine.round(t, [t, 3])
            scale = engine.shared.scale
            v.grad, h.grad = composed(algorithm, model, data, before, scale, [t, 3], t=t)
            adam.step()
        after = [engine.shared.eta_v, engine.shared.eta_h]

    torch.testing.assert_close(after, [v.detach(), h.detach()], rtol=1e-6, atol=1e-8)
    assert len(engine.shared.eta_v) == phi.spec.size


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_models_in_use_come_from_the_mean_of_the_last_hyper_networks(share):
    data, model = classification(4, 3, 3, 0), network(3, 3)
    with ar.LocalEngine(PeFLL(averaging=share, **ONE_STEP), data, model, plan=ONE) as engine:
        weights = [1.0, 0.5, 0.4, 0.4] if share < 1 else [1.0] * 4
        mean = torch.zeros_like(engine.shared.eta_h)
        for t in range(4):
            engine.round(t, range(4))
            mean = torch.lerp(mean, engine.shared.eta_h, weights[t])
            torch.testing.assert_close(engine.shared.mean_h, mean)


def test_a_sweep_of_server_rates_is_separate_runs():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    rates, work = [1e-3, 1e-2], {"local_steps": 3, "batch_size": 2, **SMALL}

    def learn(algorithm, **options):
        with ar.LocalEngine(algorithm, data, model, plan=ONE, **options) as engine:
            for t in range(3):
                engine.round(t, range(4))
            return [leaf.clone() for leaf in leaves(engine.shared)]

    together = learn(PeFLL(**work), sweep={"server_lr": rates})
    for index, rate in enumerate(rates):
        for both, one in zip(together, learn(PeFLL(server_lr=rate, **work)), strict=True):
            torch.testing.assert_close(both[index], one)


# -- messages --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overheard(PeFLL):
    """PeFLL with everything written down that crosses the wire."""

    to_server: ClassVar[list] = []
    to_parties: ClassVar[list] = []

    def party(self, me, shared, own):
        received, steps = shared, super().party(me, shared, own)
        self.to_parties.append(received)
        upload = next(steps)
        while True:
            reply = yield upload
            self.to_parties.append(reply)
            try:
                upload = steps.send(reply)
            except StopIteration as end:
                return end.value

    def server(self, shared, uploads):
        steps = super().server(shared, Heard(uploads, self.to_server))
        reply = next(steps)
        while True:
            uploads = yield reply
            try:
                reply = steps.send(Heard(uploads, self.to_server))
            except StopIteration as end:
                return end.value


class Heard:
    """Uploads that note what the server takes from them."""

    def __init__(self, uploads, notes):
        self._uploads, self._notes = uploads, notes
        self.sampled, self.parties = uploads.sampled, uploads.parties
        self.present = uploads.present

    def mean(self, by_examples=False):
        self._notes.append(self._uploads.mean(by_examples).clone())
        return self._uploads.mean(by_examples)

    def stack(self):
        self._notes.append(self._uploads.stack().clone())
        return self._uploads.stack()


def overhear(data, model, rounds=1, **fields):
    """What the server took and what the parties got in the rounds of a run."""
    algorithm = Overheard(**{**SMALL, "local_steps": 3, **fields})
    with ar.LocalEngine(algorithm, data, model, plan=Plan("one", 100, 1)) as engine:
        Overheard.to_server.clear(), Overheard.to_parties.clear()  # after the look before the run
        for t in range(rounds):
            engine.round(t, range(data.training))
        return list(Overheard.to_server), list(Overheard.to_parties), engine.shared


@pytest.mark.parametrize("kind", ["examples", "labels"])
def test_messages_hold_what_the_paper_says_and_nothing_else(kind):
    data, model = classification(4, 3, 3, 0), network(3, 3)
    algorithm = PeFLL(embedding=kind, **SMALL)
    phi, h = networks(algorithm, model, data)
    e, p, q = algorithm.size, model.p, phi.spec.size
    with ar.LocalEngine(algorithm, data, model, plan=ONE) as engine:
        anatomy = engine.anatomy
        outcome = engine.round(0, range(3))
        traffic = (outcome.up, outcome.down)

    assert [tuple(m.upload.shape) for m in anatomy.messages] == [(e,), (p,), (q,)]
    assert [leaves(m.reply) and tuple(m.reply.shape) for m in anatomy.messages] == [(p,), (e,), []]
    assert tuple(anatomy.sent.shape) == (q,)
    assert traffic == (3 * 8 * (e + p + q), 3 * 8 * (q + p + e))
    assert "stack" not in anatomy.messages[2].asks  # of eta_v's gradients a sum is enough
    sizes = [leaf.numel() for m in anatomy.messages for leaf in leaves((m.upload, m.reply))]
    assert h.spec.size not in [*sizes, anatomy.sent.numel()]
    asked = anatomy.personal
    assert [(tuple(m.upload.shape), tuple(m.reply.shape)) for m in asked] == [((e,), (p,))]


def test_the_wire_carries_what_the_anatomy_says():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    to_server, to_parties, shared = overhear(data, model, rounds=2)
    phi, _ = networks(PeFLL(**SMALL), model, data)
    e, p, q = 4, model.p, phi.spec.size

    assert [tuple(x.shape) for x in to_server] == [(4, e), (4, p), (q,)] * 2
    assert [tuple(x.shape) for x in to_parties] == [(q,), (4, p), (4, e)] * 2
    told = {float(number) for x in (*to_server, *to_parties) for number in x.flatten()}
    assert not told & {float(number) for number in shared.eta_h}


def test_the_server_sees_a_partys_points_through_embedding_and_difference_alone():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    x = torch.randn(data.x.shape, generator=torch.Generator().manual_seed(5)).double()
    other = replace(data, x=x)
    moving = {"embedding": "labels", "batch_size": None}

    seen, _, shared = overhear(data, model, lr=0.0, **moving)
    again, _, same = overhear(other, model, lr=0.0, **moving)  # no step: nothing shows of x
    for a, b in zip(seen, again, strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(leaves(shared), leaves(same), strict=True))
    assert not seen[1].any() and not seen[2].any()

    seen, _, _ = overhear(data, model, lr=0.1, **moving)
    again, _, _ = overhear(other, model, lr=0.1, **moving)
    assert torch.equal(seen[0], again[0])  # labels alone
    assert not torch.equal(seen[1], again[1])  # local steps know x

    relabelled = replace(data, y=(data.y + 1) % 3)
    hidden, _, _ = overhear(relabelled, model, lr=0.1, **moving)
    assert not torch.equal(seen[0], hidden[0]) and not torch.equal(seen[1], hidden[1])


@pytest.mark.parametrize("kind", ["examples", "labels"])
def test_the_order_of_a_partys_points_does_not_show(kind):
    data, model = classification(4, 3, 3, 0), network(3, 3)
    rows = torch.cat([torch.arange(a, b).flip(0) for a, b in zip(
        data.offsets[:-1].tolist(), data.offsets[1:].tolist(), strict=True)])  # fmt: skip
    turned = replace(data, x=data.x[rows], y=data.y[rows])
    whole = {"embedding": kind, "batch_size": None}
    seen, _, _ = overhear(data, model, **whole)
    again, _, _ = overhear(turned, model, **whole)

    for a, b in zip(seen, again, strict=True):
        torch.testing.assert_close(a, b)


# -- a model for a party that was never seen -------------------------------------------------------

WORK = {"local_steps": 5, "batch_size": 8, "server_lr": 1e-3, **SMALL}


def test_a_new_party_has_a_model_in_three_messages_without_a_gradient():
    run = ar.simulate(PeFLL(**WORK), DATA, "logistic", rounds=3, workers=1)
    phi, _ = networks(PeFLL(**WORK), run.task_model, DATA)
    p, q = run.task_model.p, phi.spec.size

    assert run.joining.messages == 3
    assert run.joining.gradients == 0
    assert not run.making["gradients"].any()
    assert (run.joining.up, run.joining.down) == (4 * 4, 4 * (q + p))
    assert run.to_json()["personal"]["unseen"] is not None


def test_a_model_is_made_of_training_points_alone():
    test_rows = torch.from_numpy(DATA._row_is_test)
    garbage = replace(
        DATA,
        x=torch.where(test_rows[:, None], 100.0, DATA.x),
        y=torch.where(test_rows, 1 - DATA.y, DATA.y),
    )
    model = ar.Model(nn.Linear(13, 2))
    found, tested = [], []
    for data in (DATA, garbage):
        with ar.LocalEngine(PeFLL(**WORK), data, model, plan=ONE) as engine:
            for t in range(2):
                engine.round(t, range(data.training))
            found.append(engine.evaluate(own=True, split="train").parties["loss"])
            tested.append(engine.evaluate(own=True).parties["loss"])

    assert torch.equal(*found)
    assert bool((tested[0] != tested[1]).all())  # the garbage was there


def test_a_model_is_what_the_networks_make_of_all_training_points():
    algorithm, model = PeFLL(**WORK), ar.Model(nn.Linear(13, 2))
    phi, h = networks(algorithm, model, DATA)
    with ar.LocalEngine(algorithm, DATA, model, plan=PLANS[1]) as engine:
        for t in range(2):
            engine.round(t, range(DATA.training))
        scores, shared = engine.evaluate(own=True), engine.shared
        for k in range(DATA.parties):
            me = LocalParty(DATA, model, model.one, np.array([k]), 0, 0, ())
            v = standardised(phi(shared.eta_v, me.examples()), shared.scale)
            theta = h(shared.mean_h, v[None])[0]
            expected = float(engine.evaluate(theta).parties["loss"][k])
            assert float(scores.parties["loss"][k]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_own_models_do_not_depend_on_the_plan(plan):
    runs = [
        ar.simulate(PeFLL(**WORK), DATA, "logistic", rounds=5, plan=each)
        for each in (PLANS[0], plan)
    ]

    for metric, values in runs[0].parties.items():
        torch.testing.assert_close(runs[1].parties[metric], values, rtol=1e-4, atol=1e-5)


# -- going on --------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_servers_state():
    data, model = classification(4, 3, 3, 0), network(3, 3)

    def engine():
        return ar.LocalEngine(PeFLL(**WORK), data, model, plan=ONE)

    with engine() as first, engine() as second:
        for t in range(2):
            first.round(t, range(4))
        second.restore(first.state())
        for t in range(2, 4):
            first.round(t, range(4))
            second.round(t, range(4))

        for a, b in zip(leaves(first.shared), leaves(second.shared), strict=True):
            assert torch.equal(a, b)
        assert float(first.shared.moments.t) == 4


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    options = {"rounds": 6, "plan": ONE, "checkpoint_seconds": 0.0}

    def go(folder, on_round=None):
        algorithm, out = PeFLL(**WORK), tmp_path / folder
        return ar.simulate(algorithm, DATA, "logistic", out=out, on_round=on_round, **options)

    def die(run):
        if run.done == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)  # a forked process has none of its parent's threads
        try:
            go("killed", die)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    whole, resumed = go("whole"), go("killed")

    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert any(event.kind == "resumed" for event in resumed.events)
    assert torch.equal(whole.vector, resumed.vector)
    for metric, values in whole.parties.items():
        assert torch.equal(values, resumed.parties[metric])
    assert whole.spent == resumed.spent


# -- what cannot be --------------------------------------------------------------------------------


def test_a_party_that_diverges_is_left_out():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    x = data.x.clone()
    x[data.offsets[1] : data.offsets[2]] *= 1e200
    algorithm = PeFLL(embedding="labels", lr=1.0, **SMALL)
    with ar.LocalEngine(algorithm, replace(data, x=x), model, plan=ONE) as engine:
        outcome = engine.round(0, range(4))

        assert outcome.diverged.tolist() == [1] and len(outcome.arrived) == 3
        assert all(bool(leaf.isfinite().all()) for leaf in leaves(engine.shared))


def extreme(data, party):
    """The same data, with one party's numbers so large that their squares are not finite."""
    x = data.x.clone()
    x[data.offsets[party] : data.offsets[party + 1]] *= 1e25
    return replace(data, x=x)


def test_a_party_with_extreme_numbers_does_not_spoil_the_others_models():
    data, model = (
        classification(6, 3, 3, 0, dtype=torch.float32),
        ar.Model(network(3, 3).module.float()),
    )
    others = [0, 2, 3, 4, 5]
    algorithm = PeFLL(**SMALL)
    with (
        ar.LocalEngine(algorithm, extreme(data, 1), model, plan=ONE) as engine,
        ar.LocalEngine(algorithm, data, model, plan=ONE) as usual,
    ):
        for t in range(3):
            outcome = engine.round(t, range(6))
            usual.round(t, others)

            assert set(outcome.diverged) <= {1}
        assert all(bool(leaf.isfinite().all()) for leaf in leaves(engine.shared))
        scale, without = engine.shared.scale, usual.shared.scale
        own = engine.evaluate(own=True, split="train").parties["loss"]

        ratio = scale.sd / without.sd
        assert float(ratio.min()) > 0.3 and float(ratio.max()) < 3
        assert float(((scale.mean - without.mean) / without.sd).abs().max()) < 1
        assert bool(own[others].isfinite().all())


@pytest.mark.parametrize("factor", [1e3, 1e25])
def test_a_round_of_extreme_embeddings_alone_moves_the_scale_a_little(factor):
    scale = Scale(torch.full((5,), 3.0), torch.full((5,), 0.25))
    found = scale.renewed(factor * torch.ones(1, 5), torch.ones(1))

    torch.testing.assert_close(found.mean, scale.mean + 0.05 * 10 * scale.sd)
    assert bool((found.sd < 3 * scale.sd).all())


def test_embeddings_of_ordinary_parties_are_standardised_as_they_are():
    random = torch.Generator().manual_seed(0)
    v = torch.randn(20, 5, generator=random) * torch.rand(20, 1, generator=random) + 3
    scale = Scale(torch.full((5,), 3.1), torch.full((5,), 0.3))
    found = scale.renewed(v, torch.ones(1))

    assert torch.equal(found.mean, torch.lerp(scale.mean, v.mean(dim=0), 0.05))
    spread = ((v - found.mean) ** 2).mean(dim=0)
    assert torch.equal(found.variance, torch.lerp(scale.variance, spread, 0.05))


@pytest.mark.parametrize("kind", ["examples", "labels"])
def test_targets_of_several_labels_are_refused_in_a_sentence(kind):
    symbols = [torch.randint(0, 7, (4, 5)) for _ in range(3)]
    data = ar.Federation.from_arrays(symbols, symbols, test=0.0, task="text", classes=7)
    with pytest.raises(ar.ArchipelError, match=r"one class label of an example.* \[5\]: take"):
        ar.simulate(PeFLL(embedding=kind), data, "char_lstm", rounds=1, plan=ONE)


@pytest.mark.parametrize("kind", ["examples", "labels"])
def test_targets_that_are_not_classes_are_refused_in_a_sentence(kind):
    model = ar.Model(nn.Linear(3, 1).double(), "squared_error")
    with pytest.raises(ar.ArchipelError, match="class labels and the task has none"):
        ar.LocalEngine(PeFLL(embedding=kind), regression(3, 3, 0), model, plan=ONE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0),
        ("size", 4.5),
        ("hidden", 0),
        ("clip_at", 0.0),
        ("clip_at", -1.0),
        ("server_lr", -1e-3),
        ("clip_at", float("nan")),
        ("server_lr", float("inf")),
        ("weight_decay", -0.1),
        ("averaging", 0.0),
        ("averaging", 1.5),
        ("embedding_lr", -0.1),
        ("embedding", 3),
    ],
)
def test_bad_settings_are_told_in_a_sentence(field, value):
    data, model = classification(3, 3, 3, 0), network(3, 3)
    with pytest.raises(ar.ArchipelError, match=f"{field} (= |'3')"):
        ar.LocalEngine(replace(PeFLL(), **{field: value}), data, model, plan=ONE)
