# SPDX-License-Identifier: Apache-2.0
"""What the paper on GOPA proves, beside what is exact (`gopa.py`).

Sabater, Bellet, Ramon, Machine Learning 111, 2022, https://arxiv.org/abs/2006.07218. If a move of
one value is the same as a move of the noise by theta, in squared deviations,

    theta = 1 / (h s_e^2) + spread / s_D^2,

then the view is (epsilon, delta)-private where epsilon >= sqrt(theta) + theta / 2 and
(epsilon - theta / 2)^2 >= 2 ln(2 / (delta sqrt(2 pi))) theta. The graph says what `spread` is:

    complete      1 / h
    connected     h / 3, whatever it is
    random k-out  1 / (floor((k - 1) rho / 3) - 1) + (12 + 6 ln h) / h, where the conditions hold

Departures: none.
"""

from __future__ import annotations

from math import e, floor, log, pi, sqrt
from typing import Literal, NamedTuple

from archipel.errors import ArchipelError
from archipel.privacy.analytic import smallest

Graph = Literal["complete", "connected", "k-out"]
_FACTOR: dict[Graph, float] = {"complete": 1.25, "connected": 1.25, "k-out": 3.75}  # a


class Noise(NamedTuple):
    """What the corollary gives."""

    independent: float  # s_e
    pairwise: float  # s_D
    epsilon: float


def conditions(parties: int, honest: float, neighbours: int, delta: float) -> bool:
    """Whether the theorem on random k-out graphs holds; `honest` is rho."""
    h, k = honest * parties, honest * neighbours
    return h >= 81 and k >= fewest(parties, honest, delta)


def fewest(parties: int, honest: float, delta: float) -> float:
    """rho k, at least; of a delta for the graph alone, which is a part of the whole.

    >>> round(fewest(10_000, 1.0, 1e-7 / 3.75), 2)
    104.98
    """
    h = honest * parties
    return max(4 * log(2 * h / (3 * delta)), 6 * log(h / 3), 3 / 2 + 9 / 4 * log(2 * e / delta))


def spread(graph: Graph, honest: int, neighbours: int = 0, share: float = 1.0) -> float:
    """How far pairwise noise has to move: squared, for h honest parties, a share rho of all."""
    match graph:
        case "complete":
            return 1 / honest
        case "connected":
            return honest / 3
        case "k-out":
            least = floor((neighbours - 1) * share / 3) - 1
            if least < 1:
                raise ArchipelError(
                    f"neighbours = {neighbours}: the theorem on random graphs needs more of them."
                )
            return 1 / least + (12 + 6 * log(honest)) / honest


def epsilon_of(theta: float, delta: float) -> float:
    """The smallest epsilon of the theorem."""
    factor = 2 * log(2 / (delta * sqrt(2 * pi)))
    return smallest(
        lambda eps: eps >= sqrt(theta) + theta / 2 and (eps - theta / 2) ** 2 >= factor * theta
    )


def corollary(
    graph: Graph,
    honest: int,
    epsilon: float,
    delta: float,
    total: float,
    neighbours: int = 0,
    share: float = 1.0,
) -> Noise:
    """Noise for (epsilon', delta') of the sum, and what is published (epsilon, `total`)-private.

    s_e^2 = c^2 / (epsilon'^2 h) with c^2 = 2 ln(1.25 / delta'), and s_D^2 = kappa s_e^2 h spread
    where total = a (delta' / 1.25)^(kappa / (kappa + 1)).

    >>> made = corollary("k-out", 10_000, 0.1, 1e-8, 1e-7, neighbours=105)
    >>> round(made.pairwise, 2)
    44.72
    """
    power = log(total / _FACTOR[graph]) / log(delta / 1.25)
    if not 0 < power < 1:
        raise ArchipelError(
            f"delta = {total}: pairwise noise takes a part of it; give more than delta' = {delta}."
        )
    kappa = power / (1 - power)
    s_e = sqrt(2 * log(1.25 / delta) / honest) / epsilon
    s_D = s_e * sqrt(kappa * honest * spread(graph, honest, neighbours, share))
    return Noise(s_e, s_D, sqrt(1 + 1 / kappa) * epsilon)
