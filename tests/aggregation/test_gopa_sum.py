"""GOPA as a study's sum: exact, hidden, rolled back, with the noise that was planned."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import archipel as ar
from archipel.aggregation.gopa import Gopa, NoiseTerms, picked
from archipel.conformance import _problem
from archipel.core import Each
from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.talk import Talk
from archipel.privacy import gopa
from archipel.privacy.sources import Simulated
from wire.examples import Krum

ONE, STACKED, TWO = Plan("one", 1, 1), Plan("stacked", 3, 1), Plan("stacked", 2, 2)
ALGORITHMS = [ar.FedAvg(lr=0.1), ar.Scaffold(lr=0.1)]
BOLD = {"honest": 1.0, "dropouts": 0.5}


class Somebody:
    """A party as a sum sees it, whose secrets follow from a seed."""

    round = 0

    def __init__(self, number, seed=0):
        self.number, self._seed = torch.tensor(number), seed

    def secret(self, purpose):
        words = Simulated(self._seed, 0, [int(self.number)], purpose).words(np.array([4]))
        return torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)

    def source(self, purpose):
        return Simulated(self._seed, 1, [int(self.number)], purpose)


class Got:
    """Uploads of those who are there."""

    def __init__(self, rows):
        self.present, self._rows = torch.tensor(sorted(rows)), rows

    def stack(self):
        return torch.stack([self._rows[j] for j in sorted(self._rows)])


def together(how, values, stays=None, seed=0):
    """The sum, and all that the server is sent; party j answers `stays[j]` of four messages."""
    stays = stays or {}
    parties = {j: Talk(how.party(Somebody(j, seed), (x,), 0)) for j, x in enumerate(values)}
    server, sent = None, []
    for message in range(4):
        here = {j: talk.said for j, talk in parties.items() if stays.get(j, 4) > message}
        sent.append(here)
        if server is None:
            server = Talk(how.server(Got(here), (values[0],), 0))
        else:
            server.send(Got(here))
        if server.ended:
            return server.said, sent
        reply = server.said
        order = sorted(here)
        parties = {j: parties[j] for j in order}
        for at, j in enumerate(order):
            mine = tuple(x[at] for x in reply.rows) if isinstance(reply, Each) else reply
            parties[j].send(mine)
    raise AssertionError("a sum has four messages")


def grid_sum(terms, values):
    return terms.numbers(np.sum([terms.steps(x) for x in values], axis=0, dtype=np.uint64))


# -- integers cancel -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 9), st.integers(1, 8), st.integers(0, 3), st.data())
def test_what_is_left_of_drop_outs_is_nothing(n, k, which, data):
    """Party by party, whenever it vanishes: the sum of who published, to the last bit."""
    form = ["modular", "gaussian"][which % 2]
    how = Gopa(form, 1.0, min(k, n - 1), 0.5, independent=0.5, pairwise=2.0)
    gone = data.draw(st.sets(st.integers(0, n - 1), max_size=n // 2))
    stays = {j: data.draw(st.integers(1, 2), label=f"party {j}") for j in gone}
    draw = np.random.default_rng(n)
    values = [torch.from_numpy(draw.standard_normal(3)) for _ in range(n)]
    total, sent = together(how, values, stays)
    there = [j for j in range(n) if stays.get(j, 4) > 2]
    noise = [how.terms.noise(Somebody(j).source("gopa 0"), 3) for j in there]
    words = np.sum(
        [how.terms.steps(values[j], n) + e for j, e in zip(there, noise, strict=True)],
        axis=0, dtype=np.uint64,
    )  # fmt: skip

    assert total.present.tolist() == there
    assert total.sums[0].numpy().tolist() == how.terms.numbers(words).tolist()
    assert not any((sent[2][j].numpy().view(np.uint64) == words).all() for j in there)


def test_without_noise_the_modular_sum_is_the_grids():
    values = [torch.randn(5, dtype=torch.float64) for _ in range(6)]
    total, _ = together(Gopa(honest=1.0), values)

    assert total.sums[0].numpy().tolist() == grid_sum(Gopa().terms, values).tolist()


def test_a_party_that_vanishes_after_it_published_spoils_a_round_only_where_it_is_needed():
    values = [torch.ones(2, dtype=torch.float64)] * 6
    total, _ = together(Gopa(**BOLD), values, {2: 3})  # nobody else is gone: it is not needed
    assert total.sums[0].tolist() == [6.0, 6.0]
    with pytest.raises(BelowQuorum, match="party 2 vanished after it had published"):
        together(Gopa(**BOLD, neighbours=5), values, {2: 3, 4: 2})


def test_a_party_tells_keys_of_those_alone_who_are_gone():
    values = [torch.ones(2, dtype=torch.float64)] * 6
    _, sent = together(Gopa(**BOLD, neighbours=5), values, {4: 2})

    told = torch.stack([sent[3][j] for j in (0, 1, 2, 3, 5)]).any(dim=-1)
    assert told[:, 4].all()
    assert not told[:, [0, 1, 2, 3, 5]].any()


def test_too_few_are_refused_by_server_and_party():
    values = [torch.ones(2, dtype=torch.float64)] * 6
    with pytest.raises(BelowQuorum, match=r"3 of 6 parties are there, and dropouts = 0\.1 has 5"):
        together(Gopa(honest=1.0), values, dict.fromkeys((0, 1, 2), 2))
    talk = Talk(Gopa(honest=1.0).party(Somebody(0), (values[0],), 0))
    ids, keys = torch.arange(6), talk.said.expand(6, -1)
    talk.send((ids, keys))
    with pytest.raises(ArchipelError, match="2 of 6 parties are there"):
        talk.send((ids[:2], torch.zeros(6, dtype=torch.uint8)))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArchipelError, match="clip it first"):
        together(Gopa(honest=1.0), [torch.tensor([2.0**40])] * 4)
    with pytest.raises(ArchipelError, match="clip it first"):
        together(Gopa(honest=1.0), [torch.tensor([float("nan")])] * 4)
    with pytest.raises(ArchipelError, match="hides nothing without noise"):
        together(Gopa("gaussian", honest=1.0), [torch.ones(1)] * 4)
    with pytest.raises(ArchipelError, match="form"):
        Gopa("uniform")


# -- what is published -----------------------------------------------------------------------------


def test_picks_are_uniform():
    ids, counts = torch.arange(5), np.zeros(5)
    for seed in range(2000):
        chosen = picked(bytes(Somebody(2, seed).secret("picks")), 2, ids, 2)
        assert int(chosen.sum()) == 2
        counts += chosen.numpy()

    assert counts[2] == 0
    others = np.delete(counts, 2)
    assert ((others - 1000) ** 2 / 1000).sum() < chi2.isf(1e-4, 3)


def published(form, runs, values, graph, independent, pairwise):
    """What parties on a fixed graph publish, in steps `[runs, n]`, drawn as the sum draws it."""
    terms, n = NoiseTerms(form, independent, pairwise), len(values)
    words = np.array([terms.steps(torch.full((runs,), float(x))) for x in values])
    for j in range(n):
        words[j] += terms.noise(Simulated(0, 0, [j], "independent"), runs)
    for i, j in np.argwhere(np.triu(graph) > 0).tolist():
        key = bytes(Somebody(i * n + j).secret("pair"))
        terms.join(words[i], plus=[key])
        terms.join(words[j], minus=[key])
    return words.T, terms


def test_published_values_have_the_covariance_of_the_accountant():
    """s_e^2 I + s_D^2 L, each entry within 5 of its deviations; the mean has s_e^2 / n."""
    n, runs, independent, pairwise = 6, 20_000, 0.7, 1.3
    graph = gopa.k_out(n, 2, np.random.default_rng(1))
    values = np.linspace(0, 1, n)
    words, terms = published("gaussian", runs, values, graph, independent, pairwise)
    found = np.array([terms.numbers(row) for row in words]) - values
    expected = independent**2 * np.eye(n) + pairwise**2 * gopa.laplacian(graph)
    spread = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / runs)
    ratio = (found.mean(axis=1) ** 2).sum() / (independent**2 / n)

    assert (np.abs(found.T @ found / runs - expected) / spread).max() < 5
    assert chi2.ppf(5e-5, runs) < ratio < chi2.isf(5e-5, runs)


def test_modular_values_are_uniform_and_tell_no_inputs_apart():
    """High and low bytes of what is published, for two inputs with the same sum."""
    n, runs = 5, 20_000
    graph = gopa.k_out(n, 2, np.random.default_rng(2))
    for values in ([0.0, 0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0, 0.0]):
        words, _ = published("modular", runs, values, graph, 0.1, 0.0)
        for shift in (0, 56):
            counts = np.bincount(((words[:, :-1] >> np.uint64(shift)) & np.uint64(255)).ravel())
            expected = (n - 1) * runs / 256
            assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-4, 255)


def test_a_colluding_share_sees_what_the_accountant_says():
    """Colluders subtract the terms they know; the best test on the rest sees mu deviations."""
    n, h, runs, independent, pairwise = 8, 5, 20_000, 0.5, 0.9
    graph = gopa.k_out(n, 3, np.random.default_rng(4))
    honest = graph[:h, :h]
    mus = gopa.distances(honest, independent, pairwise)
    u = int(mus.argmax())
    covariance = independent**2 * np.eye(h) + pairwise**2 * gopa.laplacian(honest)
    best = np.linalg.solve(covariance, np.eye(h)[u]) / mus[u]
    values = np.zeros(n)
    values[u] = 1.0
    words, terms = published("gaussian", runs, values, graph, independent, pairwise)
    view = words.T.copy()
    for i, j in np.argwhere(np.triu(graph) > 0).tolist():
        if j >= h > i:  # a term that a colluder knows
            terms.join(view[i], minus=[bytes(Somebody(i * n + j).secret("pair"))])
    score = np.array([terms.numbers(row) for row in view[:h]]).T @ best

    assert mus[u] > 1.2 / (independent * sqrt(n))
    assert abs(score.mean() - mus[u]) < 4 / sqrt(runs)
    assert chi2.ppf(5e-5, runs) < ((score - mus[u]) ** 2).sum() < chi2.isf(5e-5, runs)


# -- in studies ------------------------------------------------------------------------------------


def learn(algorithm, wire=None, plan=ONE, rounds=1, parties=range(5), **asked):
    data, model = _problem()
    with LocalEngine(algorithm, data, model, plan=plan, wire=wire) as engine:
        for t in range(rounds):
            outcome = engine.round(t, parties, **asked)
        return engine.state(), outcome, engine.anatomy


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("message", [0, 1, 2, 3, 4])
def test_every_algorithm_gets_the_mean_of_those_who_published(algorithm, message):
    answers = np.array([9, 9, message, 9, 9])
    there = range(5) if message >= 3 else [0, 1, 3, 4]
    plain = learn(algorithm, parties=there)[0]["shared.0"]

    for plan in (ONE, STACKED, TWO):
        wire = ar.Wire(sum=Gopa(honest=1.0, dropouts=0.2))
        found, outcome, anatomy = learn(algorithm, wire, plan, answers=answers)
        torch.testing.assert_close(found["shared.0"], plain, rtol=0, atol=1e-8)
        assert anatomy.sums_only
        assert outcome.arrived.tolist() == ([0, 1, 2, 3, 4] if message == 4 else [0, 1, 3, 4])


def test_below_its_quorum_a_round_changes_nothing():
    wire, data_model = ar.Wire(sum=Gopa(honest=1.0, dropouts=0.2)), _problem()
    with LocalEngine(ar.FedAvg(lr=0.1), *data_model, plan=ONE, wire=wire) as engine:
        engine.round(0, range(5))
        before = engine.state()["shared.0"].clone()
        outcome = engine.round(1, range(5), answers=np.array([2, 2, 9, 9, 9]))

        assert len(outcome.arrived) == 0
        assert torch.equal(engine.state()["shared.0"], before)


def test_noise_in_a_study_is_that_of_the_plan_and_repeats_with_the_seed():
    wire, algorithm = ar.Wire(sum=Gopa(honest=1.0, independent=0.05)), ar.Scaffold(lr=0.1)
    plain = learn(algorithm)[0]["shared.0"]
    noisy = [learn(algorithm, wire, plan)[0]["shared.0"] for plan in (ONE, TWO)]
    ratio = float(((noisy[0] - plain) ** 2).sum()) / (0.05**2 / 5)
    p = plain.numel()

    assert torch.equal(noisy[0], noisy[1])
    assert chi2.ppf(5e-5, p) < ratio < chi2.isf(5e-5, p)


def test_a_rule_and_gopa_are_refused_together():
    with pytest.raises(ArchipelError, match=r"Krum looks at single uploads, and wire\.sum: Gopa"):
        ar.Wire(rule=Krum(1, 3), sum=Gopa())
