# SPDX-License-Identifier: Apache-2.0
"""Federations, bundled datasets and partitioners.

>>> from archipel.data import load
>>> load("heart_disease")
Federation 'heart_disease': 4 parties, 488 training and 252 test points of shape (13,), 2 classes
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from archipel.data import (
    cifar,
    crowd,
    fashion_mnist,
    femnist,
    heart_disease,
    mnist,
    moons,
    quadratic,
    school,
    shakespeare,
    synthetic,
    tcga_brca,
    uci_har,
)
from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.data.generated import Generator
from archipel.data.quadratic import optimum, quadratics
from archipel.errors import ArchipelError, unknown

__all__ = [
    "DATASETS",
    "About",
    "Federation",
    "Generator",
    "datasets",
    "load",
    "optimum",
    "quadratics",
]

# name -> how to make it, what it is
DATASETS: dict[str, tuple[Callable[..., Federation], About]] = {
    "cifar10": (cifar.load_10, cifar.ABOUT_10),
    "cifar100": (cifar.load_100, cifar.ABOUT_100),
    "crowd": (crowd.load, crowd.ABOUT),
    "fashion_mnist": (fashion_mnist.load, fashion_mnist.ABOUT),
    "femnist": (femnist.load, femnist.ABOUT),
    "heart_disease": (heart_disease.load, heart_disease.ABOUT),
    "mnist": (mnist.load, mnist.ABOUT),
    "moons": (moons.load, moons.ABOUT),
    "quadratics": (quadratic.load, quadratic.ABOUT),
    "school": (school.load, school.ABOUT),
    "shakespeare": (shakespeare.load, shakespeare.ABOUT),
    "synthetic": (synthetic.load, synthetic.ABOUT),
    "tcga_brca": (tcga_brca.load, tcga_brca.ABOUT),
    "uci_har": (uci_har.load, uci_har.ABOUT),
}


def datasets() -> dict[str, About]:
    """Return the datasets `load` knows and where they come from."""
    return {name: about for name, (_, about) in DATASETS.items()}


def load(
    name: str,
    *,
    partition: str | None = None,
    parties: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    test_fraction: float | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Federation:
    """Return a dataset by name; what is None is the dataset's own choice.

    `partition` deals the points out as `archipel.data.partition` says; for data with parties of
    its own it takes these apart. Further options are those of the dataset's own `load`.
    """
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    make = DATASETS[name][0]
    known = inspect.signature(make).parameters
    given = {"folder": folder, "test_fraction": test_fraction, "dtype": dtype, **options}
    given = {key: value for key, value in given.items() if value is not None}
    deals = "partition" in known  # itself
    if partition is not None and deals:
        given["partition"] = partition
    if parties is not None and "parties" in known:
        given["parties"] = parties
    elif parties is not None and partition is None:
        raise ArchipelError(
            f"parties={parties}: {name} has parties of its own; say partition='iid' as well, "
            "or leave parties out."
        )
    for option in given:
        if option not in known:
            raise unknown(f"option of dataset '{name}'", option, known)
    fed = make(**given, seed=seed)
    if partition is None or deals:
        return fed
    return fed.repartition(partition, parties or fed.training, seed)
