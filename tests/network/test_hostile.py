# SPDX-License-Identifier: Apache-2.0
"""Those who want to do harm: strangers, guests, sites and coordinators, against the real parts."""

import asyncio
import base64
import builtins
import os
import random
import re
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import grpc
import msgpack
import numpy as np
import pytest
import tomli_w
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

import archipel as ar
from archipel.data.shadow import Facts
from archipel.engines.engine import Cause
from archipel.engines.network import party_loop as attend
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.grpc import Credentials, GrpcLink, GrpcServer
from archipel.engines.network.letters import MAGIC, BadLetter, Letter, decode
from archipel.engines.network.liveness import Liveness, Words
from archipel.engines.network.opened import Patience
from archipel.engines.network.party_loop import PartyLoop
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.peer_rounds import Rounds
from archipel.engines.network.transport import SMALL, Cut, Partials, Refused
from archipel.federation import approval
from archipel.federation.certificates import (
    COORDINATOR,
    Authority,
    Identity,
    Invitation,
    invite,
    new_key,
    of_ones_own,
    pem_of,
    request,
    write_secret,
)
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.rehearsal import _free_port
from archipel.federation.site.site import Site
from archipel.graphs import topology
from archipel.study.file import Study

CA = Authority.create("test")
HELLO = Letter("hello", {"version": "0", "approved": []})


def credentials(name, valid=timedelta(days=1)):
    key = new_key()
    return Credentials(pem_of(key), CA.certify(key.public_key(), name, valid), CA.pem)


async def thanks(who, letter):
    return Letter("thanks")


def with_server(play, answer=thanks, most=lambda who: 1 << 30, **options):
    async def main():
        server = GrpcServer(answer, lambda caller: caller.name, most, **options)
        address = f"127.0.0.1:{await server.start('127.0.0.1:0', credentials(COORDINATOR))}"
        try:
            await asyncio.wait_for(play(address), 600)
        finally:
            await server.stop()

    asyncio.run(main())


class Raw:
    """A caller that speaks as it likes."""

    def __init__(self, address, name="mallory", **options):
        shown = credentials(name)
        tls = grpc.ssl_channel_credentials(shown.authority, shown.key, shown.chain)
        override = [("grpc.ssl_target_name_override", COORDINATOR)]
        sizes = [("grpc.max_send_message_length", -1)]
        self.channel = grpc.aio.secure_channel(address, tls, [*override, *sizes])
        self.options = options

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.channel.close()

    def call(self):
        return self.channel.stream_stream("/archipel.Federation/Converse")(**self.options)


def offer(size, name=b"x" * 32):
    return b"O" + size.to_bytes(8, "little") + name


async def asked(address, letter=HELLO, **options):
    link = GrpcLink(address, COORDINATOR, credentials("ulm"), **options)
    try:
        return await link.ask(letter)
    finally:
        await link.close()


async def ended(call):
    """How the server ends a conversation."""
    while await call.read() is not grpc.aio.EOF:
        pass
    return await call.code()


# -- the port: those who open conversations and hold them ------------------------------------------


def test_a_conversation_in_which_nothing_comes_is_cut():
    async def play(address):
        async with Raw(address) as raw:
            silent, begun = raw.call(), raw.call()
            await begun.write(offer(1 << 20))
            assert (await begun.read())[:1] == b"H"
            for call in (silent, begun):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await ended(call)
                assert error.value.code() is grpc.StatusCode.ABORTED

    with_server(play, patience=0.2)


def test_one_caller_holds_a_few_conversations_and_no_more():
    async def play(address):
        async with Raw(address) as raw:
            held = [raw.call() for _ in range(64)]
            for call in held:
                await call.write(offer(70_000))
                assert (await call.read())[:1] == b"H"
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ended(raw.call())
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await asked(address)).kind == "thanks"  # others are served
            held[0].cancel()
            while (call := raw.call()) and not await served(call):  # its end is heard in a moment
                pass

    async def served(call):
        try:
            await call.write(offer(70_000))
            return await call.read() is not grpc.aio.EOF
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False

    with_server(play)


def test_letters_under_way_of_one_caller_take_bounded_memory():
    async def play(address):
        async with Raw(address) as raw:
            for number in range(3):
                call = raw.call()
                await call.write(offer(1 << 20, bytes([number]) * 32))
                if number < 2:
                    assert (await call.read())[:1] == b"H"
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ended(call)
            assert error.value.code() is grpc.StatusCode.ABORTED
        assert (await asked(address)).kind == "thanks"

    with_server(play, most=lambda who: 1 << 20)


def test_parts_that_one_sender_leaves_behind_push_nobody_elses_out():
    partials = Partials(most=100)
    partials.put_back("ulm", b"letter", bytearray(60))
    for number in range(50):
        partials.put_back("mallory", bytes([number]), bytearray(40))

    assert len(partials.take("ulm", b"letter")) == 60
    assert partials.take("mallory", b"\0") == bytearray()
    assert len(partials.take("mallory", b"\x31")) == 40


def test_messages_that_grow_when_unpacked_are_refused():
    async def play(address):
        async with Raw(address, compression=grpc.Compression.Gzip) as raw:
            call = raw.call()
            await call.write(bytes(64 << 20))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ended(call)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_server(play)


def test_endless_metadata_is_refused():
    async def play(address):
        async with Raw(address, metadata=[("x", "y" * 1_000_000)]) as raw:
            with pytest.raises(grpc.aio.AioRpcError):
                await ended(raw.call())
        assert (await asked(address)).kind == "thanks"

    with_server(play)


def test_a_fault_in_the_coordinator_tells_the_caller_nothing_of_it(caplog):
    async def fails(who, letter):
        if letter.kind == "hello":
            raise KeyError("/srv/secret")
        raise ar.errors.RunFailed("postgresql://admin@db is away.")

    async def play(address):
        for letter in (HELLO, Letter("thanks")):
            with pytest.raises(Cut) as error:
                await asked(address, letter)
            assert "no answer" in str(error.value)

    with_server(play, fails)
    assert "/srv/secret" in caplog.text  # its operator learns it


def test_nobody_else_listens_on_the_coordinators_port():
    async def play(address):
        second = GrpcServer(thanks, lambda caller: caller.name)
        with pytest.raises(ar.ArchipelError, match="is the port in use"):
            await second.start(address, credentials(COORDINATOR))

    with_server(play)


@pytest.mark.parametrize(
    ("version", "ciphers", "works"),
    [
        (ssl.TLSVersion.TLSv1_3, None, True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-GCM-SHA256", True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA384", False),
        (ssl.TLSVersion.TLSv1_2, "AES128-GCM-SHA256:aNULL:eNULL", False),
    ],
    ids=["1.3", "1.2", "1.2 with CBC", "1.2 without forward secrecy"],
)
def test_tls_is_of_today(tmp_path, version, ciphers, works):
    shown = credentials("ulm")
    (tmp_path / "both").write_bytes(shown.key + shown.chain)

    def shakes(address):
        context = ssl.create_default_context(cadata=CA.pem.decode())
        context.load_cert_chain(tmp_path / "both")
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        if ciphers:
            context.set_ciphers(ciphers + ":@SECLEVEL=0")
        host, port = address.split(":")
        try:
            with (
                socket.create_connection((host, int(port)), 5) as raw,
                context.wrap_socket(raw, server_hostname=COORDINATOR) as tls,
            ):
                return tls.version() is not None
        except ssl.SSLError:
            return False

    async def play(address):
        assert await asyncio.to_thread(shakes, address) is works

    with_server(play)


# -- those who hold a token, or held a certificate -------------------------------------------------


@asynccontextmanager
async def federation(path):
    home = CoordinatorFolder.create(path / "coordinator", "test", f"localhost:{_free_port()}")
    one = Coordinator(home)
    await one.up(home.address)
    try:
        yield one
    finally:
        await one.down()


def with_federation(tmp_path, play):
    async def main():
        async with federation(tmp_path) as one:
            await asyncio.wait_for(play(one), 600)

    asyncio.run(main())


async def joined(one, path, name):
    return await Site.join(path / name, Invitation.read(one.home.invite(name).token()))


def enrolling(invitation):
    fields = {
        "site": invitation.site,
        "secret": invitation.secret,
        "request": request(new_key(), invitation.site),
        "identity": Identity.create().public,
    }
    return Letter("enrol", fields)


def test_a_token_that_many_use_at_once_lets_one_in(tmp_path):
    async def play(one):
        invitation = one.home.invite("ulm")
        link = GrpcLink(invitation.address, COORDINATOR, invitation.credentials)
        asking = [link.ask(enrolling(invitation)) for _ in range(8)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert sum(isinstance(each, Letter) for each in answers) == 1
        assert sum("used already" in str(each) for each in answers) == 7
        for letter in (HELLO, Letter("renew", {"request": request(new_key(), "ulm")})):
            with pytest.raises(Refused, match="opens the joining and nothing else"):
                await link.ask(letter)
        await link.close()

    with_federation(tmp_path, play)


def test_a_revoked_site_gets_no_certificate_and_its_old_one_opens_nothing_later(tmp_path):
    async def play(one):
        site = await joined(one, tmp_path, "ulm")
        old = site.link()
        await site.studies(old)
        one.home.revoke("ulm", "lost its keys")
        for letter in (HELLO, Letter("renew", {"request": request(new_key(), "ulm")})):
            with pytest.raises(ar.ArchipelError, match="was revoked"):
                await old.ask(letter)
        await joined(one, tmp_path / "again", "ulm")
        with pytest.raises(ar.ArchipelError, match="is none of the site's own"):
            await old.ask(HELLO)
        await old.close()

    with_federation(tmp_path, play)


def test_a_certificate_that_the_roll_does_not_know_opens_nothing(tmp_path):
    """Signed by the authority, but never entered: of a stolen key, or for a name of one's own."""

    async def play(one):
        await joined(one, tmp_path, "ulm")
        for name in ("ulm", "bonn", "ulm.", "*", "ULM", "ulm\u200b", "xn--ulm"):
            key, authority = new_key(), one.home.authority
            chain = authority.certify(key.public_key(), name)
            shown = Credentials(pem_of(key), chain, authority.pem)
            link = GrpcLink(one.home.address, COORDINATOR, shown)
            with pytest.raises(ar.ArchipelError, match=r"none of the site's own|does not belong"):
                await link.ask(HELLO)
            await link.close()

    with_federation(tmp_path, play)


@pytest.mark.parametrize(
    "name",
    ["coordinator", "invited:ulm", "invited", "Ulm", "ulm.", "*", "ulm\n", "u\u0131m", "-a", ""],
)
def test_no_site_has_a_name_that_could_be_taken_for_another(tmp_path, name):
    home = CoordinatorFolder.create(tmp_path, "test", "localhost:1")
    with pytest.raises(ar.ArchipelError, match="name"):
        home.invite(name)


@pytest.mark.parametrize("curve", [ec.SECP192R1(), ec.SECP384R1()])
def test_certificates_are_for_p256_keys_alone(curve):
    with pytest.raises(ar.ArchipelError, match="not signed by a P-256 key of its own"):
        CA.issue(request(ec.generate_private_key(curve), "ulm"), "ulm")


@pytest.mark.parametrize("name", [COORDINATOR, "*", "ulm", "bonn", "ulm.", "*.ulm"])
def test_a_request_to_listen_gets_a_certificate_to_ask_with(name):
    """The authority lets nobody listen but the coordinator: peers' ports are their own affair."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    asked = builder.add_extension(names, critical=False).sign(new_key(), hashes.SHA256())
    issued = CA.issue(asked.public_bytes(Encoding.PEM), "ulm")
    found = x509.load_pem_x509_certificate(issued).extensions
    uses = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    with pytest.raises(x509.ExtensionNotFound):
        found.get_extension_for_class(x509.SubjectAlternativeName)


def test_a_peer_that_listens_is_not_taken_for_the_coordinator():
    async def play():
        key, server = new_key(), GrpcServer(thanks, lambda caller: caller.name)
        for chain in (CA.certify(key.public_key(), "mallory"), of_ones_own(key, COORDINATOR)):
            port = await server.start("127.0.0.1:0", Credentials(pem_of(key), chain, CA.pem))
            with pytest.raises(Cut):
                await asked(f"127.0.0.1:{port}")
            await server.stop()

    asyncio.run(asyncio.wait_for(play(), 600))


def test_spoilt_requests_are_refused_in_words():
    lines = request(new_key(), "ulm").split(b"\n")
    draws, body, refused = random.Random(0), base64.b64decode(b"".join(lines[1:-2])), 0
    for _ in range(2000):
        spoilt = bytearray(body)
        for _ in range(draws.choice([1, 1, 3])):
            spoilt[draws.randrange(len(spoilt))] = draws.randrange(256)
        text = b"-----BEGIN CERTIFICATE REQUEST-----\n%b\n-----END CERTIFICATE REQUEST-----\n"
        try:
            CA.issue(text % base64.encodebytes(spoilt), "ulm")
        except ar.ArchipelError:
            refused += 1
    assert refused > 1900  # the others changed nothing


def test_a_token_of_somebody_who_writes_to_the_terminal_is_refused():
    invitation = invite(CA, "ulm", "localhost:1", timedelta(days=1))
    assert repr(invitation.secret) not in repr(invitation)
    assert "PRIVATE KEY" not in repr(invitation) + repr(invitation.credentials)
    for changes in ({"federation": "\x1b[2J"}, {"site": "u\nlm"}, {"key": "text"}, {"secret": 7}):
        with pytest.raises(ar.ArchipelError, match="token is not whole"):
            Invitation.read(replace(invitation, **changes).token())


def test_keys_are_their_owners_and_go_into_no_file_that_was_there(tmp_path):
    path, other = tmp_path / "site.key", tmp_path / "other"
    other.write_bytes(b"")
    for pid in (os.getpid(), 1):
        (tmp_path / f".site.key.{pid}").symlink_to(other)
    write_secret(path, b"secret")

    assert path.read_bytes() == b"secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert other.read_bytes() == b""


# -- letters of a site that is enrolled ------------------------------------------------------------


async def approving(one, site, digest, facts, decision="approved"):
    signature = b""  # of facts that are no JSON there is none
    with suppress(ValueError):
        said = approval.statement(site.name, digest, decision, facts)
        signature = site.identity.sign(said)
    fields = {"study": digest, "decision": decision, "facts": facts, "signature": signature}
    link = site.link()
    try:
        return await link.ask(Letter("approve", fields))
    finally:
        await link.close()


def test_a_site_cannot_keep_a_study_from_starting_by_what_it_tells_of_its_data(tmp_path):
    async def play(one):
        digest = one.home.submit(study_text())
        honest, mallory = [await joined(one, tmp_path, name) for name in ("ulm", "mallory")]
        right = Facts.of(seat_of().data).to_json()
        for wrong in (
            {}, {"n": None}, {"n": float("inf")}, {"n": -1}, {"shape": "1000000x1000000"},
            {"classes": 1 << 39}, {"task": "x" * 1000}, {"shape": None},
        ):  # fmt: skip
            with pytest.raises(Refused, match="facts: "):
                await approving(one, mallory, digest, {**right, **wrong} if wrong else {})
        assert (await approving(one, honest, digest, right)).kind == "thanks"
        with pytest.raises(Refused, match="have it bind the data that the study describes"):
            await approving(one, mallory, digest, {**right, "shape": "7"})
        for decision in ("approved", "rejected"):
            with pytest.raises(Refused, match="send at most"):
                await approving(one, mallory, digest, {**right, "more": "x" * 100_000}, decision)
        assert [(d.site, d.facts) for d in one.registry.history(digest)] == [("ulm", right)]
        with pytest.raises(Refused, match="such letters in a minute"):
            for _ in range(100):
                await approving(one, mallory, digest, {}, "rejected")

    with_federation(tmp_path, play)


def test_homes_that_were_there_are_closed_to_others(tmp_path):
    for name in ("coordinator", "ulm"):
        (tmp_path / name).mkdir(mode=0o755)

    async def play(one):
        await joined(one, tmp_path, "ulm")

    with_federation(tmp_path, play)
    for name in ("coordinator", "ulm"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_refusals_do_not_fill_the_log(tmp_path):
    async def play(one):
        site = await joined(one, tmp_path, "ulm")
        link = site.link()
        for number in range(100):
            with pytest.raises(Refused, match="no study here has this hash"):
                await link.ask(Letter("study", {"study": "\x1b[2J\n" * 10_000 + str(number)}))
        await link.close()

    with_federation(tmp_path, play)
    log = CoordinatorFolder(tmp_path / "coordinator").audit
    refused = [entry.detail for entry in log.entries() if entry.what == "refused"]
    assert len(refused) == 21
    assert refused[-1]["more"] == 80
    assert max(len(each.get("reason", "")) for each in refused) < 700
    assert all(each.get("reason", "").isprintable() for each in refused)


@pytest.mark.parametrize("shape", [[0, 1 << 40, 1 << 40], [1 << 40] * 7 + [0]])
def test_an_empty_array_of_endless_sides_is_refused(shape):
    header = msgpack.packb(["thanks", {}, [["f4", shape]]])
    with pytest.raises(BadLetter, match="form that is not known"):
        decode(MAGIC + len(header).to_bytes(4, "little") + header)


def test_a_header_of_more_things_than_any_letter_has_is_refused():
    header = msgpack.packb(["hello", {"version": "", "approved": [0] * 5000}, []])
    with pytest.raises(BadLetter, match="not msgpack"):
        decode(MAGIC + len(header).to_bytes(4, "little") + header)


def opened(parties=2):
    """An engine of a study in which a round is open, and an upload that fits it."""
    study = Study.of("fedavg", data={"name": "heart_disease"})
    data = study.federation()
    model = study.build_model(data)
    boxes, anatomy = fitted(study.algorithm_object, data, model, 0, 0)
    engine = NetworkEngine(boxes, model, anatomy, parties, "s")
    fields = {"study": "s", "round": 0, "number": 0, "n": 9.0, "gradients": 1, "signature": b""}

    async def upload(answers, party, arrays=(model.w,), **changes):
        while engine.opened is None:
            await asyncio.sleep(0)
        right = {"attempt": engine.opened.attempt, "answers": engine.opened.letters[party].name}
        return await answers.answer(party, Letter("upload", {**fields, **right, **changes}, arrays))

    return engine, Answers(engine), upload


def test_one_upload_does_not_end_a_study_by_its_numbers():
    async def play():
        engine, answers, upload = opened()
        running = asyncio.create_task(engine.round(0, [0, 1]))
        w = engine.model.w
        for changes in ({"n": 0.0}, {"n": -1.0}, {"n": float("nan")}, {"n": 1e300},
                        {"gradients": -1}):  # fmt: skip
            with pytest.raises(Refused, match=r"training points|no counts"):
                await upload(answers, 1, **changes)
        for arrays in ([w[1:]], [w.double()], [w, w], []):
            with pytest.raises(Refused, match="another form"):
                await upload(answers, 1, arrays)
        await upload(answers, 0)
        await upload(answers, 1, [torch.full_like(w, 3e38)])  # finite, but no sum of it is
        return await running

    outcome = asyncio.run(play())
    assert outcome.arrived.tolist() == [0]
    assert outcome.missing == {1: Cause("diverged")}


def test_what_a_site_says_that_it_does_obeys_no_terminal_and_fills_no_log():
    async def play():
        engine, answers, _ = opened()
        running = asyncio.create_task(engine.round(0, [0, 1], Patience(silence=0.01)))
        while engine.opened is None:
            await asyncio.sleep(0)
        busy = "\x1b[2Jall is well\nround 9: \u202e" + "x" * 1_000_000
        await answers.answer(1, Letter("next", {"study": "s", "pending": -1, "busy": busy}))
        return await running

    outcome = asyncio.run(play())
    assert str(outcome.missing[1]).isprintable()
    assert len(str(outcome.missing[1])) < 100


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"accuracy": "nine"}},
        {"metrics": {"accuracy": None}},
        {"metrics": {"\x1b[2J": 1.0}},
        {"own": {"accuracy": b"\0"}},
        {"points": -1},
        {"points": 1 << 63},
    ],
    ids=str,
)
def test_scores_that_are_no_scores_are_refused(changes):
    async def play():
        _, answers, _ = opened()
        running = asyncio.create_task(answers.evaluate(1, [0, 7]))  # 7 comes with the next round
        fields = {"study": "s", "round": 1, "metrics": {"accuracy": 0.5}, "own": None, "points": 3,
                  "signature": b""}  # fmt: skip
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="the scores are not"):
            await answers.answer(0, Letter("scores", {**fields, **changes}))
        await answers.answer(7, Letter("scores", fields))
        await answers.answer(0, Letter("scores", fields))
        return await running

    assert list(asyncio.run(play())) == [0]


# -- a coordinator against a site ------------------------------------------------------------------


def seat_of(algorithm="fedavg", rounds=3):
    study = Study.of(algorithm, data={"name": "heart_disease"})
    data = study.federation().select(np.array([0]))
    return PartyState(study.algorithm_object, data, study.build_model(data), party=0, rounds=rounds)


def test_a_site_takes_no_answer_that_is_larger_than_the_study_brings():
    async def floods(who, letter):
        return Letter("thanks", {}, [torch.zeros(SMALL)])

    async def play(address):
        with pytest.raises(BadLetter, match="where at most 2097152 are expected"):
            await asked(address)
        link = GrpcLink(address, COORDINATOR, credentials("ulm"))
        party_state = seat_of()
        PartyLoop(party_state, link, "s")
        await link.close()
        assert link.most == SMALL + 2 * 4 * party_state.model.w.numel()

    with_server(play, floods)


def test_a_site_computes_each_round_once_in_order_and_none_beyond_the_study():
    party_state = seat_of()
    w = party_state.model.w
    sent, _ = party_state.work(0, 0, [w])
    again, _ = party_state.work(0, 0, [w.clone()])
    assert again is sent  # what was sent is sent again
    with pytest.raises(Refused, match="came again with other contents"):
        party_state.work(0, 0, [w + 1])
    party_state.work(1, 0, [w])
    with pytest.raises(Refused, match="round 1 is not one that this party may still"):
        party_state.work(0, 0, [w + 1])
    party_state.verdict(1, counted=False)
    other = seat_of()
    other.restore(party_state.state())  # another process knows it as well
    for each in (party_state, other):
        for t in (1, 3, -1, 1 << 62):
            with pytest.raises(Refused, match="is not one that this party may still"):
                each.work(t, 0, [w])
    party_state.work(2, 0, [w])


def test_later_messages_of_a_round_are_answered_anew_a_limited_number_of_times():
    party_state = seat_of("pefll")
    sent, replies = party_state.anatomy.sent, party_state.anatomy.messages[0].reply
    party_state.work(0, 0, list(ar.tree.leaves(sent)))
    party_state.work(0, 1, list(ar.tree.leaves(replies)))
    with pytest.raises(Refused, match="came again with other contents"):
        for i in range(1, 30):
            party_state.work(0, 1, [leaf + i for leaf in ar.tree.leaves(replies)])
    assert i == 24  # so often as the study has rounds, and 20


def test_a_site_scores_one_model_after_a_round_and_only_models():
    party_state = seat_of()
    w = party_state.model.w
    party_state.may_score(1, b"one", [w])
    party_state.may_score(1, b"one", [w])  # asked again
    for t, name, arrays, said in [
        (1, b"two", [w + 1], "another model was scored after round 1"),
        (0, b"two", [w], "after round 0 any more"),
        (4, b"two", [w], "after round 4 any more"),
        (2, b"two", [w[1:]], "the model has another form"),
        (2, b"two", [w.double()], "the model has another form"),
        (2, b"two", [], "the model has another form"),
    ]:
        with pytest.raises(Refused, match=said):
            party_state.may_score(t, name, arrays)


def study_text(**sections):
    tables = {
        "study": {"rounds": 3},
        "data": {"name": "heart_disease"},
        "algorithm": {"name": "fedavg"},
    }
    return tomli_w.dumps(tables | sections).encode()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"algorithm": {"name": "evil.py:Evil"}}, "names no code of its own"),
        ({"algorithm": {"name": "../evil.py"}}, "names no code of its own"),
        ({"model": {"name": "~/evil.py"}}, "names no code of its own"),
        ({"data": {"name": "evil.py:load"}}, "names no code of its own"),
        ({"algorithm": {"name": ["evil.py"]}}, "names no code of its own"),
        ({"algorithm": {"name": "os"}}, "unknown algorithm"),
        ({"algorithm": {"name": "fedavg", "optimiser": {"name": "evil.py:Evil"}}}, "evil.py:Evil"),
        ({"algorithm": {"name": "fedavg", "lr": "evil.py"}}, "algorithm.lr"),
        ({"model": {"name": "mlp", "widths": "evil.py"}}, "model.widths"),
        ({"model": {"name": "mlp", "loss": "evil.py:loss"}}, "model.loss"),
        ({"topology": {"name": "evil.py:graph"}}, "topology.name"),
        ({"wire": {"up": ["float16", "evil.py:Step"]}}, "wire.up"),
        ({"wire": {"down": ["evil.py"]}}, "wire.down"),
        ({"round": {"rule": "evil.py:Rule:1"}}, "round.rule"),
        ({"round": {"rule": ["median", "evil.py:Rule:1"]}}, "round.rule"),
        ({"wire": {"sum": "evil.py"}}, "wire.sum"),
    ],
    ids=str,
)
def test_a_study_names_no_code_anywhere(tmp_path, monkeypatch, sections, said):
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nclass Evil: party = load = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ar.ArchipelError, match=re.escape(said)):
        approval.read(study_text(**sections))
    assert not (tmp_path / "ran").exists()


def test_reading_a_study_opens_no_file_that_it_names(tmp_path, monkeypatch):
    opened = []
    sys_open = builtins.open
    monkeypatch.setattr(
        builtins, "open", lambda file, *a, **k: opened.append(file) or sys_open(file, *a, **k)
    )
    for data in ({"file": "/etc/hostname", "target": "y"}, {"folder": "../../etc"}):
        study = approval.read(study_text(data=data))
        study.build_model(seat_of().data)
        study.algorithm_object.init(torch.zeros(1))
    assert not [each for each in opened if "etc" in str(each)]


@pytest.mark.parametrize(
    "text",
    [
        b"[study]\n" + b"a." * 120_000 + b"a = 1",  # 16 TB in a reader of TOML
        b"[" + b'"a b".' * 1000 + b"b]",
        b"a = {k = '''\nx = \"''', " + b"a." * 100_000 + b'a = 1, y = "',  # a text that ends inside
        b"[study]\n'\"'." + b"a." * 100_000 + b"'\"' = 1",
        b"#" * 300_000,
        b"[study]\npurpose = " + b"[" * 100_000,
        b"[study]\npurpose = " + b"{a = " * 10_000,
        b"\xff\xfe",
    ],
    ids=["dots", "table", "ended", "quoted", "long", "lists", "tables", "no text"],
)
def test_a_study_takes_no_endless_memory_to_read(text):
    with pytest.raises(ar.ArchipelError):
        approval.read(text)


def test_a_site_builds_no_model_that_fills_its_memory():
    data = seat_of().data
    small = approval.read(study_text(model={"name": "mlp", "widths": [10]}))
    assert approval.model_of(small, data).w.numel() == 13 * 10 + 10 + 10 * 2 + 2
    huge = approval.read(study_text(model={"name": "mlp", "widths": [100_000, 100_000]}))
    with pytest.raises(ar.ArchipelError, match="has 10001700002 weights with these options"):
        approval.model_of(huge, data)


@pytest.mark.parametrize("party", [-1, 1 << 40])
def test_a_site_takes_no_number_that_fills_its_memory(party):
    party_state = seat_of()
    data = party_state.data.select(np.array([0]))
    with pytest.raises(Refused, match="is no party's number"):
        PartyState(party_state.boxes.algorithm, data, party_state.model, party=party)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_site_does_not_wait_as_long_as_it_is_told(monkeypatch, seconds):
    class Link:
        most = pieces = 0
        answers = iter([Letter("wait", {"seconds": seconds}), Letter("done", {"rounds": 1})])

        async def ask(self, letter):
            return next(self.answers)

    monkeypatch.setattr("archipel.engines.network.party_loop._LONG", 0.01)
    assert asyncio.run(asyncio.wait_for(PartyLoop(seat_of(), Link(), "s").run(), 600)) == 1


# -- a peer against another ------------------------------------------------------------------------


def test_a_peer_cannot_send_another_to_the_end_of_the_study():
    class Nowhere:
        def keep(self, name, tensors):
            pass

        def forget(self, names):
            pass

    async def play():
        words, liveness = Words("s", 100), Liveness({1: None, 2: None}, 60.0)
        rounds, x = Rounds(0, topology("complete", 3), liveness, words, Nowhere()), torch.ones(4)
        rounds.begin(0)
        mixing = asyncio.create_task(rounds.mix(x))
        await rounds.answer(2, words.vector((0, 0), 2 * x))
        liveness.note(1, words.beat((99, 0), "\x1b[2J" + "x" * 1000))
        await mixing
        return rounds.at, rounds.missing, liveness.of[1].doing

    at, missing, doing = asyncio.run(asyncio.wait_for(play(), 600))
    assert at == (0, 1)  # in the same round, which counts
    assert missing == {1: "went on without this peer, to round 100"}
    assert doing.isprintable()
    assert len(doing) == 80


SAID = "trains, 7 gradients"


def test_no_count_of_gradients_leaves_in_a_pause(monkeypatch):
    """Low: a site that trained on while it was paused said how far it was."""
    monkeypatch.setattr(attend, "BEAT", 0.01)
    sent, asked, resumed = [], [], asyncio.Event()

    class Line:
        most = pieces = 0

        async def ask(self, letter):
            sent.append(letter["busy"])
            return Letter("thanks")

    async def may():
        asked.append(1)
        await resumed.wait()

    async def play():
        site = PartyLoop(seat_of(), Line(), "s", may=may)
        work = asyncio.create_task(site._beating(asyncio.sleep(0.5), lambda: (SAID, 7)))
        await asyncio.sleep(0.2)
        before = list(sent)
        resumed.set()
        await work
        return before

    assert asyncio.run(play()) == []
    assert asked[:1] == [1]  # the one that waited is the first to be told
    assert sent[:1] == [SAID]
