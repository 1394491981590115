# SPDX-License-Identifier: Apache-2.0
"""The shuffler: takes a batch of reports, opens the outer layer, and returns them in no order.

It is a role of its own, with keys of its own, on a machine that the server does not run
(`federation/shuffler.py`). Reports come to it through the server, which cannot open them: so sites
keep to their one connection. What an honest shuffler has to see to, against a server that is not:

- **Who is in the batch.** Each report is signed by a member that the shuffler knows, and each
  member has one. A server that fills a batch up with reports of its own making, so as to know the
  one that is left, is refused.
- **How many.** No batch of fewer than `least` leaves, the shuffler's own number or that which every
  party signed, whichever is more: the promise of privacy counts on so many.
- **One key.** Every party signed the same key of the server's. One for each party would tell, by
  which opens a report, whose it is.
- **Once.** A batch is answered once. Two that differ in one report would show that report.
- **The order** is drawn from the operating system, every one alike, and kept nowhere.
- **Nothing else leaves**: reports of one length without sender, signature or time.

What it cannot see to: that members are different people, and that the server's key is the server's.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack

from archipel.aggregation import onion
from archipel.aggregation.keys import KEY, digest
from archipel.aggregation.others import SUM
from archipel.errors import ArchipelError
from archipel.privacy.sources import Source, System
from archipel.privacy.uniform import permutation
from archipel.signing import SIGNATURE, verify

MOST = 1 << 30  # bytes of a batch
_PATIENCE = 60.0  # seconds for each piece of an answer
_VERSION = 1


class Batch(NamedTuple):
    """What the server hands on: reports of one length, each with who signed it."""

    about: bytes  # names the study, the attempt at the round, and the message
    least: int  # parties that every report was made for, at the fewest
    server: bytes  # the public key that every inner layer is for
    members: list[bytes]  # public keys
    signatures: list[bytes]
    reports: list[bytes]


def statement(about: bytes, least: int, server: bytes, report: bytes) -> bytes:
    """What a party signs of its report."""
    return digest(b"archipel report", about, b"%d" % least, server, report)


class Shuffler:
    """A shuffler at work. `first(about)` writes down that a batch was seen: False if it was."""

    def __init__(
        self,
        private: bytes,
        members: Collection[bytes],
        least: int,
        first: Callable[[bytes], bool],
        source: Source | None = None,
    ) -> None:
        self._private, self._members, self._least = private, frozenset(members), least
        self._first, self._source = first, source or System()

    def shuffled(self, batch: Batch) -> list[bytes]:
        """The reports of a batch without their outer layer, in an order that nobody knows."""
        if len({*batch.members}) != len(batch.members):
            raise ArchipelError("the batch has two reports of one member.")
        if not self._members.issuperset(batch.members):
            raise ArchipelError(
                "the batch has a report of somebody who is no member here; the shuffler's operator "
                "admits members: archipel shuffler admit."
            )
        if len({len(report) for report in batch.reports}) > 1:
            raise ArchipelError("the batch has reports of different lengths.")
        rows = zip(batch.members, batch.signatures, batch.reports, strict=True)
        signed = (batch.about, batch.least, batch.server)
        for member, signature, report in rows:
            if not verify(member, signature, SUM + statement(*signed, report)):
                raise ArchipelError("the batch has a report that its member did not sign.")
        least = max(self._least, batch.least)
        found = [onion.peeled(report, self._private, batch.about) for report in batch.reports]
        inner = [each for each in found if each is not None]
        if len(inner) < least:
            raise ArchipelError(
                f"the batch has {len(inner)} reports that open, and {least} is the fewest that "
                "hide each other."
            )
        if not self._first(batch.about):
            raise ArchipelError("the batch was answered before, or another one of its round was.")
        return [inner[place] for place in permutation(self._source, len(inner)).tolist()]


# -- as bytes --------------------------------------------------------------------------------------


def written(batch: Batch) -> bytes:
    """A batch as bytes."""
    found: bytes = msgpack.packb([_VERSION, *batch])
    return found


def read(content: bytes) -> Batch:
    """A batch from what `written` made of it; anything else is refused."""
    try:
        version, about, least, server, *columns = msgpack.unpackb(content)
        members, signatures, reports = columns
        right = (
            version == _VERSION
            and isinstance(about, bytes)
            and type(least) is int
            and isinstance(server, bytes)
            and all(isinstance(each, list) for each in columns)
            and len({len(each) for each in columns}) == 1
            and all(isinstance(each, bytes) for column in columns for each in column)
            and all(len(member) == KEY for member in members)
            and all(len(signature) == SIGNATURE for signature in signatures)
        )
    except Exception:  # whatever bytes may hold
        right = False
    if not right:
        raise ArchipelError("no batch of reports of this version.")
    return Batch(about, least, server, members, signatures, reports)


def answer(reports: Sequence[bytes] | str) -> bytes:
    """Shuffled reports as bytes, or why there are none."""
    found: bytes = msgpack.packb(reports)
    return found


# -- its address, as a study names it --------------------------------------------------------------


class Place(NamedTuple):
    """Where a shuffler is, and by what it is known: `HOST/PORT/CERTIFICATE/KEY`, in hex."""

    host: str
    port: int
    certificate: bytes  # SHA-256
    key: bytes  # X25519, of the outer layer

    @classmethod
    def read(cls, text: str) -> Place:
        """From the text that `archipel shuffler init` prints."""
        try:
            host, port, certificate, key = text.split("/")
            found = cls(host, int(port), bytes.fromhex(certificate), bytes.fromhex(key))
        except ValueError:
            found = cls("", 0, b"", b"")
        if not (found.host and 0 < found.port < 65536 and len(found.certificate + found.key) == 64):
            raise ArchipelError(
                f"shuffler = {text!r}: give what `archipel shuffler init` printed, "
                "HOST/PORT/CERTIFICATE/KEY."
            )
        return found

    def text(self) -> str:
        return f"{self.host}/{self.port}/{self.certificate.hex()}/{self.key.hex()}"

    def reach(self) -> None:
        """Refuse to go on where nobody with this certificate answers."""
        with self._connected():
            pass

    def ask(self, batch: Batch) -> list[bytes]:
        """Have a batch shuffled, over TLS, by whoever has this certificate."""
        with self._connected() as stream:
            content = written(batch)
            stream.sendall(len(content).to_bytes(8, "big") + content)
            found = _unpacked(_received(stream))
        if isinstance(found, str):
            raise ArchipelError(f"{self._where} refuses: {found}")
        if not (isinstance(found, list) and all(isinstance(each, bytes) for each in found)):
            raise ArchipelError(f"{self._where} answers with something else than reports.")
        return found

    @property
    def _where(self) -> str:
        return f"the shuffler at {self.host}:{self.port}"

    @contextmanager
    def _connected(self) -> Iterator[ssl.SSLSocket]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is pinned instead
        try:
            with (
                socket.create_connection((self.host, self.port), _PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname=self.host) as stream,
            ):
                shown = hashlib.sha256(stream.getpeercert(binary_form=True) or b"").digest()
                if not hmac.compare_digest(shown, self.certificate):
                    raise ArchipelError(
                        f"{self._where} has another certificate than the study names."
                    )
                yield stream
        except OSError as error:
            why = error.strerror or error
            raise ArchipelError(f"{self._where} is not reached: {why}.") from None


def _received(stream: ssl.SSLSocket) -> bytes:
    size = int.from_bytes(_exactly(stream, 8), "big")
    if size > MOST:
        raise ArchipelError(f"an answer of {size} bytes: {MOST} are the most.")
    return _exactly(stream, size)


def _exactly(stream: ssl.SSLSocket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = stream.recv(min(1 << 20, size - len(found)))
        if not piece:
            raise ConnectionError("the connection ended")
        found += piece
    return bytes(found)


def _unpacked(content: bytes) -> Any:
    try:
        return msgpack.unpackb(content)
    except Exception:  # whatever bytes may hold
        return None
