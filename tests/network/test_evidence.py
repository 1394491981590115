# SPDX-License-Identifier: Apache-2.0
"""What can be shown later: who signed what, and that an audit log was cut."""

import asyncio
import json

import pytest
import torch

from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError
from archipel.federation.anchors import Anchors, anchor_in
from archipel.federation.audit import Anchor, check
from archipel.federation.certificates import Identity, verify
from archipel.federation.coordinator import evidence
from archipel.federation.coordinator.evidence import Evidence
from archipel.federation.site.sent import lacks, sent_by
from archipel.federation.site.site import Site, signed
from network.test_coming_and_going import Clinics, Gate, play
from network.test_federation import attend, coordinator, members, text_of

STUDY = "5" * 64


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Two sites after a study: the coordinator's folder, the hash, the sites."""
    path = tmp_path_factory.mktemp("evidence")

    async def main():
        async with coordinator(path / "c") as one:
            digest, sites = await members(one, path, text_of("pefll"), 2)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            await asyncio.wait_for(one.run(digest), 600)
            await asyncio.gather(*attending)
            return one.home, digest, [site for site, _ in sites]

    return asyncio.run(main())


def test_all_that_a_site_signed_can_be_checked_by_a_third_person(done):
    """M6: with the public key, what was kept, and nothing else."""
    home, digest, sites = done
    kept = [item for _, item in Evidence(home.evidence).items(digest)]

    for site in sites:
        public = site.identity.public
        mine = [item for item in kept if item.site == site.name]
        assert all(verify(public, bytes.fromhex(i.signature), i.signed.encode()) for i in mine)
        assert {item.kind for item in mine} == {"upload", "scores", "ask"}
        uploads = [item for item in mine if item.kind == "upload"]
        assert sorted({item.round for item in uploads}) == [0, 1, 2, 3]
    assert Evidence(home.evidence).check(*home.keys(digest)) == len(kept)


def test_the_sites_log_has_the_same_digests_and_how_many_numbers_left(done):
    """M6: both sides can be laid beside each other."""
    home, digest, sites = done
    kept = [item for _, item in Evidence(home.evidence).items(digest)]
    site = sites[0]
    sent = [entry.detail for entry in site.audit.entries() if entry.what == "sent"]

    assert {i.digest for i in kept if i.site == site.name} == {each["digest"] for each in sent}
    assert all(each["numbers"] > 0 for each in sent)
    for each in sent:
        if each["kind"] == "upload":
            assert each["bytes"] == 4 * each["numbers"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda item: {"signed": item["signed"].replace("round=0", "round=1")}, "was changed"),
        (lambda item: {"signature": "00" * 64}, "is not signed by site-"),
        (lambda item: {"site": "other"}, "the key is none of site other"),
        (lambda item: {"key": "11" * 32}, "the key is none of site"),
        (lambda item: {"signed": "x"}, "is no item"),
    ],
)
def test_evidence_that_was_changed_is_found(done, tmp_path, change, what):
    home, digest, _ = done
    first, *lines = (home.evidence / f"{digest}.jsonl").read_text().splitlines()
    item = json.loads(first)
    changed = json.dumps({**item, **change(item)})
    (tmp_path / f"{digest}.jsonl").write_text("\n".join([changed, *lines]) + "\n")

    with pytest.raises(ArchipelError, match=f"line 1.*{what}"):
        Evidence(tmp_path).check(*home.keys(digest))


def test_evidence_of_another_study_is_none_of_this(done, tmp_path):
    home, digest, _ = done
    (tmp_path / f"{STUDY}.jsonl").write_bytes((home.evidence / f"{digest}.jsonl").read_bytes())

    with pytest.raises(ArchipelError, match="line 1 is of another study"):
        Evidence(tmp_path).check(STUDY, home.keys(digest)[1])


def test_a_signature_covers_dtype_and_shape():
    """The same bytes as another array are another letter."""
    x = torch.arange(4, dtype=torch.float32)
    letters = [Letter("sums", {"study": "s"}, [each]) for each in (x, x.view(2, 2), x.view(2, 2).T)]
    letters.append(Letter("sums", {"study": "s"}, [x.view(torch.int32)]))

    assert len({letter.digests[0] for letter in letters}) < len(letters)
    assert len({signed(letter) for letter in letters}) == len(letters)


def item(text="round=1"):
    return f"archipel letter\nupload\n{text}\nstudy='{STUDY}'".encode()


def test_a_writer_that_was_stopped_spoils_one_line(tmp_path):
    kept, me = Evidence(tmp_path), Identity.create()
    kept.keep(STUDY, "ulm", me.public, item(), me.sign(item()))
    path = kept.path(STUDY)
    path.write_bytes(path.read_bytes()[:-20])
    Evidence(tmp_path).keep(STUDY, "ulm", me.public, item("round=2"), me.sign(item("round=2")))

    (_, torn), (_, whole) = Evidence(tmp_path).items(STUDY)
    assert torn is None and whole.round == 2
    with pytest.raises(ArchipelError, match="line 1 is no item"):
        Evidence(tmp_path).check(STUDY, {"ulm": {me.public}})


def test_nobody_fills_the_disk_with_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "_MOST", 2000)
    full, me = [], Identity.create()
    kept = Evidence(tmp_path, lambda *who: full.append(who))
    kept.keep(STUDY, "ulm", me.public, item(), me.sign(item()))
    kept.keep(STUDY, "ulm", me.public, item(), me.sign(item()))  # the same again
    assert len(list(kept.items(STUDY))) == 1
    for number in range(100):
        text = item(f"round={number}")
        kept.keep(STUDY, "ulm", me.public, text, me.sign(text))

    assert full == [(STUDY, "ulm")]
    assert kept.path(STUDY).stat().st_size < 3000
    with pytest.raises(Refused, match="send fewer"):
        kept.check_size(b"x" * (1 << 20))


# -- anchors ---------------------------------------------------------------------------------------


def cut(log, lines):
    """Take the last lines off a log."""
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-lines]))


def test_each_side_keeps_the_others_anchor(done):
    """M6, E5: told with every round, and true."""
    home, digest, sites = done
    (site, _) = sites
    kept = Anchors(home.anchors).kept
    assert sorted(kept) == ["site-0", "site-1"]
    anchor = anchor_in(home.anchors, "site-0", site.identity.public)
    theirs = anchor_in(site.home / "anchors.json", "coordinator", home.identity.public)

    assert check(site.audit.path, site.identity.public, anchor) >= anchor.number > 5
    assert check(home.audit.path, home.identity.public, theirs) >= theirs.number > 5
    uploads = [i for _, i in Evidence(home.evidence).items(digest) if i.kind == "upload"]
    last = [i for i in uploads if i.site == "site-0"][-1]
    assert f"log='{anchor.text}'" in last.signed.split("\n")


def test_a_cut_log_does_not_pass(done, tmp_path):
    """M6, E5: whether it lacks lines or all of them, or is gone."""
    home, _, (site, _) = done
    anchor = anchor_in(home.anchors, "site-0", site.identity.public)
    log = tmp_path / "audit.jsonl"
    log.write_bytes(site.audit.path.read_bytes())
    cut(log, len(log.read_text().splitlines()) - anchor.number + 1)

    assert check(log, site.identity.public) == anchor.number - 1  # nothing else shows it
    with pytest.raises(ArchipelError, match="the end was cut off"):
        check(log, site.identity.public, anchor)
    log.write_bytes(b"")
    with pytest.raises(ArchipelError, match="the end was cut off"):
        check(log, site.identity.public, anchor)
    log.unlink()
    with pytest.raises(ArchipelError, match="there is no audit log here"):
        check(log, site.identity.public, anchor)


def test_an_anchor_of_somebody_else_is_not_compared(done, tmp_path):
    home, _, (site, other) = done

    with pytest.raises(ArchipelError, match="of a log with another key"):
        anchor_in(home.anchors, "site-0", other.identity.public)
    with pytest.raises(ArchipelError, match="has no anchor of ulm, only of site-0, site-1"):
        anchor_in(home.anchors, "ulm", site.identity.public)
    for text in ("", "[]", '{"anchors": {"ulm": {"number": -1}}}', '{"anchors": 3}'):
        (tmp_path / "file").write_text(text)
        with pytest.raises(ArchipelError, match="holds no anchors"):
            anchor_in(tmp_path / "file", "ulm", b"")


def test_a_log_that_is_shorter_than_before_is_said_loudly_and_nothing_is_refused(tmp_path):
    """M6, E5: the study goes on, and the coordinator's log tells who cut its own."""
    clinics, gate, said = Clinics(tmp_path, rounds=5), Gate(3), []

    async def main():
        async with clinics.coordinator(gate, say=said.append) as one:
            for k in (0, 1):
                await clinics.approves(k)
                clinics.goes_up(k)
            clinics.home.start("clinics")
            go = await gate.at(3)
            cut(clinics.sites[1].audit.path, 4)
            go.set()
            await clinics.done(one)
            await clinics.goes_down()

    play(main())
    faults = [entry.detail for entry in clinics.home.audit.entries() if entry.what == "anchor"]
    assert [each["site"] for each in faults] == ["clinic-1"] * len(faults)
    assert faults and "it was cut" in faults[0]["fault"]
    assert any("audit log of clinic-1" in text and "it was cut" in text for text in said)


def test_a_site_that_joins_anew_has_a_new_log(tmp_path):
    kept = Anchors(tmp_path / "anchors.json")
    first, later = Anchor(9, "a" * 64), Anchor(2, "b" * 64)

    assert kept.hear("ulm", first, "old key") == ""
    assert "it was cut" in kept.hear("ulm", later, "old key")
    assert "was rewritten" in kept.hear("ulm", Anchor(9, "b" * 64), "old key")
    assert kept.kept["ulm"].number == 9
    assert kept.hear("ulm", later, "new key") == ""
    kept.save()
    assert Anchors(tmp_path / "anchors.json").kept["ulm"].hash == later.hash


def test_an_anchor_that_is_none_is_refused():
    for text in ("", "1", "x:y", f"-1:{'a' * 64}", f"1:{'A' * 64}", f"1:{'a' * 64}\n", "9" * 4000):
        with pytest.raises(ArchipelError, match="not the number and hash of an entry"):
            Anchor.read(text)


def test_a_budget_after_a_cut_log_is_not_silently_nothing(done):
    """E5: the state on the disk says that the site worked."""
    _, digest, (_, site) = done
    assert not lacks(site, digest, sent_by(site))
    before = site.audit.path.read_bytes()
    try:
        for lines, rounds in ((3, 0), (4, 1)):
            site.audit.path.write_bytes(b"".join(before.splitlines(keepends=True)[:lines]))
            again = Site(site.home)
            assert sum(len(each.rounds) for each in sent_by(again).values()) == rounds
            assert lacks(again, digest, sent_by(again))
    finally:
        site.audit.path.write_bytes(before)
