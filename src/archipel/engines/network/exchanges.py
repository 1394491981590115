# SPDX-License-Identifier: Apache-2.0
"""An exchange between peers that is under way, and what a peer keeps of those that are done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from archipel.engines.network.liveness import At
from archipel.errors import ArchipelError


class Behind(ArchipelError):
    """The others went on in the meantime, and can be met again in this round."""

    def __init__(self, round: int) -> None:
        super().__init__(f"the others are in round {round + 1}.")
        self.round = round


class Store(Protocol):
    """What survives a peer's process: tensors by name, each name all at once."""

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None: ...

    def kept(self) -> dict[str, dict[str, Tensor]]: ...

    def forget(self, names: Iterable[str]) -> None: ...


@dataclass
class Exchange:
    """An exchange that is under way."""

    at: At
    x: Tensor
    sent: list[Tensor]  # what travels of it
    began: float
    open: set[int]
    base: bytes | None = None  # where that is a change: the digest of what
    got: dict[int, Tensor] = field(default_factory=dict)
    unsure: dict[int, Tensor] = field(default_factory=dict)  # counted before a restart
    lost: dict[int, str] = field(default_factory=dict)  # peer -> cause
    refused: dict[int, str] = field(default_factory=dict)  # peer -> what it said
    asks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    last: set[int] = field(default_factory=set)  # lower ends that are asked a last time
    # peer -> bytes of the change and of the whole vector, whichever of them went to it and came
    went: dict[int, dict[bool, int]] = field(default_factory=dict)
    came: dict[int, dict[bool, int]] = field(default_factory=dict)
