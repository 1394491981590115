# SPDX-License-Identifier: Apache-2.0
"""What parties on one machine know of each other: identities of a run, or of a trial of a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from archipel.aggregation.keys import digest
from archipel.signing import SIGNATURE, Signer, verify


@dataclass(frozen=True)
class Trial:
    """Of a party that stands in every place of a round that is tried before the first one."""

    number: int
    session: ClassVar[bytes] = b"trial"
    least: ClassVar[int] = 0
    trial: ClassVar[bool] = True

    def sign(self, what: bytes) -> bytes:
        return bytes(SIGNATURE)

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        return True


@dataclass(frozen=True)
class Simulated:
    """Of a simulation, whose parties have keys of its seed: these hide nothing from who has it."""

    number: int
    seed: int
    least: int = 0
    trial: ClassVar[bool] = False

    @property
    def session(self) -> bytes:
        return b"simulation %d" % self.seed

    def sign(self, what: bytes) -> bytes:
        return _identity(self.seed, self.number).sign(what)

    def signed(self, by: int, signature: bytes, what: bytes) -> bool:
        return verify(_identity(self.seed, by).public, signature, what)


@lru_cache(maxsize=1 << 14)
def _identity(seed: int, number: int) -> Signer:
    return Signer(digest(b"simulated identity", b"%d" % seed, b"%d" % number))
