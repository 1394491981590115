"""The private door: what an algorithm is given of records, counted, clipped, sampled and noised."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes
from archipel.models.clipped import clipping
from archipel.privacy.door import Door, Noised
from archipel.privacy.promise import Privacy
from archipel.privacy.record import asked, uses_of
from archipel.privacy.release import Poisson
from problems import classification, learn, network

few = settings(max_examples=12, deadline=None)
TINY = 1e-12  # noise that is none, to float tolerance
WIDE = 1e6  # a clip that clips nothing
WAYS = {}  # to clip, by model


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


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
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
