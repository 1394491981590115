# SPDX-License-Identifier: Apache-2.0
"""Privacy by record: what a round asks of each party's records is found by a round without any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.core import Batch, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import examine
from archipel.exchange.boxes import Around, Boxes
from archipel.privacy.correlated import Participation
from archipel.privacy.door import Door, Doored, Floats, Noised, Order, Size, rates_of
from archipel.privacy.promise import Kept, Noise, Use, Uses, correlation
from archipel.privacy.release import Poisson
from archipel.tree import Tree


class _Blank:
    """A party without records: gradients are 0, and all else is as it is."""

    def __init__(self, me: Any) -> None:
        self._me = me

    def __getattr__(self, name: str) -> Any:
        return getattr(self._me, name)

    def sampled(self, rates: Floats, draw: int) -> Batch:
        none = torch.zeros(len(rates), 0)
        return Batch(none.long(), none, torch.full((len(rates),), draw))

    def clipped(self, w: Vector, batch: Batch, clip: float) -> Vector:
        return torch.zeros_like(w)

    def noised(self, values: Tensor, purpose: str, mechanism: Noise = "gaussian") -> Tensor:
        return values

    def fuses(self, work: object, only: object) -> bool:
        return False


class _Counted(Around):
    """An algorithm behind the door, which remembers what the last round asked."""

    door: Door

    def __init__(self, inner: Boxes) -> None:
        super().__init__(inner)
        self.has_personal = self.has_predict = False  # what stays at a party does not count

    def party(self, me: Any, *states: Tree) -> Any:
        number = int(me.number.reshape(-1)[0])
        self.door = Door(_Blank(me), Noised(1.0, {number: 0.0}), self.name)
        return self.inner.party(self.door, *states)


def asked(boxes: Boxes, me: Any, w: Vector, parties: int) -> dict[Size, tuple[int, int]]:
    """What a round asks of one party's records: by size of the batches, draws and gradients."""
    counted = _Counted(boxes)
    examine(counted, me, w, parties)
    return {size: (int(used.draws[0]), used.gradients) for size, used in counted.door.used.items()}


def check_steady(boxes: Boxes, mes: Iterable[Any], w: Vector, parties: int) -> None:
    """Refuse an algorithm that asks for more in some rounds: `mes` are one party in several."""
    found = [asked(boxes, me, w, parties) for me in mes]
    if any(each != found[0] for each in found):
        raise ArchipelError(
            f'privacy.unit = "record": {boxes.name} asks more of the records in some rounds than '
            "in others, so what it costs cannot be planned; take another algorithm."
        )


def uses_of(found: Mapping[Size, tuple[int, int]], n: int, mechanism: Noise = "gaussian") -> Uses:
    """The same as an accountant counts it, of a party with n records."""
    rates = {size: float(rates_of(size, np.array([n]))[0]) for size in found}
    return tuple(
        Use(None if rates[size] >= 1 else Poisson(rates[size]), *counts, mechanism=mechanism)
        for size, counts in found.items()
    )


def in_order(
    name: str, kind: str, found: Mapping[Size, tuple[int, int]], n: int, rounds: int
) -> Uses:
    """The same where noise is correlated, in so many rounds: batches are dealt in an order."""
    if not found:
        return ()
    if len(found) > 1 or next(iter(found.values()))[1] > 1:
        raise ArchipelError(
            f'privacy.correlated = "{kind}": {name} takes several gradients of one batch, or '
            "batches of several sizes, and noise is correlated over one of each; take another "
            "algorithm, or leave correlated out."
        )
    ((size, (draws, _)),) = found.items()
    who = Participation(draws * rounds, batches_of(size, n))
    return (Use(None, draws, 1, correlation(kind, who)),)


def batches_of(size: Size, n: int) -> int:
    """Batches of an epoch over n records: S."""
    if size is None:
        return 1
    points = ceil(size * n - 1e-9) if isinstance(size, float) else size
    return -(-n // max(1, points))


def behind_door(
    boxes: Boxes, kept: Kept, found: Mapping[int, dict[Size, tuple[int, int]]]
) -> Boxes:
    """The algorithm behind the private door, with the noise that was planned."""
    orders = {
        k: Order(use.correlation.strategy, use.correlation.separation, use.draws * kept.rounds)
        for k, uses in kept.uses.items()
        for use in uses
        if use.correlation is not None
    }
    clip, mechanism = kept.promise.first_clip, kept.promise.mechanism
    return Doored(boxes, Noised(clip, dict(kept.noise), dict(found), orders or None, mechanism))
