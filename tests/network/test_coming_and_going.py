# SPDX-License-Identifier: Apache-2.0
"""Sites with tables of their own that come late, pause, leave and come back."""

import asyncio
import json
import threading
import urllib.request
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.data.features import Features
from archipel.data.schema import Schema
from archipel.engines.engine import Cause
from archipel.engines.plan import Plan
from archipel.federation.audit import Audit, check
from archipel.federation.certificates import Identity, Invitation
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.coordinator.refusals import MOST, Refusals
from archipel.federation.coordinator.status import overview, serve_metrics
from archipel.federation.rehearsal import _free_port
from archipel.federation.site import binding
from archipel.federation.site import service as service
from archipel.federation.site.site import Site
from archipel.runs.listing import open_run
from archipel.study.file import Study

STUDY = """
[study]
name = "clinics"
rounds = {rounds}
[data]
folder = "tables"
target = "ill"
missing = "mean"
[data.schema]
age = "number"
dose = "number"
kind = ["a", "b", "c"]
ill = [0, 1]
[algorithm]
name = "fedavg"
lr = 0.2
batch_size = 4
[round]
{policy}
"""


def write_tables(folder, sites):
    rng = np.random.default_rng(5)
    (folder / "tables").mkdir()
    for k in range(sites):
        rows = ["patient,age,dose,kind,ill"]
        for i in range(12 + 5 * k):
            age, ill = rng.normal(50 + 5 * k, 9), rng.integers(2)
            dose = "" if i % 7 == 3 else f"{rng.normal(2 + ill):.3f}"
            rows.append(f"{1000 * k + i},{age:.2f},{dose},{'abc'[rng.integers(3)]},{ill}")
        (folder / "tables" / f"clinic-{k}.csv").write_text("\n".join(rows) + "\n")


class Gate:
    """A watch that holds a study after some rounds until it is let go."""

    def __init__(self, *rounds):
        self._held = {t: (threading.Event(), threading.Event()) for t in rounds}

    def __call__(self, run):
        if run.done in self._held:
            there, go = self._held.pop(run.done)
            there.set()
            assert go.wait(600)

    def say(self, text):
        pass

    async def at(self, t):
        """Return when round t is done, with what lets the study go on."""
        there, go = self._held[t]
        assert await asyncio.to_thread(there.wait, 600)
        return go


class Clinics:
    """A coordinator and its sites in one process, each with a folder and a table."""

    def __init__(self, path, rounds=6, policy="", sites=4, database=None):
        self.path = path
        write_tables(path, sites)
        self.text = STUDY.format(rounds=rounds, policy=policy).encode()
        self.home = CoordinatorFolder.create(
            path / "c", "test", f"localhost:{_free_port()}", database
        )
        self.digest = self.home.submit(self.text)
        self.sites, self._stops, self._tasks = {}, {}, {}

    @asynccontextmanager
    async def coordinator(self, watch=None, say=lambda _: None, silence=30.0):
        one, stop = Coordinator(self.home, say=say, silence=silence), asyncio.Event()
        await one.up(self.home.address)
        serving = asyncio.create_task(one.serve(stop, watch))
        try:
            yield one
        finally:
            stop.set()
            await serving
            await one.down()

    async def approves(self, k):
        """Site k joins, binds its table and approves."""
        name = f"clinic-{k}"
        site = self.sites[k] = await Site.join(self.path / name, self.home.invite(name))
        link = site.link()
        text, _ = await site.fetch(link, self.digest)
        study = site.site_studies.read(self.digest)
        report = binding.bind(site.home / "data", study, self.path / "tables" / f"{name}.csv")
        assert report.ignored == ["patient"]
        schema = binding.schema_of(study)
        site.decide(text, "approved", ar.data.shadow.Facts.of(schema.empty(), counts=False))
        await site.tell(link)
        await link.close()

    def goes_up(self, k):
        self._stops[k] = asyncio.Event()
        self._tasks[k] = asyncio.create_task(
            service.up(self.sites[k], self._stops[k], lambda text: None)
        )

    async def goes_down(self, *which):
        for k in which or list(self._tasks):
            self._stops[k].set()
            await self._tasks.pop(k)

    async def done(self, one):
        for _ in range(12_000):
            if one.registry.study(self.digest).state in ("done", "failed"):
                break
            await asyncio.sleep(0.05)
        assert one.registry.study(self.digest).state == "done", one.registry.study(self.digest).note

    def replayed(self, run, scaling):
        """The vector that the recorded cohorts give on one machine."""
        study = Study.parse(self.text.decode(), self.path)
        schema: Schema = binding.schema_of(study)
        xs, ys = _points(self.path, schema, scaling, run.data.parties)
        fed = ar.Federation.from_arrays(xs, ys, test=0.0, classes=2)
        model = study.build_model(fed)
        with ar.LocalEngine(study.algorithm_object, fed, model, plan=Plan("one", 1, 1)) as engine:
            for t, cohort in enumerate(run.participation):
                engine.round(t, cohort.present)
            return engine.vector()


def _points(path, schema, scaling, sites):
    xs, ys, features = [], [], Features.of(schema, scaling)
    for k in range(sites):
        records = schema.read(path / "tables" / f"clinic-{k}.csv")
        train = ~records.is_test
        xs.append(features.apply(records.x[train]).float())
        ys.append(records.y[train])
    return xs, ys


def scaling_of(path, which):
    schema = binding.schema_of(Study.parse(STUDY.format(rounds=1, policy=""), path))
    read = [schema.read(path / "tables" / f"clinic-{k}.csv").sums() for k in which]
    total = read[0]
    for sums in read[1:]:
        total = total + sums
    return total.scaling()


def play(main):
    asyncio.run(asyncio.wait_for(main, 600))


def test_a_study_of_own_tables_is_its_simulation(tmp_path):
    clinics = Clinics(tmp_path, rounds=4)

    async def main():
        async with clinics.coordinator() as one:
            for k in range(4):
                await clinics.approves(k)
                clinics.goes_up(k)
            clinics.home.start("clinics")
            await clinics.done(one)
            await clinics.goes_down()

    play(main())
    run = open_run(clinics.home.run_of(clinics.digest))
    simulated = Study.parse(clinics.text.decode(), tmp_path).run(None, baselines=False)
    torch.testing.assert_close(run.vector, simulated.vector, rtol=1e-6, atol=1e-6)
    assert len(run.history) == 4
    sent = [
        entry.detail["kind"] for entry in clinics.sites[0].audit.entries() if entry.what == "sent"
    ]
    assert sent.count("sums") == 1
    assert sent.count("upload") == 4
    assert "not told" in run.report(tmp_path / "report.html").read_text()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    """The address of an empty database; None for SQLite in the coordinator's folder."""
    return None if request.param == "sqlite" else request.getfixturevalue("server").address()


def test_a_site_comes_late_and_the_coordinator_comes_back(tmp_path, database):
    """Who came late trains from then on and sends no sums; a restart changes nothing."""
    clinics, gate, again = Clinics(tmp_path, database=database), Gate(2, 4), Gate()

    async def main():
        async with clinics.coordinator(gate) as one:
            for k in (0, 1):
                await clinics.approves(k)
                clinics.goes_up(k)
            clinics.home.start("clinics")
            go = await gate.at(2)
            await clinics.approves(2)
            clinics.goes_up(2)
            while (
                "clinic-2" not in one.seen
                or 2 not in one.server_studies[clinics.digest].engine.presence.asked
            ):
                await asyncio.sleep(0.02)
            go.set()
            (await gate.at(4)).set()
        async with clinics.coordinator(again) as one:
            await clinics.done(one)
            await clinics.goes_down()

    play(main())
    run = open_run(clinics.home.run_of(clinics.digest))
    assert [cohort.sampled.tolist() for cohort in run.participation] == [[0, 1]] * 2 + [
        [0, 1, 2]
    ] * 4
    assert not any(cohort.missing for cohort in run.participation)
    scaling = scaling_of(tmp_path, (0, 1))
    torch.testing.assert_close(run.vector, clinics.replayed(run, scaling), rtol=1e-5, atol=1e-6)
    late = [entry.detail for entry in clinics.sites[2].audit.entries() if entry.what == "sent"]
    assert {each["kind"] for each in late} == {"upload", "scores"}
    assert sorted({e["round"] for e in late if e["kind"] == "upload"}) == [3, 4, 5, 6]
    assert any(event.kind == "joined" for event in run.events)


def test_a_database_that_drops_everybody_delays_a_study_and_does_not_end_it(tmp_path, server):
    clinics, gate = Clinics(tmp_path, rounds=5, database=server.address()), Gate(2)
    drop = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )

    async def main():
        async with clinics.coordinator(gate) as one:
            for k in (0, 1):
                await clinics.approves(k)
                clinics.goes_up(k)
            clinics.home.start("clinics")
            go = await gate.at(2)
            with server.connect() as connection:
                assert connection.execute(drop).fetchall()
            go.set()
            await clinics.done(one)
            await clinics.goes_down()

    play(main())
    run = open_run(clinics.home.run_of(clinics.digest))
    assert run.done == 5
    scaling = scaling_of(tmp_path, (0, 1))
    torch.testing.assert_close(run.vector, clinics.replayed(run, scaling), rtol=1e-5, atol=1e-6)


def test_a_study_may_take_nobody_late(tmp_path):
    clinics, gate = Clinics(tmp_path, rounds=3, policy="late_joiners = false"), Gate(1)

    async def main():
        async with clinics.coordinator(gate) as one:
            await clinics.approves(0)
            clinics.goes_up(0)
            clinics.home.start("clinics")
            go = await gate.at(1)
            with pytest.raises(ar.ArchipelError, match="takes no site after its first round"):
                await clinics.approves(1)
            found = clinics.sites[1].site_studies.decision(clinics.digest)
            assert "after its first round" in found.refused
            go.set()
            await clinics.done(one)
            await clinics.goes_down()

    play(main())


def test_nobody_comes_once_sites_may_have_met_for_sums_that_nobody_looks_into(tmp_path):
    """Those that are there would refuse the newcomer, and the study would stand still."""
    closed = 'late_joiners = false\n[wire]\nsum = "secure"'
    clinics = Clinics(tmp_path, rounds=3, policy=closed)

    async def main():
        async with clinics.coordinator():
            await clinics.approves(0)
            clinics.home.start("clinics")
            with pytest.raises(ar.ArchipelError, match="takes no site after its start"):
                await clinics.approves(1)

    play(main())


def test_a_site_pauses_resumes_and_leaves_and_is_named(tmp_path):
    clinics, gate = Clinics(tmp_path, rounds=8), Gate(2, 4, 6)

    async def main():
        async with clinics.coordinator(gate) as one:
            for k in (0, 1, 2):
                await clinics.approves(k)
                clinics.goes_up(k)
            clinics.home.start("clinics")
            go, server_study = await gate.at(2), one.server_studies[clinics.digest]
            clinics.sites[1].pause()
            go.set()
            go = await gate.at(4)
            clinics.sites[1].resume()
            while 1 not in server_study.engine.presence.asked:
                await asyncio.sleep(0.02)
            go.set()
            go = await gate.at(6)
            clinics.sites[2].leave([clinics.digest])
            while server_study.engine.presence.away.get(2) != Cause("left"):
                await asyncio.sleep(0.02)
            go.set()
            await clinics.done(one)
            await clinics.goes_down()

    play(main())
    run = open_run(clinics.home.run_of(clinics.digest))
    missing = [cohort.missing for cohort in run.participation]
    assert missing == [{}, {}, {1: Cause("paused")}, {1: Cause("paused")}, {}, {}, {}, {}]
    assert [len(cohort.sampled) for cohort in run.participation] == [3] * 6 + [2] * 2
    for k in (0, 1, 2):
        audit = clinics.sites[k].audit
        assert check(audit.path, audit.identity.public, audit.head)
    left = [entry.what for entry in clinics.sites[2].audit.entries()]
    assert "sent" not in left[left.index("withdrawn") :]
    scaling = scaling_of(tmp_path, (0, 1, 2))
    torch.testing.assert_close(run.vector, clinics.replayed(run, scaling), rtol=1e-5, atol=1e-6)


def test_what_a_site_decides_alone_is_told_when_the_coordinator_is_back(tmp_path):
    clinics = Clinics(tmp_path)

    async def main():
        async with clinics.coordinator():
            await clinics.approves(0)
        site = clinics.sites[0]
        site.leave([clinics.digest])
        site.pause()
        assert site.site_studies.untold() == [clinics.digest]
        clinics.goes_up(0)
        async with clinics.coordinator() as one:
            site.resume()
            while one.registry.decisions(clinics.digest)[0].decision != "withdrawn":
                await asyncio.sleep(0.02)
            await clinics.goes_down()

    play(main())


def test_a_table_that_was_changed_after_it_was_bound_is_not_used(tmp_path):
    write_tables(tmp_path, 1)
    study = Study.parse(STUDY.format(rounds=1, policy=""), tmp_path)
    file = tmp_path / "tables" / "clinic-0.csv"
    with pytest.raises(ar.ArchipelError, match="no table of this site is bound"):
        binding.records(tmp_path / "data", study)
    binding.bind(tmp_path / "data", study, file)
    assert len(binding.records(tmp_path / "data", study).x) == 12
    file.write_text(file.read_text() + "13,50.0,2.0,a,1\n")
    with pytest.raises(ar.ArchipelError, match="is not the table that was bound"):
        binding.records(tmp_path / "data", study)


# -- looking on ------------------------------------------------------------------------------------


def test_the_status_is_true_and_prometheus_reads_it(tmp_path):
    clinics, gate, port = Clinics(tmp_path, rounds=3), Gate(2), _free_port()

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()

    async def main():
        assert not overview(clinics.home)["up"]
        async with clinics.coordinator(gate) as one:
            await clinics.approves(0)
            clinics.goes_up(0)
            with clinics.home.occupied(), serve_metrics(one, f"127.0.0.1:{port}"):
                with pytest.raises(ar.ArchipelError, match="up in another process"):
                    await asyncio.to_thread(clinics.home.occupied().__enter__)
                clinics.home.start("clinics")
                with pytest.raises(ar.ArchipelError, match="is running already"):
                    clinics.home.start("clinics")
                go = await gate.at(2)
                text = await asyncio.to_thread(scrape)
                assert f'archipel_study_round{{study="{clinics.digest[:12]}"}} 2.0' in text
                assert 'archipel_letters_total{kind="upload"} 2.0' in text
                go.set()
                await clinics.done(one)
            await clinics.goes_down()

    play(main())
    (study,) = overview(clinics.home)["studies"]
    assert (study["state"], study["note"]) == ("done", "3 rounds")
    with pytest.raises(ar.ArchipelError, match="is done already"):
        clinics.home.start(clinics.digest[:8])
    with pytest.raises(ar.ArchipelError, match="unknown study 'other'"):
        clinics.home.start("other")


def test_refusals_cannot_fill_the_disk(tmp_path):
    audit, now = Audit(tmp_path / "audit.jsonl", Identity.create()), [0.0]
    refusals = Refusals(audit, lambda: now[0])
    for i in range(500):
        refusals.add("loud", "upload", f"reason {i}")
    refusals.add("other", "next", "no")
    now[0] = 61.0
    refusals.add("loud", "upload", "again")
    details = [entry.detail for entry in audit.entries()]
    assert len(details) == MOST + 3
    assert {"site": "loud", "more": 500 - MOST} in details
    assert refusals.total == 502


def test_a_token_is_text_that_json_holds(tmp_path):
    token = CoordinatorFolder.create(tmp_path / "c", "t", "localhost:1").invite("ulm").token()
    assert Invitation.read(json.loads(json.dumps(token))).site == "ulm"
