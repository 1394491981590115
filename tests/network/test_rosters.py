# SPDX-License-Identifier: Apache-2.0
"""Rosters: a coordinator, which signs them, puts nobody in another's place."""

import asyncio
import json
import math
from dataclasses import replace
from datetime import timedelta

import pytest

import archipel as ar
from archipel.data.shadow import Facts
from archipel.engines.network.grpc import Credentials, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.federation import approval
from archipel.federation.certificates import (
    Authority,
    Identity,
    Invitation,
    fingerprint,
    host_and_port,
    invite,
    is_of_ones_own,
    new_key,
    of_ones_own,
    pem_of,
)
from archipel.federation.peer import members as members
from archipel.federation.peer import peer, port
from archipel.federation.peer.peer import PeerSite
from archipel.federation.roster import Member, Signed, check_address, make, sign_revoked
from archipel.federation.roster import fingerprint as key_of
from network.test_peers import STUDY, attend, coordinator, gathered, run

FACTS = {"shape": "13", "classes": 2, "task": "classification", "n": 5, "n_test": 1}


def member(party, name, study="s"):
    """A member that signed its own approval."""
    identity, certificate = Identity.create(), of_ones_own(new_key(), name).decode()
    facts = {**FACTS, "address": "bonn.example.org:8444", "certificate": certificate}
    signature = identity.sign(approval.statement(name, study, "approved", facts))
    return Member(party, name, identity.public.hex(), facts, signature.hex())


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Three peers that approved a study, and the roster that the coordinator signed."""
    path = tmp_path_factory.mktemp("rosters")

    async def play():
        async with coordinator(path / "c") as one:
            digest, found = await gathered(one, path, STUDY, 3)
            one.registry.number(digest)
            server_study, _ = one._server_study(digest, asyncio.get_running_loop())
            return digest, [site for site, _ in found], one.home, server_study.roster

    return run(play(), 60)


@pytest.fixture
def study(begun):
    """The same for every test: the first peer knows nobody yet."""
    digest, sites, home, signed = begun
    for name in ("peers.json", "confirmed.json", f"studies/{digest}/offered.json"):
        (sites[0].home / name).unlink(missing_ok=True)
    (sites[0].site_studies.folder(digest) / "roster.json").write_bytes(signed.to_json())
    return digest, sites, home, signed.read(home.authority.pem)


def offer(site, digest, roster, home):
    """Have a roster that the coordinator signed be the one that the site has."""
    path = site.site_studies.folder(digest) / "roster.json"
    path.write_bytes(roster.sign(home.authority).to_json())


def accept(site, digest):
    """What the site says to its roster."""
    said = []
    asyncio.run(site.members.roster(None, digest, said.append))
    return said


# -- what a coordinator could do -------------------------------------------------------------------


def test_who_is_met_for_the_first_time_is_remembered_and_logged(study):
    digest, (site, second, third), _, _ = study
    said, again = accept(site, digest), accept(site, digest)

    words = key_of(second.identity.public.hex())
    assert said[0] == f"meets peer-1 for the first time, fingerprint {words}"
    assert (len(said), again) == (2, [])
    assert set(json.loads((site.home / "peers.json").read_bytes())) == {second.name, third.name}
    met = [entry.detail["peer"] for entry in site.audit.entries() if entry.what == "met"]
    assert met[-2:] == ["peer-1", "peer-2"]


def test_a_known_name_with_another_key_is_refused(study):
    """H5: the coordinator gave "bonn" its own key and address, and the peer took it."""
    digest, (site, *_), home, roster = study
    accept(site, digest)
    in_between = member(1, "peer-1", digest)
    mine, _, third = roster.peers
    offer(site, digest, replace(roster, peers=(mine, in_between, third)), home)

    with pytest.raises(ar.ArchipelError, match="another key for peer-1 than this peer has known"):
        accept(site, digest)
    with pytest.raises(ar.ArchipelError, match=key_of(in_between.identity)):
        accept(site, digest)


@pytest.mark.parametrize("field", ["address", "certificate", "n", "more"])
def test_nothing_that_a_peer_signed_can_be_changed_in_a_roster(study, field):
    """H5: the way to a peer is the peer's own word."""
    digest, (site, *_), home, roster = study
    mine, second, third = roster.peers
    changed = {
        "address": "mallory.example.org:1",
        "certificate": of_ones_own(new_key(), "peer-1").decode(),
        "n": 7,
        "more": "x",
    }[field]
    forged = second._replace(facts={**second.facts, field: changed})
    offer(site, digest, replace(roster, peers=(mine, forged, third)), home)

    with pytest.raises(ar.ArchipelError, match="that peer-1 did not sign"):
        accept(site, digest)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda a, b, c: (a, b, b._replace(party=2)), "one name or key twice"),
        (lambda a, b, c: (a, c._replace(party=1, name="peer-1")), "certificate: not one that peer"),
        (lambda a, b, c: (a, member(1, "peer-1", "0" * 64)), "that peer-1 did not sign"),
        (lambda a, b, c: (a, c, b), "numbers are"),
        (lambda a, b, c: (a, b, c._replace(party=9)), "numbers are"),
        (lambda a, b, c: (a, b, c._replace(facts=FACTS)), "listens nowhere"),
        (lambda a, b, c: (b, c), "not one of study"),
        (lambda a, b, c: (a._replace(facts={**a.facts, "address": "x:1"}), b, c), "another number"),
    ],
)
def test_a_roster_that_is_wrong_is_refused_in_a_sentence(study, change, why):
    """H5: no approval stands for another name or study, and no name or number for two."""
    digest, (site, *_), home, roster = study
    offer(site, digest, replace(roster, peers=change(*roster.peers)), home)

    with pytest.raises(ar.ArchipelError, match=why):
        accept(site, digest)


def test_a_roster_of_another_form_is_refused_in_a_sentence(study):
    digest, (site, *_), home, _ = study
    path = site.site_studies.folder(digest) / "roster.json"
    for what in ({"peers": [[1, 2]]}, {"peers": 7}, {}, {"peers": [[0, "a", "zz", {}, ""]]}):
        path.write_bytes(Signed.by(home.authority, b"archipel roster\n", what).to_json())
        with pytest.raises(ar.ArchipelError, match="another form than this Archipel knows"):
            accept(site, digest)


# -- keys that somebody confirms -------------------------------------------------------------------


class Line:
    """A coordinator that answers so, one after another."""

    def __init__(self, *answers):
        self._answers = list(answers)

    async def ask(self, letter):
        return self._answers.pop(0)


def peers_of(signed, digest):
    """The letter that brings a roster."""
    fields = {"study": digest, "roster": signed.text, "signature": signed.signature}
    return Letter("peers", {**fields, "revoked": b"", "revoked_signature": b""})


def test_where_keys_must_be_confirmed_none_is_taken_before(study, begun):
    digest, (site, second, third), _, _ = study
    careful, letter = PeerSite(site.home, confirm=True), peers_of(begun[3], digest)
    (site.site_studies.folder(digest) / "roster.json").unlink()

    def ask():
        return asyncio.run(careful.members.roster(Line(letter), digest))

    with pytest.raises(ar.ArchipelError, match="nobody here has confirmed the key of peer-1, peer"):
        ask()
    assert careful.members.begun() == []
    for other in (second, third):
        identity = careful.members.offered(other.name, anew=False)
        assert identity == other.identity.public.hex()
        careful.members.trust(other.name, identity)
    assert len(ask().peers) == 3
    assert careful.members.begun() == [digest]


def test_a_key_is_changed_by_somebody_who_says_so(study):
    digest, (site, *_), home, roster = study
    accept(site, digest)
    mine, second, third = roster.peers
    anew = member(1, "peer-1", digest)
    changed = replace(roster, peers=(mine, anew, third)).sign(home.authority)
    (site.site_studies.folder(digest) / "roster.json").unlink()

    def ask():
        return asyncio.run(site.members.roster(Line(peers_of(changed, digest)), digest))

    with pytest.raises(ar.ArchipelError, match="another key for peer-1"):
        ask()
    assert site.members.standing(anew, digest).startswith("another key, known since")
    with pytest.raises(ar.ArchipelError, match="only if it has joined anew, say --anew"):
        site.members.offered("peer-1", anew=False)
    with pytest.raises(ar.ArchipelError, match="no roster that waits here has it"):
        site.members.offered("nobody", anew=True)
    site.members.trust("peer-1", site.members.offered("peer-1", anew=True))
    assert ask().peers[1] == anew
    assert site.members.standing(anew, digest).startswith("known since")
    assert site.members.standing(second, digest).startswith("another key")


# -- certificates of ports -------------------------------------------------------------------------


async def kind_of(link, letter):
    """The kind of answer, or that there is none."""
    try:
        return (await asyncio.wait_for(link.ask(letter), 600)).kind
    except Cut:
        return "cut"
    finally:
        await link.close()


def test_a_members_certificate_stands_for_that_member_alone(tmp_path):
    """H5: one that the authority issued in a member's name opens no peer's port."""

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, ((first, data), (second, _)) = await gathered(one, tmp_path, STUDY, 2)
            running = asyncio.create_task(one.run(digest))
            task = asyncio.create_task(attend(first, data, digest))
            while not first.trusted:
                await asyncio.sleep(0.01)
            beat = Letter("beat", {"study": digest, "round": 0, "number": 0, "doing": "waits"})
            key, authority = new_key(), one.home.authority
            right = port.credentials(second.home, [port.certificate(first.home)])
            issued = authority.certify(key.public_key(), "peer-1")
            outcomes = [
                await kind_of(GrpcLink(first.listens, "peer-0", shown), beat)
                for shown in (
                    right,
                    replace(right, key=pem_of(key), chain=issued),
                    replace(right, key=pem_of(key), chain=of_ones_own(key, "peer-1")),
                    replace(right, authority=authority.pem),
                )
            ]
            for each in (task, running):
                each.cancel()
            one.server_studies[digest].engine.adjourn()
            await asyncio.gather(task, running, return_exceptions=True)
            return outcomes

    assert run(play(), 60) == ["beat", "cut", "cut", "cut"]


def test_a_coordinator_that_listens_in_a_peers_name_is_not_talked_to(tmp_path):
    """H5: with the authority's key it could have read what goes between two peers."""

    async def answer(_, letter):
        return Letter("thanks")

    async def play():
        port.make(tmp_path, "ulm")
        authority, key, mallory = Authority.create("test"), new_key(), new_key()
        bonn, outcomes = of_ones_own(key, "bonn"), []
        for pem, chain in (
            (pem_of(key), bonn),
            (pem_of(mallory), authority.certify(mallory.public_key(), "bonn")),
            (pem_of(mallory), of_ones_own(mallory, "bonn")),
        ):
            server = GrpcServer(answer, lambda caller: caller.name)
            shown = Credentials(pem, chain, port.certificate(tmp_path).encode())
            number = await server.start("127.0.0.1:0", shown)
            mine = port.credentials(tmp_path, [bonn.decode()])
            link = GrpcLink(f"127.0.0.1:{number}", "bonn", mine)
            outcomes.append(await kind_of(link, Letter("thanks")))
            await server.stop()
        return outcomes

    assert run(play()) == ["thanks", "cut", "cut"]


def test_a_port_has_one_certificate_that_signs_itself_in_its_peers_name():
    key = new_key()
    right = of_ones_own(key, "ulm").decode()
    issued = Authority.create("test").certify(key.public_key(), "ulm").decode()

    assert is_of_ones_own(right, "ulm")
    for wrong in (right + right, "text\n" + right, issued, "", right.replace("A", "B")):
        assert not is_of_ones_own(wrong, "ulm")
    assert not is_of_ones_own(right, "bonn")


# -- what a site signs, and where it listens -------------------------------------------------------


def test_a_decision_is_signed_with_all_that_goes_with_it(tmp_path):
    """H5: a signature used to cover the study and the decision alone."""

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, ((site, data), _) = await gathered(one, tmp_path, STUDY, 2)
            facts = dict(site.site_studies.decision(digest).facts)
            signature = site.identity.sign(approval.statement(site.name, digest, "approved", facts))
            fields = {"study": digest, "decision": "approved", "signature": signature}
            link = site.link()
            for change in ({"n": facts["n"] + 1}, {"address": "x:1"}, {"more": 1}):
                with pytest.raises(Refused, match="not signed by the site"):
                    await link.ask(Letter("approve", {**fields, "facts": {**facts, **change}}))
            await link.close()
            (kept,) = [d.facts for d in one.registry.history(digest) if d.site == site.name]
            return kept, facts, data

    kept, facts, data = run(play(), 60)
    assert kept == facts
    assert Facts.of_json(kept) == Facts.of(data)


ADDRESSES = ["ulm.example.org:8444", "127.0.0.1:1", "[::1]:65535", "ulm:80", "a_b-c.d:9"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_a_name_or_an_ip_address_and_a_port(address):
    assert check_address(address) == address


@pytest.mark.parametrize(
    "address",
    [
        "unix:5", "unix:///tmp/x:5", "dns:///ulm:1", "dns:5", "xds:ulm:1", "xds:5",
        "ipv4:1.2.3.4:5", "ulm/x:5", "ulm\n:5", "ulm\x1b:5", "ulm :5", "u:lm:5", "[::1]5:1", ":5",
        "[x]:5", "ulm:",
        "ulm:0", "ulm:65536", "ulm:\u00b2", "ulm:+5", "http://ulm:5", "@ulm:5", "[fe80::1%0]:5",
        "ulm:000000005", "\u0443lm:5",
    ],
)  # fmt: skip
def test_an_address_is_nothing_else(address):
    """Low: gRPC takes unix:, dns:///, xds: and others for ways to find a host."""
    with pytest.raises(ar.ArchipelError, match="give host:port"):
        host_and_port("address =", address, "as other peers will reach it")


def test_a_fingerprint_is_of_what_is_certified_and_not_of_the_text_around_it():
    """Low: free text before a certificate gave other words to the same authority."""
    authority = Authority.create("test")

    assert fingerprint(b"a note\n" + authority.pem) == fingerprint(authority.pem)
    assert fingerprint(authority.pem) != fingerprint(Authority.create("test").pem)
    assert len(fingerprint(authority.pem).split()) == 12


def test_a_token_brings_the_one_authority_whose_words_are_compared():
    """Low: a second certificate behind the first would be trusted without having been read out."""
    authority, mallory = Authority.create("test"), Authority.create("test")
    invitation = invite(authority, "ulm", "localhost:1", timedelta(days=1))
    both = replace(invitation, authority=authority.pem + mallory.pem)

    assert Invitation.read(both.token()).authority == authority.pem


# -- who is revoked --------------------------------------------------------------------------------


def test_a_revoked_peer_enters_no_roster(tmp_path):
    """H4: its approval was before its revocation, and the roster after it."""

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, _ = await gathered(one, tmp_path, STUDY, 4)
            one.home.revoke("peer-2", "stolen")
            one.registry.number(digest)
            server_study, _ = one._server_study(digest, asyncio.get_running_loop())
            return server_study.roster.read(one.home.authority.pem)

    roster = run(play(), 60)
    assert [each.name for each in roster.peers] == ["peer-0", "peer-1", "peer-3"]


def test_peers_hear_who_was_revoked_and_keep_it(tmp_path, monkeypatch):
    """H4: a revoked peer used to stay with the others until its certificate ended."""
    monkeypatch.setattr(peer, "LOOK", 0.2)

    async def play():
        text = STUDY.replace("rounds = 5", "rounds = 100000")
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, text, 3)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            running = asyncio.create_task(one.run(digest))
            sites = [site for site, _ in peers]
            while any(digest not in site._serving for site in sites):
                await asyncio.sleep(0.01)
            one.home.revoke("peer-2", "stolen")
            while not all(site.members.revoked(digest) for site in sites[:2]):
                await asyncio.sleep(0.05)
            party = sites[0]._serving[digest][0]
            at = party.round
            while party.round < at + 3 or len(sites[0].trusted) == 2:
                await asyncio.sleep(0.01)
            for each in (*tasks, running):
                each.cancel()
            one.server_studies[digest].engine.adjourn()
            await asyncio.gather(*tasks, running, return_exceptions=True)
            gone = [j for j, contact in party.liveness.of.items() if contact.gone]
            return digest, sites, gone

    digest, sites, gone = run(play(), 90)
    assert gone == [2]
    assert sites[0].trusted == {port.certificate(sites[1].home)}
    assert PeerSite(sites[0].home).members.revoked(digest) == {"peer-2"}  # from the disk
    dropped = [entry for entry in sites[0].audit.entries() if entry.what == "dropped"]
    assert [entry.detail["peers"] for entry in dropped] == ["peer-2"]


def test_a_list_of_the_revoked_is_the_authoritys_and_of_one_study():
    authority, other = Authority.create("test"), Authority.create("test")
    right = sign_revoked(authority, "s", ["bonn"])
    roster = make("s", "ring", 2, [member(0, "ulm"), member(1, "bonn")]).sign(authority)

    assert right.revoked(authority.pem, "s") == {"bonn"}
    for wrong, study in ((sign_revoked(other, "s", ["bonn"]), "s"), (right, "t"), (roster, "s")):
        with pytest.raises(ar.ArchipelError, match=r"not signed by|not one of study"):
            wrong.revoked(authority.pem, study)


# -- who is told to wait ---------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1e9, math.inf, math.nan, -1.0])
def test_a_peer_sleeps_as_long_as_it_wants(study, begun, monkeypatch, seconds):
    """Low: a coordinator could have it sleep for ever."""
    digest, (site, *_), _, roster = study
    (site.site_studies.folder(digest) / "roster.json").unlink()
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(members.asyncio, "sleep", sleep)
    line = Line(Letter("wait", {"seconds": seconds}), peers_of(begun[3], digest))
    found = asyncio.run(site.members.roster(line, digest))

    assert found == roster
    assert 0 < slept[0] <= 30
