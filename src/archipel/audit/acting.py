# SPDX-License-Identifier: Apache-2.0
"""Adversaries that act: worlds in which a party uploads, or a server sends, what an attack says.

What a party uploads passes the study's wire, sums and noise as every other upload does. The party
is the largest; the records that are asked about are some of the others'. It acts in the second half
of the rounds but for the last one, so that training can push back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.adversaries.adversary import Adversary as Malicious
from archipel.attacks.case import Has
from archipel.audit import worlds as drawn
from archipel.audit.adversaries import Adversary
from archipel.audit.findings import Finding
from archipel.audit.membership import MEASURE, judged, scores_of, worlds_of
from archipel.audit.work import Promised, Work
from archipel.audit.worlds import World, run_world
from archipel.core import Vector

_TARGETS = 64  # records that are asked about: each is raised less, the more there are
_FEWEST = 8  # worlds, where there is time for them
_PART = 4  # of the worlds and the time that passive attacks have, one in so many


def active(work: Work, name: str, attack: Any, who: Adversary, promise: Promised) -> Finding:
    """How well records are told by what training makes of an ascent on them."""
    subject, nothing = work.subject, Finding(name, "active", MEASURE, None)
    if why := _why_not(work):
        return replace(nothing, said=f"does not apply: {why}.")
    by = "server" if "sends" in who.has else "party"
    key = (name, who.who)
    if key not in work.results:
        party = int(subject.data.n[: subject.data.training].argmax())
        at = _targets(work, party)
        work.results[key] = (_worlds(work, attack(), by, party, at), len(at))
    worlds, distinct = work.results[key]
    has: frozenset[Has] = who.has & {"final", "models", "mean", "single"}
    scores, member = scores_of(attack, has, worlds)
    title = f"{name}, by a {by}"
    return judged(work, name, "active", title, scores, member, distinct, who, promise)


def _why_not(work: Work) -> str:
    subject = work.subject
    if why := drawn.check(subject):
        return why
    if subject.options.get("rounds", 100) < 3:
        return "there are fewer than three rounds, to raise a loss in and to see it lowered"
    if subject.options.get("adversary") is not None:
        return "the study simulates adversaries of its own"
    if subject.data.lazy:
        return "points come when they are asked for, and none can be given to another party"
    return ""


def _targets(work: Work, party: int) -> Tensor:
    """Places, among the records that are asked about, of some of the other parties'."""
    others = np.flatnonzero(work.about.party != party)
    draws = rng.generator(work.subject.study.study.seed, 0, "records that are raised")
    return torch.from_numpy(np.sort(draws.permutation(others)[:_TARGETS]))


def _worlds(work: Work, attack: Any, by: str, party: int, at: Tensor) -> list[World]:
    """Runs of the study in which somebody acts, as far as they tell of the records at `at`."""
    subject, rows = work.subject, torch.from_numpy(work.about.rows)[at]
    x, y = subject.data.x[rows], subject.data.y[rows]
    rounds = subject.options.get("rounds", 100)
    first, last = max(1, rounds // 2), rounds - 1

    def tamper(w: Vector, t: int) -> Vector:
        acts = first <= t + 1 <= last
        sent: Vector = attack.sent(subject.model, w, x, y) if acts else w
        return sent

    def one(number: int) -> World:
        how: dict[str, Any] = {"tamper": tamper}
        if by == "party":
            named = (subject.data.name(party),)
            how = {"adversary": Malicious(attack.party(x, y), named, first, last)}
        return run_world(subject, work.about, number, **how)[0].of_some(at)

    most, seconds = max(_FEWEST, work.size.worlds // _PART), work.size.seconds / _PART
    return worlds_of(work, f"worlds with an active {by}", most, seconds, one)
