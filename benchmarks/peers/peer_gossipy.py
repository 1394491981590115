# SPDX-License-Identifier: Apache-2.0
"""gossipy (https://github.com/makgyver/gossipy): push gossip of logistic regression.

It is not on every registry: `gossip.py --gossipy CHECKOUT` puts a checkout on the path, and its own
requirements (dill, networkx, pandas, rich, scikit-learn, torchvision) must be there.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from pathlib import Path

import numpy as np
import torch
from gossipy import LOG, set_seed
from gossipy.core import (
    AntiEntropyProtocol,
    ConstantDelay,
    CreateModelMode,
    StaticP2PNetwork,
)
from gossipy.data import DataDispatcher
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model.handler import TorchModelHandler
from gossipy.model.nn import LogisticRegression
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator


class Dealt(DataDispatcher):
    """Every node has the points of one party; nobody is evaluated while the clock runs."""

    def __init__(self, handler: ClassificationDataHandler, offsets: list[int]) -> None:
        self.offsets = offsets
        super().__init__(handler, n=len(offsets) - 1, eval_on_user=False, auto_assign=False)

    def __getitem__(self, k: int) -> tuple[tuple[torch.Tensor, torch.Tensor], None]:
        part = slice(self.offsets[k], self.offsets[k + 1])
        return (self.data_handler.Xtr[part], self.data_handler.ytr[part]), None

    def has_test(self) -> bool:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", type=Path)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    problem = np.load(options.problem)
    torch.set_num_threads(1)
    set_seed(0)
    LOG.setLevel(logging.ERROR)
    x, y = torch.from_numpy(problem["x"]), torch.from_numpy(problem["y"])
    handler = ClassificationDataHandler(x, y, x[:2], y[:2])
    offsets = problem["offsets"].tolist()
    nodes = GossipNode.generate(
        data_dispatcher=Dealt(handler, offsets),
        p2p_net=StaticP2PNetwork(len(offsets) - 1, problem["adjacent"]),
        model_proto=TorchModelHandler(
            net=LogisticRegression(x.shape[1], 2),
            optimizer=torch.optim.SGD,
            optimizer_params={"lr": 0.1},
            criterion=torch.nn.CrossEntropyLoss(),
            create_model_mode=CreateModelMode.MERGE_UPDATE,
            local_epochs=1,
            batch_size=int(problem["batch"]),
        ),
        round_len=10,
        sync=True,
    )
    simulator = GossipSimulator(
        nodes=nodes,
        data_dispatcher=Dealt(handler, offsets),
        delta=10,
        protocol=AntiEntropyProtocol.PUSH,
        delay=ConstantDelay(0),
    )
    simulator.init_nodes(seed=0)
    simulator.start(n_rounds=1)
    began = time.perf_counter()
    simulator.start(n_rounds=options.rounds)
    print(json.dumps({"seconds": (time.perf_counter() - began) / options.rounds}))


if __name__ == "__main__":
    main()
