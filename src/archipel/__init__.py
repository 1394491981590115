# SPDX-License-Identifier: Apache-2.0
"""Archipel: federated and decentralised learning, each algorithm written once.

>>> import archipel as ar
>>> run = ar.simulate(ar.FedAvg(lr=0.1), data="heart_disease", rounds=5, seed=0, workers=1)
>>> run.metrics["auc"] > 0.7
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archipel.adversaries.adversary import Adversary
    from archipel.algorithms import (
        APGD1,
        APGD2,
        DSGD,
        L2GD,
        Alone,
        Choco,
        Collaborative,
        Coordinate,
        Dada,
        DadaBoosted,
        Ditto,
        FedAsync,
        FedAvg,
        FedBN,
        FedBuff,
        FedDyn,
        FedNova,
        FedOpt,
        FedPer,
        FedProx,
        FedRep,
        FedSGD,
        FineTuned,
        Gossip,
        GradientTracking,
        KNNPer,
        PeFLL,
        PerFedAvg,
        PFedHN,
        PFedMe,
        Propagation,
        Scaffold,
        Walk,
        Walkman,
    )
    from archipel.bundle import load_bundle
    from archipel.comparison import Comparison, compare
    from archipel.conformance import check_algorithm, check_step
    from archipel.core import (
        Batch,
        Blueprint,
        Descent,
        Each,
        Examples,
        Near,
        Party,
        PeerAlgorithm,
        Personal,
        ServerAlgorithm,
        Uploads,
        WalkAlgorithm,
    )
    from archipel.data import Federation, load
    from archipel.engines.local.engine import LocalEngine
    from archipel.engines.plan import Plan
    from archipel.errors import ArchipelError
    from archipel.estimators import FederatedClassifier, FederatedRegressor
    from archipel.graphs import topology
    from archipel.models.model import Model
    from archipel.privacy.promise import Privacy
    from archipel.report.live import live_view
    from archipel.runs.listing import list_runs, open_run, resume
    from archipel.runs.run import Run
    from archipel.runs.simulation import simulate, sweep
    from archipel.study.file import Study
    from archipel.training.optimisers import SGD, Adam
    from archipel.training.schedules import Cosine, Decay, Inverse
    from archipel.wire.wire import Wire

_HOMES = {  # where each public name lives; loaded when first asked for, so that --help is quick
    "archipel.algorithms": "APGD1 APGD2 DSGD L2GD Alone Ditto FedAvg FedBN FedDyn FedNova FedOpt "
    "FedPer FedProx FedRep FedSGD FineTuned KNNPer PFedHN PFedMe PeFLL PerFedAvg Scaffold "
    "FedAsync FedBuff Collaborative Choco Coordinate Dada DadaBoosted Gossip GradientTracking "
    "Propagation Walk Walkman",
    "archipel.bundle": "load_bundle",
    "archipel.comparison": "Comparison compare",
    "archipel.conformance": "check_algorithm check_step",
    "archipel.core": "Batch Blueprint Descent Each Examples Party PeerAlgorithm Personal "
    "ServerAlgorithm Uploads Near WalkAlgorithm",
    "archipel.data": "Federation load",
    "archipel.engines.local.engine": "LocalEngine",
    "archipel.engines.plan": "Plan",
    "archipel.errors": "ArchipelError",
    "archipel.estimators": "FederatedClassifier FederatedRegressor",
    "archipel.graphs": "topology",
    "archipel.models.model": "Model",
    "archipel.training.optimisers": "SGD Adam",
    "archipel.report.live": "live_view",
    "archipel.runs.run": "Run",
    "archipel.runs.listing": "list_runs open_run resume",
    "archipel.training.schedules": "Cosine Decay Inverse",
    "archipel.runs.simulation": "simulate sweep",
    "archipel.study.file": "Study",
    "archipel.privacy.promise": "Privacy",
    "archipel.wire.wire": "Wire",
    "archipel.adversaries.adversary": "Adversary",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "APGD1",
    "APGD2",
    "DSGD",
    "L2GD",
    "SGD",
    "Adam",
    "Adversary",
    "Alone",
    "ArchipelError",
    "Batch",
    "Blueprint",
    "Choco",
    "Collaborative",
    "Comparison",
    "Coordinate",
    "Cosine",
    "Dada",
    "DadaBoosted",
    "Decay",
    "Descent",
    "Ditto",
    "Each",
    "Examples",
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
    "FederatedClassifier",
    "FederatedRegressor",
    "Federation",
    "FineTuned",
    "Gossip",
    "GradientTracking",
    "Inverse",
    "KNNPer",
    "LocalEngine",
    "Model",
    "Near",
    "PFedHN",
    "PFedMe",
    "Party",
    "PeFLL",
    "PeerAlgorithm",
    "PerFedAvg",
    "Personal",
    "Plan",
    "Privacy",
    "Propagation",
    "Run",
    "Scaffold",
    "ServerAlgorithm",
    "Study",
    "Uploads",
    "Walk",
    "WalkAlgorithm",
    "Walkman",
    "Wire",
    "check_algorithm",
    "check_step",
    "compare",
    "list_runs",
    "live_view",
    "load",
    "load_bundle",
    "open_run",
    "resume",
    "simulate",
    "sweep",
    "topology",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'archipel' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
