# SPDX-License-Identifier: Apache-2.0
"""Norms of single examples' gradients, and their sum with a factor each, layer by layer.

A layer's gradient is g_i = sum_t d_it h_it' with d the gradient of its outputs, h its inputs and t
what an example has several of (characters, pixels). With one t, |g_i| = |d_i| |h_i| [Goodfellow,
arXiv 1510.01799]. With several, |g_i|² = sum_ts (d_it' d_is)(h_it' h_is), where that costs less
than g_i itself [Li et al., arXiv 2110.05679; Bu et al., "mixed ghost clipping", arXiv 2205.10683].
The sum needs the same d and h, and no second backward pass ["book-keeping", arXiv 2210.00038].

Departures: norms are of doubles, and rounded up: the formula of several t takes differences of
large numbers, which would let an example through whose gradient is longer than was computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

_LARGE = 4e6  # operations of an example's convolution from which torch's own kernel is quicker
_FEW, _RUN = 1 << 15, 128  # numbers, up to which doubles are as quick; of a run
_DOUBLE = torch.finfo(torch.float64).eps


class Share(Protocol):
    """What one layer contributes to the gradients of b examples."""

    @property
    def held(self) -> int:
        """Bytes of it and of what it is made of, about."""

    def squares(self) -> Tensor:
        """Squared norms `[b]` as doubles: those of what `add` adds, or more."""

    def add(self, into: Mapping[str, Tensor], factors: Tensor, keep: Tensor | None) -> None:
        """into += sum_i factors_i g_i, by parameter; over the examples `keep`, or all of them."""


def lengths(x: Tensor, order: int = 2) -> Tensor:
    """L2 norms along the last dimension, as doubles; of floats at most 4 millionths too small.

    Many floats are added up as such in short runs, and only the runs as doubles: a third of the
    time. Where a square is no float, all of it is done in doubles; L1 norms (order 1) always are.
    """
    if order == 1:
        return _norm(x, torch.float64, 1)
    if x.dtype != torch.float32 or x.numel() < _FEW:
        return _norm(x, torch.float64)
    whole = x.shape[-1] // _RUN * _RUN
    runs = _norm(x[..., :whole].unflatten(-1, (-1, _RUN)))
    out = _norm(torch.cat([runs, _norm(x[..., whole:])[..., None]], dim=-1), torch.float64)
    odd = ~((out > 1e-9) & (out < torch.inf))
    if bool(odd.any()):
        out[odd] = _norm(x[odd], torch.float64)
    return out


def _norm(x: Tensor, dtype: torch.dtype | None = None, order: int = 2) -> Tensor:
    out: Tensor = torch.linalg.vector_norm(x, order, dim=-1, dtype=dtype)
    return out


class Factors(NamedTuple):
    """What each example's gradient is multiplied by."""

    values: Tensor  # [..., b] of the model's type; 0 for padding and for what does not count
    norms: Tensor  # [..., b] before clipping; 0 for padding, inf for what does not count
    counts: Tensor  # [..., b] whether the gradient's norm is a number that can be scaled


def factors(
    squares: Tensor, clip: float | Tensor, dtype: torch.dtype, real: Tensor | None = None
) -> Factors:
    """min(1, clip / norm) of squared norms `[..., b]`; `real` is where there is no padding.

    The clip is lowered (by 8 millionths, for floats), which covers the rounding of the norms and of
    what is added up.
    A gradient with a NaN or an infinite number does not count, nor one that is longer than the
    clip by so much (10²³, for floats) that its factor could not be told exactly.
    """
    kind = torch.finfo(dtype)
    lowered = clip * (1 - max(64 * kind.eps, 1e-12))
    norms = squares.sqrt()
    longest = lowered / (kind.tiny * 2**48)
    longest = longest.clamp_max(kind.max) if isinstance(longest, Tensor) else min(longest, kind.max)
    counts = norms <= longest  # NaN is not
    values = (lowered / norms).clamp_max_(1.0).masked_fill_(~counts, 0.0)
    norms.masked_fill_(~counts, torch.inf)
    if real is not None:
        values.masked_fill_(~real, 0.0)
        norms.masked_fill_(~real, 0.0)
    return Factors(values.to(dtype), norms.to(dtype), counts)


def scaled(d: Tensor, factors: Tensor, of_d: Tensor) -> Tensor:
    """An example's rows times its factor: `[..., t, o], [...]`, with the norms of the rows."""
    return d * whole(factors[..., None], of_d, d.dtype)[..., None]


def whole(factors: Tensor, of_d: Tensor, dtype: torch.dtype) -> Tensor:
    """Factors of rows of these norms, but 0 for a row that would come out subnormal.

    Such numbers are rounded by up to half of themselves, and a large input would make that large.
    """
    return torch.where(of_d * factors.abs() < torch.finfo(dtype).tiny * 2**24, 0.0, factors)


def l1_of_products(d: Tensor, h: Tensor, biases: int) -> Tensor:
    """L1 norms of d h' and of d, as often as there are biases, as doubles: one t each.

    d is `[..., 1, o]`, h is `[..., 1, f]`. Where d is 0 and h is not finite, that is NaN.
    """
    return (lengths(d, 1) * (lengths(h, 1) + biases)).squeeze(-1)


def squares_of_products(d: Tensor, h: Tensor, of_d: Tensor, weight: bool, biases: int) -> Tensor:
    """Squared norms of sum_t d_t h_t' and of sum_t d_t, as often as there are biases.

    d is `[..., t, o]` with norms `[..., t]`, h is `[..., t, f]`. At least those, also once each d_t
    is scaled.
    """
    t, f, o = d.shape[-2], h.shape[-1], d.shape[-1]
    if t == 1:
        of_h = lengths(h).square() if weight else 0.0
        return (of_d.square() * (of_h + biases)).squeeze(-1)
    rounding = 4 * torch.finfo(d.dtype).eps
    total = d.new_zeros(d.shape[:-2], dtype=torch.float64)
    if biases:
        length = lengths(d.sum(dim=-2, dtype=torch.float64)) + rounding * of_d.sum(dim=-1)
        total += biases * length.square()
    if weight:
        most = (of_d * lengths(h)).sum(dim=-1)  # the norm if nothing cancelled
        wide_d, wide_h = d.double(), h.double()
        if _gram(t, f, o):
            square = ((wide_d @ wide_d.mT) * (wide_h @ wide_h.mT)).sum(dim=(-2, -1)).clamp_min(0)
        else:
            square = lengths((wide_d.mT @ wide_h).flatten(-2)).square()
        square = square + (f + o + t * t) * _DOUBLE * most.square()
        total += (square.sqrt() + rounding * most).square()
    return total


def _gram(t: int, f: int, o: int) -> bool:
    """Whether inner products of t rows are quicker than an `[o, f]` matrix written and read."""
    return t * t * (f + o) <= 16 * f * o


class Products(NamedTuple):
    """A layer whose gradient is sum_t d_t h_t', not materialised."""

    d: Tensor  # [b, t, o]
    h: Tensor  # [b, t, f]
    weight: str | None
    biases: tuple[str, ...]  # of gradient sum_t d_t

    @property
    def held(self) -> int:
        return self.d.nbytes + self.h.nbytes

    def squares(self) -> Tensor:
        return squares_of_products(
            self.d, self.h, lengths(self.d), self.weight is not None, len(self.biases)
        )

    def add(self, into: Mapping[str, Tensor], factors: Tensor, keep: Tensor | None) -> None:
        d, h = (self.d, self.h) if keep is None else (self.d[keep], self.h[keep])
        d = scaled(d, factors if keep is None else factors[keep], lengths(d)).flatten(0, 1)
        if self.weight is not None:
            into[self.weight].flatten(1).addmm_(d.T, h.flatten(0, 1))
        for bias in self.biases:
            into[bias].add_(d.sum(dim=0))


class Materialised(NamedTuple):
    """A layer whose gradients of single examples are there."""

    grads: dict[str, Tensor]  # [b, ...] by parameter
    made_of: int  # bytes

    @property
    def held(self) -> int:
        return self.made_of + sum(grad.nbytes for grad in self.grads.values())

    def squares(self) -> Tensor:
        return torch.stack([lengths(g.flatten(1)).square() for g in self.grads.values()]).sum(0)

    def add(self, into: Mapping[str, Tensor], factors: Tensor, keep: Tensor | None) -> None:
        factors = factors if keep is None else factors[keep]
        for name, grad in self.grads.items():
            grad = grad if keep is None else grad[keep]
            into[name].view(-1).addmv_(grad.flatten(1).T, factors)


class Lookups(NamedTuple):
    """An embedding: the rows that some example looked up, each example's by itself."""

    rows: Tensor  # [u]
    example: Tensor  # [u]
    grads: Tensor  # [u, e]
    b: int
    weight: str

    @property
    def held(self) -> int:
        return self.rows.nbytes + self.example.nbytes + self.grads.nbytes

    def squares(self) -> Tensor:
        square = lengths(self.grads).square()
        return square.new_zeros(self.b).index_add_(0, self.example, square)

    def add(self, into: Mapping[str, Tensor], factors: Tensor, keep: Tensor | None) -> None:
        rows, example, grads = self.rows, self.example, self.grads
        if keep is not None:
            kept = torch.isin(example, keep)
            rows, example, grads = rows[kept], example[kept], grads[kept]
        into[self.weight].index_add_(0, rows, grads * factors[example, None])


class Several(NamedTuple):
    """A layer of several parts with parameters of their own."""

    parts: tuple[Share, ...]

    @property
    def held(self) -> int:
        return sum(part.held for part in self.parts)

    def squares(self) -> Tensor:
        return torch.stack([part.squares() for part in self.parts]).sum(dim=0)

    def add(self, into: Mapping[str, Tensor], factors: Tensor, keep: Tensor | None) -> None:
        for part in self.parts:
            part.add(into, factors, keep)


Names = Mapping[str, bool]  # a layer's parameters, and whether each is trained


def products(d: Tensor, h: Tensor, weight: str | None, biases: tuple[str, ...]) -> Share:
    """The share of a layer with inputs `[b, t, f]` and output gradients `[b, t, o]`."""
    t, f, o = d.shape[1], h.shape[-1], d.shape[-1]
    if t > 1 and weight is not None and not _gram(t, f, o):
        total = {bias: d.sum(dim=1) for bias in biases}
        return Materialised({weight: d.mT @ h, **total}, d.nbytes + h.nbytes)
    return Products(d, h, weight, biases)


def linear(layer: nn.Linear, h: Tensor, d: Tensor, names: Names) -> Share:
    b = len(h)
    return products(
        d.reshape(b, -1, layer.out_features), h.reshape(b, -1, layer.in_features), *_two(names)
    )


def convolution(layer: nn.Conv1d | nn.Conv2d, h: Tensor, d: Tensor, names: Names) -> Share:
    """A convolution, as a product with the patches of its inputs or by torch's own kernel."""
    weight, biases = _two(names)
    total = {bias: d.sum(dim=tuple(range(2, d.dim()))) for bias in biases}
    if weight is None:
        return Materialised(total, h.nbytes + d.nbytes)
    h = _padded(layer, h)
    if layer.groups == 1 and layer.weight.numel() * prod(d.shape[2:]) < _LARGE:
        patches = _patches(layer, h, d.shape[2:])  # [b, c k, t]
        rows = d.flatten(2).mT if d.is_contiguous() else d.movedim(1, -1).flatten(1, -2)
        return products(rows, patches.mT, weight, biases)
    h, d, none = h.contiguous(), d.contiguous(), [0] * (h.dim() - 2)
    each = [
        torch.ops.aten.convolution_backward(
            d[i : i + 1],
            h[i : i + 1],
            layer.weight,
            None,
            layer.stride,
            none,
            layer.dilation,
            False,
            none,
            layer.groups,
            [False, True, False],
        )[1]
        for i in range(len(h))
    ]
    return Materialised({weight: torch.stack(each), **total}, h.nbytes + d.nbytes)


def _padded(layer: nn.Conv1d | nn.Conv2d, h: Tensor) -> Tensor:
    around, mode = layer._reversed_padding_repeated_twice, layer.padding_mode
    return F.pad(h, around, mode="constant" if mode == "zeros" else mode) if any(around) else h


def _patches(layer: nn.Conv1d | nn.Conv2d, h: Tensor, outputs: torch.Size) -> Tensor:
    """What each output sees: `[b, c, ...] -> [b, c k, t]`."""
    b, c, *_ = h.shape
    h = h.contiguous()
    across, steps = layer.dilation, layer.stride
    inner = h.stride()[2:]
    seen = h.as_strided(
        (b, c, *layer.kernel_size, *outputs),
        (
            *h.stride()[:2],
            *(stride * by for stride, by in zip(inner, across, strict=True)),
            *(stride * by for stride, by in zip(inner, steps, strict=True)),
        ),
    )
    return seen.reshape(b, -1, prod(outputs))


def embedding(layer: nn.Embedding, h: Tensor, d: Tensor, names: Names) -> Share:
    b, size = len(h), layer.num_embeddings
    if layer.padding_idx is not None:  # has no gradient
        d = torch.where((h == layer.padding_idx)[..., None], 0.0, d)
    flat = h.reshape(b, -1) + size * torch.arange(b, device=h.device)[:, None]
    keys, place = torch.unique(flat, return_inverse=True)
    grads = d.new_zeros(len(keys), d.shape[-1])
    grads.index_add_(0, place.reshape(-1), d.reshape(-1, d.shape[-1]))
    return Lookups(keys % size, keys // size, grads, b, "weight")


def layer_norm(layer: nn.LayerNorm, h: Tensor, d: Tensor, names: Names) -> Share:
    shape = layer.normalized_shape
    scale = d * F.layer_norm(h, shape, eps=layer.eps)
    flat = (len(h), -1, prod(shape))
    return _affine(scale.reshape(flat), d.reshape(flat), names)


def group_norm(layer: nn.GroupNorm, h: Tensor, d: Tensor, names: Names) -> Share:
    scale = d * F.group_norm(h, layer.num_groups, eps=layer.eps)
    flat = (*h.shape[:2], -1)
    return _affine(scale.reshape(flat).mT, d.reshape(flat).mT, names)


LSTM = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def lstm(layer: nn.LSTM, h: Tensor, d: Tensor, names: Names, before: Tensor, part: int) -> Share:
    """One layer of an LSTM: d is of its gates, `before` the states that they saw."""
    w_ih, w_hh, *biases = (
        name if names.get(name) else None for name in (f"{n}_l{part}" for n in LSTM)
    )
    of_both = tuple(bias for bias in biases if bias is not None)
    return Several((products(d, h, w_ih, of_both), products(d, before, w_hh, ())))


def _affine(scale: Tensor, shift: Tensor, names: Names) -> Share:
    found = {"weight": scale, "bias": shift}
    grads = {n: found[n].sum(dim=1) for n, trained in names.items() if trained}
    return Materialised(grads, scale.nbytes + shift.nbytes)


def _two(names: Names) -> tuple[str | None, tuple[str, ...]]:
    return "weight" if names["weight"] else None, ("bias",) if names.get("bias") else ()


Rule = Callable[..., Share]  # layer, inputs, gradient of the outputs, names

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
}
