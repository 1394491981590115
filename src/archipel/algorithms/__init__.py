# SPDX-License-Identifier: Apache-2.0
"""One file per paper."""

from __future__ import annotations

from archipel.algorithms.alone import Alone
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.dsgd import DSGD
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedopt import FedOpt
from archipel.algorithms.fedper import FedPer
from archipel.algorithms.fedprox import FedProx
from archipel.algorithms.fedrep import FedRep
from archipel.algorithms.fedsgd import FedSGD
from archipel.algorithms.finetuned import FineTuned
from archipel.algorithms.knnper import KNNPer
from archipel.algorithms.pefll import PeFLL
from archipel.algorithms.pfedhn import PFedHN
from archipel.algorithms.scaffold import Scaffold

ALGORITHMS = {
    "alone": Alone,
    "ditto": Ditto,
    "dsgd": DSGD,
    "fedavg": FedAvg,
    "fedopt": FedOpt,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedsgd": FedSGD,
    "finetuned": FineTuned,
    "knnper": KNNPer,
    "pefll": PeFLL,
    "pfedhn": PFedHN,
    "scaffold": Scaffold,
}

__all__ = [
    "ALGORITHMS",
    "DSGD",
    "Alone",
    "Ditto",
    "FedAvg",
    "FedOpt",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FineTuned",
    "KNNPer",
    "PFedHN",
    "PeFLL",
    "Scaffold",
]
