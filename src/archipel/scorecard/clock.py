# SPDX-License-Identifier: Apache-2.0
"""What the simulated clock says of a run: time and energy to a target, and who was too slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from archipel.runs.run import Run
from archipel.scorecard.card import ASSUMPTIONS, ON_DEVICES, Energy, Simulated


def simulated_of(run: Run) -> Simulated | None:
    """What the clock says; times and joules to the target are interpolated as rounds are."""
    timings = [cohort.timing for cohort in run.participation if cohort.timing is not None]
    if not timings:
        return None
    last = timings[-1]
    seconds = low = high = None  # to the target
    if run.target is not None and run.metric in run.metrics:
        rounds = run.rounds_to(run.target)
        if rounds is not None:
            entries = [entry for entry in run.history if "simulated" in entry]
            at = [0, *(entry["round"] for entry in entries)]
            seen = [(0.0, 0.0, 0.0)] + [
                (each["seconds"], each["energy"]["low"], each["energy"]["high"])
                for each in (entry["simulated"] for entry in entries)
            ]
            seconds, low, high = (
                float(np.interp(rounds, at, part)) for part in zip(*seen, strict=True)
            )
    slow = [each.slow for each in timings if each.slow is not None]
    counted = sum(len(one.present) for one in run.participation if one.timing and one.counted)
    return Simulated(
        last.end,
        sum(each.start - each.began for each in timings),
        last.low,
        last.high,
        seconds,
        low,
        high,
        sum(slow) / counted if slow and counted else None,
    )


def on_devices(energy: Energy, simulated: Simulated | None) -> Energy:
    """The same with what devices spent in place of what computing was taken to."""
    if simulated is None or not simulated.high:
        return energy
    return replace(
        energy,
        compute_low=simulated.low / 3600,
        compute_high=simulated.high / 3600,
        assumptions=(*ON_DEVICES, *ASSUMPTIONS[1:]),
    )
