# SPDX-License-Identifier: Apache-2.0
"""What examples/wire shows works between institutions: over gRPC with TLS as in a simulation.

Both ends know the parts by names that an installed package would give them.
"""

import asyncio
from contextlib import suppress
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch

import archipel as ar
import wire.examples  # noqa: F401 - has Python find the parts
from archipel.aggregation.secure import SecureSum
from archipel.engines.engine import Cause
from archipel.engines.network.presence import Adjourned
from archipel.engines.plan import Plan
from archipel.federation.site.site import Site
from archipel.study import plugins
from archipel.study.file import Study
from network.test_federation import attend, coordinator, joined
from network.test_registry import approve
from network.test_wire import DATA, FEDAVG, PARTIES, Federation
from problems import network

NAMES = ["aachen", "bonn", "celle", "dessau", "essen"]
FEATURES, ROUNDS = 40, 3
PARTS = {  # as a package's entry points say it
    "archipel.wire": {"clip_and_noise": "clip_and_noise:ClipAndNoise", "int8": "int8:Int8"},
    "archipel.rules": {"krum": "krum:Krum"},
}
INT8, SUM, KRUM = {"up": ["int8"]}, {"sum": "secure"}, {"rule": "krum:1:3"}
WHOLE = {"simulate": {"protocols": True}}  # as between sites, message by message


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The parts are known by name at the coordinator and at every site."""
    there = plugins.entry_points

    def entry_points(group):
        added = [EntryPoint(name, what, group) for name, what in PARTS.get(group, {}).items()]
        return [*there(group=group), *added]

    monkeypatch.setattr(plugins, "entry_points", entry_points)


def study_of(folder, algorithm, wire, **sections):
    """A study of five tables, with what is between the sites and the server."""
    rng = np.random.default_rng(3)
    (folder / "tables").mkdir()
    columns = ",".join([*(f"x{j}" for j in range(FEATURES)), "ill"])
    for k, name in enumerate(NAMES):
        x, y = rng.normal(0.2 * k, 1.0, (10 + 3 * k, FEATURES)), rng.integers(2, size=10 + 3 * k)
        np.savetxt(
            folder / "tables" / f"{name}.csv", np.column_stack([x, y]), delimiter=",",
            header=columns, comments="", fmt=["%.4f"] * FEATURES + ["%d"],
        )  # fmt: skip
    tables = {
        "study": {"name": "five", "rounds": ROUNDS},
        "data": {"folder": "tables", "target": "ill", "standardise": False},
        "algorithm": {"name": algorithm, "lr": 0.05, "batch_size": 4},
        "wire": wire,
    }
    return Study.parse({**tables, **sections}, folder)


async def members(one, path, study):
    """Sites that joined and approved the study, with their data."""
    digest, fed, sites = one.home.submit(study.toml().encode()), study.federation(), []
    for k, name in enumerate(NAMES):
        site, data = await joined(one, path, name), fed.select(np.array([k]))
        await approve(one, site, digest, data)
        sites.append((site, data))
    return digest, sites


def between_sites(path, study):
    """The coordinator's run of a study, and the bytes of all uploads as the sites noted them."""

    async def play():
        async with coordinator(path / "c") as one:
            digest, sites = await members(one, path, study)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await asyncio.wait_for(one.run(digest), 600)
            assert await asyncio.gather(*attending) == [ROUNDS] * len(NAMES)
            return run, sum(sent(site) for site, _ in sites)

    return asyncio.run(asyncio.wait_for(play(), 600))


def sent(site):
    said = [entry.detail for entry in site.audit.entries() if entry.what == "sent"]
    return sum(each["bytes"] for each in said if each["kind"] == "upload")


def assert_same(run, expected):
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)


def assert_bytes(run, expected):
    spent = {"up": expected.spent.up, "down": expected.spent.down}
    assert {"up": run.spent.up, "down": run.spent.down} == spent
    assert run.history[-1]["bytes"] == spent


@pytest.mark.parametrize(
    ("algorithm", "wire", "sums_only"),
    [
        ("fedavg", {"up": ["clip_and_noise:0.5:0.0"]}, True),
        ("fedavg", INT8, True),
        ("fedavg", KRUM, False),
        ("fedavg", SUM, True),
        ("scaffold", SUM, True),
        ("fedavg", {"up": ["clip_and_noise:0.5:0.0"], **SUM}, True),
    ],
    ids=["clip", "int8", "krum", "secure sum", "secure sum, scaffold", "clip, secure sum"],
)
def test_a_study_between_sites_is_its_simulation(tmp_path, algorithm, wire, sums_only):
    sees = {"privacy": {"server_sees": "sums"}} if sums_only else {}
    ruled = wire is KRUM
    rule = {"round": KRUM} if ruled else {}
    study = study_of(tmp_path, algorithm, {} if ruled else wire, **sees, **WHOLE, **rule)

    run, noted = between_sites(tmp_path, study)

    expected = study.run(None, baselines=False)
    assert_same(run, expected)
    assert_bytes(run, expected)
    assert noted == run.spent.up
    assert run.anatomy.sums_only == expected.anatomy.sums_only == sums_only
    if wire is INT8:
        p = len(run.vector)
        assert run.spent.up == ROUNDS * len(NAMES) * (
            p + 4 * 2
        )  # a scale of weights, one of biases
        assert run.spent.up < 0.3 * 4 * p * ROUNDS * len(NAMES)


def test_noise_of_real_sites_is_not_the_simulations(tmp_path):
    """It comes from the operating system: who knows the seed cannot take it away."""
    study = study_of(tmp_path, "fedavg", {"up": ["clip_and_noise:0.5:0.1"]})

    run, _ = between_sites(tmp_path, study)

    expected, again = (study.run(None, baselines=False) for _ in range(2))
    assert torch.equal(expected.vector, again.vector)
    assert (run.vector - expected.vector).abs().min() > 0
    assert (run.vector - expected.vector).abs().max() < 1.0
    assert_bytes(run, expected)
    assert run.anatomy.sums_only


def test_a_rule_that_looks_at_single_uploads_is_refused_where_sums_were_promised(tmp_path):
    study = study_of(
        tmp_path, "fedavg", {}, round={"rule": "krum:1:3"}, privacy={"server_sees": "sums"}
    )  # fmt: skip

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, _ = await members(one, tmp_path, study)
            with pytest.raises(ar.ArchipelError, match=r"round\.rule, Krum.*single uploads"):
                await one.run(digest)

    asyncio.run(asyncio.wait_for(play(), 600))


# -- sites and coordinators that stop --------------------------------------------------------------


def stop_after(site, t, messages, study=None):
    """Have a site end when it has answered so many messages of round t; of a study it says so."""
    make = site.link

    def link():
        made = make()
        ask, attending = made.ask, asyncio.current_task()

        async def until(letter):
            answer = await ask(letter)
            if letter.kind == "upload" and (letter["round"], letter["number"]) == (t, messages - 1):
                if study is not None:
                    await site.away(made, study, "stops")
                attending.cancel()
                await asyncio.sleep(600)
            return answer

        made.ask = until
        return made

    site.link = link


async def ended(task):
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize(
    ("answered", "says_so"),
    [
        (1, True),
        (2, False),
        pytest.param(3, True, marks=pytest.mark.slow),
        pytest.param(4, True, marks=pytest.mark.slow),
    ],
)
def test_a_site_that_stops_between_two_messages_does_not_stop_a_secure_sum(
    tmp_path, answered, says_so
):
    """In the second round, after so many messages; it does not come back."""
    study = study_of(tmp_path, "fedavg", SUM, round={"quorum": 3})

    async def play():
        async with coordinator(tmp_path / "c", silence=60.0 if says_so else 12.0) as one:
            digest, sites = await members(one, tmp_path, study)
            stop_after(sites[2][0], 1, answered, digest if says_so else None)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await asyncio.wait_for(one.run(digest), 600)
            await ended(attending.pop(2))
            assert await asyncio.gather(*attending) == [ROUNDS] * 4
            return run

    run = asyncio.run(asyncio.wait_for(play(), 600))
    data, answers = study.federation(), np.array([9, 9, answered, 9, 9])
    with ar.LocalEngine(
        study.algorithm_object, data, study.build_model(data), plan=Plan("one", 1, 1),
        wire=study.wire_object, protocols=True,
    ) as engine:  # fmt: skip
        engine.round(0, range(5))
        engine.round(1, range(5), answers=answers)
        engine.round(2, [0, 1, 3, 4])
        expected = engine.vector()
    masked = answered >= 3  # with the third message its upload is in the sum
    assert [len(cohort.present) for cohort in run.participation] == [5, 5 if masked else 4, 4]
    torch.testing.assert_close(run.vector, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "wire", "answered"),
    [("fedavg", INT8, 1), ("scaffold", SUM, 3)],
    ids=["int8", "secure sum"],
)
def test_all_that_stop_in_a_round_and_come_back_end_up_where_they_would_have(
    tmp_path, algorithm, wire, answered
):
    study = study_of(tmp_path, algorithm, wire, **WHOLE)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, study)
            stop_after(sites[2][0], 1, answered)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            running = asyncio.create_task(one.run(digest))
            await asyncio.wait_for(ended(attending.pop(2)), 300)
        with suppress(Adjourned):
            await running
        for task in attending:
            task.cancel()
            await ended(task)
        async with coordinator(tmp_path / "c") as one:
            again = [(Site(site.home), data) for site, data in sites]
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in again]
            run = await asyncio.wait_for(one.run(digest), 600)
            assert await asyncio.gather(*attending) == [ROUNDS] * len(NAMES)
            return run

    run = asyncio.run(asyncio.wait_for(play(), 900))
    expected = study.run(None, baselines=False)
    assert not any(cohort.missing for cohort in run.participation)
    assert_same(run, expected)
    assert_bytes(run, expected)


# -- too few ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("message", "few"), [(1, 2), (2, 3), (3, 3), (4, 4)])
def test_below_the_threshold_of_a_sum_a_round_changes_nothing_and_nobody_is_to_blame(message, few):
    """Two to four of five are lost: over letters as in a simulation."""
    wire = ar.Wire(sum=SecureSum())
    federation = Federation(wire)
    lost = dict.fromkeys(range(few), message)

    async def play():
        engine = federation.engine
        await federation.round(0, range(PARTIES))
        before = engine.vector().clone()
        outcome = await federation.round(1, range(PARTIES), lost)
        assert torch.equal(engine.vector(), before)
        after = await federation.round(2, range(PARTIES))
        return outcome, after, engine.vector()

    outcome, after, vector = asyncio.run(asyncio.wait_for(play(), 600))
    assert outcome.arrived.tolist() == []
    assert outcome.missing == dict.fromkeys(lost, Cause("left"))
    assert after.arrived.tolist() == [*range(PARTIES)]
    with ar.LocalEngine(
        FEDAVG, DATA, network(4, 3), plan=Plan("one", 1, 1), wire=wire, protocols=True
    ) as engine:
        engine.round(0, range(PARTIES))
        answers = np.array([lost.get(k, 9) for k in range(PARTIES)])
        simulated = engine.round(1, range(PARTIES), answers=answers)
        engine.round(2, range(PARTIES))
        torch.testing.assert_close(vector, engine.vector(), rtol=1e-9, atol=1e-9)
    assert (outcome.up, outcome.down) == (simulated.up, simulated.down)


def test_a_round_for_which_nobody_is_there_is_left_out_and_the_next_is_scored(tmp_path):
    """The first: sites that come after it are asked to score what is after a round of theirs."""
    study = study_of(tmp_path, "fedavg", INT8, round={"quorum": 5})

    async def play():
        async with coordinator(tmp_path / "c", silence=0.5) as one:
            digest, sites = await members(one, tmp_path, study)
            running = asyncio.create_task(one.run(digest))
            while (found := one.server_studies.get(digest)) is None or not found.sites._began:
                await asyncio.sleep(0.01)
            found.sites._silence = 60.0  # from the second wait on
            while not found.run.participation:
                await asyncio.sleep(0.01)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await asyncio.wait_for(running, 600)
            assert await asyncio.gather(*attending) == [ROUNDS] * len(NAMES)
            return run

    run = asyncio.run(asyncio.wait_for(play(), 600))
    assert not run.participation[0].counted
