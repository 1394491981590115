# SPDX-License-Identifier: Apache-2.0
"""What stands in for parties and their model while an algorithm is probed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.models.model import Model, Points, Steps
from archipel.vector import ParamSpec

SIZES = (3, 2)  # points of the two parties


class Quadratic:
    """Gradients of a small quadratic in place of the model's, of another size at each party."""

    def __init__(self, ids: tuple[int, ...], repeat: int) -> None:
        sizes = [10.0 ** (3 - 6 * k) for k in ids for _ in range(repeat)]
        self._size = torch.tensor(sizes, dtype=torch.float64)[:, None]

    def grad(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        curve, push = self._terms(w, points)
        return curve * w + push * self._slope(w)

    def loss(self, w: Tensor, points: Points, buffers: Tensor | None = None) -> Tensor:
        curve, push = self._terms(w, points)
        return (curve / 2 * w * w + push * self._slope(w) * w).sum(dim=-1)

    def _terms(self, w: Tensor, points: Points) -> tuple[Tensor, Tensor]:
        """Means over the points of a batch, by their weights: `[r, 1]` each."""
        x = points.x.reshape(*points.weights.shape, -1).to(w.dtype).mean(dim=-1).tanh()
        curve = (points.weights * (0.3 + 0.1 * x)).sum(dim=-1, keepdim=True)
        push = (points.weights * (1 + x / 2)).sum(dim=-1, keepdim=True)
        return curve.to(w.dtype), (self._size * push).to(w.dtype)

    def descend(self, w: Tensor, steps: Steps, buffers: Tensor | None = None) -> Tensor:
        """Two steps, whatever is asked for: more would show nothing more."""
        for t in range(min(2, int(steps.counts.max()))):
            active = torch.from_numpy(steps.lengths[:, t] > 0)[:, None]
            g = self.grad(w, steps.points(t, len(w)))
            if steps.shift is not None:
                g = g + steps.shift
            if steps.towards is not None:
                g = g + steps.pull * (w - steps.towards)
            moved = w - steps.lr * g
            w = torch.where(active if steps.only is None else active & steps.only, moved, w)
        return w

    @staticmethod
    def _slope(w: Tensor) -> Tensor:
        return torch.sin(1 + torch.arange(w.shape[-1], dtype=w.dtype))


def small(data: Federation, dtype: torch.dtype) -> Federation:
    """Two parties of a few points each."""
    data = data.form
    rows = torch.arange(sum(SIZES)) % len(data.x)
    x, y = data.x[rows], data.y[rows]
    ends = torch.tensor(np.cumsum((0, *SIZES)))
    return replace(
        data,
        x=x.to(dtype) if x.is_floating_point() else x,
        y=y.to(dtype) if y.is_floating_point() else y,
        offsets=ends,
        test_from=ends[1:],
        training=len(SIZES),
        names=None,
        about=About(),
        scan=False,
    )


def shrunk(model: Model) -> Model:
    """A large model's parameters by name, with few numbers each; it has no outputs.

    What an algorithm does with a vector does not depend on its length.
    """
    few = copy.copy(model)
    shapes = tuple(tuple(min(side, 8) for side in shape) for shape in model.spec.shapes)
    few.spec = ParamSpec(model.spec.names, shapes)
    few.w = model.w[: few.spec.size].double()
    return few


def double(model: Model) -> Model:
    """The model in double precision."""
    return Model(model.to_module(model.w).double(), model.loss_function)


# -- the global random generators ------------------------------------------------------------------


@contextmanager
def restored() -> Iterator[None]:
    """Leave torch's, NumPy's and Python's generators as they were."""
    python, legacy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def stand_at(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def standing() -> tuple[bytes, ...]:
    """Where the generators stand."""
    legacy: Any = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        legacy[1].tobytes() + bytes(str(legacy[2]), "ascii"),
        bytes(str(hash(random.getstate())), "ascii"),
    )
