"""Noise in shares between institutions: a secure sum over letters, and sites that count in it."""

import asyncio

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.secure import SecureSum
from archipel.engines.network.fitting import keepable
from archipel.engines.network.in_process import play
from archipel.engines.network.party_state import PartyState
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError
from archipel.federation.site import ledger
from archipel.federation.site.account import epsilon_of, for_records
from archipel.privacy.promise import Privacy
from archipel.privacy.release import DiscreteGaussian, Release
from archipel.tree import leaves
from archipel.wire.wire import Wire
from network.test_federation import attend, coordinator, members, simulated, text_of
from problems import classification, network

DATA = classification(5, 4, 3, 0)
ROUNDS = [[0, 1, 2, 3, 4], [0, 2, 3], [0, 1, 2, 3, 4]]
SECURE = Wire(sum=SecureSum())


def promised(**more):
    return Privacy("party", trust="sum", **{"noise": 1e-9, "clip": 50.0, "honest": 2} | more)


def played(algorithm, rounds=ROUNDS, **more):
    return asyncio.run(
        play(algorithm, DATA, network(4, 3), rounds, wire=SECURE, privacy=promised(**more))
    )


@pytest.mark.parametrize("algorithm", [ar.FedAvg(lr=0.1), ar.Scaffold(lr=0.05)], ids=repr)
def test_over_letters_it_is_the_plain_algorithm_but_for_noise(algorithm):
    """Every party counts once."""
    with ar.LocalEngine(
        algorithm, DATA, network(4, 3), plan=Plan("one", 1, 1), rounds=3,
        privacy=Privacy("party", noise=1e-12, clip=50.0),
    ) as engine:  # fmt: skip
        for t, cohort in enumerate(ROUNDS):
            engine.round(t, cohort)
        plain = list(leaves(engine.shared))

    found = list(leaves(played(algorithm).engine.shared))
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=3e-4)  # steps of 1/40,000 for 1024


def test_a_round_of_fewer_sites_than_promised_changes_nothing():
    found = played(ar.FedAvg(lr=0.1), [[0, 1], [0, 1, 2, 3]])
    assert [len(each.arrived) for each in found.outcomes] == [0, 4]


def test_every_site_finds_the_same_plan_by_itself_and_draws_of_its_own_secrets():
    promise = promised(noise=None, epsilon=8.0, clip=1.0)
    states = [
        PartyState(
            ar.FedAvg(lr=0.1),
            DATA.select(np.array([k])),
            network(4, 3),
            party=k,
            seed=0,
            rounds=3,
            wire=SECURE,
            privacy=promise,
            parties=count,
        )
        for k, count in ((0, 5), (3, None))
    ]
    releases = [state.kept.releases(state.party, 3) for state in states]
    assert releases[0] == releases[1]
    (release,) = releases[0]
    assert isinstance(release.mechanism, DiscreteGaussian) and release.mechanism.shares == 2
    assert states[0].protection.least == 3
    far = epsilon_of(for_records(releases[0], "replace"), 1e-5)
    assert far == pytest.approx(states[0].kept.spent({0: 3})[0], rel=1e-9)


def test_between_institutions_the_honest_have_to_be_said():
    promise = Privacy("party", trust="sum", epsilon=8.0)
    with pytest.raises(ArchipelError, match=r"such as privacy\.honest = 3"):
        keepable(promise, ar.FedAvg(0.1), DATA, network(4, 3), seed=0, rounds=3, wire=SECURE)


@pytest.mark.slow
def test_between_sites_every_round_is_in_each_ledger(tmp_path):
    private = {"unit": "party", "trust": "sum", "noise": 1e-9, "clip": 100.0, "honest": 3}
    changes = {f"privacy.{key}": value for key, value in private.items()}
    text = text_of(
        "scaffold",
        **{"study.rounds": 2, "algorithm.batch_size": "none", "wire.sum": "secure", **changes},
    )

    async def run():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await one.run(digest)
            await asyncio.gather(*attending)
            return run, [site for site, _ in sites]

    run, sites = asyncio.run(run())
    expected = simulated(text)
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-3, atol=1e-3)
    for site in sites:
        entries = ledger.entries(site)
        assert [each.round for each in entries] == list(range(1, run.done + 1))
        for each in entries:
            (release,) = each.releases
            assert isinstance(release, Release) and release.mechanism.shares == 3
            assert (each.unit, each.neighbours) == ("party", "replace")
    told = run.scorecard.privacy
    assert told.promise.trust == "sum" and told.promise.honest == 3
    assert "as long as 3 parties of every sum" in told.guarantee
