# SPDX-License-Identifier: Apache-2.0
"""Attacks on membership: in worlds where a coin says which records are used."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.attacks.case import Family, Has
from archipel.attacks.ratio import fits, stable
from archipel.audit import worlds as drawn
from archipel.audit.adversaries import Adversary
from archipel.audit.findings import Finding
from archipel.audit.judging import area_interval, curve, judge
from archipel.audit.recorder import spread
from archipel.audit.work import LEAST, Promised, Work
from archipel.audit.worlds import World, run_world
from archipel.privacy.meaning import FALSE_ALARMS, found_at_most
from archipel.runs.run import Run
from archipel.store import files

MEASURE = "of the records that were used, found at 1 % false alarms"


def run_worlds(work: Work) -> Run | None:
    """As many worlds as there is time for; those in the folder are read."""
    last: list[Run] = []

    def one(number: int) -> World:
        world, run = run_world(work.subject, work.about, number)
        last[:] = [run]
        return world

    work.worlds += worlds_of(work, "worlds", work.size.worlds, work.size.seconds, one)
    return last[0] if last else None


def worlds_of(
    work: Work, kind: str, most: int, seconds: float, one: Callable[[int], World]
) -> list[World]:
    """Worlds of a kind by number, as many as there is time for; the folder keeps each."""
    began, found = time.perf_counter(), list[World]()
    for number in range(most):
        path = None if work.folder is None else work.folder / kind / f"{number:03d}.npz"
        if path is not None and path.is_file():
            with np.load(path, allow_pickle=False) as kept:
                found.append(World.of(dict(kept)))
            continue
        if len(found) >= LEAST and time.perf_counter() - began > seconds:
            work.notes.append(
                f"{len(found)} of {most} {kind} were run: time was up; the same command again runs "
                "more."
            )
            break
        work.say(f"{kind}: {number + 1} of {most}")
        found.append(one(number))
        if path is not None:
            _keep(path, found[-1])
    return found


def _keep(path: Path, world: World) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = BytesIO()
    np.savez_compressed(stream, **dict(world.arrays()))  # type: ignore[arg-type]
    files.write(path, stream.getvalue())


def membership(work: Work, name: str, attack: Any, who: Adversary, promise: Promised) -> Finding:
    if why := drawn.check(work.subject):
        return Finding(name, "membership", MEASURE, None, said=f"not measured: {why}.")
    has = frozenset(who.has & {"final", "models", "mean", "single"})
    if attack.needs == frozenset({"final"}):
        has = frozenset({"final"})
    key = (name, has)
    if key not in work.results:
        work.say(f"{name} on {len(work.worlds)} worlds, as {who.title.lower()} has them")
        work.results[key] = scores_of(attack, has, work.worlds)
    level = "final model" if has == {"final"} else "uploads" if "single" in has else "sums"
    title, distinct = f"{name}, from the {level}", len(work.about.rows)
    scores, member = work.results[key]
    return judged(work, name, "membership", title, scores, member, distinct, who, promise)


def judged(
    work: Work,
    name: str,
    family: Family,
    title: str,
    scores: Tensor,
    member: Tensor,
    distinct: int,
    who: Adversary,
    promise: Promised,
) -> Finding:
    """What scores `[S, N]` of so many records found, beside what is promised."""
    epsilon, delta = promise if promise is not None and who.bounded else (None, 0.0)
    found = judge(scores, member, distinct, epsilon, delta)
    work.curves[title] = found.curve
    details = {
        "auc": found.area, "auc_interval": found.area_interval, "epsilon_at_least": found.epsilon,
        "false_positives": FALSE_ALARMS, "tpr_at_0.1_percent": found.curve.at(0.001),
    }  # fmt: skip
    ceiling = None if epsilon is None else found_at_most(epsilon, delta, FALSE_ALARMS)
    return Finding(
        name, family, MEASURE, found.found, found.interval, FALSE_ALARMS, ceiling,
        found.within, f"area under the curve {found.area:.3f}", details,
    )  # fmt: skip


def scores_of(attack: Any, has: frozenset[Has], worlds: Sequence[World]) -> tuple[Tensor, Tensor]:
    """Every world attacked in turn, the others being the adversary's own: `[S, N]` each."""
    shadows = [world.shadow(has) for world in worlds]
    rows = [
        attack().scores(shadows[s].signals, [*shadows[:s], *shadows[s + 1 :]])
        for s in range(len(shadows))
    ]
    return torch.stack(rows), torch.stack([world.used for world in worlds])


def by_round(work: Work) -> None:
    """How well one round alone tells members, from single uploads and from the mean."""
    if len(work.worlds) < LEAST:
        return
    used = torch.stack([world.used for world in work.worlds])
    shown = sorted(spread(work.subject.options.get("rounds", 100), drawn.ROUNDS))
    for name, part in (("an upload", "single"), ("the mean of uploads", "mean")):
        steps = torch.stack(
            [stable(getattr(world, part)) - stable(world.before) for world in work.worlds]
        )
        points = []
        for i, t in enumerate(shown):
            if bool(steps[:, :, i].isnan().all()):
                continue
            every = range(len(work.worlds))
            rest = [torch.arange(len(work.worlds)) != s for s in every]
            ratio = torch.stack(
                [fits(steps[rest[s], :, i], used[rest[s]]).ratio(steps[s, :, i]) for s in every]
            )
            known = ~ratio.isnan()
            area = curve(ratio[known], used[known]).area
            members = max(1, int(used.double().mean() * used.shape[1]))
            points.append((t + 1, area, *area_interval(area, members, used.shape[1] - members)))
        if points:
            work.by_round[f"from {name} of the round"] = points
