# SPDX-License-Identifier: Apache-2.0
"""Where noise gets its random bits: words of 64 bits, each used once, of one party or of a stack.

`System` is for noise that protects people: AES-256 in counter mode under a key of the operating
system's. `secret` is the same stream under keys that parties keep, so that after a crash a party
draws the noise that it drew before, and no other. `Simulated` draws from a study's seed: whoever
has the study can draw the same and subtract it, and the source says so (`protects`).

What is said of noise elsewhere holds against whoever cannot tell AES-256-CTR from random bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from archipel import rng
from archipel.errors import ArchipelError
from archipel.rng import Ints, Keys

_ZEROS = memoryview(bytes(1 << 18))  # what is encrypted: the key stream itself comes out


class Source(Protocol):
    """Random words of m parties. What one is given does not depend on what others ask for."""

    @property
    def protects(self) -> bool:
        """Whether nobody else can draw the same words."""
        ...

    @property
    def parties(self) -> int:
        """How many there are: m."""
        ...

    def words(self, counts: Ints) -> Keys:
        """The next counts[i] words of each party, `[m] -> [sum counts]`, uint64 and uniform."""
        ...


class Keystream:
    """AES-256-CTR under one key of 32 bytes per party, which is used for this alone.

    >>> four = np.array([4])
    >>> bool((Keystream(bytes(32)).words(four) == Keystream(bytes(32)).words(four)).all())
    True
    """

    protects = True

    def __init__(self, *keys: bytes) -> None:
        for key in keys:
            if len(key) != 32:
                raise ArchipelError(f"key of {len(key)} bytes: give 32 secret bytes.")
        self._ciphers = [Cipher(AES256(key), CTR(bytes(16))).encryptor() for key in keys]
        self.parties = len(keys)

    def words(self, counts: Ints) -> Keys:
        drawn = b"".join(
            self._ciphers[party].update(_ZEROS[: min(len(_ZEROS), size - at)])
            for party in np.flatnonzero(counts).tolist()
            for size in (8 * int(counts[party]),)
            for at in range(0, size, len(_ZEROS))
        )
        return np.frombuffer(drawn, "<u8").astype(np.uint64, copy=False)


class System:
    """Words of the operating system's generator; a process that is forked gets its own."""

    protects = True

    def __init__(self, parties: int = 1) -> None:
        self.parties = parties
        self._begin()

    def _begin(self) -> None:
        self._process, self._stream = os.getpid(), Keystream(os.urandom(32))

    def words(self, counts: Ints) -> Keys:
        if os.getpid() != self._process:  # else parent and child would draw the same noise
            self._begin()
        return self._stream.words(counts.sum(keepdims=True))  # whose is which, nobody can tell


def secret(keys: bytes | Sequence[bytes], purpose: str | bytes) -> Keystream:
    """The stream of each party's secret for one purpose: the same again after a crash."""
    each = [keys] if isinstance(keys, bytes) else keys
    name = purpose.encode() if isinstance(purpose, str) else purpose
    for key in each:
        if len(key) != 32:
            raise ArchipelError(f"secret of {len(key)} bytes: give a party's 32 secret bytes.")
    person = b"archipel noise"
    return Keystream(
        *(blake2b(name, key=key, digest_size=32, person=person).digest() for key in each)
    )


@dataclass
class Simulated:
    """Words of (seed, round, party, purpose): for simulations, since a seed is not a secret."""

    seed: int
    round: int
    ids: Sequence[int] | Ints
    purpose: str
    protects: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        base = rng.key(self.seed, self.round, f"noise {self.purpose}")
        self._keys = rng.keys(base, np.asarray(self.ids, np.int64))
        self._calls = np.zeros(self.parties, np.int64)

    @property
    def parties(self) -> int:
        return len(self.ids)

    def words(self, counts: Ints) -> Keys:
        asked = np.flatnonzero(counts)
        streams = rng.subkeys(self._keys[asked], self._calls[asked])  # a new one at each call
        self._calls[asked] += 1
        counts = counts[asked]
        longest = int(counts.max(initial=0))
        drawn = rng.words(streams, longest)
        if bool((counts == longest).all()):
            return drawn.reshape(-1)
        mine: Keys = drawn[np.arange(longest) < counts[:, None]]
        return mine
