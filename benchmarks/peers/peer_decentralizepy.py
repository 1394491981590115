# SPDX-License-Identifier: Apache-2.0
"""decentralizepy (https://github.com/sacs-epfl/decentralizepy): decentralised SGD in processes.

It is not on every registry: `gossip.py --decentralizepy CHECKOUT` puts a checkout's `src` on the
path, and what it imports (jsonlines, localconfig, networkx, pyzmq, smallworld) must be there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from multiprocessing import Process
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from decentralizepy.datasets.Data import Data
from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.graphs.Graph import Graph
from decentralizepy.mappings.Linear import Linear
from decentralizepy.models.Model import Model
from decentralizepy.node.DPSGDNode import DPSGDNode
from torch.utils.data import DataLoader

FEATURES = 57
WARM = 5


class Dealt(Dataset):
    """A node has the points of one party, and notes when it asks for them: once a round."""

    def __init__(self, *args: Any, problem: str, times: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        arrays = np.load(problem)
        a, b = arrays["offsets"][self.uid : self.uid + 2]
        self.data = Data(torch.from_numpy(arrays["x"][a:b]), torch.from_numpy(arrays["y"][a:b]))
        self.times, self.began = Path(times), []

    def get_trainset(self, batch_size: int = 1, shuffle: bool = False) -> DataLoader[Any]:
        self.began.append(time.perf_counter())
        if self.uid == 0:
            self.times.write_text(json.dumps(self.began))
        return DataLoader(self.data, batch_size=batch_size, shuffle=shuffle)

    def get_testset(self) -> None:
        return None


class Logistic(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(FEATURES, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", type=Path)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args()
    problem = np.load(options.problem)
    graph = Graph(len(problem["adjacent"]))
    for i, j in np.argwhere(problem["adjacent"] > 0).tolist():
        graph.adj_list[i].add(j)
    with tempfile.TemporaryDirectory() as folder:
        addresses = Path(folder) / "addresses.json"
        addresses.write_text(json.dumps({"0": "127.0.0.1"}))
        times = Path(folder) / "times.json"
        config = {
            "DATASET": {
                "dataset_package": "peer_decentralizepy",
                "dataset_class": "Dealt",
                "model_class": "Logistic",
                "problem": str(options.problem),
                "times": str(times),
            },
            "OPTIMIZER_PARAMS": {
                "optimizer_package": "torch.optim",
                "optimizer_class": "SGD",
                "lr": 0.1,
            },
            "TRAIN_PARAMS": {
                "training_package": "decentralizepy.training.Training",
                "training_class": "Training",
                "rounds": 1,
                "full_epochs": False,
                "batch_size": int(problem["batch"]),
                "shuffle": True,
                "loss_package": "torch.nn",
                "loss_class": "CrossEntropyLoss",
            },
            "COMMUNICATION": {
                "comm_package": "decentralizepy.communication.TCP",
                "comm_class": "TCP",
                "addresses_filepath": str(addresses),
            },
            "SHARING": {
                "sharing_package": "decentralizepy.sharing.Sharing",
                "sharing_class": "Sharing",
            },
        }
        rounds, never = options.rounds + WARM, options.rounds + WARM + 1
        places = Linear(1, graph.n_procs)
        rest = (rounds, folder, folder, logging.ERROR, never, never, 0)
        nodes = [
            Process(target=DPSGDNode, args=(rank, 0, places, graph, config, *rest))
            for rank in range(graph.n_procs)
        ]
        for node in nodes:
            node.start()
        for node in nodes:
            node.join()
        began = json.loads(times.read_text())[WARM:]
    print(json.dumps({"seconds": median(np.diff(began).tolist())}))


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
