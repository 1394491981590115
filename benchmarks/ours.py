# SPDX-License-Identifier: Apache-2.0
"""Archipel as a candidate of the speed benchmark: FedAvg on the local engine, as users call it."""

from __future__ import annotations

import torch

import archipel as ar
from networks import build, loss, tensors
from pace import Pace, arguments
from workloads import Workload, cohort, load, probe


def federation(workload: Workload) -> ar.Federation:
    """Return the workload's parties; every point is a training point."""
    x, y = tensors(workload)
    offsets = torch.from_numpy(load(workload).offsets)
    return ar.Federation(
        x=x,
        y=y,
        offsets=offsets,
        test_from=offsets[1:],
        training=workload.parties,
        task="text" if workload.text else "classification",
        classes=workload.classes,
    )


def main() -> None:
    pace = Pace(arguments())
    workload = pace.workload
    algorithm = ar.FedAvg(lr=workload.lr, local_epochs=1, batch_size=workload.batch_size)
    model = ar.Model(build(workload), loss="cross_entropy")
    x, y = (torch.from_numpy(values) for values in probe(workload))
    with ar.LocalEngine(algorithm, federation(workload), model, seed=0) as engine:
        for t in pace.rounds(lambda: float(loss(model.predict(engine.shared, x), y))):
            engine.round(t, cohort(workload, t))


if __name__ == "__main__":
    main()
