# SPDX-License-Identifier: Apache-2.0
"""Gradients that can be differentiated themselves: of records that an attack makes up."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archipel.core import Vector
from archipel.models.model import Model

LossOf = Callable[[Tensor], Tensor]  # of the model's outputs, to one number


def gradient_of(model: Model, w: Vector, x: Tensor, loss: LossOf, graph: bool = True) -> Vector:
    """The gradient `[p]` of a loss of the outputs for x, at w; with `graph` a function of x."""
    with torch.enable_grad():
        at = w if w.requires_grad else w.detach().clone().requires_grad_()
        value = loss(outputs_of(model, at, x))
        (found,) = torch.autograd.grad(value, at, create_graph=graph)
    return found


def outputs_of(model: Model, w: Vector, x: Tensor) -> Tensor:
    """The model's outputs in training, as a function of w and x."""
    found: Tensor = model.functional(w, x)
    return found


def soft_loss(y: Tensor) -> LossOf:
    """Mean cross-entropy against chances that are themselves searched for, by their logits."""
    return lambda outputs: -(y.softmax(dim=-1) * outputs.log_softmax(dim=-1)).sum(dim=-1).mean()


def hard_loss(model: Model, y: Tensor) -> LossOf:
    """The model's own loss for these targets, each counting the same."""
    return lambda outputs: model.loss_function(outputs, y, outputs.new_full((len(y),), 1 / len(y)))


def last_dense(model: Model) -> str | None:
    """The name of the last layer that has parameters, if it is dense and has biases."""
    found = None
    for name, layer in model.module.named_modules():
        if any(True for _ in layer.parameters(recurse=False)):
            found = name if isinstance(layer, nn.Linear) and layer.bias is not None else None
    return found
