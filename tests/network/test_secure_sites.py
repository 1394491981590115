# SPDX-License-Identifier: Apache-2.0
"""Secure sums between sites: who knows whom, what a policy forbids, who lies is found out."""

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.gopa import Gopa
from archipel.aggregation.others import Stranger
from archipel.aggregation.roster import SIGNED, Refusal
from archipel.aggregation.secure import SecureSum
from archipel.engines.engine import Cause, Outcome
from archipel.engines.network.letters import decode
from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError
from archipel.federation.certificates import Identity
from archipel.federation.confirmed import Confirmed, read_words
from archipel.federation.coordinator.server_study import SiteAttendance
from archipel.federation.peer.known_keys import KnownKeys
from archipel.federation.roster import fingerprint
from archipel.federation.site.acquaintances import Acquaintances, Member, _read
from archipel.federation.site.policy import Policy, Standing, Withheld
from archipel.runs.participation import Cohort
from archipel.tree import leaves
from network.test_wire import DATA, PARTIES, Federation, party_of

WIRE = ar.Wire(sum=SecureSum())
STUDY = "5" * 64


class Folder:
    """What acquaintances need of a site."""

    late_joiners = True

    def __init__(self, home, name="aachen", party=0):
        self.home, self.name, self.identity, self.said = home, name, Identity.create(), []
        self.site_studies = self
        self.audit = self
        self._party = party
        self.folder(STUDY).mkdir(parents=True, exist_ok=True)

    @property
    def policy(self):
        return Policy.read(self.home)

    def folder(self, study):
        return self.home / study

    def party(self, study):
        return self._party

    def read(self, study):
        return SimpleNamespace(round=SimpleNamespace(late_joiners=self.late_joiners))

    def append(self, what, **detail):
        self.said.append((what, detail))


@pytest.fixture
def site(tmp_path):
    return Folder(tmp_path)


def member(name):
    return Member(name, Identity.create().public.hex())


def me(site):
    return Member(site.name, site.identity.public.hex())


# -- who the others are ----------------------------------------------------------------------------


def test_a_key_is_remembered_when_a_site_is_first_met_and_another_one_refused(site):
    bonn = member("bonn")
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn})

    assert site.said[0][0] == "met" and site.said[0][1]["peer"] == "bonn"
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn, 2: member("celle")})  # one that is late
    with pytest.raises(
        ArchipelError, match=r"another key for bonn .* 'archipel site keys --forget"
    ):
        Acquaintances(site, STUDY).take({0: me(site), 1: member("bonn")})
    with pytest.raises(ArchipelError, match="another key for bonn"):  # in another study, too
        (site.home / ("6" * 64)).mkdir()
        Acquaintances(site, "6" * 64).take({0: me(site), 1: member("bonn")})


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda mine, bonn: {0: member("aachen"), 1: bonn}, "another name or key for party 0"),
        (lambda mine, bonn: {1: bonn}, "another name or key for party 0, which is this site"),
        (lambda mine, bonn: {0: mine, 1: member("celle")}, "a site's number to another one"),
        (lambda mine, bonn: {0: mine, 1: bonn, 2: bonn}, "one name or key for two parties"),
        (
            lambda mine, bonn: {0: mine, 1: bonn, 2: Member("celle", bonn.identity)},
            "one name or key for two parties",
        ),
    ],
)
def test_members_that_change_or_repeat_are_refused(site, change, says):
    bonn = member("bonn")
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn})
    before = (site.home / STUDY / "members.json").read_bytes()

    with pytest.raises(ArchipelError, match=says):
        Acquaintances(site, STUDY).take(change(me(site), bonn))
    assert (site.home / STUDY / "members.json").read_bytes() == before


def test_who_is_not_known_is_a_stranger_and_who_is_signs_for_sums_alone(site, tmp_path):
    other = Folder(tmp_path / "other", "bonn", 1)
    here, there = Acquaintances(site, STUDY), Acquaintances(other, STUDY)
    with pytest.raises(Stranger, match="key of party 1 is not known"):
        here.signed(1, there.sign(b"this"), b"this")

    here.take({0: me(site), 1: me(other)})

    assert here.signed(1, there.sign(b"this"), b"this")
    assert here.signed(0, here.sign(b"this"), b"this")
    assert not here.signed(1, there.sign(b"this"), b"that")
    assert not here.signed(1, other.identity.sign(b"this"), b"this")  # of a letter, or a decision


def test_nobody_comes_to_the_sites_first_met_where_the_study_takes_nobody_late(site):
    site.late_joiners, bonn = False, member("bonn")
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn})
    before = (site.home / "peers.json").read_bytes()

    with pytest.raises(ArchipelError, match=r"names celle, whom .* has late_joiners = false") as no:
        Acquaintances(site, STUDY).take({0: me(site), 1: bonn, 2: member("celle")})

    assert str(no.value).count("\n") == 0
    assert (site.home / "peers.json").read_bytes() == before
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn})
    site.late_joiners = True
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn, 2: member("celle")})


def test_a_key_that_an_operator_forgot_signs_nothing_any_more(site, tmp_path):
    """The process that works does not start again for it."""
    other = Folder(tmp_path / "other", "bonn", 1)
    here, there = Acquaintances(site, STUDY), Acquaintances(other, STUDY)
    here.take({0: me(site), 1: me(other)})
    assert here.signed(1, there.sign(b"this"), b"this")

    KnownKeys(site.home / "peers.json").forget("bonn")

    with pytest.raises(Stranger, match="key of party 1 is not known"):
        here.signed(1, there.sign(b"this"), b"this")
    here.take({0: me(site), 1: me(other)})
    assert here.signed(1, there.sign(b"this"), b"this")


# -- keys that somebody has confirmed --------------------------------------------------------------


def words(of):
    return fingerprint(of.identity)


def test_a_key_confirmed_beforehand_is_the_only_one_that_a_name_may_have(site):
    """A coordinator that gives a false key at the first meeting is refused."""
    bonn = member("bonn")
    Confirmed(site.home).confirm("bonn", words(bonn))

    with pytest.raises(ArchipelError, match=r"another key for bonn than was confirmed .* anew"):
        Acquaintances(site, STUDY).take({0: me(site), 1: member("bonn")})
    assert not (site.home / "peers.json").exists() and not site.said
    Acquaintances(site, STUDY).take({0: me(site), 1: bonn})


def test_where_the_policy_wants_it_nobody_is_met_whose_key_is_not_confirmed(site):
    bonn, celle = member("bonn"), member("celle")
    Policy(confirmed=True).write(site.home)
    Confirmed(site.home).confirm("bonn", words(bonn))
    everybody = {0: me(site), 1: bonn, 2: celle}

    with pytest.raises(Withheld, match=r"nobody here has confirmed the key of celle; telephone"):
        Acquaintances(site, STUDY).take(everybody)
    assert not (site.home / "peers.json").exists()
    Confirmed(site.home).confirm("celle", words(celle))
    Acquaintances(site, STUDY).take(everybody)
    assert {*KnownKeys(site.home / "peers.json").known()} == {"bonn", "celle"}


def test_a_policy_that_comes_later_holds_at_once_for_those_met_before(site, tmp_path):
    other = Folder(tmp_path / "other", "bonn", 1)
    here, there = Acquaintances(site, STUDY), Acquaintances(other, STUDY)
    here.take({0: me(site), 1: me(other)})
    signed = there.sign(b"this")
    assert here.signed(1, signed, b"this")

    Policy(confirmed=True).write(site.home)
    with pytest.raises(Withheld, match="nobody here has confirmed the key of bonn"):
        here.signed(1, signed, b"this")
    assert here.signed(0, here.sign(b"this"), b"this")  # itself
    Confirmed(site.home).confirm("bonn", words(me(other)))
    assert here.signed(1, signed, b"this")


@pytest.mark.parametrize("how", [SecureSum(), Gopa()], ids=lambda each: type(each).__name__)
def test_a_sum_is_not_made_with_a_site_that_is_not_confirmed(site, tmp_path, how):
    """The party refuses before anything of its upload leaves."""
    others = [site, *(Folder(tmp_path / str(k), f"site-{k}", k) for k in range(1, 5))]
    everybody = {k: me(each) for k, each in enumerate(others)}
    for each in others:
        Acquaintances(each, STUDY).take(everybody)
    known = [Acquaintances(each, STUDY) for each in others]
    wire = ar.Wire(sum=how)
    federation = Federation(wire)
    federation.parties = [party_of(k, wire, identities=known[k]) for k in range(PARTIES)]
    for name in ("site-1", "site-2", "site-3"):
        Confirmed(site.home).confirm(name, words(everybody[int(name[-1])]))

    async def play():
        assert len((await federation.round(0, range(PARTIES))).arrived) == PARTIES
        Policy(confirmed=True, least_sites=2).write(site.home)
        with pytest.raises(Withheld, match="nobody here has confirmed the key of site-4"):
            await federation.round(1, range(PARTIES))
        return federation.parties[0].turn

    turn = asyncio.run(asyncio.wait_for(play(), 60))
    assert len(turn.outbox) <= 2  # no upload


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "these are 0"),
        ("acorn", "these are 1"),
        ("acorn " * 13, "these are 13"),
        ("acorn " * 11 + "xyzzy", "'xyzzy' is none of them"),
    ],
)
def test_what_is_no_fingerprint_is_not_confirmed(text, says):
    with pytest.raises(ArchipelError, match=f"give the 12 words .*; {says}"):
        read_words(text)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'[[0, "a", "zz"]]', b'[["0", "a", "00"]]', b'[[0, 1, "00"]]']
)
def test_what_is_no_list_of_members_is_refused(content):
    with pytest.raises(Refused, match="no list of numbers, names and keys"):
        _read(content)


def test_a_list_of_members_is_read():
    bonn = member("bonn")
    assert _read(json.dumps([[3, *bonn]]).encode()) == {3: bonn}


# -- a site's own policy ---------------------------------------------------------------------------


def test_a_site_unmasks_no_sum_of_fewer_than_its_policy_wants():
    """Five answer, one is lost before it sends what it masked: four stay, and a site wants five."""

    class Rules:
        scores, least = 10**6, 5

        def check_model(self, model, w):
            pass

        def check_upload(self, records, rows):
            pass

    federation = Federation(WIRE)
    federation.parties[3] = party_of(3, WIRE, rules=Rules())

    async def play():
        assert len((await federation.round(0, range(PARTIES))).arrived) == PARTIES
        with pytest.raises(Refusal, match="4 parties stayed, and this party wants at least 5"):
            await federation.round(1, range(PARTIES), {0: 2})

    asyncio.run(asyncio.wait_for(play(), 60))


def test_a_change_of_the_policy_holds_at_once(tmp_path):
    rules = Standing(tmp_path)
    Policy(least_sites=3).write(tmp_path)
    assert rules.least == 3

    Policy(least_sites=7).write(tmp_path)

    assert rules.least == 7


# -- a party that lies -----------------------------------------------------------------------------


def test_a_wrong_share_is_found_what_its_sender_told_left_out_and_the_sum_is_right():
    """The upload of who told it is in the sum, and it is named."""

    class Lying(Federation):
        def answer(self, k, letter, restarts=False):
            upload = super().answer(k, letter, restarts)
            if k == 2 and letter["number"] == 4:
                upload.arrays[0][:, 7] ^= 1
            return upload

    lying, honest = Lying(WIRE), Federation(WIRE)

    async def play():
        return await lying.round(0, range(PARTIES)), await honest.round(0, range(PARTIES))

    outcome, _ = asyncio.run(asyncio.wait_for(play(), 60))

    assert outcome.left == {2: Cause("diverged")} and len(outcome.arrived) == PARTIES
    assert torch.equal(lying.engine.vector(), honest.engine.vector())


def test_a_study_between_letters_is_its_simulation_to_the_last_bit():
    for algorithm in (ar.FedAvg(lr=0.1, batch_size=4), ar.Scaffold(lr=0.1, batch_size=4)):
        federation = Federation(WIRE, algorithm)

        async def play(federation=federation):
            for t in range(2):
                await federation.round(t, range(PARTIES))

        asyncio.run(asyncio.wait_for(play(), 60))
        model = federation.engine.model
        plan = ar.Plan("one", 1, 1)
        with ar.LocalEngine(algorithm, DATA, model, plan=plan, wire=WIRE) as engine:
            for t in range(2):
                engine.round(t, np.arange(PARTIES))
            assert torch.equal(engine.vector(), federation.engine.vector())


# -- the same round again --------------------------------------------------------------------------


async def again(federation, t, cohort):
    """A coordinator that plays a round from the same state, and keeps what came of it to itself."""
    engine, refusals = federation.engine, {}
    before = engine.state()
    running = asyncio.create_task(engine.round(t, cohort))
    while not running.done():
        await asyncio.sleep(0)
        for k in cohort:
            sealed = engine.work_for(k)
            if sealed is None:
                continue
            try:
                letter = decode(b"".join(sealed.pieces))
                engine.upload(k, federation.answer(k, letter, restarts=k == 0))
            except ArchipelError as no:
                refusals[k] = str(no)
                engine.lose(k, Cause("refused"))
    outcome, found = await running, engine.vector().clone()
    engine.restore(before)
    return outcome, found, refusals


@pytest.mark.parametrize("first, second", [(5, 4), (4, 5)])
def test_a_round_that_was_signed_gives_no_sum_of_other_parties(first, second):
    """The difference of the two would be what one party sent; the first of them restarts."""
    federation = Federation(WIRE)

    async def play():
        outcome, one, _ = await again(federation, 0, range(first))
        assert len(outcome.arrived) == first
        outcome, _, refusals = await again(federation, 0, range(second))
        assert len(outcome.arrived) == 0 and {*refusals} >= {*range(4)}
        assert all("signed a sum of" in refusals[k] for k in range(4))
        outcome, same, _ = await again(federation, 0, range(first))  # an honest restart
        assert len(outcome.arrived) == first and torch.equal(one, same)
        await federation.round(1, range(second))  # and the study goes on
        return federation.engine.vector()

    before = federation.engine.vector().clone()
    assert not torch.equal(asyncio.run(asyncio.wait_for(play(), 60)), before)


def test_who_signed_a_sum_masks_nothing_among_others():
    """It is refused before the masked upload, which others alone could unmask."""
    federation = Federation(WIRE)

    async def play():
        await again(federation, 0, range(5))
        up = []
        take = federation.engine.upload
        federation.engine.upload = lambda k, letter: (up.append(letter["number"]), take(k, letter))
        await again(federation, 0, range(1, 5))
        return up

    assert max(asyncio.run(asyncio.wait_for(play(), 60))) == 1


def test_an_attempt_that_is_over_does_not_come_again():
    """Or else keys that others signed for it would hold again, and their secrets may be out."""
    party = party_of(0, WIRE)
    first = leaves(party.anatomy.sent)
    for attempt in (1, 2):
        party.work(0, 0, first, attempt=attempt)
    other = party_of(0, WIRE)
    other.restore(party.state())
    for each in (party, other):
        with pytest.raises(Refused, match=r"attempt 1 came after attempt 2, .* a larger number"):
            each.work(0, 0, first, attempt=1)


def test_a_coordinator_gives_attempts_that_grow():
    federation, found = Federation(WIRE), []

    async def play():
        for engine in (federation.engine, federation.engine, Federation(WIRE).engine):
            running = asyncio.create_task(engine.round(0, range(5)))
            while engine.opened is None:
                await asyncio.sleep(0)
            found.append(engine.opened.attempt)
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(play(), 60))
    assert found == sorted(set(found))


@pytest.mark.parametrize("why, tries", [(SIGNED, 1), ("away", 3)])
def test_a_study_that_waits_goes_on_after_a_round_that_was_signed_without_a_site(why, tries):
    """What those sites refuse who signed it, they refuse for ever: others are waited for."""
    asked = []

    class There(SiteAttendance):
        def _try(self, t):
            asked.append(t)
            enough = len(asked) == 3
            ids = np.arange(3)
            present = ids if enough else ids[:0]
            missing = {} if enough else {0: Cause.read(why), 1: Cause("silent")}
            return Cohort(ids, present, np.ones(3), missing, enough), Outcome(present), 3

        def _refuse_spent(self, t):
            pass

    nothing = SimpleNamespace(pause=lambda _: None)
    sites = SimpleNamespace(
        find_scale=lambda: None, take_in=lambda: None, waits=lambda *_: None, presence=nothing,
        policy=lambda: (SimpleNamespace(on_missing="wait"), 3),
    )  # fmt: skip
    cohort, _ = There(None, sites, None).take_part(4, 0)

    assert asked == [4] * tries and cohort.counted == (why != SIGNED)
