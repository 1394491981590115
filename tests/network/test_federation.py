# SPDX-License-Identifier: Apache-2.0
"""A coordinator and its sites: joining, approving, taking part, and coming back after a crash."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.data.shadow import Facts
from archipel.engines.network.letters import Letter
from archipel.engines.network.presence import Adjourned
from archipel.engines.network.transport import Cut, Refused
from archipel.engines.plan import Plan
from archipel.federation import approval
from archipel.federation.audit import check
from archipel.federation.certificates import Invitation
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.enrolment import Enrolment
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.rehearsal import _free_port
from archipel.federation.site.looking import review_at
from archipel.federation.site.personal import personalise
from archipel.federation.site.site import Site, signed
from archipel.study.file import Study

STUDY = """
[study]
name = "heart"
purpose = "To test."
rounds = 4
[data]
name = "heart_disease"
[algorithm]
name = "{algorithm}"
lr = 0.05
"""


def text_of(algorithm="fedavg", **changes):
    study = Study.parse(STUDY.format(algorithm=algorithm)).with_set(changes)
    return study.toml().encode()


def party(text, k):
    return Study.parse(text.decode()).federation().select(np.array([k]))


@asynccontextmanager
async def coordinator(path, **options):
    home = CoordinatorFolder(path) if (path / "coordinator.json").exists() else None
    home = home or CoordinatorFolder.create(path, "test", f"localhost:{_free_port()}")
    one = Coordinator(home, **options)
    await one.up(home.address)
    try:
        yield one
    finally:
        await one.down()


async def joined(one, path, name):
    return await Site.join(path / name, Invitation.read(one.home.invite(name).token()))


async def members(one, path, text, count):
    """Sites that joined and approved, with their data."""
    digest, sites = one.home.submit(text), []
    for k in range(count):
        site, data = await joined(one, path, f"site-{k}"), party(text, k)
        link = site.link()
        found, _ = await site.fetch(link, digest)
        site.decide(found, "approved", Facts.of(data))
        await site.tell(link)
        await link.close()
        sites.append((site, data))
    return digest, sites


async def attend(site, data, digest):
    """A site at work in one study until it is done."""
    link = site.link()
    try:
        with site.at_work():
            return await site.attend(link, digest, data)
    finally:
        await link.close()


def simulated(text):
    return Study.parse(text.decode()).run(None, baselines=False)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedrep", "pefll"])
def test_a_study_between_sites_is_its_simulation(tmp_path, algorithm):
    text = text_of(algorithm, **({"model.name": "mlp"} if algorithm == "fedrep" else {}))

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            await asyncio.sleep(0.1)
            with pytest.raises(ar.ArchipelError, match="at work in another process"):
                await attend(*sites[0], digest)
            run = await asyncio.wait_for(one.run(digest), 600)
            assert await asyncio.gather(*attending) == [4] * 4
            return run, [site.audit for site, _ in sites], one.home

    run, audits, home = asyncio.run(play())
    expected = simulated(text)
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)
    assert run.history[-1]["metrics"]["accuracy"] == pytest.approx(
        expected.history[-1]["metrics"]["accuracy"], abs=1e-6
    )
    for audit in [*audits, home.audit]:
        assert check(audit.path, audit.identity.public, audit.head) > 5
    rounds = [entry.detail for entry in home.audit.entries() if entry.what == "round"]
    assert [each["round"] for each in rounds] == [1, 2, 3, 4]
    assert all(each["missing"] == "" for each in rounds)
    sent = [
        e.detail for e in audits[0].entries() if e.what == "sent" and e.detail["kind"] == "upload"
    ]
    assert sum(each["bytes"] for each in sent) == 4 * run.anatomy.bytes_up


# -- who gets in, and what they may do -------------------------------------------------------------


def with_coordinator(tmp_path, play):
    async def main():
        async with coordinator(tmp_path / "c") as one:
            return await asyncio.wait_for(play(one), 600)

    return asyncio.run(main())


def test_a_token_works_once_until_it_expires_and_for_its_site(tmp_path):
    async def play(one):
        token = one.home.invite("ulm").token()
        await Site.join(tmp_path / "ulm", Invitation.read(token))
        with pytest.raises(ar.ArchipelError, match="used"):
            await Site.join(tmp_path / "again", Invitation.read(token))
        assert not (tmp_path / "again" / "site.json").exists()
        late = one.home.invite("bonn", timedelta(seconds=-1))
        with pytest.raises(ar.ArchipelError, match="expired"):
            await Site.join(tmp_path / "bonn", late)
        forged = Invitation.read(one.home.invite("kiel").token())
        with pytest.raises(ar.ArchipelError, match="invitation is for kiel, not for bonn"):
            await Site.join(tmp_path / "x", Invitation(**{**forged.__dict__, "site": "bonn"}))
        with pytest.raises(ar.ArchipelError, match="secret"):
            await Site.join(tmp_path / "x", Invitation(**{**forged.__dict__, "secret": b"x" * 16}))
        with pytest.raises(ar.ArchipelError, match="a site has joined from there"):
            await Site.join(tmp_path / "ulm", forged)

    with_coordinator(tmp_path, play)


def test_a_guest_may_only_join(tmp_path):
    async def play(one):
        from archipel.engines.network.grpc import GrpcLink
        from archipel.federation.certificates import COORDINATOR

        invitation = one.home.invite("ulm")
        link = GrpcLink(invitation.address, COORDINATOR, invitation.credentials)
        with pytest.raises(Refused, match="opens the joining and nothing else"):
            await link.ask(Letter("hello", {"version": "0", "approved": []}))
        await link.close()

    with_coordinator(tmp_path, play)


def test_a_revoked_site_is_out_at_once_and_its_certificate_is_renewed_before(tmp_path, monkeypatch):
    async def play(one):
        site = await joined(one, tmp_path, "ulm")
        link = site.link()
        assert not await site.renew(link)
        monkeypatch.setattr("archipel.federation.site.site.RENEW", timedelta(days=31))
        before = (tmp_path / "ulm" / "site.pem").read_bytes()
        assert await site.renew(link)
        assert (tmp_path / "ulm" / "site.pem").read_bytes() != before
        await link.close()
        link = site.link()
        assert await site.studies(link) == {}
        one.registry.revoke("ulm", "left the study")
        with pytest.raises(ar.ArchipelError, match="revoked"):
            await site.studies(link)
        await link.close()

    with_coordinator(tmp_path, play)


def test_nothing_runs_without_approval_of_the_exact_bytes(tmp_path):
    text = text_of()

    async def play(one):
        digest, _ = await members(one, tmp_path, text, 1)
        other = await joined(one, tmp_path, "other")
        link = other.link()
        with pytest.raises(Refused, match="has not approved this study"):
            await link.ask(Letter("next", {"study": digest, "pending": -1, "busy": None}))
        with pytest.raises(Refused, match="not approved at this site"):
            await attend(other, party(text, 1), digest)
        changed = one.home.submit(text.replace(b"rounds = 4", b"rounds = 5"))
        assert changed != digest
        with pytest.raises(ar.ArchipelError, match="no site has approved"):
            await one.run(changed)
        fields = {"study": digest, "decision": "approved", "facts": {}, "signature": b"\0" * 64}
        with pytest.raises(Refused, match="not signed by the site"):
            await link.ask(Letter("approve", fields))
        await link.close()

    with_coordinator(tmp_path, play)


def test_a_site_that_is_sent_other_bytes_than_the_hash_says_refuses(tmp_path, monkeypatch):
    async def play(one):
        digest = one.home.submit(text_of())
        site = await joined(one, tmp_path, "ulm")
        link = site.link()
        monkeypatch.setattr(
            Enrolment, "_study", lambda *_: Letter("text", {"text": "x = 1", "members": ""})
        )
        with pytest.raises(ar.ArchipelError, match="other bytes than its hash says"):
            await site.fetch(link, digest)
        await link.close()

    with_coordinator(tmp_path, play)


def test_a_review_says_what_leaves_the_building(tmp_path):
    async def play(one):
        text = text_of("scaffold")
        digest, sites = await members(one, tmp_path, text, 1)
        site, data = sites[0]
        changed = text.replace(b"rounds = 4", b"rounds = 9")
        return digest, review_at(site, text, data, ["ulm"]), review_at(site, changed, data, [])

    digest, review, again = with_coordinator(tmp_path, play)
    assert digest in review
    assert "To test." in review
    assert "Members   ulm" in review
    assert "in all at most 896 bytes" in review  # twice 28 numbers of 4 bytes, 4 rounds
    assert "never a record" not in review
    assert "-rounds = 4" in again
    assert "+rounds = 9" in again


def test_a_study_that_names_code_of_its_own_is_refused_before_the_code_is_read(tmp_path):
    code = tmp_path / "mine.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for section in ("algorithm", "model", "data"):
        with pytest.raises(ar.ArchipelError, match="names no code of its own"):
            approval.read(f'[{section}]\nname = "{code}:Mine"\n'.encode())
    assert not (tmp_path / "ran").exists()


def test_uploads_are_bound_to_their_round_and_their_sender(tmp_path):
    """Signed by another site, changed on the way, or of another round: refused."""
    text = text_of()

    async def play(one):
        digest, sites = await members(one, tmp_path, text, 2)
        (site, _), (other, _) = sites
        running = asyncio.create_task(one.run(digest))
        sent = []
        original = Site.link

        def recording(self):
            link = original(self)
            ask = link.ask

            async def noted(letter):
                if letter.kind == "upload":
                    sent.append(letter)
                return await ask(letter)

            link.ask = noted
            return link

        Site.link = recording
        try:
            tasks = [asyncio.create_task(attend(each, d, digest)) for each, d in sites]
            await asyncio.wait_for(running, 600)
            await asyncio.gather(*tasks)
        finally:
            Site.link = original
        mine = next(each for each in sent if each["signature"] == site.identity.sign(signed(each)))
        link, theirs = site.link(), other.link()
        with pytest.raises(Refused, match="is not open"):  # the study is over
            await link.ask(mine)
        with pytest.raises(Refused, match="not signed by the site"):
            await theirs.ask(mine)
        moved = Letter("upload", {**mine.fields, "round": mine["round"] + 1}, mine.arrays)
        with pytest.raises(Refused, match="not signed by the site"):
            await link.ask(moved)
        changed = Letter("upload", mine.fields, [mine.arrays[0] + 1])
        with pytest.raises(Refused, match="not signed by the site"):
            await link.ask(changed)
        await link.close()
        await theirs.close()

    with_coordinator(tmp_path, play)


@pytest.mark.parametrize("algorithm", ["pefll", "fedavg"])
def test_a_newcomer_gets_its_model_from_a_finished_study(tmp_path, algorithm):
    text = text_of(algorithm)
    data = replace(Study.parse(text.decode()).federation(), training=3, scan=False)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 3)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            await asyncio.wait_for(one.run(digest), 600)
            await asyncio.gather(*attending)
        async with coordinator(tmp_path / "c") as one:  # another process, later
            site, points = await joined(one, tmp_path, "newcomer"), party(text, 3)
            one.home.submit(text, ["newcomer"])
            link = site.link()
            found, approved = await site.fetch(link, digest)
            assert approved == ["site-0", "site-1", "site-2"]
            site.decide(found, "approved", Facts.of(points, counts=False))
            await site.tell(link)
            await link.close()
            asked = []
            answer = one._server._answer

            async def counting(who, letter):
                asked.append(letter.kind)
                return await answer(who, letter)

            one._server._answer = counting
            return await personalise(site, digest, points), asked, site, digest

    scores, asked, site, digest = asyncio.run(play())
    study = Study.parse(text.decode())
    model = study.build_model(data)
    with ar.LocalEngine(study.algorithm_object, data, model, plan=Plan("one", 1, 1)) as engine:
        for t in range(4):
            engine.round(t, range(3))
        own = engine.evaluate(own=True) if engine.has_own else engine.evaluate()
    assert scores["loss"] == pytest.approx(float(own.parties["loss"][3]), rel=1e-5)
    assert asked == ["place", "model", *(["ask"] if algorithm == "pefll" else [])]
    assert (site.home / "studies" / digest / "model.safetensors").exists()


# -- coming back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["scaffold", pytest.param("pefll", marks=pytest.mark.slow)])
def test_a_coordinator_and_sites_that_are_stopped_anywhere_end_up_where_they_would_have(
    tmp_path, algorithm
):
    text = text_of(algorithm, **{"study.rounds": 6})

    async def again_and_again(site, data, digest, pause):
        """A site whose process ends from time to time."""
        while True:
            task = asyncio.create_task(attend(site, data, digest))
            done, _ = await asyncio.wait([task], timeout=pause)
            if done:
                return task.result()
            task.cancel()
            with suppress(asyncio.CancelledError, Cut):
                await task
            site, pause = Site(site.home), 1.3 * pause  # on a busy machine a round takes longer

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
        pauses = [0.7, 1.1, 1e9, 1e9]
        tasks = [
            asyncio.create_task(again_and_again(s, d, digest, p))
            for (s, d), p in zip(sites, pauses, strict=True)
        ]
        stops = iter([0.9, 1.3, 0.8])
        while True:
            async with coordinator(tmp_path / "c") as one:
                running = asyncio.create_task(one.run(digest))
                done, _ = await asyncio.wait([running], timeout=next(stops, 600))
                if done:
                    await asyncio.gather(*tasks)
                    return running.result()
            with suppress(Adjourned):  # going down left the round under way
                await running

    run = asyncio.run(asyncio.wait_for(play(), 900))
    expected = simulated(text)
    assert run.done == 6
    assert not any(cohort.missing for cohort in run.participation)
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)
