# SPDX-License-Identifier: Apache-2.0
"""Make a study's forecast: measure, look ahead, put together; or count where nothing can be run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines.network.fitting import fitted, keepable
from archipel.exchange.boxes import is_peer
from archipel.exchange.varying import parts_of, size_of
from archipel.forecast import cluster as clusters
from archipel.forecast.ahead import look_ahead, varies
from archipel.forecast.baselines import forecast_baselines
from archipel.forecast.cluster import Cluster
from archipel.forecast.figure import DRIFT, Figure, exactly
from archipel.forecast.figures import described, figures, laws
from archipel.forecast.forecast import Forecast
from archipel.forecast.measuring import measure
from archipel.forecast.warnings import warnings
from archipel.graphs import summary
from archipel.models.model import Model
from archipel.runs.beginning import Beginning
from archipel.runs.loop import Watch
from archipel.runs.parts import build_topology
from archipel.runs.recording import environment
from archipel.runs.run import Description
from archipel.runs.simulation import Options, cluster_of
from archipel.scorecard.card import ASSUMPTIONS
from archipel.store.files import now

SECONDS = 10.0  # of measuring rounds, and a fifth of it for each baseline


def make(
    study: Description,
    parts: tuple[Algorithm, Federation, Model],
    options: Options,
    watch: Watch,
    *,
    seconds: float = SECONDS,
    baselines: bool = True,
    loaded: float = 0.0,
    out: Path = Path("runs"),
    cluster: Cluster | None = None,
    budget: float | None = None,
) -> Forecast:
    """Do some rounds of a study and say what all of them will take.

    `loaded` are the seconds that its data took to load; `budget` is an ε that it shall not exceed.
    """
    algorithm, data, model = parts
    beside, began = None, time.perf_counter()
    with cluster_of(options, watch.say, data) as ray:
        loaded += time.perf_counter() - began
        measured = measure(algorithm, data, model, options, study, watch, seconds, ray)
        run, plan = measured.run, measured.run.plan
        if baselines:
            beside = forecast_baselines(
                algorithm, data, model, rounds=run.rounds, sample=options.get("sample", 1.0),
                seed=run.seed, plan=plan, seconds=seconds / 5, watch=watch,
                pools=None if ray is None else ray.pool,
            )  # fmt: skip
    watch.say("drawing who takes part in every round")
    begun = Beginning(algorithm, data, model, options)
    asked: Any = {**options, "wire": measured.wire}
    ahead = look_ahead(
        begun, run.anatomy, algorithm, data, asked, measured.workers, block=plan.block
    )
    time_law = laws(measured, ahead)
    found = figures(measured, ahead, time_law, begun.every, beside, loaded)
    elsewhere: dict[str, Figure] = {}
    assumed: tuple[str, ...] = (
        f"times are those of this machine as busy as it was, {100 * DRIFT:.0f} % less or more at "
        "the least",
        "no party diverges, and nothing else needs the memory",
        *ASSUMPTIONS,
    )
    if cluster is not None:
        elsewhere = clusters.on_cluster(cluster, measured, ahead, time_law, found)
        assumed = (*assumed, *clusters.assumptions(cluster))
    said = warnings(
        found, ahead, options, out, run.kept, budget, cluster, elsewhere if cluster else None
    )
    laps = measured.laps
    return Forecast(
        study.name,
        study.hash,
        now(),
        run.rounds,
        data.parties,
        options.get("engine", "local"),
        described(measured, baselines),
        run.environment,
        {
            "rounds": len(laps.rounds),
            "evaluations": len(laps.evaluations),
            "checkpoints": len(laps.checkpoints),
            "seconds": sum(laps.rounds) + sum(laps.evaluations) + sum(laps.checkpoints),
            "calibration": measured.calibration,
            "drawn": ahead.drawn,
            "whole": measured.whole,
        },
        found,
        said,
        assumed,
        None if cluster is None else cluster.to_json(),
        elsewhere,
        None
        if run.topology is None
        else summary(run.topology, data.clusters, algorithm=algorithm).to_json(),
    )


def make_between_sites(
    study: Description,
    algorithm: Algorithm,
    empty: Federation,
    model: Model,
    options: Options,
    sites: int,
) -> Forecast:
    """What can be told of a study whose data is at sites: messages, counted for so many of them.

    `empty` has the form of their data and no value.
    """
    seed, rounds, wire = options["seed"], options["rounds"], options.get("wire")
    kept_by, promise = None, options.get("privacy")
    if promise is not None:
        how: Any = {"seed": seed, "rounds": rounds, "wire": wire}
        kept_by = keepable(promise, algorithm, empty, model, **how)
    _, anatomy = fitted(algorithm, empty, model, 0, seed, wire, sites, kept_by)
    there = Beginning(algorithm, _of(empty, sites), model, {**options, "privacy": None})
    asked = there.who.count(sites)
    basis = f"counted, of {asked} of {sites} sites in every round, with nobody missing"
    if is_peer(algorithm):
        topology = build_topology(options.get("topology"), _of(empty, sites), seed)
        ends = 0 if topology is None else int(topology.edges(0).numel())
        sent = [size_of(tree) for tree in anatomy.mixed] or [size_of(parts_of(anatomy.own)[0])]
        up = down = ends * sum(sent)
    else:
        messages = anatomy.in_cohort(asked).messages
        up = asked * sum(size_of(message.sent) for message in messages)
        down = asked * (size_of(anatomy.sent) + sum(size_of(each.reply) for each in messages))
    trees = [anatomy.sent, *(message.sent for message in anatomy.messages), *anatomy.mixed]
    found = dict[str, Figure]()
    for name, each in (("up", up), ("down", down)):
        total = exactly(each * rounds, "B", basis)
        one = exactly(each * rounds / sites, "B", f"{basis}, in the mean")
        if any(map(varies, trees)):
            words = "codes are as long as their numbers need: half to twice what a trial had"
            total, one = (
                Figure(f.value, f.value / 2, 2 * f.value, "B", words) for f in (total, one)
            )
        found |= {f"bytes.{name}": total, f"bytes.{name}.site": one}
    found["rounds.counted"] = exactly(rounds, "", "nobody is missing")
    return Forecast(
        study.name, study.hash, now(), rounds, sites, "network", {}, environment(study), {}, found,
        (),
        (
            "time, memory and energy depend on sites that are not here, and are not told",
            "arrays are counted as they travel, without heads of letters and of TLS",
        ),
    )  # fmt: skip


def _of(empty: Federation, sites: int) -> Federation:
    """So many sites with one made-up point each."""
    import torch

    places = torch.arange(sites + 1)
    return replace(
        empty,
        x=empty.x[:1].expand(sites, *empty.x.shape[1:]),
        y=empty.y[:1].expand(sites, *empty.y.shape[1:]),
        offsets=places,
        test_from=places[1:],
        training=sites,
        names=[f"site {k + 1}" for k in range(sites)],
        scan=False,
    )
