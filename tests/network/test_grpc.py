# SPDX-License-Identifier: Apache-2.0
"""The gRPC transport: the same conversations over mutual TLS, and who is kept out."""

import asyncio
import resource
import socket
import ssl
from contextlib import suppress
from datetime import timedelta

import pytest
import torch

import archipel as ar
from archipel.engines.network.grpc import Credentials, GrpcLink, GrpcServer
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Cut, Refused
from archipel.federation.authority import (
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


def credentials(authority, name, valid=timedelta(days=1), trusts=CA):
    key = new_key()
    return Credentials(pem_of(key), authority.certify(key.public_key(), name, valid), trusts.pem)


async def echo(who, letter):
    if letter.kind == "thanks":
        raise Refused("no thanks.")
    return Letter("advice", {"study": who, "number": len(letter.arrays)}, letter.arrays)


def with_server(play, admit=lambda caller: caller.name, most=lambda who: 1 << 62, server=None):
    async def main():
        port = GrpcServer(echo, admit, most)
        number = await port.start("127.0.0.1:0", server or credentials(CA, COORDINATOR))
        try:
            return await asyncio.wait_for(play(f"127.0.0.1:{number}"), 30)
        finally:
            await port.stop()

    return asyncio.run(main())


async def asked(address, shown, letter=None, name=COORDINATOR):
    link = GrpcLink(address, name, shown, most=1 << 30)
    try:
        letter = letter or Letter("advice", {"study": "s", "number": 0})
        return await asyncio.wait_for(link.ask(letter), 10)
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
