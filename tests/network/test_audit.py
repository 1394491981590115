# SPDX-License-Identifier: Apache-2.0
"""The audit log: what comes back, that any tampering is found, and that nothing is lost."""

import base64
import json
import math
import multiprocessing
import os
import random
import re
import stat
import time
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError, RunFailed
from archipel.federation import audit
from archipel.federation.audit import START, Anchor, Audit, check
from archipel.federation.certificates import Identity, verify

ME, OTHER = Identity.create(), Identity.create()
KINDS = ["joined", "approved", "sent", "round"]
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def log(tmp_path):
    return Audit(tmp_path / "audit.jsonl", ME)


@pytest.fixture
def full(log):
    """A log of four entries."""
    for each, kind in enumerate(KINDS):
        log.append(kind, study="heart", round=each)
    return log


@pytest.fixture
def unsynced(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def lines(log):
    return log.path.read_bytes().splitlines(keepends=True)


def bad_line(log, anchor=None, public=ME.public):
    """The line that the check names, and its sentence."""
    with pytest.raises(ArchipelError) as caught:
        check(log.path, public, anchor)
    sentence = str(caught.value)
    assert sentence.endswith(".") and sentence.count(": line ") == 1
    return int(re.search(r": line (\d+)", sentence)[1]), sentence


def forged(fields, identity=ME):
    """A line in the right form, made without the module."""
    unsigned = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    signature = base64.b64encode(identity.sign(unsigned)).decode()
    signed = {**fields, "signature": signature}
    return json.dumps(signed, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def fields_of(line, **changed):
    fields = {**json.loads(line), **changed}
    del fields["signature"]
    return fields


def grown(log, count):
    """A log of so many entries, written at once."""
    last, text = b"", []
    for each in range(count):
        last = audit._line(log._next(last, "round", {"round": each}))
        text.append(last)
    log.path.write_bytes(b"".join(text))
    return text


# -- what is written and read ----------------------------------------------------------------------


def test_entries_come_back_in_order(full):
    entries = list(full.entries())

    assert [entry.number for entry in entries] == [1, 2, 3, 4]
    assert [entry.what for entry in entries] == KINDS
    assert entries[2].detail == {"study": "heart", "round": 2}
    assert check(full.path, ME.public) == 4


def test_the_format_can_be_checked_without_this_module(full):
    before = "0" * 64
    for number, line in enumerate(lines(full), 1):
        fields = json.loads(line)
        signature = base64.b64decode(fields.pop("signature"))
        unsigned = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

        assert list(fields) == ["before", "detail", "number", "time", "what"]
        assert (fields["number"], fields["before"]) == (number, before)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", fields["time"])
        assert verify(ME.public, signature, unsigned)
        before = sha256(line).hexdigest()


PLAIN = st.one_of(
    st.text(),
    st.integers(1 - 2**64, 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)


@settings(max_examples=30)
@given(st.lists(st.dictionaries(st.text(), PLAIN), min_size=1, max_size=4))
def test_any_plain_details_come_back(details):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        log = Audit(Path(folder) / "audit.jsonl", ME)
        for detail in details:
            log.append("sent", **detail)

        assert [repr(entry.detail) for entry in log.entries()] == [
            repr(dict(sorted(detail.items()))) for detail in details
        ]
        assert check(log.path, ME.public, log.head) == len(details)


@pytest.mark.parametrize(
    "value",
    [b"bytes", [1], {"a": 1}, (1,), math.nan, math.inf, 2**64, "\ud83d", 1j, Path("a"), len],
    ids=repr,
)
def test_details_that_are_not_plain_are_refused(log, value):
    with pytest.raises(ArchipelError, match=r"^model = .*: say it as text, a finite number"):
        log.append("sent", model=value)

    assert not log.path.exists()


@pytest.mark.parametrize("what", ["", "Sent", "two words", "a\n", "a" * 41, 3])
def test_a_kind_is_one_short_word(log, what):
    with pytest.raises(ArchipelError, match=r"^what = .*one word"):
        log.append(what)


def test_any_name_is_free_for_details(log):
    log.append("sent", self=1, what="x", path="y")

    assert next(log.entries()).detail == {"self": 1, "what": "x", "path": "y"}


def test_the_head_is_an_anchor(log):
    assert log.head == Anchor(0, START)
    for count in range(1, 4):
        anchor = log.append("round", round=count)

        assert anchor == log.head == (count, sha256(lines(log)[-1]).hexdigest())


def test_nothing_written_yet(log):
    assert list(log.entries()) == []
    with pytest.raises(ArchipelError, match="there is no audit log here"):
        check(log.path, ME.public)

    log.path.touch()
    assert check(log.path, ME.public) == 0


def test_only_the_owner_may_read_it(log):
    mask = os.umask(0)
    try:
        log.append("joined")
    finally:
        os.umask(mask)

    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_each_entry_is_one_write_and_on_the_disk(log, monkeypatch):
    calls = []
    write, fsync = os.write, os.fsync
    monkeypatch.setattr(os, "write", lambda *a: calls.append("write") or write(*a))
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("sync") or fsync(handle))
    log.append("joined")
    log.append("sent")

    assert calls == ["write", "sync", "sync", "write", "sync"]  # with the folder the first time


def test_only_the_end_is_read(log, monkeypatch, unsynced):
    for each in range(200):
        log.append("round", round=each)
    asked, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *a: asked.append(a[1]) or pread(*a))
    log.append("round", round=200)

    assert sum(asked) <= 4096 < log.path.stat().st_size / 10


@pytest.mark.parametrize("length", [3700, 3800, 3900, 4000, 4096, 70_000])
def test_lines_of_any_length(log, unsynced, length):
    log.append("sent", text="a" * length)
    log.append("sent", text="b" * length)
    log.append("sent")

    assert check(log.path, ME.public, log.head) == 3


def test_a_clock_that_was_put_back_does_not_break_the_log(log):
    log.append("joined")
    late = forged(fields_of(lines(log)[0], time="2999-01-01T00:00:00+00:00"))
    log.path.write_bytes(late)
    log.append("sent")

    assert [entry.time[:4] for entry in log.entries()] == ["2999", "2999"]
    assert check(log.path, ME.public) == 2


def test_a_folder_that_is_not_there(tmp_path):
    log = Audit(tmp_path / "nowhere" / "audit.jsonl", ME)
    with pytest.raises(RunFailed, match="cannot be written"):
        log.append("joined")


# -- tampering -------------------------------------------------------------------------------------


def test_a_changed_byte_is_found_wherever_it_is(log):
    log.append("joined", site="a")
    log.append("sent", round=1)
    whole = log.path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        log.path.write_bytes(changed)

        assert bad_line(log)[0] == whole[:place].count(b"\n") + 1


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("value", [b"\x00", b" ", b"\n", b"\r", b"\xff", b'"', b"=", b"9"])
def test_an_added_byte_is_found(full, place, value):
    text = lines(full)
    middle = random.Random(place).randrange(len(text[place]))
    text[place] = text[place][:middle] + value + text[place][middle:]
    full.path.write_bytes(b"".join(text))

    assert bad_line(full)[0] == place + 1


@pytest.mark.parametrize("place", range(3))
def test_a_removed_line_is_found(full, place):
    text = lines(full)
    del text[place]
    full.path.write_bytes(b"".join(text))
    number, sentence = bad_line(full)

    assert number == place + 1
    assert f"has number {place + 2}: lines were removed, added or moved." in sentence


@pytest.mark.parametrize("place", range(3))
def test_swapped_lines_are_found(full, place):
    text = lines(full)
    text[place], text[place + 1] = text[place + 1], text[place]
    full.path.write_bytes(b"".join(text))

    assert bad_line(full)[0] == place + 1


@pytest.mark.parametrize("place", range(1, 5))
def test_a_line_put_in_is_found(full, place):
    text = lines(full)
    text.insert(place, text[place - 1])
    full.path.write_bytes(b"".join(text))

    assert bad_line(full)[0] == place + 1


@pytest.mark.parametrize("place", range(4))
def test_a_line_that_another_key_signed_is_found(full, place):
    text = lines(full)
    text[place] = forged(fields_of(text[place]), OTHER)
    full.path.write_bytes(b"".join(text))
    number, sentence = bad_line(full)

    assert number == place + 1
    assert "is not signed with this key" in sentence


@pytest.mark.parametrize("place", range(3))
def test_a_line_replaced_with_the_right_key_breaks_the_chain(full, place):
    text = lines(full)
    text[place] = forged(fields_of(text[place], detail={"round": 77}))
    full.path.write_bytes(b"".join(text))
    number, sentence = bad_line(full)

    assert number == place + 2  # the line itself is signed; the next one does not know it
    assert "does not follow the line before it" in sentence


def test_times_that_go_back_are_found(log):
    log.append("joined")
    (first,) = lines(log)
    early = {
        "number": 2,
        "time": "2001-01-01T00:00:00+00:00",
        "what": "sent",
        "detail": {},
        "before": sha256(first).hexdigest(),
    }
    log.path.write_bytes(first + forged(early))
    number, sentence = bad_line(log)

    assert number == 2
    assert "has time 2001-01-01T00:00:00+00:00, but the line before it 2" in sentence


@pytest.mark.parametrize("place", [0, 5, 6, 7, 13, 14, 20, 41, 54])
def test_the_first_bad_line_is_named_however_the_threads_run(log, monkeypatch, place):
    monkeypatch.setattr(audit, "_SHARE", 7)
    text = grown(log, 55)
    assert check(log.path, ME.public, log.head) == 55
    signed, moved, replaced = text.copy(), text.copy(), text.copy()
    for each in {place, 54}:
        signed[each] = forged(fields_of(text[each]), OTHER)
    del moved[place]
    replaced[place] = forged(fields_of(text[place], detail={"round": 77}))
    early = forged(fields_of(text[place], time="2001-01-01T00:00:00+00:00"))
    for changed, number in [
        (signed, place + 1),
        (moved, place + 1 if place < 54 else None),
        (replaced, place + 2 if place < 54 else None),
        ([*text[:place], early, *text[place + 1 :]], place + 1 if place else 2),
    ]:
        log.path.write_bytes(b"".join(changed))
        if number is None:  # nothing comes after it: against an anchor alone
            assert check(log.path, ME.public) == len(changed)
            assert bad_line(log, Anchor(55, sha256(text[-1]).hexdigest()))[0] == 55
        else:
            assert bad_line(log)[0] == number


def test_an_end_that_was_cut_off_is_found_against_an_anchor(full):
    anchor, text = full.head, lines(full)
    for left in range(4):
        full.path.write_bytes(b"".join(text[:left]))
        number, sentence = bad_line(full, anchor)

        assert check(full.path, ME.public) == left  # which nothing else would tell
        assert number == left + 1
        assert "is missing: the anchor names line 4, so the end was cut off." in sentence


def test_old_anchors_stay_on_a_log_that_grows(log):
    anchors = [log.head, *(log.append("round", round=each) for each in range(4))]

    assert [check(log.path, ME.public, anchor) for anchor in anchors] == [4] * 5
    assert check(log.path, ME.public, tuple(anchors[2])) == 4


def test_a_log_that_its_owner_wrote_anew_is_found_against_an_anchor(full):
    anchor = full.head
    full.path.unlink()
    for each in range(6):
        full.append("round", round=each)

    assert check(full.path, ME.public) == 6
    number, sentence = bad_line(full, anchor)
    assert number == 4
    assert "is not the one that the anchor names: the log was rewritten." in sentence


@pytest.mark.parametrize("anchor", [(0, "f" * 64), (-1, START)])
def test_an_anchor_that_names_nothing_is_refused(full, anchor):
    with pytest.raises(ArchipelError, match=r"^anchor = "):
        check(full.path, ME.public, anchor)


def test_a_key_that_is_none_is_refused(full):
    with pytest.raises(ArchipelError, match=r"^public: not an Ed25519 key"):
        check(full.path, b"short")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"null",
        b"7",
        b"",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"number":1}',
        b'{"number":' + b"9" * 5000 + b"}",
    ],
    ids=lambda line: repr(line[:12]),
)
def test_lines_that_are_no_entries(log, line):
    log.path.write_bytes(line + b"\n")

    assert bad_line(log)[0] == 1
    with pytest.raises(ArchipelError, match="line 1 is not an entry"):
        list(log.entries())


@pytest.mark.parametrize(
    "changed",
    [
        {"number": True},
        {"number": 1.0},
        {"time": 5},
        {"time": "2030-01-01T00:00:00"},
        {"time": "2030-01-01T00:00:00+02:00"},
        {"time": "0001-01-01T00:00:00+05:00"},
        {"what": None},
        {"detail": None},
        {"detail": {"a": [1]}},
        {"detail": {"a": math.inf}},
        {"more": 1},
    ],
    ids=repr,
)
def test_signed_lines_of_another_form(log, changed):
    log.append("joined")
    (line,) = lines(log)
    log.path.write_bytes(forged(fields_of(line, **changed)))

    assert bad_line(log)[0] == 1


def test_a_signature_of_another_length(log):
    log.append("joined")
    fields = json.loads(lines(log)[0])
    fields["signature"] = base64.b64encode(b"short").decode()
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    log.path.write_text(text + "\n")

    assert "is not signed with this key" in bad_line(log)[1]


def test_nothing_is_built_on_a_line_that_is_not_ours(full):
    with pytest.raises(ArchipelError, match="last line is not an entry signed with this key"):
        Audit(full.path, OTHER).append("sent")
    full.path.write_bytes(full.path.read_bytes() + b"{}\n")
    with pytest.raises(ArchipelError, match="last line is not an entry"):
        full.append("sent")
    with pytest.raises(ArchipelError, match="last line is not an entry"):
        _ = full.head


# -- several processes, and processes that end -----------------------------------------------------


def in_a_process(work):
    process = FORK.Process(target=work)
    process.start()
    return process


def test_two_processes_at_once(log):
    def work(name):
        for each in range(40):
            Audit(log.path, ME).append("sent", process=name, each=each)

    processes = [in_a_process(lambda name=name: work(name)) for name in "ab"]
    for process in processes:
        process.join(20)

    assert [process.exitcode for process in processes] == [0, 0]
    assert check(log.path, ME.public, log.head) == 80
    for name in "ab":
        own = [entry.detail["each"] for entry in log.entries() if entry.detail["process"] == name]
        assert own == list(range(40))


@pytest.mark.parametrize("left", [1, 17, -1], ids=["a byte", "some", "all but the newline"])
@pytest.mark.parametrize("whole", [0, 2])
def test_a_torn_line_is_kept_in_an_entry_of_its_own(log, whole, left):
    for _ in range(whole + 1):
        log.append("sent", site="a")
    *kept, last = lines(log)
    torn = last[:left]
    log.path.write_bytes(b"".join([*kept, torn]))

    assert bad_line(log)[0] == whole + 1
    assert log.head.number == len(list(log.entries())) == whole
    log.append("round")
    *_, damaged, after = log.entries()
    assert (damaged.what, after.what) == ("damaged", "round")
    assert damaged.detail == {"dropped": len(torn), "text": torn.decode()}
    assert check(log.path, ME.public, log.head) == whole + 2


def test_torn_bytes_that_are_no_text(log):
    torn = bytes(range(256)).replace(b"\n", b"") * 30
    log.append("joined")
    log.path.write_bytes(log.path.read_bytes() + torn)
    log.append("round")
    detail = [entry.detail for entry in log.entries()][1]

    assert detail["text"].encode("latin-1") == torn
    assert check(log.path, ME.public) == 3


def test_killed_in_the_middle_of_a_write_and_again_while_mending(log):
    log.append("joined")

    def dying(name, part):
        real = getattr(os, name)

        def die(handle, line, *place):
            real(handle, line[:part], *place)
            os._exit(9)

        setattr(os, name, die)  # in the forked process only
        log.append("sent", round=1)

    for name, part in [("write", 100), ("pwrite", 30), ("pwrite", 150), ("pwrite", 0)]:
        process = in_a_process(lambda name=name, part=part: dying(name, part))
        process.join(20)
        assert process.exitcode == 9
        assert not log.path.read_bytes().endswith(b"\n")

    log.append("round")
    assert [entry.what for entry in log.entries()] == ["joined", "damaged", "round"]
    assert [entry.detail for entry in log.entries()][1]["dropped"] == 150
    assert check(log.path, ME.public) == 3


def test_a_full_disk_is_told_and_the_log_goes_on(log, monkeypatch):
    log.append("joined")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, line: write(handle, line[:50]))
        with pytest.raises(RunFailed, match="cannot be written"):
            log.append("sent")
    log.append("sent")

    assert [entry.what for entry in log.entries()] == ["joined", "damaged", "sent"]
    assert check(log.path, ME.public) == 3


def test_a_process_forked_meanwhile_does_not_keep_the_lock(log, monkeypatch):
    forked, fsync = [], os.fsync

    def fork(handle):
        forked.append(in_a_process(lambda: time.sleep(20)))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fork)
        log.append("joined")
    log.append("sent")

    assert all(process.is_alive() for process in forked)
    assert check(log.path, ME.public) == 2
    for process in forked:
        process.kill()
        process.join()
