# SPDX-License-Identifier: Apache-2.0
"""A module's tensors as one flat vector `[..., p]`, and arithmetic along its last dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

import torch
from torch import Tensor, nn

from archipel.errors import ArchipelError


@dataclass(frozen=True)
class ParamSpec:
    """Where each named tensor lies in the flat vector. Views share memory with it, never copies."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> ParamSpec:
        """Describe named tensors, in their order."""
        pairs = [(name, tuple(tensor.shape)) for name, tensor in tensors]
        return cls(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def size(self) -> int:
        """p, the length of the vector."""
        return sum(self.sizes)

    def mask(self, pattern: str) -> Tensor:
        """Which numbers belong to the parameters of these names, `[p]`.

        The pattern is `last`, the last layer, or names with wildcards, such as `fc1.* fc2.*`.

        >>> ParamSpec(("a.weight", "b.weight", "b.bias"), ((2,), (1,), (1,))).mask("last")
        tensor([False, False,  True,  True])
        """
        last = self.names[-1].rpartition(".")[0]
        chosen = [
            name.rpartition(".")[0] == last if pattern == "last"
            else any(fnmatchcase(name, each) for each in pattern.split())
            for name in self.names
        ]  # fmt: skip
        if not any(chosen) or all(chosen):
            raise ArchipelError(
                f"'{pattern}' names {'all' if any(chosen) else 'none'} of the model's parameters: "
                f"take some of {', '.join(self.names)}, with * for any letters."
            )
        return self.among(name for name, yes in zip(self.names, chosen, strict=True) if yes)

    def among(self, names: Iterable[str]) -> Tensor:
        """Which numbers belong to the parameters of exactly these names, `[p]`."""
        chosen = set(names)
        parts = zip(self.names, self.sizes, strict=True)
        return torch.cat([torch.full((n,), name in chosen) for name, n in parts])

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Cut `[..., p]` into named tensors `[..., *shape]` that share its memory."""
        parts = w.split(self.sizes, dim=-1) if self.sizes else ()
        return {
            name: part.view((*part.shape[:-1], *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors `[..., *shape]` into `[..., p]`."""
        lead = tensors[self.names[0]].dim() - len(self.shapes[0])
        return torch.cat(
            [
                tensors[name].reshape(*tensors[name].shape[:lead], size)
                for name, size in zip(self.names, self.sizes, strict=True)
            ],
            dim=-1,
        )


def trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that training moves: tied ones once, frozen ones never."""
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def join(mask: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Put two parts of a vector together: numbers where the mask `[p]` is true, and the others.

    >>> join(torch.tensor([False, True, False]), torch.tensor([2.0]), torch.tensor([1.0, 3.0]))
    tensor([1., 2., 3.])
    """
    lead = torch.broadcast_shapes(yes.shape[:-1], no.shape[:-1])
    whole = yes.new_empty(*lead, len(mask))
    whole[..., mask], whole[..., ~mask] = yes, no
    return whole


def norm(x: Tensor) -> Tensor:
    """Euclidean norm `[..., p] -> [..., 1]`."""
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product `[..., p], [..., p] -> [..., 1]`."""
    return (x * y).sum(dim=-1, keepdim=True)


def clip(x: Tensor, bound: float | Tensor) -> Tensor:
    """Scale down to at most this norm: x min(1, bound / |x|).

    >>> clip(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    scale: Tensor = bound / norm(x).clamp_min(torch.finfo(x.dtype).tiny)
    return x * scale.clamp(max=1.0)
