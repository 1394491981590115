"""GOPA as a study's sum: exact, hidden, rolled back, with the noise that its fields say."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import archipel as ar
from archipel.aggregation.coding import Terms
from archipel.aggregation.gopa import GaussianGopa, Gopa, NoiseTerms, picked
from archipel.aggregation.others import Simulated as Acquainted
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
BOLD = {"colluding": 0.0, "dropouts": 0.5, "bits": 64}


class Somebody:
    """A party as a sum sees it, whose secrets follow from a seed."""

    def __init__(self, number, seed=0, t=0, least=0):
        self.number, self._seed, self.round = torch.tensor(number), seed, t
        self.others = Acquainted(number, seed, least)

    def secret(self, purpose):
        words = Simulated(self._seed, self.round, [int(self.number)], purpose).words(np.array([4]))
        return torch.frombuffer(bytearray(words.tobytes()), dtype=torch.uint8)

    def source(self, purpose):
        return Simulated(self._seed, 1, [int(self.number)], purpose)


class Got:
    """Uploads of those who are there."""

    def __init__(self, rows):
        self.present, self._rows = torch.tensor(sorted(rows)), rows

    def stack(self):
        return torch.stack([self._rows[j] for j in sorted(self._rows)])

    def total(self):
        return self.stack().sum(dim=0)


def together(
    how, values, stays=None, seed=0, relayed=lambda message, j, reply: reply, mes=None, t=0
):
    """The sum, and all that the server is sent; party j answers `stays[j]` of five messages."""
    stays = stays or {}
    mes = mes or [Somebody(j, seed, t) for j in range(len(values))]
    parties = {j: Talk(how.party(mes[j], Terms((x,)), 0)) for j, x in enumerate(values)}
    server, sent = None, []
    for message in range(5):
        here = {j: talk.said for j, talk in parties.items() if stays.get(j, 5) > message}
        sent.append(here)
        if server is None:
            server = Talk(how.server(Got(here), Terms((values[0],)), 0))
        else:
            server.send(Got(here))
        if server.ended:
            return server.said, sent
        reply = server.said
        order = sorted(here)
        parties = {j: parties[j] for j in order}
        for at, j in enumerate(order):
            mine = tuple(x[at] for x in reply.rows) if isinstance(reply, Each) else reply
            parties[j].send(relayed(message, j, mine))
    raise AssertionError("a sum has five messages")


# -- integers cancel -------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([4, 5, 7, 9, 24]), st.data())
def test_what_is_left_of_drop_outs_is_nothing(n, data):
    """Whoever vanishes before it has published: the sum of the others, to the last bit."""
    kind = data.draw(st.sampled_from(["modular", "gaussian"]))
    gone = data.draw(st.sets(st.integers(0, n - 1), max_size=(n - 1) // 2))
    stays = {j: data.draw(st.integers(1, 2), label=f"party {j}") for j in gone}
    draw = np.random.default_rng(n)
    values = [torch.from_numpy(draw.standard_normal(3)) for _ in range(n)]
    there = [j for j in range(n) if stays.get(j, 5) > 2]
    if kind == "modular":
        how = Gopa(**BOLD)
        integers = [how.coding(n).encode(Terms((values[j],)), ()) for j in there]
        expected = how.coding(n).decode(torch.stack(integers).sum(dim=0), Terms((values[0],)))[0]
    else:
        how = GaussianGopa(0.5, 2.0, colluding=0.0, dropouts=0.5)
        words = [
            how.terms.steps(values[j], n) + how.terms.noise(Somebody(j).source("gopa 0"), 3)
            for j in there
        ]
        expected = torch.from_numpy(how.terms.numbers(np.sum(words, axis=0, dtype=np.uint64)))
    total, _ = together(how, values, stays)

    assert total.present.tolist() == there
    assert total.sums[0].tolist() == expected.tolist()


def test_a_party_that_vanishes_after_it_published_spoils_a_round_only_where_it_is_needed():
    values = [torch.ones(2, dtype=torch.float64)] * 6
    total, _ = together(Gopa(**BOLD), values, {2: 3})  # nobody else is gone: it is not needed
    assert total.sums[0].tolist() == pytest.approx([6.0, 6.0])
    for after in (3, 4):
        with pytest.raises(BelowQuorum, match="party 2 vanished after it had published"):
            together(Gopa(**BOLD), values, {2: after, 4: 2})


def test_a_party_tells_keys_of_those_alone_who_are_gone():
    values = [torch.ones(2, dtype=torch.float64)] * 6
    _, sent = together(Gopa(**BOLD), values, {4: 2})

    told = torch.stack([sent[4][j] for j in (0, 1, 2, 3, 5)]).any(dim=-1)
    assert told[:, 4].all()
    assert not told[:, [0, 1, 2, 3, 5]].any()


def test_too_few_are_refused_by_server_and_party():
    values = [torch.ones(2, dtype=torch.float64)] * 6
    with pytest.raises(BelowQuorum, match="3 of 6 parties are there, and 5 are needed"):
        together(Gopa(colluding=0.0), values, dict.fromkeys((0, 1, 2), 2))

    def fewer(message, j, reply):
        return (reply[0][:2], reply[1]) if message == 1 else reply

    with pytest.raises(ArchipelError, match="2 of 6 parties are there, and 5 are needed"):
        together(Gopa(colluding=0.0), values, relayed=fewer)


# -- a server that lies ----------------------------------------------------------------------------


def changed_key(message, j, reply):
    if message:
        return reply
    rows = reply[1].clone()
    rows[3, :32] = rows[2, :32]
    return reply[0], rows


def own_key_changed(message, j, reply):
    if message:
        return reply
    return reply[0], reply[1].roll(1, dims=0)


def names_twice(message, j, reply):
    return torch.cat([reply, reply[:1]]) if message == 2 else reply


def names_a_stranger(message, j, reply):
    return torch.cat([reply[:-1], torch.tensor([77])]) if message == 2 else reply


@pytest.mark.parametrize(
    ("lies", "says"),
    [
        (changed_key, "the key of party 3 is not signed by it for this round|than its own"),
        (own_key_changed, "another key for this party than its own"),
        (names_twice, "names a party twice among those who have published"),
        (names_a_stranger, "has party 77 among those who have published"),
    ],
)
def test_a_server_that_lies_is_refused_with_the_reason(lies, says):
    values = [torch.ones(2, dtype=torch.float64)] * 6
    with pytest.raises(ArchipelError, match=says):
        together(Gopa(**BOLD), values, relayed=lies)


ONES = [torch.ones(2, dtype=torch.float64)] * 6


def refused(lies, says, how=None, **options):
    """All that is refused says so, and whatever keys are told show nobody's upload."""
    with pytest.raises(ArchipelError, match=says) as no:
        together(how or Gopa(**BOLD), ONES, relayed=lies, **options)
    assert str(no.value).count("\n") == 0


def test_who_is_said_not_to_have_published_refuses():
    def not_you(message, j, reply):
        return reply[reply != j] if message == 2 else reply

    refused(not_you, "this party has not published, and it has")


def test_lists_that_differ_from_party_to_party_are_refused():
    """Overlapping sets: to half of them 0 is gone, to the others 1; each is left out of one list.

    Keys of both would show what these two published.
    """

    def two_lists(message, j, reply):
        return reply[reply != (j + 1) % 2] if message == 2 and j > 1 else reply

    refused(two_lists, r"\d parties signed the same list .* the server may have told others")


def test_survivors_that_change_after_they_were_signed_are_not_acted_on():
    """The server shows each list to as many as it takes, and passes on the signatures of all."""
    passed = {}

    def replayed(message, j, reply):
        if message == 2 and j in (0, 1, 2):
            return reply[reply != 5]
        if message == 3:
            passed[j] = reply
        return reply

    with pytest.raises(ArchipelError, match="signed the same list"):
        together(Gopa(**BOLD), ONES, relayed=replayed)
    assert len(passed) == 1  # the first to be told refuses already


def test_two_rosters_are_found_out_by_who_signs():
    """Half of the parties are told another key for party 5, which it signed, too."""
    other = Somebody(5, seed=0)
    other.others = Acquainted(5, 0)
    other.secret = lambda purpose: torch.full((32,), 7, dtype=torch.uint8)
    second = Talk(Gopa(**BOLD).party(other, Terms((ONES[0],)), 0)).said

    def two_rosters(message, j, reply):
        if message == 0 and j < 3:
            keys = reply[1].clone()
            keys[5] = second
            return reply[0], keys
        return reply

    refused(two_rosters, "signed the same list")


@pytest.mark.parametrize("before", [{"t": 1}, {"seed": 1}])
def test_keys_of_another_round_or_study_are_refused(before):
    """Replayed keys, whose secrets may be out."""
    old = Talk(Gopa(**BOLD).party(Somebody(3, **before), Terms((ONES[0],)), 0)).said

    def replayed(message, j, reply):
        if message or j == 3:
            return reply
        keys = reply[1].clone()
        keys[3] = old
        return reply[0], keys

    refused(replayed, "the key of party 3 is not signed by it for this round")


def test_signatures_are_counted_once_each_and_forged_ones_not_at_all():
    def of_one(message, j, reply):
        if message != 3:
            return reply
        return reply[0], reply[1][:1].expand_as(reply[1])

    def many_times(message, j, reply):
        return (reply[0][:1].expand(6), reply[1]) if message == 3 else reply

    refused(of_one, "1 parties signed the same list of those who have published, and 4 are needed")
    refused(many_times, "names a party twice among those who signed")


def test_a_low_threshold_cannot_be_told():
    """How many have to be there follows from the study, whatever the server says."""

    def few(message, j, reply):
        return reply[:3] if message == 2 else reply

    refused(few, "3 of 6 parties are there, and 5 are needed", Gopa(colluding=0.0))
    for dropouts in (0.2, 0.5, 0.9):
        for colluding in (0.0, 0.3, 0.6):
            how = Gopa(colluding=colluding, dropouts=dropouts)
            for n in range(2, 40):
                assert 2 * how.fewest(n) > n + how.colluders(n)


def test_a_site_that_wants_more_in_a_sum_refuses_fewer():
    mes = [Somebody(j, least=9 if j == 2 else 0) for j in range(6)]
    refused(lambda message, j, reply: reply, "6 parties .* at least 9", mes=mes)


def test_a_round_that_was_signed_gives_no_sum_of_other_parties():
    """The difference of the two would be what one party sent."""
    mes = [Somebody(j) for j in range(6)]
    total, _ = together(Gopa(**BOLD), ONES, mes=mes)
    assert total.present.tolist() == [*range(6)]
    again, _ = together(Gopa(**BOLD), ONES, mes=mes)  # the same sum, once more
    assert torch.equal(again.sums[0], total.sums[0])
    with pytest.raises(ArchipelError, match="signed a sum of 6 parties in this round before"):
        together(Gopa(**BOLD), ONES[:5], mes=mes[:5])
    with pytest.raises(ArchipelError, match="signed a sum of 6 parties in this round before"):
        together(Gopa(**BOLD), ONES, {4: 2}, mes=mes)


def test_a_server_that_hides_picks_takes_nothing_away_from_what_hides_a_party():
    """Who is told that nobody picked it still has its own picks: the sum is spoilt, not shown."""

    def nobody_picked(message, j, reply):
        return (reply[0], torch.zeros_like(reply[1])) if message == 1 else reply

    values = [torch.ones(2, dtype=torch.float64)] * 30
    how = Gopa(neighbours=10, **{**BOLD, "dropouts": 0.0})
    _, sent = together(how, values, relayed=nobody_picked)
    plain = how.coding(30).encode(Terms((values[0],)), ())

    assert not any(torch.equal(row, plain) for row in sent[2].values())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArchipelError, match="beyond range"):
        together(Gopa(**BOLD), [torch.tensor([17.0])] * 4)
    gaussian = GaussianGopa(0.5, 2.0, colluding=0.0)
    for number in (2.0**40, float("nan")):
        with pytest.raises(ArchipelError, match="clip them first"):
            together(gaussian, [torch.tensor([number])] * 4)
    with pytest.raises(ArchipelError, match="hides nothing"):
        GaussianGopa(0.0, 1.0)
    with pytest.raises(ArchipelError, match="colluding = 1: give a share"):
        Gopa(colluding=1.0)
    with pytest.raises(ArchipelError, match="neighbours = 2: too few for 50 parties"):
        Gopa(neighbours=2).degree(50)


def test_neighbours_are_as_many_as_keep_the_honest_connected():
    how = Gopa()
    assert how.degree(20) == 19
    for n in (50, 200, 1000):
        h = how.fewest(n) - how.colluders(n)
        k = how.degree(n)
        assert gopa.disconnected(n, h, k) <= 2.0**-40 < gopa.disconnected(n, h, k - 1)


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


def learn(algorithm, wire=None, plan=ONE, rounds=1, parties=range(5), protocols=True, **asked):
    data, model = _problem()
    with LocalEngine(algorithm, data, model, plan=plan, wire=wire, protocols=protocols) as engine:
        for t in range(rounds):
            outcome = engine.round(t, parties, **asked)
        return engine.state(), outcome, engine.anatomy


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("message", [0, 1, 2, 3, 4, 5])
def test_every_algorithm_gets_the_mean_of_those_who_published(algorithm, message):
    answers = np.array([9, 9, message, 9, 9])
    there = range(5) if message >= 3 else [0, 1, 3, 4]
    plain = learn(algorithm, parties=there)[0]["shared.0"]
    wire = ar.Wire(sum=Gopa(bits=64, dropouts=0.2))

    for plan in (ONE, STACKED, TWO):
        found, outcome, anatomy = learn(algorithm, wire, plan, answers=answers)
        torch.testing.assert_close(found["shared.0"], plain, rtol=0, atol=1e-8)
        assert anatomy.sums_only
        assert outcome.arrived.tolist() == [*there]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_a_simulation_adds_up_the_same_integers_without_the_protocol(algorithm):
    wire = ar.Wire(sum=Gopa())
    whole, quick = (
        learn(algorithm, wire, STACKED, 2, protocols=each)[0]["shared.0"] for each in (True, False)
    )

    assert torch.equal(whole, quick)


def test_below_its_quorum_a_round_changes_nothing():
    wire, data_model = ar.Wire(sum=Gopa(dropouts=0.2)), _problem()
    with LocalEngine(ar.FedAvg(lr=0.1), *data_model, plan=ONE, wire=wire, protocols=True) as engine:
        engine.round(0, range(5))
        before = engine.state()["shared.0"].clone()
        outcome = engine.round(1, range(5), answers=np.array([2, 2, 9, 9, 9]))

        assert len(outcome.arrived) == 0
        assert torch.equal(engine.state()["shared.0"], before)


def test_noise_in_a_study_is_that_of_the_fields_and_repeats_with_the_seed():
    wire, algorithm = ar.Wire(sum=GaussianGopa(0.05, 3.0)), ar.Scaffold(lr=0.1)
    plain = learn(algorithm)[0]["shared.0"]
    noisy = [learn(algorithm, wire, plan)[0]["shared.0"] for plan in (ONE, TWO)]
    ratio = float(((noisy[0] - plain) ** 2).sum()) / (0.05**2 / 5)
    p = plain.numel()

    assert torch.equal(noisy[0], noisy[1])
    assert chi2.ppf(5e-5, p) < ratio < chi2.isf(5e-5, p)


def test_weights_by_examples_have_no_gaussian_form():
    with pytest.raises(ArchipelError, match="every party counts once, and this one is weighted"):
        learn(ar.FedAvg(lr=0.1), ar.Wire(sum=GaussianGopa(0.05, 3.0)))


def test_a_rule_and_gopa_are_refused_together():
    with pytest.raises(ArchipelError, match=r"Krum looks at single uploads, and wire\.sum: Gopa"):
        ar.Wire(rule=Krum(1, 3), sum=Gopa())
