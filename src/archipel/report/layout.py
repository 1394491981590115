# SPDX-License-Identifier: Apache-2.0
"""Where to draw the parties of a graph, so that those who are joined lie together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def layout(A: Floats, steps: int = 300) -> Floats:
    """Return a place in the unit square for each party, `[n, n] -> [n, 2]`, by the edges' weights.

    It begins with the eigenvectors of the normalised Laplacian, and goes on with Fruchterman and
    Reingold's forces (1991): edges draw together, all push each other away. Nothing is drawn at
    random, so that the same graph looks the same.
    """
    n = A.shape[0]
    if n == 1:
        return np.full((1, 2), 0.5)
    weight = A / max(float(A.max()), 1e-300)
    root = 1 / np.sqrt(np.maximum(weight.sum(axis=1), 1e-9))
    _, vectors = np.linalg.eigh(np.eye(n) - root[:, None] * weight * root)
    around = 2 * np.pi * np.arange(n) / n  # tells apart those that have the same place
    at = vectors[:, [1, min(2, n - 1)]] * np.sqrt(n)
    at = at * np.sign(at[np.abs(at).argmax(axis=0), [0, 1]])  # eigenvectors have no sign
    at = _spread(at) + 0.05 * np.stack([np.cos(around), np.sin(around)], axis=-1)
    wanted = 1 / np.sqrt(n)
    for heat in np.linspace(0.1, 0.002, steps):
        apart = at[:, None] - at[None]
        distance = np.maximum(np.sqrt((apart**2).sum(axis=-1)), 1e-4)
        force = (wanted / distance) ** 2 - weight * distance / wanted
        move = (apart * force[..., None]).sum(axis=1) - 0.3 * (at - 0.5)  # nobody drifts away
        length = np.maximum(np.sqrt((move**2).sum(axis=-1, keepdims=True)), 1e-12)
        at = at + move / length * np.minimum(length, heat)
    return _spread(at)


def _spread(at: Floats) -> Floats:
    """The same in the unit square, in its proportions."""
    low, size = at.min(axis=0), np.ptp(at, axis=0)
    most = max(float(size.max()), 1e-12)
    placed: Floats = (at - low - size / 2) / most + 0.5
    return placed
