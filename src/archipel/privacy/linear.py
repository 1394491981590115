# SPDX-License-Identifier: Apache-2.0
"""What a linear protocol with Gaussian noise tells of each participant, exactly.

Participants have values x, and each adds noise to its own. Whatever is sent is linear in that: all
that an adversary sees together is M (x + η) + N, with Gaussian η and N. GOPA, gossip, a token on a
ring, a sum with noise: only M and the covariances differ. Noise that the adversary knows, because
it drew it, has deviation 0.

If x_u moves by 1, the view's mean moves by m = M e_u and its covariance V stays. The best test of
one against the other sees a Gaussian moved by mu_u deviations, mu_u² = m' V⁻¹ m, and (ε, δ) follow
from mu (`analytic.epsilon_of`). Where V is singular, the pseudo-inverse takes the place of the
inverse if m lies in V's range; else a direction without noise tells of x_u, and mu_u is infinite.

Written without V: with F a factor of it, V = F F', mu_u is the least norm of an a with F a = m: how
far the noise itself would have to be moved. Singular values of F keep twice the digits that those
of V do. What is too small to tell from rounding counts as no noise, which is the safe side. Nobody
loses more than if x + η itself were seen: 1 / the deviation of its own noise.

Values that are vectors, each coordinate treated alike with noise of its own, move by their
distance: mu_u times that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from archipel.errors import ArchipelError
from archipel.privacy.curves import Array

_ROUNDING = 64 * np.finfo(np.float64).eps


def distances(view: ArrayLike, own: ArrayLike, added: ArrayLike | None = None) -> Array:
    """mu of each participant `[n]`, if its value may move by 1.

    `view` is M `[k, n]`: each row is a number that is seen. `own` has the deviations of the
    participants' own noise `[n]`, or a factor of its covariance `[n, r]`. `added` is a factor of
    N's covariance `[k, r]`: a column for each further source of noise, a row for each number seen.

    >>> distances(np.ones((1, 4)), own=np.full(4, 0.5))  # a sum of four
    array([1., 1., 1., 1.])
    """
    M = _matrix("view", view)
    noise = np.asarray(own, dtype=np.float64)
    own_factor = _matrix("own", np.diag(noise) if noise.ndim == 1 else noise)
    if len(own_factor) != M.shape[1]:
        raise ArchipelError(
            f"own = noise of {len(own_factor)} participants: the view has {M.shape[1]} columns, "
            "one for each; give as many."
        )
    parts = [M @ own_factor]
    if added is not None:
        parts.append(_matrix("added", added))
        if len(parts[1]) != len(M):
            raise ArchipelError(
                f"added = noise in {len(parts[1])} numbers: the view has {len(M)} rows, one for "
                "each number that is seen; give as many."
            )
    with np.errstate(divide="ignore"):
        alone = 1 / noise if noise.ndim == 1 else _least_norms(own_factor, np.eye(len(own_factor)))
    return np.minimum(_least_norms(np.hstack(parts), M), np.abs(alone))


def distances_from(view: ArrayLike, covariance: ArrayLike) -> Array:
    """mu of each participant `[n]`, from the covariance `[k, k]` of all noise that is seen.

    For many sources of noise: the factor of V need not be written down. With half the digits.

    >>> distances_from(np.eye(2), np.diag([4.0, 0.25]))
    array([0.5, 2. ])
    """
    M, V = _matrix("view", view), _matrix("covariance", covariance)
    if V.shape != (len(M), len(M)) or not np.allclose(V, V.T, rtol=1e-9, atol=0):
        raise ArchipelError(
            f"covariance = an array of shape {V.shape}: give a symmetric matrix with a row for "
            f"each of the {len(M)} numbers that are seen."
        )
    size = np.sqrt(np.maximum(np.diag(V), 0.0))
    scale = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(V / np.outer(scale, scale))
    kept = values > _ROUNDING * len(V)
    root = vectors[:, kept] * np.sqrt(values[kept])
    return _least_norms(root, M / scale[:, None], beyond=_ROUNDING**0.5)


def _least_norms(F: Array, M: Array, beyond: float = _ROUNDING) -> Array:
    """The least norm of a with F a = M e_u, for each u; infinite where there is none.

    What F does not reach counts from a share `beyond` of M e_u on: F is as exact as that.
    """
    if F.shape[1] > F.shape[0]:
        F = np.asarray(np.linalg.qr(F.T, mode="r")).T  # the same covariance from fewer sources
    size = np.linalg.norm(F, axis=1, keepdims=True)
    heard = size[:, 0] > 0  # rows without noise tell everything that they have
    told = np.any(M[~heard] != 0, axis=0)
    rows, seen = F[heard] / size[heard], M[heard] / size[heard]  # numbers in their own deviations
    if not rows.size:
        return np.where(told, np.inf, 0.0)
    U, s, _ = np.linalg.svd(rows)
    limit = _ROUNDING * max(rows.shape)
    rank = int(np.sum(s > limit * s[0]))
    inside, outside = U[:, :rank].T @ seen, U[:, rank:].T @ seen
    reach = np.linalg.norm(seen, axis=0)
    told |= np.linalg.norm(outside, axis=0) > beyond * max(rows.shape) * reach
    return np.where(told, np.inf, np.linalg.norm(inside / s[:rank, None], axis=0))


def _matrix(name: str, value: ArrayLike) -> Array:
    found = np.asarray(value, dtype=np.float64)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise ArchipelError(
            f"{name} = an array of shape {found.shape}: give a matrix of finite numbers."
        )
    return found
