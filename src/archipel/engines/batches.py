# SPDX-License-Identifier: Apache-2.0
"""Which of its training points each party of a stack takes at each local step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel import rng
from archipel.rng import Ints, Keys

Floats = NDArray[np.float64]
_WORDS = 1 << 20  # random words that are drawn at a time


class Table(NamedTuple):
    """The mini-batches of m parties over T steps; a party's row is empty after its last step."""

    rows: Tensor  # [m, T, b] rows of the federation; padding repeats a valid one
    weights: Tensor  # [m, T, b] 1 / (points in the batch), 0 for padding
    lengths: Ints  # [m, T] points in each batch, 0 after the last step
    first: Ints  # [m] index of the first of these steps among the party's draws this round


class Batches:
    """Streams of mini-batches: shuffled anew each epoch, cut into batches, the last one short."""

    def __init__(self, starts: Ints, sizes: Ints, keys: Keys, dtype: torch.dtype) -> None:
        self._starts, self._sizes, self._keys, self._dtype = starts, sizes, keys, dtype
        self._drawn: dict[int | float | None, Ints] = {}
        self._ahead: dict[int | float | None, Table] = {}

    def per_epoch(self, size: int | float | None) -> Ints:
        """Batches in one epoch of each party, `[m]`."""
        return -(-self._sizes // self._points(size))

    def draw(self, size: int | float | None) -> Table:
        """The next batch of every party (T = 1)."""
        drawn = self._cursor(size)
        ahead = self._ahead.get(size)
        if ahead is None or not self._covers(ahead, drawn):
            count = np.full(len(self._sizes), self.per_epoch(size).max())
            ahead = self._ahead[size] = self._table(size, drawn, count)
        t = int(drawn[0] - ahead.first[0])
        self._drawn[size] = drawn + 1
        one = slice(t, t + 1)
        return Table(ahead.rows[:, one], ahead.weights[:, one], ahead.lengths[:, one], drawn)

    def take(self, size: int | float | None, counts: Ints) -> Table:
        """The next counts[i] batches of party i."""
        drawn = self._cursor(size)
        self._drawn[size] = drawn + counts
        return self._table(size, drawn, counts)

    def _cursor(self, size: int | float | None) -> Ints:
        return self._drawn.get(size, np.zeros(len(self._sizes), np.int64))

    @staticmethod
    def _covers(ahead: Table, drawn: Ints) -> bool:
        t = drawn - ahead.first
        return bool((t == t[0]).all()) and 0 <= int(t[0]) < ahead.rows.shape[1]

    def _points(self, size: int | float | None) -> Ints:
        """Points in a full batch of each party, `[m]`."""
        if size is None:
            points = self._sizes
        elif isinstance(size, float):
            points = np.ceil(size * self._sizes - 1e-9).astype(np.int64)
        else:
            points = np.full(len(self._sizes), size)
        return np.asarray(np.maximum(points, 1))

    def _table(self, size: int | float | None, first: Ints, counts: Ints) -> Table:
        b, n = self._points(size), self._sizes
        per_epoch = self.per_epoch(size)
        width = int(np.minimum(b, n).max())
        # one shuffle per (party, epoch) that these steps touch
        from_epoch = first // per_epoch
        epochs = np.where(counts > 0, (first + counts - 1) // per_epoch - from_epoch + 1, 0)
        party = np.repeat(np.arange(len(n)), epochs)
        epoch = np.arange(len(party)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        epoch += from_epoch[party]
        if size is None:
            shuffled = np.concatenate([np.arange(n[i]) for i in party])
        else:
            stream = rng.subkeys(self._keys, np.full(len(n), rng.key(str(size)) >> 1))
            shuffled = rng.shuffles(rng.subkeys(stream[party], epoch), n[party])
        shuffle_at = np.cumsum(n[party]) - n[party]
        # step t of party i is batch j of its shuffle e
        steps = first[:, None] + np.arange(int(counts.max()))  # [m, T]
        running = steps < (first + counts)[:, None]
        e, j = steps // per_epoch[:, None] - from_epoch[:, None], steps % per_epoch[:, None]
        e = np.where(running, e, 0)
        left = n[:, None] - j * b[:, None]
        lengths = np.where(running, np.minimum(b[:, None], left), 0)
        pair = (np.cumsum(epochs) - epochs)[:, None] + e
        at = np.minimum(pair, len(party) - 1)
        column = np.arange(width)
        inside = np.minimum(column, np.maximum(lengths, 1)[:, :, None] - 1)
        place = shuffle_at[at][:, :, None] + (j * b[:, None])[:, :, None] + inside
        place = np.where(running[:, :, None], place, 0)
        rows = self._starts[:, None, None] + shuffled[place]
        if not running.all():
            rows = np.where(running[:, :, None], rows, self._starts[:, None, None])
        weights = (column < lengths[:, :, None]) / np.maximum(lengths, 1)[:, :, None]
        return Table(
            torch.from_numpy(rows), torch.from_numpy(weights).to(self._dtype), lengths, first
        )


def poisson(starts: Ints, sizes: Ints, rates: Floats, words: Keys) -> tuple[Ints, Floats]:
    """A sample of each party, in which every point is by itself with its party's chance.

    `words [m, >= most points]` are random, one for each point; rows and weights are `[m, b]`, a
    weight is 1, or 0 for padding.
    """
    column = np.arange(words.shape[1])
    sure = rates >= 1
    below = np.where(sure, 0.0, rates * 2.0**64).astype(np.uint64)
    inside = ((words < below[:, None]) | sure[:, None]) & (column < sizes[:, None])
    counts = inside.sum(axis=1)
    party, place = np.nonzero(inside)
    at = np.arange(len(party)) - (np.cumsum(counts) - counts)[party]
    rows = np.repeat(starts[:, None], max(1, int(counts.max(initial=0))), axis=1)
    weights = np.zeros(rows.shape)
    rows[party, at] = starts[party] + place
    weights[party, at] = 1.0
    return rows, weights


def poissons(
    starts: Ints, sizes: Ints, rates: Floats, counts: Ints, keys: Sequence[Keys]
) -> tuple[Ints, Ints]:
    """Samples of counts[i] steps of party i: step t as `poisson` draws it from words of keys[t].

    Rows, party by party and step by step; and how many there are of each, `[m, T]`.
    """
    most, m = int(sizes.max(initial=0)), len(sizes)
    every = max(1, _WORDS // max(1, m * most))  # steps at a time
    column, sure = np.arange(most), rates >= 1
    below = np.where(sure, 0.0, rates * 2.0**64).astype(np.uint64)
    none = np.zeros(0, np.int64)
    found, lengths = [(none, none, none)], np.zeros((m, len(keys)), np.int64)
    for at in range(0, len(keys), every):
        some = np.stack(keys[at : at + every], axis=1)  # [m, T]
        words = rng.words(some.reshape(-1), most).reshape(*some.shape, most)
        inside = words < below[:, None, None]
        inside |= sure[:, None, None]
        inside &= column < sizes[:, None, None]
        inside &= (at + np.arange(some.shape[1]) < counts[:, None])[..., None]
        lengths[:, at : at + every] = inside.sum(axis=2)
        party, step, place = np.nonzero(inside)
        found.append((party, at + step, starts[party] + place))
    party, step, rows = (np.concatenate(each) for each in zip(*found, strict=True))
    return rows[np.lexsort((step, party))] if len(found) > 2 else rows, lengths
