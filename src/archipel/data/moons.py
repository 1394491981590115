# SPDX-License-Identifier: Apache-2.0
"""Two moons, turned by each party's own axis.  Zantedeschi, Bellet, Tommasi, AISTATS 2020.

https://arxiv.org/abs/1901.08460, section 6; draws follow the authors' code (vzantedeschi/Dada), so
that a seed gives their data: all parties hold the first points of one noisy sample, turned by the
angle of their axis, in the first 2 of 20 dimensions, and 5 % of the labels are flipped.
Departures: labels are 0 and 1 rather than -1 and 1; the constant feature is left to the model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.errors import ArchipelError

ABOUT = About(
    name="moons",
    source="generated, after https://github.com/vzantedeschi/Dada",
    licence="none needed",
    citation="Zantedeschi, Bellet, Tommasi, AISTATS 2020",
)
_CENTRES = ((1, 1), (-1, 1), (1, -1), (-1, -1))  # of the clusters' axes
_SHARES = (1, 2, 3, 4)  # of the parties, in tenths

Floats = npt.NDArray[np.float64]


def _draw(
    parties: int, clusters: bool, seed: int
) -> tuple[Floats, npt.NDArray[np.int64], np.random.RandomState]:
    """Return axes [K, 2], training sizes [K], and the generator for what follows."""
    if not clusters:
        rng = np.random.RandomState(seed)
        axes = rng.normal(rng.normal(size=2), np.sqrt(0.5), size=(parties, 2))
        rng = np.random.RandomState(seed)  # the authors start again
        return axes, rng.randint(3, 20, size=parties), rng
    if parties % 10:
        raise ArchipelError(
            f"parties={parties}: the four clusters hold 1 to 4 tenths each; give a multiple of 10."
        )
    rng = np.random.RandomState(seed)
    drawn = []
    for centre, share in zip(_CENTRES, _SHARES, strict=True):
        count = share * parties // 10
        axes = rng.normal(loc=centre, scale=0.3, size=(count, 2))
        drawn.append((axes, rng.randint(3, 15, size=count)))
    return np.concatenate([a for a, _ in drawn]), np.concatenate([n for _, n in drawn]), rng


def axes(parties: int = 100, clusters: bool = False, seed: int = 0) -> Floats:
    """Return the parties' true axes, [K, 2]; parties of like axes have like models."""
    return _draw(parties, clusters, seed)[0]


def _anywhere(
    size: int, noise: float, rng: np.random.RandomState
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Points at random on both moons, half of them on each; `make_moons` has them evenly spaced."""
    y = rng.permutation(np.arange(size) % 2)
    side, angle = np.where(y == 0, 1, -1), rng.uniform(0, np.pi, size)
    x = np.stack([y + side * np.cos(angle), y / 2 + side * np.sin(angle)], axis=1)
    return x + rng.normal(scale=noise, size=x.shape), y


def load(
    parties: int = 100,
    clusters: bool = False,  # axes around the four diagonals rather than around one centre
    dims: int = 20,
    test_points: int = 100,
    flipped: float = 0.05,
    own_points: bool = False,  # each party's are anywhere on its moons; the authors' share a sample
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return parties with 3 to 19 (clusters: 3 to 14) training and 100 test points each."""
    if parties < 1 or dims < 2:
        raise ArchipelError(f"parties={parties}, dims={dims}: give one party, two dims or more.")
    from sklearn.datasets import make_moons  # slow to import

    axis, train, rng = _draw(parties, clusters, seed)
    angle = np.arctan2(axis[:, 1], axis[:, 0])
    noise = 0.05 if clusters else 0.1
    samples = {
        size: make_moons(size, noise=noise, random_state=seed)
        for size in np.unique([*train, test_points]).tolist()
    }
    xs, ys = [], []
    for k in range(parties):
        for size in (int(train[k]), test_points):
            x, y = samples[size]
            if own_points:
                x, y = _anywhere(size, noise, rng)
            c, s = np.cos(angle[k]), np.sin(angle[k])
            wrong = rng.choice(size, replace=False, size=int(flipped * size))
            y = y.copy()
            y[wrong] = 1 - y[wrong]
            xs.append(x @ np.array([[c, -s], [s, c]]))
            ys.append(y)
    points = np.concatenate(xs)
    counts = np.stack([train, np.full(parties, test_points)], axis=1).ravel()
    part = np.repeat(np.arange(2 * parties), counts)
    fed = Federation.from_rows(
        torch.from_numpy(np.pad(points, ((0, 0), (0, dims - 2)))).to(dtype),
        np.concatenate(ys),
        part // 2,
        test=part % 2 == 1,
        classes=2,
        about=ABOUT,
    )
    if not clusters:
        return fed
    return replace(fed, clusters=np.repeat(range(4), np.array(_SHARES) * parties // 10).tolist())
