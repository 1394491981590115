# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped gradients: what DP-SGD adds noise to.  Abadi et al., arXiv 1607.00133.

The gradient g_i of each example by itself is scaled to norm at most C, g_i min(1, C / |g_i|), and
what is left is added up over a party's examples. Four ways compute the same: `Chained` (all parties
at once, chains of dense layers), `Recorded` (party by party, layers that ghost.py knows), and two
that hold every g_i for a while, by `torch.func` or one after the other. A way is used only if it
equals the last one on a probe.

The norm is L2, which Gaussian noise needs, or L1, which Laplace noise does. In L1 a layer that sees
an example once has |d h'| = |d| |h| as well, so `Chained` does it; `Recorded` knows L2 alone.

Departures: C is lowered by 8 millionths, and examples whose gradient is no finite number add
nothing, so that no example moves the sum by more than C, whatever it is; what remains is the
rounding of the sum itself. Layers that draw, such as dropout, draw for each example by itself; the
probe is then made without.

One file, since the ways, what they are compared with and what is refused make one promise.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from archipel.errors import ArchipelError
from archipel.models.ghost import factors, l1_of_products, lengths, scaled, squares_of_products
from archipel.models.model import Model, Points, Singles, seeded
from archipel.models.recorded import Recorded, Unrecorded
from archipel.models.stacked import Stacked

_REMEDY = 'or choose privacy by party (unit = "party").'
Norm = Literal[1, 2]  # in which a gradient is as long as its clip, at most
LIMIT = 256 << 20  # bytes that a way may take beside the vectors


class Clipped(NamedTuple):
    """What r parties' examples add up to."""

    sum: Tensor  # [r, p] of the clipped gradients
    norms: Tensor  # [r, b] of the gradients; 0 for padding, inf where there is no finite one


class Clipping(Protocol):
    """One way to clip a stack of r parties' gradients. An example counts where its weight is > 0.

    `clip` and `rate` may be `[r, 1]`.
    """

    def clipped(self, w: Tensor, points: Points, clip: float | Tensor) -> Clipped: ...

    def move(self, w: Tensor, points: Points, clip: float | Tensor, rate: float | Tensor) -> Tensor:
        """w <- w - rate sum in place; return the norms `[r, b]`."""


class Core(Protocol):
    """What adds up the clipped gradients of one party's examples, at most `size` at a time."""

    size: int

    def add(
        self, w: Tensor, x: Tensor, y: Tensor, clip: float, into: Tensor, scale: float
    ) -> Tensor:
        """into += scale * sum of the clipped gradients at w; return their norms `[b]`."""


class Held:
    """Gradients of single examples `[b, p]`, clipped and added up."""

    def __init__(
        self, grads: Callable[[Tensor, Tensor, Tensor], Tensor], size: int, norm: Norm = 2
    ) -> None:
        self._grads, self.size, self._norm = grads, size, norm

    def add(
        self, w: Tensor, x: Tensor, y: Tensor, clip: float, into: Tensor, scale: float
    ) -> Tensor:
        grads = self._grads(w, x, y)
        found = factors(lengths(grads, self._norm).square(), clip, grads.dtype)
        values = scale * found.values
        if not bool(found.counts.all()):  # 0 times NaN is NaN
            grads, values = grads[found.counts], values[found.counts]
        into.addmv_(grads.T, values)
        return found.norms


class _Own(NamedTuple):
    """One party's examples, without padding."""

    rows: Tensor  # where they are in the batch
    x: Tensor
    y: Tensor
    clip: float
    seed: int | None


class ByParty:
    """Party by party, in parts that fit into memory.

    Where a pass is not what it was on the probe, the examples go `otherwise`.
    """

    def __init__(self, core: Core, otherwise: Core | None = None) -> None:
        self._core, self._otherwise = core, otherwise

    def clipped(self, w: Tensor, points: Points, clip: float | Tensor) -> Clipped:
        checked(clip)
        total, norms = torch.zeros_like(w), w.new_zeros(points.weights.shape)
        for r in range(len(w)):
            own = _own(points, clip, r)
            norms[r, own.rows] = self._add(w[r], own, total[r], 1.0)
        return Clipped(total, norms)

    def move(self, w: Tensor, points: Points, clip: float | Tensor, rate: float | Tensor) -> Tensor:
        checked(clip)
        norms = w.new_zeros(points.weights.shape)
        for r in range(len(w)):
            own, step = _own(points, clip, r), _of(rate, r)
            if len(own.rows) <= self._core.size:  # one pass: none sees w moved
                norms[r, own.rows] = self._add(w[r], own, w[r], -step)
            else:
                total = torch.zeros_like(w[r])
                norms[r, own.rows] = self._add(w[r], own, total, 1.0)
                w[r].sub_(total, alpha=step)
        return norms

    def _add(self, w: Tensor, own: _Own, into: Tensor, scale: float) -> Tensor:
        if own.seed is not None:
            with seeded(own.seed):
                return self._add(w, own._replace(seed=None), into, scale)
        size = self._core.size
        parts = zip(own.x.split(size), own.y.split(size), strict=True) if len(own.x) else ()
        norms = [self._part(w, x, y, own.clip, into, scale) for x, y in parts]
        return torch.cat([w.new_zeros(0), *norms])

    def _part(
        self, w: Tensor, x: Tensor, y: Tensor, clip: float, into: Tensor, scale: float
    ) -> Tensor:
        try:
            return self._core.add(w, x, y, clip, into, scale)
        except Unrecorded:
            if self._otherwise is None:
                raise
        size, total = self._otherwise.size, torch.zeros_like(into)
        parts = zip(x.split(size), y.split(size), strict=True)
        norms = [self._otherwise.add(w, *part, clip, total, 1.0) for part in parts]
        into.add_(total, alpha=scale)
        return torch.cat(norms)


class Chained:
    """All parties at once through a chain of dense layers: no gradient of an example exists."""

    def __init__(
        self, stacked: Stacked, w: Tensor, points: Points, limit: int, norm: Norm = 2
    ) -> None:
        """`w` and `points` are a few examples, by which memory is judged."""
        self.stacked, self._limit, self._norm = stacked, limit, norm
        b = points.weights.numel()
        inputs = stacked.forward([], points.x, 0, stacked.first)[-1]
        self.flat = inputs.dim() == 3  # whether the first layer sees an example once
        held = 0  # of d, h and, with several positions, a matrix of doubles
        for _, d, h, _ in stacked.book(w, points):
            held += 4 * (d.nbytes + h.nbytes)
            held += (
                16 * b * d.shape[-1] * h.shape[-1] if d.shape[1] > points.weights.shape[1] else 0
            )
        self._held = held / b  # by an example

    def clipped(self, w: Tensor, points: Points, clip: float | Tensor) -> Clipped:
        checked(clip)
        total = torch.zeros_like(w)
        norms = [self._add(w, part, clip, total, 1.0) for part in self._parts(points)]
        return Clipped(total, torch.cat([w.new_zeros(len(w), 0), *norms], dim=1))

    def move(self, w: Tensor, points: Points, clip: float | Tensor, rate: float | Tensor) -> Tensor:
        checked(clip)
        parts = self._parts(points)
        if len(parts) == 1:  # the products that would make the sum write the step
            norms = self._add(w, parts[0], clip, w, -rate)
        else:
            total, norms = self.clipped(w, points, clip)
            _take_off(w, total, rate)
        return norms

    def _parts(self, points: Points) -> list[Points]:
        """The same points, so many of each party at a time as fit into memory."""
        r, b = points.weights.shape
        size = max(1, int(self._limit / (r * self._held + 1)))
        if 0 < b <= size:
            return [points]
        cut = (part.split(size, dim=1) for part in (points.x, points.y, points.weights))
        return [points._replace(x=x, y=y, weights=of) for x, y, of in zip(*cut, strict=True) if b]

    def _add(
        self,
        w: Tensor,
        points: Points,
        clip: float | Tensor,
        into: Tensor,
        scale: float | Tensor,
    ) -> Tensor:
        """into += scale * sum of the clipped gradients at w; return their norms `[r, b]`."""
        real = points.weights > 0
        (r, b), size, book = real.shape, w.new_zeros((), dtype=torch.float64), []
        for entry in self.stacked.book(w, points._replace(weights=real.to(w.dtype))):
            d, h = (part.view(r, b, -1, part.shape[-1]) for part in (entry.d, entry.h))
            of_d = lengths(d)
            if self._norm == 1:
                size = size + l1_of_products(d, h, int(entry.biased))
            else:
                size = size + squares_of_products(d, h, of_d, True, int(entry.biased))
            book.append((entry.i, d, h, of_d))
        found = factors(size.square() if self._norm == 1 else size, clip, w.dtype, real)
        if not bool(found.counts.all()):  # 0 times NaN is NaN
            out = ~found.counts[..., None, None]
            book = [(i, d.masked_fill(out, 0), h.masked_fill(out, 0), n) for i, d, h, n in book]
        values = scale * found.values
        for i, d, h, of_d in book:
            self.stacked.add(into, i, scaled(d, values, of_d).flatten(1, 2), h.flatten(1, 2))
        return found.norms


def _own(points: Points, clip: float | Tensor, r: int) -> _Own:
    rows = (points.weights[r] > 0).nonzero().squeeze(1)
    x, y = points.x[r], points.y[r]
    if len(rows) < len(x):
        x, y = x[rows], y[rows]
    return _Own(rows, x, y, _of(clip, r), None if points.seeds is None else int(points.seeds[r]))


def _take_off(w: Tensor, g: Tensor, rate: float | Tensor) -> None:
    """w <- w - rate g in place."""
    if isinstance(rate, Tensor):
        w.addcmul_(g, rate, value=-1)
    else:
        w.sub_(g, alpha=rate)


def _of(value: float | Tensor, r: int) -> float:
    return float(value[r]) if isinstance(value, Tensor) else float(value)


def checked(clip: float | Tensor) -> float | Tensor:
    """Refuse a clip that is no length."""
    if isinstance(clip, Tensor):
        fits = bool(((clip >= 1e-20) & (clip <= 1e20)).all())
    else:
        fits = 1e-20 <= clip <= 1e20
    if not fits:
        raise ArchipelError(f"clip = {clip}: give a number from 1e-20 to 1e20, such as 1.0.")
    return clip


def clipping(model: Model, x: Tensor, y: Tensor, limit: int = LIMIT, norm: Norm = 2) -> Clipping:
    """The quickest way that is right for this model; x `[n, *shape]` and y are some of its points.

    >>> model = Model(nn.Linear(3, 2))
    >>> x, y = torch.ones(5, 3), torch.zeros(5).long()
    >>> points = Points(x[None], y[None], torch.ones(1, 5), np.array([5]))
    >>> clipping(model, x, y).clipped(model.w[None], points, clip=0.1).sum.norm() <= 0.5
    tensor(True)
    """
    return next(iter(ways(model, x, y, limit, norm=norm).values()))


def ways(
    model: Model, x: Tensor, y: Tensor, limit: int = LIMIT, wanted: str | None = None,
    norm: Norm = 2,
) -> dict[str, Clipping]:  # fmt: skip
    """The ways that are right for this model, quickest first: equal to one example at a time.

    "vmapped" takes torch seconds to get ready: it is left out where a quicker one is right, unless
    it is wanted.
    """
    right: dict[str, Clipping] = {}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about layers that torch.func loops over
        _refuse(model, x)
        draws = model.one.draws(x[:2])
        still = Model(_Still(model.module), model.loss_function) if draws else model
        probe = _probe(still, x, y, norm)
        for name, build in _BUILD.items():
            if name == "vmapped" and right and wanted != "vmapped":
                continue
            if name == "loop" or _agrees(build, still, probe):
                way = build(model, probe.points, limit, norm, _loop(model, limit, norm))
                right |= {name: way} if way else {}
    return right


class _Still(nn.Module):
    """A module that stays as it is evaluated, so that dropout draws nothing."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def train(self, mode: bool = True) -> _Still:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


class _Probe(NamedTuple):
    """A few points of three parties, and what comes out one example at a time."""

    w: Tensor  # [3, p]
    points: Points
    clip: float
    norm: Norm
    expected: Clipped


Build = Callable[[Model, Points, int, Norm, Core | None], Clipping | None]


def _chained(
    model: Model, points: Points, limit: int, norm: Norm, _: Core | None
) -> Clipping | None:
    stacked, first = Stacked.of(model), _first(points)
    if stacked is None:
        return None
    b = points.weights.shape[1]
    if norm == 1 and any(each.d.shape[1] != b for each in stacked.book(model.w[None], first)):
        return None  # layers that see an example several times
    return Chained(stacked, model.w[None], first, limit, norm)


def _recorded(
    model: Model, points: Points, limit: int, norm: Norm, otherwise: Core | None
) -> Clipping | None:
    if norm == 1:
        return None
    return ByParty(Recorded(model, points.x[0], points.y[0], limit), otherwise)


def _turned(
    model: Model, points: Points, limit: int, norm: Norm, otherwise: Core | None
) -> Clipping | None:
    if norm == 1 or not any(isinstance(layer, nn.Conv2d) for layer in model.module.modules()):
        return None
    core = Recorded(model, points.x[0], points.y[0], limit, channels_last=True)
    return ByParty(core, otherwise)


def _vmapped(model: Model, points: Points, limit: int, norm: Norm, _: Core | None) -> Clipping:
    return ByParty(Held(Singles(model).grads, _many(model, limit), norm))


def _looped(model: Model, points: Points, limit: int, norm: Norm, _: Core | None) -> Clipping:
    return ByParty(_loop(model, limit, norm))


_BUILD: dict[str, Build] = {
    "chained": _chained,
    "channels_last": _turned,
    "recorded": _recorded,
    "vmapped": _vmapped,
    "loop": _looped,
}


def _loop(model: Model, limit: int, norm: Norm) -> Held:
    """One example after the other through the module itself."""

    def grads(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        b = len(x)
        alone = Points(x.unsqueeze(1), y.unsqueeze(1), w.new_ones(b, 1), np.ones(b, np.int64))
        return model.one.grad(w.expand(b, -1), alone)

    return Held(grads, _many(model, limit), norm)


def _many(model: Model, limit: int) -> int:
    """Examples whose gradients, and what they are made of, fit into memory."""
    return max(1, limit // (4 * model.p * model.w.element_size()))


def _first(points: Points) -> Points:
    return points._replace(x=points.x[:1], y=points.y[:1], weights=points.weights[:1])


def _probe(model: Model, x: Tensor, y: Tensor, norm: Norm) -> _Probe:
    """Three, two and one examples, padded; some gradients are clipped and some are not."""
    rows = torch.arange(9).view(3, 3) % len(x)
    x, y = x[rows], y[rows]
    if x.is_floating_point():  # wild numbers would tell nothing
        x = x.nan_to_num(0.0, 0.0, 0.0).clamp(-1e3, 1e3)
    lengths = np.array([3, 2, 1])
    weights = torch.from_numpy(np.arange(3) < lengths[:, None]).to(model.dtype)
    points = Points(x, y, weights, lengths)
    w = model.w + 0.01 * torch.randn(
        3, model.p, generator=torch.Generator().manual_seed(0), dtype=model.dtype
    )
    loop = ByParty(_loop(model, LIMIT, norm))
    together = model.one.grad(w, points)
    whole, norms = loop.clipped(w, points, 1e20)
    if not _close(model, model.one.grad(w, points), together, 1e-6):
        raise ArchipelError(
            f"the model {type(model.module).__name__} gives other gradients the second time: it "
            f"remembers examples that it saw, which no clip bounds; change that, {_REMEDY}"
        )
    if bool(whole.isfinite().all()) and not _close(model, together, whole, 1e-3):
        raise ArchipelError(
            f"the model {type(model.module).__name__} mixes the examples of a batch, so that none "
            f"has a gradient of its own: change the layer that does, {_REMEDY}"
        )
    clip = float(norms[weights > 0].median().clamp(1e-6, 1e6))
    return _Probe(w, points, clip, norm, loop.clipped(w, points, clip))


def _agrees(build: Build, model: Model, probe: _Probe) -> bool:
    """Whether the way is there and equals one example at a time, parameter by parameter."""
    if not bool(probe.expected.norms.isfinite().all()):
        return False
    tolerance = 1e-6 if model.dtype == torch.float64 else 1e-4
    try:
        way = build(model, probe.points, LIMIT, probe.norm, None)
        got = way and way.clipped(probe.w, probe.points, probe.clip)
    except Exception:  # Unrecorded, or torch.func has no rule for some layer
        return False
    return bool(
        got
        and _close(model, got.sum, probe.expected.sum, tolerance)
        and torch.allclose(got.norms, probe.expected.norms, rtol=tolerance, atol=1e-12)
    )


def _close(model: Model, got: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether every parameter's part is the same, small ones included: `[r, p], [r, p]`."""
    whole = expected.norm(dim=-1)
    parts = zip(*(v.split(model.spec.sizes, dim=-1) for v in (got, expected)), strict=True)
    return all(
        bool(((a - b).norm(dim=-1) <= tolerance * (b.norm(dim=-1) + 0.01 * whole) + 1e-12).all())
        for a, b in parts
    )


def _refuse(model: Model, x: Tensor) -> None:
    """Say why no example has a gradient of its own, where it is so."""
    if not len(x):
        raise ArchipelError("there are 0 points to try the model on: give at least one.")
    if not model.loss_function.separable:
        raise ArchipelError(
            f"the loss '{model.loss_function.name}' compares examples, so that none has a gradient "
            f"of its own: choose another loss, {_REMEDY}"
        )
    for name, layer in model.module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise ArchipelError(
                f"the model's layer '{name}' ({type(layer).__name__}) mixes the examples of a "
                f"batch, so that none has a gradient of its own: use GroupNorm, {_REMEDY}"
            )
    if model.buffer_spec.names and not torch.equal(model.one.settle(model.w, x[:2]), model.buffers):
        raise ArchipelError(
            f"the model {type(model.module).__name__} keeps statistics of the examples it sees in "
            f"its buffers, which no clip bounds: use layers without, such as GroupNorm, {_REMEDY}"
        )
