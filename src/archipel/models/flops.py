# SPDX-License-Identifier: Apache-2.0
"""What a gradient costs, counted."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

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
            with torch.enable_grad(), fused, FlopCounterMode(display=False) as counter:
                module(x).sum().backward()
        counted = counter.get_total_flops()
    except Exception:  # whatever a user's module raises: it is only counted here
        counted = 0
    if counted > 0:
        return counted, "products of matrices, convolutions and attention, counted"
    return 6 * model.p, "6 per parameter, a rule of thumb: this model's layers cannot be counted"
