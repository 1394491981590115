# SPDX-License-Identifier: Apache-2.0
"""Small networks that algorithms train beside the model, as pure functions of a flat vector.

Vectors and inputs have the same leading dimensions, those of stacked parties; autograd goes through
both. A `Perceptron` serves as hyper-network, `[..., m, e] -> [..., m, p]`; an `Embedding` turns a
party's points into one vector that does not depend on their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from archipel.core import Blueprint, Examples, Vector
from archipel.errors import ArchipelError, unknown
from archipel.rng import key
from archipel.training.limits import texts
from archipel.vector import ParamSpec

Kind = Literal["examples", "labels"]
KERNELS, HIDDEN = 16, 100


@dataclass(frozen=True)
class Perceptron:
    """Dense layers with ReLU between them."""

    widths: tuple[int, ...]  # inputs, hidden layers, outputs

    @property
    def spec(self) -> ParamSpec:
        names, shapes = [], []
        for i, (inputs, outputs) in enumerate(zip(self.widths, self.widths[1:], strict=False)):
            names += [f"{i}.weight", f"{i}.bias"]
            shapes += [(outputs, inputs), (outputs,)]
        return ParamSpec(tuple(names), tuple(shapes))

    def starting_at(self, w: Vector, output: Vector) -> Vector:
        """The weights w, changed so that whatever goes in, about this output comes out."""
        views = list(self.spec.views(w.clone()).values())
        views[-2], views[-1] = 0.1 * views[-2], output
        return self.spec.flatten(dict(zip(self.spec.names, views, strict=True)))

    def __call__(self, w: Vector, x: Tensor) -> Tensor:
        """`[..., q]`, `[..., b, inputs]` -> `[..., b, outputs]`."""
        views = list(self.spec.views(w).values())
        for i in range(0, len(views), 2):
            x = x @ views[i].mT + views[i + 1].unsqueeze(-2)
            x = F.relu(x) if i + 2 < len(views) else x
        return x


@dataclass(frozen=True)
class Embedding:
    """The mean over a party's points of phi(x, y): aware of labels, blind to their order.

    phi is a perceptron, or for images a LeNet, with a term for the label in the first layer, in a
    LeNet's first dense layer, and in the last; with `kind = "labels"`, a linear map of the label.
    """

    kind: Kind
    shape: tuple[int, ...]  # of an example
    classes: int
    size: int  # e

    @classmethod
    def of(cls, kind: Kind, blueprint: Blueprint, size: int) -> Embedding:
        """The embedding for a problem."""
        if kind not in ("examples", "labels"):
            raise unknown("embedding", kind, ["examples", "labels"])
        if blueprint.classes is None:
            raise ArchipelError(
                "the embedding network reads class labels and the task has none: take an algorithm "
                "such as ditto, or data with classes."
            )
        return cls(kind, blueprint.shape, blueprint.classes, size)

    @property
    def spec(self) -> ParamSpec:
        c, e = self.classes, self.size
        if self.kind == "labels":
            return ParamSpec(("label",), ((e, c),))
        if not self._image:
            return ParamSpec(
                ("label", "first.label", *(f"dense.{name}" for name in self._dense.spec.names)),
                ((e, c), (HIDDEN, c), *self._dense.spec.shapes),
            )
        channels = 1 if len(self.shape) == 2 else self.shape[0]
        return ParamSpec(
            ("label", "first.label", "dense.label", "0.weight", "0.bias", "1.weight", "1.bias",
             *(f"dense.{name}" for name in self._dense.spec.names)),
            ((e, c), (KERNELS, c), (120, c), (KERNELS, channels, 5, 5), (KERNELS,),
             (2 * KERNELS, KERNELS, 5, 5), (2 * KERNELS,), *self._dense.spec.shapes),
        )  # fmt: skip

    def __call__(self, w: Vector, points: Examples) -> Vector:
        """`[..., q]` and points `[..., b, *shape]` -> `[..., e]`."""
        if points.y.dim() > points.weights.dim():
            raise ArchipelError(
                "the embedding network reads one class label of an example, and these have "
                f"{list(points.y.shape[points.weights.dim() :])}: take an algorithm such as ditto."
            )
        views = self.spec.views(w)
        labels = F.one_hot(points.y, self.classes).to(w.dtype)  # [..., b, classes]
        shares = points.weights.unsqueeze(-2) @ labels  # [..., 1, classes]
        v = (shares @ views["label"].mT).squeeze(-2)
        if self.kind == "labels":
            return v
        known = labels @ views["first.label"].mT  # [..., b, first layer]
        if self._image:
            return v + self._of_images(views, points, known, labels @ views["dense.label"].mT)
        dense = [views[f"dense.{name}"] for name in self._dense.spec.names]
        x = points.x.flatten(points.y.dim())
        h = F.relu(x @ dense[0].mT + dense[1].unsqueeze(-2) + known)
        h = F.relu(h @ dense[2].mT + dense[3].unsqueeze(-2))
        mean = (points.weights.unsqueeze(-2) @ h).squeeze(-2)  # before the last, linear layer
        return v + (dense[4] @ mean.unsqueeze(-1)).squeeze(-1) + dense[5]

    @property
    def _image(self) -> bool:
        return len(self.shape) in (2, 3) and min(self.shape[-2:]) >= 16

    @property
    def _dense(self) -> Perceptron:
        if self._image:
            across = [((side - 4) // 2 - 4) // 2 for side in self.shape[-2:]]
            return Perceptron((2 * KERNELS * across[0] * across[1], 120, 84, self.size))
        inputs = 1
        for side in self.shape:
            inputs *= side
        return Perceptron((inputs, HIDDEN, HIDDEN, self.size))

    def _of_images(
        self, views: dict[str, Tensor], points: Examples, known: Tensor, dense: Tensor
    ) -> Vector:
        """Party by party: convolutions take one set of kernels at a time."""
        lead = points.y.shape[:-1]
        parts = {name: view.reshape(-1, *view.shape[len(lead) :]) for name, view in views.items()}
        x = points.x.reshape(-1, *points.x.shape[len(lead) :])
        if len(self.shape) == 2:
            x = x.unsqueeze(2)
        known, dense = (part.reshape(-1, *part.shape[len(lead) :]) for part in (known, dense))
        weights = points.weights.reshape(-1, points.weights.shape[-1])
        out = []
        for r in range(len(x)):
            used = weights[r] > 0  # without the padding
            w = {name: part[r] for name, part in parts.items()}
            h = F.conv2d(x[r, used], w["0.weight"], w["0.bias"]) + known[r, used, :, None, None]
            h = F.max_pool2d(F.relu(h), 2)
            h = F.max_pool2d(F.relu(F.conv2d(h, w["1.weight"], w["1.bias"])), 2).flatten(1)
            h = F.relu(h @ w["dense.0.weight"].mT + w["dense.0.bias"] + dense[r, used])
            h = F.relu(h @ w["dense.1.weight"].mT + w["dense.1.bias"])
            out.append(w["dense.2.weight"] @ (weights[r, used] @ h) + w["dense.2.bias"])
        return torch.stack(out).view(*lead, self.size)


def head_of(algorithm: Any, blueprint: Blueprint) -> Tensor:
    """Which numbers `[p]` belong to the parameters that the algorithm's `head` names."""
    texts(algorithm, "head")
    layers = {name.rpartition(".")[0] for name in blueprint.spec.names}
    if algorithm.head == "last" and len(layers) == 1:
        raise ArchipelError(
            f"{type(algorithm).__name__.lower()}: head = 'last' is the whole model: take a model "
            "with more layers, such as mlp."
        )
    return blueprint.spec.mask(algorithm.head)


def first_weights(
    spec: ParamSpec, seed: int, like: Tensor, purpose: str = "first weights"
) -> Vector:
    """Uniform with sd 1 / sqrt(3 inputs), as torch's layers have them.

    Two networks of a run have different purposes, so that neither has the other's numbers in a run
    with another seed.
    """
    generator = torch.Generator().manual_seed(key(seed, purpose))
    parts, inputs = [], 1
    for shape, size in zip(spec.shapes, spec.sizes, strict=True):
        if len(shape) > 1:  # a bias follows its weight and has the same scale
            inputs = size // shape[0]
        parts.append((2 * torch.rand(size, generator=generator) - 1) / inputs**0.5)
    return torch.cat(parts).to(like.dtype)


def pull_back(outputs: Tensor, inputs: tuple[Tensor, ...], d: Tensor) -> tuple[Tensor, ...]:
    """(d outputs / d inputs)^T d for each input: the gradient of <outputs, d>."""
    return torch.autograd.grad(outputs, inputs, d)
