# SPDX-License-Identifier: Apache-2.0
"""Metrics of every party, computed by the workers a run of parties at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from archipel import metrics
from archipel.data.federation import Federation
from archipel.engines.engine import Evaluation, Some
from archipel.engines.local import personal
from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import Json, Pool
from archipel.engines.local.share import Job, points_of
from archipel.metrics.intervals import Interval, of_all
from archipel.rng import Ints

_CHUNK_BYTES = 64 << 20  # outputs kept at a time


def chunk_of(data: Federation, output: Tensor) -> int:
    """Points evaluated between two looks at their outputs: at least the largest party's."""
    if data.about.elsewhere:  # none is evaluated here, and a party may claim any number of them
        return 1
    ends = data.offsets[1:][np.append(heads(data)[1:], len(data.n)) - 1]
    largest = int(ends.diff(prepend=ends.new_zeros(1)).max())
    point = max(1, output.numel() * output.element_size())
    return max(largest, min(data.points, _CHUNK_BYTES // point))


def heads(data: Federation) -> Ints:
    """The first party of each that is scored by itself: of the folds of a party, the first."""
    return np.flatnonzero((data.stands | data.virtual).numpy())


def evaluate(
    pool: Pool,
    job: Job,
    memory: Memory,
    split: str,
    own: bool,
    training: int,
    server: personal.Server | None = None,
    common: bool = True,
    who: Some | None = None,
    without: Sequence[int] | Ints = (),
) -> Evaluation:
    """Score the vector in `memory`, or with `own` each party's model, at every party or at `who`.

    The first `training` parties are pooled as such, the rest as new ones. A `server` helps parties
    that make models of their own. `common` has every party use the buffers in `memory` with the
    vector, and not those that it keeps. Folds of a party are scored together, where its first is.
    Nobody of `without` is scored.
    """
    data, loss, chosen = job.data, job.model.loss_function, job.model.metrics
    unit = data.features.target
    ids = np.arange(data.parties) if who is None else who.parties
    if len(without):
        ids = ids[~np.isin(ids, without)]
        who = None if who is None else who._replace(parties=ids)
    sizes = (data.n if split == "train" else data.n_test).numpy()[ids]
    do = "own outputs" if own or (job.own_statistics and not common) else "outputs"
    scored: list[dict[str, Tensor]] = []
    kept: list[tuple[Tensor, Tensor]] = []
    costs = None if server is None else personal.Costs(ids)
    means = chosen is None or not {*chosen.names} - {*metrics.MEANS}
    keep = not means or memory.outputs[0].numel() <= 2 or sizes.sum() <= job.chunk
    first = np.flatnonzero(np.isin(ids, heads(data))) if who is None else np.arange(len(ids))
    for lo, hi in _chunks(sizes, job.chunk, first):
        ends, some = np.cumsum(sizes[lo:hi]), ids[lo:hi]
        if server is None or costs is None:
            _outputs(pool, do, split, own, some, ends)
        else:
            if (data.n[some] == 0).any():  # nothing to make a model of: the shared one
                _outputs(pool, "outputs", split, False, some, ends)
            personal.outputs(pool, job, split, server, costs, some, ends)
        outputs = memory.outputs[: int(ends[-1])]
        y = torch.cat([held.y[rows] for held, rows in points_of(data, some, split)])
        alone = first[(first >= lo) & (first < hi)] - lo
        offsets = torch.from_numpy(np.concatenate([[0], ends])[np.append(alone, hi - lo)])
        found = metrics.score(data.task, outputs, y, offsets, loss, chosen, unit)
        scored.append({name: _spread(values, alone, hi - lo) for name, values in found.items()})
        if keep:
            kept.append((outputs.clone(), y))
    parties = {name: torch.cat([part[name] for part in scored]) for name in scored[0]}
    if keep:
        outputs, y = (torch.cat(parts) for parts in zip(*kept, strict=True))

    def pooled(group: slice) -> dict[str, float]:
        points = sizes[group]
        if points.sum() == 0:
            return {}
        if keep:
            before = int(sizes[: group.start].sum())
            part = slice(before, before + int(points.sum()))
            return metrics.pool(data.task, outputs[part], y[part], loss, chosen, unit)
        weights = torch.from_numpy(points[points > 0] / points.sum())
        return {  # many outputs per point: what is a mean over points
            name: float((values[group][points > 0] * weights).sum())
            for name, values in parties.items()
            if name in metrics.MEANS
        }

    def interval(group: slice, of: int, found: dict[str, float]) -> dict[str, Interval]:
        before = int(sizes[: group.start].sum())

        def score(rows: Ints) -> dict[str, float]:
            at = torch.from_numpy(before + rows)
            return metrics.pool(data.task, outputs[at], y[at], loss, chosen, unit)

        values = {name: each[group].double().numpy() for name, each in parties.items()}
        points = data.task != "survival"  # whose loss is no mean over points
        return of_all(score if keep else None, found, values, sizes[group], of, points)

    trained = int(np.searchsorted(ids, training))
    groups = slice(0, trained), slice(trained, len(ids))
    seen, new = (pooled(group) for group in groups)
    if who is None:
        if len(without):
            parties = {name: _spread(x, ids, data.parties) for name, x in parties.items()}
        return Evaluation(parties, seen, new, costs)
    sure = [interval(*each) for each in zip(groups, who.of, (seen, new), strict=True)]
    return Evaluation(parties, seen, new, costs, who=who, intervals=sure[0], new_intervals=sure[1])


def _outputs(pool: Pool, do: str, split: str, own: bool, ids: Ints, ends: Ints) -> None:
    """Have the workers write the outputs for these parties, each a run of them."""
    workers, total = len(pool), int(ends[-1]) if len(ids) else 0
    cuts = [int(np.searchsorted(ends, total * i / workers, side="left")) for i in range(workers)]
    cuts = [0, *cuts[1:], len(ids)]
    befores = np.concatenate([[0], ends])
    pool.run(
        [
            {
                "do": do,
                "split": split,
                "models": own,
                **_named(ids[a:b]),
                "at": int(befores[a]),
            }
            for a, b in pairwise(cuts)
        ]
    )


def _named(ids: Ints) -> Json:
    """Parties as a message names them: from where to where if none is left out, else each."""
    if len(ids) and int(ids[-1]) + 1 - int(ids[0]) == len(ids):
        return {"first": int(ids[0]), "last": int(ids[-1]) + 1}
    return {"ids": ids.tolist()}


def _spread(values: Tensor, at: Ints, parties: int) -> Tensor:
    """Put values where the parties are that they belong to, and NaN elsewhere."""
    if len(at) == parties:
        return values
    spread = values.new_full((parties,), torch.nan)
    spread[torch.from_numpy(at)] = values
    return spread


def _chunks(sizes: Ints, most: int, first: Ints) -> list[tuple[int, int]]:
    """Cut parties into runs of at most so many points, the folds of a party together."""
    ends, cuts = np.cumsum(sizes), np.append(first[1:], len(sizes))  # where a run may end
    chunks, lo = [], 0
    while lo < len(sizes):
        before = ends[lo - 1] if lo else 0
        fits = cuts[(cuts > lo) & (ends[cuts - 1] <= before + most)]
        hi = int(fits[-1] if len(fits) else cuts[cuts > lo][0])
        chunks.append((lo, hi))
        lo = hi
    return chunks
