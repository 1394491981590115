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
from archipel.engines.engine import Cause
from archipel.engines.network.presence import Adjourned
from archipel.engines.network.transport import Cut
from archipel.engines.plan import Plan
from archipel.federation.site.site import Site
from archipel.study import plugins
from archipel.study.file import Study
from network.test_federation import attend, coordinator, joined
from network.test_registry import approve
from network.test_wire import PARTIES, Federation
from wire.examples import SecureSum

NAMES = ["aachen", "bonn", "celle", "dessau", "essen"]
FEATURES, ROUNDS = 40, 3
PARTS = {  # as a package's entry points say it
    "archipel.wire": {"clip_and_noise": "clip_and_noise:ClipAndNoise", "int8": "int8:Int8"},
    "archipel.rules": {"krum": "krum:Krum"},
    "archipel.sums": {"secure_sum": "secure_sum:SecureSum"},
}
INT8, SUM = {"up": ["int8"]}, {"sum": "secure_sum"}


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
        ("fedavg", {"rule": "krum:1:3"}, False),
        ("fedavg", SUM, True),
        ("scaffold", SUM, True),
        ("fedavg", {"up": ["clip_and_noise:0.5:0.0"], **SUM}, True),
    ],
    ids=["clip", "int8", "krum", "secure sum", "secure sum, scaffold", "clip, secure sum"],
)
def test_a_study_between_sites_is_its_simulation(tmp_path, algorithm, wire, sums_only):
    sees = {"privacy": {"server_sees": "sums"}} if sums_only else {}
    study = study_of(tmp_path, algorithm, wire, **sees)

    run, noted = between_sites(tmp_path, study)

    expected = study.run(None, baselines=False)
    assert_same(run, expected)
    assert_bytes(run, expected)
    assert noted == run.spent.up
    assert run.anatomy.sums_only == expected.anatomy.sums_only == sums_only
    if wire is INT8:
        p = len(run.vector)
        assert run.spent.up == ROUNDS * len(NAMES) * (p + 4)  # a byte a number, and a scale
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
        tmp_path, "fedavg", {"rule": "krum:1:3"}, privacy={"server_sees": "sums"}
    )  # fmt: skip

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, _ = await members(one, tmp_path, study)
            with pytest.raises(ar.ArchipelError, match=r"wire\.rule, Krum.*single uploads"):
                await one.run(digest)

    asyncio.run(asyncio.wait_for(play(), 600))


# -- sites and coordinators that stop --------------------------------------------------------------


def stop_after(site, t, messages):
    """Have a site end when it has answered so many messages of round t."""
    make = site.link

    def link():
        made = make()
        ask, attending = made.ask, asyncio.current_task()

        async def until(letter):
            answer = await ask(letter)
            if letter.kind == "upload" and (letter["round"], letter["number"]) == (t, messages - 1):
                attending.cancel()
                await asyncio.sleep(60)
            return answer

        made.ask = until
        return made

    site.link = link


@pytest.mark.parametrize("answered", [1, 2, 3])
def test_a_site_that_stops_between_two_messages_does_not_stop_a_secure_sum(tmp_path, answered):
    """In the second round, after so many messages; it does not come back."""
    study = study_of(tmp_path, "fedavg", SUM, round={"quorum": 3})

    async def play():
        async with coordinator(tmp_path / "c", silence=2.0) as one:
            digest, sites = await members(one, tmp_path, study)
            stop_after(sites[2][0], 1, answered)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await asyncio.wait_for(one.run(digest), 600)
            gone = attending.pop(2)
            with suppress(asyncio.CancelledError):
                await gone
            assert gone.cancelled()
            assert await asyncio.gather(*attending) == [ROUNDS] * 4
            return run

    run = asyncio.run(asyncio.wait_for(play(), 600))
    data = study.federation()
    wire = ar.Wire(sum=SecureSum())
    with ar.LocalEngine(
        study.algorithm_object, data, study.build_model(data), plan=Plan("one", 1, 1), wire=wire
    ) as engine:
        engine.round(0, range(5))
        engine.round(1, range(5), answers=np.array([9, 9, answered, 9, 9]))
        engine.round(2, [0, 1, 3, 4])
        expected = engine.vector()
    assert [len(cohort.present) for cohort in run.participation] == [5, 4, 4]
    torch.testing.assert_close(run.vector, expected, rtol=1e-6, atol=1e-6)
