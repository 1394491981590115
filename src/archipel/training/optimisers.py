# SPDX-License-Identifier: Apache-2.0
"""How a party turns gradients into local steps. State starts anew each round, as in the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, zeros_like


class Optimiser(Protocol):
    """A pure step rule on `[..., p]`; every operation is elementwise, so it needs no stacking."""

    def init(self, w: Tensor) -> Any: ...
    def step(
        self, w: Tensor, g: Tensor, lr: float | Tensor, state: Any
    ) -> tuple[Tensor, Any]: ...  # w, state


@dataclass(frozen=True)
class SGD:
    """v <- momentum v + g;  w <- w - lr v  (with nesterov: w - lr (g + momentum v))."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether a step is w - lr g, which engines write into the matrix product."""
        return self.momentum == 0.0 and self.weight_decay == 0.0

    def init(self, w: Tensor) -> Tensor | None:
        return zeros_like(w) if self.momentum else None

    def step(
        self, w: Tensor, g: Tensor, lr: float | Tensor, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.weight_decay:
            g = g + self.weight_decay * w
        if state is not None:
            state = self.momentum * state + g
            g = g + self.momentum * state if self.nesterov else state
        return w - lr * g, state


class Moments(NamedTuple):
    """Adam's running means."""

    m: Tensor
    v: Tensor
    t: Tensor  # [..., 1] steps taken


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction [Kingma & Ba 2015]; weight decay decoupled, as in AdamW."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def init(self, w: Tensor) -> Moments:
        return Moments(zeros_like(w), zeros_like(w), torch.zeros_like(w[..., :1]))

    def step(
        self, w: Tensor, g: Tensor, lr: float | Tensor, state: Moments
    ) -> tuple[Tensor, Moments]:
        t = state.t + 1
        m = torch.lerp(state.m, g, 1 - self.beta1)
        v = (state.v * self.beta2).addcmul_(g, g, value=1 - self.beta2)
        root = v.sqrt().div_((1 - self.beta2**t).sqrt()).add_(self.eps)  # sqrt(v_hat) + eps
        step = torch.div(m, root, out=root).mul_(lr / (1 - self.beta1**t))
        if self.weight_decay:
            step.add_(lr * self.weight_decay * w)
        return torch.sub(w, step, out=step), Moments(m, v, t)
