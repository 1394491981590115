"""A verifiable mean without a keeper: all honest parties have one file, whatever others do.

Parties run in one process; `deliver` is the network, and a liar's hand.
"""

import json
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.talk import Talk
from archipel.federation.certificates import Identity
from archipel.signing import verify
from archipel.verifiable import peers
from archipel.verifiable.agreement import Twice, statement, tell_all
from archipel.verifiable.bulletin import Board, entry, in_bytes, in_text
from archipel.verifiable.following import PHASES, Run
from archipel.verifiable.messages import Accuse
from archipel.verifiable.party import Party
from archipel.verifiable.terms import agreed
from archipel.verifiable.verification import checked

NAMES = ["anna", "bert", "cleo", "dora", "emil"]
LIAR = "bert"
IDENTITIES = {name: Identity.create() for name in NAMES}
TERMS = agreed(
    {name: each.public.hex() for name, each in IDENTITIES.items()},
    "00", epsilon=8.0, delta=1e-3, honest=0.8, dropouts=0.2, bits=4,
)  # fmt: skip
STEPS = peers.faulty(TERMS, 0.2) + 1  # in which all tell one thing


def everything(sender, receiver, step, said):
    return said


class Met:
    """What came of a run: each party's board, who stopped and why, and what was published when."""

    def __init__(self, deliver=everything, kinds=None):
        self.boards = {name: Board(None) for name in NAMES}
        self.stopped, self.published = {}, set()
        parties = {
            name: (kinds or {}).get(name, Party)(name, (0.5,), IDENTITIES[name]) for name in NAMES
        }
        talks = {
            name: Talk(
                peers.member(parties[name], TERMS, self.boards[name], 0.2, self._noted(name))
            )
            for name in NAMES
        }
        step = 0
        while any(not talk.ended for talk in talks.values()):
            said = {name: talk.said for name, talk in talks.items() if not talk.ended}
            for name in list(said):
                told = {
                    NAMES.index(other): heard
                    for other in said
                    if other != name
                    and (heard := deliver(other, name, step, said[other])) is not None
                }
                try:
                    talks[name].send(told)
                except ArchipelError as error:
                    self.stopped[name] = error
                    del talks[name]
            step += 1
        self.steps = step

    def _noted(self, name):
        return lambda phase: self.published.add(name) if phase == "publish" else None

    def of_the_honest(self, besides=(LIAR,)):
        """What the one file of all honest parties shows."""
        honest = [name for name in NAMES if name not in besides]
        files = {b"".join(self.boards[name].lines) for name in honest}
        assert len(files) == 1 and not self.stopped.keys() & set(honest), self.stopped
        board = self.boards[honest[0]]
        return checked(board.entries, board.lines)


def named(verdict):
    return {(fault.party, fault.kind) for fault in verdict.told}


def test_all_have_one_file_that_anybody_verifies():
    met = Met()
    verdict = met.of_the_honest(())
    (outcome,) = verdict.outcomes

    assert verdict.right and outcome.counted == outcome.sealed == tuple(NAMES)
    assert outcome.keeper == "" and outcome.epsilon <= 8
    assert abs(outcome.mean[0] - 0.5) < 6 * outcome.deviation[0]
    assert met.steps == peers.steps(TERMS, 0.2)
    assert max(len(line) for line in met.boards["anna"].lines[1:]) < peers.longest(TERMS)


@pytest.mark.parametrize("step", range((len(PHASES) + 2) * STEPS))
def test_one_that_vanishes_in_any_step_while_it_tells_some_leaves_one_file(step):
    """In its last step it tells two of the four others."""

    def deliver(sender, receiver, now, said):
        if sender != LIAR or now < step:
            return said
        return said if now == step and receiver in ("cleo", "emil") else None

    verdict = Met(deliver).of_the_honest()
    (outcome,) = verdict.outcomes

    assert set(outcome.counted) >= set(NAMES) - {LIAR}
    assert not named(verdict) and abs(outcome.mean[0] - 0.5) < 6 * outcome.deviation[0]


class Two:
    """A network on which one party tells half of the others one thing and half another."""

    def __init__(self, phase):
        self.first = phase * STEPS  # the step in which it tells its own; phase 0 is the greeting
        self.phase = phase

    def __call__(self, sender, receiver, step, said):
        if sender != LIAR or step != self.first or receiver in ("anna", "cleo"):
            return said
        (item,) = json.loads(said)
        return json.dumps([self.other(item)]).encode()

    def other(self, item):
        by, told, signatures = item
        before = in_bytes(told)
        other = before + b"and more\n"
        signature = in_bytes(signatures[by])
        (about,) = (each for each in self.occasions if is_about(each, before, signature))
        signature = IDENTITIES[by].sign(statement(about, by, sha256(other).digest()))
        return [by, in_text(other), {by: in_text(signature)}]


def is_about(occasion, told, signature):
    said = statement(occasion, LIAR, sha256(told).digest())
    return verify(IDENTITIES[LIAR].public, signature, said)


@pytest.mark.parametrize("phase", range(1, len(PHASES)))
def test_one_that_tells_two_things_is_named_by_all(phase, monkeypatch):
    """All but the last phase: whoever tells two things there has no say in what is sealed."""
    occasions, inner = set(), Run.occasion.fget

    def occasion(run):
        occasions.add(inner(run))
        return inner(run)

    monkeypatch.setattr(Run, "occasion", property(occasion))
    network = Two(phase)
    network.occasions = occasions
    verdict = Met(network).of_the_honest()
    (outcome,) = verdict.outcomes

    assert named(verdict) == {(LIAR, "equivocation")}
    assert f"in phase '{PHASES[phase - 1]}'" in verdict.told[0].detail
    if phase < 5:
        assert set(outcome.counted) == set(NAMES) - {LIAR}
        assert abs(outcome.mean[0] - 0.5) < 6 * outcome.deviation[0]


class TooMuch(Party):
    """Its value is beyond the range."""

    def _steps(self, terms):
        return [terms.tops[0] + 1]


class Doctored(Party):
    """It chooses its noise."""

    def _noise(self, run):
        return [each + 1 for each in super()._noise(run)]


def test_a_value_out_of_range_is_seen_before_anybody_publishes():
    met = Met(kinds={LIAR: TooMuch})
    verdict = met.of_the_honest()

    assert named(verdict) == {(LIAR, "out of range")} and verdict.outcomes[0].mean is None
    assert not met.published
    assert [each.body["phase"] for each in met.boards["anna"].entries if each.what == "phase"] == [
        "commit", "seal",
    ]  # fmt: skip


def test_noise_that_a_party_chose_is_named():
    verdict = Met(kinds={LIAR: Doctored}).of_the_honest()
    assert named(verdict) == {(LIAR, "wrong noise")} and verdict.outcomes[0].mean is None


def test_too_many_that_vanish_stop_all_before_they_publish():
    def deliver(sender, receiver, step, said):
        gone = sender in ("bert", "cleo", "dora")
        return None if gone and step >= 3 * STEPS else said

    met = Met(deliver)
    assert isinstance(met.stopped["anna"], BelowQuorum)
    assert "2 of 5 parties are left" in str(met.stopped["anna"])
    assert met.stopped["anna"].exit_code == 3


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_whatever_one_tells_to_each_the_honest_have_one_file(data):
    """Words of other steps, other parties' words, nothing, noise, and its own: to each another."""
    past = [b"", b"[]", b"\xff", b'[["bert", "AAAA", {}]]', b"[[1, 2, 3]]", b"{}"]

    def deliver(sender, receiver, step, said):
        past.append(said)
        if sender != LIAR:
            return said
        choice = data.draw(st.integers(0, 3))
        if choice == 0:
            return None
        return said if choice > 1 else past[data.draw(st.integers(0, len(past) - 1))]

    verdict = Met(deliver).of_the_honest()

    assert {party for party, _ in named(verdict)} <= {LIAR}


# -- telling all the same ------------------------------------------------------------------------


def heard(deliver, faulty=1, names=NAMES):
    keys = {name: IDENTITIES[name].public for name in names}
    talks = {
        name: Talk(
            tell_all(
                IDENTITIES[name], name, keys, b"about", name.encode(),
                speakers=names, faulty=faulty, longest=100,
            )
        )
        for name in names
    }  # fmt: skip
    for step in range(faulty + 1):
        said = {name: talk.said for name, talk in talks.items()}
        for name, talk in talks.items():
            told = {
                NAMES.index(i): each
                for i in names
                if i != name and (each := deliver(i, name, step, said[i])) is not None
            }
            talk.send(told)
    return {name: talk.said for name, talk in talks.items()}


def signed(told, *by):
    said = statement(b"about", LIAR, sha256(told).digest())
    signatures = {name: in_text(IDENTITIES[name].sign(said)) for name in by}
    return json.dumps([[LIAR, in_text(told), signatures]]).encode()


def test_what_comes_too_late_counts_for_nobody():
    """A liar that falls silent, and tells one party alone in the last step."""

    def deliver(sender, receiver, step, said):
        if sender != LIAR:
            return said
        return signed(b"late", LIAR) if step == 1 and receiver == "anna" else None

    found = heard(deliver)
    assert all(LIAR not in found[name].told for name in NAMES if name != LIAR)


def test_what_another_passed_on_in_time_counts_for_all():
    """Two liars, one of whom tells it in the last step with both signatures: one step more."""

    def deliver(sender, receiver, step, said):
        if sender == LIAR:
            return None
        if sender == "cleo" and step == 1:
            return signed(b"late", LIAR, "cleo") if receiver == "anna" else None
        return said

    one, two = heard(deliver, faulty=1), heard(deliver, faulty=2)
    honest = [name for name in NAMES if name not in (LIAR, "cleo")]

    assert {LIAR in one[name].told for name in honest} == {
        True,
        False,
    }  # one more than was reckoned
    assert all(two[name].told[LIAR] == b"late" for name in honest)


def test_too_long_or_in_anothers_name_was_not_told():
    forged = signed(b"x", "cleo")
    for content in (signed(bytes(200), LIAR), forged, b"nonsense", signed(b"x")):
        found = heard(lambda i, j, t, said, c=content: c if i == LIAR else said)
        assert all(LIAR not in found[name].told for name in NAMES if name != LIAR)


def test_two_signatures_convict_and_one_does_not():
    def pair(told):
        digest = sha256(told).digest()
        return digest, IDENTITIES[LIAR].sign(statement(b"about", LIAR, digest))

    key = IDENTITIES[LIAR].public
    assert Twice.of(pair(b"a"), pair(b"b")).convicts(b"about", LIAR, key)
    assert not Twice.of(pair(b"a"), pair(b"a")).convicts(b"about", LIAR, key)
    assert not Twice.of(pair(b"a"), pair(b"b")).convicts(b"other", LIAR, key)
    assert not Twice.of(pair(b"a"), pair(b"b")).convicts(b"about", "anna", key)
    assert not Twice(b"", b"x").convicts(b"about", LIAR, key)


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def board():
    return Met().boards["anna"]


def rewritten(entries):
    """A file of these entries, with hashes that fit."""
    anew = Board(None)
    for each in entries:
        if each.by == "":
            anew.announce(each.what, **each.body)
        else:
            anew.add(each)
    return checked(anew.entries, anew.lines)


def test_a_file_that_too_few_sealed_convicts_nobody(board):
    sealed = [each for each in board.entries if each.what == "seal"]
    kept = [each for each in board.entries if each not in sealed[1:]]
    verdict = rewritten(kept)

    assert named(verdict) == {("", "log cut")} and verdict.outcomes[0].mean is None
    assert "1 parties sealed it, and 2 must" in verdict.told[0].detail
    assert rewritten([each for each in board.entries if each not in sealed[2:]]).right


def test_who_leaves_a_party_out_has_no_seal_of_the_others(board):
    """Announcements are unsigned; what follows them is signed by those who saw them."""
    anew = Board(None)
    for each in board.entries:
        if each.by == "":
            anew.announce(each.what, **each.body)
            seen = anew.head
        elif each.by != LIAR or each.what != "publish":
            mine = each.by == "anna"  # the one who writes it anew has her own key
            again = entry(IDENTITIES["anna"], each.what, "anna", seen, each.body)
            anew.add(again if mine else each)
    verdict = checked(anew.entries, anew.lines)

    assert verdict.outcomes[0].mean is None
    assert all(fault.of_the_log for fault in verdict.told)


def test_a_signature_on_an_announcement_of_a_run_without_a_keeper_is_none(board):
    signed_run = entry(IDENTITIES["anna"], "run", "", board.entries[0].seen, board.entries[0].body)
    verdict = checked([signed_run], [signed_run.line])

    assert not verdict.right and not verdict.outcomes


def test_an_accusation_without_proof_is_named():
    class Accuser(Party):
        def reveal(self, run):
            return self.accuse(run, "anna", "join", Twice(bytes(96), bytes(96)))

    verdict = Met(kinds={LIAR: Accuser}).of_the_honest()
    assert named(verdict) == {(LIAR, "false accusation")}


@pytest.mark.parametrize(
    "change", [{"other": "nobody"}, {"phase": "never"}, {"first": 3}, {"more": 1}]
)
def test_accusations_of_another_form_are_malformed(change):
    body = Accuse("anna", "join", Twice(bytes(96), bytes(96))).body | change
    with pytest.raises(ArchipelError):
        Accuse.read(body, TERMS, ["join"])
