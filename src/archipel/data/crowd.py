# SPDX-License-Identifier: Apache-2.0
"""Synthetic(alpha, beta) of Li et al. (`archipel.data.synthetic`), party by party on demand.

Every draw is keyed by seed and party, so that a million parties take no more memory than those of
a round. u_k, W_k, b_k, v_k, x and y as there; n_k is uniform between `least` and `most`, and the
last tenth of a party's points, at least one, is for testing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel import rng
from archipel.data.about import About
from archipel.data.generated import from_generator
from archipel.data.population import Population
from archipel.data.rows import Ints
from archipel.errors import ArchipelError

ABOUT = About(
    name="crowd",
    source="generated on demand, after https://github.com/litian96/FedProx",
    licence="none needed",
    citation="Li et al., FedProx, MLSys 2020",
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Crowd:
    """A generator of parties whose models differ by alpha and whose inputs differ by beta."""

    parties: int = 1_000_000
    alpha: float = 1.0
    beta: float = 1.0
    features: int = 60
    classes: int = 10
    least: int = 10  # n_k, training and test points together
    most: int = 30
    seed: int = 0
    dtype: torch.dtype = torch.float32
    about: About = field(default=ABOUT, repr=False)
    task: ClassVar[str] = "classification"

    def sizes(self, parties: Ints) -> tuple[Ints, Ints]:
        keys = rng.keys(rng.key(self.seed, "crowd sizes"), parties)
        n = self.least + np.floor(rng.uniform(keys) * (self.most - self.least + 1))
        test = np.maximum(1, n // 10).astype(np.int64)
        return n.astype(np.int64) - test, test

    def generate(self, parties: Ints) -> tuple[Tensor, Tensor]:
        xs, ys = [], []
        train, test = self.sizes(parties)
        for k, n in zip(parties.tolist(), (train + test).tolist(), strict=True):
            x, y = self._party(rng.generator(self.seed, k, "crowd"), n)
            xs.append(x)
            ys.append(y)
        x, y = np.concatenate([np.empty((0, self.features)), *xs]), np.concatenate([[], *ys])
        return torch.from_numpy(x).to(self.dtype), torch.from_numpy(y).long()

    def _party(self, draws: np.random.Generator, n: int) -> tuple[Floats, Ints]:
        u, centre = draws.standard_normal(2) * (self.alpha, self.beta)
        v = draws.standard_normal(self.features) + centre
        weights = draws.standard_normal((self.features, self.classes)) + u
        bias = draws.standard_normal(self.classes) + u
        scale = np.arange(1, self.features + 1) ** -0.6  # Sigma_jj = j^-1.2
        x = draws.standard_normal((n, self.features)) * scale + v
        return x, np.argmax(x @ weights + bias, axis=1)


def load(
    parties: int = 1_000_000,
    alpha: float = 1.0,
    beta: float = 1.0,
    features: int = 60,
    classes: int = 10,
    least: int = 10,
    most: int = 30,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Population:
    """Return a population of so many parties."""
    if min(alpha, beta) < 0 or min(parties, features) < 1 or classes < 2 or not 2 <= least <= most:
        raise ArchipelError(
            f"crowd: parties={parties}, alpha={alpha}, beta={beta}, features={features}, "
            f"classes={classes}, least={least}, most={most}: give deviations of 0 or more, a "
            "party and a feature at least, two classes, and two points or more."
        )
    return from_generator(Crowd(parties, alpha, beta, features, classes, least, most, seed, dtype))
