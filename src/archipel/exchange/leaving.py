# SPDX-License-Identifier: Apache-2.0
"""What leaves a site in a study between institutions: which numbers, how often, and who sees them.

One list for the review before a study and for the report after it. Letters also carry names, hashes
and signatures; those say nothing of the data and are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.exchange.anatomy import Anatomy, Message

ONCE, EVERY_ROUND, EVERY_EVALUATION = "once", "every round", "every evaluation"
WHILE_TRAINING = "every few seconds of training"
STATISTICS = "BatchNorm's means and variances of what passes its layers, over training points"
_NUMBER = 8  # bytes of a count or a metric in a letter's header, at most
_COORDINATOR = "the coordinator, site by site"


@dataclass(frozen=True)
class Outgoing:
    """Some numbers that leave a site."""

    what: str
    when: str
    numbers: int
    bytes: int
    seen_by: str


def outgoing(
    anatomy: Anatomy,
    shape: Sequence[int],
    *,
    columns: int = 0,
    metrics: int = 0,
    own: bool = False,
    told: bool = False,
    mixed: Sequence[Tensor] = (),
) -> list[Outgoing]:
    """What a site sends.

    `shape` is a point's, `columns` are those whose sums make the scale, `metrics` are those
    of the task, and with `own` a site scores a model of its own as well; `told` says whether it
    agreed to tell its numbers of points. A peer's round gives `mixed` to each of its neighbours.

    >>> from archipel.exchange.anatomy import Anatomy, Message
    >>> import torch
    >>> fedavg = Anatomy(None, None, (), (Message(torch.zeros(30), frozenset({"mean"})),))
    >>> [(each.numbers, each.bytes) for each in outgoing(fedavg, [15], columns=15)][1:3]
    [(45, 360), (30, 120)]
    """
    found = [_counts("shape and number of classes of the data", ONCE, len(shape) + 1)]
    if told:
        found.append(_counts("numbers of training and test points", ONCE, 2))
    if columns:
        what = "of each feature the count, the sum and the sum of squares (zeros: not scaled)"
        found.append(_counts(what, ONCE, 3 * columns))
    found += _of_rounds(anatomy, mixed, told)
    if metrics:
        whose = "its own model" if mixed else "the shared model"
        found.append(_counts(f"metrics of {whose} on its test points", EVERY_EVALUATION, metrics))
        if own:
            found.append(_counts("the same of its own model", EVERY_EVALUATION, metrics))
        if told:
            found.append(_counts("number of test points", EVERY_EVALUATION, 1))
    for number, message in enumerate(anatomy.personal, 1):
        which = f" {number}" if len(anatomy.personal) > 1 else ""
        what = f"question{which} for a model of its own"
        found.append(_tensors(what, EVERY_EVALUATION, message))
    return found


def _of_rounds(anatomy: Anatomy, mixed: Sequence[Tensor], told: bool) -> list[Outgoing]:
    from archipel.exchange.statistics import Joined
    from archipel.tree import nbytes

    names = ["vector"] * len(mixed)
    if mixed and isinstance(anatomy.own, Joined):
        names[-1] = STATISTICS
    found = [
        Outgoing(name, EVERY_ROUND, x.numel(), nbytes(x), "each neighbour, as it is")
        for name, x in zip(names, mixed, strict=True)
    ]
    if mixed:
        what = "gradients it took, and bytes it sent and received"
        return [*found, _counts(what, EVERY_ROUND, 3)]
    count = len(anatomy.messages)
    for number, message in enumerate(anatomy.messages, 1):
        upload, what = message.sent, f"upload {number}" if count > 1 else "upload"
        if not isinstance(upload, Joined):
            found.append(_tensors(what, EVERY_ROUND, message, anatomy.wire.sum))
            continue
        found.append(_tensors(what, EVERY_ROUND, message._replace(upload=upload.inner)))
        if upload.statistics is not None:
            with_it = f"{STATISTICS}, with the upload"
            part = message._replace(upload=upload.statistics)
            found.append(_tensors(with_it, EVERY_ROUND, part))
    if any("mean by examples" in message.asks for message in anatomy.messages):
        found.append(_counts("number of training points, with each upload", EVERY_ROUND, count))
    if told:
        found.append(_counts("gradients it took, with each upload", EVERY_ROUND, count))
        found.append(_counts("gradients so far", WHILE_TRAINING, 1))
    return found


def _tensors(what: str, when: str, message: Message, summed_by: str = "") -> Outgoing:
    from archipel.tree import leaves, nbytes

    numbers = sum(leaf.numel() for leaf in leaves(message.sent))
    if summed_by:
        use = f"{summed_by} makes a sum of them"
    elif "stack" in message.asks:
        use = "the algorithm looks at each"
    elif "mean by examples" in message.asks:
        use = "the algorithm uses their mean, weighted by training points"
    else:
        use = "the algorithm uses their mean"
    return Outgoing(what, when, numbers, nbytes(message.sent), f"{_COORDINATOR}; {use}")


def _counts(what: str, when: str, numbers: int) -> Outgoing:
    return Outgoing(what, when, numbers, _NUMBER * numbers, _COORDINATOR)
