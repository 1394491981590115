# SPDX-License-Identifier: Apache-2.0
"""Archipel: federated and decentralised learning, each algorithm written once.

>>> import archipel as ar
>>> run = ar.simulate(ar.FedAvg(lr=0.1), data="heart_disease", rounds=5, seed=0, workers=1)
>>> run.metrics["auc"] > 0.7
True
"""

from archipel.algorithms import DSGD, Alone, FedAvg, FedOpt, FedProx, FedSGD, Scaffold
from archipel.core import Batch, Descent, Each, Party, PeerAlgorithm, ServerAlgorithm, Uploads
from archipel.data import Federation, load
from archipel.engines.local import LocalEngine
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError
from archipel.model import Model
from archipel.optimisers import SGD, Adam
from archipel.schedules import Cosine, Decay, Inverse
from archipel.simulate import Run, simulate, sweep

__all__ = [
    "DSGD",
    "SGD",
    "Adam",
    "Alone",
    "ArchipelError",
    "Batch",
    "Cosine",
    "Decay",
    "Descent",
    "Each",
    "FedAvg",
    "FedOpt",
    "FedProx",
    "FedSGD",
    "Federation",
    "Inverse",
    "LocalEngine",
    "Model",
    "Party",
    "PeerAlgorithm",
    "Plan",
    "Run",
    "Scaffold",
    "ServerAlgorithm",
    "Uploads",
    "load",
    "simulate",
    "sweep",
]
