# SPDX-License-Identifier: Apache-2.0
"""What a study makes leave a site, computed from its settings and from what its algorithm sends.

Reviews say it in words, and a site's policy judges by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel import models
from archipel.aggregation.gopa import Gopa
from archipel.aggregation.shuffled import ShuffledSum
from archipel.aggregation.summation import Hiding, groups_of
from archipel.attacks.imprint import sorting_units
from archipel.data.federation import Federation
from archipel.exchange.anatomy import Anatomy, Message
from archipel.exchange.boxes import Boxes, clock_of, has_personal, is_peer
from archipel.exchange.statistics import averages
from archipel.federation.site.account import NOTHING, Account
from archipel.metrics import may_leave
from archipel.models.model import Model
from archipel.privacy.promise import Privacy
from archipel.privacy.release import Release
from archipel.study.file import Study
from archipel.tree import leaves, nbytes


class Rows(NamedTuple):
    """Of a site's table."""

    training: int
    test: int


@dataclass(frozen=True)
class Exposure:
    """The numbers that say how much of a site's data a study shows."""

    name: str
    algorithm: str
    model: str
    loss: str
    weights: int
    rounds: int
    rows: int | None  # training rows of this site; None before a table is bound
    test_rows: int | None
    is_known: bool  # whether the algorithm's fields say how many records an upload is made of
    batch: int | None  # records of one gradient; None: all of them
    steps: int | None  # gradients behind an upload; None: not known
    records: int | None  # behind an upload, at the least; None: all, or not known
    evaluations: int
    scored: int  # models: the shared one each time, and the site's own
    sites: int  # in a mean, at the least; of groups, in that of each
    features: int
    numbers: int  # of one round
    bytes: int  # of all rounds, questions and sums
    counts: bool  # whether the number of training rows leaves, alone or in sums
    neighbours: bool  # whether other sites see vectors of this one as they are
    learned: bool  # whether who neighbours are is learned: then any other site may ask
    untold: tuple[str, ...]  # metrics that do not leave: how far a record moves them is not known
    statistics: int  # numbers of one round that are BatchNorm's means and variances
    hidden: bool = False  # whether a protocol adds uploads up that shows nobody a single one
    groups: int = 1  # that it puts a round's sites into, with a sum of each
    unheard: bool = False  # whether that holds only while nobody who sent it is kept from others
    shuffled: bool = False  # whether uploads leave as reports of which nobody knows whose they are
    counts_in_sums: bool = False  # whether numbers of rows are added up, and leave so alone
    sorting: int = 0  # units of the first layer that a model could be made to sort records with
    promise: Privacy | None = None
    unkept: str = ""  # why the promise cannot be kept
    planned: tuple[Release, ...] | None = None  # of one record, in all rounds; None: not known yet
    account: Account = NOTHING  # of the table that is bound

    @property
    def counted(self) -> str:
        """What says how many sites are in a mean."""
        return "round.quorum" + (f" in {self.groups} groups" if self.groups > 1 else "")

    @property
    def values(self) -> int | None:
        """Numbers in the site's table that the study reads."""
        return None if self.rows is None else self.rows * self.features


def exposure(
    study: Study,
    model: Model,
    data: Federation,
    anatomy: Anatomy,
    mixed: Sequence[Tensor] = (),
    rows: int | None = None,
    test_rows: int | None = None,
) -> Exposure:
    """What a study makes leave; `data` may be made up, of the study's form."""
    algorithm = study.algorithm_object
    batch, steps, records = _records(algorithm, rows)
    if len(anatomy.messages) > 1 and batch is not None:  # one of them may be made of a batch alone
        records = batch
    hidden = isinstance(study.wire_object.sum, Hiding)
    sent = [each.sent for each in anatomy.messages if not hidden or _adds_up(each)]
    numbers = sum(leaf.numel() for tree in sent for leaf in leaves(tree))
    turns = 2 if clock_of(algorithm) == "meetings" else 1  # others ask about as often
    numbers += turns * sum(x.numel() for x in mixed)
    sums = 3 * study.summed
    each_round = anatomy.bytes_up + turns * nbytes(tuple(mixed))
    evaluations = ceil(study.study.rounds / study.study.evaluate_every)
    questions = sum(nbytes(message.upload) for message in anatomy.personal)
    asks = {ask for message in anatomy.messages for ask in message.asks}
    return Exposure(
        name=study.name,
        algorithm=study.algorithm.name,
        model=study.model.name or models.default_model(data.task, data.shape),
        loss=model.loss_function.name,
        weights=model.w.numel(),
        rounds=study.study.rounds,
        rows=rows,
        test_rows=test_rows,
        is_known=hasattr(algorithm, "batch_size"),
        batch=batch,
        steps=steps,
        records=records,
        evaluations=evaluations,
        scored=evaluations * (1 + has_personal(algorithm)),
        sites=_sites(study),
        features=int(data.x[0].numel()) if len(data.x) else 0,
        numbers=numbers,
        bytes=8 * sums + each_round * study.study.rounds + questions * evaluations,
        counts=anatomy.weighed or bool(asks & {"n", "mean by examples"}),
        counts_in_sums=anatomy.weighed,
        neighbours=is_peer(algorithm),
        learned=bool(getattr(algorithm, "learns_graph", False)),
        hidden=hidden,
        groups=groups_of(study.wire_object.sum),
        unheard=isinstance(study.wire_object.sum, Gopa),
        shuffled=isinstance(study.wire_object.sum, ShuffledSum),
        untold=tuple(
            name for name in study.chosen.names if not may_leave(data.task, data.classes, name)
        ),
        statistics=len(model.running) * averages(Boxes(algorithm), model),
        sorting=sorting_units(model),
    )


def _records(algorithm: Any, rows: int | None) -> tuple[int | None, int | None, int | None]:
    """Records of a gradient, gradients of an upload, and records of an upload."""
    if not hasattr(algorithm, "batch_size"):
        return None, None, None
    size = algorithm.batch_size
    if isinstance(size, float):
        size = None if rows is None else max(1, ceil(size * rows - 1e-9))
    if size is not None and rows is not None:
        size = min(size, rows)
    steps: int | None = getattr(algorithm, "local_steps", None)
    if steps is None:
        epochs = getattr(algorithm, "local_epochs", None)
        if epochs is None:
            steps = 1
        elif size is None:
            steps = epochs
        elif rows is not None:
            steps = epochs * ceil(rows / size)
    if size is None:
        return None, steps, rows
    if steps is None:  # an epoch, of a number of rows that is not known
        return size, None, rows
    return size, steps, size * steps if rows is None else min(rows, size * steps)


def _adds_up(message: Message) -> bool:
    """Whether a message of a sum's protocol holds the masked upload, and no keys or shares."""
    sent = message.sent
    masked = isinstance(sent, Tensor) and sent.dtype in (torch.int32, torch.int64)
    return "mean" in message.asks or masked  # of groups, the server adds up each


def _sites(study: Study) -> int:
    """Sites in a mean, at the least: a share of nobody knows how many may be one."""
    quorum = study.round.quorum
    return max(1, quorum // groups_of(study.wire_object.sum)) if isinstance(quorum, int) else 1
