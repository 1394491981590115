# SPDX-License-Identifier: Apache-2.0
"""Correlated noise between institutions: what attempts, restarts and missed rounds make of it."""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError
from archipel.federation.site import ledger
from archipel.federation.site.looking import review_at
from archipel.privacy.promise import Privacy
from archipel.tree import leaves
from network.homes import made_site
from network.test_federation import attend, coordinator, members, simulated, text_of
from network.test_privacy import Desk
from problems import classification, network

DATA = classification(5, 4, 3, 0)


@dataclass(frozen=True)
class Twice:
    """Two messages a round: a gradient, and one where the mean of the first leads."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        mean = yield me.grad(w)
        return me.grad(w - self.lr * mean), None

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        return w - self.lr * uploads.mean()


@dataclass(frozen=True)
class Mixing:
    """A peer that mixes what it made of its records."""

    def init(self, w):
        return w

    def party(self, me, w):
        return me.mix(w - 0.1 * me.grad(w))


def party_of(algorithm, rounds=4, **options):
    promise = Privacy("record", noise=1.0, correlated="banded:2")
    return PartyState(
        algorithm, DATA.select(np.array([1])), network(4, 3), party=1, rounds=rounds, parties=5,
        privacy=promise, **options,
    )  # fmt: skip


def noise_of(party):
    return party.own.state.noise


def test_a_round_that_does_not_count_has_used_its_noise():
    party = party_of(ar.Scaffold(0.1, local_steps=2, batch_size=3))
    w = leaves(party.anatomy.sent)
    party.work(0, 0, w)
    made = party.turn.own.state
    party.verdict(0, False)
    assert int(noise_of(party).t) == 2
    assert torch.equal(noise_of(party).rows[0], made.noise.rows[0])
    assert float(party.own.state.inner.abs().sum()) == 0  # the control variate is as it was
    party.work(1, 0, w)
    party.verdict(1, True)
    assert int(noise_of(party).t) == 4


def test_after_a_restart_the_same_noise_is_sent_again():
    party = party_of(Twice())
    w = leaves(party.anatomy.sent)
    first, _ = party.work(0, 0, w)
    reply = [torch.full_like(w[0], 0.1)]
    kept = party.state()
    second, _ = party.work(0, 1, reply)
    again = party_of(Twice())
    again.restore(kept)
    assert torch.equal(again.work(0, 0, w)[0][0], first[0])
    assert torch.equal(again.work(0, 1, reply)[0][0], second[0])
    again.verdict(0, True)
    party.verdict(0, True)
    for one, other in zip(leaves(noise_of(party)), leaves(noise_of(again)), strict=True):
        assert torch.equal(one, other)
    stored = party_of(Twice())
    stored.restore(again.state())
    assert int(noise_of(stored).t) == 2


def test_other_words_in_the_middle_of_a_round_are_not_answered():
    """The row has left with the noise of before."""
    party = party_of(Twice())
    w = leaves(party.anatomy.sent)
    party.work(0, 0, w)
    party.work(0, 1, [torch.full_like(w[0], 0.1)])
    with pytest.raises(Refused, match="came again with other contents"):
        party.work(0, 1, [torch.full_like(w[0], 0.2)])


def test_a_round_that_is_broken_off_is_not_begun_with_the_same_rows():
    party = party_of(Twice())
    w = leaves(party.anatomy.sent)
    party.work(0, 0, w)  # nothing more of it comes
    party.work(1, 0, w)
    party.work(1, 1, [torch.full_like(w[0], 0.1)])
    party.verdict(1, True)
    assert int(noise_of(party).t) == 4


def test_a_peer_whose_round_is_broken_off_goes_on_with_other_rows_and_other_secrets():
    party = party_of(Mixing())

    def lost(x, *_):
        raise Refused("behind.")

    with pytest.raises(Refused):
        party.alone(0, lost)
    assert int(noise_of(party).t) == 1 and party.secrets is None
    party.own, _ = party.alone(1, lambda x, *_: x)
    assert int(noise_of(party).t) == 2


def test_a_site_sits_out_what_the_study_says():
    party = party_of(ar.FedSGD(0.1), rounds=6, separation=3)
    w = leaves(party.anatomy.sent)
    party.work(0, 0, w)
    with pytest.raises(Refused, match=r"round\.separation is 3: it sits out"):
        party.work(2, 0, w)
    party.work(3, 0, w)
    with pytest.raises(ArchipelError, match=r"round\.separation = 2: Mixing has no server"):
        party_of(Mixing(), separation=2)


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "record", "noise": 1e-9, "clip": 100.0, "correlated": "banded:2"},
        {"unit": "party", "noise": 1e-9, "clip": 100.0, "correlated": "tree"},
    ],
    ids=lambda each: each["unit"],
)
def test_between_sites_it_is_the_simulation_and_the_ledger_is_the_same(tmp_path, privacy):
    changes = {f"privacy.{key}": value for key, value in privacy.items()}
    text = text_of("fedavg", **{"algorithm.batch_size": 8, **changes})

    async def run():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await one.run(digest)
            await asyncio.gather(*attending)
            return run, [site for site, _ in sites]

    run, sites = asyncio.run(run())
    expected = simulated(text)
    if privacy["unit"] == "record":  # by party, batches are drawn as ever
        torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)
    for k, site in enumerate(sites):
        released = [release for each in ledger.entries(site) for release in each.releases]
        together = sum(each.mechanism.noise**-2 for each in released) ** -0.5
        (planned,) = expected.kept.releases(k, 4)
        assert together == pytest.approx(planned.mechanism.noise, rel=1e-9)


def test_a_review_says_how_noise_is_correlated_and_rounds_are_charged_up_to_the_plan(tmp_path):
    site = made_site(tmp_path / "home")
    desk = Desk(site, tmp_path, privacy={"correlated": "tree"}, algorithm={"batch_size": 8})
    said = " ".join(review_at(site, desk.text, desk.empty, [], desk.rows).split())
    assert "(ε, δ) = (2, 1e-05) for each of your training records" in said
    assert "noise is correlated over rounds (tree): a part of it is taken back later" in said
    apart = Desk(
        site, tmp_path, name="apart", privacy={"unit": "party", "correlated": "banded"},
        round={"separation": 3},
    )  # fmt: skip
    said = " ".join(review_at(site, apart.text, apart.empty, [], apart.rows).split())
    assert "enough if it asks you once in 3 rounds at most" in said
    assert "after one a site sits out 2" in said
    adaptive = Desk(site, tmp_path, name="adaptive", privacy={"unit": "party", "clip": "adaptive"})
    said = " ".join(review_at(site, adaptive.text, adaptive.empty, [], adaptive.rows).split())
    assert "the clip follows the uploads: yours says, besides, whether it was longer" in said
