# SPDX-License-Identifier: Apache-2.0
"""Who sends a message, as both of its ends know it: so that both can draw the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.core import Party, Vector
from archipel.errors import ArchipelError
from archipel.rng import Ints


@dataclass(frozen=True)
class Sender:
    """The parties of a stack in one message of a round; at the party's end, its door as well."""

    seed: int  # the study's: no secret
    round: int
    number: int  # of the message in the round, from 0
    ids: Ints  # [m]
    lead: tuple[int, ...] = ()  # of the vectors: () one party, (m,) a stack, (s, m) a sweep
    me: Party | None = None  # None at the other end

    def uniform(self, size: int, purpose: str, common: bool = False) -> Tensor:
        """Numbers in [0, 1), `[..., size]`: the same at both ends, and of no use as a secret.

        Every party has its own or, with `common`, all parties of the round the same.
        """
        base = rng.key(self.seed, self.round, f"wire {self.number} {purpose}")
        ids = np.array([-1]) if common else self.ids
        places = np.arange(size)
        drawn = rng.uniform(rng.subkeys(rng.keys(base, ids)[:, None], places[None]))
        rows = torch.from_numpy(drawn)
        if common:
            return rows[0]
        return rows.view(*self.lead[-1:], size).expand(*self.lead, size)

    def noise(self, like: Vector) -> Vector:
        """Standard normal noise that protects people: `me.noise`."""
        if self.me is None:
            raise ArchipelError("noise is added by the party that sends, in `send`.")
        flat = like.reshape(*self.lead, -1)
        return self.me.noise(flat).reshape(like.shape)
