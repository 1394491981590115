# SPDX-License-Identifier: Apache-2.0
"""Sites at their own pace, over TLS: nobody waits for a slow one, and anything may be killed.

What a kill leaves is compared with the same steps in one process, without faults: each upload of
the journal from the version that its site signed.
"""

import asyncio
import random
import re

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.cli.rehearse import _paces
from archipel.engines.network.fitting import fitted
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.server import Steps, Upload
from archipel.engines.plan import threads
from archipel.federation.coordinator.evidence import Evidence
from archipel.federation.coordinator.status import status_of
from archipel.tree import leaves
from network.processes import Drill
from network.test_federation import attend, coordinator, members, simulated, text_of

BUFF = {"algorithm.by_examples": True, "algorithm.batch_size": 16}


def test_with_equal_pace_and_all_sites_in_the_buffer_a_study_is_fedavgs_simulation(tmp_path):
    text = text_of("fedbuff", **{**BUFF, "algorithm.buffer": 4})

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            async with asyncio.timeout(600):
                run = await one.run(digest)
                assert await asyncio.gather(*attending) == [4] * 4
            return run

    run = asyncio.run(play())

    expected = simulated(text_of("fedavg", **{"algorithm.batch_size": 16}))
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)
    assert all(len(cohort.present) == 4 and not cohort.stale for cohort in run.participation)
    assert [entry["sites"] for entry in run.history] == [[f"site-{k}" for k in range(4)]] * 4


def test_a_slow_site_holds_nobody_up_and_scores_every_model_beside_its_work(tmp_path):
    text = text_of("fedbuff", **{**BUFF, "algorithm.buffer": 2, "study.rounds": 6})

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            gate, slow = asyncio.Event(), sites[3][0]
            slow.pace = gate.wait
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            async with asyncio.timeout(600):
                run = await one.run(digest)
                status = status_of(one)["studies"][digest]
                gate.set()
                assert await asyncio.gather(*attending) == [6] * 4
            keys = {site.name: {site.identity.public} for site, _ in sites}
            items = Evidence(one.home.evidence).check(digest, keys)
            return run, status, items, slow

    run, status, items, slow = asyncio.run(play())

    arrived = [cohort.present.tolist() for cohort in run.participation]
    assert all(len(each) == 2 and 3 not in each for each in arrived)
    assert not any(cohort.missing for cohort in run.participation)
    assert [entry["sites"] for entry in run.history] == [[f"site-{k}" for k in range(4)]] * 6
    assert status["contributions"]["site-3"] == {"uploads": 0, "stale": 0.0, "most": 0}
    assert sum(each["uploads"] for each in status["contributions"].values()) == 12
    assert items >= 12 + 6 * 4
    sent = [entry.detail for entry in slow.audit.entries("sent")]
    assert [each["kind"] for each in sent] == ["scores"] * 6  # nothing of its data but these


REFUSED = {
    "a buffer that is never full": ({"algorithm.buffer": 5}, "algorithm.buffer = 5: 4 sites"),
    "a quorum above it": ({"algorithm.buffer": 2, "round.quorum": 3}, "round.quorum = 3: a step"),
    "some to spare": ({"round.over_select": 0.5}, "round.over_select = 0.5: FedBuff waits for no"),
    "rounds to sit out": ({"round.separation": 2, "round.sample": 2}, "round.separation = 2"),
    "a sum of one": (
        {"algorithm.buffer": 1, "wire.sum": "secure"},
        "algorithm.buffer = 1 and wire.sum, SecureSum: a round has 1 party",
    ),
    "a step that all of a version share, and a sum": (
        {"wire.sum": "secure", "wire.up": ["random_k:0.5:common=true"]},
        "wire.up and wire.sum: FedBuff adds up uploads that began from several versions",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_before_the_first_round(tmp_path, what):
    changes, why = REFUSED[what]

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, _ = await members(one, tmp_path, text_of("fedbuff", **changes), 4)
            await one.run(digest)

    with pytest.raises(ar.ArchipelError, match=re.escape(why)):
        asyncio.run(play())


@pytest.mark.parametrize("said", ["4=1", "-1=1", "1=-2", "1=inf", "1=nan", "va=5", "1", "=", ""])
def test_a_slow_site_of_a_rehearsal_is_a_number_and_seconds(said):
    with pytest.raises(ar.ArchipelError, match="give a site's number from 0 to 3, and seconds"):
        _paces([said], 4)
    assert _paces(["3=5", "0=0.5"], 4) == {3: 5.0, 0: 0.5}


# -- killed ----------------------------------------------------------------------------------------


def versions_of(drill):
    """By site, the version and the round of every upload that it signed and that was taken."""
    found = {}
    for _, item in Evidence(drill.home.evidence).items(drill.hash):
        if item is not None and item.kind == "upload":
            version = int(re.search(r"^version=(\d+)$", item.signed, re.MULTILINE)[1])
            found.setdefault(int(item.site.removeprefix("site-")), {})[version] = item.round
    return found


def replayed(drill):
    """The shared state after the journal's steps, in one process."""
    data, signed = drill.study.federation(), versions_of(drill)
    algorithm, parties = drill.study.algorithm_object, data.training
    how = (algorithm, data, drill.study.build_model(data), 0, drill.study.study.seed)
    boxes, anatomy = fitted(*how, None, parties)
    shared = [anatomy.shared]
    for t, row in enumerate(drill.rows):
        uploads, out = {}, {int(k) for k in row["missing"]}
        for k in [k for k in row["sampled"] if k not in out]:
            version = max(v for v in signed[k] if v <= t)
            joined, mine = signed[k][version], data.select(np.array([k]))
            assert joined - version == row["late"].get("stale", {}).get(str(k), 0)
            model = drill.study.build_model(data)
            state = PartyState(algorithm, mine, model, party=k, seed=drill.study.study.seed)
            state.admission = lambda *_, joined=joined: (joined, 0)
            arrays, gradients = state.work(version, 0, leaves(shared[version]))
            uploads[k] = Upload(arrays, state.n, gradients)
        steps = Steps(boxes, anatomy, shared[t], parties, t)
        shared.append(steps.take(uploads)[0] if row["counted"] else shared[t])
    return shared[-1]


def with_drill(folder, sites, changes, play, seconds, **options):
    async def main():
        async with Drill(folder, sites, changes, **options) as drill:
            async with asyncio.timeout(seconds):
                await play(drill)
                return drill

    return asyncio.run(main())


def settled(drill):
    """No round lost or done twice, every audit log whole, and the model that of its steps."""
    assert [row["round"] for row in drill.rows] == list(range(1, drill.study.study.rounds + 1))
    assert all(row["counted"] for row in drill.rows)
    assert drill.audited() > 0
    with threads(1):
        expected = replayed(drill)
    print("difference:", float((drill.vector() - expected).abs().max()))
    torch.testing.assert_close(drill.vector(), expected, rtol=1e-6, atol=1e-6)


ALL = {**BUFF, "algorithm.name": "fedbuff", "round.quorum": 1.0, "round.on_missing": "wait"}


@pytest.mark.slow
def test_a_site_and_the_coordinator_are_killed_and_the_steps_are_the_same(tmp_path):
    """Both in every step, so that it is FedAvg's simulation, whatever was killed."""

    async def play(drill):
        await drill.enrol()
        await drill.start()
        await drill.until_round(2)
        await drill.processes[1].kill()
        await drill.restart()
        await drill.until_up()
        await drill.processes[1].start()
        await drill.finished()

    drill = with_drill(tmp_path, 2, {**ALL, "study.rounds": 4, "algorithm.buffer": 2}, play, 240)
    settled(drill)
    assert not any(row["missing"] or row["late"] for row in drill.rows)


MOMENTS = ("at work", "at work", "checkpoint", "committed", "starting")


async def kill_coordinator(drill, draws, t):
    moment = draws.choice(MOMENTS)
    await drill.until_round(t)
    await drill.until_begun()
    if moment == "at work":
        await asyncio.sleep(draws.uniform(0, 1.5))
    if moment == "starting":
        await drill.restart()
        await asyncio.sleep(draws.uniform(0, 3))
    if moment in ("checkpoint", "committed"):
        await drill.until_round(t + 1)
    if moment == "committed":
        await drill.until(lambda files: f"checkpoint-{t:06d}.safetensors" not in files)
    await drill.restart()
    print(f"coordinator killed in round {t + 1}, {moment}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_killed_again_and_again_with_half_of_the_sites_in_a_step(tmp_path, seed):
    """Coordinator and sites: work under way counts after a restart, or is begun anew."""
    draws = random.Random(seed)

    async def play(drill):
        await drill.enrol()
        await drill.start()
        for t in sorted(draws.sample(range(1, 19), 10)):
            if draws.random() < 0.6:
                await kill_coordinator(drill, draws, t)
            else:
                k = draws.randrange(drill.sites)
                await drill.until_round(t)
                await asyncio.sleep(draws.uniform(0, 1.0))
                await drill.processes[k].kill()
                await drill.processes[k].start()
                print(f"site {k} killed after round {t}")
        await drill.finished()

    changes = {**BUFF, "algorithm.name": "fedbuff", "algorithm.buffer": 2}
    settled(with_drill(tmp_path, 4, changes, play, 1500))
