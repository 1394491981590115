# SPDX-License-Identifier: Apache-2.0
"""DP-SGD: local steps by sums of clipped gradients with noise.  Abadi et al., CCS 2016,
https://arxiv.org/abs/1607.00133, Algorithm 1.

    w <- w - rate (sum_{i in sample} clip(g_i, C) + sigma N) - lr shift - lr pull (w - towards)

with rate = lr / (q n) and N standard normal. Any way to clip takes these steps one by one. A chain
of dense layers takes a window of w steps at a time, since its first layer's inputs are the data,
known ahead (see `stacked.py`, which is the same without clip and noise). Let W be the first layer's
weights before the window, X_j the inputs of its step j = 0 .. w - 1 and D_j the gradients of its
outputs, each row with its example's factor and rate. With c = rate sigma and N_i its noise at step
i,

    W_j = W - sum_{i<j} D_i' X_i - c B_j - j lr shift,    B_j = sum_{i<j} N_i,

so that step j needs X_j W_j' = X_j W' - sum_{i<j} (X_j X_i') D_i - c X_j B_j' - j lr X_j shift'.
The norm of example i's gradient in this layer is |d_i| |x_i| (`ghost.py`), which needs no W.

The noise of single steps is never drawn there, since nobody reads it: what is read is X_j B_j' and,
at the end, S = B_w. Each entry of B is a random walk, and a random walk is its end and a bridge
that is independent of it: B_j = (j / w) S + b_j with Cov(b_j, b_k) = (min(j, k) - j k / w) I. (All
is Gaussian, and Cov(b_j, S) = j - (j / w) w = 0.) Of the bridge only X_j b_j' is read; its columns,
one by output unit, are independent, with

    Cov(x b_j', x' b_k') = (min(j, k) - j k / w) x x'    for rows x of X_j and x' of X_k,

which is the bridge's covariance times X X', entry by entry. So per window one draws S, sqrt(w)
times standard normal numbers, and one number by row of X and output unit, times a root of that
small matrix: jointly distributed exactly as if every N_j had been drawn, of w times fewer numbers.
Neither clip nor factor depends on N but through what is read. And S and the shift's part are
linear in j, so that one more product serves both: X_j (W - (j / w)(c S + w lr shift))' lies between
X_j W' and X_j (W - c S - w lr shift)'.

What leaves is what DP-SGD would release, to float tolerance: the small matrix is raised on its
diagonal by 16 times the rounding of its largest number, so that its root exists.

Departures: an example whose input is longer than 10^15 (floats) or 10^150 (doubles) adds nothing in
a chain; see `clipped.py` for others.

One file, since the steps of a window are read beside what they are derived from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.models.clipped import Chained, Clipping, checked
from archipel.models.ghost import factors, lengths, whole
from archipel.models.model import Points
from archipel.models.normals import Normals
from archipel.models.stacked import SMALL, Dense, Stacked, Views
from archipel.rng import Ints, Keys

_DRAW = 48  # products of a matrix in the time of one normal number, about
_ROWS = 256  # examples of a window, at most
_REST, _END, _BRIDGE = range(3)  # noise of a step: other parameters, S, bridge


class Samples(NamedTuple):
    """What r parties take at each step. Parties with more steps come first."""

    x: Tensor  # [N, *shape] all points
    y: Tensor  # [N, ...]
    rows: Ints  # [sum of counts] party by party, step by step
    counts: Ints  # [r, T] points of each step; 0 where a sample is empty, or after the last step
    steps: Ints  # [r], falling
    seeds: Keys | None = None  # [r, T] for layers that draw

    def some(self, parties: Ints) -> Samples:
        """Of these parties, in this order."""
        ends = np.cumsum(self.counts.sum(axis=1))
        sizes = self.counts[parties].sum(axis=1)
        begins = np.repeat(ends[parties] - sizes - (np.cumsum(sizes) - sizes), sizes)
        steps = self.steps[parties]
        longest = int(steps.max(initial=0))
        return self._replace(
            rows=self.rows[begins + np.arange(len(begins))],
            counts=self.counts[parties, :longest],
            steps=steps,
            seeds=None if self.seeds is None else self.seeds[parties, :longest],
        )

    def going(self, t: int) -> int:
        """Parties that take step t: the first ones."""
        return int(np.searchsorted(-self.steps, -t, side="left"))


class Rule(NamedTuple):
    """How a step moves r parties: see the module."""

    clip: float  # C
    lr: float | Tensor  # or [r, 1]
    rate: Tensor  # [r, 1] lr / (q n)
    deviation: Tensor | None  # [r, 1] rate sigma: of the noise in a step; none without
    shift: Tensor | None = None  # [r, p]
    pull: float | Tensor = 0.0  # or [r, 1]
    towards: Tensor | None = None  # [r, p], where there is a pull

    def some(self, parties: slice | Tensor) -> Rule:
        """Of these parties."""

        def of(value: Any) -> Any:
            return value[parties] if isinstance(value, Tensor) else value

        return Rule(*map(of, self))


def descend(
    way: Clipping, w: Tensor, samples: Samples, rule: Rule, noise: Normals | None, window: int
) -> Tensor:
    """Take all steps in the place of w `[r, p]`; a chain's `window` at a time."""
    checked(rule.clip)
    noise = None if rule.deviation is None else noise
    if isinstance(way, Chained) and way.flat:
        size = 1 if rule.towards is not None else window
        _Chain(way.stacked, w, samples, rule, noise).descend(size)
        return w
    for t in range(int(samples.steps.max(initial=0))):
        a = samples.going(t)
        _step(way, w[:a], _points(samples, t, a, w.dtype), rule.some(slice(a)), noise, t)
    return w


def window(way: Clipping, batch_size: int | float | None) -> int:
    """Steps between two moves of a chain's first layer, where noise is drawn for all of them.

    With b examples in a step, X X' costs b² w products by input, that with the moved weights b o
    more, and noise as much as c o / w of them, o being the layer's outputs: least at the root of
    c o over b, if that is less than c o, which noise costs step by step. The same for all parties,
    whatever is stacked, so that the noise is: where batches differ by party, one step.
    """
    if not (isinstance(way, Chained) and isinstance(batch_size, int)):
        return 1
    b, noise = batch_size, _DRAW * way.stacked.dense.outputs
    w = max(1, min(round(noise**0.5 / b), _ROWS // b))
    return w if b * b * w + b * way.stacked.dense.outputs + noise / w < noise else 1


def _step(
    way: Clipping, w: Tensor, points: Points, rule: Rule, noise: Normals | None, t: int
) -> None:
    drag = None if rule.shift is None else rule.shift * rule.lr
    if rule.towards is not None:
        pulled = (w - rule.towards) * (rule.pull * rule.lr)
        drag = pulled if drag is None else drag + pulled
    way.move(w, points, rule.clip, rule.rate)
    if drag is not None:
        w -= drag
    if noise is not None:
        assert rule.deviation is not None
        noise.add(3 * t + _REST, rule.deviation, w)


def _points(samples: Samples, t: int, a: int, dtype: torch.dtype) -> Points:
    """What step t takes, padded."""
    counts = samples.counts[:a]
    ends = np.cumsum(samples.counts).reshape(samples.counts.shape)
    n = counts[:, t]
    column = np.arange(max(1, int(n.max(initial=0))))
    inside = column < n[:, None]
    place = np.where(inside, (ends[:a, t] - n)[:, None] + column, 0)
    rows = np.where(inside, _never_empty(samples.rows)[place], 0)
    at = torch.from_numpy(rows)
    seeds = None if samples.seeds is None else samples.seeds[:a, t]
    return Points(samples.x[at], samples.y[at], torch.from_numpy(inside).to(dtype), n, seeds)


def _never_empty(rows: Ints) -> Ints:
    return rows if len(rows) else np.zeros(1, np.int64)


class _Place(NamedTuple):
    """Where the examples of a step lie among those of a window."""

    rows: Tensor | None  # [a * b] of the a * R rows; without it, all of them in their order
    real: Tensor  # [a, b] whether it is an example that can be used
    before: int  # rows that steps before it have taken, of one party at most

    def of(self, values: Tensor, depth: int) -> Tensor:
        """Rows of `[., R, ...]`, which have so many dimensions of their own: `[a, b, ...]`."""
        if self.rows is None:
            return values
        inner = values.shape[values.dim() - depth :]
        return values.view(-1, *inner).index_select(0, self.rows).view(*self.real.shape, *inner)

    def put(self, rows: Tensor, into: Tensor) -> None:
        """Write rows `[a, b, f]` to where they lie; padding is written as well."""
        assert self.rows is not None
        into.view(-1, rows.shape[-1]).index_copy_(0, self.rows, rows.flatten(0, 1))


class _Window(NamedTuple):
    """The examples of some steps, packed: row after row of each party, and one of padding."""

    x: Tensor  # [a, R, in]
    y: Tensor  # [a, R, ...]
    norms: Tensor  # [a, R] of x, as doubles
    steps: list[_Place]
    step: Ints  # [a, R] to which a row belongs, from 0


class _Chain:
    """Steps of a chain of dense layers, all parties at once."""

    def __init__(
        self, stacked: Stacked, w: Tensor, samples: Samples, rule: Rule, noise: Normals | None
    ) -> None:
        """Steps are taken in the place of w."""
        self._stacked, self._samples, self._rule, self._noise = stacked, samples, rule, noise
        self._w, self._whole, self._first = w, stacked.views(w), stacked.first
        small = w[0].numel() * w.element_size() <= SMALL
        self._layers = [view.apart() for view in self._whole] if small else self._whole
        self._others = [
            (i, which)
            for i, layer in enumerate(stacked.layers)
            if isinstance(layer, Dense)
            for which in Views._fields
            if (i, which) != (self._first, "weight") and getattr(self._whole[i], which) is not None
        ]
        self._shift = None if rule.shift is None else stacked.views(rule.shift * rule.lr)
        self._towards = None if rule.towards is None else stacked.views(rule.towards)
        counts = samples.counts
        self._ends = np.cumsum(counts).reshape(counts.shape)  # [r, T] of each step in samples.rows
        self._kind = w.dtype
        self._longest = 1e15 if w.dtype == torch.float32 else 1e150

    def descend(self, window: int) -> None:
        total = int(self._samples.steps.max(initial=0))
        for t in range(0, total, window):
            self._take(t, min(t + window, total))
        for view, moved in zip(self._whole, self._layers, strict=True):
            view.take(moved)

    def _take(self, start: int, stop: int) -> None:
        """Take the steps of a window."""
        most, first = self._samples.going(start), self._first
        layers = [view.head(most) for view in self._layers]
        weight = layers[first].weight
        if stop - start == 1:
            some = self._single(start, most)
            d = self._step(layers, _product(some.x, weight), some, some.steps[0])
            self._pull(weight, first, "weight")
            self._end(weight, start, stop)
            weight.baddbmm_(d.transpose(1, 2), some.x, alpha=-1)
            self._disturb(layers, start)
            return
        some = self._window(start, stop, most)
        ahead = _product(some.x, weight)  # X W'
        kernel = torch.bmm(some.x, some.x.transpose(1, 2))  # X X'
        ahead = self._drift(weight, some, ahead, kernel, start, stop)
        moves = torch.zeros_like(ahead)  # D
        for t, place in enumerate(some.steps, start):
            a = len(place.real)
            views = layers if a == most else [view.head(a) for view in layers]
            h = place.of(ahead, 1)
            if place.before:
                rows = place.of(kernel, 1)[..., : place.before]
                h.baddbmm_(rows, moves[:a, : place.before], alpha=-1)
            d = self._step(views, h, some, place)
            place.put(d, moves)
            self._disturb(views, t)
        weight.baddbmm_(moves.transpose(1, 2), some.x, alpha=-1)

    def _single(self, t: int, a: int) -> _Window:
        """The examples of one step, padded."""
        n = self._samples.counts[:a, t]
        real = np.arange(_width(int(n.max(initial=0)))) < n[:, None]
        x, y, norms, usable = self._examples(self._ends[:a, t] - n, real)
        place = _Place(None, usable.logical_and_(torch.from_numpy(real)), 0)
        return _Window(x, y, norms, [place], np.zeros_like(real, np.int64))

    def _examples(self, begin: Ints, real: NDArray[np.bool_]) -> tuple[Tensor, ...]:
        """x `[a, R, in]` and y of rows of samples, the norms of x, and whether they can be used."""
        samples = self._samples
        rows = np.zeros(real.shape, np.int64)
        rows[real] = samples.rows[(begin[:, None] + np.arange(real.shape[1]))[real]]
        at = torch.from_numpy(rows.reshape(-1))
        x, y = (part.index_select(0, at) for part in (samples.x, samples.y))
        x, y = (part.view(*real.shape, *part.shape[1:]) for part in (x, y))
        x = self._stacked.forward([], x, 0, self._first)[-1]
        norms = lengths(x)
        usable = norms <= self._longest  # NaN is not
        if not bool(usable.all()):
            x = x.masked_fill(~usable[..., None], 0.0)
        return x, y, norms, usable

    def _window(self, start: int, stop: int, a: int) -> _Window:
        """The examples of several steps."""
        samples = self._samples
        counts = samples.counts[:a, start:stop]
        ends = np.cumsum(counts, axis=1)  # of each step among its party's rows
        size = _width(int(ends[:, -1].max(initial=0)) + 1)  # R
        inside = np.arange(size) < ends[:, -1:]
        x, y, norms, usable = self._examples(self._ends[:a, start] - counts[:, 0], inside)
        places = []
        for j, t in enumerate(range(start, stop)):
            active = samples.going(t)
            n, begin = counts[:active, j], ends[:active, j] - counts[:active, j]
            width = np.arange(max(1, int(n.max(initial=0))))
            real = width < n[:, None]
            place = np.where(real, begin[:, None] + width, size - 1)
            place += size * np.arange(active)[:, None]
            rows = torch.from_numpy(place.reshape(-1))
            good = usable.view(-1).index_select(0, rows).view(real.shape)
            good.logical_and_(torch.from_numpy(real))
            places.append(_Place(rows, good, int(begin.max(initial=0))))
        step = np.zeros(inside.shape, np.int64)
        step[inside] = np.repeat(np.tile(np.arange(stop - start), a), counts.reshape(-1))
        return _Window(x, y, norms, places, step)

    def _drift(
        self, weight: Tensor, some: _Window, ahead: Tensor, kernel: Tensor, start: int, stop: int
    ) -> Tensor:
        """X_j (W_j + sum_{i<j} D_i' X_i)' from X W', and W - c S - w lr shift in the place of W."""
        if self._noise is None and self._shift is None:
            return ahead
        self._end(weight, start, stop)
        taken = self._taken(len(weight), start, stop)[..., None]  # w
        step = torch.from_numpy(some.step).to(self._kind)
        passed = (step / taken[..., 0]).unsqueeze(-1)  # j / w
        ahead = torch.lerp(ahead, _product(some.x, weight), passed)
        if self._noise is None:
            return ahead
        scale = self._deviation(len(weight))
        drawn = self._noise.draw(3 * start + _BRIDGE, scale, ahead[0].numel(), ahead.shape[-1])
        bridge = torch.minimum(step[:, :, None], step[:, None])
        bridge.sub_(step[:, :, None] * passed.transpose(1, 2)).mul_(kernel)
        return ahead.baddbmm_(_root(bridge), drawn.view_as(ahead))

    def _taken(self, a: int, start: int, stop: int) -> Tensor:
        """Steps of each party in a window, `[a, 1]`."""
        taken = np.minimum(self._samples.steps[:a] - start, stop - start)
        return torch.from_numpy(taken).to(self._kind)[:, None]

    def _end(self, weight: Tensor, start: int, stop: int) -> None:
        """Move the first layer by its noise and its shifts of a window."""
        a = len(weight)
        steps = self._taken(a, start, stop)
        if self._shift is not None:
            weight.addcmul_(self._shift[self._first].weight[:a], steps[..., None], value=-1)
        if self._noise is not None:
            scale = self._deviation(a) * steps.sqrt()
            self._noise.add(3 * start + _END, scale, weight.view(a, -1))

    def _step(self, views: list[Views], h: Tensor, some: _Window, place: _Place) -> Tensor:
        """Move all but the first layer's weights; return D of its outputs `[a, b, out]`."""
        rule, first, a = self._rule, self._first, len(h)
        bias = views[first].bias
        h = h if bias is None else h + bias
        inputs = self._stacked.forward(views, h, first + 1)
        y = place.of(some.y, some.y.dim() - 2)
        d = self._stacked.output_grad(inputs[-1], y, place.real.to(self._kind))
        book: list[tuple[int, Tensor, Tensor]] = []
        d = self._stacked.backward(views, inputs, d, lambda *entry: book.append(entry), first + 1)
        of_d = torch.stack([lengths(d), *(lengths(each) for _, each, _ in book)])  # [layers, a, b]
        of_h = torch.stack([place.of(some.norms, 0), *(lengths(each) for _, _, each in book)])
        biases = [views[i].bias is not None for i in (first, *(i for i, _, _ in book))]
        of_h = of_h.square_().add_(of_h.new_tensor(biases).view(-1, 1, 1))
        squares = of_h.mul_(of_d.square()).sum(dim=0)
        found = factors(squares, rule.clip, self._kind, place.real)
        if not bool(found.counts.all()):  # 0 times NaN is NaN
            out = ~found.counts[..., None]
            book = [(i, e.masked_fill(out, 0), g.masked_fill(out, 0)) for i, e, g in book]
            d = d.masked_fill(out, 0)
        values = whole(found.values * rule.rate[:a], of_d, self._kind).unsqueeze(-1)
        for (i, each, inner), value in zip(book, values[1:], strict=True):
            self._drag(views[i].weight, i, "weight")
            self._drag(views[i].bias, i, "bias")
            views[i].move(each * value, inner)
        d = d * values[0]
        self._drag(bias, first, "bias")
        views[first].move_bias(d)
        return d

    def _drag(self, values: Tensor | None, i: int, which: str) -> None:
        """Pull a layer's weight or bias towards its centre, and shift it, by one step."""
        if values is None:
            return
        self._pull(values, i, which)
        if self._shift is not None:
            values.sub_(getattr(self._shift[i], which)[: len(values)])

    def _pull(self, values: Tensor, i: int, which: str) -> None:
        if self._towards is None:
            return
        a, rate = len(values), self._rule.pull * self._rule.lr
        weight = rate[:a, :, None] if isinstance(rate, Tensor) else rate
        torch.lerp(values, getattr(self._towards[i], which)[:a], weight, out=values)

    def _disturb(self, views: list[Views], t: int) -> None:
        """Add a step's noise to all but the first layer's weights."""
        if self._noise is None or not self._others:
            return
        parts = [getattr(views[i], which) for i, which in self._others]
        a, sizes = len(parts[0]), [part[0].numel() for part in parts]
        span = self._stacked.dense.weight
        if self._layers is self._whole and span.start == 0:  # the others lie side by side
            self._noise.add(3 * t + _REST, self._deviation(a), self._w[:a, span.stop :])
            return
        drawn = self._noise.draw(3 * t + _REST, self._deviation(a), sum(sizes))
        for part, noise in zip(parts, drawn.split(sizes, dim=1), strict=True):
            part.add_(noise.view(part.shape))

    def _deviation(self, a: int) -> Tensor:
        assert self._rule.deviation is not None
        return self._rule.deviation[:a]


def _width(rows: int) -> int:
    """So many rows or a few more, which products are quicker on."""
    return -(-max(1, rows) // 4) * 4


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x W', `[a, R, in], [a, out, in] -> [a, R, out]`; short rows are quicker the other way."""
    if weight.shape[1] < 16:
        return torch.bmm(weight, x.transpose(1, 2)).transpose(1, 2).contiguous()
    return torch.bmm(x, weight.transpose(1, 2))


def _root(matrix: Tensor) -> Tensor:
    """A with A A' = matrix `[a, R, R]`, positive semi-definite but for rounding."""
    kind = torch.finfo(matrix.dtype)
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    raised = 16 * kind.eps * diagonal.amax(dim=1, keepdim=True) + kind.tiny
    diagonal += raised
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(matrix)
    odd = failed > 0
    if bool(odd.any()):
        values, vectors = torch.linalg.eigh(matrix[odd])
        root[odd] = vectors * values.clamp_min(0.0).sqrt().unsqueeze(1)
    return root
