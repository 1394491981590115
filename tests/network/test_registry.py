# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a study, who may see it, and what its operator is shown."""

import asyncio
import json
import random
import shutil
import threading
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from archipel.data.shadow import Facts
from archipel.engines.engine import Cause
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError, RunFailed
from archipel.federation import approval
from archipel.federation.coordinator.coordinator import Coordinator, _why
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.coordinator.refusals import MOST
from archipel.federation.coordinator.status import overview, serve_metrics, status_of
from archipel.federation.peer.peer import PeerSite
from archipel.federation.rehearsal import _free_port
from archipel.federation.site.personal import personalise
from archipel.runs.listing import open_run
from archipel.study.file import Study
from network.test_coming_and_going import Clinics, Gate, play
from network.test_federation import attend, coordinator, joined, text_of
from network.test_peers import STUDY as PEERS
from network.test_peers import gathered

NAMES = ["aachen", "bonn", "celle", "dessau", "essen"]


def five(tmp_path, algorithm):
    """A study of five tables in a folder, and its bytes without the tables."""
    rng = np.random.default_rng(3)
    (tmp_path / "tables").mkdir()
    for k, name in enumerate(NAMES):
        x, y = rng.normal(k, 1.0, (8 + 3 * k, 3)), rng.integers(2, size=8 + 3 * k)
        rows = [f"{a:.4f},{b:.4f},{c:.4f},{label}" for (a, b, c), label in zip(x, y, strict=True)]
        (tmp_path / "tables" / f"{name}.csv").write_text("\n".join(["a,b,c,ill", *rows]) + "\n")
    tables = {
        "study": {"name": "five", "rounds": 3},
        "data": {"folder": "tables", "target": "ill", "standardise": False},
        "algorithm": {"name": algorithm, "lr": 0.1, "batch_size": 4},
    }
    return Study.parse(tables, tmp_path)


async def approve(one, site, digest, data):
    link = site.link()
    text, _ = await site.fetch(link, digest)
    site.decide(text, "approved", Facts.of(data))
    await site.tell(link)
    await link.close()


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_whoever_approves_first_the_result_is_the_simulations(tmp_path, algorithm, order):
    """E6: parties are numbered by name, so the order of approvals changes no draw."""
    study = five(tmp_path, algorithm)
    fed = study.federation()
    ranks = random.Random(order).sample(range(5), 5)
    assert ranks != sorted(ranks)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest = one.home.submit(study.toml().encode())
            attending = []
            for k in ranks:
                site, data = await joined(one, tmp_path, NAMES[k]), fed.select(np.array([k]))
                await approve(one, site, digest, data)
                attending.append(asyncio.create_task(attend(site, data, digest)))
            assert one.registry.party_states(digest) == []  # nobody has a number before the start
            run = await asyncio.wait_for(one.run(digest), 600)
            await asyncio.gather(*attending)
            return run, one.registry.party_states(digest)

    run, party_states = asyncio.run(play())
    expected = study.run(None, baselines=False)
    assert party_states == NAMES
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)


def test_late_sites_get_the_next_numbers_and_nobody_loses_one(tmp_path):
    text = text_of()
    data = Study.parse(text.decode()).federation().select(np.array([0]))

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest = one.home.submit(text)
            sites = {}
            for name in ("kiel", "ulm"):
                sites[name] = await joined(one, tmp_path, name)
                await approve(one, sites[name], digest, data)
            one.home.start("heart")
            for name in ("bonn", "aachen"):
                sites[name] = await joined(one, tmp_path, name)
                await approve(one, sites[name], digest, data)
            sites["kiel"].leave([digest])
            link = sites["kiel"].link()
            await sites["kiel"].tell(link)
            await link.close()
            asked = {}
            for name in ("ulm", "bonn", "aachen"):
                link = sites[name].link()
                asked[name] = await sites[name].place(link, digest)
                await link.close()
            return one.registry.party_states(digest), asked, sites["ulm"].site_studies.party(digest)

    party_states, asked, kept = asyncio.run(asyncio.wait_for(play(), 600))
    assert party_states == ["kiel", "ulm", "bonn", "aachen"]
    assert asked == {"ulm": 1, "bonn": 2, "aachen": 3}
    assert kept == 1


# -- sites that were revoked -----------------------------------------------------------------------


def test_a_revoked_peer_is_in_no_roster_and_no_list_of_members(tmp_path):
    """H4: a roster that is signed after the revocation does not name the peer."""

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, PEERS)
            one.home.revoke("peer-1", "left the federation")
            link = peers[0][0].link()
            _, members = await peers[0][0].fetch(link, digest)
            await link.close()
            one.registry.number(digest)
            server_study, _ = one._server_study(digest, asyncio.get_running_loop())
            return members, server_study.roster.read(one.home.authority.pem)

    members, roster = asyncio.run(asyncio.wait_for(play(), 600))
    assert members == ["peer-0", "peer-2", "peer-3"]
    assert [peer.name for peer in roster.peers] == members


def test_letters_of_a_revoked_site_are_counted_and_audited(tmp_path):
    """H4, E3: what a revoked site sends is refused, and its operator can see that."""

    async def play():
        async with coordinator(tmp_path / "c") as one:
            site = await joined(one, tmp_path, "ulm")
            one.home.revoke("ulm", "stolen")
            link = site.link()
            for _ in range(MOST + 5):
                with pytest.raises(ArchipelError, match="was revoked on"):
                    await site.studies(link)
            await link.close()
            return one.refused, [e.detail for e in one.audit.entries() if e.what == "refused"]

    refused, entries = asyncio.run(asyncio.wait_for(play(), 600))
    assert refused == MOST + 5
    assert len(entries) == MOST
    assert all(each["site"] == "ulm" and "was revoked" in each["reason"] for each in entries)


def test_a_site_revoked_in_mid_study_is_out_of_it_and_shown_so(tmp_path):
    """H4, E3: neither "approved" nor "away"."""
    clinics, gate = Clinics(tmp_path, rounds=4), Gate(1, 3)
    shown = {}

    async def main():
        async with clinics.coordinator(gate) as one:
            for k in (0, 1):
                await clinics.approves(k)
                clinics.goes_up(k)
            clinics.home.start("clinics")
            go, server_study = await gate.at(1), one.server_studies[clinics.digest]
            clinics.home.revoke("clinic-1", "stolen")
            while server_study.engine.presence.away.get(1) != Cause("revoked", "stolen"):
                await asyncio.sleep(0.02)
            go.set()
            go = await gate.at(3)
            shown.update(server_study.presence())
            go.set()
            await clinics.done(one)
            await clinics.goes_down()

    play(main())
    (study,) = overview(clinics.home)["studies"]
    assert shown["clinic-1"] == "revoked (stolen)"
    assert study["decisions"] == {"clinic-0": "approved", "clinic-1": "revoked"}
    run = open_run(clinics.home.run_of(clinics.digest))
    assert [len(cohort.sampled) for cohort in run.participation] == [2, 1, 1, 1]


# -- sites that come late --------------------------------------------------------------------------


def test_nobody_comes_late_while_the_study_is_stopped_or_the_coordinator_was_restarted(tmp_path):
    """M5: the journal says that rounds were done, whether the study is under way or not."""
    clinics, gate = Clinics(tmp_path, rounds=3, policy="late_joiners = false"), Gate(1)

    async def main():
        async with clinics.coordinator(gate) as one:
            await clinics.approves(0)
            clinics.goes_up(0)
            clinics.home.start("clinics")
            go, server_study = await gate.at(1), one.server_studies[clinics.digest]
            clinics.home.stop("clinics")
            while not server_study.engine.presence.adjourned:
                await asyncio.sleep(0.02)
            go.set()
            while clinics.digest in one.server_studies:
                await asyncio.sleep(0.02)
            with pytest.raises(ArchipelError, match="takes no site after its first round"):
                await clinics.approves(1)
        async with clinics.coordinator():
            with pytest.raises(ArchipelError, match="takes no site after its first round"):
                await clinics.approves(2)
            await clinics.goes_down()

    play(main())


def test_no_peer_comes_once_a_roster_is_signed_also_while_the_study_is_stopped(tmp_path):
    """M5 for peers: the roster on the disk says so."""

    async def main():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, PEERS, 3)
            one.registry.number(digest)
            one._server_study(digest, asyncio.get_running_loop())
            invitation = one.home.invite("late")
            late = await PeerSite.join_as_peer(tmp_path / "late", invitation, "localhost:1")
            with pytest.raises(ArchipelError, match="its roster is signed"):
                await approve(one, late, digest, peers[0][1])

    play(main())


# -- who may see a study, and have its model -------------------------------------------------------


def test_a_study_for_some_sites_is_none_to_others(tmp_path):
    """M8: neither its name, text and members nor anything that a site may send tells of it."""
    text = text_of()
    data = Study.parse(text.decode()).federation().select(np.array([0]))

    async def main():
        async with coordinator(tmp_path / "c") as one:
            ulm, bonn = [await joined(one, tmp_path, name) for name in ("ulm", "bonn")]
            digest = one.home.submit(text, ["ulm"])
            await approve(one, ulm, digest, data)
            bonn.decide(text, "approved", Facts.of(data))  # it has the bytes from elsewhere
            link = bonn.link()
            assert await bonn.studies(link) == {}
            sentences = []
            for study in (digest, "0" * 64):
                asked = [Letter("study", {"study": study}), *letters_of(bonn, study, data)]
                for letter in asked:
                    with pytest.raises(Refused) as refused:
                        await link.ask(letter)
                    sentences.append(str(refused.value).replace(study, "HASH"))
            await link.close()
            assert sentences[: len(asked)] == sentences[len(asked) :]
            assert [d.site for d in one.registry.decisions(digest)] == ["ulm"]

    def letters_of(site, study, data):
        for decision in ("approved", "rejected"):
            facts = Facts.of(data).to_json()
            said = approval.statement(site.name, study, decision, facts)
            signature = site.identity.sign(said)
            fields = {"study": study, "decision": decision, "facts": facts}
            yield Letter("approve", {**fields, "signature": signature})
        for kind in ("place", "model", "scale", "roster"):
            yield Letter(kind, {"study": study})
        yield Letter("next", {"study": study, "pending": -1, "busy": None})

    play(main())


def test_a_finished_model_is_for_those_who_took_part_or_are_named(tmp_path):
    """M8: a member that had no part is told so, and gets it once the operator names it."""
    text = text_of(**{"study.rounds": 1})
    fed = Study.parse(text.decode()).federation()

    async def main():
        async with coordinator(tmp_path / "c") as one:
            digest = one.home.submit(text)
            ulm, data = await joined(one, tmp_path, "ulm"), fed.select(np.array([0]))
            await approve(one, ulm, digest, data)
            attending = asyncio.create_task(attend(ulm, data, digest))
            await one.run(digest)
            await attending
            bonn = await joined(one, tmp_path, "bonn")
            with pytest.raises(ArchipelError, match="is done and bonn took no part in it"):
                await approve(one, bonn, digest, data)
            with pytest.raises(ArchipelError, match="has not approved this study"):
                await personalise(bonn, digest, data)
            one.home.submit(text, ["bonn"])
            await approve(one, bonn, digest, data)
            assert await personalise(bonn, digest, data)
            assert await personalise(ulm, digest, data)

    play(main())


def test_a_study_is_found_by_hash_or_by_a_name_that_only_it_has(tmp_path):
    """M8: a name never stands for a hash, nor for one of several studies."""
    home = CoordinatorFolder.create(tmp_path / "c", "t", "localhost:1")
    first = home.submit(text_of())
    second = home.submit(text_of(**{"study.rounds": 9}))
    both = f"{first[:12]} or {second[:12]}"

    with pytest.raises(ArchipelError, match="could be meant as a hash"):
        home.submit(text_of(**{"study.name": "beef"}))
    with pytest.raises(ArchipelError, match=f"2 studies are called so; .* its hash, {both}"):
        home.stop("heart")
    assert home.stop(second[:6]).hash == second
    with pytest.raises(
        ArchipelError, match="study '0000': no study here has a hash that begins so"
    ):
        home.stop("0000")


# -- what its operator sees ------------------------------------------------------------------------


def test_a_stalled_study_looks_stalled_everywhere(tmp_path, monkeypatch):
    """E3: status, log and Prometheus say that it waits for sites, and for how many."""
    monkeypatch.setattr("archipel.federation.coordinator.notices._GRACE", 0.0)
    policy = 'quorum = 2\non_missing = "wait"'
    clinics, gate, said = Clinics(tmp_path, rounds=4, policy=policy), Gate(2), []
    port = _free_port()

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return answer.read().decode()

    async def main():
        async with clinics.coordinator(gate, say=said.append, silence=8.0) as one:
            for k in (0, 1):
                await clinics.approves(k)
                clinics.goes_up(k)
            with clinics.home.occupied(), serve_metrics(one, f"127.0.0.1:{port}"):
                clinics.home.start("clinics")
                go, server_study = await gate.at(2), one.server_studies[clinics.digest]
                assert f'stalled{{study="{clinics.digest[:12]}"}} 0.0' in await asyncio.to_thread(
                    scrape
                )
                clinics.sites[1].pause()
                while server_study.engine.presence.away.get(1) != Cause("paused"):
                    await asyncio.sleep(0.02)
                go.set()
                while not any("waits in round 3" in text for text in said):
                    await asyncio.sleep(0.02)
                text = await asyncio.to_thread(scrape)
                assert f'archipel_study_stalled{{study="{clinics.digest[:12]}"}} 1.0' in text
                assert f'archipel_study_sites_present{{study="{clinics.digest[:12]}"}} 1.0' in text
                status = status_of(one)["studies"][clinics.digest]
                (clinics.home.path / "status.json").write_text(json.dumps(status_of(one)))
                (study,) = overview(clinics.home)["studies"]
                assert study["stalled"] and study["waiting"] == status["waiting"]
                assert study["sites"]["clinic-1"] == "paused"
                clinics.sites[1].resume()
                await clinics.done(one)
            await clinics.goes_down()

    play(main())
    words = "1 of the 2 sites that a round needs are here"
    assert f"clinics: waits in round 3: {words}" in said
    assert "clinics: goes on, round 3 is done" in said
    assert "clinics: started after round 0 with 2 sites" in said
    assert "clinics: clinic-1 is away: paused" in said
    assert "clinics: clinic-1 is back" in said
    (study,) = overview(clinics.home)["studies"]
    assert not study["stalled"]
    assert study["result"]["value"] is not None
    assert study["path"] == str(clinics.home.run_of(clinics.digest))


def test_a_site_that_refuses_is_shown_with_its_reason_and_no_number_leaves(tmp_path, monkeypatch):
    """E3: not "away"; the sentence goes without values and names of this site."""
    monkeypatch.setattr("archipel.federation.site.service._AGAIN", 0.5)
    clinics = Clinics(tmp_path, rounds=2, policy='quorum = 2\non_missing = "wait"')
    rows = (tmp_path / "tables" / "clinic-1.csv").read_text().splitlines()
    shown = {}

    async def main():
        async with clinics.coordinator() as one:
            for k in (0, 1):
                await clinics.approves(k)
            (tmp_path / "tables" / "clinic-1.csv").write_text("\n".join(rows[:-1]) + "\n")
            for k in (0, 1):
                clinics.goes_up(k)
            clinics.home.start("clinics")
            while "refuses" not in shown.get("clinic-1", ""):
                await asyncio.sleep(0.02)
                if clinics.digest in one.server_studies:
                    shown.update(one.server_studies[clinics.digest].presence())
            await clinics.goes_down()

    play(main())
    assert shown["clinic-1"].startswith("away (refuses: '...': is not the table that was bound")
    assert not any(character.isdigit() for character in shown["clinic-1"])


def test_a_decision_that_is_told_twice_is_one(tmp_path):
    """E14: the command and the process that is up may both tell it."""
    text = text_of()
    data = Study.parse(text.decode()).federation().select(np.array([0]))
    said = []

    async def main():
        async with coordinator(tmp_path / "c", say=said.append) as one:
            digest, site = one.home.submit(text), await joined(one, tmp_path, "ulm")
            for _ in range(2):
                await approve(one, site, digest, data)
            site.leave([digest])
            link = site.link()
            await site.tell(link)
            await link.close()
            await approve(one, site, digest, data)
            return [d.decision for d in one.registry.history(digest)]

    history = asyncio.run(asyncio.wait_for(main(), 600))
    assert history == ["approved", "withdrawn", "approved"]
    decided = [line for line in said if line.startswith("ulm ") and line.endswith("heart")]
    assert decided == ["ulm approved heart", "ulm withdrawn heart", "ulm approved heart"]


def test_a_full_disk_is_told_with_what_helps():
    """E14: no other folder can be named while a study runs; room and `start` help."""
    try:
        with pytest.raises(OSError) as full:
            Path("/dev/full").write_bytes(b"x")
        raise RunFailed("'x' cannot be written (full): make room, or name another folder.") from (
            full.value
        )
    except RunFailed as error:
        said = _why(error, "heart")

    assert said == (
        "'x' cannot be written (full): make room on the coordinator's machine, then 'archipel "
        "coordinator start heart' goes on from the last round."
    )


# -- the database ----------------------------------------------------------------------------------


def test_a_second_federation_is_refused_by_a_database_that_has_one(tmp_path, server):
    """E8: founding there is refused, and nothing half-made stays behind."""
    url = server.address()
    home = CoordinatorFolder.create(tmp_path / "a", "a", "localhost:1", url)

    with pytest.raises(ArchipelError, match="holds another federation"):
        CoordinatorFolder.create(tmp_path / "b", "b", "localhost:2", url)
    assert not (tmp_path / "b").exists()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert CoordinatorFolder(tmp_path / "copy").invite("ulm").site == "ulm"
    other = CoordinatorFolder.create(tmp_path / "c", "c", "localhost:3", server.address())
    moved = json.loads((other.path / "coordinator.json").read_text()) | {"database": home.database}
    (other.path / "coordinator.json").write_text(json.dumps(moved))
    with pytest.raises(ArchipelError, match="holds another federation"):
        CoordinatorFolder(other.path).invite("bonn")
    with pytest.raises(ArchipelError, match="holds another federation"):
        Coordinator(CoordinatorFolder(other.path))


def test_a_password_in_the_address_is_not_written_down(tmp_path, server):
    """E8: it is used once, to found the federation."""
    user, rest = server.address().split("@")
    home = CoordinatorFolder.create(
        tmp_path / "c", "a", "localhost:1", f"{user}:hidden@{rest}&password=hidden"
    )

    files = [path for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert files and all(b"hidden" not in path.read_bytes() for path in files)
    assert home.invite("ulm").site == "ulm"
    with pytest.raises(ArchipelError) as refused:
        CoordinatorFolder.create(tmp_path / "d", "a", "localhost:1", "me:hidden@host")
    assert "hidden" not in str(refused.value)


# -- studies that are done -------------------------------------------------------------------------


def test_a_finished_study_stays_for_those_who_ask_and_is_dropped_later(tmp_path, monkeypatch):
    """Sites ask for their verdict just when it ends; it is brought back once, beside the port."""
    text = text_of(**{"study.rounds": 2})
    data = Study.parse(text.decode()).federation().select(np.array([0]))
    made, threads = [], []
    finished = Coordinator._finished

    def counting(self, digest, events):
        made.append(digest)
        threads.append(threading.current_thread() is threading.main_thread())
        return finished(self, digest, events)

    monkeypatch.setattr(Coordinator, "_finished", counting)

    async def main():
        async with coordinator(tmp_path / "c") as one:
            digest = one.home.submit(text)
            site = await joined(one, tmp_path, "ulm")
            await approve(one, site, digest, data)
            stop = asyncio.Event()
            serving = asyncio.create_task(one.serve(stop))
            one.home.start("heart")
            await attend(site, data, digest)
            assert made == []  # the verdict came from the study as it was
            monkeypatch.setattr("archipel.federation.coordinator.coordinator._KEPT", 0.0)
            while digest in one.server_studies:
                await asyncio.sleep(0.02)
            monkeypatch.setattr("archipel.federation.coordinator.coordinator._KEPT", 60.0)
            await asyncio.gather(*(personalise(site, digest, data) for _ in range(3)))
            assert digest in one.server_studies
            monkeypatch.setattr("archipel.federation.coordinator.coordinator._KEPT", 0.0)
            while digest in one.server_studies:
                await asyncio.sleep(0.02)
            stop.set()
            await serving

    play(main())
    assert len(made) == 1
    assert threads == [False]
