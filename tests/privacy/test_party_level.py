"""Privacy by party: clipped uploads, noisy means, and what a server may not ask any more."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.engines.protection import protecting
from archipel.errors import ArchipelError
from archipel.privacy.party import clipped
from archipel.privacy.promise import Privacy
from archipel.privacy.release import FixedSize
from archipel.wire import Quantise, Subsample
from problems import classification, learn, network

few = settings(max_examples=25, deadline=None)
TINY, WIDE = 1e-12, 1e6


def equal(parties=6, seed=0):
    random = np.random.default_rng(seed)
    xs = [torch.from_numpy(random.standard_normal((5, 4))) for _ in range(parties)]
    ys = [torch.from_numpy(random.integers(0, 3, 5)) for _ in range(parties)]
    return ar.Federation.from_arrays(xs, ys, test=0.0)


@few
@given(
    lead=st.sampled_from([(), (3,), (2, 3)]),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
    wild=st.sampled_from([1.0, 1e30, np.inf, np.nan, 0.0]),
    seed=st.integers(0, 99),
)
def test_all_vectors_of_a_message_are_clipped_together(lead, sizes, clip, wild, seed):
    random = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(*lead, size, generator=random) * 10 for size in sizes]
    vectors[0] = vectors[0] * wild
    found = clipped(vectors, len(lead), clip)
    norm = torch.cat(found, dim=-1).double().norm(dim=-1)
    assert bool((norm <= clip).all())
    short = torch.cat(vectors, dim=-1).double().norm(dim=-1) < clip * (1 - 1e-5)
    for before, after in zip(vectors, found, strict=True):
        torch.testing.assert_close(after[short], before[short], rtol=1e-5, atol=0)


@pytest.mark.parametrize("trust", ["server", "nobody"])
@pytest.mark.parametrize("algorithm", [ar.FedAvg(0.1), ar.Scaffold(0.1)], ids=repr)
def test_without_noise_and_clip_it_is_the_plain_algorithm(algorithm, trust):
    data, model = equal(), network(4, 3)
    promise = Privacy("party", noise=TINY, clip=WIDE, trust=trust)
    got = learn(algorithm, data, model, 3, privacy=promise)
    torch.testing.assert_close(got, learn(algorithm, data, model, 3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("trust", "share"), [("server", 6.0), ("nobody", 6.0**0.5)])
def test_noise_in_the_mean_has_the_deviation_that_is_planned(trust, share):
    """Once in the sum of six, or in each of them."""
    data, model = equal(), network(4, 3)
    found = []
    for seed in range(60):
        runs = [
            learn(ar.FedAvg(0.1), data, model, 1, seed=seed, privacy=Privacy(
                "party", noise=noise, clip=0.5, trust=trust))
            for noise in (TINY, 2.0)
        ]  # fmt: skip
        found.append(runs[1] - runs[0])
    values = torch.cat(found).numpy() / (2.0 * 0.5 / share)
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], len(values))
    assert low < (values**2).sum() < high
    assert stats.kstest(values, "norm").pvalue > 1e-4


def test_one_party_moves_the_sum_by_its_clip_whatever_it_sends_and_the_wire_does():
    data, model = equal(), network(4, 3)
    wild = replace_points(data, 0, 1e6)
    for wire in (ar.Wire(), ar.Wire(up=(Subsample(0.25), Quantise(8)))):
        promise = Privacy("party", noise=TINY, clip=0.3)
        found = [
            learn(ar.FedAvg(0.5, local_epochs=3), each, model, 1, privacy=promise, wire=wire)
            for each in (data, wild)
        ]
        assert float((found[0] - found[1]).norm()) <= 2 * 0.3 / 6 * (1 + 1e-5)


def replace_points(data, k, scale):
    x = data.x.clone()
    x[int(data.offsets[k]) : int(data.offsets[k + 1])] *= scale
    return ar.Federation(
        x, data.y, data.offsets, data.test_from, data.training, data.task, 3, scan=False
    )


@dataclass(frozen=True)
class Nosy(ar.FedAvg):
    ask: str = "stack"

    def server(self, w, uploads):
        return w + (uploads.stack().mean(dim=0) if self.ask == "stack" else uploads.n.sum() * 0)


@pytest.mark.parametrize(("ask", "text"), [("stack", "uploads.stack"), ("n", "uploads.n")])
def test_a_server_that_asks_for_more_than_means_is_refused(ask, text):
    with pytest.raises(ArchipelError, match=rf'unit = "party": Nosy asks for {text}'):
        learn(Nosy(0.1, ask=ask), equal(), network(4, 3), 1, privacy=Privacy("party", noise=1.0))


def test_what_cannot_be_kept_is_refused_in_a_sentence():
    data, model = equal(), network(4, 3)
    promise = Privacy("party", noise=1.0)
    with pytest.raises(ArchipelError, match="DSGD has no server"):
        ar.simulate(
            ALGORITHMS["dsgd"](0.1), data, model, rounds=1, topology="ring", privacy=promise
        )
    with pytest.raises(ArchipelError, match=r"privacy\.delta = 0\.2: the study has 6 parties"):
        learn(ar.FedAvg(0.1), data, model, 1, privacy=replace(promise, delta=0.2))
    with pytest.raises(ArchipelError, match=r"round\.rule"):
        learn(ar.FedAvg(0.1), data, model, 1, privacy=promise, wire=ar.Wire(rule=lambda u: u))


def test_a_mean_counts_every_party_once():
    """A weight by records would tell how many there are."""
    data, model = classification(4, 4, 3, 0), network(4, 3)
    got = learn(ar.FedAvg(0.1), data, model, 1, privacy=Privacy("party", noise=TINY, clip=WIDE))
    uploads = [learn(ar.FedAvg(0.1), data, model, 1, ids=[k]) - model.w for k in range(4)]
    torch.testing.assert_close(
        got, model.w + torch.stack(uploads).mean(dim=0), atol=1e-5, rtol=1e-5
    )


def test_the_server_draws_noise_anew_between_institutions():
    noise = protecting()
    drawn = [noise(torch.zeros(1000), "sum 0", 0) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert stats.kstest(torch.cat(drawn).numpy(), "norm").pvalue > 1e-4


def test_what_is_counted_follows_who_is_drawn():
    data = classification(20, 4, 3, 0)
    promise = Privacy("party", epsilon=8.0, delta=1e-3)

    def kept(**options):
        run = ar.simulate(
            ar.FedAvg(0.1), data, network(4, 3), rounds=6, workers=1, privacy=promise, **options
        )
        return run.kept, run

    drawn, run = kept(sample=5)
    assert drawn.uses[0][0].sampling == FixedSize(5, 20) and drawn.always
    assert run.counted == dict.fromkeys(range(20), 6)
    assert 7.9 < run.scorecard.privacy.promise.epsilon <= 8.0
    more, _ = kept(sample=5, over_select=0.4)
    assert more.uses[0][0].sampling == FixedSize(7, 20)  # all that were asked
    away, _ = kept(sample=5, availability=0.8)
    assert away.uses[0][0].sampling is None  # who is there is more likely
    everybody, _ = kept()
    assert everybody.uses[0][0].sampling is None
    promise = replace(promise, trust="nobody")
    alone, run = kept(sample=5)
    assert not alone.always and alone.uses[0][0].sampling is None
    assert sum(run.counted.values()) == 30 and max(run.counted.values()) == alone.rounds


@pytest.mark.parametrize("trust", ["server", "nobody"])
def test_stacked_looped_and_in_two_workers_it_is_the_same(trust):
    data, model = classification(5, 4, 3, 2), network(4, 3)
    promise = Privacy("party", noise=0.3, clip=0.8, trust=trust)
    plans = [ar.Plan("one", 1, 1), ar.Plan("stacked", 8, 1), ar.Plan("stacked", 2, 2)]
    found = [learn(ar.Scaffold(0.1), data, model, 3, plan, privacy=promise) for plan in plans]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-6)
