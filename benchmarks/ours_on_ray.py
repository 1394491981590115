# SPDX-License-Identifier: Apache-2.0
"""Archipel's Ray engine as a candidate: the work of `ours.py`, on a Ray of its own."""

from __future__ import annotations

import torch

import archipel as ar
from archipel.engines.ray.cluster import connected
from networks import build, loss
from ours import federation
from pace import Pace, arguments
from workloads import cohort, probe


def main() -> None:
    pace = Pace(arguments())
    workload = pace.workload
    algorithm = ar.FedAvg(lr=workload.lr, local_epochs=1, batch_size=workload.batch_size)
    model = ar.Model(build(workload), loss="cross_entropy")
    x, y = (torch.from_numpy(values) for values in probe(workload))
    data = federation(workload)
    with (
        connected(puts=2 * data.x.nbytes) as cluster,
        ar.LocalEngine(algorithm, data, model, seed=0, pools=cluster.pool) as engine,
    ):
        for t in pace.rounds(lambda: float(loss(model.predict(engine.shared, x), y))):
            engine.round(t, cohort(workload, t))


if __name__ == "__main__":
    main()
