"""The shuffler: what it opens, what it refuses, and what it is as a process of its own."""

import socket
import ssl
import subprocess
import sys
from itertools import count

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from archipel.aggregation import onion
from archipel.aggregation import shuffler as s
from archipel.aggregation.keys import KeyPair
from archipel.aggregation.others import SUM
from archipel.errors import ArchipelError
from archipel.federation.shuffler import ShufflerFolder
from archipel.privacy.sources import Keystream
from archipel.signing import Signer

ALPHA = 1e-4
ABOUT = b"study 1, round 3, attempt 0, message 0"
ANALYSER, SHUFFLER = bytes(range(32)), bytes(range(32, 64))
FRESH = count()


def public(private):
    return KeyPair(private).public


def secrets():
    """Other ones each time."""
    words = Keystream(next(FRESH).to_bytes(32, "big")).words(np.array([12]))
    drawn = words.tobytes()
    return onion.Secrets(drawn[:32], drawn[32:64], drawn[64 : 64 + onion.MARK])


def signer(k):
    return Signer(bytes([k % 256, k // 256]) + bytes(30))


def report(content, about=ABOUT):
    return onion.sealed(content, public(ANALYSER), public(SHUFFLER), about, secrets())


def batch(contents, least=2, about=ABOUT):
    reports = [report(content, about) for content in contents]
    signers = [signer(k) for k in range(len(reports))]
    signed = [
        each.sign(SUM + s.statement(about, least, public(ANALYSER), r))
        for each, r in zip(signers, reports, strict=True)
    ]
    return s.Batch(
        about, least, public(ANALYSER), [each.public for each in signers], signed, reports
    )


def shuffler(members=20, least=2, source=None):
    seen = set()

    def first(about):
        return about not in seen and not seen.add(about)

    return s.Shuffler(SHUFFLER, [signer(k).public for k in range(members)], least, first, source)


# -- layers ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.binary(max_size=40))
def test_two_layers_each_for_one_who_has_the_key(content):
    made = report(content)
    inner = onion.peeled(made, SHUFFLER, ABOUT)

    assert len(made) == onion.length(len(content))
    assert onion.opened([inner], ANALYSER, ABOUT) == [content]
    assert onion.peeled(made, ANALYSER, ABOUT) is None
    assert onion.opened([inner], SHUFFLER, ABOUT) == []
    assert onion.opened([made], ANALYSER, ABOUT) == []  # the outer layer is not the server's
    assert onion.peeled(made, SHUFFLER, ABOUT + b"!") is None  # of another round


def test_a_change_of_any_byte_is_found():
    made = report(b"bits")
    for at in range(len(made)):
        changed = bytearray(made)
        changed[at] ^= 1
        inner = onion.peeled(bytes(changed), SHUFFLER, ABOUT)
        assert inner is None
    inner = bytearray(onion.peeled(made, SHUFFLER, ABOUT))
    inner[40] ^= 128
    assert onion.opened([bytes(inner)], ANALYSER, ABOUT) == []


def test_copies_are_dropped_by_who_opens_the_inner_layer():
    one, two = (onion.peeled(report(b"same"), SHUFFLER, ABOUT) for _ in range(2))

    assert onion.opened([one, one, two], ANALYSER, ABOUT) == [b"same", b"same"]


def test_the_same_content_never_looks_the_same():
    assert report(b"same") != report(b"same")
    first, second = (onion.peeled(report(b"same"), SHUFFLER, ABOUT) for _ in range(2))
    assert first != second


def test_a_key_that_is_no_key_is_refused():
    with pytest.raises(ArchipelError, match=r"wire\.sum: a public key .* is no key"):
        onion.sealed(b"", bytes(32), public(SHUFFLER), ABOUT, secrets())


# -- batches ---------------------------------------------------------------------------------------


def test_everything_comes_back_and_nothing_says_whose_it_is():
    contents = [b"%02d" % k for k in range(20)]
    made = batch(contents)
    found = shuffler().shuffled(made)

    assert sorted(onion.opened(found, ANALYSER, ABOUT)) == contents
    assert onion.opened(found, ANALYSER, ABOUT) != contents
    assert {len(each) for each in found} == {onion.length(2) - onion.LAYER}
    assert not {*found} & {*made.reports}


def test_where_a_report_ends_up_does_not_depend_on_who_sent_it():
    made = batch([b"%d" % k for k in range(5)])
    source = Keystream(b"where a report ends up" + bytes(10))
    counts = np.zeros((5, 5))
    runs = 300
    for _ in range(runs):
        found = onion.opened(shuffler(source=source).shuffled(made), ANALYSER, ABOUT)
        for place, content in enumerate(found):
            counts[int(content), place] += 1
    statistic = ((counts - runs / 5) ** 2).sum() / (runs / 5) * 4 / 5

    assert chi2.sf(statistic, 16) > ALPHA


def changed(made, **fields):
    return made._replace(**fields)


def of_another_round(made):
    return changed(made, about=ABOUT + b"!")


def for_fewer(made):
    return changed(made, least=1)


def with_a_key_for_one(made):
    """The server told one party another key, by which it would know its report."""
    own = onion.sealed(b"00", public(bytes([7] * 32)), public(SHUFFLER), ABOUT, secrets())
    signed = signer(0).sign(SUM + s.statement(ABOUT, made.least, public(bytes([7] * 32)), own))
    return changed(
        made, reports=[own, *made.reports[1:]], signatures=[signed, *made.signatures[1:]]
    )


def twice(made):
    return s.Batch(*made[:3], *(column + column[:1] for column in made[3:]))


def of_a_stranger(made):
    fake, key = report(b"00"), signer(999)
    signed = key.sign(SUM + s.statement(*made[:3], fake))
    return s.Batch(
        *made[:3], [*made.members, key.public], [*made.signatures, signed],
        [*made.reports, fake],
    )  # fmt: skip


def exchanged(made):
    return changed(made, reports=made.reports[::-1])


def longer(made):
    return changed(made, reports=[made.reports[0] + b"\0", *made.reports[1:]])


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (of_another_round, "did not sign"),
        (for_fewer, "did not sign"),
        (with_a_key_for_one, "did not sign"),
        (twice, "two reports of one member"),
        (of_a_stranger, "somebody who is no member here"),
        (exchanged, "did not sign"),
        (longer, "different lengths"),
    ],
)
def test_a_server_that_lies_is_refused(lie, said):
    with pytest.raises(ArchipelError, match=said):
        shuffler().shuffled(lie(batch([b"%02d" % k for k in range(10)])))


def test_a_server_that_isolates_one_report_is_refused():
    """Its own reports around one honest report, too few of members, and the same batch less one."""
    made = batch([b"%02d" % k for k in range(10)], least=8)
    less = s.Batch(*made[:3], *(column[1:] for column in made[3:]))
    few = s.Batch(*made[:3], *(column[:7] for column in made[3:]))
    at_work = shuffler()

    with pytest.raises(ArchipelError, match="7 reports that open, and 8 is the fewest"):
        at_work.shuffled(few)
    assert len(at_work.shuffled(made)) == 10
    for again in (made, less):
        with pytest.raises(ArchipelError, match="answered before"):
            at_work.shuffled(again)
    with pytest.raises(ArchipelError, match="12 is the fewest"):
        shuffler(least=12).shuffled(made)


def test_what_does_not_open_is_left_out_and_does_not_count():
    made = batch([b"%02d" % k for k in range(4)])
    rubbish = bytes(len(made.reports[0]))
    signed = signer(7).sign(SUM + s.statement(*made[:3], rubbish))
    more = s.Batch(
        *made[:3], [*made.members, signer(7).public], [*made.signatures, signed],
        [*made.reports, rubbish],
    )  # fmt: skip

    assert len(shuffler(least=4).shuffled(more)) == 4
    with pytest.raises(ArchipelError, match="4 reports that open, and 5"):
        shuffler(least=5).shuffled(more)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=80) | st.recursive(
    st.none() | st.integers(-5, 5) | st.binary(max_size=70), lambda x: st.lists(x, max_size=7)
).map(msgpack.packb))  # fmt: skip
def test_bytes_that_are_no_batch_are_refused_in_one_sentence(content):
    with pytest.raises(ArchipelError, match="no batch of reports of this version"):
        s.read(content)


def test_a_batch_as_bytes():
    made = batch([b"a", b"b"])

    assert s.read(s.written(made)) == made


# -- a process of its own --------------------------------------------------------------------------


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.fixture
def folder(tmp_path):
    made = ShufflerFolder.create(tmp_path / "mix", f"localhost:{free_port()}", least=3)
    for k in range(6):
        made.admit(f"site-{k}", signer(k).public.hex())
    return made


@pytest.fixture
def process(folder):
    command = [sys.executable, "-m", "archipel", "shuffler", "up", "--home", str(folder.path)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert "listening" in started.stdout.readline()
        yield started
    finally:
        started.terminate()
        started.wait(20)


def of_folder(folder, about, members=5):
    contents = [b"%02d" % k for k in range(members)]
    key = folder.place.key
    reports = [onion.sealed(c, public(ANALYSER), key, about, secrets()) for c in contents]
    signed = [
        signer(k).sign(SUM + s.statement(about, 3, public(ANALYSER), r))
        for k, r in enumerate(reports)
    ]
    return s.Batch(
        about, 3, public(ANALYSER), [signer(k).public for k in range(members)], signed, reports
    )


def test_a_shuffler_in_a_process_of_its_own_over_tls(folder, process):
    place = s.Place.read(folder.place.text())
    made = of_folder(folder, b"round 1")
    found = place.ask(made)

    assert sorted(onion.opened(found, ANALYSER, b"round 1")) == [b"%02d" % k for k in range(5)]
    with pytest.raises(ArchipelError, match=r"the shuffler at localhost:\d+ refuses: .* before"):
        place.ask(made)
    with pytest.raises(ArchipelError, match="2 reports that open, and 3 is the fewest"):
        place.ask(of_folder(folder, b"round 2", members=2))
    with pytest.raises(ArchipelError, match="another certificate than the study names"):
        place._replace(certificate=bytes(32)).ask(made)
    with pytest.raises(ArchipelError, match="somebody who is no member"):
        place.ask(of_folder(folder, b"round 3", members=7))
    # who speaks no batch is answered, and others are served after it
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((place.host, place.port))) as stream:
        stream.sendall((5).to_bytes(8, "big") + b"hello")
        assert b"no batch of reports" in stream.recv(1000)
    assert len(place.ask(of_folder(folder, b"round 4"))) == 5


def test_what_was_answered_is_remembered_after_a_restart(folder):
    assert folder.first(b"round 1")
    assert not ShufflerFolder(folder.path).first(b"round 1")
    assert folder.first(b"round 2")


def test_a_shuffler_that_is_not_there_is_said_in_one_sentence(folder):
    with pytest.raises(ArchipelError, match=r"the shuffler at localhost:\d+ is not reached"):
        folder.place.ask(of_folder(folder, b"round 1"))


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("site-0", "ff" * 32, "site-0 has another key here"),
        ("site-9", signer(3).public.hex(), "is another member's"),
        ("site-9", "12", "give 64 hexadecimal digits"),
        ("site-9", "no key", "give 64 hexadecimal digits"),
    ],
)
def test_members_have_one_key_each(folder, name, key, said):
    with pytest.raises(ArchipelError, match=said):
        folder.admit(name, key)
    folder.admit("site-0", signer(0).public.hex())  # again, the same

    assert len(folder.members) == 6


@pytest.mark.parametrize("text", ["", "a/1/2/3", "a/b/c/d", f"h/99999/{'0' * 64}/{'0' * 64}"])
def test_what_names_no_shuffler_is_refused(text):
    with pytest.raises(ArchipelError, match="give what `archipel shuffler init` printed"):
        s.Place.read(text)


def test_a_folder_is_made_once(folder):
    with pytest.raises(ArchipelError, match="exists and is not empty"):
        ShufflerFolder.create(folder.path, "localhost:1", 3)
    with pytest.raises(ArchipelError, match="--least 1: give 2 reports or more"):
        ShufflerFolder.create(folder.path / "new", "localhost:1", 1)
    with pytest.raises(ArchipelError, match="give HOST:PORT"):
        ShufflerFolder.create(folder.path / "new", "localhost", 3)
    assert (folder.path / "key").stat().st_mode & 0o77 == 0
