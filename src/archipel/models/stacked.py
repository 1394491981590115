# SPDX-License-Identifier: Apache-2.0
"""Batched layers with a written-out backward pass: the fast way for small dense networks.

A module that is a chain of dense layers and activations is traced once; its forward and backward
pass then run for r parties in one batched matrix product per layer. For plain SGD the product
itself writes the update, W <- W - d' h with the learning rate folded into d, so that no gradient
tensor exists. Equal to the other ways to float tolerance, which the planner checks before use.

One file, since the forward pass, the backward pass and the views of a vector that they write into
are one derivation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock, get_ident
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812

from archipel.models.ensemble import Stumps
from archipel.models.losses import Loss
from archipel.models.model import Model, Points, Steps, descend_stack

aten = torch.ops.aten
_TINY = 4 << 10  # numbers of a matrix up to which a sum beside it is quicker than one into it
SMALL = 128 << 10  # bytes of a party's vector below which its layers are laid out apart


class Activation(NamedTuple):
    """An elementwise layer; backward gets the gradient, the input and the output."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]


class Dense(NamedTuple):
    """A linear layer: where its weight and bias lie in the vector."""

    weight: slice
    bias: slice | None
    inputs: int
    outputs: int


class Flatten(NamedTuple):
    """All dimensions of an example into one."""


class Fixed(NamedTuple):
    """A layer of which nothing is learnt, before all that are: of examples `[r, b, ...]`."""

    module: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """What it makes of each example by itself."""
        with torch.no_grad():
            found: Tensor = self.module(x.flatten(0, 1))
        return found.view(*x.shape[:2], *found.shape[1:])


Layer = Activation | Dense | Fixed | Flatten

RELU = Activation(F.relu, lambda d, x, y: aten.threshold_backward(d, y, 0))
TANH = Activation(torch.tanh, lambda d, x, y: aten.tanh_backward(d, y))
SIGMOID = Activation(torch.sigmoid, lambda d, x, y: aten.sigmoid_backward(d, y))
ELU = Activation(F.elu, lambda d, x, y: aten.elu_backward(d, 1.0, 1.0, 1.0, False, x))
GELU = Activation(F.gelu, lambda d, x, y: aten.gelu_backward(d, x))
SILU = Activation(F.silu, lambda d, x, y: aten.silu_backward(d, x))

_MODULES: dict[type[nn.Module], Activation] = {
    nn.ReLU: RELU,
    nn.Tanh: TANH,
    nn.Sigmoid: SIGMOID,
    nn.SiLU: SILU,
}
_FROZEN: frozenset[type[nn.Module]] = frozenset(  # of each example by itself, with nothing drawn
    {
        Stumps,
        nn.Linear,
        nn.Conv1d,
        nn.Conv2d,
        nn.MaxPool1d,
        nn.MaxPool2d,
        nn.AvgPool1d,
        nn.AvgPool2d,
        nn.AdaptiveAvgPool2d,
        nn.LayerNorm,
    }
)
_FUNCTIONS: dict[object, Activation] = {
    F.relu: RELU,
    torch.relu: RELU,
    torch.tanh: TANH,
    torch.sigmoid: SIGMOID,
    F.silu: SILU,
    "relu": RELU,
    "tanh": TANH,
    "sigmoid": SIGMOID,
}


_one_at_a_time = Lock()


class _Tracer(fx.Tracer):
    """Traces what its own thread calls: for all others, who compute meanwhile, nothing changes.

    While it traces, torch has every module of the process ask the tracer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        return isinstance(m, Stumps) or super().is_leaf_module(m, name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def trace(module: nn.Module, model: Model) -> list[Layer] | None:
    """Return the module as a chain of layers, or None where it is anything else."""
    spans, start = {}, 0
    for name, size in zip(model.spec.names, model.spec.sizes, strict=True):
        spans["net." + name], start = slice(start, start + size), start + size
    module = nn.Sequential(OrderedDict(net=module))  # so that a lone layer is a chain, too
    try:
        with _one_at_a_time:
            graph = _Tracer().trace(module)
    except Exception:  # a forward pass that depends on values cannot be traced: not a chain
        return None
    layers: list[Layer] = []
    used: set[str] = set()
    previous: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "output":
            return layers if node.args[0] is previous else None
        if len(node.users) != 1 or (previous is not None and node.all_input_nodes != [previous]):
            return None
        if node.op != "placeholder":
            layer = _layer(node, module, spans, used)
            if layer is None:
                return None
            layers.append(layer)
        previous = node
    return None


def _layer(
    node: fx.Node, module: nn.Module, spans: dict[str, slice], used: set[str]
) -> Layer | None:
    if node.op == "call_module":
        child = module.get_submodule(str(node.target))
        learnt = any(name.startswith(f"{node.target}.") for name in spans)
        if type(child) in _FROZEN and not learnt and not used:
            return Fixed(child)
        if type(child) is nn.Linear:
            return _dense(str(node.target), child, spans, used)
        if type(child) is nn.Flatten and (child.start_dim, child.end_dim) == (1, -1):
            return Flatten()
        if type(child) is nn.ELU and child.alpha == 1.0:
            return ELU
        if type(child) is nn.GELU and child.approximate == "none":
            return GELU
        return _MODULES.get(type(child))
    if node.op in ("call_function", "call_method"):
        flat = node.target in (torch.flatten, "flatten")
        if flat and (node.args[1:] == (1,) or node.kwargs == {"start_dim": 1}):
            return Flatten()
        if len(node.args) == 1 and not (node.kwargs.keys() - {"inplace"}):
            return _FUNCTIONS.get(node.target)
    return None


def _dense(name: str, child: nn.Linear, spans: dict[str, slice], used: set[str]) -> Dense | None:
    weight, bias = f"{name}.weight", f"{name}.bias"
    wanted = [weight] + ([bias] if child.bias is not None else [])
    if any(part not in spans or part in used for part in wanted):  # frozen, or tied
        return None
    used.update(wanted)
    return Dense(
        spans[weight],
        spans[bias] if child.bias is not None else None,
        child.in_features,
        child.out_features,
    )


class Views(NamedTuple):
    """One dense layer's part of `[r, p]`, as matrices."""

    weight: Tensor  # [r, out, in]
    bias: Tensor | None  # [r, 1, out]

    def move(self, d: Tensor, h: Tensor) -> None:
        """W <- W - d' h, b <- b - sum d: a step of gradient descent, the rate being in d."""
        self.weight.baddbmm_(d.transpose(1, 2), h, alpha=-1)
        self.move_bias(d)

    def move_bias(self, d: Tensor) -> None:
        if self.bias is not None:
            self.bias.sub_(d.sum(dim=1, keepdim=True))

    def apart(self) -> Views:
        """A copy whose matrices lie side by side, which small products are quicker on."""
        plain = torch.contiguous_format
        bias = None if self.bias is None else self.bias.clone(memory_format=plain)
        return Views(self.weight.clone(memory_format=plain), bias)

    def take(self, other: Views) -> None:
        """Copy the other's values."""
        if other is self:
            return
        self.weight.copy_(other.weight)
        if self.bias is not None and other.bias is not None:
            self.bias.copy_(other.bias)

    def head(self, a: int) -> Views:
        """The first a parties."""
        return Views(self.weight[:a], None if self.bias is None else self.bias[:a])


class _Drag(NamedTuple):
    """What moves parameters besides their gradient: along a shift, and towards a centre."""

    shift: list[Views] | None
    centre: list[Views] | None
    pull: Tensor | float  # or [r, 1, 1]

    def weight(self, views: Views, i: int, taken: Tensor | None = None) -> None:
        """Move layer i's weights; by `taken` shifts `[a, 1, 1]` where several steps are due."""
        a = len(views.weight)
        if self.centre is not None:
            torch.lerp(views.weight, self.centre[i].weight[:a], self._pull(a), out=views.weight)
        if self.shift is not None:
            shift = self.shift[i].weight[:a]
            views.weight.sub_(shift if taken is None else shift * taken)

    def bias(self, views: Views, i: int) -> None:
        if views.bias is None:
            return
        a = len(views.bias)
        if self.centre is not None:
            centre = self.centre[i].head(a).bias
            assert centre is not None
            torch.lerp(views.bias, centre, self._pull(a), out=views.bias)
        if self.shift is not None:
            shift = self.shift[i].head(a).bias
            assert shift is not None
            views.bias.sub_(shift)

    def _pull(self, a: int) -> Any:
        return self.pull[:a] if isinstance(self.pull, Tensor) else self.pull


class Entry(NamedTuple):
    """What the gradient of layer i is made of: d' h for the weights, a sum of d for the bias."""

    i: int
    d: Tensor  # [r, b * inner, out] of its outputs
    h: Tensor  # [r, b * inner, in] its inputs
    biased: bool


Collect = Callable[[int, Tensor, Tensor], None]  # layer, gradient of its outputs, its inputs


class Stacked:
    """All parties at once through a chain of batched layers."""

    def __init__(self, layers: list[Layer], loss: Loss) -> None:
        self.layers, self._loss = layers, loss
        self.first = next(i for i, layer in enumerate(layers) if isinstance(layer, Dense))

    @classmethod
    def of(cls, model: Model) -> Stacked | None:
        """The stacked form of a model, or None where it has none."""
        if model.buffer_spec.names:
            return None
        layers = trace(model.module, model)
        if layers is None or not any(isinstance(layer, Dense) for layer in layers):
            return None
        return cls(layers, model.loss_function)

    @property
    def dense(self) -> Dense:
        """The first dense layer."""
        layer = self.layers[self.first]
        assert isinstance(layer, Dense)
        return layer

    def ahead(self, x: Tensor) -> Tensor:
        """What reaches the first dense layer: of it nothing is learnt."""
        return self.forward([], x, 0, self.first)[-1]

    def rest(self) -> Stacked:
        """The same from the first dense layer on."""
        return Stacked(self.layers[self.first :], self._loss)

    def output_grad(self, outputs: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Gradient of the loss by the outputs, of r parties."""
        return self._loss.output_grad(outputs, y, weights)

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        out = torch.empty_like(w)
        parameters, grads = self.views(w), self.views(out)
        inputs = self.forward(parameters, points.x, 0)
        d = self.output_grad(inputs[-1], points.y, points.weights)

        def collect(i: int, d: Tensor, h: Tensor) -> None:
            weight, bias = grads[i]
            if weight[0].numel() < _TINY:  # torch writes into rows of a stack one by one
                weight.copy_(torch.bmm(d.transpose(1, 2), h))
            else:
                weight.baddbmm_(d.transpose(1, 2), h, beta=0)
            if bias is not None:
                torch.sum(d, dim=1, keepdim=True, out=bias)

        self.backward(parameters, inputs[self.first :], d, collect, self.first)
        return out

    def book(self, w: Tensor, points: Points) -> list[Entry]:
        """Pass forward and back, and keep what the gradient is made of rather than the gradient."""
        parameters, kept = self.views(w), []
        inputs = self.forward(parameters, points.x, 0)
        d = self.output_grad(inputs[-1], points.y, points.weights)

        def collect(i: int, d: Tensor, h: Tensor) -> None:
            kept.append(Entry(i, d, h, parameters[i].bias is not None))

        self.backward(parameters, inputs[self.first :], d, collect, self.first)
        return kept

    def add(self, into: Tensor, i: int, d: Tensor, h: Tensor) -> None:
        """into += the gradient of layer i that these make, `[r, p]`."""
        weight, bias = self._view(into, i)
        if weight[0].numel() < _TINY:  # torch writes into rows of a stack one by one
            weight.add_(torch.bmm(d.transpose(1, 2), h))
        else:
            weight.baddbmm_(d.transpose(1, 2), h)
        if bias is not None:
            bias.add_(d.sum(dim=1, keepdim=True))

    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        outputs = self.forward(self.views(w), points.x, 0)[-1]
        return self._loss(outputs, points.y, points.weights)

    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor:
        """Plain SGD with every update written by the matrix product that would make the gradient.

        The first layer's inputs are the data, known ahead, so it is moved once per window of steps
        rather than at each. With W the weights before the window, X_j the inputs of its step j and
        d_j the output gradients, learning rate included, W_j = W - sum_{i<j} d_i' X_i and so step j
        needs X_j W_j' = X_j W' - sum_{i<j} (X_j X_i') d_i: one large product for all steps
        and small ones for the rest. A window of one step is the ordinary update.
        """
        if not (steps.plain and self._loss.separable):  # else rates are weights of examples
            return descend_stack(self, w, steps)
        w, counts, lr = w.clone(memory_format=torch.contiguous_format), steps.counts, steps.lr
        small = w[0].numel() * w.element_size() <= SMALL
        pull = steps.pull * lr
        whole = self.views(w)
        apart = [view.apart() for view in whole] if small else whole
        layers = apart
        drag = _Drag(
            None if steps.shift is None else self.views(steps.shift * lr),
            None if steps.towards is None else self.views(steps.towards),
            pull[..., None] if isinstance(pull, Tensor) else pull,
        )
        rows = steps.rows.transpose(0, 1).contiguous()  # [T, r, b]: a step's rows side by side
        y = steps.y[rows]
        weights = steps.weights * (lr[..., None] if isinstance(lr, Tensor) else lr)
        weights = weights.transpose(0, 1).contiguous()
        total, window = int(counts.max(initial=0)), self._window(steps)
        going = np.searchsorted(
            -counts, -np.arange(total), side="left"
        ).tolist()  # parties at a step
        for t in range(0, total, window):
            some = slice(t, min(t + window, total))
            active = going[some]
            if len(layers[self.first].weight) != active[0]:
                layers = [view.head(active[0]) for view in layers]
            taken = rows[some, : active[0]]
            taken = taken.transpose(0, 1).reshape(-1) if window > 1 else taken.view(-1)
            x = steps.x.index_select(0, taken).view(active[0], -1, *steps.x.shape[1:])
            self._descend_window(layers, x, y[some], weights[some], active, drag)
        for view, moved in zip(whole, apart, strict=True):
            view.take(moved)
        return w

    def _window(self, steps: Steps) -> int:
        """Steps between two moves of the first layer: few enough for X X' to cost little."""
        if steps.towards is not None:
            return 1
        point = self.forward([], steps.x[:1][None], 0, self.first)[-1]
        rows = steps.rows.shape[2] * point[..., 0].numel()  # of the layer's input, in one step
        return max(1, round(self.dense.outputs / (3 * rows)))

    def _descend_window(
        self,
        layers: list[Views],
        x: Tensor,  # [r, steps * b, ...]
        y: Tensor,  # [steps, >= r, b, ...]
        weights: Tensor,  # [steps, >= r, b]
        active: list[int],
        drag: _Drag,
    ) -> None:
        """Take the steps of a window, each on its number of active parties, the first ones."""
        most, count, first = active[0], len(active), self.first
        x = self.forward([], x, 0, first)[-1]
        inner = x.shape[2:-1]  # dimensions of an example besides its features
        x = x.reshape(most, -1, x.shape[-1])
        size = x.shape[1] // count
        weight, bias = layers[first]
        if count == 1 and bias is not None:
            ahead = torch.baddbmm(bias, x, weight.transpose(1, 2))
        else:
            ahead = torch.bmm(x, weight.transpose(1, 2))  # X W'
        moves = ahead  # d, in the place of X W' once that is used
        if count > 1:
            kernel = torch.bmm(x, x.transpose(1, 2))  # X X'
            if drag.shift is not None:
                drift = torch.bmm(x, drag.shift[first].weight[:most].transpose(1, 2))
        for j, a in enumerate(active):
            views = layers if a == most else [view.head(a) for view in layers]
            at, before = slice(j * size, (j + 1) * size), slice(0, j * size)
            h = ahead[:a, at]
            if j:
                h = torch.baddbmm(h, kernel[:a, at, before], moves[:a, before], alpha=-1)
                if drag.shift is not None:
                    h -= j * drift[:a, at]
            if count > 1 and bias is not None:
                h = h + bias[:a]

            def move(i: int, d: Tensor, h: Tensor) -> None:
                drag.weight(views[i], i)  # noqa: B023
                drag.bias(views[i], i)  # noqa: B023
                views[i].move(d, h)  # noqa: B023

            inputs = self.forward(views, h.view(a, -1, *inner, h.shape[-1]), first + 1)
            d = self.output_grad(inputs[-1], y[j, :a], weights[j, :a])
            d = self.backward(views, inputs, d, move, first + 1).reshape(a, size, -1)
            if count == 1:
                moves = d
            else:
                moves[:a, at], moves[a:, at] = d, 0
            drag.bias(views[first], first)
            views[first].move_bias(d)
        taken = None
        if count > 1 and drag.shift is not None:  # steps of each party in this window
            steps_of = [sum(a > r for a in active) for r in range(most)]
            taken = torch.tensor(steps_of, dtype=x.dtype)[:, None, None]
        drag.weight(layers[first], first, taken)
        layers[first].weight.baddbmm_(moves.transpose(1, 2), x, alpha=-1)

    def views(self, w: Tensor) -> list[Views]:
        """Matrices of the dense layers, by layer index; they share the vector's memory."""
        return [self._view(w, i) for i in range(len(self.layers))]

    def _view(self, w: Tensor, i: int) -> Views:
        layer = self.layers[i]
        if not isinstance(layer, Dense):
            return Views(w[:, :0], None)
        return Views(
            w[:, layer.weight].view(len(w), layer.outputs, layer.inputs),
            None if layer.bias is None else w[:, None, layer.bias],
        )

    def forward(
        self, parameters: list[Views], x: Tensor, start: int, stop: int | None = None
    ) -> list[Tensor]:
        """Return the input of each layer from `start` on, with the last one's output at the end."""
        inputs = [x]
        for i in range(start, len(self.layers) if stop is None else stop):
            h = inputs[-1]
            match self.layers[i]:
                case Dense() as layer:
                    weight, bias = parameters[i]
                    flat, wt = h.reshape(len(h), -1, layer.inputs), weight.transpose(1, 2)
                    out = torch.bmm(flat, wt) if bias is None else torch.baddbmm(bias, flat, wt)
                    inputs.append(out.view(*h.shape[:-1], layer.outputs))
                case Flatten():
                    inputs.append(h.reshape(*h.shape[:2], -1))
                case Activation() | Fixed() as layer:
                    inputs.append(layer.forward(h))
        return inputs

    def backward(
        self,
        parameters: list[Views],
        inputs: list[Tensor],
        d: Tensor,
        collect: Collect,
        start: int,
    ) -> Tensor:
        """Walk back from the outputs' gradient to that of layer `start`'s input, and return it.

        `collect` gets each dense layer's index, output gradient and input, before the weights move.
        Where `start` is the first dense layer, its input is data and has no gradient.
        """
        for i in reversed(range(start, len(self.layers))):
            h = inputs[i - start]
            match self.layers[i]:
                case Dense() as layer:
                    flat = d.reshape(len(d), -1, layer.outputs)
                    if i > self.first:
                        d = torch.bmm(flat, parameters[i].weight).view(h.shape)
                    collect(i, flat, h.reshape(len(h), -1, layer.inputs))
                case Flatten():
                    d = d.view(h.shape)
                case Activation() as layer:
                    d = layer.backward(d, h, inputs[i - start + 1])
        return d
