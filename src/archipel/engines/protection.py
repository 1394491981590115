# SPDX-License-Identifier: Apache-2.0
"""A promise of privacy as engines keep it: what goes around the algorithm, and around its wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.aggregation import SUMS
from archipel.aggregation.shuffled import ShuffledSum
from archipel.aggregation.summation import Hiding, check_parties
from archipel.data.federation import Federation
from archipel.engines.party import LocalParty
from archipel.engines.plan import threads
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Message, examine
from archipel.exchange.boxes import Boxes
from archipel.exchange.statistics import averages
from archipel.models.clipped import Clipping, Norm, clipping
from archipel.models.model import Model
from archipel.privacy import grid, party, record
from archipel.privacy.checks import check_delta_among
from archipel.privacy.encoding import Share, counted
from archipel.privacy.noisy_sum import SharedNoise, Unweighted, in_shares
from archipel.privacy.promise import Kept, Privacy
from archipel.privacy.sources import System
from archipel.rng import Ints
from archipel.tree import Tree, leaves
from archipel.wire.wire import Wire

Messages = tuple[Message, ...]

_TRIED = 16  # points on which ways to clip are compared
_MANY = 1024  # parties in a sum between institutions, at most
_ROUNDS = 8  # that are tried, to see whether each asks the same


@dataclass(frozen=True)
class Protection:
    """What keeps a promise."""

    kept: Kept
    inside: Callable[[Boxes], Boxes]  # around the algorithm itself
    outside: Callable[[Boxes, Messages], Boxes]  # around all that is around it, with its messages
    clipping: Clipping | None = None  # of gradients of single records
    least: int = 0  # parties of every sum, where each adds a share of noise
    epsilon0: float = 0.0  # of every report, where these are shuffled

    def on(self, wire: Wire) -> Wire:
        """The study's wire, whose sums are not of fewer parties than noise was planned for."""
        how: Any = wire.sum
        if self.epsilon0:
            found = replace(how, epsilon0=self.epsilon0, clip=self.kept.promise.first_clip)
            return replace(wire, sum=found)
        return replace(wire, sum=replace(how, least=self.least)) if self.least else wire

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
    sites: bool = False  # whether it is between institutions: a cohort's size is not known ahead


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
    wakes = record.check_clock(promise, boxes)
    data, model, ids = setting.data, setting.model, setting.ids
    parties = setting.parties or len(ids)
    sizes = data.n[ids].numpy()
    check_delta_among("privacy.delta", promise.delta, int(sizes.max()), "a party", "records")
    norm: Norm = 1 if promise.mechanism == "laplace" else 2
    way = clipping(model, data.form.x[:_TRIED], data.form.y[:_TRIED], norm=norm)
    rounds = range(min(setting.rounds, _ROUNDS))
    record.check_steady(boxes, [_one(setting, 0, t) for t in rounds], model.w.clone(), len(ids))
    found = {
        int(n): record.asked(boxes, _one(setting, int(k)), model.w.clone(), parties)
        for n, k in zip(*np.unique(sizes, return_index=True), strict=True)
    }
    if promise.spent == "propagate":
        record.check_propagates(boxes, found[int(sizes[0])])
    asked = {int(k): found[int(n)] for k, n in zip(ids, sizes, strict=True)}
    uses = {
        k: record.uses_of(asked[k], int(n), promise.mechanism)
        if promise.correlated is None
        else record.in_order(boxes.name, promise.correlated, asked[k], int(n), setting.most)
        for k, n in zip(asked, sizes, strict=True)
    }
    sampled = any(use.rate < 1 for each in uses.values() for use in each)
    if promise.neighbours == "replace" and sampled:
        raise ArchipelError(
            f'privacy.neighbours = "replace": {boxes.name} takes gradients of samples, which are '
            "counted by adding or removing a record; take all of a party's data in each, or leave "
            "neighbours out."
        )
    most = (promise.wakes or setting.rounds) if wakes else setting.most
    kept = Kept.planned(promise, promise.neighbours, uses, most, wakes=wakes)
    return Protection(kept, partial(record.behind_door, kept=kept, found=asked), _same, way)


def _by_party(
    promise: Privacy, boxes: Boxes, setting: Setting, wire: Wire, noise: party.Noise
) -> Protection:
    if wire.rule is not None:
        raise ArchipelError(
            f'privacy.unit = "party", round.rule = {wire.rule!r}: how far one party moves what '
            "comes of it is not known; leave round.rule out."
        )
    if wire.sum is not None and promise.trust not in ("sum", "shuffler"):
        trust = "shuffler" if isinstance(wire.sum, ShuffledSum) else "sum"
        keeps = trust == "shuffler" or isinstance(wire.sum, Hiding)
        raise ArchipelError(
            f'privacy.trust = "{promise.trust}", wire.sum = "{_written(wire.sum)}": its noise is '
            "not made for this sum; "
            + (f'say privacy.trust = "{trust}", or ' if keeps else "")
            + "leave wire.sum out."
        )
    model = setting.model
    if promise.trust != "server" and len(model.running) and averages(boxes, model):
        raise ArchipelError(
            f'privacy.trust = "{promise.trust}", model.statistics = "averaged": BatchNorm\'s means '
            'and variances would leave without noise; say model.statistics = "own", or use '
            "GroupNorm."
        )
    parties = setting.parties or len(setting.ids)
    check_delta_among("privacy.delta", promise.delta, parties, "the study", "parties")
    forms = [
        message.upload
        for message in examine(boxes, _one(setting, 0), setting.model.w.clone(), 2).messages
    ]
    party.check_messages(promise, boxes.name, len(forms))
    if promise.trust == "sum":
        least, shares = _shares(promise, forms, setting, wire)
        kept = in_shares(promise, shares, setting.ids.tolist(), setting.most)
        inside = partial(_in_sum, kept=kept, forms=forms, shares=shares, least=least)
        return Protection(kept, inside, _same, least=least)
    if promise.trust == "shuffler":
        kept = party.in_reports(
            promise, _reports(setting, wire), len(forms), setting.ids.tolist(), setting.most
        )
        return Protection(
            kept, partial(_unweighted, kept=kept), _same,
            epsilon0=1 / next(iter(kept.noise.values())),  # the same at every party
        )  # fmt: skip
    kept = party.planned(
        promise, len(forms), setting.ids.tolist(), setting.cohort, setting.rounds, setting.most,
        setting.separation,
    )  # fmt: skip
    return Protection(
        kept,
        partial(party.bounded, kept=kept),
        partial(party.summed, kept=kept, noise=noise, cohort=setting.cohort),
    )


def _shares(
    promise: Privacy, forms: Sequence[Tree], setting: Setting, wire: Wire
) -> tuple[int, list[Share]]:
    """The fewest parties of a sum, and the share of noise that each adds to each message."""
    how = wire.sum
    if not isinstance(how, Hiding):
        raise ArchipelError(
            f'privacy.trust = "sum", wire.sum = "{_written(how)}": it shows single uploads, or '
            'does not say of how few it tells the sum; say wire.sum = "secure", or '
            'trust = "nobody".'
        )
    if wire.up:
        raise ArchipelError(
            f'privacy.trust = "sum", wire.up: {type(wire.up[0]).__name__} comes before the clip '
            "and the noise of a sum, whose integers are as short as privacy.bits says; leave "
            "wire.up out."
        )
    if setting.sites:
        if promise.honest is None:
            raise ArchipelError(
                'privacy.trust = "sum": between institutions say of how many parties in every sum '
                "the noise can be counted on, such as privacy.honest = 3."
            )
        least, honest, most = promise.honest + 1, promise.honest, _MANY
    else:
        check_parties(how, setting.cohort)
        most, least = setting.cohort, how.fewest(setting.cohort)
        honest = promise.honest or counted(least, how.colluders(most))
        least = max(least, honest + 1)
        if least > most:
            raise ArchipelError(
                f"privacy.honest = {honest}: a round has {most} parties, of whom each knows its "
                f"own noise; give {most - 1} at most."
            )
    sizes = [sum(leaf.numel() for leaf in leaves(form)) for form in forms]
    if not all(sizes):
        raise ArchipelError(
            'privacy.trust = "sum": the algorithm sends a message without numbers, which no sum '
            "can be of; take another one."
        )
    return least, [
        Share(promise.shares, promise.first_clip, size, most, honest, promise.bits)
        for size in sizes
    ]


def _reports(setting: Setting, wire: Wire) -> int:
    """Reports that hide each other in every sum."""
    how = wire.sum
    if not isinstance(how, ShuffledSum):
        raise ArchipelError(
            f'privacy.trust = "shuffler", wire.sum = "{_written(how)}": no reports are '
            'shuffled; say wire.sum = "shuffled".'
        )
    if how.epsilon0 is not None:
        raise ArchipelError(
            f'privacy.trust = "shuffler", wire.sum: epsilon0 = {how.epsilon0:g} is found for '
            "privacy.epsilon; leave it out."
        )
    if not setting.sites and setting.cohort < how.least:
        raise ArchipelError(
            f"wire.sum: least = {how.least} reports hide each other, and a round has "
            f"{setting.cohort} parties; take more parties, or say shuffled:least={setting.cohort}."
        )
    return how.reports


def _written(how: object) -> str:
    """A sum as a study writes it."""
    names = {cls: name for name, cls in SUMS.items()}
    return "plain" if how is None else names.get(type(how), type(how).__name__)


def _unweighted(boxes: Boxes, kept: Kept) -> Boxes:
    return Unweighted(party.bounded(boxes, kept))


def _in_sum(
    boxes: Boxes, kept: Kept, forms: Sequence[Tree], shares: Sequence[Share], least: int
) -> Boxes:
    noise = next(iter(kept.noise.values()))  # the same at every party
    return SharedNoise(party.bounded(boxes, kept), forms, shares, noise, least)


def _one(setting: Setting, at: int, t: int = 0) -> Any:
    """One party, as an algorithm is tried on it."""
    data, model = setting.data, setting.model
    buffers = model.buffers[None].clone() if model.buffer_spec.size else None
    return LocalParty(
        data, model, model.one, setting.ids[[at]], setting.seed, t, (), buffers=buffers,
        draws=model.one.draws(data.form.x[:2]), mixing=lambda x, coded=None: x,
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
