# SPDX-License-Identifier: Apache-2.0
"""How many neighbours a party shares its keys among and masks with, and how many must be left.

Bell, Bonawitz, Gascon, Lepoint, Raykova, CCS 2020, https://eprint.iacr.org/2020/704, Section 3 and
Appendix D. With n parties of which a share gamma colludes with the server and a share delta drops
out, `degree` k and `threshold` t are the smallest of these for which, but for 2^-40,

- those that are left and honest are connected (or else the server would learn two sums), and
- fewer than t of anybody's k neighbours collude; against a server that tells parties different
  things, fewer than t also with half of the honest ones (so it never gets two sets of t shares);

and, but for 2^-20, at least t of everybody's neighbours are left, so that the sum can be unmasked.

**Nobody else chooses a party's neighbours.** Each party draws its own k, uniformly and without
replacement, with a secret of the round and after it knows who takes part; it shares its keys among
these, and masks with the first of them and with those who drew it so (the paper's protocol against
a server that lies). A public seed would be worse: of keys and nonces that the server relays, those
on its side choose theirs last, or drop out, until the graph suits them. Here nothing that is told
before or after moves the draw of an honest party, and between two honest parties an edge is there
if either has drawn it.

Departures: tails of the hypergeometric distribution are added up in whole numbers, not bounded.
The condition of being connected is the paper's for a random ring of k neighbours, which asks for
more than a graph of own draws needs. `apart` bounds that one: as many as it asks for are masked
with, about half of those who hold shares. Up to 20 parties everybody is everybody's neighbour, as
in Bonawitz et al., CCS 2017.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, comb, exp, floor, inf, lgamma, log
from typing import NamedTuple

from archipel.errors import ArchipelError

COMPLETE = 20  # parties up to which all are neighbours
SECURITY, CORRECTNESS = 40, 20  # bits
_APART = 2.0 ** -(SECURITY + 1)  # the chance that is left that those who stay fall apart


class Unsafe(ArchipelError):
    """A study asks for fewer neighbours, or a lower threshold, than its parties are safe with."""


class Neighbours(NamedTuple):
    """What n parties agree on without a word: it follows from n."""

    degree: int  # k: parties that hold shares of a party's keys; n where the graph is complete
    threshold: int  # t: shares that tell a key
    masked: int  # of those that a party draws, how many it masks with
    complete: bool = False


def of_all(n: int, gamma: float = 0.0) -> Neighbours:
    """Everybody's neighbour, and its own: t = floor(2n/3) + 1, or more where more collude.

    With c parties on its side, a server that lies gets no two sets of t shares if 2t > n + c. For c
    is taken what is fewer than n/3, also where a study says that fewer collude.
    """
    return Neighbours(n, max(2 * n // 3, (n + floor(gamma * n)) // 2) + 1, n, True)


@lru_cache
def of_given(n: int, k: int, gamma: float, delta: float) -> Neighbours:
    """Of a degree that is given: refused where the graph may fall apart, or shares be too few."""
    removed = floor(gamma * n) + floor(delta * n)
    t, masked = safe(n, k, gamma), drawn(n, k, removed)
    if t > k or apart(n, masked, removed) >= _APART:
        enough = (
            j
            for j in range(k + 1, n - 1)
            if safe(n, j, gamma) <= j and apart(n, j, removed) < _APART
        )
        raise Unsafe(
            f"degree = {k}: too few neighbours for {n} parties, of which a share of {gamma:g} "
            f"colludes and {delta:g} drops out; give at least {next(enough, n - 1)}, or leave it "
            "out."
        )
    return Neighbours(k, t, masked)


def safe(n: int, k: int, gamma: float) -> int:
    """The least threshold of which a server that lies gets no two sets, but for 2^-40."""
    return max(ceil((_least(n, floor(gamma * n), k) + k - 1.25) / 2) + 1, 2)


@lru_cache
def of_some(n: int, gamma: float, delta: float, lies: bool = True) -> Neighbours:
    """The smallest degree, and the threshold that goes with it; `lies`: whether the server may."""
    if gamma + (2 if lies else 1) * delta > 0.9:
        raise ArchipelError(
            f"colluding = {gamma:g} and dropouts = {delta:g}: no threshold is above the one and "
            "below what the other leaves; give smaller shares."
        )
    removed = floor(gamma * n) + floor(delta * n)
    for k in range(2, n, 2):
        if not connected(n, k, removed):
            continue
        t = safe(n, k, gamma) if lies else max(_least(n, floor(gamma * n), k) + 1, 2)
        if _left(n, ceil((1 - delta) * n), k) >= t:
            return Neighbours(k, t, drawn(n, k, removed))
    raise ArchipelError(
        f"colluding = {gamma:g} and dropouts = {delta:g} of {n} parties: no graph but the complete "
        "one is safe; give smaller shares."
    )


def drawn(n: int, k: int, removed: int) -> int:
    """How many of the k that each draws keep those who stay connected, but for 2^-41."""
    return next((a for a in range(1, k) if apart(n, a, removed) < _APART), k)


def apart(n: int, k: int, removed: int) -> float:
    """A bound on the chance that those who stay fall apart, where each has drawn its own k.

    Over all sets of s of them: nobody inside has drawn one of the others who stay, nor the other
    way round.
    """
    stay, total = n - removed, 0.0
    for s in range(1, stay // 2 + 1):
        inside = log_comb(removed + s - 1, k) - log_comb(n - 1, k)
        outside = log_comb(n - 1 - s, k) - log_comb(n - 1, k)
        chance = log_comb(stay, s) + s * inside + (stay - s) * outside
        total += exp(min(0.0, chance))
    return total


def log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) if k <= n else -inf


def connected(n: int, k: int, removed: int) -> bool:
    """Whether those who stay are connected, on a random ring of k neighbours."""
    if k > removed:
        return True
    chance = log(n) + log(n - k - 1) - log(2) if n - k > 1 else log(n)
    chance += lgamma(removed + 1) + lgamma(n - k + 1) - lgamma(n + 1) - lgamma(removed - k + 1)
    return chance < -(SECURITY + 1) * log(2)


def _terms(n: int, marked: int, k: int) -> list[int]:
    """C(n, k) P[i of k drawn are marked], for i = 0..k."""
    return [comb(marked, i) * comb(n - marked, k - i) for i in range(k + 1)]


def _least(n: int, marked: int, k: int) -> int:
    """The smallest t with P[more than t of k are marked] <= 2^-41 / n."""
    terms, tail, whole = _terms(n, marked, k), 0, comb(n, k)
    for t in range(k, -1, -1):
        if (tail + terms[t]) * n << (SECURITY + 1) > whole:
            return t
        tail += terms[t]
    return 0


def _left(n: int, marked: int, k: int) -> int:
    """The largest t with P[fewer than t of k are marked] <= 2^-20 / n."""
    terms, tail, whole = _terms(n, marked, k), 0, comb(n, k)
    for t in range(k + 1):
        if (tail + terms[t]) * n << CORRECTNESS > whole:
            return t
        tail += terms[t]
    return k
