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
from archipel.privacy.budgeted import Budgeted
from archipel.privacy.correlated import Participation
from archipel.privacy.door import Door, Doored, Floats, Noised, Order, Size, rates_of
from archipel.privacy.promise import Kept, Noise, Privacy, Use, Uses, correlation
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

    def __init__(self, inner: Boxes) -> None:
        super().__init__(inner)
        self._doors: list[Door] = []  # of several turns, where a peer's are not all alike
        self.has_personal = self.has_predict = False  # what stays at a party does not count

    def party(self, me: Any, *states: Tree) -> Any:
        number = int(me.number.reshape(-1)[0])
        self._doors.append(Door(_Blank(me), Noised(1.0, {number: 0.0}), self.name))
        return self.inner.party(self._doors[-1], *states)

    @property
    def used(self) -> dict[Size, tuple[int, int]]:
        """The most that any of them used."""
        found: dict[Size, tuple[int, int]] = {}
        for door in self._doors if self.peer else self._doors[-1:]:
            for size, used in door.used.items():
                draws, gradients = found.get(size, (0, 0))
                found[size] = max(draws, int(used.draws[0])), max(gradients, used.gradients)
        return found


def asked(boxes: Boxes, me: Any, w: Vector, parties: int) -> dict[Size, tuple[int, int]]:
    """What a round asks of one party's records: by size of the batches, draws and gradients."""
    counted = _Counted(boxes)
    examine(counted, me, w, parties)
    return counted.used


def check_propagates(boxes: Boxes, found: Mapping[Size, tuple[int, int]]) -> None:
    """Refuse an algorithm whose wake-ups are not one gradient each, to go on with their mean."""
    if sum(draws * gradients for draws, gradients in found.values()) != 1:
        raise ArchipelError(
            f'privacy.spent = "propagate": {boxes.name} takes other than one gradient when it '
            'wakes, and the mean of one each is what it would go on with; say spent = "rest".'
        )


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
    noised = Noised(clip, dict(kept.noise), dict(found), orders or None, mechanism)
    if kept.wakes:
        return Budgeted(boxes, noised, kept.rounds, kept.promise.spent == "propagate")
    return Doored(boxes, noised)


def check_clock(promise: Privacy, boxes: Boxes) -> bool:
    """Whether parties wake by clocks of their own; refuse other turns than that and rounds."""
    if boxes.clock in ("meetings", "walk"):
        raise ArchipelError(
            f'privacy.unit = "record": parties of {boxes.name} have as many turns as others give '
            "them, and what they cost cannot be planned; take an algorithm whose parties wake by "
            'themselves (clock = "wakes"), or one in rounds.'
        )
    wakes = boxes.clock == "wakes"
    for field, own in (("wakes", None), ("spent", "rest")):
        if not wakes and (value := getattr(promise, field)) != own:
            raise ArchipelError(
                f"privacy.{field} = {value!r}: {boxes.name} runs in rounds, in which nobody wakes "
                "by itself; leave it out."
            )
    if wakes and promise.correlated is not None:
        raise ArchipelError(
            f'privacy.correlated = "{promise.correlated}": noise is correlated over rounds, and '
            f"parties of {boxes.name} wake one by one; leave it out."
        )
    return wakes
