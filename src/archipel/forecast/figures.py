# SPDX-License-Identifier: Apache-2.0
"""The figures of a forecast: what was measured and counted, put together for all rounds.

Time is that of rounds (by their work), evaluations, checkpoints, start, baselines and end, each
measured by itself. Memory is what was measured, and what grows: the states of parties that will
have taken part, twice while they are written down, and who took part. Bytes are counted.
"""

from __future__ import annotations

from dataclasses import asdict
from math import ceil
from typing import Any

import numpy as np

from archipel.exchange.boxes import is_peer
from archipel.forecast.ahead import Ahead
from archipel.forecast.figure import (
    DRIFT,
    Figure,
    Floats,
    Law,
    Unit,
    added,
    between,
    exactly,
    law,
    noise_of,
    within,
)
from archipel.forecast.measuring import Measured
from archipel.models.flops import flops_of_one_gradient
from archipel.runs.recording import SHARE
from archipel.runs.run import Run
from archipel.scorecard.card import ASSUMPTIONS
from archipel.scorecard.measure import energy
from archipel.tree import nbytes

_PAUSE = 1.0  # seconds between two checkpoints, at least
_COPIES = (2, 4)  # of parties' states while a checkpoint is written, theirs among them
_MAPPED = (0, 1)  # the same where they lie in files, whose pages the system may take back
_METRIC = 16  # bytes of one party's metric in the journal, about


def laws(measured: Measured, ahead: Ahead) -> Law:
    """How long a round takes by its work; the first one, which also fetches code, is apart."""
    seconds = measured.laps.rounds
    work = ahead.work[: len(seconds)].tolist()
    if len(seconds) > 1:
        seconds, work = seconds[1:], work[1:]
    return law(seconds, work, ahead.work)


def figures(
    measured: Measured,
    ahead: Ahead,
    time_law: Law,
    every: int,
    baselines: Figure | None,
    loaded: float,
) -> dict[str, Figure]:
    """All figures of a run on this machine.

    `every` so many rounds it evaluates; `loaded` are the seconds in which its data was.
    """
    run = measured.run
    done = ahead.drawn if ahead.ends else ahead.rounds
    found = _times(measured, ahead, time_law, every, done)
    found["time.start"] = within(measured.start + loaded, 0.3, "s", "imports, data, engine, once")
    if baselines is not None:
        found["time.baselines"] = baselines
    parts = ("rounds", "evaluations", "checkpoints")
    found["time.loop"] = added([found[f"time.{part}"] for part in parts], "its parts")
    rest = [found[name] for name in ("time.start", "time.baselines", "time.end") if name in found]
    found["time.total"] = added([found["time.loop"], *rest], "its parts")
    found |= _bytes(measured, ahead)
    found["gradients"] = _counted([s.gradients for s in measured.laps.spent], ahead.examples, ahead)
    each, _ = flops_of_one_gradient(run.task_model, run.data.form.x[:1])
    g, up, down = (found[name] for name in ("gradients", "bytes.up", "bytes.down"))
    flops = [each * value for value in (g.value, g.low, g.high)]
    found["flops"] = between(flops, "FLOP", "gradients, times what one takes")
    peer = is_peer(run.algorithm)
    least = energy(flops[1], up.low if peer else up.low + down.low)
    most = energy(flops[2], up.high if peer else up.high + down.high)
    middle = (least.low * most.high) ** 0.5
    found["energy"] = Figure(middle, least.low, most.high, "Wh", "; ".join(ASSUMPTIONS))
    found |= _room(measured, ahead, done)
    found["rounds.counted"] = _over_rounds(ahead.counted.astype(np.float64), ahead)
    found["parties.touched"] = Figure(
        ahead.touched, ahead.touched, ahead.touched, "", "drawn as in the run"
    )
    if (timing := ahead.timing) is not None:
        how = "the devices' clock, asked for every round"
        end = _scaled(exactly(timing.end, "s", how), ahead.work, ahead)
        hours = [joules * ahead.scale / 3600 for joules in (timing.low, timing.high)]
        middle = (hours[0] * hours[1]) ** 0.5
        found["simulated.time"] = end
        found["simulated.energy"] = between([middle, *hours], "Wh", how)
    if run.kept is not None:
        found["privacy.epsilon"] = spent_of(run, ahead, done)
    return found


def _times(
    measured: Measured, ahead: Ahead, time_law: Law, every: int, done: int
) -> dict[str, Figure]:
    """Seconds of the loop's parts, and of what comes after it."""
    laps, rounds = measured.laps, max(0, done - 1)
    work = ahead.work[1:] if ahead.drawn > 1 else ahead.work[:0]
    value, low, high = time_law.over(work)
    scale = rounds / len(work) if len(work) else 0.0
    first = laps.rounds[0]
    ends = [first * part + scale * each
            for part, each in ((1.0, value), (1 - DRIFT, low), (1 + DRIFT, high))]  # fmt: skip
    how = "its work" if time_law.known else "its work, or not: measured rounds are too alike"
    basis = f"{len(laps.rounds)} rounds, by {how}"
    found = {"time.rounds": between(ends, "s", basis)}
    found["time.round"] = between(
        [each / max(1, done) for each in ends], "s", "all of them, in the mean"
    )
    times = [*range(every, done + 1, every)]
    count = len(times) + (not ahead.ends and done % every != 0)
    each = laps.evaluations[1:] or laps.evaluations
    mean = sum(each) / len(each)
    basis = f"{len(laps.evaluations)} evaluations, times {count}"
    found["time.evaluations"] = within(count * mean, noise_of(each), "s", basis)
    cost = sum(laps.checkpoints) / len(laps.checkpoints)
    more = 0 if measured.keeps_much else new_rows(measured, ahead) * own_bytes(measured.run)
    size = laps.checkpoint + more
    grown = cost * size / max(1, laps.checkpoint)
    loop = [
        found["time.rounds"].value + found["time.evaluations"].value,
        found["time.rounds"].low + found["time.evaluations"].low,
        found["time.rounds"].high + found["time.evaluations"].high,
    ]
    shares = [_share(each) for each in ((cost + grown) / 2, cost, grown)]
    saved = [span * share for span, share in zip(loop, shares, strict=True)]
    found["time.checkpoints"] = between(
        saved, "s", f"{len(laps.checkpoints)} checkpoints; at most {100 // SHARE} % of a run"
    )
    found["time.end"] = within(measured.ending, 0.5, "s", "scorecard and last checkpoint, once")
    return found


def _share(cost: float) -> float:
    """The part of a run's time that checkpoints of so many seconds take."""
    return cost / max(_PAUSE, SHARE * cost)


def own_bytes(run: Run) -> int:
    """What the engine keeps of a party that took part."""
    own_statistics = run.task_model.statistics == "own"
    buffers = run.task_model.buffers.nbytes if own_statistics else 0
    return nbytes(run.anatomy.own) + buffers


def new_rows(measured: Measured, ahead: Ahead) -> int:
    """Parties that will have taken part, of which none has so far."""
    cohorts = [cohort.present for cohort in measured.run.participation if cohort.counted]
    seen = len(np.unique(np.concatenate(cohorts))) if cohorts else 0
    return max(0, ahead.touched - seen)


def _bytes(measured: Measured, ahead: Ahead) -> dict[str, Figure]:
    spent = measured.laps.spent
    return {
        "bytes.up": _counted([each.up for each in spent], ahead.up, ahead, "B", "up"),
        "bytes.down": _counted([each.down for each in spent], ahead.down, ahead, "B", "down"),
    }


def _counted(
    measured: list[int], counted: Floats, ahead: Ahead, unit: Unit = "", way: str = ""
) -> Figure:
    """A sum over rounds that was counted ahead, held against the rounds that were measured.

    Where each of them has as much as was counted, or the same multiple of it, the sum is exact.
    """
    pairs = [(a, b) for a, b in zip(measured, counted, strict=False) if b > 0]
    whole = float(counted.sum())
    if not pairs:
        return exactly(0.0, unit, "nothing in any round that was measured") if not whole else (
            Figure(whole, 0.0, 2 * whole, unit, "counted, and in no round that was measured")
        )  # fmt: skip
    ratios = np.array([a / b for a, b in pairs])
    ratio = sum(a for a, _ in pairs) / sum(b for _, b in pairs)
    same = all(a * pairs[0][1] == pairs[0][0] * b for a, b in pairs)
    if same and way not in ahead.varying:
        basis = f"counted for every round; {len(pairs)} measured rounds have as much"
        figure = exactly(whole * pairs[0][0] / pairs[0][1], unit, basis)
    else:
        basis = f"counted for every round, times what {len(pairs)} measured rounds had of it"
        if way in ahead.varying:
            basis += "; codes are as long as their numbers need"
        room = 0.1 if way in ahead.varying else 0.02
        low, high = float(ratios.min()) * (1 - room), float(ratios.max()) * (1 + room)
        figure = Figure(ratio * whole, low * whole, high * whole, unit, basis)
    return _scaled(figure, counted, ahead)


def _scaled(figure: Figure, counted: Floats, ahead: Ahead) -> Figure:
    """The same for all rounds, where not every one was drawn."""
    if ahead.scale == 1.0:
        return figure
    error = 2 * float(counted.std()) / max(1e-12, float(counted.mean())) / len(counted) ** 0.5
    spread = 0.01 + error
    return Figure(
        figure.value * ahead.scale, figure.low * ahead.scale * (1 - min(1.0, spread)),
        figure.high * ahead.scale * (1 + spread), figure.unit,
        f"{figure.basis}; {ahead.drawn} of {ahead.rounds} rounds drawn",
    )  # fmt: skip


def _over_rounds(counted: Floats, ahead: Ahead) -> Figure:
    return _scaled(exactly(float(counted.sum()), "", "drawn as in the run"), counted, ahead)


def _room(measured: Measured, ahead: Ahead, done: int) -> dict[str, Figure]:
    """Memory and disk."""
    laps, run = measured.laps, measured.run
    rows = new_rows(measured, ahead) * own_bytes(run)
    told = ahead.kept * ahead.scale
    found = {}
    if laps.held is not None:
        copies = _MAPPED if measured.keeps_much else _COPIES
        grows = [rows * count + told for count in (sum(copies) / 2, *copies)]
        basis = f"after {run.done} rounds, and what grows: states of parties, who took part"
        total = laps.held.total
        found["memory.peak"] = Figure(
            total + grows[0], 0.9 * total + grows[1], 1.1 * total + grows[2], "B", basis
        )
        now = f"after {run.done} rounds"
        found["memory.driver"] = within(laps.held.driver, 0.1, "B", now)
        found["memory.workers"] = within(laps.held.workers, 0.1, "B", now)
        found["memory.growth"] = between(grows, "B", "states of parties, who took part")
    begun, ended = laps.journal
    metrics = run.data.parties * _METRIC * max(1, len(run.parties))
    evaluated = len(laps.evaluations)
    per_round = max(0.0, (ended - begun - metrics * evaluated) / max(1, run.done))
    journal = begun + per_round * done + metrics * evaluated * done / max(1, run.done)
    checkpoint, own = laps.checkpoint + rows, 0
    if measured.keeps_much:
        checkpoint, own = laps.checkpoint, ahead.touched * own_bytes(run)
    model = run.task_model.p * 4 + own
    found["disk.checkpoint"] = exactly(checkpoint, "B", "written, and what grows: parties' states")
    found["disk.journal"] = within(journal, 0.5, "B", f"{run.done} rounds of it")
    found["disk.total"] = Figure(
        checkpoint + model + journal, checkpoint + model + 0.5 * journal,
        2 * checkpoint + model + own + 1.5 * journal, "B", "two checkpoints while one is written",
    )  # fmt: skip
    return found


def spent_of(run: Run, ahead: Ahead, done: int) -> Figure:
    """ε of the unit that will have spent the most."""
    assert run.kept is not None
    kept, basis = run.kept, "who is asked, drawn as in the run"
    if kept.always:
        counts = dict.fromkeys(kept.uses, done)
    else:
        counts = {
            k: min(kept.rounds, ceil(int(ahead.asked[k]) * ahead.scale))
            for k in kept.uses
            if ahead.asked[k]
        }
    epsilon = max(kept.spent(counts).values(), default=0.0)
    return exactly(epsilon, "epsilon", basis)


def described(measured: Measured, baselines: bool) -> dict[str, Any]:
    """How a run is computed."""
    run = measured.run
    device = run.environment.get("device", "cpu")
    return {**asdict(run.plan), "device": device, "baselines": baselines}
