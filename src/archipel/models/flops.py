# SPDX-License-Identifier: Apache-2.0
"""What a gradient costs, counted."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from archipel.models.model import Model


def flops_of_one_gradient(model: Model, x: Tensor) -> tuple[int, str]:
    """FLOPs of forward and backward pass on one example `[1, *shape]`, and how they were found.

    >>> flops_of_one_gradient(Model(torch.nn.Linear(13, 2)), torch.ones(1, 13))[0]
    104
    """
    module = copy.deepcopy(model.module).eval()  # BatchNorm refuses to train on one example
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which parts of the flags this machine lacks
            fused = torch.backends.mkldnn.flags(enabled=False)
            with torch.enable_grad(), fused, _Counter() as counter:  # type: ignore[no-untyped-call]
                module(x).sum().backward()
        counted = counter.flops
    except Exception:  # whatever a user's module raises: it is only counted here
        counted = 0
    if counted > 0:
        return counted, "products of matrices, convolutions and attention, counted"
    return 6 * model.p, "6 per parameter, a rule of thumb: this model's layers cannot be counted"


class _Counter(TorchDispatchMode):
    """Counts by torch's formulas, as its own counter does."""

    flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes longer than a small study

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            out = func.decompose(*args, **kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
            if formula := flop_registry.get(func.overloadpacket):
                self.flops += formula(*args, **kwargs, out_val=out)
        return out
