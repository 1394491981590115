# SPDX-License-Identifier: Apache-2.0
"""What GOPA tells of each party, exactly, and the noise that a promise needs.

Sabater, Bellet, Ramon, Machine Learning 111, 2022, https://arxiv.org/abs/2006.07218. Each of n
parties picks k others; G joins who picked whom. Party u publishes

    x_u + sum_v D_uv + e_u,    D_uv = -D_vu,

and in the mean of all of them the pairwise terms cancel. Parties that collude know their own terms
and subtract them. What is left of the h honest ones, on the graph G_H among them, is

    Gaussian form   N(x_H, s_e^2 I + s_D^2 L(G_H))  with D ~ N(0, s_D^2): so, with that covariance
                    S, mu_u^2 = (S^-1)_uu, and (epsilon, delta) follow from mu exactly.
    modular form    uniform integers modulo 2^64 with a given sum, where G_H is connected and D is
                    uniform: the sum alone, and mu = 1 / (s_e sqrt(h)), the trusted curator's.

Departures: the paper bounds mu by a theorem (`gopa_theorem.py`), some twice as large as it is; and
its noise is Gaussian, where the modular form's is a stream of AES-256.

Who is honest is not known, and G is random. Colluders are chosen before the graph is, so what is
bad of G_H has a chance, which is a part of delta (`failure`):

- G_H is not connected: some s <= h / 2 of the honest pick nobody of the other h - s, and those
  none of them. Added up over all such sets (`disconnected`).
- The second eigenvalue l of L(G_H) is small. By eigenvectors, mu^2 <= 1 / (h s_e^2) + (1 - 1/h) /
  (s_e^2 + s_D^2 l). The Laplacians of all picks, those made twice counted twice, are a sum of
  matrices of norm 2 with mean 2 k h / (n - 1) beside the constant vector, so by the matrix Chernoff
  bound [Tropp 2012, Theorem 5.1.1; without replacement: Gross and Nesme 2010, since tr exp is
  convex] it is less than (1 - t) of that with a chance of (h - 1) (e^-t / (1 - t)^(1-t))^(k h /
  (n - 1)) at most; counted once, l is half of it at least (`gap`).
- The complete graph, k = n - 1, has l = h whoever is honest, and no chance of failure.

Fewer colluders see less, so what holds for h honest parties holds for more. Parties that drop out
do so whatever the graph is, and are counted as if all were honest.

On a grid. Values, e and D are integers in steps of g, 2^32 of them in s_e at least; e and D are
discrete Gaussians, as good as rounded ones (`grid.py`). A view is a linear map of (e, D). If x
moves by a vector of integers, the least move of (e, D) that does the same, D rounded and e made up
for it, is an integer, too, and longer by some steps: that and the rounding of x is `_rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, floor, inf, log, log1p, sqrt
from typing import Literal, get_args

import numpy as np

from archipel.errors import ArchipelError, unknown
from archipel.privacy.analytic import delta_of, mu_of
from archipel.privacy.curves import Array
from archipel.privacy.grid import counted
from archipel.privacy.noise import CLOSE, MISSED

Form = Literal["modular", "gaussian"]
FINE = 2.0**-32  # the grid's step, in deviations of independent noise, at most
FEW = 20  # parties or fewer: everybody with everybody
_SPENT = 0.1  # the share of delta that a bad graph may cost
_FAR = 0.9  # t, where nobody says how many neighbours there are


# -- a graph, exactly ------------------------------------------------------------------------------


def k_out(parties: int, neighbours: int, draw: np.random.Generator) -> Array:
    """A graph in which everybody picks so many others, as a matrix of 0 and 1 `[n, n]`.

    >>> k_out(4, 3, np.random.default_rng(0)).sum(axis=0)
    array([3., 3., 3., 3.])
    """
    order = draw.random((parties, parties))
    np.fill_diagonal(order, inf)
    picked = np.argpartition(order, neighbours - 1, axis=1)[:, :neighbours]
    graph = np.zeros((parties, parties))
    graph[np.arange(parties)[:, None], picked] = 1
    return np.maximum(graph, graph.T)


def laplacian(graph: Array) -> Array:
    return np.diag(graph.sum(axis=1)) - graph


def distance(graph: Array, independent: float, pairwise: float) -> float:
    """mu of the party that is told most of, if its value moves by 1, on the honest parties' graph.

    >>> round(distance(np.ones((4, 4)) - np.eye(4), independent=0.5, pairwise=1e6), 9)
    1.0
    """
    return float(distances(graph, independent, pairwise).max())


def distances(graph: Array, independent: float, pairwise: float) -> Array:
    """mu of each party `[h]`."""
    squares, values = _spectrum(graph)
    return np.sqrt(squares @ (1 / (independent**2 + pairwise**2 * values)))


def pairwise_on(graph: Array, independent: float, mu: float) -> float:
    """The least s_D with which nobody on this graph is told more of than mu."""
    squares, values = _spectrum(graph)

    def worst(pairwise: float) -> float:
        return sqrt(float((squares @ (1 / (independent**2 + pairwise**2 * values))).max()))

    if worst(1e9 * independent) > mu:
        raise ArchipelError(
            f"mu = {mu:.4g}: no pairwise noise is enough on this graph, whose parties are apart or "
            "have too little noise of their own; give more neighbours or more independent noise."
        )
    low, high = 0.0, independent
    while worst(high) > mu:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if worst(middle) <= mu else (middle, high)
    return high


def _spectrum(graph: Array) -> tuple[Array, Array]:
    """The squares of the Laplacian's eigenvectors `[h, h]`, and its eigenvalues `[h]`.

    What is 0 but for rounding is 0: pairwise noise must not seem to hide what it does not.
    """
    values, vectors = np.linalg.eigh(laplacian(graph))
    return vectors**2, np.where(values > 1e-9 * max(1.0, values[-1]), values, 0.0)


# -- graphs that are not drawn yet -----------------------------------------------------------------


def disconnected(parties: int, honest: int, neighbours: int) -> float:
    """A bound on the chance that the honest parties' graph is not connected.

    >>> disconnected(1000, 500, 20) < 1e-7
    True
    """
    n, h, k = parties, honest, neighbours
    if h < 2 or k >= n - 1:
        return 0.0 if h > 1 else 1.0
    from scipy.special import gammaln  # takes long to import

    def choose(a: Array, b: float) -> Array:
        with np.errstate(invalid="ignore"):
            found = gammaln(a + 1) - gammaln(b + 1) - gammaln(a - b + 1)
        return np.where(a >= b, found, -inf)

    s = np.arange(1, h // 2 + 1, dtype=np.float64)
    sets = gammaln(h + 1) - gammaln(s + 1) - gammaln(h - s + 1)
    everybody = choose(np.array([float(n - 1)]), k)[0]
    inside, outside = choose(n - 1 - (h - s), k) - everybody, choose(n - 1 - s, k) - everybody
    return float(min(1.0, np.exp(sets + s * inside + (h - s) * outside).sum()))


def gap(parties: int, honest: int, neighbours: int, failure: float) -> float:
    """What the honest graph's second eigenvalue has at least, but for a chance of `failure`."""
    n, h, k = parties, honest, neighbours
    if k >= n - 1:
        return float(h)
    mean, needed = k * h / (n - 1), log(h - 1) - log(failure) if h > 1 else inf
    if needed >= mean:
        return 0.0
    low, high = 0.0, 1.0  # of t: the chance falls as it grows
    for _ in range(60):
        t = (low + high) / 2
        low, high = (low, t) if mean * (t + (1 - t) * log1p(-t)) >= needed else (t, high)
    return (1 - high) * mean


# -- what a promise needs --------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """GOPA with its noise, in the values' own unit."""

    form: Form
    parties: int  # n
    honest: int  # h: that publish, at least
    neighbours: int  # k
    independent: float  # s_e
    pairwise: float  # s_D; 0 in the modular form, whose terms are uniform
    failure: float  # the chance of a bad graph: a part of delta

    @property
    def error(self) -> float:
        """The deviation of a mean in which all parties are."""
        return self.independent / sqrt(self.parties)

    def mu(self, moved: float = 1.0, size: int = 1) -> float:
        """What is told, at most, of `size` numbers that move by so much; but for `failure`."""
        s_e, h, d = self.independent, self.honest, size
        each = 1 / (h * s_e**2)
        if self.form == "gaussian":
            smallest = gap(self.parties, h, self.neighbours, self.failure)
            each += (1 - 1 / h) / (s_e**2 + self.pairwise**2 * smallest)
        return sqrt(each) * (moved + s_e * FINE * sqrt(d)) + _rounding(
            self.form, h, self.neighbours, d
        )

    def delta(self, epsilon: float, moved: float = 1.0, size: int = 1) -> float:
        """Of one run, with the chance of a bad graph in it."""
        drawn = _drawn(self.form, self.honest, self.neighbours, size)
        ideal = max(0.0, epsilon - 2 * CLOSE * drawn)
        _, found = counted(ideal, delta_of(self.mu(moved, size), ideal), drawn)
        return min(1.0, found + self.failure)


def plan(
    deviation: float,
    parties: int,
    *,
    honest: float = 1.0,
    dropouts: float = 0.0,
    neighbours: int | None = None,
    form: Form = "modular",
    failure: float = 1e-6,
    excess: float = 0.05,
    moved: float = 1.0,
    size: int = 1,
) -> Plan:
    """GOPA that tells no more than a sum with noise of this deviation does.

    `honest` is rho, the share of the parties that do not collude, and `dropouts` the share that may
    vanish; `excess` is how much more noise the Gaussian form may have, to which less pairwise noise
    is enough; `failure` is the most that a bad graph may cost of delta.

    >>> round(plan(10.0, 100).independent, 6)
    1.0
    """
    if form not in get_args(Form):
        raise unknown("form", str(form), get_args(Form))
    h = _honest(parties, honest, dropouts)
    k = _neighbours(parties, h, neighbours, form, failure)
    bad = _bad(parties, h, k, form, failure)
    allowed = moved / deviation - _rounding(form, h, k, size)
    factor = 1 + excess if form == "gaussian" else 1.0
    room = allowed - FINE * sqrt(size / h)
    if room <= 0:
        raise ArchipelError(
            f"size = {size}: so many numbers are too many for noise of deviation {deviation:.4g} "
            "on a grid of 2^-32 of it; give fewer."
        )
    s_e, s_D = factor * moved / (sqrt(h) * room), 0.0
    if form == "gaussian":
        mu = allowed / (moved + s_e * FINE * sqrt(size))
        spare, smallest = mu**2 - 1 / (h * s_e**2), gap(parties, h, k, bad)
        s_D = sqrt(max(0.0, (1 - 1 / h) / spare - s_e**2) / smallest) * (1 + 1e-12)
    return Plan(form, parties, h, k, s_e, s_D, bad)


def planned(
    epsilon: float,
    delta: float,
    parties: int,
    *,
    honest: float = 1.0,
    dropouts: float = 0.0,
    neighbours: int | None = None,
    form: Form = "modular",
    excess: float = 0.05,
    moved: float = 1.0,
    size: int = 1,
) -> Plan:
    """GOPA that is (epsilon, delta)-private for values that may move by `moved`, in one run.

    >>> made = planned(1.0, 1e-5, 1000)
    >>> made.neighbours, made.delta(1.0) <= 1e-5
    (2, True)
    """
    if not (0 < epsilon < inf and 0 < delta < 1):
        raise ArchipelError(
            f"epsilon = {epsilon}, delta = {delta}: give an epsilon above 0 and a delta between 0 "
            "and 1."
        )
    h = _honest(parties, honest, dropouts)
    k = _neighbours(parties, h, neighbours, form, _SPENT * delta)
    drawn = _drawn(form, h, k, size)
    left = epsilon - 2 * CLOSE * drawn
    missed = (1 + exp(min(epsilon, 100))) * drawn * MISSED
    room = (delta - _bad(parties, h, k, form, _SPENT * delta) - missed) / exp(CLOSE * drawn)
    if left <= 0 or room <= 0:
        raise ArchipelError(
            f"epsilon = {epsilon}, delta = {delta}: too small for {drawn} numbers of noise to be "
            "drawn closely enough; give larger ones, or fewer numbers."
        )
    return plan(
        moved / mu_of(left, room), parties, honest=honest, dropouts=dropouts, moved=moved,
        neighbours=k, form=form, failure=_SPENT * delta, excess=excess, size=size,
    )  # fmt: skip


def neighbours_of(
    parties: int, honest: float, dropouts: float, form: Form, failure: float, asked: int | None
) -> int:
    """k as asked, or the fewest; refused where a bad graph is more likely than `failure`."""
    h = _honest(parties, honest, dropouts)
    k = _neighbours(parties, h, asked, form, failure)
    _bad(parties, h, k, form, failure)
    return k


def _honest(parties: int, honest: float, dropouts: float) -> int:
    """h: honest parties that publish, at least."""
    if not 0 < honest <= 1 or not 0 <= dropouts < 1:
        raise ArchipelError(
            f"honest = {honest}, dropouts = {dropouts}: give shares of the parties, honest above 0 "
            "and up to 1, dropouts from 0 to below 1."
        )
    h = floor(honest * parties + 1e-9) - ceil(dropouts * parties - 1e-9)
    if h < 2:
        raise ArchipelError(
            f"honest = {honest}, dropouts = {dropouts}: of {parties} parties that leaves "
            f"{max(h, 0)} honest ones, and a value hides among two or more; give a larger share, "
            "or more parties."
        )
    return h


def _neighbours(n: int, h: int, asked: int | None, form: Form, failure: float) -> int:
    """k: as asked, or the fewest with which a bad graph is as rare as it may be."""
    if asked is not None:
        if not 1 <= asked < n:
            raise ArchipelError(f"neighbours = {asked}: give 1 to {n - 1}, of {n} parties.")
        return asked
    if n <= FEW:
        return n - 1
    if form == "modular":
        low, high = 1, n - 1
        while low < high:
            k = (low + high) // 2
            low, high = (low, k) if disconnected(n, h, k) <= failure else (k + 1, high)
        return high
    rate = _FAR + (1 - _FAR) * log1p(-_FAR)
    return min(n - 1, ceil((log(h - 1) - log(failure)) * (n - 1) / (h * rate)))


def _bad(n: int, h: int, k: int, form: Form, failure: float) -> float:
    """The chance of a bad graph, which is at most `failure`."""
    if k >= n - 1:
        return 0.0
    found = disconnected(n, h, k) if form == "modular" else failure
    if found > failure or (form == "gaussian" and gap(n, h, k, failure) == 0):
        raise ArchipelError(
            f"neighbours = {k}: too few for {n} parties of which {h} are honest and publish: that "
            f"they are apart is more likely than {failure:.2g}; give "
            f"{_neighbours(n, h, None, form, failure)} or more, or leave it out."
        )
    return found


def _rounding(form: Form, h: int, k: int, size: int) -> float:
    """How much further a move is on the grid, in mu: see above."""
    if form == "modular":  # a move is shared out among h parties, in whole steps
        return 0.5 * FINE * sqrt(h * size)
    edges = min(h * k, h * (h - 1) // 2)  # of degrees at most h - 1: their squares add up to
    return 0.5 * FINE * sqrt(size) * (sqrt(2 * edges * (h - 1)) + sqrt(edges))


def _drawn(form: Form, h: int, k: int, size: int) -> int:
    """How many integers of noise there are; uniform terms are no noise."""
    return size * h * (1 + k * (form == "gaussian"))


# -- beside it -------------------------------------------------------------------------------------


def curator_error(epsilon: float, delta: float, parties: int, moved: float = 1.0) -> float:
    """The deviation of a mean by whom everybody trusts."""
    return moved / (parties * mu_of(epsilon, delta))


def local_error(epsilon: float, delta: float, parties: int, moved: float = 1.0) -> float:
    """The deviation of a mean of values that everybody noises for itself."""
    return moved / (sqrt(parties) * mu_of(epsilon, delta))


def gopa_error(
    epsilon: float, delta: float, parties: int, moved: float = 1.0, honest: float = 1.0
) -> float:
    """The deviation of GOPA's mean, by the modular form."""
    return planned(epsilon, delta, parties, moved=moved, honest=honest).error
