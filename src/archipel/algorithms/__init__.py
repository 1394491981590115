# SPDX-License-Identifier: Apache-2.0
"""One file per paper."""

from __future__ import annotations

from archipel.algorithms.alone import Alone
from archipel.algorithms.apgd import APGD1, APGD2
from archipel.algorithms.choco import Choco
from archipel.algorithms.collaborative import Collaborative
from archipel.algorithms.coordinate import Coordinate
from archipel.algorithms.dada import Dada
from archipel.algorithms.dada_boosted import DadaBoosted
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.dsgd import DSGD
from archipel.algorithms.fedasync import FedAsync
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedbn import FedBN
from archipel.algorithms.fedbuff import FedBuff
from archipel.algorithms.feddyn import FedDyn
from archipel.algorithms.fednova import FedNova
from archipel.algorithms.fedopt import FedOpt
from archipel.algorithms.fedper import FedPer
from archipel.algorithms.fedprox import FedProx
from archipel.algorithms.fedrep import FedRep
from archipel.algorithms.fedsgd import FedSGD
from archipel.algorithms.finetuned import FineTuned
from archipel.algorithms.gossip import Gossip
from archipel.algorithms.gradient_tracking import GradientTracking
from archipel.algorithms.knnper import KNNPer
from archipel.algorithms.l2gd import L2GD
from archipel.algorithms.pefll import PeFLL
from archipel.algorithms.perfedavg import PerFedAvg
from archipel.algorithms.pfedhn import PFedHN
from archipel.algorithms.pfedme import PFedMe
from archipel.algorithms.propagation import Propagation
from archipel.algorithms.scaffold import Scaffold
from archipel.algorithms.walk import Walk
from archipel.algorithms.walkman import Walkman

ALGORITHMS = {
    "alone": Alone,
    "apgd1": APGD1,
    "apgd2": APGD2,
    "choco": Choco,
    "collaborative": Collaborative,
    "coordinate": Coordinate,
    "dada": Dada,
    "dada_boosted": DadaBoosted,
    "ditto": Ditto,
    "dsgd": DSGD,
    "fedasync": FedAsync,
    "fedavg": FedAvg,
    "fedbn": FedBN,
    "fedbuff": FedBuff,
    "feddyn": FedDyn,
    "fednova": FedNova,
    "fedopt": FedOpt,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedrep": FedRep,
    "fedsgd": FedSGD,
    "finetuned": FineTuned,
    "gossip": Gossip,
    "gradient_tracking": GradientTracking,
    "knnper": KNNPer,
    "l2gd": L2GD,
    "pefll": PeFLL,
    "perfedavg": PerFedAvg,
    "pfedhn": PFedHN,
    "pfedme": PFedMe,
    "propagation": Propagation,
    "scaffold": Scaffold,
    "walk": Walk,
    "walkman": Walkman,
}

__all__ = [
    "ALGORITHMS",
    "APGD1",
    "APGD2",
    "DSGD",
    "L2GD",
    "Alone",
    "Choco",
    "Collaborative",
    "Coordinate",
    "Dada",
    "DadaBoosted",
    "Ditto",
    "FedAsync",
    "FedAvg",
    "FedBN",
    "FedBuff",
    "FedDyn",
    "FedNova",
    "FedOpt",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FineTuned",
    "Gossip",
    "GradientTracking",
    "KNNPer",
    "PFedHN",
    "PFedMe",
    "PeFLL",
    "PerFedAvg",
    "Propagation",
    "Scaffold",
    "Walk",
    "Walkman",
]
