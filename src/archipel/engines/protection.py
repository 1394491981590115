# SPDX-License-Identifier: Apache-2.0
"""A promise of privacy by record, as engines keep it: what is asked of whom, and the noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from archipel.data.federation import Federation
from archipel.engines.party import LocalParty
from archipel.engines.plan import threads
from archipel.exchange.boxes import Boxes
from archipel.models.clipped import Clipping, clipping
from archipel.models.model import Model
from archipel.privacy.door import Size
from archipel.privacy.promise import Kept, Privacy
from archipel.privacy.record import asked, behind_door, check_records, uses_of
from archipel.rng import Ints

_TRIED = 16  # points on which ways to clip are compared


@dataclass(frozen=True)
class Protection:
    """What stands between an algorithm and the records of parties."""

    kept: Kept
    clipping: Clipping
    asked: dict[int, dict[Size, tuple[int, int]]]  # of each party in a round

    @classmethod
    def of(
        cls,
        promise: Privacy,
        boxes: Boxes,
        data: Federation,
        model: Model,
        seed: int,
        ids: Ints,
        rounds: int,
    ) -> Protection:
        """Try a round without records at one party of each size, and find the noise for all.

        `rounds` are those that a party takes part in, at most.
        """
        sizes = data.n[ids].numpy()
        check_records(promise.delta, sizes)
        way = clipping(model, data.x[:_TRIED], data.y[:_TRIED])
        by_size = {}
        with threads(1):
            for n, k in zip(*np.unique(sizes, return_index=True), strict=True):
                me = LocalParty(data, model, model.one, ids[[k]], seed, 0, (), mixing=_alone)
                by_size[int(n)] = asked(boxes, me, model.w.clone(), len(ids))  # type: ignore[arg-type]
        found = {int(k): by_size[int(n)] for k, n in zip(ids, sizes, strict=True)}
        uses = {k: uses_of(found[k], int(n)) for k, n in zip(found, sizes, strict=True)}
        return cls(Kept.planned(promise, uses, rounds), way, found)

    def around(self, boxes: Boxes) -> Boxes:
        """The algorithm behind the private door."""
        return behind_door(boxes, self.kept, self.asked)


def _alone(x: object, coded: object = None) -> object:
    return x
