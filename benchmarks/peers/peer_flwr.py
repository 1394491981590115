# SPDX-License-Identifier: Apache-2.0
"""Flower 1.42: simulation on Ray, Message API, FedAvg; one actor per core, one thread each.

The server names the party in each message, so that the cohorts are those of the other candidates
(Flower would draw its own). Data and module are cached in each actor, in Flower's favour.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from networks import build, loss, probe_loss
from pace import Pace, arguments
from workloads import Workload, cohort


def client_app(workload: Workload) -> ClientApp:
    app = ClientApp()
    cache: dict[str, object] = {}

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import networks
        import workloads

        if not cache:
            torch.set_num_threads(1)
            x, y = networks.tensors(workload)
            offsets = workloads.load(workload).offsets
            cache.update(x=x, y=y, offsets=offsets, module=networks.build(workload))
        module, x, y, offsets = (cache[k] for k in ("module", "x", "y", "offsets"))
        k = int(message.content["config"]["party"])
        low, high = int(offsets[k]), int(offsets[k + 1])
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(module.parameters(), lr=workload.lr)
        for batch in (torch.randperm(high - low) + low).split(workload.batch_size):
            optimiser.zero_grad()
            loss(module(x[batch]), y[batch]).backward()
            optimiser.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(module.state_dict()),
                "metrics": MetricRecord({"num-examples": high - low}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


class ScheduledFedAvg(FedAvg):
    """FedAvg that tells each sampled node which party of the round's cohort it is."""

    parties: Iterable[int] = ()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message, k in zip(messages, self.parties, strict=True):
            named = ConfigRecord({"server-round": server_round, "party": int(k)})
            message.content = RecordDict({"arrays": arrays, "config": named})
        return messages


class _Finished(Exception):
    pass


def server_app(pace: Pace) -> ServerApp:
    workload = pace.workload
    app = ServerApp()
    module = build(workload)
    strategy = ScheduledFedAvg(
        fraction_train=workload.cohort / workload.parties,
        fraction_evaluate=0.0,
        min_train_nodes=workload.cohort,
        min_available_nodes=workload.parties,
    )
    rounds = pace.rounds(lambda: probe_loss(workload, module))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def between_rounds(server_round: int, arrays: ArrayRecord) -> None:
            if server_round == pace.warm:  # the loss is asked for once, before the clock starts
                module.load_state_dict(arrays.to_torch_state_dict())
            t = next(rounds, None)
            if t is None:
                raise _Finished
            strategy.parties = cohort(workload, t)

        with contextlib.suppress(_Finished):
            strategy.start(
                grid=grid,
                initial_arrays=ArrayRecord(build(workload).state_dict()),
                num_rounds=10**9,
                evaluate_fn=between_rounds,
            )

    return app


def main() -> None:
    pace = Pace(arguments())
    cores = os.cpu_count() or 1
    run_simulation(
        server_app=server_app(pace),
        client_app=client_app(pace.workload),
        num_supernodes=pace.workload.parties,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "include_dashboard": False},
        },
    )


if __name__ == "__main__":
    main()
