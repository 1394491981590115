# SPDX-License-Identifier: Apache-2.0
"""What a forecast warns of: one sentence each, with what to do about it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from archipel.forecast.ahead import Ahead
from archipel.forecast.cluster import Cluster
from archipel.forecast.figure import Figure
from archipel.privacy.promise import Kept
from archipel.runs import processes
from archipel.scorecard.words import duration, size

DAY = 86400.0
SELDOM = 0.1  # of the rounds below the quorum, from which on it is said


def warnings(
    figures: Mapping[str, Figure],
    ahead: Ahead,
    options: Mapping[str, Any],
    out: Path,
    kept: Kept | None = None,
    budget: float | None = None,
    cluster: Cluster | None = None,
    on_cluster: Mapping[str, Figure] | None = None,
) -> tuple[str, ...]:
    """All that will not fit, or not end well."""
    return (
        *_of_rounds(ahead, options),
        *_of_room(figures, out),
        *_of_cluster(cluster, on_cluster or {}),
        *_of_privacy(kept, figures, budget),
        *_of_time((on_cluster or figures)["time.total"]),
    )


def _of_rounds(ahead: Ahead, options: Mapping[str, Any]) -> Iterator[str]:
    """Rounds in which too few are in time, or there at all."""
    if ahead.ends:
        yield f"the run will stop: {ahead.ends}"
    if not ahead.drawn:
        return
    late = (ahead.present == 0) & (ahead.slow > 0)
    if late.mean() >= 0.5:
        yield (
            f"round.deadline = {options.get('deadline')}: in {int(late.sum()):,} of "
            f"{ahead.drawn:,} rounds nobody meets it; raise it, or simulate.speed."
        )
    failed = (ahead.counted == 0) | (ahead.waited > 0)
    if failed.mean() >= SELDOM and not late.mean() >= 0.5:
        word = "wait" if options.get("on_missing") == "wait" else "change nothing"
        yield (
            f"round.quorum = {options.get('quorum', 1)}: {int(failed.sum()):,} of "
            f"{ahead.drawn:,} rounds will be below it and {word}; lower it, or sample more."
        )


def _of_room(figures: Mapping[str, Figure], out: Path) -> Iterator[str]:
    here = processes.memory_here()
    if "memory.peak" in figures and figures["memory.peak"].high > here:
        yield (
            f"memory: {_range(figures['memory.peak'])} will be needed, and there is "
            f"{size(here)}; use fewer workers, sample fewer parties, or another machine."
        )
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(place).free
    if figures["disk.total"].high > free:
        yield (
            f"disk: {_range(figures['disk.total'])} will be written, and {size(free)} is free "
            f"in '{place}'; make room, or say --out."
        )


def _of_cluster(cluster: Cluster | None, figures: Mapping[str, Figure]) -> Iterator[str]:
    if cluster is None or cluster.memory is None or "memory.node" not in figures:
        return
    node = figures["memory.node"]
    if node.high > cluster.memory:
        yield (
            f"memory: {_range(node)} will be needed on every node, which has "
            f"{size(cluster.memory)}; use fewer cores of each, or larger ones."
        )


def _of_privacy(
    kept: Kept | None, figures: Mapping[str, Figure], budget: float | None
) -> Iterator[str]:
    if kept is None or budget is None or figures["privacy.epsilon"].value <= budget:
        return
    lasts = max((t for t, spent in kept.curve(kept.worst, kept.rounds) if spent <= budget),
                default=0)  # fmt: skip
    yield (
        f"privacy: epsilon = {budget:g} lasts for about {lasts} of the {kept.rounds} rounds that "
        f"count, and all of them spend {figures['privacy.epsilon'].value:.3g}; do fewer rounds, or "
        "add noise."
    )


def _of_time(total: Figure) -> Iterator[str]:
    if total.high > DAY:
        yield (
            f"time: it will take {duration(total.low)} to {duration(total.high)}, more than a day; "
            "do fewer rounds, sample fewer parties, or take a larger machine."
        )


def _range(figure: Figure) -> str:
    low, high = size(figure.low), size(figure.high)
    return low if low == high else f"{low} to {high}"
