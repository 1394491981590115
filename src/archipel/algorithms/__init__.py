# SPDX-License-Identifier: Apache-2.0
"""One file per paper."""

from __future__ import annotations

from archipel.algorithms.alone import Alone
from archipel.algorithms.ditto import Ditto
from archipel.algorithms.dsgd import DSGD
from archipel.algorithms.fedavg import FedAvg
from archipel.algorithms.fedopt import FedOpt
from archipel.algorithms.fedprox import FedProx
from archipel.algorithms.fedsgd import FedSGD
from archipel.algorithms.finetuned import FineTuned
from archipel.algorithms.scaffold import Scaffold

ALGORITHMS = {
    "alone": Alone,
    "ditto": Ditto,
    "dsgd": DSGD,
    "fedavg": FedAvg,
    "fedopt": FedOpt,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "finetuned": FineTuned,
    "scaffold": Scaffold,
}

__all__ = [
    "ALGORITHMS",
    "DSGD",
    "Alone",
    "Ditto",
    "FedAvg",
    "FedOpt",
    "FedProx",
    "FedSGD",
    "FineTuned",
    "Scaffold",
]
