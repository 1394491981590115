# SPDX-License-Identifier: Apache-2.0
"""A network that was trained on scaled targets, giving numbers in the target's own unit."""

from __future__ import annotations

from torch import Tensor, nn

from archipel.data.scaling import Scaling


class InUnits(nn.Module):
    """`network`, its outputs turned back into the target's unit.

    >>> import torch
    >>> celsius = Scaling(torch.tensor(20.0), torch.tensor(5.0))
    >>> InUnits(nn.Identity(), celsius)(torch.tensor([0.0, 2.0])).tolist()
    [20.0, 30.0]
    """

    def __init__(self, network: nn.Module, unit: Scaling) -> None:
        super().__init__()
        self.network, self.unit = network, unit

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return self.unit.undo(out).to(out.dtype)
