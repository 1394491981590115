# SPDX-License-Identifier: Apache-2.0
"""Who sends a message, as both of its ends know it: so that both can draw the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.core import Party, Vector
from archipel.errors import ArchipelError
from archipel.rng import Ints, Keys


@dataclass(frozen=True)
class Sender:
    """The parties of a stack in one message of a round; at the party's end, its door as well."""

    seed: int  # the study's: no secret
    round: int
    number: int  # of the message in the round, from 0
    ids: Ints  # [m]
    lead: tuple[int, ...] = ()  # of the vectors: () one party, (m,) a stack, (s, m) a sweep
    me: Party | None = None  # None at the other end
    step: int = 0  # of the wire, where one draws: others draw other numbers
    layers: Sequence[int] = ()  # of the model, which each matrix of the message is; -1 for none

    def uniform(self, size: int, purpose: str, common: bool = False) -> Tensor:
        """Numbers in [0, 1), `[..., size]`: the same at both ends, and of no use as a secret.

        Every party has its own or, with `common`, all parties of the round the same.
        """
        places = np.arange(size)
        drawn = rng.uniform(rng.subkeys(self._keys(purpose, common)[:, None], places[None]))
        return self._each(torch.from_numpy(drawn), common)

    def bytes(self, size: int, purpose: str, common: bool = False) -> Tensor:
        """Random bytes, `uint8 [..., size]`, in the same way; many are drawn in little time."""
        words = rng.words(self._keys(purpose, common), -(-size // 8))
        rows = words.astype("<u8", copy=False).view(np.uint8)[:, :size]
        return self._each(torch.from_numpy(rows), common)

    def _keys(self, purpose: str, common: bool) -> Keys:
        base = rng.key(self.seed, self.round, f"wire {self.number} {self.step} {purpose}")
        return rng.keys(base, np.array([-1]) if common else self.ids)

    def _each(self, rows: Tensor, common: bool) -> Tensor:
        """Rows as the vectors of the stack are; alike across a sweep."""
        if common:
            return rows[0]
        if len(rows) == 1:  # one party, or the server, which draws the same for all its replies
            return rows[0].expand(*self.lead, -1)
        return rows.view(*self.lead[-1:], -1).expand(*self.lead, -1)

    def noise(self, like: Vector) -> Vector:
        """Standard normal noise that protects people: `me.noise`."""
        if self.me is None:
            raise ArchipelError("noise is added by the party that sends, in `send`.")
        flat = like.reshape(*self.lead, -1)
        return self.me.noise(flat).reshape(like.shape)
