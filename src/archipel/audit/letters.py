# SPDX-License-Identifier: Apache-2.0
"""Uploads of a study's first round as attacks get them, with what was behind each, to judge by.

How an upload comes of a gradient, the adversary finds out as anybody can: it has the study's
algorithm make an upload of records that it made up, and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.attacks.case import Letter
from archipel.audit.recorder import Recorder, Round
from archipel.audit.subject import Subject
from archipel.core import Vector
from archipel.engines.party import LocalParty
from archipel.exchange.boxes import Boxes
from archipel.exchange.talk import Talk
from archipel.training.descent import work_of
from archipel.training.schedules import rate
from archipel.tree import Tree, leaves

_JUDGED = 4096  # records behind an upload that are looked for, drawn of more
_SIZES = 4  # parties of so many sizes are made up
_ALIKE = 0.999  # cosine from which an upload is one gradient


class Opened(NamedTuple):
    """A letter, and what the attack is not given."""

    letter: Letter
    x: Tensor  # [r, *shape] the records behind it
    y: Tensor  # [r]
    who: str
    rows: Tensor  # [r] where they are in the data


class Made(NamedTuple):
    """How the algorithm makes an upload of a gradient."""

    factor: float  # upload = factor * gradient
    steps: int
    batch: int
    records: int
    lr: float


def opened(
    subject: Subject, recorder: Recorder, single: bool, most: int, quick: bool
) -> list[Opened]:
    """The first round's uploads, those of the fewest records first; or the mean of all."""
    seen = next(iter(recorder.rounds.values()), None)
    uploads = {} if seen is None else seen.arrived or seen.left
    if seen is None or seen.sent is None or not seen.used:
        return []
    if single:
        order = sorted(uploads, key=lambda k: int(seen.used[k].sum()))
        behind = np.cumsum([int(seen.used[k].sum()) for k in order])
        enough = int(np.searchsorted(behind, 3 * most)) + 1  # records, where uploads have few
        order = order[: max(most, min(enough, 3 * most))]
        return [
            found
            for k in order
            if (found := _one(subject, seen, [k], uploads[k], quick)) is not None
        ]
    present = list(seen.present or seen.used)
    found = None if seen.mean is None else _one(subject, seen, present, seen.mean, quick)
    return [] if found is None else [found]


def is_mean(recorder: Recorder) -> bool:
    """Whether the models of a round tell the mean of its uploads, up to its scale."""
    seen = next(iter(recorder.rounds.values()), None)
    if seen is None or seen.sent is None or seen.after is None or seen.mean is None:
        return False
    update = _vector(seen.mean, seen.sent.numel())
    if update is None:
        return False
    cosine = torch.nn.functional.cosine_similarity(seen.after - seen.sent, update, dim=-1)
    return bool(cosine.abs() > _ALIKE)


def _one(
    subject: Subject, seen: Round, who: Sequence[int], upload: Tree, quick: bool
) -> Opened | None:
    assert seen.sent is not None
    data, model = subject.data, subject.model
    update = _vector(upload, model.p)
    if update is None:
        return None
    sizes = {int(n): k for k, n in zip(who, data.n[list(who)].tolist(), strict=True)}
    by_size = {n: _made(subject, k) for n, k in sorted(sizes.items())[:_SIZES]}
    made = list(by_size.values())
    if any(each is None for each in made):
        return None
    known = [each for each in made if each is not None]
    used = torch.stack([seen.used[k] for k in who]).any(dim=0)
    rows = torch.nonzero(used).flatten()
    x, ranges = data.x, subject.ranges
    floats = x.is_floating_point()
    letter = Letter(
        model,
        seen.sent,
        update / (sum(each.factor for each in known) / len(known)),
        len(rows),
        known[0].steps,
        known[0].batch if len(who) == 1 else len(rows),
        known[0].lr,
        data.shape,
        data.classes if data.task in ("classification", "text") else 0,
        ranges.low if floats else ranges.low.long(),
        ranges.high if floats else ranges.high.long(),
        subject.study.study.seed,
        quick,
    )
    some = rows
    if len(rows) > _JUDGED:
        random = torch.Generator().manual_seed(subject.study.study.seed)
        some = rows[torch.randperm(len(rows), generator=random)[:_JUDGED]]
    named = " and ".join(data.name(k) for k in who[:4])
    return Opened(letter, x[some], data.y[some], named, rows)


def _vector(upload: Tree, p: int) -> Vector | None:
    """The first tensor of an upload that is as long as the model."""
    return next((leaf for leaf in leaves(upload) if leaf.numel() == p), None)


def _made(subject: Subject, k: int) -> Made | None:
    """Have the algorithm make an upload of made-up records, as many as party k has."""
    data = subject.data.select([k])
    random = torch.Generator().manual_seed(subject.study.study.seed)
    if data.x.is_floating_point():
        noise = torch.randn(data.x.shape, generator=random).to(data.x.dtype)
        invented = subject.ranges.mean + subject.ranges.sd * noise
    else:
        invented = data.x[torch.randperm(len(data.x), generator=random)]
    made_up = replace(data, x=invented, scan=False)
    boxes = Boxes(subject.algorithm)
    if boxes.peer:
        return _peer_made(subject, made_up)
    me = _me(subject, made_up)
    shared, own = boxes.init(subject.model.w.clone(), me.blueprint)
    talk = Talk(boxes.party(me, boxes.broadcast(shared, 0), own))
    upload = talk.said[0] if talk.ended else talk.said
    update = _vector(upload, subject.model.p)
    return None if update is None else _compared(subject, me, made_up.x, made_up.y, update)


def _peer_made(subject: Subject, made_up: Any) -> Made | None:
    """The same of a peer: what it sends is its model, of which the one before is known."""
    sent: list[Vector] = []

    def mixing(x: Vector, coded: Any = None) -> Vector:
        sent.append(x.detach().flatten())
        return x

    me = _me(subject, made_up)
    me.mixing = mixing
    boxes = Boxes(subject.algorithm)
    boxes.party(me, boxes.init(subject.model.w.clone(), me.blueprint))
    if not sent:
        return None
    update = sent[0] - subject.model.w
    return None if not update.any() else _compared(subject, me, made_up.x, made_up.y, update)


def _me(subject: Subject, made_up: Any) -> LocalParty:
    model = subject.model
    buffers = model.buffers[None].clone() if model.buffer_spec.size else None
    me = LocalParty(made_up, model, model.one, np.array([0]), 0, 0, (), buffers=buffers)
    me.used = torch.zeros(made_up.points, dtype=torch.bool)
    return me


def _compared(subject: Subject, me: LocalParty, x: Tensor, y: Tensor, update: Vector) -> Made:
    model, used = subject.model, me.used
    assert used is not None
    gradient = model.grad(model.w, x[used], y[used])
    factor = float((update @ gradient) / (gradient @ gradient))
    cosine = torch.nn.functional.cosine_similarity(update, gradient, dim=-1)
    records = int(used.sum())
    work = work_of(subject.algorithm) if hasattr(subject.algorithm, "lr") else None
    lr = 0.0 if work is None else float(rate(work.lr, 0))
    if float(cosine.abs()) > _ALIKE or work is None:
        return Made(factor, 1, records, records, lr)
    size = work.batch_size
    batch = records if size is None else ceil(size * records) if isinstance(size, float) else size
    steps = int(me.steps(work).max())
    if float(factor) < 0 and lr:  # the upload is a change of the model: the sum of its steps
        factor = -lr * steps
    return Made(factor, steps, min(batch, records), records, lr)
