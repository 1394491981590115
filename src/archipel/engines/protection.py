# SPDX-License-Identifier: Apache-2.0
"""A promise of privacy as engines keep it: what goes around the algorithm, and around its wire."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.data.federation import Federation
from archipel.engines.party import LocalParty
from archipel.engines.plan import threads
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Message, examine
from archipel.exchange.boxes import Boxes
from archipel.exchange.statistics import averages
from archipel.models.clipped import Clipping, clipping
from archipel.models.model import Model
from archipel.privacy import grid, party, record
from archipel.privacy.promise import Kept, Privacy
from archipel.privacy.sources import System
from archipel.rng import Ints
from archipel.wire.wire import Wire

Messages = tuple[Message, ...]

_TRIED = 16  # points on which ways to clip are compared
_ROUNDS = 8  # that are tried, to see whether each asks the same


@dataclass(frozen=True)
class Protection:
    """What keeps a promise."""

    kept: Kept
    inside: Callable[[Boxes], Boxes]  # around the algorithm itself
    outside: Callable[[Boxes, Messages], Boxes]  # around all that is around it, with its messages
    clipping: Clipping | None = None  # of gradients of single records

    @property
    def rows(self) -> dict[int, int]:
        """Rows of correlated noise that each party uses in a round; empty where it uses none."""
        if self.kept.promise.unit == "party":
            return {}
        each = ((k, use) for k, uses in self.kept.uses.items() for use in uses)
        return {k: use.draws for k, use in each if use.correlation is not None}


@dataclass(frozen=True)
class Setting:
    """A study as its promise needs to know it."""

    data: Federation
    model: Model
    seed: int
    ids: Ints  # parties that may take part
    cohort: int  # of a round
    rounds: int
    most: int  # rounds that a party takes part in, at most
    parties: int | None = None  # of the study, about; `ids` are all of them unless given
    separation: int = 1  # rounds from one that a party takes part in to the next, at least


def protection(
    promise: Privacy, boxes: Boxes, setting: Setting, wire: Wire, noise: party.Noise
) -> Protection:
    """Plan what keeps a promise, and find its noise; `noise` is the server's."""
    with threads(1):
        if promise.unit == "record":
            return _by_record(promise, boxes, setting)
        return _by_party(promise, boxes, setting, wire, noise)


def _by_record(promise: Privacy, boxes: Boxes, setting: Setting) -> Protection:
    """Try a round without records at one party of each size, and find the noise for all."""
    data, model, ids = setting.data, setting.model, setting.ids
    parties = setting.parties or len(ids)
    sizes = data.n[ids].numpy()
    record.check_delta(promise.delta, int(sizes.max()), "a party", "records")
    way = clipping(model, data.x[:_TRIED], data.y[:_TRIED])
    rounds = range(min(setting.rounds, _ROUNDS))
    record.check_steady(boxes, [_one(setting, 0, t) for t in rounds], model.w.clone(), len(ids))
    found = {
        int(n): record.asked(boxes, _one(setting, int(k)), model.w.clone(), parties)
        for n, k in zip(*np.unique(sizes, return_index=True), strict=True)
    }
    asked = {int(k): found[int(n)] for k, n in zip(ids, sizes, strict=True)}
    uses = {
        k: record.uses_of(asked[k], int(n))
        if promise.correlated is None
        else record.in_order(boxes.name, promise.correlated, asked[k], int(n), setting.most)
        for k, n in zip(asked, sizes, strict=True)
    }
    kept = Kept.planned(promise, "add_or_remove", uses, setting.most)
    return Protection(kept, partial(record.behind_door, kept=kept, found=asked), _same, way)


def _by_party(
    promise: Privacy, boxes: Boxes, setting: Setting, wire: Wire, noise: party.Noise
) -> Protection:
    for field, value in (("rule", wire.rule), ("sum", wire.sum)):
        if value is not None:
            raise ArchipelError(
                f'privacy.unit = "party", wire.{field} = {value!r}: how far one party moves what '
                f"comes of it is not known; leave wire.{field} out."
            )
    model = setting.model
    if promise.trust == "nobody" and len(model.running) and averages(boxes, model):
        raise ArchipelError(
            'privacy.trust = "nobody", model.statistics = "averaged": BatchNorm\'s means and '
            'variances would leave without noise; say model.statistics = "own", or use GroupNorm.'
        )
    record.check_delta(promise.delta, setting.parties or len(setting.ids), "the study", "parties")
    messages = len(examine(boxes, _one(setting, 0), setting.model.w.clone(), 2).messages)
    party.check_messages(promise, boxes.name, messages)
    kept = party.planned(
        promise, messages, setting.ids.tolist(), setting.cohort, setting.rounds, setting.most,
        setting.separation,
    )  # fmt: skip
    return Protection(
        kept,
        partial(party.bounded, kept=kept),
        partial(party.summed, kept=kept, noise=noise, cohort=setting.cohort),
    )


def _one(setting: Setting, at: int, t: int = 0) -> Any:
    """One party, as an algorithm is tried on it."""
    data, model = setting.data, setting.model
    buffers = model.buffers[None].clone() if model.buffer_spec.size else None
    return LocalParty(
        data, model, model.one, setting.ids[[at]], setting.seed, t, (), buffers=buffers,
        draws=model.one.draws(data.x[:2]), mixing=lambda x, coded=None: x,
    )  # fmt: skip


def _same(boxes: Boxes, messages: Messages) -> Boxes:
    return boxes


def simulated(seed: int) -> party.Noise:
    """The server's noise in a simulation: drawn from the seed, it hides nothing."""

    def noise(values: Tensor, purpose: str, t: int) -> Tensor:
        key = rng.key(seed, t, f"server noise {purpose}") >> 1
        drawn = torch.empty_like(values).normal_(generator=torch.Generator().manual_seed(key))
        return values + drawn

    return noise


def protecting() -> party.Noise:
    """The server's noise between institutions: of the operating system's, on a grid."""
    source = System()

    def noise(values: Tensor, purpose: str, t: int) -> Tensor:
        return grid.gaussian(values.double(), 1.0, source).to(values.dtype)

    return noise
