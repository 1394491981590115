# SPDX-License-Identifier: Apache-2.0
"""Quadratics with a known optimum: f_k(w) = 1 / (2 n_k) ||A_k w - b_k||^2, as regression data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.errors import ArchipelError

ABOUT = About(name="quadratics", source="generated", licence="none needed")


def quadratics(
    parties: int = 10,
    dims: int = 5,
    points: int = 20,
    heterogeneity: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Federation, Tensor]:
    """Return least-squares data and the minimiser of sum_k n_k / n f_k, [dims].

    Party k's own solution is w_0 + heterogeneity * N(0, I), its features are stretched by factors
    that differ between parties, and it has between points and 2 * points points; with
    heterogeneity 0 all parties share one solution. There are no test points.
    """
    if min(parties, dims, points) < 1 or heterogeneity < 0:
        raise ArchipelError(
            f"parties={parties}, dims={dims}, points={points}, heterogeneity={heterogeneity}: "
            "give at least one of each and a heterogeneity of 0 or more."
        )
    rng = np.random.default_rng([seed, 6])
    sizes = rng.integers(points, 2 * points + 1, parties)
    party = np.repeat(np.arange(parties), sizes)
    stretch = rng.uniform(0.5, 1.5, (parties, dims))
    solution = rng.normal(size=dims) + heterogeneity * rng.normal(size=(parties, dims))
    A = rng.normal(size=(len(party), dims)) * stretch[party]
    b = (A * solution[party]).sum(axis=1) + 0.1 * heterogeneity * rng.normal(size=len(party))
    fed = Federation.from_rows(
        torch.from_numpy(A).to(dtype),
        torch.from_numpy(b).to(dtype),
        party,
        test=np.zeros(len(party), np.bool_),
        task="regression",
        about=ABOUT,
    )
    return fed, optimum(fed)


def optimum(fed: Federation, uniform: bool = False) -> Tensor:
    """Return the w that minimises the mean squared error over training parties, [dims].

    Parties weigh by their number of training points, or all the same if `uniform`.
    """
    k = fed.training
    sizes = torch.diff(fed.offsets)
    party = torch.repeat_interleave(torch.arange(fed.parties), sizes)
    train = torch.arange(len(fed.x)) < fed.test_from[party]
    weight = (1 / fed.n.double().clamp(min=1)) if uniform else torch.ones(fed.parties).double()
    weight = torch.where(torch.arange(fed.parties) < k, weight, 0.0)[party] * train
    A, b = fed.x.double(), fed.y.double()
    weighted = A * weight[:, None]
    solution: Tensor = torch.linalg.lstsq(weighted.T @ A, weighted.T @ b, driver="gelsd").solution
    return solution.to(fed.x)


def load(
    parties: int = 10,
    dims: int = 5,
    points: int = 20,
    heterogeneity: float = 1.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Federation:
    """Return the data alone; `optimum` gives the solution."""
    return quadratics(parties, dims, points, heterogeneity, seed, dtype)[0]
