# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD.  Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1.

Departures: in option II, K eta_l is the sum of the learning rates of the steps really taken, so
that local epochs on unequal data and changing rates stay exact; with K equal steps it is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import zeros_like

from archipel.core import Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.training.schedules import Rate


class Shared(NamedTuple):
    x: Vector
    c: Vector


class Upload(NamedTuple):
    dy: Vector
    dc: Vector


@dataclass(frozen=True)
class Scaffold:
    """Control variates that cancel the drift of local training on unlike data."""

    lr: Rate = 0.1  # eta_l
    local_epochs: int = 1
    local_steps: int | None = None  # K, instead of epochs
    batch_size: int | float | None = 10
    server_lr: float = 1.0  # eta_g
    option: Literal[1, 2] = 2  # how c_i is renewed, line 12

    def init(self, x: Vector) -> tuple[Shared, Vector]:
        return Shared(x, zeros_like(x)), zeros_like(x)

    def party(self, me: Party, shared: Shared, c_i: Vector) -> tuple[Upload, Vector]:
        x, c = shared
        y, _, K_eta = me.descend(x, self, shift=c - c_i)  # y <- y - eta_l (g_i(y) - c_i + c)
        if self.option == 1:
            c_plus = me.grad(x)  # line 12 (i)
        elif self.option == 2:
            c_plus = c_i - c + (x - y) / K_eta  # line 12 (ii)
        else:
            raise ArchipelError(f"option = {self.option}: SCAFFOLD has options 1 and 2.")
        return Upload(y - x, c_plus - c_i), c_plus  # lines 13-14

    def server(self, shared: Shared, uploads: Uploads) -> Shared:
        (x, c), (dx, dc) = shared, uploads.mean()  # line 16
        x = x + self.server_lr * dx  # line 17
        c = c + uploads.sampled / uploads.parties * dc  # line 17
        return Shared(x, c)
