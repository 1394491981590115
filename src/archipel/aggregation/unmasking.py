# SPDX-License-Identifier: Apache-2.0
"""The server's side of a secure sum: whose shares go to whom, and what unmasks the sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.aggregation import shamir
from archipel.aggregation.keys import KeyPair
from archipel.aggregation.masks import Words, mask
from archipel.aggregation.roster import Roster, committed
from archipel.errors import ArchipelError, BelowQuorum
from archipel.signing import SIGNATURE

Bytes = NDArray[np.uint8]


class Routes:
    """Who holds shares of whom, among those who shared."""

    def __init__(self, shared: Sequence[int], held_by: Tensor, sealed: Tensor, masked: int) -> None:
        """A row of each: those who hold its shares, the first of whom it masks with; what is sealed
        for them.
        """
        self.shared, self._masked = list(shared), masked
        self._held_by = dict(zip(self.shared, held_by.tolist(), strict=True))
        self._sealed = sealed.numpy()
        self._of: dict[int, list[tuple[int, int]]] = {u: [] for u in self.shared}
        for at, v in enumerate(self.shared):  # who holds, of whom, in which of its rows
            for row, u in enumerate(self._held_by[v]):
                if u in self._of:
                    self._of[u].append((at, row))

    def check(self, there: Sequence[int], threshold: int) -> None:
        """Give the round up where too few are left who hold somebody's shares."""
        here = set(there)
        for v, held_by in self._held_by.items():
            left = len(here.intersection(held_by))
            if left < threshold:
                raise BelowQuorum(
                    f"wire.sum: {left} of those who hold shares of party {v}'s keys are left, and "
                    f"{threshold} are needed."
                )

    def incoming(self) -> tuple[Tensor, Tensor]:
        """For each who shared: of whom it holds shares, and these, sealed for it."""
        most = max(map(len, self._of.values()))
        senders = np.full((len(self.shared), most), -1, np.int64)
        sealed = np.zeros((len(self.shared), most, self._sealed.shape[-1]), np.uint8)
        for i, u in enumerate(self.shared):
            for j, (at, row) in enumerate(self._of[u]):
                senders[i, j], sealed[i, j] = self.shared[at], self._sealed[at, row]
        return torch.from_numpy(senders), torch.from_numpy(sealed)

    def signatures(self, there: Sequence[int], signed: Bytes) -> tuple[Tensor, Tensor]:
        """For each who is there: which of those who hold its shares signed, and how."""
        place = {u: i for i, u in enumerate(there)}
        found = [[place[v] for v in self._held_by[u] if v in place] for u in there]
        most = max(map(len, found))
        signers = np.full((len(there), most), -1, np.int64)
        signatures = np.zeros((len(there), most, SIGNATURE), np.uint8)
        for i, rows in enumerate(found):
            signers[i, : len(rows)] = [there[row] for row in rows]
            signatures[i, : len(rows)] = signed[rows]
        return torch.from_numpy(signers), torch.from_numpy(signatures)

    def unmask(
        self, words: Words, told: Mapping[int, Bytes], stayed: Sequence[int], threshold: int,
        roster: Roster,
    ) -> None:  # fmt: skip
        """Take the masks out of a sum that are still in it: own ones, and those of the lost.

        `told` are the shares that each party reveals, a row of each whose shares it holds.
        """
        shares, survivors = self._revealed(told), set(stayed)
        plus, minus = list[bytes](), list[bytes]()
        for v in self.shared:
            if len(shares[v]) < threshold:
                raise BelowQuorum(
                    f"wire.sum: {len(shares[v])} parties told their shares of party {v}'s, and "
                    f"{threshold} are needed."
                )
            secret = shamir.join(dict(list(shares[v].items())[:threshold]))
            if v in survivors:
                if secret is None or committed(secret) != roster.commitment(v):
                    raise _wrong(v)
                minus.append(secret)
                continue
            if secret is None or (pair := KeyPair(secret)).public != roster.masks(v):
                raise _wrong(v)
            for w in self._partners(v):
                if w in survivors:
                    key = pair.agree(roster.masks(w), roster.session, "mask", sorted((v, w)))
                    (minus if w < v else plus).append(key)
        mask(words, plus, minus)

    def _revealed(self, told: Mapping[int, Bytes]) -> dict[int, dict[int, bytes]]:
        """Shares by whose they are and where: rows that begin with 1 are such."""
        found: dict[int, dict[int, bytes]] = {v: {} for v in self.shared}
        for u, rows in told.items():
            for (at, point), row in zip(self._of[u], rows, strict=False):
                if row[0] == 1:
                    found[self.shared[at]][point + 1] = row[1:].tobytes()
        return found

    def _partners(self, v: int) -> Iterator[int]:
        """Who masks with v: those it has drawn, and those who have drawn it."""
        drew = {self.shared[at] for at, row in self._of[v] if row < self._masked}
        drawn = {*self._held_by[v][: self._masked]} & self._of.keys()
        yield from sorted((drew | drawn) - {v})


def _wrong(party: int) -> ArchipelError:
    return ArchipelError(
        f"wire.sum: the shares that were told of party {party}'s key give another one than it "
        "advertised: one of those who told them lies, or the party did."
    )
