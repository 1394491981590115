# SPDX-License-Identifier: Apache-2.0
"""Parties made of other parties: virtual ones to train with, folds of new ones to test on.

Both keep in `Federation.origin` whose points they have, so that a real party is never counted or
reported twice: k for party k itself, the number of the first fold for a fold, -1 - k for a virtual
copy of party k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from archipel.data.rows import Bools, Ints, ranges
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from archipel.data.federation import Federation

ROTATION, SHEAR, SCALE = 0.2, 0.3, 0.15  # radians; sideways by height; around 1: largest change
LEAST_SIDE = 8  # pixels: below it x is hardly an image
_AT_ONCE = 4096  # images


def with_virtual(fed: Federation, copies: int, seed: int = 0) -> Federation:
    """Add virtual parties to those that train: `copies` of each, every one drawn differently.

    For images. A copy has the training points of its party, all of them turned, sheared and scaled
    alike (up to 0.2 rad, 0.3 and 15 %, drawn by the seed), as another hand would have written them;
    beyond the edge there is 0. It has no test points, and is called "name~1", "name~2", ...
    """
    _check_count("virtual", copies, 0)
    if fed.origin is not None:
        raise ArchipelError(
            f"virtual = {copies}: this federation has virtual parties or folds already; begin with "
            "virtual parties, then cut the new ones into folds."
        )
    if not _images(fed):
        raise ArchipelError(
            f"virtual = {copies}: points of shape {list(fed.shape)} are no images, and only these "
            "can be turned, sheared and scaled; leave it out."
        )
    if copies == 0:
        return fed
    parties, count = np.tile(np.arange(fed.training), copies), fed.training
    starts, stops = fed.offsets[:-1].numpy()[parties], fed.test_from.numpy()[parties]
    rows, sizes = ranges(starts, stops), stops - starts
    maps = torch.cat([_maps(count, seed, c) for c in range(1, copies + 1)])
    made = _moved(fed.x, torch.from_numpy(rows), maps[np.repeat(np.arange(len(maps)), sizes)])
    end = int(fed.offsets[count])  # of the training parties' points
    ends = torch.from_numpy(np.cumsum(sizes))
    every = [fed.name(k) for k in range(fed.parties)]
    names = [f"{name}~{c}" for c in range(1, copies + 1) for name in every[:count]]
    added, new = len(rows), np.arange(count, fed.parties) + len(parties)
    return replace(
        fed,
        x=torch.cat([fed.x[:end], made, fed.x[end:]]),
        y=torch.cat([fed.y[:end], fed.y[torch.from_numpy(rows)], fed.y[end:]]),
        offsets=torch.cat([fed.offsets[: count + 1], end + ends, fed.offsets[count + 1 :] + added]),
        test_from=torch.cat([fed.test_from[:count], end + ends, fed.test_from[count:] + added]),
        training=count + len(parties),
        names=_unlike([*every[:count], *names, *every[count:]]),
        origin=torch.from_numpy(np.concatenate([np.arange(count), -1 - parties, new])),
        scan=False,
    )


def cross_fitted(fed: Federation, folds: int, seed: int = 0) -> Federation:
    """Test every point of a new party once: cut its points into folds, a party of each.

    The party of fold j makes a model of its own from all points but those of fold j, and is tested
    on these. The first has the party's name and stands for it: metrics of a party are over all its
    points. The others are "name/2", "name/3", ... Folds are drawn by the seed, alike in classes.
    """
    _check_count("folds", folds, 2)
    training, new = fed.training, fed.parties - fed.training
    if new == 0:
        raise ArchipelError(
            f"folds = {folds}: there are no new parties to test on; set data.new, or leave it out."
        )
    if fed.folded:
        raise ArchipelError(f"folds = {folds}: new parties are cut into folds already.")
    first = int(fed.offsets[training])
    rows = np.arange(first, len(fed.x))
    party = fed.row_party[rows]
    fold = _folds(party, fed.strata()[rows], folds, seed)
    used = np.unique(np.stack([party, fold]), axis=1)  # a fold without points is not tested
    owners, which = used
    starts, stops = fed.offsets[:-1].numpy()[owners], fed.offsets[1:].numpy()[owners]
    taken, sizes = ranges(starts, stops), stops - starts
    at = np.repeat(np.arange(len(owners)), sizes)
    is_test = fold[taken - first] == np.repeat(which, sizes)
    order = torch.from_numpy(taken[np.lexsort((is_test, at))])
    ends = first + np.cumsum(sizes)
    tested = np.bincount(at[is_test], minlength=len(owners))
    real = training + np.searchsorted(owners, owners)
    before = np.arange(training) if fed.origin is None else fed.origin[:training].numpy()
    every = [fed.name(k) for k in range(training)]
    number = np.arange(len(owners)) - np.searchsorted(owners, owners) + 1
    folded = [
        fed.name(k) if j == 1 else f"{fed.name(k)}/{j}"
        for k, j in zip(owners.tolist(), number.tolist(), strict=True)
    ]
    return replace(
        fed,
        x=torch.cat([fed.x[:first], fed.x[order]]),
        y=torch.cat([fed.y[:first], fed.y[order]]),
        offsets=torch.cat([fed.offsets[: training + 1], torch.from_numpy(ends)]),
        test_from=torch.cat([fed.test_from[:training], torch.from_numpy(ends - tested)]),
        names=_unlike([*every, *folded]),
        origin=torch.from_numpy(np.concatenate([before, real])),
        scan=False,
    )


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArchipelError(f"{name} = {value!r}: give a whole number from {least}.")


def chosen_origin(fed: Federation, chosen: Ints) -> Tensor | None:
    """The origins of these parties where they are the only ones."""
    if fed.origin is None:
        return None
    old = fed.origin.numpy()[chosen]
    place = np.full(fed.parties, -1)
    place[chosen] = np.arange(len(chosen))
    new = place[np.where(old < 0, -1 - old, old)]
    if (new < 0).any():
        k = int(chosen[np.flatnonzero(new < 0)[0]])
        raise ArchipelError(
            f"select: '{fed.name(k)}' is a copy or a fold of a party that is not chosen; choose "
            "among real parties, then make copies and folds."
        )
    return torch.from_numpy(np.where(old < 0, -1 - new, new))


def refuse_copies(fed: Federation, what: str) -> None:
    """Refuse what would tear a party and its copies or folds apart."""
    if fed.origin is not None:
        raise ArchipelError(
            f"{what}: this federation has virtual parties or folds, which have the same points as "
            f"others; do it first, then with_virtual and cross_fitted."
        )


def held_out_copies(fed: Federation, rows: Ints, held_out: Bools) -> Bools:
    """Which rows, all of training points, are a virtual party's copies of rows held out."""
    if fed.origin is None:
        return np.zeros(len(rows), np.bool_)
    out = np.zeros(len(fed.x), np.bool_)
    out[rows[held_out]] = True
    origin, starts = fed.origin.numpy(), fed.offsets.numpy()[:-1]
    party = fed.row_party[rows]
    copied = np.flatnonzero(origin[party] < 0)
    k = party[copied]
    found = np.zeros(len(rows), np.bool_)
    found[copied] = out[starts[-1 - origin[k]] + rows[copied] - starts[k]]
    return found


def _images(fed: Federation) -> bool:
    shape = fed.shape
    return (
        fed.x.is_floating_point()
        and len(shape) in (2, 3)
        and min(shape[-2:]) >= LEAST_SIDE
        and (len(shape) == 2 or shape[0] in (1, 3, 4))
    )


def _maps(parties: int, seed: int, copy: int) -> Tensor:
    """Where a pixel of the copy comes from, `[parties, 2, 3]`: copy 1 is the same among few."""
    u = 2 * torch.from_numpy(np.random.default_rng([seed, 6, copy]).random((parties, 4))) - 1
    turn, shear, (wide, high) = ROTATION * u[:, 0], SHEAR * u[:, 1], (1 + SCALE * u[:, 2:]).T
    cos, sin, zero = turn.cos(), turn.sin(), torch.zeros(parties, dtype=u.dtype)
    x = torch.stack([cos / wide, (cos * shear - sin) / wide, zero], -1)
    y = torch.stack([sin / high, (sin * shear + cos) / high, zero], -1)
    return torch.stack([x, y], 1)


def _moved(x: Tensor, rows: Tensor, maps: Tensor) -> Tensor:
    """The images in these rows, each seen through its map."""
    shape = (len(rows), *x.shape[1:])
    out = x.new_empty(shape)
    for lo in range(0, len(rows), _AT_ONCE):
        images = x[rows[lo : lo + _AT_ONCE]]
        images = images if images.dim() == 4 else images.unsqueeze(1)
        grid = F.affine_grid(
            maps[lo : lo + _AT_ONCE].to(x.dtype), list(images.shape), align_corners=False
        )
        seen = F.grid_sample(images, grid, mode="bilinear", align_corners=False)
        out[lo : lo + _AT_ONCE] = seen.reshape(-1, *shape[1:])
    return out


def _folds(party: Ints, strata: Ints, folds: int, seed: int) -> Ints:
    """The fold of each row: a party's rows sorted by class, ties at random, dealt in turn."""
    rng = np.random.default_rng([seed, 7])
    order = np.lexsort((rng.random(len(party)), strata, party))
    sizes = np.bincount(party)
    place = ranges(np.zeros_like(sizes), sizes) + np.repeat(
        rng.integers(folds, size=len(sizes)), sizes
    )
    fold = np.empty(len(party), np.int64)
    fold[order] = place % folds
    return fold


def _unlike(names: list[str]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise ArchipelError(f"names: '{twice}' would name two parties; rename the real one.")
    return tuple(names)
