# SPDX-License-Identifier: Apache-2.0
"""Worlds: runs of the study in which each record is used or not, by a coin.

An attack on membership is measured where the answer is known: every world draws anew which of a
party's records are used, each by itself and with the share that the study uses, and runs the study
as it is. Each world in turn is the run that is attacked, and the others are the runs that the
adversary made itself. A record by itself is what privacy by record speaks of, so its ceiling holds
for what is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel import rng
from archipel.adversaries.adversary import Adversary as Malicious
from archipel.attacks.case import Has, Shadow, Signals
from archipel.audit.recorder import Recorder, Round, Tamper, alone, spread
from archipel.audit.subject import Subject
from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.rng import Ints
from archipel.runs.run import Run

Arrays = Mapping[str, NDArray[Any]]
ROUNDS = 6  # written down of a world
_SHARES = (0.5, 2 / 3)  # of a party's records that are used, at the least and at the most


class World(NamedTuple):
    """What a run tells of N records, and to whom."""

    used: Tensor  # bool [N]
    loss: Tensor  # [N] of the final model
    sure: Tensor  # [N, 3]
    before: Tensor  # [N, R] losses of the model that was sent, round by round
    mean: Tensor  # [N, R] and of the one after the round
    single: Tensor  # [N, R] and of the one that the upload of the record's party makes; or NaN

    def signals(self, has: frozenset[Has]) -> Signals:
        """What somebody has of it."""
        parts = [self.before, self.mean] if {"models", "mean"} & has else []
        if "single" in has:
            parts = [self.before, self.single] if {"models", "mean"} & has else [self.single]
        rounds = torch.cat(parts, dim=1) if parts else self.loss.new_zeros(len(self.loss), 0)
        return Signals(self.loss, self.sure, rounds)

    def shadow(self, has: frozenset[Has]) -> Shadow:
        return Shadow(self.signals(has), self.used)

    def of_some(self, at: Tensor) -> World:
        """What it tells of some of the records."""
        return World(*(each[at] for each in self))

    def arrays(self) -> Arrays:
        """To be kept in a file."""
        return {name: value.numpy() for name, value in self._asdict().items()}

    @classmethod
    def of(cls, arrays: Arrays) -> World:
        return cls(**{name: torch.from_numpy(arrays[name]) for name in cls._fields})


class Candidates(NamedTuple):
    """Records whose use is asked."""

    rows: Ints  # [N] of the data
    party: Ints  # [N]
    share: NDArray[np.float64]  # [N] with which each is used


def candidates(subject: Subject, most: int) -> Candidates:
    """All records of training parties, or so many drawn of them."""
    data = subject.data
    rows = np.flatnonzero(data.row_party < data.training)
    if len(rows) > most:
        draws = rng.generator(subject.study.study.seed, 0, "audited records")
        rows = np.sort(draws.choice(rows, most, replace=False))
    party = data.row_party[rows]
    n, test = data.n.numpy()[party], data.n_test.numpy()[party]
    return Candidates(rows, party, np.clip(n / (n + test), *_SHARES))


def check(subject: Subject) -> str:
    """Why membership of single records is not measured; empty where it is."""
    if not subject.model.loss_function.separable:
        return "the loss is of all records of a batch together, so no record has one by itself"
    return ""


def run_world(
    subject: Subject,
    about: Candidates,
    number: int,
    tamper: Tamper | None = None,
    adversary: Malicious | None = None,
) -> tuple[World, Run]:
    """World number so and so: the same on every machine; somebody may act in it."""
    seed = rng.key(subject.study.study.seed, number, "audit") >> 2
    draws = rng.generator(seed, 0, "records that are used")
    used = draws.random(len(about.rows)) < about.share
    data = subject.data
    member = np.arange(data.points) < data.test_from.numpy()[data.row_party]
    member[about.rows] = used
    _keep_two(subject, member, about)
    fed, _ = data.with_training(member)
    wanted = spread(subject.options.get("rounds", 100), ROUNDS)
    run, recorder = subject.run(wanted, seed, fed, tamper=tamper, adversary=adversary)
    if run.vector is None:
        raise ArchipelError("audit: the run made no model; look at 'archipel run' first.")
    rows = torch.from_numpy(about.rows)
    loss, sure = subject.losses(run.vector, rows, run.buffers)
    parts = [_told(subject, about, recorder, recorder.rounds.get(t), run) for t in sorted(wanted)]
    before, mean, single = (torch.stack(each, dim=1) for each in zip(*parts, strict=True))
    return World(torch.from_numpy(member[about.rows]), loss, sure, before, mean, single), run


def _keep_two(subject: Subject, member: NDArray[np.bool_], about: Candidates) -> None:
    """No party is left with fewer than two records to train on, where it had them."""
    counts = np.bincount(subject.data.row_party[member], minlength=subject.data.parties)
    for k in np.unique(about.party):
        own = about.rows[about.party == k]
        lacking = min(2, len(own)) - counts[k]
        if lacking > 0:
            member[own[~member[own]][:lacking]] = True


def _told(
    subject: Subject, about: Candidates, recorder: Recorder, seen: Round | None, run: Run
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of the records in one round: at the model sent, after it, and of single uploads."""
    rows = torch.from_numpy(about.rows)
    nothing = torch.full((len(rows),), torch.nan, dtype=subject.model.dtype)
    if seen is None:
        return nothing, nothing, nothing

    def at(w: Vector | None, some: Tensor | None = None) -> Tensor:
        if w is None or not bool(torch.isfinite(w).all()):
            return nothing if some is None else nothing[: len(some)]
        return subject.losses(w, rows if some is None else some, run.buffers)[0]

    single = nothing.clone()
    for k, upload in sorted((seen.arrived or seen.left).items()):
        mine = torch.from_numpy(about.party == k)
        if mine.any():
            single[mine] = at(alone(recorder, seen, k, upload), rows[mine])
    return at(seen.sent), at(seen.after), single
