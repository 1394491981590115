# SPDX-License-Identifier: Apache-2.0
"""Clipped gradients of any module whose parameters are in layers that ghost.py knows.

One forward and one backward pass over a batch record what goes into each layer and the gradient of
what comes out; no gradient of a parameter is computed on the way. A parameter is out of the graph
while its own layer runs and in it at any other time, so that whatever else uses it (a tied weight,
`F.linear(x, self.weight)`) shows in every pass, as does a layer that runs twice. Such a pass is
given up: `Unrecorded`. So is a module that looks at numbers to decide what to do, since what one
example has would then decide it for the others of its batch.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from archipel.models.ghost import LSTM, RULES, Rule, Share, factors, lstm
from archipel.models.model import Model, one_channel
from archipel.vector import trainable


class Unrecorded(Exception):
    """The layers do not account for the gradient of each example."""


class _Use(NamedTuple):
    """A layer's inputs in a pass, where the gradient of its outputs comes, what is made of both."""

    h: Tensor
    version: int
    edge: GradientEdge
    rule: Rule


class Recorded:
    """Sums of clipped gradients by layers, for one party at a time."""

    def __init__(
        self, model: Model, x: Tensor, y: Tensor, limit: int, channels_last: bool = False
    ) -> None:
        """Raise `Unrecorded` for a module that is none of this; x and y are a few examples."""
        self._channels_last = channels_last  # as in OneByOne
        self._loss, self._spec, self._dtype = model.loss_function, model.spec, model.dtype
        self._module = copy.deepcopy(model.module).train()
        self._parameters = [parameter for _, parameter in trainable(self._module)]
        named = {id(p): name for p, name in zip(self._parameters, self._spec.names, strict=True)}
        self._layers: dict[nn.Module, dict[str, str]] = {}  # names of parameters, own and whole
        self._uses: dict[tuple[nn.Module, int], _Use] = {}
        for layer in self._module.modules():
            own = {n: named[id(p)] for n, p in layer._parameters.items() if id(p) in named}
            if own:
                self._watch(layer, own)
        owned = [name for own in self._layers.values() for name in own.values()]
        if sorted(owned) != sorted(self._spec.names):
            raise Unrecorded("a parameter belongs to several layers")
        with torch.no_grad(), _Operations(), _Methods():  # type: ignore[no-untyped-call]
            self._module(x)
        held = sum(share.held for _, share in self._shares(model.w, x, y)) / len(x)
        self.size = max(1, int(limit / (3 * held + 1)))  # examples at a time

    def add(
        self, w: Tensor, x: Tensor, y: Tensor, clip: float, into: Tensor, scale: float
    ) -> Tensor:
        """into += scale * sum of the clipped gradients at w; return their norms: `[p] -> [b]`."""
        shares = self._shares(w, x, y)
        squares = w.new_zeros(len(x), dtype=torch.float64)
        for _, share in shares:
            squares += share.squares()
        found = factors(squares, clip, self._dtype)
        keep = None if bool(found.counts.all()) else found.counts.nonzero().squeeze(1)
        views = self._spec.views(into)
        for layer, share in shares:
            own = {name: views[whole] for name, whole in self._layers[layer].items()}
            share.add(own, scale * found.values, keep)
        return found.norms

    def _watch(self, layer: nn.Module, own: dict[str, str]) -> None:
        hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
        if hooked or not (type(layer) in RULES or type(layer) is nn.LSTM) or not _usual(layer):
            raise Unrecorded(f"{type(layer).__name__} has no rule")
        self._layers[layer] = own
        layer.register_forward_pre_hook(self._before)
        layer.register_forward_hook(self._after)
        if isinstance(layer, nn.LSTM):
            layer.forward = partial(self._lstm, layer)  # type: ignore[assignment]

    def _before(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor] | None:
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            raise Unrecorded("a layer has several inputs")
        for name in self._layers[layer]:
            getattr(layer, name).requires_grad_(False)
        (h,) = inputs
        if h.requires_grad or not h.is_floating_point():
            return None
        return (h.detach().requires_grad_(),)  # so that there is a graph to walk back

    def _after(self, layer: nn.Module, inputs: tuple[Tensor], out: Any) -> Any:
        for name in self._layers[layer]:
            getattr(layer, name).requires_grad_(True)
        if isinstance(layer, nn.LSTM) or not torch.is_grad_enabled():
            return None
        leaf = not out.requires_grad  # of integers
        edge = get_gradient_edge(out.requires_grad_())
        self._note(layer, 0, inputs[0], edge, RULES[type(layer)])
        return out.clone() if leaf else None  # what follows may write into it

    def _note(self, layer: nn.Module, part: int, h: Tensor, edge: GradientEdge, rule: Rule) -> None:
        if (layer, part) in self._uses:
            raise Unrecorded("a layer runs twice")
        names = {name: name in self._layers[layer] for name in layer._parameters}
        self._uses[layer, part] = _Use(h, h._version, edge, partial(rule, names=names))

    def _lstm(self, layer: nn.LSTM, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """torch's LSTM, step by step so that its gates are seen: `[b, t, f] -> [b, t, hidden]`."""
        if x.dim() != 3:
            raise Unrecorded("an LSTM reads what is no batch")
        ends: list[tuple[Tensor, Tensor]] = []
        for part in range(layer.num_layers):
            x = x if part == 0 else F.dropout(x, layer.dropout, layer.training)
            w_ih, w_hh, *biases = (
                getattr(layer, f"{name}_l{part}") for name in LSTM[: 4 if layer.bias else 2]
            )
            gates = F.linear(x, w_ih, biases[0] + biases[1] if biases else None)
            h = c = x.new_zeros(len(x), layer.hidden_size)
            hidden = []
            for ahead in gates.unbind(1):
                i, f, g, o = torch.addmm(ahead, h, w_hh.T).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                hidden.append(h)
            states = torch.stack(hidden, dim=1)
            if torch.is_grad_enabled():
                before = F.pad(states.detach()[:, :-1], (0, 0, 1, 0))
                rule = partial(lstm, part=part, before=before)
                self._note(layer, part, x, get_gradient_edge(gates), rule)
            ends.append((h, c))
            x = states
        last_h, last_c = zip(*ends, strict=True)
        return x, (torch.stack(last_h), torch.stack(last_c))

    def _shares(self, w: Tensor, x: Tensor, y: Tensor) -> list[tuple[nn.Module, Share]]:
        """What each layer contributes to the gradients of these examples."""
        for parameter, view in zip(self._parameters, self._spec.views(w).values(), strict=True):
            turned = self._channels_last and view.dim() == 4
            parameter.data = one_channel(view.detach()) if turned else view.detach()
        if self._channels_last and x.dim() == 4:
            x = one_channel(x.contiguous(memory_format=torch.channels_last))
        self._uses.clear()
        try:
            with torch.enable_grad():
                outputs = self._module(x)
                value = self._loss(outputs, y, w.new_ones(len(x)))
                if not value.requires_grad:
                    raise Unrecorded("nothing has a gradient")
                uses = list(self._uses.items())
                edges = [use.edge for _, use in uses]
                edges += [get_gradient_edge(parameter) for parameter in self._parameters]
                found = torch.autograd.grad(value, edges, allow_unused=True)
        finally:
            for parameter in self._parameters:
                parameter.requires_grad_(True)
            self._uses.clear()
        if any(grad is not None for grad in found[len(uses) :]):
            raise Unrecorded("a parameter is used outside its layer")
        with torch.no_grad():
            return [
                (layer, _share(layer, use, grad, len(x)))
                for ((layer, _), use), grad in zip(uses, found, strict=False)
                if grad is not None
            ]


class _Operations(TorchDispatchMode):
    """Notices when a number of a tensor, or how many there are, becomes one of Python's."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masked = func.overloadpacket is not torch.ops.aten.index or any(
            part is not None and part.dtype == torch.bool for part in args[1]
        )
        if torch.Tag.data_dependent_output in func.tags or (
            torch.Tag.dynamic_output_shape in func.tags and masked
        ):
            raise Unrecorded(f"the module looks at numbers ({func})")
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    """Notices the same where it is no operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.numpy, Tensor.tolist, Tensor.__array__):
            raise Unrecorded(f"the module looks at numbers ({func.__name__})")
        return func(*args, **(kwargs or {}))


def _share(layer: nn.Module, use: _Use, d: Tensor, b: int) -> Share:
    if use.h._version != use.version:
        raise Unrecorded("a layer's input was written into")
    if len(use.h) != b or len(d) != b:
        raise Unrecorded("a layer's first dimension is not that of the examples")
    return use.rule(layer, use.h.detach(), d)


def _usual(layer: nn.Module) -> bool:
    """Whether the layer's options are those that its rule is for."""
    match layer:
        case nn.Embedding():
            return layer.max_norm is None and not (layer.scale_grad_by_freq or layer.sparse)
        case nn.LSTM():
            return layer.batch_first and not layer.bidirectional and layer.proj_size == 0
    return set(layer._parameters) <= {"weight", "bias"}
