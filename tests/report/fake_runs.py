"""Runs of any shape without computing one."""

from functools import lru_cache

import numpy as np
import torch

from archipel.algorithms import FedAvg
from archipel.data import About, Federation
from archipel.engines.engine import Cause, Evaluation
from archipel.runs.participation import Cohort
from archipel.runs.run import Run, Spent

CAUSES = ("dropped out", "too slow", "away", "diverged", "not needed", "on [bold]strike[/bold]")


@lru_cache(maxsize=64)
def federation(parties, new=0, names=None):
    """A federation of parties with a training point each."""
    ends = torch.arange(parties + new + 1)
    return Federation(
        torch.zeros(parties + new, 1),
        torch.zeros(parties + new, dtype=torch.int64),
        ends,
        ends[1:],
        parties,
        "classification",
        2,
        names=names,
        about=About("islands"),
        scan=False,
    )


def fake_run(
    parties=4,
    rounds=40,
    done=26,
    *,
    new=0,
    names=None,
    values=None,
    metric="accuracy",
    levels=(0.7, 0.9),
    sample=1.0,
    missing=0.1,
    every=1,
    **more,
):
    """A run after `done` rounds.

    `values` are its metric's over all test points, [] if there are none; a mean over parties is
    0.05 less, and at new parties the metric is another 0.1 less.
    """
    rng = np.random.default_rng(0)
    run = Run(FedAvg(), federation(parties, new, names), None, 7, None, None, rounds, metric)
    for name, value in more.items():
        setattr(run, name, value)
    if levels is not None:
        for name, level in zip(("local", "central"), levels, strict=True):
            each = torch.full((parties + new,), level, dtype=torch.float64)
            each[parties:] = 0.0  # new parties are no part of the comparison
            run.baselines[name] = Evaluation({metric: each}, {metric: 0.1}, {})
    for t in range(done):
        sampled = np.sort(rng.choice(parties, max(int(sample * parties), 1), replace=False))
        lost = sampled[rng.random(len(sampled)) < missing].tolist()
        present = np.setdiff1d(sampled, lost)
        causes = {k: Cause.read(CAUSES[(k + t) % len(CAUSES)]) for k in lost}
        run.participation.append(
            Cohort(sampled, present, np.ones(len(present)), causes, len(present) > 0)
        )
        run.spent = Spent(1000 * (t + 1), 480 * (t + 1), 500 * (t + 1))
        run.seconds = 0.5 * (t + 1)
        if (t + 1) % every == 0:
            run.history.append(_entry(t, run, values, new))
    return run


def _entry(t, run, values, new):
    value = 0.85 - 0.4 * 0.8**t if values is None else values[t % len(values)] if values else None
    known = value is not None
    return {
        "round": t + 1,
        "metrics": {run.metric: value} if known else {},
        "new": {run.metric: value - 0.1} if new and known else None,
        "own": None,
        "own_new": None,
        "seen_parties": {"mean": value - 0.05} if known else None,
        "new_parties": {"mean": value - 0.15} if new and known else None,
        "bytes": {"up": run.spent.up, "down": run.spent.down},
        "gradients": run.spent.gradients,
        "seconds": run.seconds,
    }
