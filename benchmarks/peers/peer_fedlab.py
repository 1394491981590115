# SPDX-License-Identifier: Apache-2.0
"""FedLab 1.3: serial simulation with its SGD trainer and synchronous server.

Its FedAvg averages the parties with equal weights, which costs no less than weights by examples.
"""

from __future__ import annotations

import contextlib
import io
import sys
import types
from itertools import pairwise

import torch
from torch.utils.data import DataLoader, TensorDataset

from networks import build, loss, probe_loss, tensors
from pace import Pace, arguments
from workloads import Workload, cohort, load


class _AnyAttribute(type):
    def __getattr__(cls, name: str) -> type:
        return cls


class _Stub(types.ModuleType):
    """Stands for torchvision, which FedLab imports for its datasets only."""

    __path__: list[str] = []  # noqa: RUF012 - module attribute, read by the import system

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyAttribute(name, (), {})


for _name in ("", ".datasets", ".datasets.utils", ".datasets.mnist", ".transforms", ".models"):
    sys.modules["torchvision" + _name] = _Stub("torchvision" + _name)

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402


class _Parties:
    """The dataset object of FedLab's trainer: one loader per party."""

    def __init__(self, workload: Workload) -> None:
        x, y = tensors(workload)
        offsets = load(workload).offsets
        self.parties = [TensorDataset(x[low:high], y[low:high]) for low, high in pairwise(offsets)]

    def get_dataloader(self, k: int, batch_size: int) -> DataLoader:
        return DataLoader(self.parties[k], batch_size=batch_size, shuffle=True)


class _Quiet:
    def info(self, *_: object) -> None:
        pass


def main() -> None:
    options = arguments()
    pace = Pace(options)
    workload = pace.workload
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    trainer = SGDSerialClientTrainer(build(workload), workload.parties, cuda=False, logger=_Quiet())
    trainer.setup_dataset(_Parties(workload))
    trainer.setup_optim(1, workload.batch_size, workload.lr)
    trainer.criterion = loss
    server = SyncServerHandler(
        build(workload), 10**9, workload.cohort / workload.parties, cuda=False, logger=_Quiet()
    )
    server.num_clients = workload.parties

    for t in pace.rounds(lambda: probe_loss(workload, server._model)):
        with contextlib.redirect_stderr(io.StringIO()):
            trainer.local_process(server.downlink_package, [int(k) for k in cohort(workload, t)])
            for package in trainer.uplink_package:
                server.load(package)


if __name__ == "__main__":
    main()
