# SPDX-License-Identifier: Apache-2.0
"""Synthetic(alpha, beta).  Li et al., FedProx, MLSys 2020, https://arxiv.org/abs/1812.06127, 5.1.

u_k ~ N(0, alpha), W_k, b_k ~ N(u_k, 1), B_k ~ N(0, beta), v_k ~ N(B_k, 1), x ~ N(v_k, Sigma),
Sigma_jj = j^-1.2, y = argmax(W_k^T x + b_k), with 60 features and 10 classes. As in the authors'
code alpha and beta are standard deviations, n_k = int(lognormal(4, 2)) + 50 and 90 % of the points
train. Draws follow that code, so that `np.random.seed(seed)` there gives these very points.
Departures: `most` caps n_k; the split into train and test has its own draw.
"""

from __future__ import annotations

import numpy as np
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.errors import ArchipelError

ABOUT = About(
    name="synthetic",
    source="generated, after https://github.com/litian96/FedProx",
    licence="none needed",
    citation="Li et al., FedProx, MLSys 2020",
)
FEATURES, CLASSES = 60, 10


def load(
    alpha: float = 1.0,
    beta: float = 1.0,
    parties: int = 30,
    iid: bool = False,
    most: int | None = None,  # cap on n_k, training and test points together
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return `parties` parties whose models differ by alpha and whose inputs differ by beta."""
    if alpha < 0 or beta < 0 or parties < 1:
        raise ArchipelError(
            f"alpha={alpha}, beta={beta}, parties={parties}: "
            "give deviations of 0 or more and at least one party."
        )
    rng = np.random.RandomState(seed)  # the authors' generator
    sizes = rng.lognormal(4, 2, parties).astype(int) + 50
    sizes = sizes if most is None else np.minimum(sizes, most)
    covariance = np.diag(np.arange(1, FEATURES + 1) ** -1.2)
    if iid:
        u, v = np.zeros(parties), np.zeros((parties, FEATURES))
        shared = rng.normal(0, 1, (FEATURES, CLASSES)), rng.normal(0, 1, CLASSES)
    else:
        u = rng.normal(0, alpha, parties)
        B = rng.normal(0, beta, parties)
        v = rng.normal(B[:, None], 1, (parties, FEATURES))
    xs, ys = [], []
    for k, size in enumerate(sizes):
        if iid:
            W, b = shared
        else:
            W, b = rng.normal(u[k], 1, (FEATURES, CLASSES)), rng.normal(u[k], 1, CLASSES)
        x = rng.multivariate_normal(v[k], covariance, size)
        xs.append(x)
        ys.append(np.argmax(x @ W + b, axis=1))
    shuffle = np.random.default_rng([seed, 4])
    is_test = np.concatenate([shuffle.permutation(size) >= int(0.9 * size) for size in sizes])
    return Federation.from_rows(
        torch.from_numpy(np.concatenate(xs)).to(dtype),
        np.concatenate(ys),
        np.repeat(np.arange(parties), sizes),
        test=is_test,
        classes=CLASSES,
        about=ABOUT,
    )
