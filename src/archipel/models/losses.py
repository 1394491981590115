# SPDX-License-Identifier: Apache-2.0
"""Losses of stacked parties, and their gradients with respect to the model's outputs.

Shapes: outputs `[..., b, k]` (text: `[..., b, T, k]`), targets `[..., b]` (text: `[..., b, T]`;
survival: `[..., b, 2]`), weights `[..., b]` -> loss `[...]`. Leading dimensions are stacked
parties. Weights are non-negative, zero on padding rows and sum to one over the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from archipel.errors import ArchipelError, unknown


@runtime_checkable
class Loss(Protocol):
    """What a model minimises."""

    @property
    def name(self) -> str: ...

    @property
    def separable(self) -> bool:
        """Whether the loss is a weighted sum over examples (Cox and AdaBoost are not)."""

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the loss: `[..., b, k], [..., b], [..., b] -> [...]`."""

    def output_grad(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient with respect to the outputs, of their shape, outside any graph."""

    def check(self, outputs: Tensor, targets: Tensor, classes: int | None = None) -> None:
        """Refuse outputs that do not fit the targets; `classes` is the number the data has."""


@dataclass(frozen=True)
class Separable:
    """A weighted sum of one loss per target; an example of several targets counts their mean."""

    name: str
    formula: Callable[[Tensor, Tensor], Tensor]  # outputs, targets -> a loss per target
    derivative: Callable[[Tensor, Tensor, Tensor], Tensor]  # with a weight per target
    fits: Callable[[str, Tensor, Tensor, int | None], None]
    separable: bool = True

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        losses = self.formula(outputs, targets)
        if losses.dim() > weights.dim():
            losses = losses.mean(dim=-1)
        return (losses * weights).sum(dim=-1)

    def output_grad(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        if targets.dim() > weights.dim():
            weights = (weights / targets.shape[-1]).unsqueeze(-1).expand(targets.shape)
        return self.derivative(outputs.detach(), targets, weights)

    def check(self, outputs: Tensor, targets: Tensor, classes: int | None = None) -> None:
        self.fits(self.name, outputs, targets, classes)


@dataclass(frozen=True)
class Weighted:
    """A loss of labelled points in which each counts as much as its class weighs.

    The weights are not normalised in a batch: the loss is the mean over points of the weight of the
    class times the point's loss, as scikit-learn's class_weight has it.
    """

    loss: Loss
    classes: tuple[float, ...]  # weights
    separable: bool = True

    @property
    def name(self) -> str:
        return f"{self.loss.name}, class weights {', '.join(f'{w:g}' for w in self.classes)}"

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.loss(outputs, targets, weights * self._of(targets, weights))

    def output_grad(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.loss.output_grad(outputs, targets, weights * self._of(targets, weights))

    def _of(self, targets: Tensor, like: Tensor) -> Tensor:
        return torch.tensor(self.classes, dtype=like.dtype, device=like.device)[targets.long()]

    def check(self, outputs: Tensor, targets: Tensor, classes: int | None = None) -> None:
        self.loss.check(outputs, targets, classes)


def weighted(loss: Loss, weights: Sequence[float], task: str, classes: int) -> Loss:
    """The loss with a weight for each class of the data."""
    given = f"class_weights = {[*weights]}"
    if task != "classification" or not loss.separable:
        raise ArchipelError(
            f"{given}: the points of {task} with the loss '{loss.name}' have no classes to weigh; "
            "leave them out."
        )
    if len(weights) != classes or not all(0 <= w < float("inf") for w in weights):
        raise ArchipelError(
            f"{given}: give a number from 0 for each of the {classes} classes, in their order."
        )
    if not any(w > 0 for w in weights):
        raise ArchipelError(f"{given}: give at least one class a weight.")
    return Weighted(loss, tuple(float(w) for w in weights))


def balanced(counts: Sequence[int]) -> list[float]:
    """Weights by which every class counts the same: n / (classes * points of the class).

    >>> balanced([30, 10])
    [0.6666666666666666, 2.0]
    """
    lacking = [k for k, count in enumerate(counts) if count == 0]
    if lacking:
        raise ArchipelError(
            f'class_weights = "balanced": class {lacking[0]} has no training point; give numbers.'
        )
    return [sum(counts) / (len(counts) * count) for count in counts]


@dataclass(frozen=True)
class Custom:
    """A user's `f(outputs, targets)`: the mean, or the sum, or the list of losses per example.

    It is called through `torch.func.vmap` with one example at a time, outputs `[1, k]` and targets
    `[1]` (text: `[1, T, k]` and `[1, T]`), and returns one number, of shape `[]` or `[1]`. So `f`
    may reduce as it likes, must not branch on a tensor's value, and cannot compare examples with
    one another: a loss that does, as Cox's, implements `Loss` itself.
    """

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    separable: bool = True

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        lead = weights.dim()
        outputs = outputs.reshape(-1, 1, *outputs.shape[lead:])
        targets = targets.reshape(-1, 1, *targets.shape[lead:])
        losses = torch.func.vmap(self._one)(outputs, targets).reshape(weights.shape)
        return (losses * weights).sum(dim=-1)

    def _one(self, outputs: Tensor, targets: Tensor) -> Tensor:
        value = self.function(outputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise ArchipelError(
                f"the loss '{self.name}' gave {got} for a batch of one example: return a tensor "
                "with the mean over the batch, or with one loss per example."
            )
        return value.reshape(())

    def output_grad(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return _autograd(self, outputs, targets, weights)

    def check(self, outputs: Tensor, targets: Tensor, classes: int | None = None) -> None:
        self._one(outputs[:1], targets[:1])


@dataclass(frozen=True)
class Cox:
    """Cox's negative log partial likelihood over the number of events; ties as Breslow does.

    Outputs `[..., b, 1]` are log-risks and targets `[..., b, 2]` are (time, event). A row counts
    where its weight is positive, whatever the weight, since examples share their risk sets; without
    an event the loss and its gradient are zero.
    """

    name: str = "cox"
    separable: bool = False

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        risk, time, counted = outputs.squeeze(-1), targets[..., 0], weights > 0
        # Latest first: the risk set of a row is then the rows before it, and rows left out, put
        # last with no event, are in no one's.
        time, order = torch.where(counted, time, -torch.inf).sort(dim=-1, descending=True)
        risk = torch.where(counted, risk, 0.0).gather(-1, order)
        event = torch.where(counted, targets[..., 1], 0.0).to(risk.dtype).gather(-1, order)
        at_risk = risk.logcumsumexp(dim=-1).gather(-1, _last_of_ties(time))
        return (event * (at_risk - risk)).sum(dim=-1) / event.sum(dim=-1).clamp(min=1.0)

    def output_grad(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return _autograd(self, outputs, targets, weights)

    def check(self, outputs: Tensor, targets: Tensor, classes: int | None = None) -> None:
        if targets.shape[-1:] != (2,) or targets.dim() < 2:
            raise ArchipelError(
                f"targets have shape {list(targets.shape)}, but the loss 'cox' reads (time, event) "
                "pairs: give targets of shape [n, 2]."
            )
        _one_output(self.name, outputs)


@dataclass(frozen=True)
class AdaBoost:
    """The logarithm of AdaBoost's loss, log sum_i w_i exp(-m_i): 0 for a model that says nothing.

    Outputs `[..., b, 1]` are scores f(x), labels are 0 or 1, and the margin m_i is f(x_i) where the
    label is 1 and -f(x_i) where it is 0. Without rows its gradient is zero.
    """

    name: str = "adaboost"
    separable: bool = False

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self._against(outputs, 1 - 2 * targets, weights).logsumexp(dim=-1)

    def output_grad(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return -y_i w_i exp(-m_i) / sum_j w_j exp(-m_j), with y_i = 1 or -1."""
        sign = 1 - 2 * targets  # -y_i
        share = torch.softmax(self._against(outputs.detach(), sign, weights), dim=-1)
        return torch.where(weights > 0, share * sign, 0.0).reshape(outputs.shape)

    def _against(self, outputs: Tensor, sign: Tensor, weights: Tensor) -> Tensor:
        """Minus the margins, with the logarithm of each row's weight."""
        return torch.addcmul(weights.log(), outputs.reshape(sign.shape), sign)

    def check(self, outputs: Tensor, targets: Tensor, classes: int | None = None) -> None:
        _fits_binary(self.name, outputs, targets, classes)


def _last_of_ties(time: Tensor) -> Tensor:
    """Return, for sorted times `[..., b]`, the last index that has the same time as each row."""
    b = time.shape[-1]
    index = torch.arange(b, device=time.device)
    ends = torch.ones_like(time, dtype=torch.bool)
    ends = torch.cat([time[..., 1:] != time[..., :-1], ends[..., -1:]], dim=-1)
    return torch.where(ends, index, b).flip(-1).cummin(dim=-1).values.flip(-1)


def _autograd(loss: Loss, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(loss(leaf, targets, weights).sum(), leaf)
    return grad


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    own = outputs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return outputs.logsumexp(dim=-1) - own


def _cross_entropy_grad(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return weights * (softmax(outputs) - onehot(targets))."""
    weights = weights.unsqueeze(-1)
    if outputs.shape[-1] >= 16:
        grad = torch.softmax(outputs, dim=-1).mul_(weights)
    else:  # rows shorter than one AVX-512 register take torch's softmax three times as long as this
        grad = (outputs - outputs.amax(dim=-1, keepdim=True)).exp_()
        grad.mul_(weights / grad.sum(dim=-1, keepdim=True))
    return grad.scatter_add_(-1, targets.unsqueeze(-1), weights.neg())


def _residual(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs - targets: `[..., b, 1]` or `[..., b]`, `[..., b] -> [..., b]`."""
    return outputs.reshape(targets.shape) - targets.to(outputs.dtype)


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return _residual(outputs, targets).square() / 2


def _squared_grad(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return _residual(outputs, targets).mul_(weights).reshape(outputs.shape)


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return _residual(outputs, targets).abs()


def _absolute_grad(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return _residual(outputs, targets).sign_().mul_(weights).reshape(outputs.shape)


def _huber(outputs: Tensor, targets: Tensor) -> Tensor:
    size = _residual(outputs, targets).abs()
    return torch.where(size <= 1, size.square() / 2, size - 0.5)


def _huber_grad(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return _residual(outputs, targets).clamp_(-1, 1).mul_(weights).reshape(outputs.shape)


def _binary(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return log(1 + exp(o)) - y o, in a form whose derivative torch knows at o = 0, too."""
    logit = outputs.reshape(targets.shape)
    return torch.logaddexp(logit, torch.zeros_like(logit)) - logit * targets


def _binary_grad(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    probability = torch.sigmoid(outputs.reshape(targets.shape))
    return probability.sub_(targets).mul_(weights).reshape(outputs.shape)


def _fits_labels(name: str, outputs: Tensor, targets: Tensor, classes: int | None) -> None:
    if targets.is_floating_point():
        raise ArchipelError(
            f"targets are {targets.dtype}, but the loss '{name}' reads labels 0, 1, 2, ...: give "
            "integer targets, or the loss 'squared_error' to predict a quantity."
        )
    if outputs.shape[:-1] != targets.shape:
        raise ArchipelError(
            f"the model gives outputs of shape {list(outputs.shape)} for targets of shape "
            f"{list(targets.shape)}: the loss '{name}' needs one row of outputs per label."
        )
    lowest = int(targets.min()) if targets.numel() else 0
    highest = int(targets.max()) if targets.numel() else 0
    needed, given = max(highest + 1, classes or 0), outputs.shape[-1]
    if lowest < 0:
        raise ArchipelError(f"labels go down to {lowest}: number the classes from 0.")
    if given < needed:
        raise ArchipelError(
            f"the model gives {given} output{'s' * (given > 1)} but labels go up to {needed - 1}: "
            f"give the model {needed} outputs."
        )


def _fits_quantity(name: str, outputs: Tensor, targets: Tensor, classes: int | None) -> None:
    if outputs.numel() != targets.numel():
        _one_output(name, outputs)
        raise ArchipelError(
            f"the model gives outputs of shape {list(outputs.shape)} for targets of shape "
            f"{list(targets.shape)}: the loss '{name}' needs one output per target."
        )


def _fits_binary(name: str, outputs: Tensor, targets: Tensor, classes: int | None) -> None:
    if (classes or 0) > 2 or bool(((targets != 0) & (targets != 1)).any()):
        raise ArchipelError(
            f"targets are not all 0 or 1, as the loss '{name}' needs: "
            "use the loss 'cross_entropy' for more than two classes."
        )
    _fits_quantity(name, outputs, targets, classes)


def _one_output(name: str, outputs: Tensor) -> None:
    if outputs.shape[-1] != 1:
        raise ArchipelError(
            f"the model gives {outputs.shape[-1]} outputs but the loss '{name}' needs one: "
            "give the model 1 output."
        )


LOSSES: dict[str, Loss] = {
    known.name: known
    for known in (
        Separable("cross_entropy", _cross_entropy, _cross_entropy_grad, _fits_labels),
        Separable("binary_cross_entropy", _binary, _binary_grad, _fits_binary),  # output: logit
        Separable("squared_error", _squared, _squared_grad, _fits_quantity),  # (o - y)^2 / 2
        Separable("absolute_error", _absolute, _absolute_grad, _fits_quantity),  # |o - y|
        Separable("huber", _huber, _huber_grad, _fits_quantity),  # squared_error up to |o - y| = 1
        Cox(),
        AdaBoost(),
    )
}

DEFAULT = {
    "classification": "cross_entropy",
    "regression": "squared_error",
    "survival": "cox",
    "text": "cross_entropy",
}


def loss(spec: str | Loss | Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Return the loss of that name, or a user's `f(outputs, targets)` as a loss (see `Custom`).

    `squared_error` is (o - y)²/2, with the half, so that its gradient is the residual.

    >>> loss("cox").separable
    False
    """
    if isinstance(spec, str):
        if spec not in LOSSES:
            raise unknown("loss", spec, LOSSES)
        return LOSSES[spec]
    if isinstance(spec, Loss):
        return spec
    if not callable(spec):
        raise ArchipelError(
            f"loss is {spec!r}: give one of {', '.join(sorted(LOSSES))}, or a function of "
            "(outputs, targets)."
        )
    return Custom(getattr(spec, "__name__", type(spec).__name__), spec)


def default_loss(task: str) -> Loss:
    """Return the loss a task is trained with unless the study names another."""
    if task not in DEFAULT:
        raise unknown("task", task, DEFAULT)
    return LOSSES[DEFAULT[task]]
