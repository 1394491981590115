# SPDX-License-Identifier: Apache-2.0
"""Run an algorithm between parties that are elsewhere, over any transport, for tests."""

from __future__ import annotations

import asyncio
import copy

import numpy as np

from archipel.data.federation import Federation
from archipel.engines.network.attend import Attendance
from archipel.engines.network.desk import Desk
from archipel.engines.network.engine import NetworkEngine, Patience
from archipel.engines.network.memory import MemoryLink
from archipel.engines.network.seat import Seat, anatomy_of
from archipel.engines.network.transport import Partials


def one_party(data: Federation, k: int) -> Federation:
    """The data of party k alone, as its site has it."""
    return data.select(np.array([k]))


async def over_memory(algorithm, data, model, rounds, cohorts=None, cuts=(), patience=None):
    """Return the engine, the seats, what became of every round, and all scores.

    Every party has a copy of the model: they compute in threads, where a site is a process.
    """
    anatomy = anatomy_of(algorithm, data, model, 0, 0)
    engine = NetworkEngine(algorithm, model, anatomy, data.training, "test")
    desk, partials = Desk(engine), Partials()

    async def answer(who, letter):
        return await desk.answer(int(who), letter)

    seats, links, tasks = [], [], []
    for k in range(data.training):
        seat = Seat(algorithm, one_party(data, k), copy.deepcopy(model), party=k)
        link = MemoryLink(str(k), answer, partials)
        link.cuts += cuts
        seats.append(seat)
        links.append(link)
        tasks.append(asyncio.create_task(Attendance(seat, link, "test", pause=0.01).run()))
    outcomes, scores = [], None
    try:
        for t in range(rounds):
            cohort = range(data.training) if cohorts is None else cohorts[t]
            outcome, missing = await engine.round(t, cohort, patience or Patience())
            desk.verdicts[t] = frozenset(outcome.arrived.tolist())
            outcomes.append((outcome, missing))
        scores = await desk.evaluate(rounds, list(range(data.training)))
        desk.end(rounds)
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return engine, seats, outcomes, scores
