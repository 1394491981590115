# SPDX-License-Identifier: Apache-2.0
"""Batched layers with a written-out backward pass: the fast way for small dense networks.

A module that is a chain of dense layers and activations is traced once; its forward and backward
pass then run for r parties in one batched matrix product per layer. For plain SGD the product
itself writes the update, W <- W - d' h with the learning rate folded into d, so that no gradient
tensor exists. Equal to the other ways to float tolerance, which the planner checks before use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812

from archipel.losses import Loss
from archipel.model import Model, Points, Steps, descend_stack

aten = torch.ops.aten


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


Layer = Activation | Dense | Flatten

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


def trace(module: nn.Module, model: Model) -> list[Layer] | None:
    """Return the module as a chain of layers, or None where it is anything else."""
    spans, start = {}, 0
    for name, size in zip(model.spec.names, model.spec.sizes, strict=True):
        spans["net." + name], start = slice(start, start + size), start + size
    module = nn.Sequential(OrderedDict(net=module))  # so that a lone layer is a chain, too
    try:
        graph = fx.symbolic_trace(module).graph
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


def _dense(
    name: str, child: nn.Linear, spans: dict[str, slice], used: set[str]
) -> Dense | None:
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


class _Views(NamedTuple):
    """One dense layer's part of `[r, p]`, as matrices."""

    weight: Tensor  # [r, out, in]
    bias: Tensor | None  # [r, 1, out]


class Stacked:
    """All parties at once through a chain of batched layers."""

    def __init__(self, layers: list[Layer], loss: Loss) -> None:
        self._layers, self._loss = layers, loss
        self._first = next(i for i, layer in enumerate(layers) if isinstance(layer, Dense))

    @classmethod
    def of(cls, model: Model) -> Stacked | None:
        """The stacked form of a model, or None where it has none."""
        if not model.loss_function.separable or model.buffer_spec.names:
            return None
        layers = trace(model.module, model)
        if layers is None or not any(isinstance(layer, Dense) for layer in layers):
            return None
        return cls(layers, model.loss_function)

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        out = torch.empty_like(w)
        parameters, grads = self._views(w), self._views(out)
        inputs, outputs = self._forward(parameters, points.x)
        d = self._loss.output_grad(outputs, points.y, points.weights)

        def collect(i: int, d: Tensor, h: Tensor) -> None:
            weight, bias = grads[i]
            weight.baddbmm_(d.transpose(1, 2), h, beta=0)
            if bias is not None:
                torch.sum(d, dim=1, keepdim=True, out=bias)

        self._backward(parameters, inputs, d, collect)
        return out

    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        _, outputs = self._forward(self._views(w), points.x)
        return self._loss(outputs, points.y, points.weights)

    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor:
        if not steps.plain:
            return descend_stack(self, w, steps)
        w, counts = w.clone(memory_format=torch.contiguous_format), steps.counts
        lr = steps.lr if isinstance(steps.lr, float | int) else steps.lr[:, :, None]
        weights = steps.weights * lr
        shift = steps.shift * steps.lr if steps.shift is not None else None
        pull = steps.pull * steps.lr
        a = -1
        for t in range(int(counts.max(initial=0))):
            if (counts > t).sum() != a:
                a = int((counts > t).sum())
                head = self._views(w[:a])
                shifts = self._views(shift[:a]) if shift is not None else None
                centres = self._views(steps.towards[:a]) if steps.towards is not None else None
            rows = steps.rows[:a, t]
            x = steps.x.index_select(0, rows.reshape(-1)).view(*rows.shape, *steps.x.shape[1:])
            inputs, outputs = self._forward(head, x)
            y = steps.y.index_select(0, rows.reshape(-1)).view(*rows.shape, *steps.y.shape[1:])
            d = self._loss.output_grad(outputs, y, weights[:a, t])

            def update(i: int, d: Tensor, h: Tensor) -> None:
                weight, bias = head[i]  # noqa: B023
                for part, j in ((weight, 0), (bias, 1)):
                    if part is None:
                        continue
                    if centres is not None:  # noqa: B023
                        part.lerp_(centres[i][j], pull_of(part))  # noqa: B023
                    if shifts is not None:  # noqa: B023
                        part.sub_(shifts[i][j])  # noqa: B023
                weight.baddbmm_(d.transpose(1, 2), h, alpha=-1)
                if bias is not None:
                    bias.sub_(d.sum(dim=1, keepdim=True))

            def pull_of(part: Tensor) -> float | Tensor:
                return pull[: len(part), :, None] if isinstance(pull, Tensor) else pull

            self._backward(head, inputs, d, update)
        return w

    def _views(self, w: Tensor) -> list[_Views]:
        """Matrices of the dense layers, by layer index; they share the vector's memory."""
        return [
            _Views(
                w[:, layer.weight].view(len(w), layer.outputs, layer.inputs),
                None if layer.bias is None else w[:, None, layer.bias],
            )
            if isinstance(layer, Dense)
            else _Views(w, None)
            for layer in self._layers
        ]

    def _forward(self, parameters: list[_Views], x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return every layer's input with the outputs last, and the outputs."""
        inputs, h = [x], x
        for layer, (weight, bias) in zip(self._layers, parameters, strict=True):
            match layer:
                case Dense():
                    flat = h.reshape(len(h), -1, layer.inputs)
                    wt = weight.transpose(1, 2)
                    out = torch.bmm(flat, wt) if bias is None else torch.baddbmm(bias, flat, wt)
                    h = out.view(*h.shape[:-1], layer.outputs)
                case Flatten():
                    h = h.reshape(*h.shape[:2], -1)
                case Activation():
                    h = layer.forward(h)
            inputs.append(h)
        return inputs, h

    def _backward(
        self,
        parameters: list[_Views],
        inputs: list[Tensor],
        d: Tensor,
        collect: Callable[[int, Tensor, Tensor], None],
    ) -> None:
        """Walk back; `collect(i, d, h)` gets each dense layer's output gradient and input."""
        for i in reversed(range(self._first, len(self._layers))):
            layer, h = self._layers[i], inputs[i]
            match layer:
                case Dense():
                    flat = d.reshape(len(d), -1, layer.outputs)
                    back = torch.bmm(flat, parameters[i].weight) if i > self._first else None
                    collect(i, flat, h.reshape(len(h), -1, layer.inputs))
                    if back is None:
                        return
                    d = back.view(h.shape)
                case Flatten():
                    d = d.view(h.shape)
                case Activation():
                    d = layer.backward(d, h, inputs[i + 1])
