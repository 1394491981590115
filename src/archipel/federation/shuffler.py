# SPDX-License-Identifier: Apache-2.0
"""The shuffler as a process: its folder, and what it does while it is up.

Its folder has its keys, the members it admits and what it has answered. It listens on one port,
over TLS with a certificate of its own, which studies name (`Place`); who connects needs none, since
reports carry their members' signatures. It writes no log of batches: how many and how large they
were is all it says.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding

from archipel.aggregation.keys import KEY, digest
from archipel.aggregation.shuffler import MOST, Place, Shuffler, answer, read
from archipel.errors import ArchipelError
from archipel.federation.certificates import new_key, of_ones_own, pem_of, write_secret
from archipel.store import files

_KEY, _TLS, _CERTIFICATE = "key", "tls.key", "certificate.pem"
_ABOUT, _ANSWERED = "shuffler.json", "answered"
_PATIENCE = 120.0  # seconds for a whole batch to come, and for its answer to be taken
_AT_ONCE = 4  # batches
LEAST = 2  # reports, at the very least


@dataclass
class ShufflerFolder:
    """A shuffler's folder."""

    path: Path

    @classmethod
    def create(cls, path: Path, address: str, least: int) -> ShufflerFolder:
        """Make keys and a certificate; `address` is the HOST:PORT by which the server knows it."""
        if path.exists() and any(path.iterdir()):
            raise ArchipelError(f"'{path}' exists and is not empty; give another folder.")
        if least < LEAST:
            raise ArchipelError(f"--least {least}: give {LEAST} reports or more.")
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and 0 < int(port) < 65536 and "/" not in host):
            raise ArchipelError(
                f"address = {address!r}: give HOST:PORT, such as mix.example.org:8444."
            )
        path.mkdir(parents=True, exist_ok=True)
        tls = new_key()
        write_secret(path / _KEY, X25519PrivateKey.generate().private_bytes_raw())
        write_secret(path / _TLS, pem_of(tls))
        files.write(path / _CERTIFICATE, of_ones_own(tls, "shuffler"))
        found = cls(path)
        found._write({"host": host, "port": int(port), "least": least, "members": {}})
        return found

    @property
    def private(self) -> bytes:
        return (self.path / _KEY).read_bytes()

    @property
    def about(self) -> dict[str, object]:
        try:
            found = json.loads((self.path / _ABOUT).read_text())
        except (OSError, ValueError):
            raise ArchipelError(
                f"'{self.path}' is no shuffler's folder; make one: archipel shuffler init."
            ) from None
        assert isinstance(found, dict)
        return found

    def _write(self, about: dict[str, object]) -> None:
        files.write(self.path / _ABOUT, json.dumps(about, indent=1).encode())

    @property
    def members(self) -> dict[str, bytes]:
        """Public keys by name."""
        kept = self.about["members"]
        assert isinstance(kept, dict)
        return {name: bytes.fromhex(key) for name, key in kept.items()}

    @property
    def least(self) -> int:
        return int(str(self.about["least"]))

    @property
    def place(self) -> Place:
        """What a study names it by."""
        about = self.about
        pem = (self.path / _CERTIFICATE).read_bytes()
        shown = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
        key = X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()
        host, port = str(about["host"]), int(str(about["port"]))
        return Place(host, port, hashlib.sha256(shown).digest(), key)

    def admit(self, name: str, key: str) -> None:
        """Take a member in: a site by its public key, in hex."""
        try:
            public = bytes.fromhex(key)
        except ValueError:
            public = b""
        if len(public) != KEY:
            raise ArchipelError(f"key = {key!r}: give 64 hexadecimal digits, a site's public key.")
        members = self.members
        if members.get(name, public) != public:
            raise ArchipelError(f"{name} has another key here; give another name.")
        if any(known == public and other != name for other, known in members.items()):
            raise ArchipelError(f"the key of {name} is another member's; each has its own.")
        about = self.about
        kept = {other: known.hex() for other, known in members.items()} | {name: public.hex()}
        self._write({**about, "members": kept})

    def first(self, about: bytes) -> bool:
        """Write down that a batch is answered, before it is; False if one of its round was."""
        line = digest(about).hex()
        path = self.path / _ANSWERED
        if path.exists() and line in path.read_text().split():
            return False
        with path.open("a") as file:
            file.write(f"\n{line}\n")  # whoever was killed here may have left half a line
            file.flush()
            os.fsync(file.fileno())
        return True


async def serve(
    folder: ShufflerFolder,
    ready: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Answer batches until cancelled."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder.path / _CERTIFICATE, folder.path / _TLS)
    turns, one_by_one = asyncio.Semaphore(_AT_ONCE), asyncio.Lock()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with turns, asyncio.timeout(_PATIENCE):
                size = int.from_bytes(await reader.readexactly(8), "big")
                if size > MOST:
                    reply = answer(f"a batch of {size} bytes: {MOST} are the most.")
                else:
                    content = await reader.readexactly(size)
                    async with one_by_one:  # so that no round is answered twice
                        reply = await asyncio.to_thread(_replied, folder, content, say)
                writer.write(len(reply).to_bytes(8, "big") + reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # whoever asked is gone, and may ask again
        finally:
            writer.close()

    place = folder.place
    server = await asyncio.start_server(converse, None, place.port, ssl=context)
    async with server:
        ready()
        await server.serve_forever()


def _replied(folder: ShufflerFolder, content: bytes, say: Callable[[str], None]) -> bytes:
    members = folder.members  # who was admitted since counts as well
    at_work = Shuffler(folder.private, members.values(), folder.least, folder.first)
    try:
        batch = read(content)
        found = at_work.shuffled(batch)
    except ArchipelError as error:
        say(f"refused: {error}")
        return answer(str(error))
    say(f"shuffled {len(found)} reports of {len(found[0])} bytes")
    return answer(found)
