# SPDX-License-Identifier: Apache-2.0
"""Peers find each other by views that they exchange, and nobody moves another."""

import asyncio
import json
import random
from contextlib import suppress

import pytest
import safetensors.torch
import tomli_w
import torch

from archipel.engines.network.letters import Letter, decode, encode
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.certificates import Identity, Invitation
from archipel.federation.peer import finding as finding_module
from archipel.federation.peer.finding import Book, Finding, statement
from archipel.federation.peer.lane import Lane
from archipel.federation.peer.peer import PeerSite
from archipel.federation.rehearsal import _free_port
from archipel.federation.roster import Member, Roster
from archipel.federation.site import binding
from archipel.federation.site.policy import Policy
from archipel.graphs import topology
from archipel.sampling.views import Sampling
from archipel.study.file import Study
from network.processes import STUDY as TABLES
from network.processes import Process, _write_tables
from network.test_peers import STUDY, attend, coordinator, gathered, run, simulated

EVERY = 5.0  # seconds of a cycle


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Files need not outlast the machine's power here."""
    monkeypatch.setattr(finding_module, "write", lambda path, content: path.write_bytes(content))


class Net:
    """Peers at addresses, a clock that all have, and no network; they work in turn."""

    def __init__(self, path, n, c=6, right=()):
        """Members of `right` were at their address when they approved; all others have moved."""
        self.path, self.sampling, self.now = path, Sampling(c, c // 2), 1e9
        self.keys = [Identity.create() for _ in range(n)]
        self.at = {k: f"new-{k}.example.org:{2000 + k}" for k in range(n)}
        self.out, self.moved, self.random = set(), [], random.Random(0)
        where = [self.at[k] if k in right else f"old-{k}.example.org:1" for k in range(n)]
        members = [
            Member(k, f"peer-{k}", self.keys[k].public.hex(), {"address": where[k]}, "")
            for k in range(n)
        ]
        self.roster = Roster("s", "ring", n, tuple(members))
        self.up = {k: self.begin(k) for k in range(n)}

    def begin(self, k, clock=None):
        links = {j: Wire(self, k, j) for j in range(len(self.keys)) if j != k}
        return Finding(
            self.roster, k, links, self.path / f"{k}.json", address=lambda: self.at[k],
            sign=self.keys[k].sign, every=EVERY, out=lambda j: j in self.out,
            moved=lambda member, address: self.moved.append((k, member.party, address)),
            clock=clock or (lambda: self.now), sampling=self.sampling,
        )  # fmt: skip

    async def cycles(self, count):
        for _ in range(count):
            for k in self.random.sample(sorted(self.up), len(self.up)):
                if k in self.up:
                    await self.up[k].cycle()
            self.now += EVERY

    def play(self, count):
        asyncio.run(self.cycles(count))

    def known(self):
        """Of those who are up, which part of the others' addresses they know."""
        right = [self.up[k].address(j) == self.at[j] for k in self.up for j in self.up if j != k]
        return sum(right) / len(right)

    def entry(self, k, number, address=None, key=None, study="s"):
        """An entry that member k signed."""
        address = address or self.at[k]
        said = statement(study, k, address, number)
        return k, address, number, self.keys[k if key is None else key].sign(said)


class Wire:
    """Leads to whoever is at the address now, as bytes."""

    most, pieces = 1 << 20, 0

    def __init__(self, net, k, j):
        self.net, self.k, self.j = net, k, j

    async def ask(self, letter):
        net = self.net
        if self.j not in net.up or net.up[self.k].address(self.j) != net.at[self.j]:
            raise Cut("nobody there.")
        return decode(encode(await net.up[self.j].answer(decode(encode(letter)))))


def view(*entries, study="s", **changed):
    names = ("parties", "addresses", "numbers", "signatures")
    columns = zip(names, map(list, zip(*entries, strict=True)), strict=True) if entries else ()
    fields = {**{name: [] for name in names}, **dict(columns), **changed}
    return Letter("view", {"study": study, **fields})


# -- finding each other ----------------------------------------------------------------------------


def test_who_knows_one_address_finds_all_others(tmp_path):
    net = Net(tmp_path, 16, right=[0])
    assert net.known() < 0.07
    net.play(120)

    assert net.known() == 1.0
    assert all(len(finding.view) == 6 for finding in net.up.values())
    assert {(k, j) for k, j, _ in net.moved} == {
        (k, j) for k in range(16) for j in range(1, 16) if k != j
    }


def test_few_who_all_have_room_for_each_other_find_all(tmp_path):
    net = Net(tmp_path, 4, right=[2])
    net.play(10)

    assert all(sorted(finding.view) == sorted({0, 1, 2, 3} - {k}) for k, finding in net.up.items())


@pytest.mark.parametrize("n", [5, 16])
def test_a_peer_that_moves_is_found_again(tmp_path, n):
    net = Net(tmp_path, n, right=range(n))
    net.play(15)
    assert net.known() == 1.0
    net.at[3] = "third.example.org:77"
    net.play(80)

    assert net.known() == 1.0
    assert {k for k, j, address in net.moved if (j, address) == (3, net.at[3])} == set(range(n)) - {
        3
    }


@pytest.mark.parametrize("n", [5, 16])
def test_a_dead_peer_leaves_all_views_and_comes_back(tmp_path, n):
    net = Net(tmp_path, n, right=range(n))
    net.play(10)
    assert any(3 in finding.view for finding in net.up.values())
    dead = net.up.pop(3)
    net.play(20)
    assert not any(3 in finding.view for finding in net.up.values())
    net.up[3] = dead
    net.play(20)

    assert any(3 in finding.view for k, finding in net.up.items() if k != 3)


@pytest.mark.parametrize("c", [2, 6])
def test_two_halves_that_lost_each_other_find_each_other_by_the_roster(tmp_path, c):
    """Also where all views are full."""
    net = Net(tmp_path, 6, c, right=range(6))
    halves = {0, 1, 2}, {3, 4, 5}
    for k, finding in net.up.items():
        half = halves[k > 2]
        finding._book.view = []
        finding._out = lambda j, half=half: j not in half
    net.play(6)
    assert set(net.up[0].view) == {1, 2} and set(net.up[3].view) == {4, 5}
    for finding in net.up.values():
        finding._out = lambda _: False
    net.play(15)

    assert all(len(finding.view) == min(c, 5) for finding in net.up.values())
    assert any(halves[1] & set(net.up[k].view) for k in halves[0])


def test_after_a_kill_a_peer_knows_what_it_knew_and_its_numbers_grow(tmp_path):
    net = Net(tmp_path, 8, right=[0])
    net.play(12)
    before = net.up[5]
    number, known = before._book.number, {j: before.address(j) for j in range(8) if j != 5}
    late = net.now - 3600  # its clock was set back meanwhile
    net.up[5] = net.begin(5, clock=lambda: late)
    assert {j: net.up[5].address(j) for j in known} == known and net.up[5].view
    net.at[5] = "other.example.org:9"
    net.play(80)

    assert number < net.up[5]._book.number < Book(tmp_path / "5.json").number
    assert net.known() == 1.0


def test_who_is_revoked_is_in_no_view(tmp_path):
    net = Net(tmp_path, 6, right=range(6))
    net.play(6)
    net.out.add(4)
    del net.up[4]
    net.play(1)

    assert not any(4 in finding.view for finding in net.up.values())
    answer = asyncio.run(net.up[0].answer(view(net.entry(4, 10**15))))
    assert 4 not in net.up[0].view and 4 not in answer["parties"]


# -- a member that lies ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda net: view(net.entry(2, 10**14, "mallory:1", key=1)), "peer-2 did not sign"),
        (lambda net: view(net.entry(2, 10**14, study="t")), "peer-2 did not sign"),
        (lambda net: view((2, *net.entry(3, 10**14)[1:])), "peer-2 did not sign"),
        (lambda net: view((*net.entry(2, 10**14)[:2], 10**15, b"")), "peer-2 did not sign"),
        (lambda net: view(net.entry(1, 10**14), (99, "a:1", 1, b"")), "party 99, who is not"),
        (lambda net: view(net.entry(1, 10**14), (-1, "a:1", 1, b"")), "party -1, who is not"),
        (lambda net: view(*[net.entry(1, 10**14)] * 4), "longer than 3"),
        (lambda net: view(net.entry(1, 10**14), numbers=[]), "not of one length"),
        (lambda net: view(net.entry(1, 10**14), study="t"), "a view of this study"),
        (lambda net: Letter("thanks"), "a view of this study"),
        (lambda net: view((1, "unix:///x", 1, b"")), "an entry that is none"),
        (lambda net: view((1, "a:1", 1 << 60, b"")), "an entry that is none"),
        (lambda net: view((1, "a:1", -1, b"")), "an entry that is none"),
        (lambda net: view(("1", "a:1", 1, b"")), "an entry that is none"),
        (lambda net: view((1, b"a:1", 1, b"")), "an entry that is none"),
        (lambda net: view((1, "a:1", 1.0, b"")), "an entry that is none"),
        (lambda net: view((1, "a:1", 1, None)), "an entry that is none"),
        (lambda net: view((1, "a" * 400 + ":1", 1, b"")), "an entry that is none"),
    ],
)
def test_what_no_member_says_of_itself_is_refused_whole(tmp_path, made, why):
    net = Net(tmp_path, 6, right=range(6))
    finding = net.up[0]

    with pytest.raises(Refused, match=why):
        asyncio.run(finding.answer(made(net)))
    assert not finding.view and not finding._book.newest


def test_an_address_that_a_member_has_left_is_not_brought_back(tmp_path):
    net = Net(tmp_path, 6)
    old, new = net.entry(2, 10**12, "left.example.org:1"), net.entry(2, 10**12 + 1)
    finding = net.up[0]
    asyncio.run(finding.answer(view(net.entry(1, 10**12), new)))
    asyncio.run(finding.answer(view(net.entry(1, 10**12 + 1), old)))

    assert finding.address(2) == net.at[2]
    assert net.moved[-1] == (0, 2, net.at[2])


def test_a_member_that_moves_all_the_time_is_followed_once_in_a_cycle(tmp_path):
    """Every move is in the audit log, and on the disk."""
    net = Net(tmp_path, 3)
    for k in range(20):
        asyncio.run(net.up[0].answer(view(net.entry(1, 10**12 + k, f"at-{k}.example.org:1"))))
    assert net.moved == [(0, 1, "at-0.example.org:1")]
    net.now += EVERY
    asyncio.run(net.up[0].answer(view(net.entry(1, 10**12 + 20, "last.example.org:1"))))

    assert net.moved[1:] == [(0, 1, "last.example.org:1")]


def test_nobody_makes_another_younger(tmp_path):
    """Ages follow from what the members signed, whoever passes it on."""
    net = Net(tmp_path, 6)
    now = int(1000 * net.now)
    finding = net.up[0]
    sent = view(net.entry(1, now), net.entry(2, now - 50_000), net.entry(3, now + 10**9))
    asyncio.run(finding.answer(sent))
    ages = dict(zip(*(part[0].tolist() for part in finding._view()), strict=True))

    assert (ages[1], ages[2]) == (0, 10)
    assert ages[3] == 0  # of itself a member may lie: it has one place of the view


def test_where_nobody_answered_is_asked_again_only_for_a_newer_number(tmp_path):
    net = Net(tmp_path, 3)
    del net.up[2]
    entry, finding = net.entry(2, int(1000 * net.now)), net.up[0]
    asyncio.run(finding.answer(view(entry)))
    assert finding.view == (2,)
    asyncio.run(finding._ask(2))
    asyncio.run(finding.answer(view(entry)))
    assert finding.view == ()
    asyncio.run(finding.answer(view(net.entry(2, entry[2] + 1))))

    assert finding.view == (2,)


def test_an_answer_that_is_wrong_is_none(tmp_path):
    net = Net(tmp_path, 3, right=[1])

    class Liar:
        async def answer(self, letter):
            return view(net.entry(2, 10**14, "mallory:1", key=1))

    asyncio.run(net.up[0].answer(view(net.entry(1, int(1000 * net.now)))))
    net.up[1] = Liar()
    asyncio.run(net.up[0]._ask(1))

    assert net.up[0].view == () and net.up[0].address(2) == "old-2.example.org:1"


# -- a way to a peer that moves --------------------------------------------------------------------


def test_a_lane_closes_the_way_to_where_a_peer_was_when_nothing_comes_over_it():
    opened, at, gate = [], ["a:1"], asyncio.Event()

    class Link:
        most, pieces = 7, 0

        def __init__(self, address):
            self.address, self.closed = address, False
            opened.append(self)

        async def ask(self, letter):
            if self.address == "a:1":
                await gate.wait()
            return self.address

        async def close(self):
            self.closed = True

    class Site:
        paused = False

    async def play():
        lane = Lane(lambda: at[0], Link, Site())
        slow = asyncio.create_task(lane.ask("x"))
        await asyncio.sleep(0)
        at[0] = "b:2"
        assert await lane.ask("y") == "b:2"
        assert not opened[0].closed  # something is under way
        gate.set()
        assert await slow == "a:1"
        assert opened[0].closed and not opened[1].closed
        at[0] = "c:3"
        await lane.ask("z")
        assert opened[1].closed
        await lane.close()

    asyncio.run(play())
    assert [link.address for link in opened] == ["a:1", "b:2", "c:3"] and opened[2].closed


# -- with keys, certificates and a roster ----------------------------------------------------------


def moves(site):
    """Have a peer be somewhere else than the roster says."""
    site.moves(f"localhost:{_free_port()}")
    return PeerSite(site.home, silence=5.0)


def test_peers_of_which_all_but_one_have_moved_find_each_other_over_tls(tmp_path):
    text = STUDY.replace("rounds = 5", "rounds = 4")

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, text)
            peers = [(moves(site) if k else site, data) for k, (site, data) in enumerate(peers)]
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            await one.run(digest)
            assert await asyncio.gather(*tasks) == [4] * 4
            return digest, [site for site, _ in peers]

    digest, sites = run(play(), 120)
    vectors = simulated(*Study.parse(text).parts(), topology("ring", 4), 4)
    for k, site in enumerate(sites):
        folder = site.site_studies.folder(digest)
        own = safetensors.torch.load_file(folder / "peer" / "own.safetensors")
        (state,) = (x for x in own.values() if x.shape == vectors[k].shape)
        torch.testing.assert_close(state, vectors[k], rtol=1e-6, atol=1e-6)
        roster, book = site.members.known(digest), Book(folder / "addresses.json")
        found = {entry.detail["peer"] for entry in site.audit.entries("found")}
        known = {each.name: book.address(each) for each in roster.peers if each.name in found}
        assert known == {each.name: each.listens for each in sites if each.name in found}
        if k > 1:  # the higher end of an edge asks the lower; news of others may come later
            assert f"peer-{k - 1}" in found


@pytest.mark.slow
def test_a_peer_killed_and_started_elsewhere_is_found_and_finds_all(tmp_path):
    """`archipel peer up`, kill -9, and again on another port while the coordinator is down."""
    study = {
        **TABLES,
        "study": {"name": "found", "purpose": "To test.", "rounds": 100_000},
        "algorithm": {"name": "dsgd", "lr": 0.01},
        "topology": {"name": "ring"},
    }
    text = tomli_w.dumps(study).encode()
    _write_tables(tmp_path / "tables", 3, 40)

    def process(k, *more):
        home = str(tmp_path / f"peer-{k}")
        return Process(tmp_path / f"{k}.log", "peer", "up", "--home", home, "--silence", "5", *more)

    async def joined(one, k):
        invitation = Invitation.read(one.home.invite(f"peer-{k}").token())
        site = await PeerSite.join_as_peer(
            tmp_path / f"peer-{k}", invitation, f"localhost:{_free_port()}"
        )
        Policy.open().write(site.home)
        link = site.link()
        await site.fetch(link, approval.hash_of(text))
        described = site.site_studies.read(approval.hash_of(text))
        binding.bind(site.home / "data", described, tmp_path / "tables" / f"site-{k}.csv")
        records = binding.records(site.home / "data", described)
        site.decide(text, "approved", binding.facts(records, counts=True))
        await site.tell(link)
        await link.close()
        return site

    async def play():
        up = [process(k) for k in range(3)]
        try:
            async with coordinator(tmp_path / "c") as one:
                digest = one.home.submit(text)
                sites = [await joined(one, k) for k in range(3)]
                folders = [site.site_studies.folder(digest) for site in sites]
                running = asyncio.create_task(one.run(digest))
                for each in up:
                    await each.start()
                await until(lambda: len(looked(folders[2]).newest) == 2, up)
                await until(
                    lambda: rounds(folders[0]) and not rounds(folders[0])[-1]["missing"], up
                )
                await up[2].kill()
                one.server_studies[digest].engine.adjourn()
                with suppress(ArchipelError):
                    await running
            before, address = looked(folders[2]).number, f"localhost:{_free_port()}"
            up[2] = process(2, "--address", address)
            await up[2].start()
            for folder in folders[:2]:
                await until(lambda folder=folder: looked(folder).newest[2].address == address, up)
            at = len(rounds(folders[0]))
            await until(
                lambda: any(not each["missing"] for each in rounds(folders[0])[at + 5 :]), up
            )
        finally:
            for each in up:
                if each.running:
                    await each.kill()
        return before, looked(folders[2]).number, sites

    before, after, sites = run(play(), 180)
    assert after > before
    assert f"peer-2 is at {PeerSite(sites[2].home).listens} now" in (tmp_path / "0.log").read_text()
    assert [entry.what for entry in sites[2].audit.entries("moved")] == ["moved"]


def looked(folder):
    return Book(folder / "addresses.json")


def rounds(folder):
    """What a peer wrote down of its rounds."""
    path = folder / "rounds.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


async def until(seen, processes):
    while not seen():
        for process in processes:
            process.check()
        await asyncio.sleep(0.1)
