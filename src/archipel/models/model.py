# SPDX-License-Identifier: Apache-2.0
"""A torch module and a loss, seen as pure functions of a vector `[..., p]`.

Three ways compute the same numbers for a stack of parties: `OneByOne` (plain autograd, any module),
`Vmapped` (torch.func, any module that treats examples independently) and `Stacked` (batched layers
with a written-out backward pass, in stacked.py). An engine picks by timing; see engines/plan.py.

One file, since `Model` and the two ways for any module share how tensors, buffers and keys are laid
out in a vector, and torch.func is to be known in one place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.parameter import is_lazy

from archipel.core import Vector
from archipel.errors import ArchipelError, unknown
from archipel.metrics import Chosen
from archipel.models import losses
from archipel.models.losses import Loss
from archipel.rng import Ints, Keys
from archipel.training.optimisers import SGD, Optimiser
from archipel.training.subspace import Subspace, kept
from archipel.tree import tree_map
from archipel.vector import ParamSpec, trainable

Statistics = Literal["averaged", "own"]  # BatchNorm's: one for all, or each party's


class Points(NamedTuple):
    """Labelled points of r parties: what one gradient is computed on."""

    x: Tensor  # [r, b, *shape]
    y: Tensor  # [r, b, ...]
    weights: Tensor  # [r, b], summing to 1 over a party's points, 0 for padding
    lengths: Ints  # [r] points before the padding
    seeds: Keys | None = None  # [r] for layers that draw, such as dropout


class Steps(NamedTuple):
    """Local descent of r parties: the batches and the rule. Parties with more steps come first."""

    x: Tensor  # [N, *shape] all points
    y: Tensor  # [N, ...]
    rows: Tensor  # [r, T, b] which points each step takes
    weights: Tensor  # [r, T, b]
    lengths: Ints  # [r, T]; 0 after the party's last step
    lr: float | Tensor  # or [r, 1]
    optimiser: Optimiser
    shift: Tensor | None  # [r, p]
    pull: float | Tensor  # or [r, 1]
    towards: Tensor | None  # [r, p], where pull is not 0
    seeds: Keys | None = None  # [r, T]
    only: Tensor | None = None  # [p] which parameters move; all without it
    within: Subspace | None = None  # of r parties: what each step must stay in; all without it

    @property
    def counts(self) -> Ints:
        """Steps of each party, `[r]`, falling."""
        counts: Ints = (self.lengths > 0).sum(axis=1)
        return counts

    @property
    def plain(self) -> bool:
        free = self.only is None and self.within is None
        return free and isinstance(self.optimiser, SGD) and self.optimiser.plain

    def points(self, t: int, active: int) -> Points:
        """What step t takes, for the first `active` parties."""
        rows = self.rows[:active, t]
        width = int(self.lengths[:active, t].max())
        rows = rows[:, :width]
        x, y = (part.index_select(0, rows.reshape(-1)) for part in (self.x, self.y))
        return Points(
            x.view(*rows.shape, *x.shape[1:]),
            y.view(*rows.shape, *y.shape[1:]),
            self.weights[:active, t, :width],
            self.lengths[:active, t],
            None if self.seeds is None else self.seeds[:active, t],
        )


class Way(Protocol):
    """One way to compute a stack of r parties' gradients. Buffers `[r, q]` are updated in place."""

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor: ...
    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor: ...
    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor: ...


class Model:
    """Any `nn.Module` and a loss as functions of a flat vector; the module itself is not touched.

    With `statistics = "averaged"`, BatchNorm's running means and variances are averaged over the
    parties of a round and go with the shared model; with "own" every party keeps its own.

    >>> model = Model(nn.Linear(3, 2))
    >>> model.p, model.grad(model.w, torch.ones(5, 3), torch.zeros(5).long()).shape
    (8, torch.Size([8]))
    """

    def __init__(
        self,
        module: nn.Module,
        loss: str | Loss | Callable[..., Tensor] = "cross_entropy",
        statistics: Statistics = "averaged",
    ) -> None:
        _check_whole(module)
        if statistics not in get_args(Statistics):
            raise unknown("statistics", statistics, get_args(Statistics))
        self.module, self.statistics = copy.deepcopy(module), statistics
        self.metrics: Chosen | None = None  # by which it is judged; the task's usual ones
        self.loss_function = losses.loss(loss)
        self.spec = ParamSpec.of(trainable(self.module))
        if not self.spec.names:
            raise ArchipelError(
                f"the model {type(module).__name__} has no parameter to train: "
                "leave requires_grad on for at least one."
            )
        self.buffer_spec = ParamSpec.of(self.module.named_buffers())
        self.w: Vector = self.spec.flatten(dict(trainable(self.module))).detach().clone()
        dtypes = {str(parameter.dtype) for _, parameter in trainable(self.module)}
        if len(dtypes) > 1:
            raise ArchipelError(
                f"the model's parameters have several types ({', '.join(sorted(dtypes))}): "
                "convert it to one, for example with module.float()."
            )
        layers = _norm_layers(self.module)
        self.norms = tuple(n for n in self.spec.names if n.rpartition(".")[0] in layers)
        self.running, self.counting, self.least = _running(self.module, self.buffer_spec)
        self._one: OneByOne | None = None

    @property
    def p(self) -> int:
        """Length of the vector: parameters that are trained, tied ones counted once."""
        return self.spec.size

    @property
    def separable(self) -> bool:
        """Whether the loss over some points is the sum of the losses over parts of them."""
        return self.loss_function.separable and not self.buffer_spec.names

    @property
    def dtype(self) -> torch.dtype:
        return self.w.dtype

    @property
    def buffers(self) -> Tensor:
        """Initial buffers (BatchNorm statistics) as a second vector `[q]`."""
        values = [buffer.reshape(-1).to(self.dtype) for _, buffer in self.module.named_buffers()]
        return torch.cat(values) if values else torch.zeros(0, dtype=self.dtype)

    def judged_by(self, chosen: Chosen) -> Model:
        """The same model, judged by these metrics."""
        other = copy.copy(self)
        other.metrics = chosen
        return other

    def buffers_with(self, statistics: Tensor) -> Tensor:
        """Initial buffers with these running statistics: `[..., s] -> [..., q]`."""
        buffers = self.buffers.expand(*statistics.shape[:-1], -1).clone()
        buffers[..., self.running] = statistics
        return buffers

    @property
    def one(self) -> OneByOne:
        """The way that works for any module."""
        if self._one is None:
            self._one = OneByOne(self)
        return self._one

    def grad(self, w: Vector, x: Tensor, y: Tensor) -> Vector:
        """Gradient of the mean loss: `[..., p]`, x `[..., b, *shape]` -> `[..., p]`."""
        rows, points = self._rows(w, x, y)
        return self.one.grad(rows, points).view(w.shape)

    def loss(self, w: Vector, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss `[..., p]`, x `[..., b, *shape]` -> `[...]`."""
        rows, points = self._rows(w, x, y)
        return self.one.loss(rows, points).view(w.shape[:-1])

    def predict(self, w: Vector, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        """Outputs in evaluation mode: `[p]`, x `[b, *shape]` -> `[b, ...]`."""
        return self.one.outputs(w, x, buffers)

    def functional(self, w: Vector, x: Tensor) -> Tensor:
        """Outputs in training mode as a function of both, to be differentiated: `[p]`, `[b, ...]`.

        Layers that keep statistics see these points alone, and remember nothing.
        """
        module = copy.deepcopy(self.module).train() if self.buffer_spec.names else self.module
        out: Tensor = functional_call(module, self.spec.views(w), (x,))
        return out

    def to_module(self, w: Vector, buffers: Tensor | None = None) -> nn.Module:
        """Return a copy of the user's module with these parameters (and buffers)."""
        module = copy.deepcopy(self.module)
        views = self.spec.views(w.detach())
        with torch.no_grad():
            for name, parameter in trainable(module):
                parameter.copy_(views[name])
            if buffers is not None:
                kept = self.buffer_spec.views(buffers)
                for name, buffer in module.named_buffers():
                    buffer.copy_(kept[name])
        return module

    def _rows(self, w: Vector, x: Tensor, y: Tensor) -> tuple[Tensor, Points]:
        lead = w.dim() - 1
        x, y = x.reshape(-1, *x.shape[lead:]), y.reshape(-1, *y.shape[lead:])
        b = x.shape[1]
        weights = torch.full(x.shape[:2], 1.0 / b, dtype=self.dtype)
        return w.reshape(-1, self.p), Points(x, y, weights, np.full(len(x), b))


class OneByOne:
    """One party at a time through the module itself: no stacking, no padding, any layer.

    With `channels_last`, images lie in memory pixel by pixel rather than channel by channel, which
    convolutions and above all pooling are quicker on; a module that reshapes them with `view`
    refuses it.
    """

    def __init__(self, model: Model, channels_last: bool = False) -> None:
        self._loss, self._channels_last = model.loss_function, channels_last
        self._module = copy.deepcopy(model.module)
        self._spec, self._buffer_spec = model.spec, model.buffer_spec
        self._initial_w, self._initial_buffers = model.w, model.buffers
        self._parameters = [parameter for _, parameter in trainable(self._module)]
        self._buffers = [buffer for _, buffer in self._module.named_buffers()]
        self._norms = [
            layer
            for layer in self._module.modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
        ]
        self._module.train()

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        out = torch.empty_like(w)
        for r, length in enumerate(points.lengths):
            if length == 0:
                out[r] = 0
                continue
            with self._as(w[r], None if buffers is None else buffers[r]):
                seed = None if points.seeds is None else int(points.seeds[r])
                grads = self._gradients(
                    points.x[r, :length], points.y[r, :length], points.weights[r, :length], seed
                )
                torch.cat([g.reshape(-1) for g in grads], out=out[r])
        return out

    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        out = w.new_empty(len(w))
        with torch.no_grad(), self._evaluating():
            for r, length in enumerate(points.lengths):
                with self._as(w[r], None if buffers is None else buffers[r]):
                    outputs = self._module(self._arranged(points.x[r, :length]))
                    out[r] = self._loss(outputs, points.y[r, :length], points.weights[r, :length])
        return out

    def outputs(self, w: Vector, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        """Outputs for one vector in evaluation mode: `[p]`, `[b, *shape]` -> `[b, ...]`."""
        with torch.no_grad(), self._evaluating(), self._as(w, buffers):
            out: Tensor = self._module(self._arranged(x))
        return out

    def features(self, w: Vector, x: Tensor, buffers: Tensor | None = None) -> Tensor:
        """What reaches the last layer that has parameters: `[p]`, `[b, *shape]` -> `[b, f]`."""
        found: list[Tensor] = []

        def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(inputs[0])

        layers = {name.rpartition(".")[0] for name in self._spec.names}
        hooks = [self._module.get_submodule(n).register_forward_pre_hook(keep) for n in layers]
        try:
            self.outputs(w, x, buffers)
        finally:
            for hook in hooks:
                hook.remove()
        return found[-1].flatten(1)  # of the layer that was used last

    def settle(self, w: Vector, x: Tensor) -> Tensor:
        """Buffers after one pass over these points: statistics for a party that never trained."""
        momenta = [norm.momentum for norm in self._norms]
        buffers = self._initial_buffers.clone()
        for norm in self._norms:
            norm.momentum = 1.0
        with torch.no_grad(), self._as(w, buffers):
            self._outputs(x)
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.momentum = momentum
        return buffers

    def draws(self, x: Tensor) -> bool:
        """Whether training draws random numbers, as dropout does."""
        with torch.no_grad(), self._as(self._initial_w, None), seeded(0):
            before = torch.get_rng_state()
            self._outputs(x)
            return not torch.equal(before, torch.get_rng_state())

    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor:
        out = torch.empty_like(w)
        for r, count in enumerate(steps.counts):
            out[r] = w[r]
            with self._as(out[r], None if buffers is None else buffers[r]):
                self._descend_row(out[r], r, int(count), steps)
        return out

    def _descend_row(self, w: Tensor, r: int, count: int, steps: Steps) -> None:
        """Take party r's steps on w in place, which is also where the module's parameters are."""
        data = [parameter.data for parameter in self._parameters]
        lr = steps.lr if isinstance(steps.lr, float | int) else float(steps.lr[r])
        pull = steps.pull if isinstance(steps.pull, float | int) else float(steps.pull[r])
        shift = None if steps.shift is None else steps.shift[r]
        centre = None if steps.towards is None else steps.towards[r]
        # the party's points in the order of its batches, gathered a few megabytes at a time
        width = steps.rows.shape[2]
        point = steps.x[0].numel() * steps.x.element_size()
        chunk = max(1, (16 << 20) // max(1, width * point))
        state: Any = None
        moving = None
        if steps.only is not None:  # no gradient of what stays, nor of anything below it
            parts = zip(self._parameters, steps.only.split(self._spec.sizes), strict=True)
            moving = [parameter for parameter, part in parts if part.any()]
        for t in range(count):
            if t % chunk == 0:
                taken = steps.rows[r, t : min(t + chunk, count)].reshape(-1)
                xs = steps.x.index_select(0, taken).split(width)
                ys = steps.y.index_select(0, taken).split(width)
            length = int(steps.lengths[r, t])
            x, y = xs[t % chunk], ys[t % chunk]
            if length < width:
                x, y = x[:length], y[:length]
            seed = None if steps.seeds is None else int(steps.seeds[r, t])
            grads = self._gradients(x, y, steps.weights[r, t, :length], seed, moving)
            if steps.plain:
                if centre is not None:
                    w.lerp_(centre, lr * pull)
                if shift is not None:
                    w.sub_(shift, alpha=lr)
                torch._foreach_add_(data, grads, alpha=-lr)
                continue
            g = torch.cat([part.reshape(-1) for part in grads])
            if shift is not None:
                g += shift
            if centre is not None:
                g += pull * (w - centre)
            state = steps.optimiser.init(g) if t == 0 else state
            moved, state = steps.optimiser.step(w, g, lr, state)
            within = None if steps.within is None else steps.within[r]
            w.copy_(kept(moved, w, within, steps.only))

    def _gradients(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor,
        seed: int | None,
        parameters: list[nn.Parameter] | None = None,
    ) -> tuple[Tensor, ...]:
        """Gradients of all parameters; zero where only some are asked for and it is another."""
        if seed is None:
            outputs = self._outputs(x)
        else:
            with seeded(seed):
                outputs = self._outputs(x)
        value = self._loss(outputs, y, weights)
        wanted = self._parameters if parameters is None else parameters
        if wanted and not value.requires_grad:
            raise ArchipelError(
                f"the model {type(self._module).__name__} has no gradient: its outputs do not "
                "depend on its parameters; remove detach() or torch.no_grad() from its forward."
            )
        found = torch.autograd.grad(value, wanted, allow_unused=True) if wanted else ()
        grads = {id(p): g for p, g in zip(wanted, found, strict=True) if g is not None}
        return tuple(
            grads[id(p)] if id(p) in grads else torch.zeros_like(p) for p in self._parameters
        )

    def _outputs(self, x: Tensor) -> Tensor:
        """Outputs in training mode; a lone point has no variance, so BatchNorm uses its means."""
        lone = len(x) == 1
        for norm in self._norms if lone else ():
            norm.eval()
        try:
            out: Tensor = self._module(self._arranged(x))
        except ValueError as error:
            if lone and "more than 1 value per channel" in str(error):
                raise ArchipelError(
                    "a batch of one point cannot pass BatchNorm without running statistics: "
                    "choose a batch_size that leaves no lone point, or use GroupNorm."
                ) from error
            raise
        finally:
            for norm in self._norms if lone else ():
                norm.train()
        return out

    def _arranged(self, x: Tensor) -> Tensor:
        if not self._channels_last or x.dim() != 4:
            return x
        return one_channel(x.contiguous(memory_format=torch.channels_last))

    @contextmanager
    def _as(self, w: Tensor, buffers: Tensor | None) -> Iterator[None]:
        """Let the module's parameters be this vector, and its buffers these until the end."""
        for parameter, view in zip(
            self._parameters, self._spec.views(w.detach()).values(), strict=True
        ):
            one = self._channels_last and view.dim() == 4  # images as flat rows are turned, too
            parameter.data = one_channel(view) if one else view
        if buffers is None:
            buffers = self._initial_buffers.clone()
        parts = buffers.split(self._buffer_spec.sizes) if self._buffers else ()
        for buffer, part in zip(self._buffers, parts, strict=True):
            buffer.copy_(part.view(buffer.shape))
        yield
        for buffer, part in zip(self._buffers, parts, strict=True):
            part.copy_(buffer.reshape(-1))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self._module.eval()
        try:
            yield
        finally:
            self._module.train()


class Vmapped:
    """All parties at once through `torch.func`: any module that treats examples independently."""

    def __init__(self, model: Model) -> None:
        module, spec, loss = model.module, model.spec, model.loss_function

        def value(w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
            return loss(functional_call(module, spec.views(w), (x,)), y, weights)

        self._grad = vmap(grad(value))
        self._loss = vmap(value)
        self._module = module

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        self._module.train()
        out: Tensor = self._grad(w, points.x, points.y, points.weights)
        return out

    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        self._module.eval()
        with torch.no_grad():
            out: Tensor = self._loss(w, points.x, points.y, points.weights)
        return out

    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor:
        return descend_stack(self, w, steps)


class Singles:
    """Gradients of single examples through `torch.func`; layers that draw do so for each anew."""

    def __init__(self, model: Model) -> None:
        module, spec, loss = model.module, model.spec, model.loss_function

        def value(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            outputs = functional_call(module, spec.views(w), (x.unsqueeze(0),))
            return loss(outputs, y.unsqueeze(0), w.new_ones(1))

        self._grads = vmap(grad(value), in_dims=(None, 0, 0), randomness="different")
        self._module = module

    def grads(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """One gradient per example: `[p]`, x `[b, *shape]` -> `[b, p]`."""
        self._module.train()
        out: Tensor = self._grads(w, x, y)
        return out


def _check_whole(module: nn.Module) -> None:
    """Refuse layers that learn their size from the first points they see."""
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            place = name.rpartition(".")[0]
            layer = f"'{place}' " if place else ""
            kind = type(module.get_submodule(place)).__name__
            raise ArchipelError(
                f"the model's layer {layer}({kind}) does not know its size yet: give it one, or "
                "pass a point through the module first."
            )


def _norm_layers(module: nn.Module) -> set[str]:
    """Layers that keep running statistics, and their like: BatchNorm of every dimension."""
    kind = nn.modules.batchnorm._NormBase
    return {name for name, layer in module.named_modules() if isinstance(layer, kind)}


def _running(module: nn.Module, spec: ParamSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Where in the buffers a layer's running statistics are, its counts, and the least of them."""
    layers = _norm_layers(module)
    means, counts, variance = [], [], []
    for name, part in zip(spec.names, torch.arange(spec.size).split(spec.sizes), strict=True):
        layer, _, what = name.rpartition(".")
        if layer in layers and what in ("running_mean", "running_var"):
            means.append(part)
            variance.append(torch.full((len(part),), what == "running_var"))
        elif layer in layers and what == "num_batches_tracked":
            counts.append(part)
    none = torch.zeros(0, dtype=torch.int64)
    is_variance = torch.cat([none.bool(), *variance])
    return (
        torch.cat([none, *means]),
        torch.cat([none, *counts]),
        torch.where(is_variance, 0.0, -torch.inf),
    )


def descend_stack(way: Way, w: Tensor, steps: Steps) -> Tensor:
    """Descend a stack with `way.grad`: step t runs on the parties that still have one to take."""
    w, counts = w.clone(), steps.counts
    state = steps.optimiser.init(w)
    for t in range(int(counts.max(initial=0))):
        a = int((counts > t).sum())
        g = way.grad(w[:a], steps.points(t, a))
        if steps.shift is not None:
            g = g + steps.shift[:a]
        if steps.towards is not None:
            g = g + _head(steps.pull, a) * (w[:a] - steps.towards[:a])
        head = tree_map(lambda leaf: leaf[:a], state)  # noqa: B023
        moved, head = steps.optimiser.step(w[:a], g, _head(steps.lr, a), head)
        within = None if steps.within is None else steps.within[slice(a)]
        w[:a] = kept(moved, w[:a], within, steps.only)
        tree_map(lambda leaf, new: leaf[:a].copy_(new), state, head)  # noqa: B023
    return w


def one_channel(x: Tensor) -> Tensor:
    """Say of images with one channel, `[n, 1, h, w]`, that channels come last: same memory."""
    _, channels, h, w = x.shape
    return x.as_strided(x.shape, (h * w, 1, w, 1)) if channels == 1 and x.is_contiguous() else x


def _head(value: float | Tensor, a: int) -> float | Tensor:
    return value[:a] if isinstance(value, Tensor) else value


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Layers draw from torch's global generator: key it, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
