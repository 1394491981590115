"""The private door: what an algorithm is given of records, counted, clipped, sampled and noised."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes, clock_of
from archipel.models.clipped import clipping
from archipel.models.private import window
from archipel.privacy.door import Door, Noised
from archipel.privacy.promise import Privacy
from archipel.privacy.record import asked, uses_of
from archipel.privacy.release import Poisson
from problems import classification, learn, network

few = settings(max_examples=12, deadline=None)
TINY = 1e-12  # noise that is none, to float tolerance
WIDE = 1e6  # a clip that clips nothing
WAYS = {}  # to clip, by model
MODELS = {}  # by hidden layers


def party(data, model, ids, lead=None, t=0, **options):
    way = WAYS.get(model)
    if way is None:
        way = WAYS[model] = clipping(model, data.x[:8].nan_to_num(), data.y[:8])
    lead = (len(ids),) if lead is None else lead
    return LocalParty(data, model, model.one, np.array(ids), 0, t, lead, clipping=way, **options)


def door(me, clip=WIDE, noise=0.0):
    return Door(me, Noised(clip, dict.fromkeys(me.ids.tolist(), noise)), "Mine")


def large(n, seed=0):
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.standard_normal((n, 4)))
    return ar.Federation.from_arrays([x], [torch.from_numpy(random.integers(0, 3, n))], test=0.0)


# -- gradients -------------------------------------------------------------------------------------


@few
@given(parties=st.integers(1, 5), seed=st.integers(0, 99), alone=st.booleans())
def test_without_noise_and_clip_a_gradient_over_all_records_is_the_plain_one(parties, seed, alone):
    data, model = classification(parties, 4, 3, seed), network(4, 3, seed)
    ids, lead = ([0], ()) if alone else (list(range(parties)), None)
    me = party(data, model, ids, lead)
    for batch in (None, "all"):
        private = door(me)
        drawn = None if batch is None else private.batch(None)
        got, expected = private.grad(model.w, drawn), me.grad(model.w)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@few
@given(
    seed=st.integers(0, 99),
    clip=st.sampled_from([1e-3, 0.3, 5.0]),
    size=st.sampled_from([1, 3, 0.4, None]),
    wild=st.sampled_from([0.0, 1e8, np.inf, np.nan]),
)
def test_one_record_moves_a_gradient_by_at_most_its_clip(seed, clip, size, wild):
    """Also one that was made to: neighbours have the same samples, but for that record."""
    data, model = classification(1, 4, 3, seed), network(4, 3, seed)
    other = data.x.clone()
    other[0] = other[0] * 1e4 if wild == 0 else wild
    them = ar.Federation(other, data.y, data.offsets, data.test_from, 1, data.task, 3, scan=False)
    found = []
    for each in (data, them):
        private = door(party(each, model, [0], ()), clip=clip)
        found.append(private.grad(model.w, private.batch(size)))
    q = {None: 1.0, 0.4: 0.4}.get(size) or min(1.0, size / int(data.n[0]))

    assert float((found[0] - found[1]).norm()) <= 2 * clip / (q * int(data.n[0])) * (1 + 1e-6)


def test_noise_has_the_deviation_that_is_planned_whatever_is_sampled():
    data, model = large(50), network(4, 3)
    clip, noise, size = 0.7, 1.3, 10
    drawn = []
    for t in range(400):
        private = door(party(data, model, [0], (), t), clip, noise)
        quiet = door(party(data, model, [0], (), t), clip, 0.0)
        batches = private.batch(size), quiet.batch(size)
        drawn.append(private.grad(model.w, batches[0]) - quiet.grad(model.w, batches[1]))
    values = torch.cat(drawn).numpy()

    deviation = clip * noise / size
    assert stats.kstest(values / deviation, "norm").pvalue > 1e-4
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(values))
    assert low < (values**2).sum() / deviation**2 < high


def test_two_gradients_on_one_batch_have_noise_of_their_own():
    data, model = large(20), network(4, 3)
    private = door(party(data, model, [0], ()), 1.0, 1.0)
    batch = private.batch(5)
    assert not torch.equal(private.grad(model.w, batch), private.grad(model.w, batch))
    assert private.used[5].gradients == 2 and private.used[5].draws.tolist() == [1]


def test_between_institutions_noise_and_samples_are_of_secrets_and_on_a_grid():
    data, model = large(200), network(4, 3)
    found = []
    for _ in range(2):
        me = party(data, model, [0], (), private=True)
        private = door(me, 1.0, 1.0)
        found.append((private.grad(model.w), private.batch(40), me.sampled(np.array([0.2]), 7)))
        again = door(party(data, model, [0], (), private=True, secrets=me.secrets), 1.0, 1.0)
        assert torch.equal(again.grad(model.w), found[-1][0])  # after a crash
    assert not torch.equal(found[0][0], found[1][0])
    assert not np.array_equal(found[0][2].rows.numpy(), found[1][2].rows.numpy())


# -- samples ---------------------------------------------------------------------------------------


def test_every_record_is_in_a_sample_by_itself_with_its_chance():
    data, model = large(40), network(4, 3)
    times, q = 4000, 0.15
    inside = np.zeros((times, 40), bool)
    for draw in range(times):
        batch = party(data, model, [0], (), draw // 8).sampled(np.array([q]), draw % 8)
        inside[draw, batch.rows[0][batch.weights[0] > 0].numpy()] = True
    counts = inside.sum(axis=0)
    chi2 = ((counts - times * q) ** 2 / (times * q * (1 - q))).sum()
    assert chi2 < stats.chi2.ppf(1 - 1e-4, 40)
    sizes = np.bincount(inside.sum(axis=1), minlength=41)  # binomial, and not of a fixed size
    expected = times * stats.binom.pmf(np.arange(41), 40, q)
    some = expected > 5
    chi2 = ((sizes[some] - expected[some]) ** 2 / expected[some]).sum()
    assert chi2 < stats.chi2.ppf(1 - 1e-4, some.sum())
    together = (inside[:, 0] & inside[:, 1]).sum()
    assert stats.binomtest(int(together), times, q * q).pvalue > 1e-4


def test_a_gradient_is_over_the_expected_size_and_tells_not_how_many_were_drawn():
    data, model = large(30), network(4, 3)
    found = []
    for t in range(600):
        private = door(party(data, model, [0], (), t))
        batch = private.batch(6)
        assert batch.rows.numel() == batch.weights.numel() == 0
        found.append(private.grad(model.w, batch))
    mean = torch.stack(found).mean(dim=0)
    expected = party(data, model, [0], ()).grad(model.w)
    error = torch.stack(found).std(dim=0) / len(found) ** 0.5
    assert float(((mean - expected) / error).abs().max()) < 5


# -- steps that are taken at once ------------------------------------------------------------------


def unequal(sizes, seed=0):
    random = np.random.default_rng(seed)
    x = [torch.from_numpy(random.standard_normal((n, 4))) for n in sizes]
    return ar.Federation.from_arrays(
        x, [torch.from_numpy(random.integers(0, 3, n)) for n in sizes], test=0.0
    )


def chain(hidden):
    """Dense layers on four features with three classes, and no bias where there are many."""
    torch.manual_seed(0)
    sizes, layers = [4, *hidden, 3], []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [nn.Tanh()] * (i > 0) + [nn.Linear(inputs, outputs, bias=len(sizes) < 4)]
    return ar.Model(nn.Sequential(*layers).double())


def one_by_one(me):
    me.fuses = lambda work, only: False
    return me


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=5),
    hidden=st.sampled_from([(), (9,), (30, 5)]),
    size=st.sampled_from([1, 2, 7, 0.3, None]),
    epochs=st.integers(1, 2),
    shifted=st.booleans(),
    pull=st.sampled_from([0.0, 0.2]),
    block=st.sampled_from([1, 2, 99]),
    swept=st.booleans(),
    seed=st.integers(0, 99),
)
def test_steps_at_once_are_those_one_by_one(
    sizes, hidden, size, epochs, shifted, pull, block, swept, seed
):
    data = unequal(sizes, seed)
    model = MODELS.get(hidden) or MODELS.setdefault(hidden, chain(hidden))
    lead = (2, len(sizes)) if swept else (len(sizes),)
    lr = torch.tensor([0.2, 0.5]).double().view(2, 1, 1) if swept else 0.3
    work = ar.FedAvg(lr, local_epochs=epochs, batch_size=size)
    random = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(*lead, model.p, generator=random).double() for _ in range(3)]
    found = []
    for change in (lambda me: me, one_by_one):
        me = change(party(data, model, range(len(sizes)), lead, seed, block=block))
        private = door(me, 0.6, 0.0)
        end = private.descend(
            vectors[0], work, vectors[1] if shifted else None, pull, vectors[2] if pull else None
        )
        after = private.grad(end.w, private.batch(3))
        found.append((end, after, private.used, me.gradients))

    for one, other in zip(*(each[0] for each in found), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-6, atol=1e-6)  # the next sample
    assert found[0][3] == found[1][3]
    for key, used in found[1][2].items():
        assert found[0][2][key].gradients == used.gradients
        assert (found[0][2][key].draws == used.draws).all()


@pytest.mark.parametrize("size", [1, 2, None], ids=["windows", "short windows", "steps"])
def test_noise_of_steps_at_once_is_that_of_steps_one_by_one(size):
    """Of many parties with the same records: where they end, with samples of their own."""
    m = 4000
    one = unequal([4])
    data = ar.Federation.from_arrays([one.x] * m, [one.y] * m, test=0.0)
    model, work = network(4, 3, hidden=6), ar.FedAvg(2.0, local_steps=4, batch_size=size)
    assert window(clipping(model, data.x[:8], data.y[:8]), size) == {1: 17, 2: 8, None: 1}[size]
    first, second = (
        door(change(party(data, model, range(m))), 1.0, 0.4).descend(model.w, work).w.numpy()
        for change in (lambda me: me, one_by_one)
    )
    assert not np.array_equal(first, second)
    p = [stats.ks_2samp(a, b).pvalue for a, b in zip(first.T, second.T, strict=True)]
    assert min(p) > 1e-4 / len(p)
    one, other = (np.cov(each.T) for each in (first, second))
    error = np.sqrt(2 * (np.outer(np.diag(one), np.diag(one)) + one**2) / m)
    assert float((np.abs(one - other) / error).max()) < stats.norm.isf(5e-5 / one.size) * 1.5


@pytest.mark.parametrize("kept", ["private", "momentum", "only", "correlated"])
def test_other_steps_are_taken_one_by_one(kept, monkeypatch):
    def refused(*given):
        raise AssertionError("at once")

    monkeypatch.setattr(LocalParty, "descend_privately", refused)
    data, model = unequal([5, 3]), network(4, 3)
    me = party(data, model, [0, 1], private=kept == "private")
    optimiser = ar.SGD(momentum=0.9) if kept == "momentum" else ar.SGD()
    only = torch.ones(model.p, dtype=torch.bool) if kept == "only" else None
    private = door(me, 1.0, 1.0)
    if kept == "correlated":
        monkeypatch.setattr(Door, "_drawn", refused)
        private._orders = []
        with pytest.raises(AssertionError, match="at once"):
            private.descend(model.w, ar.FedAvg(0.1, batch_size=2))
        return
    work = ar.FedAvg(0.1, local_epochs=1, batch_size=2, optimiser=optimiser)
    end = private.descend(model.w, work, only=only)
    assert bool(end.w.isfinite().all())
    with pytest.raises(AssertionError, match="at once"):
        door(party(data, model, [0, 1])).descend(model.w, ar.FedAvg(0.1, batch_size=2))


def test_more_steps_than_planned_are_refused_before_the_first():
    data, model = unequal([5, 3]), network(4, 3)
    me = party(data, model, [0, 1])
    noised = Noised(1.0, {0: 1.0, 1: 1.0}, {0: {2: (3, 1)}, 1: {2: (1, 1)}})  # party 1 takes 2
    with pytest.raises(ArchipelError, match="asks for more gradients in round 1"):
        Door(me, noised, "Mine").descend(model.w, ar.FedAvg(0.1, batch_size=2))
    assert me.gradients == 0


# -- what is refused -------------------------------------------------------------------------------


def test_records_and_losses_do_not_pass():
    data, model = classification(2, 4, 3, 0), network(4, 3)
    me = party(data, model, [0, 1])
    private = door(me)
    for call, text in (
        (lambda: private.examples(), "Mine asks for me.examples"),
        (lambda: private.loss(model.w), "Mine asks for me.loss"),
        (lambda: private.grad(model.w, me.batch(2)._replace(draw=torch.tensor([5, 5]))), "draw"),
    ):
        with pytest.raises(ArchipelError, match=text):
            call()
    assert not hasattr(private, "data") and not hasattr(private, "sampled")


@dataclass(frozen=True)
class Greedy(ar.FedAvg):
    """Asks for more from its third round on."""

    def party(self, me, w, own):
        for _ in range(me.round):
            me.grad(w, me.batch(2))
        return super().party(me, w, own)


def test_more_than_was_planned_is_refused():
    data, model = classification(2, 4, 3, 0), network(4, 3)
    with pytest.raises(ArchipelError, match="asks for more gradients in round 2"):  # planned for 1
        learn(Greedy(0.1, batch_size=2), data, model, 3, privacy=Privacy("record", noise=1.0))


# -- what is counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (ar.FedAvg(0.1, local_epochs=2, batch_size=3), {3: (8, 1)}),
        (ar.FedAvg(0.1, local_steps=5, batch_size=0.5), {0.5: (5, 1)}),
        (ar.Scaffold(0.1, local_steps=4, batch_size=None), {None: (4, 1)}),
        (ALGORITHMS["fedsgd"](0.1), {None: (1, 1)}),
        (ALGORITHMS["pfedme"](0.05, local_steps=2, batch_size=3), {3: (2, 5)}),
        (ALGORITHMS["perfedavg"](0.1, local_steps=2, batch_size=3), {3: (6, 2)}),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, dict) else "",
)
def test_what_a_round_asks_of_ten_records(algorithm, expected):
    data, model = large(10), network(4, 3)
    found = asked(Boxes(algorithm), party(data, model, [0], ()), model.w, 5)
    draws = {size: count[0] for size, count in found.items()}
    assert draws == {size: count[0] for size, count in expected.items()}
    if type(algorithm).__name__ in ("FedAvg", "Scaffold", "FedSGD"):
        assert found == expected
    for use in uses_of(found, 10):
        assert use.sampling is None or isinstance(use.sampling, Poisson)


def test_the_budget_is_kept_by_every_party_whatever_its_size():
    data, model = classification(6, 4, 3, 1), network(4, 3)
    promise = Privacy("record", epsilon=3.0, delta=1e-3)
    with ar.LocalEngine(
        ar.FedAvg(0.1, batch_size=2), data, model, privacy=promise, rounds=5
    ) as engine:
        kept = engine.kept
        assert len(set(kept.noise.values())) > 1  # smaller parties need more
        spent = kept.spent(dict.fromkeys(kept.uses, 5))
        assert all(2.9 < epsilon <= 3.0 for epsilon in spent.values())
        fewer = kept.spent(dict.fromkeys(kept.uses, 2))
        assert all(fewer[k] < spent[k] for k in spent)
    assert kept.spent({0: 0}) == {0: 0.0}


# -- every algorithm, every way to run -------------------------------------------------------------


SETTINGS = {"lr": 0.05, "batch_size": 3, "local_steps": 2, "local_epochs": 1}


@pytest.mark.parametrize(
    "name", [n for n in sorted(ALGORITHMS) if clock_of(ALGORITHMS[n]()) == "rounds"]
)
def test_an_algorithm_is_private_or_refused_in_a_sentence(name):
    data = classification(4, 4, 3, 3)
    kind = ALGORITHMS[name]
    fields = {k: v for k, v in SETTINGS.items() if k in kind.__dataclass_fields__}
    topology = None if hasattr(kind, "server") else "ring"
    options = {} if topology is None else {"topology": topology}
    try:
        run = ar.simulate(
            kind(**fields), data, network(4, 3), rounds=8, evaluate_every=8, workers=1,
            privacy=Privacy("record", noise=2.0, delta=1e-2), **options,
        )  # fmt: skip
    except ArchipelError as error:
        said = {
            "pefll": "PeFLL asks for me.examples",
            "pfedhn": "PFedHN asks the server",
            "l2gd": "L2GD asks more of the records in some rounds",
        }[name]
        assert str(error).startswith(f'privacy.unit = "record": {said}')
        return
    assert run.scorecard.privacy.promise.epsilon > 0
    assert name not in ("pefll", "pfedhn", "l2gd")


@pytest.mark.parametrize("noise", [TINY, 0.5])
@pytest.mark.parametrize(
    "algorithm",
    [
        ar.FedAvg(0.1, local_epochs=2, batch_size=3),
        ar.Scaffold(0.1, local_steps=3, batch_size=4),
        ALGORITHMS["pfedme"](0.05, local_steps=2, batch_size=3),
    ],
    ids=lambda each: type(each).__name__,
)
def test_stacked_looped_and_in_two_workers_it_is_the_same(algorithm, noise):
    data, model = classification(5, 4, 3, 2), network(4, 3)
    promise = Privacy("record", noise=noise, clip=0.8)
    plans = [ar.Plan("one", 1, 1), ar.Plan("stacked", 8, 1), ar.Plan("stacked", 2, 2)]
    found = [learn(algorithm, data, model, 3, plan, privacy=promise) for plan in plans]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-8)
