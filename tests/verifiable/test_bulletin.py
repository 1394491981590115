"""Verifiable sums: honest parties get the mean, and whoever cheats is named with how.

Every cheat is a party that answers otherwise, with its own valid signature on what it says.
"""

import json
import secrets
from dataclasses import dataclass
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError
from archipel.federation.certificates import Identity
from archipel.verifiable import bulletin, run, verify
from archipel.verifiable.bulletin import Board, entry, in_bytes, in_text
from archipel.verifiable.commitments import commitment
from archipel.verifiable.group import ORDER, written
from archipel.verifiable.messages import Commit, Publish
from archipel.verifiable.party import Party
from archipel.verifiable.protocol import among
from archipel.verifiable.terms import Terms, agreed
from archipel.verifiable.verification import checked, in_plain

SMALL = {"epsilon": 8.0, "honest": 1.0, "bits": 4, "delta": 1e-3}
NAMES = ["anna", "bert", "cleo", "dora"]


def terms_of(parties, **more):
    roster = {party.name: party.identity.public.hex() for party in parties}
    names = [f"value {i}" for i in range(len(parties[0].values))]
    return agreed(roster, secrets.token_hex(16), names=names, **{**SMALL, **more})


def held(parties, dropping=None, board=None, **more):
    """A run among these parties, and what anybody sees of it."""
    board = board or Board(Identity.create())
    among(parties, board, terms_of(parties, **more), dropping or {})
    return board, checked(board.entries, board.lines)


def honest(names=NAMES, value=(0.5,)):
    return [Party(name, value) for name in names]


def with_one(cheat, value=(0.5,)):
    """Honest parties, and one of another kind called bert."""
    return [cheat(n, value) if n == "bert" else Party(n, value) for n in NAMES]


def named(verdict):
    return {(fault.party, fault.kind) for each in verdict.outcomes for fault in each.faults}


# -- the honest ------------------------------------------------------------------------------------


def test_the_mean_is_that_of_the_values_and_the_noise_that_the_coins_made():
    _, verdict = held([Party("anna", (0.0,)), Party("bert", (1.0,)), Party("cleo", (0.2,))])
    (outcome,) = verdict.outcomes

    assert verdict.right and outcome.counted == ("anna", "bert", "cleo")
    assert outcome.epsilon <= 8
    assert abs(outcome.mean[0] - 0.4) < 6 * outcome.deviation[0]


def test_sums_are_exact_but_for_the_noise():
    """Pairwise terms cancel to the last unit: what is left is values and bits turned by coins."""
    parties = [Party(name, (i / 3,)) for i, name in enumerate(NAMES)]
    board = Board(Identity.create())
    followed = among(parties, board, terms_of(parties), {})
    (outcome,) = checked(board.entries, board.lines).outcomes
    expected = sum(
        followed.terms.multiplier * party._drawn[followed.session].values[0][0]
        + party._noise(followed)[0]
        for party in parties
    )

    assert outcome.mean == tuple(followed.terms.mean([expected], 4))


@pytest.mark.parametrize("phase", ["join", "commit", "reveal", "publish"])
def test_drop_outs_at_every_phase_are_corrected(phase):
    _, verdict = held(honest(), {"bert": phase}, dropouts=0.25)
    (outcome,) = verdict.outcomes

    assert verdict.right and outcome.dropped == ("bert",)
    assert abs(outcome.mean[0] - 0.5) < 6 * outcome.deviation[0]


def test_several_drop_at_different_phases():
    parties = honest([f"p{i}" for i in range(8)])
    phases = {"p1": "join", "p3": "commit", "p4": "reveal", "p6": "publish"}
    _, verdict = held(parties, phases, dropouts=0.5)

    assert verdict.right and verdict.outcomes[0].dropped == ("p1", "p3", "p4", "p6")


def test_too_many_drop_outs_and_nobody_publishes():
    with pytest.raises(ArchipelError, match="more than the promised"):
        held(honest(), {"bert": "reveal", "cleo": "reveal"})


def test_who_published_and_leaves_before_correcting_is_named():
    _, verdict = held(honest(), {"bert": "publish", "cleo": "correct"}, dropouts=0.25)

    assert named(verdict) == {("cleo", "no correction")}
    assert verdict.outcomes[0].mean is None


def test_vectors_counts_and_histograms():
    _, vectors = held([Party(n, (0.25, 1.0, 0.0)) for n in NAMES], epsilon=20.0)
    _, counts = held([Party(n, (7,)) for n in NAMES], whole=True, low=3, high=14)
    _, hot = held([Party(n, (0, 1, 0)) for n in NAMES], one_hot=True, epsilon=12.0)

    for verdict, expected in ((vectors, (0.25, 1.0, 0.0)), (counts, (7,)), (hot, (0, 1, 0))):
        (outcome,) = verdict.outcomes
        assert verdict.right
        for mean, value in zip(outcome.mean, expected, strict=True):
            assert abs(mean - value) < 6 * outcome.deviation[0]


def test_a_value_out_of_range_is_refused_by_its_own_party():
    with pytest.raises(ArchipelError, match=r"value = 1\.5: it must lie from 0 to 1"):
        run({"a": 1.5, "b": 0.5}, **SMALL)


# -- cheats ----------------------------------------------------------------------------------------


@dataclass
class OneStepTooFar(Party):
    """1 and one step of the grid."""

    def _steps(self, terms):
        return [top + 1 for top in terms.tops]


@dataclass
class TwoOfAHistogram(Party):
    def _steps(self, terms):
        return [1] * terms.size


@dataclass
class OwnTerms(Party):
    """A pairwise term that its neighbour does not have."""

    def commit(self, run):
        said = super().commit(run)
        mine = self._drawn[run.session]
        other = run.neighbours(self.name)[0]
        mine.terms[other] = [(a + 100, b) for a, b in mine.terms[other]]
        read = Commit.read(said.body, run.terms, len(run.neighbours(self.name)))
        pairs = [tuple(commitment(*t) for t in mine.terms[n]) for n in run.neighbours(self.name)]
        return self._say(run, "commit", read._replace(pairs=tuple(pairs)).body)


@dataclass
class ChosenNoise(Party):
    """Noise of its own choice, in a sum that is right."""

    def _noise(self, run):
        return [each + 5 for each in super()._noise(run)]


@dataclass
class OtherBits(Party):
    """Bits chosen when the coins are known."""

    def publish(self, run):
        mine = self._drawn[run.session]
        from archipel.verifiable import bits

        mine.noise = bits.commit([1] * (run.terms.size * len(run.terms.noise.weights)))
        return super().publish(run)


@dataclass
class OtherValue(Party):
    """Another value than the sum of what it committed to."""

    def publish(self, run):
        read = Publish.read(super().publish(run).body, run.terms)
        values = tuple((value + 1) % ORDER for value in read.values)
        return self._say(run, "publish", read._replace(values=values).body)


@dataclass
class OtherShare(Party):
    """Its share of the coins chosen when those of others are known."""

    def reveal(self, run):
        self._drawn[run.session].share = bytes(32)
        return super().reveal(run)


@dataclass
class OtherCorrection(Party):
    def corrections(self, run):
        for terms in self._drawn[run.session].terms.values():
            terms[0] = (terms[0][0] + 9, terms[0][1])
        return super().corrections(run)


@dataclass
class Copied(Party):
    """Somebody else's commitment and proof, as if they were its own."""

    def commit(self, run):
        said = super().commit(run)
        read = Commit.read(said.body, run.terms, len(run.neighbours(self.name)))
        theirs = self.of.commit(run)
        other = Commit.read(theirs.body, run.terms, len(run.neighbours(self.of.name)))
        copied = read._replace(values=other.values, range=other.range)
        return self._say(run, "commit", copied.body)

    of = None


@pytest.mark.parametrize(
    "cheat, kind",
    [
        (OneStepTooFar, "out of range"),
        (ChosenNoise, "wrong noise"),
        (OtherBits, "wrong noise"),
        (OtherValue, "wrong sum"),
    ],
)
def test_a_party_that_cheats_is_named_with_how(cheat, kind):
    _, verdict = held(with_one(cheat))

    assert named(verdict) == {("bert", kind)}
    assert verdict.outcomes[0].mean is None
    assert not verdict.right


def test_terms_that_do_not_cancel_are_laid_at_the_right_door():
    """The honest neighbour shows the secret of both; the liar is out, and the rest have a mean."""
    _, verdict = held(with_one(OwnTerms), dropouts=0.25)
    (outcome,) = verdict.outcomes

    assert named(verdict) == {("bert", "pairwise terms do not cancel")}
    assert outcome.dropped == ("bert",) and outcome.mean is not None
    assert not verdict.right


def test_terms_that_nobody_disputes_are_laid_at_both_doors(monkeypatch):
    monkeypatch.setattr(Party, "disputes", lambda self, run: [])
    _, verdict = held(with_one(OwnTerms))

    assert {kind for _, kind in named(verdict)} == {"pairwise terms do not cancel"}
    assert len(named(verdict)) == 2 and "bert" in {party for party, _ in named(verdict)}


def test_a_share_of_the_coins_other_than_the_committed_one_is_named_and_left_out():
    _, verdict = held(with_one(OtherShare), dropouts=0.25)

    assert named(verdict) == {("bert", "wrong noise")}
    assert verdict.outcomes[0].dropped == ("bert",)


def test_a_wrong_correction_is_named():
    _, verdict = held(with_one(OtherCorrection), {"anna": "publish"}, dropouts=0.25)

    assert named(verdict) == {("bert", "wrong correction")}


def test_a_copied_proof_is_rejected():
    parties = with_one(Copied)
    parties[1].of = parties[0]
    _, verdict = held(parties)

    assert ("bert", "out of range") in named(verdict)


def test_a_histogram_of_two_is_named():
    parties = with_one(TwoOfAHistogram, (0, 1, 0))
    _, verdict = held(parties, one_hot=True, epsilon=12.0)

    assert named(verdict) == {("bert", "out of range")}


def test_several_cheats_are_all_named():
    parties = [
        OneStepTooFar("anna", (0.5,)), ChosenNoise("bert", (0.5,)), Party("cleo", (0.5,)),
        OtherValue("dora", (0.5,)),
    ]  # fmt: skip
    _, verdict = held(parties)

    assert named(verdict) == {
        ("anna", "out of range"), ("bert", "wrong noise"), ("dora", "wrong sum"),
    }  # fmt: skip


# -- several runs ----------------------------------------------------------------------------------


def test_runs_on_the_same_data_must_be_on_the_same_values():
    parties, board = honest(), Board(Identity.create())
    held(parties, board=board, data="ages")
    _, twice = held(parties, board=board, data="ages")
    parties[1].values = (0.75,)
    _, changed = held(parties, board=board, data="ages")
    _, other = held(parties, board=board, data="heights")

    assert twice.right and twice.together["ages"] > twice.outcomes[0].epsilon
    assert [len(each.faults) for each in changed.outcomes] == [0, 0, 1]
    assert named(changed) == named(other) == {("bert", "changed data")}


def test_the_same_data_on_another_scale_is_a_fault():
    parties, board = honest(), Board(Identity.create())
    held(parties, board=board, data="ages")
    _, verdict = held(parties, board=board, data="ages", bits=5)

    assert named(verdict) == {("", "changed data")}


def test_a_proof_of_another_run_is_rejected():
    """The range proof of an earlier run, where the data has no name."""
    parties, board = with_one(Repeating), Board(Identity.create())
    held(parties, board=board)
    _, verdict = held(parties, board=board)

    assert ("bert", "out of range") in named(verdict)


@dataclass
class Repeating(Party):
    before = None

    def commit(self, run):
        said = super().commit(run)
        read = Commit.read(said.body, run.terms, len(run.neighbours(self.name)))
        if self.before is not None:
            read = read._replace(values=self.before.values, range=self.before.range)
        self.before = read
        return self._say(run, "commit", read.body)


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bulletin") / "b.jsonl"
    parties = honest(NAMES[:3])
    board = Board(Identity.create(), path)
    among(parties, board, terms_of(parties), {})
    board.close()
    return path, parties, board


def test_the_file_holds_all(file):
    path, _, board = file
    verdict = verify(path, board.head)

    assert verdict.right and verdict.entries == len(board.lines)
    assert path.read_bytes() == b"".join(board.lines)
    assert json.loads(json.dumps(in_plain(verdict)))["right"] is True


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_in_the_file_is_found(file, tmp_path_factory, data):
    content = bytearray(file[0].read_bytes())
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    content[at // 8] ^= 1 << at % 8
    other = tmp_path_factory.getbasetemp() / "flipped.jsonl"
    other.write_bytes(bytes(content))

    assert not verify(other).right


def test_a_cut_log_is_found(file, tmp_path):
    lines = file[2].lines
    for count in (0, 1, len(lines) // 2, len(lines) - 1):
        (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:count]))
        verdict = verify(tmp_path / "cut.jsonl")
        kinds = {f.kind for f in verdict.faults} | {k for _, k in named(verdict)}
        assert "log cut" in kinds and not verdict.right
    (tmp_path / "torn.jsonl").write_bytes(b"".join(lines)[:-9])
    assert not verify(tmp_path / "torn.jsonl").right


def test_a_log_without_a_line_that_was_kept_was_cut(file):
    verdict = verify(file[0], "0" * 64)

    assert [fault.kind for fault in verdict.faults] == ["log cut"]


@pytest.mark.parametrize("gone", [1, 4, 8, 9])
def test_a_line_that_is_taken_out_is_found(file, tmp_path, gone):
    """Even by the keeper, with a chain that is written anew but for the announcements."""
    board, before = file[2], bulletin.START
    lines = []
    for i, said in enumerate(board.entries):
        if i != gone:
            lines.append(said._replace(before=before).line)
            before = sha256(lines[-1]).hexdigest()
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines))
    verdict = verify(tmp_path / "b.jsonl")

    assert [fault.kind for fault in verdict.faults] == ["log changed"]


@pytest.mark.parametrize("which", range(18))
def test_who_changes_or_cuts_a_file_has_no_party_charged(file, tmp_path, which):
    """One character of one line; the lines up to it; each written anew, hashes and all."""
    board, path = file[2], tmp_path / "b.jsonl"
    lines = board.lines[:]
    at = lines[which].index(b'"signature":"') + 20
    other = b"A" if lines[which][at : at + 1] != b"A" else b"B"
    lines[which] = lines[which][:at] + other + lines[which][at + 1 :]
    path.write_bytes(b"".join(lines))
    changed = verify(path)
    path.write_bytes(b"".join(lines[:which]))
    cut = verify(path)
    forged = b""
    before = bulletin.START
    for line in lines:
        said = bulletin.Entry(**json.loads(line))._replace(before=before)
        forged += said.line
        before = sha256(said.line).hexdigest()
    path.write_bytes(forged)

    for verdict in (changed, cut, verify(path)):
        assert not verdict.right and not charged(verdict)
        assert all(each.mean is None for each in verdict.outcomes)


def charged(verdict):
    """Parties that are said to have done something."""
    return {fault.party for fault in verdict.told} - {""}


def test_what_a_party_signed_once_convicts_nobody_where_it_stands_twice(file):
    """Its keeper puts a line in again: in its phase, in a later one, and after the end."""
    board = file[2]
    joined = next(i for i, said in enumerate(board.entries) if said.by == "bert")
    for place in (joined + 1, len(board.entries)):
        new = Board(board.keeper)
        for said in [*board.entries[:place], board.entries[joined], *board.entries[place:]]:
            if said.by == "":
                new.announce(said.what, **said.body)
            else:
                new.add(said)
        verdict = checked(new.entries, new.lines)
        assert ("", "log changed") in named(verdict) and not charged(verdict)


def test_nothing_is_added_to_a_file_that_is_not_as_it_was_written(file, tmp_path):
    lines, path = file[2].lines, tmp_path / "b.jsonl"
    whole = b"".join(lines)
    stranger = entry(Identity.create(), "join", "bert", file[2].head, {})._replace(
        before=file[2].head
    )
    for content in (
        whole[:-9], b"".join(lines[:-1]), lines[0], whole.replace(b"bert", b"carl"),
        b"".join(lines[:5] + lines[6:]), whole + stranger.line, b"hello\n",
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(ArchipelError):
            run({"anna": 0.5, "bert": 0.5, "cleo": 0.2}, path, **SMALL)
        assert path.read_bytes() == content
    path.write_bytes(whole)
    assert run({"anna": 0.5, "bert": 0.5, "cleo": 0.2}, path, **SMALL).right


def rewritten(board, keeper, change):
    """The whole bulletin written anew by its keeper, who signs every announcement again."""
    new = Board(keeper)
    for i, said in enumerate(board.entries):
        said = change(i, said)
        if said is None:
            continue
        if said.by == "":
            new.announce(said.what, **said.body)
        else:
            new.add(said)
    return checked(new.entries, new.lines)


def test_a_keeper_who_writes_all_anew_is_betrayed_by_what_parties_saw(file):
    _, _, board = file
    without = rewritten(board, board.keeper, lambda i, said: None if i == 6 else said)

    assert not without.right
    assert any(kind == "log changed" for _, kind in named(without))


def test_an_entry_in_anothers_name_is_charged_to_the_bulletin_alone(file):
    """Anybody can write a line that a party did not sign, so it convicts no party."""
    _, _, board = file
    stranger = Identity.create()

    def forged(i, said):
        if said.what != "reveal" or said.by != "bert":
            return said
        return entry(stranger, said.what, said.by, said.seen, said.body)

    verdict = rewritten(board, board.keeper, forged)

    assert ("", "bad signature") in named(verdict) and not charged(verdict)
    assert verdict.outcomes[0].mean is None


@dataclass
class Flipping(Party):
    """Turns one bit of one field over before it signs."""

    what: str = ""
    field: int = 0
    bit: int = 0

    def _say(self, run, what, body):
        fields = [key for key, value in body.items() if value and type(value) is str]
        if what == self.what:
            name = fields[self.field % len(fields)]
            content = bytearray(in_bytes(body[name]))
            at = self.bit % (8 * len(content))
            content[at // 8] ^= 1 << at % 8
            body = {**body, name: in_text(bytes(content))}
        return super()._say(run, what, body)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["join", "commit", "reveal", "publish"]),
    st.integers(0, 20),
    st.integers(0, 2**20),
)
def test_a_flipped_bit_in_any_field_that_a_party_signs_is_rejected(what, field, bit):
    """The party itself signs what is changed, so that nothing but the proofs can tell."""
    bert = Flipping("bert", (0.5,), what=what, field=field, bit=bit)
    _, verdict = held([Party("anna", (0.5,)), bert, Party("cleo", (0.5,))], dropouts=0.34)

    assert not verdict.right
    assert charged(verdict) == {"bert"}, verdict.told


@pytest.mark.parametrize(
    "line",
    [b"\n", b"{}\n", b"[]\n", b"null\n", b"\xff\n", b'{"by":""}\n', b"[" * 100_000 + b"\n",
     b'{"before":"","body":{},"by":"a\\u001b","seen":"","signature":"","what":"join"}\n'],
)  # fmt: skip
def test_what_is_no_entry_is_a_fault_and_nothing_worse(file, tmp_path, line):
    path = tmp_path / "b.jsonl"
    path.write_bytes(file[2].lines[0] + line)

    assert not verify(path).right


@settings(max_examples=20, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.lists(c)
                    | st.dictionaries(st.text(), c), max_leaves=6))  # fmt: skip
def test_bodies_of_any_form_are_faults_and_nothing_worse(file, value):
    _, parties, board = file
    bert = next(party for party in parties if party.name == "bert")
    which = next(i for i, s in enumerate(board.entries) if s.by == "bert" and s.what == "commit")
    old = board.entries[which]
    for key in old.body:
        new = Board(board.keeper)
        for said in board.entries[:which]:
            new.entries.append(said)
            new.lines.append(said.line)
        new.add(entry(bert.identity, "commit", "bert", old.seen, {**old.body, key: value}))

        assert not checked(new.entries, new.lines).right


def test_terms_that_no_run_can_have_are_refused():
    parties = honest()
    terms = terms_of(parties).written()
    for key, value in (
        ("grain", 0), ("grain", True), ("coin", 3), ("low", "0"), ("delta", 0.0), ("high", [1e300]),
        ("parties", []), ("coins", 1.5), ("neighbours", 4), ("unit", [0.0]), ("extra", 1),
        ("low", ["0"]), ("low", [10**400]), ("epsilon", 1), ("names", ["a", "a"]),
        ("high", [True]), ("parties", {"a": 1, "b": 2}), ("parties", {"a": "k", "b": "k"}),
    ):  # fmt: skip
        with pytest.raises(ArchipelError):
            Terms.read({**terms, key: value})


# -- what is hidden --------------------------------------------------------------------------------


def test_published_values_tell_nothing_of_single_values():
    """Each is even over all scalars: its leading digits for values 0 and 1, chi-squared.

    The operating system's randomness has no seed, so alpha is 1e-9.
    """
    counts = {0.0: [0] * 16, 1.0: [0] * 16}
    parties = {x: [Party(f"p{i}", (x,)) for i in range(40)] for x in counts}
    for x, count in counts.items():
        board = Board(Identity.create())
        followed = among(parties[x], board, terms_of(parties[x], neighbours=3), {})
        for said in followed.published.values():
            for byte in written(said.values[0])[:4] + written(said.openings[0])[:4]:
                count[byte % 16] += 1
    statistic = sum(
        (a - b) ** 2 / (a + b) for a, b in zip(counts[0.0], counts[1.0], strict=True) if a + b
    )

    assert statistic < 76.0  # chi-squared with 15 degrees


def test_keys_and_noise_are_fresh_in_every_run():
    parties, board = honest(NAMES[:3]), Board(Identity.create())
    held(parties, board=board)
    held(parties, board=board)
    said = [each.body for each in board.entries if each.by == "anna"]
    keys = [body["key"] for body in said if "key" in body]
    commits = [body for body in said if "pairs" in body]

    assert keys[0] != keys[1]
    assert all(commits[0][key] != commits[1][key] for key in ("values", "pairs", "noise", "share"))
