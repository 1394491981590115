# SPDX-License-Identifier: Apache-2.0
"""SGD by a token that walks at random from party to party, and what each of them learns.

Cyffers, Bellet, AISTATS 2022, https://arxiv.org/abs/2012.05326, Algorithm 3: at every step the
token is sent to one of n parties, all alike; it adds noise N(0, σ² I) to its gradient and takes a
step. Party v sees the model when the token comes to it.

If the loss is convex and smooth, and the step no longer than 2 / smoothness, a contribution is
hidden by the noise of all steps until somebody looks: its Rényi divergence after i of them is
α L² / (2 σ² i), L being how far one gradient may move [Feldman, Mironov, Talwar, Thakurta, FOCS
2018, https://arxiv.org/abs/1808.06651].

`cost` is what follows for v's view of u, step by step. Tell v more than it sees: the model before
each of u's turns, and how many steps passed before each look. A contribution of u's is then
followed by a look at v's next turn or before u's next one, whichever comes first, after i steps,
i ~ Geometric(2 / n). Looks compose, and i is independent of data, so K contributions cost

    K / (α - 1) ln E exp(α (α - 1) L² / (2 σ² i)).

i = 1, a contribution that v sees at once, is in it. A party's turns after K are noise alone. The
last n / 20 steps are noise alone as well, and everybody may be told the model after them: one look
more, at one contribution, after that many steps: α L² / (2 σ²) / (n / 20).

`paper_noise` and `paper_local_noise` are the recipes of the paper's experiments (Theorem 5), for
comparison: 2 K L² α ln n / (σ² n) where σ >= L sqrt(2 α (α - 1)), advanced composition for what v
sees at once, and a number of these by Chernoff's inequality in a form for deviations below the
mean, which is no bound where n is far above K.

Departures: the last steps are noise; L is how far a gradient may move, twice its largest norm,
where the authors' code takes the norm itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, expm1, inf, log, sqrt
from typing import NamedTuple

import numpy as np

from archipel.errors import ArchipelError
from archipel.privacy.analytic import mu_of, smallest
from archipel.privacy.checks import check_count, check_delta, positive
from archipel.privacy.curves import Array

_MORE = 1.2  # contributions of a party at most, in those that it has on average


def contributions(parties: int, steps: int) -> int:
    """K: how often a party may contribute."""
    if check_count("parties", parties) < 2:
        raise ArchipelError(f"parties = {parties}: a walk needs 2 parties or more.")
    return ceil(_MORE * check_count("steps", steps) / parties)


def quiet(parties: int) -> int:
    """Steps at the end that are noise alone."""
    return ceil(parties / 20)


def cost(
    sigma: float, moves: float, parties: int, steps: int, delta: float, together: int = 1
) -> float:
    """ε at δ of each party towards `together` others, where a gradient may move by `moves`.

    >>> round(cost(1.0, 0.4, 2000, 20000, 1e-6), 2)
    2.15
    """
    if not together < parties:
        raise ArchipelError(f"together = {together}: there are {parties} parties; give fewer.")
    half = (positive("moves", moves) / positive("sigma", sigma)) ** 2 / 2
    orders = 1 + np.geomspace(1e-2, 1e4, 241)
    orders = orders[orders * (orders - 1) * half < 600]  # e to that is a number still
    if not len(orders):
        return inf
    steps_until = np.arange(1, 30 * parties + 1)
    soon = (1 + check_count("together", together)) / parties
    chance = soon * (1 - soon) ** (steps_until - 1.0)
    chance[-1] += 1 - chance.sum()  # the rest is later still
    grown = [chance @ np.expm1(a * (a - 1) * half / steps_until) for a in orders]
    divergence = contributions(parties, steps) * np.log1p(grown) / (orders - 1)
    divergence += orders * half / quiet(parties)
    return float(np.min(divergence + log(1 / check_delta(delta)) / (orders - 1)))


def noise_for(epsilon: float, delta: float, moves: float, parties: int, steps: int) -> float:
    """The least σ with which the walk is (ε, δ)-network private."""
    positive("epsilon", epsilon)
    return smallest(
        lambda sigma: sigma > 0 and cost(sigma, moves, parties, steps, delta) <= epsilon
    )


def local_noise(epsilon: float, delta: float, moves: float, parties: int, steps: int) -> float:
    """The least σ where everybody sees every step, exactly: K Gaussian mechanisms."""
    return moves * sqrt(contributions(parties, steps)) / mu_of(epsilon, delta)


# -- the recipe of the paper's experiments ---------------------------------------------------------


def paper_local_noise(epsilon: float, delta: float, L: float, parties: int, steps: int) -> float:
    """σ by advanced composition of K Gaussian mechanisms."""
    K = contributions(parties, steps)
    return sqrt(2 * log(1.25 * K / delta)) * L / _once(epsilon, delta, K, K, simple=False)


def _once(epsilon: float, delta: float, K: int, count: int, simple: bool) -> float:
    """ε of one of `count` mechanisms that cost ε together."""

    def over(one: float) -> bool:
        found = sqrt(2 * count * log(K / delta)) * one + count * one * expm1(one)
        return (min(found, count * one) if simple else found) > epsilon

    return smallest(over)


def paper_noise(epsilon: float, delta: float, L: float, parties: int, steps: int) -> float:
    """σ where what is spotted and the rest share ε so that both need the same noise."""
    K = contributions(parties, steps)
    seen = ceil(2 * K / parties + sqrt(6 * K * log(1 / delta) / parties))

    def for_spotted(part: float) -> float:
        once = _once(part * epsilon, delta, K, seen, simple=True)
        return sqrt(2 * log(1.25 * K / delta)) * L / once

    def for_rest(part: float) -> float:
        rest = (1 - part) * epsilon
        if parties * log(1 / delta) / (2 * log(parties)) <= K:
            return 4 * L * sqrt(2 * K * log(parties) * log(1 / delta) / parties) / rest

        def enough(sigma: float) -> bool:
            if sigma == 0:
                return False
            alpha = (1 + sqrt(1 + 2 * (sigma / L) ** 2)) / 2
            paid = 2 * K * L * L * alpha * log(parties) / (sigma**2 * parties)
            return paid + log(1 / delta) / (alpha - 1) < rest

        return smallest(enough)

    low, high = 1e-6, 1 - 1e-6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if for_spotted(middle) > for_rest(middle) else (low, middle)
    return max(for_spotted(high), for_rest(high))


# -- the walk --------------------------------------------------------------------------------------


class Walk(NamedTuple):
    """How a walk went."""

    models: Array  # [points, p] after every `every` steps
    used: int  # steps with a gradient; the others were noise alone


def walk(
    gradient: Callable[[Array, int], Array],
    start: Array,
    parties: int,
    steps: int,
    lr: float,
    clip: float,
    sigma: float,
    rng: np.random.Generator,
    every: int = 1000,
) -> Walk:
    """Simulate a walk: `gradient(w, k)` is party k's, clipped to `clip`; it moves by 2 clip.

    Steps are contractions, which `cost` needs, where gradients are never longer than `clip`.
    """
    most, w = contributions(parties, steps), np.array(start, np.float64)
    counts, end = np.zeros(parties, np.int64), steps - quiet(parties)
    kept, used = [w.copy()], 0
    for t, k in enumerate(rng.integers(parties, size=steps).tolist()):
        update = sigma * rng.standard_normal(len(w))
        if counts[k] < most and t < end:
            g = gradient(w, k)
            size = float(np.linalg.norm(g))
            update += g * min(1.0, clip / size) if 0 < size < inf else 0.0
            counts[k], used = counts[k] + 1, used + 1
        w = w - lr * update
        if (t + 1) % every == 0:
            kept.append(w.copy())
    return Walk(np.array(kept), used)
