# SPDX-License-Identifier: Apache-2.0
"""Correlated noise in studies: records in an order, noise that no round uses twice, what it costs.

The noise itself is tested in `test_correlated.py`, attacks on it in `test_correlated_audit.py`.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.core import Batch
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.exchange.boxes import clock_of
from archipel.privacy.accounting import epsilon
from archipel.privacy.correlated import Participation, State, Tree
from archipel.privacy.promise import Privacy
from archipel.privacy.record import batches_of
from archipel.privacy.release import Gaussian, Release
from archipel.tree import leaves
from problems import classification, learn, linear, network

TINY, WIDE = 1e-12, 1e6
KINDS = ["banded", "banded:3", "tree"]
PLANS = [ar.Plan("one", 1, 1), ar.Plan("stacked", 8, 1), ar.Plan("stacked", 2, 2)]


def engine_of(algorithm, data, model, promise, rounds, plan=PLANS[0], **options):
    return ar.LocalEngine(
        algorithm, data, model, plan=plan, privacy=promise, rounds=rounds, **options
    )


def trained(algorithm, data, model, promise, rounds, plan=PLANS[0], **options):
    with engine_of(algorithm, data, model, promise, rounds, plan, **options) as engine:
        for t in range(rounds):
            engine.round(t, range(data.training))
        return engine.vector().clone()


def noise_in(tree):
    """The states of noise in a state."""
    if isinstance(tree, State):
        return [tree]
    return [found for part in tree for found in noise_in(part)] if isinstance(tree, tuple) else []


# -- records in an order ---------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4), size=st.integers(1, 9))
def test_every_record_is_once_in_an_epoch_and_at_the_same_place_in_all(sizes, size):
    xs = [torch.zeros(n, 2).double() for n in sizes]
    data = ar.Federation.from_arrays(xs, [torch.zeros(n).double() for n in sizes], test=0.0)
    model = linear(2)
    parts = np.array([batches_of(size, n) for n in sizes])
    places = []
    for t in (0, 3):
        ids = np.arange(len(sizes))
        me = LocalParty(data, model, model.one, ids, 0, t, (len(sizes),))
        found = {}
        for step in range(int(parts.max())):
            batch = me.dealt(parts, np.where(step < parts, step, parts), step)
            for row in batch.rows[batch.weights > 0].tolist():
                assert row not in found
                found[row] = step
        lengths = Counter((int(np.searchsorted(data.offsets, r, "right")), s)
                          for r, s in found.items())  # fmt: skip
        assert len(found) == sum(sizes) and max(lengths.values()) <= size
        places.append(found)
    assert places[0] == places[1]


def test_without_noise_it_is_descent_along_the_order_whatever_rounds_are_missed():
    data, model = classification(3, 4, 3, 1), network(4, 3)
    algorithm = ar.FedAvg(0.1, local_steps=3, batch_size=2)
    promise = Privacy("record", noise=TINY, clip=WIDE, correlated="banded")
    cohorts = [[0, 1, 2], [1], [0, 2], [0, 1, 2]]
    with engine_of(algorithm, data, model, promise, len(cohorts)) as engine:
        for t, cohort in enumerate(cohorts):
            engine.round(t, cohort)
        got = engine.vector()

    w, steps = model.w.clone(), Counter()
    for cohort in cohorts:
        ends = []
        for k in cohort:
            me = LocalParty(data, model, model.one, np.array([k]), 0, 0, ())
            n = int(data.n[k])
            parts, x = batches_of(2, n), w
            for _ in range(3):
                batch = me.dealt(np.array([parts]), np.array([steps[k] % parts]), 0)
                x = x - 0.1 * me.grad(x, Batch(batch.rows, batch.weights * parts / n, batch.draw))
                steps[k] += 1
            ends.append(n * (x - w))
        w = w + torch.stack(ends).sum(dim=0) / sum(int(data.n[k]) for k in cohort)
    torch.testing.assert_close(got, w, rtol=1e-6, atol=1e-6)


# -- the same on every engine, and again -----------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        ar.FedAvg(0.1, local_steps=3, batch_size=None, optimiser=ar.SGD(momentum=0.5)),
        ar.FedSGD(0.1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_one_coefficient_is_independent_noise(algorithm):
    """Step by step: plain steps that an engine takes at once have other noise."""
    data, model = classification(4, 4, 3, 2), network(4, 3)
    for unit in ("record", "party"):
        found = [
            trained(algorithm, data, model, Privacy(unit, noise=0.7, correlated=kind), 3)
            for kind in (None, "banded:1")
        ]
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "algorithm",
    [
        ar.FedAvg(0.1, local_epochs=2, batch_size=3),
        ar.Scaffold(0.1, local_steps=3, batch_size=4),
        ar.FedOpt(0.1, batch_size=3, server_optimiser="adam", server_lr=0.01),
    ],
    ids=lambda each: type(each).__name__,
)
def test_stacked_looped_and_in_two_workers_it_is_the_same(algorithm, kind, unit):
    data, model = classification(5, 4, 3, 2), network(4, 3)
    promise = Privacy(unit, noise=0.5, clip=0.8, correlated=kind)
    found = [trained(algorithm, data, model, promise, 3, plan) for plan in PLANS]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("promise", [
    Privacy("record", epsilon=5.0, delta=1e-3, correlated="banded"),
    Privacy("record", epsilon=5.0, delta=1e-3, correlated="tree"),
    Privacy("party", epsilon=9.0, delta=1e-3, correlated="tree"),
    Privacy("party", epsilon=9.0, delta=1e-3, clip="adaptive"),
], ids=lambda each: f"{each.unit} {each.correlated}")  # fmt: skip
def test_a_sweep_is_its_runs_and_what_is_resumed_goes_on_bit_for_bit(promise):
    data, model, rounds = classification(4, 4, 3, 2), network(4, 3), 5
    algorithm = ar.FedAvg(0.1, batch_size=2)
    whole = trained(algorithm, data, model, promise, rounds)
    with engine_of(algorithm, data, model, promise, rounds) as engine:
        for t in range(2):
            engine.round(t, range(4))
        state = engine.state()
    with engine_of(algorithm, data, model, promise, rounds) as engine:
        engine.restore(state)
        for t in range(2, rounds):
            engine.round(t, range(4))
        assert torch.equal(engine.vector(), whole)
    options = {"rounds": rounds, "workers": 1, "privacy": promise, "plan": PLANS[1]}
    swept = ar.sweep(algorithm, data, model, {"lr": [0.3, 0.1]}, **options)
    torch.testing.assert_close(swept[1].vector, whole, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "name", [n for n in sorted(ALGORITHMS) if clock_of(ALGORITHMS[n]()) == "rounds"]
)
def test_an_algorithm_has_correlated_noise_or_is_refused_in_a_sentence(name):
    kind = ALGORITHMS[name]
    given = {"lr": 0.05, "batch_size": 3, "local_steps": 2, "local_epochs": 1}
    fields = {k: v for k, v in given.items() if k in kind.__dataclass_fields__}
    options = {} if hasattr(kind, "server") else {"topology": "ring"}
    promise = Privacy("record", noise=2.0, delta=1e-2, correlated="banded:2")
    refused = {
        "pefll": 'unit = "record": PeFLL asks for me.examples',
        "pfedhn": 'unit = "record": PFedHN asks the server',
        "l2gd": 'unit = "record": L2GD asks more of the records in some rounds',
        "pfedme": 'correlated = "banded:2": PFedMe takes several gradients of one batch',
        "perfedavg": 'correlated = "banded:2": PerFedAvg takes several gradients of one batch',
    }

    def run():
        return ar.simulate(
            kind(**fields), classification(4, 4, 3, 3), network(4, 3), rounds=4, evaluate_every=4,
            workers=1, privacy=promise, **options,
        )  # fmt: skip

    if name in refused:
        with pytest.raises(ArchipelError, match=rf"^privacy\.{refused[name]}"):
            run()
        return
    told = run().scorecard.privacy.promise
    assert told.epsilon > 0 and told.correlated.startswith("banded:")


# -- noise that no round uses twice ----------------------------------------------------------------


@dataclass(frozen=True)
class Twice:
    """Two messages a round, each a gradient."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        mean = yield me.grad(w)
        return me.grad(w - self.lr * mean), None

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        return w - self.lr * uploads.mean()


@pytest.mark.parametrize("plan", PLANS, ids=lambda each: each.way + str(each.workers))
def test_who_is_lost_in_a_round_never_uses_its_rows_again(plan):
    data, model = classification(4, 4, 3, 0), network(4, 3)
    promise = Privacy("record", noise=1.0, correlated="banded:2")
    with engine_of(Twice(), data, model, promise, 6, plan) as engine:
        engine.round(0, range(4), answers=np.array([2, 2, 1, 2]))  # party 2 after its first message
        (noise,) = noise_in(engine.own_states(range(4)))
        assert noise.t[:, 0].tolist() == [2, 2, 2, 2]
        assert noise.rows[0].abs().sum(dim=1).bool().tolist() == [True, True, False, True]
        before = engine.vector().clone()
        engine.round(1, range(4), answers=np.array([2, 1, 1, 1]), needed=3)  # does not count
        assert torch.equal(engine.vector(), before)
        (noise,) = noise_in(engine.own_states(range(4)))
        assert noise.t[:, 0].tolist() == [4, 4, 4, 4]
        state = engine.state()
        engine.restore(state)
        assert noise_in(engine.own_states(range(4)))[0].t[:, 0].tolist() == [4, 4, 4, 4]


def test_a_round_that_does_not_count_puts_back_all_but_noise():
    data, model = classification(3, 4, 3, 0), network(4, 3)
    promise = Privacy("record", noise=1.0, correlated="tree")
    algorithm = ar.Scaffold(0.1, local_steps=2, batch_size=None)
    with engine_of(algorithm, data, model, promise, 4) as engine:
        engine.round(0, range(3))
        before = leaves(engine.own_states(range(3)))
        engine.round(1, range(3), needed=4)
        after = leaves(engine.own_states(range(3)))
        (noise,) = noise_in(engine.own_states(range(3)))
        assert noise.t[:, 0].tolist() == [4, 4, 4]
        assert torch.equal(before[0], after[0])  # the control variate


def test_noise_is_not_used_beyond_what_was_planned():
    data, model = classification(2, 4, 3, 0), network(4, 3)
    promise = Privacy("record", noise=1.0, correlated="banded")
    with engine_of(ar.FedSGD(0.1), data, model, promise, 2) as engine:
        for t in range(2):
            engine.round(t, range(2))
        with pytest.raises(ArchipelError, match="noise of party 0 was planned for 2 gradients"):
            engine.round(2, range(2))


def test_the_server_keeps_its_noise_and_clip_and_parties_are_told_the_clip_alone():
    data, model = classification(6, 4, 3, 0), network(4, 3)
    for promise, told in (
        (Privacy("party", noise=1.0, correlated="tree"), 1),
        (Privacy("party", noise=1.0, clip="adaptive"), 2),
    ):
        with engine_of(ar.FedAvg(0.1), data, model, promise, 3) as engine:
            engine.round(0, range(6))
            sent = leaves(engine.anatomy.sent)
            assert len(sent) == told and sent[0].shape == model.w.shape
            assert engine.vector().shape == model.w.shape
            assert noise_in(engine.anatomy.sent) == []
            assert len(noise_in(engine.shared)) == (promise.correlated is not None)


@dataclass(frozen=True)
class Odd(ar.FedAvg):
    """Uses its batches in another order than it draws them in."""

    def party(self, me, w, own):
        first, second = me.batch(2), me.batch(2)
        me.grad(w, second)
        return me.grad(w, first), None


def test_batches_are_used_in_their_order():
    data, model = classification(2, 4, 3, 0), network(4, 3)
    promise = Privacy("record", noise=1.0, correlated="banded")
    with pytest.raises(ArchipelError, match="Odd does not take one gradient of each batch"):
        trained(Odd(0.1), data, model, promise, 1)


# -- how much noise, and what it costs -------------------------------------------------------------


@dataclass(frozen=True)
class Alone:
    """Descends along its own records, one at a time, and sends nothing."""

    def init(self, w):
        return w

    def party(self, me, w):
        return w - me.grad(w, me.batch(1))


@pytest.mark.parametrize("kind", ["banded:4", "tree"])
def test_noise_in_the_sum_of_all_gradients_is_as_small_as_is_said(kind):
    """One party per row of a stack, whose records have no gradient."""
    m, rounds = 3000, 8
    x = torch.zeros(4, 2).double()
    data = ar.Federation.from_arrays([x] * m, [torch.zeros(4).double()] * m, test=0.0)
    promise = Privacy("record", noise=0.5, clip=2.0, delta=1e-2, correlated=kind)
    plan = ar.Plan("stacked", m, 1)
    with engine_of(Alone(), data, linear(2), promise, rounds, plan) as engine:
        for t in range(rounds):
            engine.round(t, range(m))
        ends = engine.own_models(range(m)) - linear(2).w
        strategy = engine.kept.uses[0][0].correlation.strategy
    values = ends.reshape(-1).numpy() / (0.5 * 2.0)  # batches of one record: q n = 1
    square = float((values**2).sum() / strategy.variances(rounds)[-1])
    assert stats.chi2.ppf(5e-5, len(values)) < square < stats.chi2.ppf(1 - 5e-5, len(values))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_counted_is_the_sensitivity_of_the_rounds_so_far(kind):
    data, model = classification(5, 4, 3, 1), network(4, 3)
    promise = Privacy("record", epsilon=3.0, delta=1e-3, correlated=kind)
    algorithm = ar.FedAvg(0.1, local_epochs=2, batch_size=2)
    with engine_of(algorithm, data, model, promise, 6) as engine:
        kept = engine.kept
    spent = kept.spent(dict.fromkeys(kept.uses, 6))
    assert all(2.99 < each <= 3.0 for each in spent.values())
    for k in kept.uses:
        n = int(data.n[k])
        parts = batches_of(2, n)
        strategy = kept.uses[k][0].correlation.strategy
        assert kind != "tree" or strategy == Tree(2 * parts * 6)
        for rounds in (1, 4, 6):
            moved = strategy.sensitivity(Participation(2 * parts * rounds, parts))
            (found,) = kept.releases(k, rounds)
            assert found == Release(Gaussian(kept.noise[k] / moved))
            charged = [each for r in range(rounds) for each in kept.charged(k, r)]
            together = sum(each.mechanism.noise**-2 for each in charged) ** -0.5
            assert together == pytest.approx(found.mechanism.noise)
            assert epsilon(charged, 1e-3) == pytest.approx(epsilon([found], 1e-3), rel=1e-3)


def test_a_site_is_charged_for_rounds_it_takes_part_in_whichever_they_are():
    """By party: the noise of all rounds is moved by each, and sums to what is planned."""
    data, model = classification(5, 4, 3, 1), network(4, 3)
    promise = Privacy("party", epsilon=8.0, delta=1e-2, correlated="tree")
    with engine_of(ar.FedAvg(0.1), data, model, promise, 12, most=4, separation=3) as engine:
        kept = engine.kept
    charged = [each for r in range(4) for each in kept.charged(0, r)]
    (planned,) = kept.releases(0, 12)
    together = sum(each.mechanism.noise**-2 for each in charged) ** -0.5
    assert together == pytest.approx(planned.mechanism.noise)
    assert kept.charged(0, 4) == []  # it cannot be in more


def test_without_sampling_correlated_noise_is_less_and_says_so():
    data = classification(4, 4, 3, 1)

    def told(kind):
        run = ar.simulate(
            ar.FedAvg(0.1, local_epochs=3, batch_size=1), data, network(4, 3), rounds=4,
            workers=1, evaluate_every=4,
            privacy=Privacy("record", epsilon=4.0, delta=1e-2, correlated=kind),
        )  # fmt: skip
        use = run.kept.uses[run.kept.worst][0]
        draws = 4 * use.draws
        variance = use.correlation.strategy.variances(draws).sum()
        return run, variance * run.kept.noise[run.kept.worst] ** 2

    run, correlated = told("banded")
    _, independent = told("banded:1")
    assert correlated < 0.5 * independent
    promise = run.scorecard.privacy.promise
    assert promise.sampling.startswith("nobody is sampled: of the releases everybody is once in")
    assert 3.9 < promise.epsilon <= 4.0 and promise.curve[-1] == (4, promise.epsilon)


# -- who sits out ----------------------------------------------------------------------------------


def test_who_was_asked_sits_out_and_noise_is_planned_for_it(tmp_path):
    data, model = classification(12, 4, 3, 1), network(4, 3)
    promise = Privacy("party", epsilon=8.0, delta=1e-2, correlated="banded")
    options = {
        "rounds": 12, "workers": 1, "sample": 3, "separation": 4, "privacy": promise,
        "evaluate_every": 12, "dropouts": 0.2,
    }  # fmt: skip
    run = ar.simulate(ar.FedAvg(0.1), data, model, **options)
    asked = [set(cohort.sampled.tolist()) for cohort in run.participation]
    for t, cohort in enumerate(asked):
        assert len(cohort) == 3
        assert not cohort & set().union(*asked[max(0, t - 3) : t])
    use = run.kept.uses[0][0]
    assert (use.correlation.separation, use.correlation.most) == (4, 3)
    apart = run.kept.noise[0]
    together = ar.simulate(ar.FedAvg(0.1), data, model, **{**options, "separation": 1}).kept
    assert apart < together.noise[0] or len(use.correlation.strategy.coefficients) > 1
    with pytest.raises(ArchipelError, match=r"separation = 4: 4 of 12 parties are asked in a"):
        ar.simulate(ar.FedAvg(0.1), data, model, **{**options, "sample": 4})
    with pytest.raises(ArchipelError, match="separation = 0: give a whole number"):
        ar.simulate(ar.FedAvg(0.1), data, model, **{**options, "separation": 0})


def test_a_run_that_is_resumed_knows_who_sits_out(tmp_path):
    data, model = classification(9, 4, 3, 1), network(4, 3)
    promise = Privacy("party", epsilon=8.0, delta=1e-2, correlated="banded")
    options = {
        "rounds": 8, "workers": 1, "sample": 3, "separation": 3, "privacy": promise,
        "out": tmp_path / "run", "checkpoint_seconds": 0,
    }  # fmt: skip
    whole = ar.simulate(ar.FedAvg(0.1), data, model, **{**options, "out": tmp_path / "whole"})
    ar.simulate(ar.FedAvg(0.1), data, model, **options, on_round=lambda run: run.done == 5)
    again = ar.simulate(ar.FedAvg(0.1), data, model, **options)
    assert [c.sampled.tolist() for c in again.participation] == [
        c.sampled.tolist() for c in whole.participation
    ]
    assert torch.equal(again.vector, whole.vector)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"unit": "record", "correlated": "band"}, 'correlated = "band": give "banded"'),
        ({"unit": "record", "correlated": "banded:0"}, 'correlated = "banded:0": give'),
        ({"unit": "party", "trust": "nobody", "correlated": "tree"}, 'trust = "nobody"'),
        ({"unit": "party", "clip": "adaptive", "correlated": "tree"}, 'clip = "adaptive"'),
        ({"unit": "record", "clip": "adaptive"}, 'say unit = "party" and trust = "server"'),
        ({"unit": "party", "trust": "nobody", "clip": "adaptive"}, 'trust = "server"'),
        ({"unit": "party", "clip": "wide"}, "clip = 'wide': .* or \"adaptive\""),
        ({"unit": "party", "clip": "adaptive", "clip_start": 0.0}, "clip_start = 0.0"),
        ({"unit": "party", "clip": "adaptive", "clip_quantile": 1.0}, "clip_quantile = 1.0"),
        ({"unit": "party", "clip": "adaptive", "clip_rate": -1.0}, "clip_rate = -1.0"),
    ],
)
def test_what_cannot_be_promised_is_refused_in_a_sentence(fields, says):
    with pytest.raises(ArchipelError, match=says):
        Privacy(**{"noise": 1.0, **fields})


@pytest.mark.parametrize("fields", [{"correlated": "tree"}, {"clip": "adaptive"}], ids=str)
def test_a_round_of_two_messages_is_refused(fields):
    data, model = classification(3, 4, 3, 1), network(4, 3)
    with pytest.raises(ArchipelError, match="Twice sends 2 messages in a round"):
        learn(Twice(), data, model, 1, privacy=Privacy("party", noise=1.0, **fields))
