# SPDX-License-Identifier: Apache-2.0
"""An algorithm as both ends of a study run it: on its wire, with what a round of it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.shuffled import ShuffledSum
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines import plan as planning
from archipel.engines.checks import check_bare
from archipel.engines.network.transport import Refused
from archipel.engines.party import LocalParty
from archipel.engines.protection import Protection, Setting, protection, simulated
from archipel.errors import ArchipelError
from archipel.exchange import statistics
from archipel.exchange.anatomy import Anatomy, examine
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.talk import Talk
from archipel.models.model import Model
from archipel.privacy import party as by_party
from archipel.privacy.promise import Kept, Privacy
from archipel.tree import Tree
from archipel.wire.wire import Wire

_MOST_PARTIES = 1 << 20  # of a study between sites


_SIZES = 32  # of sites, for which what they plan is found elsewhere as well
_SOME = 20  # records of a party that stands for any
_COHORT = 32  # parties of a round that is tried before the first one, at most


class Joining(Around):
    """An asynchronous algorithm: what comes after it knows the round that an upload is for."""

    def party(self, me: Any, *states: Tree) -> Any:
        talk = Talk(self.inner.party(me, *states))
        if not talk.ended:
            raise ArchipelError(
                f"algorithm.name, {self.name}: sends several messages, and between institutions "
                "an asynchronous algorithm sends one; return the upload without a yield."
            )
        _ = me.staleness  # asked for, if the algorithm did not
        return talk.said


def fitted(
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    k: int,
    seed: int,
    wire: Wire | None = None,
    parties: int = 16,
    kept_by: Protection | None = None,
    edges: int = 0,
    among: int | None = None,
) -> tuple[Boxes, Anatomy]:
    """The algorithm on the wire, and what a round of it sends, found on two points of party k.

    `parties` are those of the study, about: what grows with them is told from how it grows.
    `kept_by` is what keeps a promise of privacy, at this end. `edges` are those of a peer at most,
    in a graph that stays, `among` the parties of the study, where they are known.
    """
    buffers = model.buffers[None].clone() if model.buffer_spec.size else None
    bare = Boxes(algorithm)
    inside = bare if kept_by is None else kept_by.inside(bare)
    me = LocalParty(
        data, model, model.one, np.array([k]), seed, 0, (), buffers=buffers, limit=2, mixed=[],
        draws=model.one.draws(data.x[:2]), mixing=(lambda x, coded=None: x) if bare.peer else None,
        clipping=None if kept_by is None else kept_by.clipping, edges=edges,
        parties=among,
    )  # fmt: skip
    boxes = statistics.joined(inside, model)
    check_bare(bare, wire or Wire())
    if bare.asynchronous:
        check_asynchronous(bare, wire or Wire(), kept_by)
        boxes = Joining(boxes)
    with planning.threads(1):
        at = (me, model.w.clone(), parties, min(parties, _COHORT))
        wire = wire or Wire()
        if isinstance(wire.sum, ShuffledSum):
            wire.sum.check_shuffler()
        around, anatomy = (wire if kept_by is None else kept_by.on(wire)).fitted(boxes, *at)
        boxes = around(boxes)
        if kept_by is not None:
            boxes = kept_by.outside(boxes, anatomy.messages)
            seen = examine(boxes, *at)
            anatomy = anatomy.seen_as(seen)
    if not statistics.keep_own(bare, model):
        statistics.check_others(model, model.buffers, me.buffers)
    return boxes, anatomy


def check_asynchronous(bare: Boxes, wire: Wire, kept_by: Protection | None) -> None:
    """Refuse what cannot go with rounds in which nobody waits for anybody."""
    if bare.has_personal:
        raise ArchipelError(
            f"algorithm.name, {bare.name}: makes models of parties' own, which no asynchronous "
            "algorithm does between institutions; take a synchronous one."
        )
    if wire.sum is not None and any(getattr(step, "common", False) for step in wire.up):
        raise ArchipelError(
            f"wire.up and wire.sum: {bare.name} adds up uploads that began from several versions, "
            "and a step with common draws the same numbers for those of one; leave one of the two "
            "out."
        )
    promise = None if kept_by is None or kept_by.kept is None else kept_by.kept.promise
    if promise is not None and promise.correlated is not None:
        raise ArchipelError(
            f"privacy.correlated: noise that is correlated over rounds is planned for rounds in "
            f"their order, and {bare.name} has each party in rounds of its own pace; leave it out."
        )


def protected(
    promise: Privacy,
    algorithm: Algorithm,
    data: Federation,
    model: Model,
    ids: Sequence[int],
    *,
    seed: int,
    rounds: int | None,
    wire: Wire | None,
    parties: int,
    noise: by_party.Noise,
    separation: int = 1,
) -> Protection:
    """What keeps a promise between institutions, planned for some parties of `data`.

    Who is asked in a round follows from the study's seed, which all know: no sample hides anybody,
    and a party may be in every round, or in one of `separation` that follow each other. `noise` is
    the server's.
    """
    if rounds is None:
        raise Refused("a promise of privacy holds for a number of rounds: give rounds.")
    most = -(-rounds // separation)
    setting = Setting(
        data, model, seed, np.array(ids), len(ids), rounds, most, parties, separation, sites=True
    )
    return protection(promise, Boxes(algorithm), setting, wire or Wire(), noise)


def keepable(
    promise: Privacy,
    algorithm: Algorithm,
    like: Federation,
    model: Model,
    *,
    seed: int,
    rounds: int,
    wire: Wire | None,
) -> Protection:
    """Refuse a promise that no party could keep, whatever its data: with one that has none.

    How much noise there must be depends on the data, and is not asked.
    """
    any_noise = replace(promise, epsilon=None, noise=1.0)
    n = max(1, min(_SOME, int(0.5 / promise.delta)))
    found = protected(
        any_noise, algorithm, of_size(like, n), model, [0], seed=seed, rounds=rounds, wire=wire,
        parties=8, noise=simulated(seed),
    )  # fmt: skip
    fitted(algorithm, like, model, 0, seed, wire, 8, found)
    return found


def told_plan(
    promise: Privacy,
    algorithm: Algorithm,
    shadow: Federation,
    model: Model,
    *,
    seed: int,
    rounds: int,
    wire: Wire | None,
    separation: int = 1,
) -> Kept | None:
    """What all sites plan, as far as it can be told elsewhere: from how many records they told.

    By party it depends on nobody's records. None where a site did not tell, or cannot keep it.
    """
    how: Any = {"seed": seed, "rounds": rounds, "wire": wire, "separation": separation}
    how |= {"noise": simulated(seed)}
    if promise.unit == "party":
        ids = range(shadow.training)
        return protected(promise, algorithm, shadow, model, ids, **how, parties=len(ids)).kept
    there = torch.nonzero(shadow.n[: shadow.training] > 0)[:, 0].tolist()
    told = {k: shadow.about.counts[k] for k in there}
    sizes = {counts[0] for counts in told.values() if counts is not None}
    if None in told.values() or len(sizes) > _SIZES:
        return None
    plans = {}
    for n in sizes:
        try:
            one = of_size(shadow, n)
            plans[n] = protected(promise, algorithm, one, model, [0], **how, parties=8).kept
        except ArchipelError:  # that site refuses by itself; what it told may be wrong
            return None
    of = {k: plans[counts[0]] for k, counts in told.items() if counts is not None}
    uses = {k: plan.uses[0] for k, plan in of.items()}
    noise = {k: plan.noise[0] for k, plan in of.items()}
    return replace(next(iter(of.values())), uses=uses, noise=noise)


def of_size(data: Federation, n: int) -> Federation:
    """One party of n training points without a value, in the form of others."""
    return Federation(
        torch.zeros_like(data.x[:1]).expand(n, *data.x.shape[1:]),
        torch.zeros_like(data.y[:1]).expand(n, *data.y.shape[1:]),
        torch.tensor([0, n]), torch.tensor([n]), 1, data.task, data.classes,
        features=data.features, scan=False,
    )  # fmt: skip


def numbered(data: Federation, party: int) -> Federation:
    """A federation in which the only party is number `party`: draws are keyed by that number."""
    if data.parties != 1:
        raise Refused(f"a seat holds the data of one party, not of {data.parties}.")
    if not 0 <= party < _MOST_PARTIES:
        raise Refused(f"party = {party}: is no party's number.")

    def after(rows: Tensor) -> Tensor:  # so many parties without a point
        return torch.cat([rows.new_zeros(party), rows])

    return Federation(
        data.x, data.y, after(data.offsets), after(data.test_from), party + 1, data.task,
        data.classes, features=data.features,
        scan=False,
    )  # fmt: skip
