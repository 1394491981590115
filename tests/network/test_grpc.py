# SPDX-License-Identifier: Apache-2.0
"""The gRPC transport: the same conversations over mutual TLS, and who is kept out."""

import asyncio
import resource
import socket
import ssl
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
import torch

import archipel as ar
from archipel.engines.network import grpc as module
from archipel.engines.network.grpc import Credentials, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.federation import certificates as authority
from archipel.federation.certificates import (
    COORDINATOR,
    GUEST,
    Authority,
    Identity,
    Invitation,
    fingerprint,
    invite,
    new_key,
    pem_of,
    request,
    verify,
)

CA, OTHER = Authority.create("test"), Authority.create("other")


def credentials(ca, name, valid=timedelta(days=1), trusts=CA):
    key = new_key()
    return Credentials(pem_of(key), ca.certify(key.public_key(), name, valid), trusts.pem)


async def echo(who, letter):
    if letter.kind == "thanks":
        raise Refused("no thanks.")
    return Letter("advice", {"study": who, "number": len(letter.arrays)}, letter.arrays)


def with_server(play, admit=lambda caller: caller.name, most=lambda who: 1 << 62, server=None):
    async def main():
        port = GrpcServer(echo, admit, most)
        number = await port.start("127.0.0.1:0", server or credentials(CA, COORDINATOR))
        try:
            return await asyncio.wait_for(play(f"127.0.0.1:{number}"), 600)
        finally:
            await port.stop()

    return asyncio.run(main())


async def asked(address, shown, letter=None, name=COORDINATOR):
    link = GrpcLink(address, name, shown, most=1 << 30)
    try:
        letter = letter or Letter("advice", {"study": "s", "number": 0})
        return await asyncio.wait_for(link.ask(letter), 600)
    finally:
        await link.close()


def test_letters_of_any_size_go_there_and_back():
    async def play(address):
        for size in (0, 10, 16_000, 3_000_000):
            x = torch.randn(size)
            letter = Letter("advice", {"study": "s", "number": 0}, [x])
            answer = await asked(address, credentials(CA, "ulm"), letter)
            assert answer["study"] == "ulm"  # who the certificate says
            assert torch.equal(answer.arrays[0], x)

    with_server(play)


def test_more_sites_than_files_that_a_shell_allows_may_connect():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))

        async def play(address):
            return resource.getrlimit(resource.RLIMIT_NOFILE)

        assert with_server(play) == (min(1 << 16, before[1]), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_refusal_comes_with_its_reason():
    async def play(address):
        with pytest.raises(Refused, match="no thanks"):
            await asked(address, credentials(CA, "ulm"), Letter("thanks"))

    with_server(play)


def test_a_letter_larger_than_expected_is_refused_before_it_is_sent():
    async def play(address):
        letter = Letter("advice", {"study": "s", "number": 0}, [torch.zeros(100_000)])
        with pytest.raises(Refused, match=r"a letter of 4000\d\d bytes where at most 1000"):
            await asked(address, credentials(CA, "ulm"), letter)

    with_server(play, most=lambda who: 1000)


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        (credentials(OTHER, "ulm"), COORDINATOR),  # a certificate of somebody else's authority
        (credentials(CA, "ulm", timedelta(seconds=-60)), COORDINATOR),  # expired
        (credentials(CA, "ulm", trusts=OTHER), COORDINATOR),  # trusts another coordinator
        (credentials(CA, "ulm"), "somebody"),  # expects another name
        (credentials(CA, COORDINATOR), COORDINATOR),  # a server's certificate is no site's
    ],
    ids=["wrong authority", "expired", "wrong coordinator", "wrong name", "not for clients"],
)
def test_who_has_no_right_certificate_is_kept_out(shown, name):
    async def play(address):
        with pytest.raises(Cut):
            await asked(address, shown, name=name)

    with_server(play)


def test_a_coordinator_with_a_sites_certificate_is_not_believed():
    async def play(address):
        with pytest.raises(Cut):
            await asked(address, credentials(CA, "ulm"), name="ulm")

    with_server(play, server=credentials(CA, "ulm"))


def test_a_revoked_certificate_is_told_so():
    def admit(caller):
        raise ar.ArchipelError(f"the certificate of {caller.name} is revoked")

    async def play(address):
        with pytest.raises(ar.ArchipelError, match="refuses: the certificate of ulm is revoked"):
            await asked(address, credentials(CA, "ulm"))

    with_server(play, admit)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_1, None])
def test_old_tls_plain_text_and_no_certificate_get_nothing(most):
    async def play(address):
        host, port = address.split(":")

        def attempt():
            with socket.create_connection((host, int(port)), 5) as raw:
                if most is None:
                    raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 64)
                    return raw.recv(1)
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = most
                context.set_ciphers("ALL:@SECLEVEL=0")
                with context.wrap_socket(raw):
                    return b"connected"

        with suppress(ssl.SSLError, ConnectionError):
            assert await asyncio.to_thread(attempt) == b""

    with_server(play)


def test_without_a_client_certificate_nothing_is_answered():
    async def play(address):
        host, port = address.split(":")

        def attempt():
            context = ssl.create_default_context(cadata=CA.pem.decode())
            context.set_alpn_protocols(["h2"])
            with (
                socket.create_connection((host, int(port)), 5) as raw,
                context.wrap_socket(raw, server_hostname=COORDINATOR) as tls,
            ):
                tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                return tls.recv(100)

        with suppress(ssl.SSLError, ConnectionError):
            assert await asyncio.to_thread(attempt) == b""

    with_server(play)


# -- why there is no connection, and what to do (E10) ----------------------------------------------


@contextmanager
def clock(monkeypatch, ahead):
    """Have certificates be made as if it were another time."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + ahead

    with monkeypatch.context() as patch:
        patch.setattr(authority, "datetime", Clock)
        yield


async def refused(address, shown, name=COORDINATOR):
    with pytest.raises(Cut) as cut:
        await asked(address, shown, name=name)
    assert "TSI_" not in str(cut.value) and "ipv4:" not in str(cut.value)
    return str(cut.value)


def alone(play, serve=None):
    """Play with a port at which something else than a coordinator is, or nobody."""

    async def main():
        if serve is None:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            return await play(f"127.0.0.1:{port}")
        async with await asyncio.start_server(serve[0], "127.0.0.1", 0, ssl=serve[1]) as server:
            return await play(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(main())


@pytest.mark.parametrize("days", [1, -3], ids=["not yet", "not any more"])
def test_a_clock_that_is_wrong_is_told_with_the_dates(days, monkeypatch):
    """E10: a clock one day behind was raw text of TLS."""
    with clock(monkeypatch, timedelta(days=days)):
        servers, own = credentials(CA, COORDINATOR), credentials(CA, "ulm")
    begins = datetime.now(UTC) + timedelta(days=days) - timedelta(minutes=5)

    theirs = with_server(lambda address: refused(address, credentials(CA, "ulm")), server=servers)
    ours = with_server(lambda address: refused(address, own))

    held = "yet" if days > 0 else "any more"
    assert "the certificate of the coordinator at 127.0.0.1:" in theirs
    assert f" does not hold {held}, it holds from {begins:%Y-%m-%d}" in theirs
    assert f"this machine's clock says {datetime.now(UTC):%Y-%m-%d}" in theirs
    assert "set the clock if that is wrong, else ask the coordinator's operator" in theirs
    assert f"this machine's own certificate holds from {begins:%Y-%m-%d}" in ours
    assert "set the clock if that is wrong, else join again with a new token" in ours


def test_a_clock_before_the_federation_began_is_told(monkeypatch):
    with clock(monkeypatch, timedelta(days=1)):
        later = Authority.create("test")
        servers = credentials(later, COORDINATOR, trusts=later)
        own = credentials(later, "ulm", trusts=later)

    said = with_server(lambda address: refused(address, own), server=servers)

    assert "the certificate of the federation's authority does not hold yet, it holds from" in said


@pytest.mark.parametrize(
    ("shown", "name", "words"),
    [
        (credentials(OTHER, "ulm"), COORDINATOR, "own certificate is of another authority than"),
        (credentials(CA, "ulm", trusts=OTHER), COORDINATOR, "is not of this federation"),
        (credentials(CA, "ulm"), "bonn", "is of this federation but not bonn; check the address"),
        (credentials(CA, COORDINATOR), COORDINATOR, "hangs up as soon as it sees this machine's"),
    ],
)
def test_a_wrong_certificate_is_told_by_whose_it_is(shown, name, words):
    assert words in with_server(lambda address: refused(address, shown, name))


async def speaks_plain(reader, writer):
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def says_nothing(reader, writer):
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass
    writer.close()


async def hangs_up(reader, writer):
    writer.close()


def test_what_is_not_a_coordinator_is_told_so(tmp_path, monkeypatch):
    own = credentials(CA, "ulm")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs = credentials(CA, COORDINATOR)
    (tmp_path / "both.pem").write_bytes(theirs.key + theirs.chain)
    tls.load_cert_chain(tmp_path / "both.pem")

    def play(address):
        return refused(address, own)

    assert "nobody listens at 127.0.0.1:" in alone(play)
    assert "does not speak TLS; check the port." in alone(play, (speaks_plain, None))
    assert "hangs up before it shows a certificate" in alone(play, (hangs_up, None))
    assert "speaks TLS and is not the coordinator" in alone(play, (says_nothing, tls))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    said = asyncio.run(refused("coordinator.invalid:443", own))
    assert "the name coordinator.invalid is not known here; check the address, this mach" in said
    assert "HTTPS_PROXY is not read, https_proxy in small letters is." in said


def test_who_does_not_answer_is_told_so(monkeypatch):
    options = [(k, 500 if k == "grpc.min_reconnect_backoff_ms" else v) for k, v in module._OPTIONS]
    monkeypatch.setattr(module, "_OPTIONS", options)

    said = alone(lambda address: refused(address, credentials(CA, "ulm")), (says_nothing, None))

    assert "does not answer in time; check the address, and whether a firewall swallows" in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (407, "answers 407 to CONNECT there.invalid:443; give it a user and a password"),
        (403, "answers 403 to CONNECT there.invalid:443; ask for the address to be let through"),
    ],
)
def test_a_proxy_that_says_no_is_named(code, words, monkeypatch):
    async def says_no(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {code} No\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def play(address):
        monkeypatch.setenv("https_proxy", f"http://ulm:secret@{address}")
        return await refused("there.invalid:443", credentials(CA, "ulm")), address

    said, proxy = alone(play, (says_no, None))

    assert words in said and f"the proxy, https_proxy = http://{proxy}," in said
    assert "secret" not in said


def test_a_proxy_that_is_not_there_is_named(monkeypatch):
    own = credentials(CA, "ulm")
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    said = asyncio.run(refused("there.invalid:443", own))
    assert "the name of the proxy is not known here, https_proxy = http://proxy.inv" in said

    async def play(address):
        monkeypatch.setenv("https_proxy", f"http://{address}")
        through = await refused("there.invalid:443", own)
        monkeypatch.setenv("no_proxy", "elsewhere, 127.0.0.1")
        return through, await refused(address, own)

    through, directly = alone(play)
    assert "the proxy refuses, https_proxy = http://127.0.0.1:" in through
    assert "name there.invalid in no_proxy" in through
    assert "nobody listens at 127.0.0.1:" in directly


def test_a_server_that_stops_in_a_conversation_logs_nothing(caplog):
    """E10: a traceback in the coordinator's log, where it stopped while it made an answer."""

    async def main():
        came, stopped = asyncio.Event(), asyncio.Event()

        async def late(who, letter):
            came.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await stopped.wait()
            return letter

        server = GrpcServer(late, lambda caller: caller.name)
        port = await server.start("127.0.0.1:0", credentials(CA, COORDINATOR))
        asking = asyncio.create_task(refused(f"127.0.0.1:{port}", credentials(CA, "ulm")))
        await came.wait()
        await server.stop()
        stopped.set()
        said = await asking
        while len(asyncio.all_tasks()) > 1:  # the answer is made, and nobody takes it
            await asyncio.sleep(0.01)
        return said

    with caplog.at_level("WARNING", "archipel"):
        said = asyncio.run(main())

    assert "no connection: the coordinator cut it off" in said
    assert [record.getMessage() for record in caplog.records if record.name == "archipel"] == []


# -- who is who ------------------------------------------------------------------------------------


def test_an_invitation_is_one_word_that_opens_the_door():
    async def play(address):
        token = invite(CA, "ulm", address, timedelta(days=1)).token()
        assert token.isascii()
        assert len(token.split()) == 1
        broken = "\n".join(token[i : i + 60] for i in range(0, len(token), 60))
        read = Invitation.read(broken)
        assert (read.site, read.federation, read.address) == ("ulm", "test", address)
        assert fingerprint(read.authority) == fingerprint(CA.pem)
        answer = await asked(read.address, read.credentials)
        assert answer["study"] == GUEST + "ulm"

    with_server(play)


SPOILT = [
    lambda token: token[:-5],
    lambda token: token[9:],
    lambda token: token[:99] + "A" + token[100:],
    lambda token: "",
    lambda token: "archipel-AAAA",
    lambda token: token + "x",
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_damaged_token_is_told_so(spoil):
    token = invite(CA, "ulm", "localhost:1", timedelta(days=1)).token()
    token = token[:99] + "B" + token[100:] if token[99] == "A" else token
    with pytest.raises(ar.ArchipelError, match="token is not whole"):
        Invitation.read(spoil(token))


def test_a_certificate_is_made_for_the_key_of_a_request_in_a_name_of_the_authoritys_choice():
    key = new_key()
    issued = CA.issue(request(key, "i-want-to-be-coordinator"), "ulm")

    async def play(address):
        answer = await asked(address, Credentials(pem_of(key), issued, CA.pem))
        assert answer["study"] == "ulm"

    with_server(play)
    with pytest.raises(ar.ArchipelError, match="not a certificate request"):
        CA.issue(b"nonsense", "ulm")


def test_signatures_are_of_one_key_and_one_text():
    mine, other = Identity.create(), Identity.create()
    signed = Identity.read(mine.pem).sign(b"text")
    assert verify(mine.public, signed, b"text")
    assert not verify(mine.public, signed, b"texts")
    assert not verify(other.public, signed, b"text")
    assert not verify(b"short", signed, b"text")
