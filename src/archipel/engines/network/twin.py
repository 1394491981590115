# SPDX-License-Identifier: Apache-2.0
"""A federation in one process, letter by letter: the network engine without a network."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from archipel.core import ServerAlgorithm
from archipel.data.federation import Federation
from archipel.engines.local import Outcome
from archipel.engines.network.attend import Attendance
from archipel.engines.network.desk import Desk
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.letters import Letter
from archipel.engines.network.memory import MemoryLink
from archipel.engines.network.seat import Seat, anatomy_of
from archipel.engines.network.transport import Partials
from archipel.model import Model


class Played(NamedTuple):
    """What became of some rounds."""

    engine: NetworkEngine
    seats: list[Seat]  # one per party
    outcomes: list[tuple[Outcome, dict[int, str]]]  # of every round, with who was missing
    scores: dict[int, Letter]  # of every party, at the end


async def play(
    algorithm: ServerAlgorithm,
    data: Federation,
    model: Model,
    cohorts: Sequence[Sequence[int]],
    cuts: Sequence[tuple[float, float]] = (),
) -> Played:
    """Run rounds with these parties; each party's first streams are cut after so many bytes.

    Every party has a copy of the model: they compute in threads, where a site is a process.
    """
    anatomy = anatomy_of(algorithm, data, model, 0, 0)
    engine = NetworkEngine(algorithm, model, anatomy, data.training, "twin")
    desk, partials = Desk(engine), Partials()

    async def answer(who: str, letter: Letter) -> Any:
        return await desk.answer(int(who), letter)

    seats, tasks, everybody = [], [], list(range(data.training))
    for k in everybody:
        seats.append(Seat(algorithm, data.select(np.array([k])), copy.deepcopy(model), party=k))
        link = MemoryLink(str(k), answer, partials)
        link.cuts += cuts
        tasks.append(asyncio.create_task(Attendance(seats[k], link, "twin", pause=0.01).run()))
    outcomes = []
    try:
        for t, cohort in enumerate(cohorts):
            outcomes.append(await engine.round(t, cohort))
            desk.verdicts[t] = frozenset(outcomes[-1][0].arrived.tolist())
        scores = await desk.evaluate(len(cohorts), everybody)
        desk.end(len(cohorts))
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Played(engine, seats, outcomes, scores)
