# SPDX-License-Identifier: Apache-2.0
"""What a peer holds of its neighbours' vectors, to which it adds the changes that they send.

A copy is named by the digest of its bytes. A change says which copy it is a change of, and is added
to no other: whoever missed one, was restored from an older disk, or has never met the other end is
sent the vector itself. A question also says which copy of the other end's vector the asker has, so
that the answer is of use to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from archipel.engines.network.bounds import LARGEST, tame
from archipel.engines.network.coding import Coding
from archipel.engines.network.exchanges import Exchange
from archipel.engines.network.letters import Letter, digest
from archipel.engines.network.liveness import Words
from archipel.engines.network.transport import Refused
from archipel.errors import ArchipelError
from archipel.tree import nbytes


class Unheld(ArchipelError):
    """A change of a copy that is not held here."""


class Copy(NamedTuple):
    x: Tensor
    name: bytes

    @classmethod
    def of(cls, x: Tensor) -> Copy:
        return cls(x.detach().clone(), digest(x))


class Copies:
    """Vectors of other peers, by peer and number of the exchange in a round."""

    def __init__(self, party: int, words: Words, coding: Coding) -> None:
        self._party, self._words, self._coding = party, words, coding
        self._held: dict[tuple[int, int], Copy] = {}  # of the party itself: what all began with
        self._given: dict[tuple[int, int], bytes] = {}  # what others have of this peer, by name
        self._restored = False  # then that is not known of all

    def begin(self, number: int, held: Tensor | None) -> bytes | None:
        """Name what neighbours should hold; all peers begin with the same."""
        if held is None:
            return None
        if (self._party, number) not in self._held:
            self._held[self._party, number] = Copy.of(held)
        return digest(held)

    def keep(self, exchange: Exchange, got: Mapping[int, Tensor]) -> None:
        """These neighbours' vectors are now these, and they have this peer's."""
        if exchange.base is None:
            return
        name = digest(exchange.x)
        for j, x in got.items():
            self._held[j, exchange.at[1]] = Copy.of(x)
            self._given[j, exchange.at[1]] = name

    def _copy(self, j: int, number: int) -> Copy:
        return self._held.get((j, number)) or self._held[self._party, number]

    # -- letters -----------------------------------------------------------------------------------

    def question(self, exchange: Exchange, i: int, whole: bool = False) -> Letter:
        """What is sent to the lower end of an edge."""
        number, base = exchange.at[1], exchange.base
        if base is None:
            return self._words.vector(exchange.at, *exchange.sent)
        first = base if self._restored else self._held[self._party, number].name
        missed = self._given.get((i, number), first) != base
        return self._letter(exchange, i, whole or missed, self._copy(i, number).name)

    def answer(self, exchange: Exchange, j: int, holds: bytes | None) -> Letter:
        """What is sent back to the higher end, which holds such a copy."""
        if exchange.base is None:
            return self._words.vector(exchange.at, *exchange.sent)
        return self._letter(exchange, j, holds != exchange.base)

    def _letter(
        self, exchange: Exchange, j: int, whole: bool, holds: bytes | None = None
    ) -> Letter:
        arrays = [exchange.x] if whole else exchange.sent
        exchange.went.setdefault(j, {})[whole] = nbytes(tuple(arrays))
        base = None if whole else exchange.base
        return self._words.vector(exchange.at, *arrays, base=base, holds=holds)

    def read(self, j: int, letter: Letter, exchange: Exchange) -> Tensor:
        """The vector in a letter of peer j, without what the wire did to it."""
        base, number, like = letter.fields.get("base"), exchange.at[1], exchange.x
        whole = exchange.base is not None and base is None
        arrays = self._words.read(j, letter, like if whole else self._coding.form(number, like))
        if exchange.base is None:
            return self._coding.undone(j, exchange.at, arrays, like)
        exchange.came.setdefault(j, {})[whole] = nbytes(tuple(letter.arrays))
        if whole:
            return arrays[0].clone()
        copy = self._copy(j, number)
        if base != copy.name:
            raise Unheld("a change of another copy than is held here.")
        x = copy.x + self._coding.undone(j, exchange.at, arrays, like)
        if not tame([x]):
            raise Refused(f"a vector with numbers that are not finite, or beyond {LARGEST:g}.")
        return x

    # -- what survives the process -----------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return {f"copy-{j}-{number}": copy.x for (j, number), copy in self._held.items()}

    def restore(self, own: Mapping[str, Tensor]) -> None:
        for name, x in own.items():
            self._restored = True
            if name.startswith("copy-"):
                j, number = map(int, name.removeprefix("copy-").split("-"))
                self._held[j, number] = Copy.of(x)
