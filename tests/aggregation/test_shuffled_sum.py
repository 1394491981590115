"""Shuffled sums in studies: right on average, as far off as is said, and what they promise."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

import archipel as ar
from aggregation.test_shuffler import free_port
from archipel.aggregation.others import Simulated
from archipel.aggregation.shuffled import ShuffledSum
from archipel.engines.network.in_process import play
from archipel.errors import ArchipelError
from archipel.federation.rehearsal import rehearse
from archipel.federation.shuffler import ShufflerFolder
from archipel.federation.site.account import for_records
from archipel.privacy.accounting import epsilon
from archipel.privacy.promise import Privacy
from archipel.privacy.release import Release, Shuffled
from problems import learn, linear, regression
from wire.examples import Krum

ALPHA = 1e-4
ONE, STACKED, TWO = ar.Plan("one", 4, 1), ar.Plan("stacked", 7, 1), ar.Plan("one", 3, 2)
PROMISE = Privacy("party", epsilon=4.0, delta=1e-3, clip=1.0, trust="shuffler")
LOUD = Privacy("party", noise=0.3, delta=1e-3, clip=1.0, trust="shuffler")  # nothing is sought
EXACT = ShuffledSum(least=2, epsilon0=400.0, bound=3.0)  # the truth of a coordinate, by one bit


def plain(data):
    """One step of every party, counted once."""
    promise = Privacy("party", noise=1e-12, clip=1.0, trust="server")
    return learn(ar.FedSGD(lr=1.0), data, linear(3), 1, privacy=promise)


def shuffled(data, how, seed=0, plan=ONE, promise=LOUD):
    options = {"privacy": promise, "wire": ar.Wire(sum=how), "seed": seed}
    return learn(ar.FedSGD(lr=1.0), data, linear(3), 1, plan, **options)


def test_the_mean_is_unbiased_and_as_far_off_as_the_randomiser_says():
    data, runs = regression(60, 3, seed=1, equal=True), 60
    how = ShuffledSum(least=60, bound=1.0)
    found = np.stack([shuffled(data, how, seed).numpy() for seed in range(runs)])
    truth = plain(data).numpy()
    way = ShuffledSum(least=60, bound=1.0, epsilon0=1 / LOUD.noise).randomiser(3)
    variance = way.variance(np.zeros((60, 3))) / 60**2  # at most: p B² - x²
    z = (found.mean(0) - truth) / np.sqrt(variance / runs)
    statistic = ((found - truth) ** 2).sum(0) / variance

    assert (2 * norm.sf(np.abs(z)) > ALPHA / 3).all()
    assert (chi2.sf(statistic, runs) > ALPHA / 3).all()
    assert (statistic > 0.5 * runs).all()


def engine_of(data, how, promise=PROMISE, rounds=1):
    return ar.LocalEngine(
        ar.FedSGD(lr=1.0), data, linear(3), plan=ONE, privacy=promise, wire=ar.Wire(sum=how),
        rounds=rounds,
    )  # fmt: skip


def test_stacked_one_by_one_and_in_two_processes_reports_are_the_same():
    data, how = regression(12, 3, seed=1, equal=True), ShuffledSum(least=12)
    found = [shuffled(data, how, 5, plan) for plan in (ONE, STACKED, TWO)]

    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[0], found[2], rtol=1e-9, atol=1e-9)


def test_what_is_promised_is_what_shuffled_reports_cost_over_all_rounds():
    data, rounds = regression(60, 3, seed=1, equal=True), 5
    with engine_of(data, ShuffledSum(least=60, honest=0.5), rounds=rounds) as engine:
        kept, how = engine.kept, engine.protection.on(ar.Wire(sum=ShuffledSum(least=60))).sum
    cost = epsilon(
        [Release(Shuffled(how.epsilon0, 30), times=rounds)], PROMISE.delta, neighbours="replace"
    )

    assert kept.uses[0][0].reports == 30  # those of the honest alone
    assert 3.9 < cost <= 4.0
    assert kept.spent({0: rounds})[0] == pytest.approx(cost, rel=1e-3)
    assert how.clip == PROMISE.clip
    (record,) = for_records(kept.releases(0, rounds), "replace")
    assert record.mechanism.stays
    assert epsilon([record], PROMISE.delta) <= 4.0


def test_fewer_reports_than_hide_each_other_change_nothing():
    data = regression(12, 3, seed=1, equal=True)
    with engine_of(data, ShuffledSum(least=10), LOUD) as engine:
        before = engine.vector().clone()
        outcome = engine.round(0, range(12), answers=np.array([2] * 9 + [0, 1, 1]))

        assert len(outcome.arrived) == 0
        assert torch.equal(engine.vector(), before)


@pytest.mark.parametrize(
    ("promise", "how", "said"),
    [
        (PROMISE, ShuffledSum(least=50), "least = 50 reports hide each other, and a round has 12"),
        (PROMISE, ShuffledSum(least=4, epsilon0=1.0), "epsilon0 = 1 is found for privacy.epsilon"),
        (PROMISE, None, r'trust = "shuffler", wire.sum = "plain": no reports are shuffled'),
        (
            Privacy("party", epsilon=4.0, delta=1e-3, trust="nobody"),
            ShuffledSum(least=4),
            r"wire\.sum = .*leave wire\.sum out",
        ),
    ],
)
def test_a_promise_that_reports_cannot_keep_is_refused(promise, how, said):
    data = regression(12, 3, seed=1, equal=True)
    with pytest.raises(ArchipelError, match=said), engine_of(data, how, promise):
        pass


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ShuffledSum(least=1), "least = 1: one report hides nothing"),
        (lambda: ShuffledSum(honest=0.0), r"honest = 0\.0: give a share above 0"),
        (lambda: ShuffledSum(bound=-1.0), r"bound = -1\.0: give a finite number above 0"),
        (lambda: ShuffledSum(shuffler="localhost:8444"), "HOST/PORT/CERTIFICATE/KEY"),
        (lambda: ar.Wire(rule=Krum(1, 3), sum=ShuffledSum()), "Krum looks at single uploads"),
    ],
)
def test_a_sum_that_cannot_be_is_refused(make, said):
    with pytest.raises(ArchipelError, match=said):
        make()


def test_weights_by_examples_are_refused_without_a_promise():
    data = regression(12, 3, seed=1, equal=True)
    with pytest.raises(ArchipelError, match="counts every party once"):
        learn(ar.FedAvg(lr=0.1), data, linear(3), 1, wire=ar.Wire(sum=EXACT))


# -- between processes -----------------------------------------------------------------------------


@pytest.fixture
def mix(tmp_path):
    """A shuffler in a process of its own, which knows eight parties."""
    made = ShufflerFolder.create(tmp_path / "mix", f"localhost:{free_port()}", least=4)
    for k in range(8):
        made.admit(f"party-{k}", Simulated(k, 0).public.hex())
    command = [sys.executable, "-m", "archipel", "shuffler", "up", "--home", str(made.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert "listening" in process.stdout.readline()
        yield made
    finally:
        process.terminate()
        process.wait(20)


def played(how, cohorts, data):
    return asyncio.run(
        play(ar.FedSGD(lr=1.0), data, linear(3), cohorts, wire=ar.Wire(sum=how), privacy=LOUD)
    )


def test_reports_go_through_a_shuffler_of_its_own_process_and_tell_the_same(mix):
    """Sealed, signed, shuffled and opened: the sum of the same reports as in a simulation."""
    data = regression(8, 3, seed=1, equal=True)
    how = ShuffledSum(least=6, shuffler=mix.place.text())
    found = played(how, [range(8), range(7)], data)
    options = {"privacy": LOUD, "wire": ar.Wire(sum=how), "rounds": 2}
    with ar.LocalEngine(ar.FedSGD(lr=1.0), data, linear(3), plan=ONE, **options) as engine:
        for t, cohort in enumerate([range(8), range(7)]):
            engine.round(t, cohort)
        alike = engine.vector().clone()

    assert [outcome.arrived.tolist() for outcome in found.outcomes] == [[*range(8)], [*range(7)]]
    torch.testing.assert_close(found.engine.vector(), alike, rtol=1e-9, atol=1e-9)
    assert len((mix.path / "answered").read_text().split()) == 2


def test_a_round_that_the_shuffler_refuses_changes_nothing(mix):
    data = regression(8, 3, seed=1, equal=True)
    how = ShuffledSum(least=2, shuffler=mix.place.text())
    found = played(how, [range(3)], data)  # the shuffler's own least is 4

    assert len(found.outcomes[0].arrived) == 0
    assert torch.equal(found.engine.vector(), linear(3).w)


def test_between_institutions_there_is_no_sum_without_a_shuffler():
    data = regression(8, 3, seed=1, equal=True)
    with pytest.raises(ArchipelError, match="between institutions reports need a shuffler"):
        played(ShuffledSum(least=2), [range(8)], data)


STUDY = """
[data]
name = "heart_disease"

[study]
name = "shuffled"
rounds = 2

[algorithm]
name = "fedsgd"

[wire]
sum = "shuffled:least=3"

[privacy]
unit = "party"
trust = "shuffler"
noise = 0.3
delta = 1e-2
"""


@pytest.mark.slow
def test_sites_with_their_own_keys_a_coordinator_and_a_shuffler(tmp_path):
    """Six processes, mutual TLS, approval: two rounds, each shuffled once."""
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    run = asyncio.run(rehearse(path, 4, tmp_path))

    assert run.done == 2
    assert all(not cohort.missing for cohort in run.participation)
    assert len((tmp_path / "shuffler" / "answered").read_text().split()) == 2
    assert len(ShufflerFolder(tmp_path / "shuffler").members) == 4
    assert run.scorecard.privacy.promise.trust == "shuffler"
