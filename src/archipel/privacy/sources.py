# SPDX-License-Identifier: Apache-2.0
"""Where noise gets its random bits: words of 64 bits, each used once, a source per party.

`System` is for noise that protects people: AES-256 in counter mode under a key of the operating
system's. `secret` is the same stream under a key that a party keeps, so that after a crash it draws
the noise that it drew before, and no other. `Simulated` draws from a study's seed: everybody who
has the study can draw the same and subtract it, and the source says so (`protects`).

What is said of noise elsewhere holds against whoever cannot tell AES-256-CTR from random bits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from archipel import rng
from archipel.errors import ArchipelError
from archipel.rng import Keys

_ZEROS = memoryview(bytes(1 << 18))  # what is encrypted: the key stream itself comes out


class Source(Protocol):
    """One party's random words."""

    @property
    def protects(self) -> bool:
        """Whether nobody else can draw the same words."""
        ...

    def words(self, count: int) -> Keys:
        """The next `count` words, uniform and independent, uint64 `[count]`."""
        ...


class Keystream:
    """AES-256-CTR under a key of 32 bytes that is used for this one stream.

    >>> bool((Keystream(bytes(32)).words(4) == Keystream(bytes(32)).words(4)).all())
    True
    """

    protects = True

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ArchipelError(f"key of {len(key)} bytes: give 32 secret bytes.")
        self._encrypt = Cipher(AES256(key), CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Keys:
        size, most = 8 * count, len(_ZEROS)
        lengths = [min(most, size - at) for at in range(0, size, most)]
        drawn = b"".join(self._encrypt.update(_ZEROS[:length]) for length in lengths)
        return np.frombuffer(drawn, "<u8").astype(np.uint64, copy=False)


class System:
    """Words of the operating system's generator; a process that is forked gets its own."""

    protects = True

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process, self._stream = os.getpid(), Keystream(os.urandom(32))

    def words(self, count: int) -> Keys:
        if os.getpid() != self._process:  # else parent and child would draw the same noise
            self._begin()
        return self._stream.words(count)


def secret(key: bytes, purpose: str | bytes) -> Keystream:
    """The stream of a party's secret for one purpose: the same again after a crash."""
    if len(key) != 32:
        raise ArchipelError(f"secret of {len(key)} bytes: give the party's 32 secret bytes.")
    name = purpose.encode() if isinstance(purpose, str) else purpose
    return Keystream(blake2b(name, key=key, digest_size=32, person=b"archipel noise").digest())


@dataclass
class Simulated:
    """Words of (seed, round, party, purpose): for simulations, since a seed is not a secret."""

    seed: int
    round: int
    party: int
    purpose: str
    protects: bool = field(default=False, init=False)
    _calls: int = field(default=0, init=False)

    def words(self, count: int) -> Keys:
        base = rng.key(self.seed, self.round, f"noise {self.purpose}")
        mine = rng.keys(base, np.array([self.party]))
        stream = rng.subkeys(mine, np.array([self._calls]))  # each call has a stream of its own
        self._calls += 1
        drawn: Keys = rng.words(stream, count)[0]
        return drawn
