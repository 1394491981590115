# SPDX-License-Identifier: Apache-2.0
"""Who is at work on which version of the shared state, where nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.engines.network.server import Upload

_NAME = 32  # bytes of a letter's name


@dataclass
class Flight:
    """A party's work on one version, from when it may have it until its upload is taken."""

    version: int
    name: bytes  # of the letter that it is given
    since: float
    seen: float  # when it last gave a sign of life
    given: bool = False
    doing: str = "has not asked for work"
    ready: float | None = None  # since when it waits for a round that its upload is for
    joined: int | None = None  # that round, once it was told
    attempt: int = 0  # of the server at a sum, where a protocol makes one
    refused: int = 0  # uploads that were none


class Arrived(NamedTuple):
    """An upload that waits for the server's step."""

    version: int
    name: bytes  # of the letter that it answers
    joined: int
    upload: Upload


def written(found: Mapping[int, Flight | Arrived]) -> dict[str, Tensor]:
    """What a checkpoint says of parties at work: the version and the name of the letter of each."""
    given = {k: each for k, each in found.items() if isinstance(each, Arrived) or each.given}
    rows = [[k, each.version] for k, each in given.items()]
    names = [list(each.name) for each in given.values()]
    return {
        "flights": torch.tensor(rows, dtype=torch.int64).reshape(-1, 2),
        "flights.names": torch.tensor(names, dtype=torch.uint8).reshape(-1, _NAME),
    }


def read(state: Mapping[str, Tensor], now: float) -> dict[int, Flight]:
    """The same after a restart: uploads that had come are waited for again."""
    names = [row.numpy().tobytes() for row in state["flights.names"]]
    return {
        k: Flight(version, name, now, now, given=True, doing="was at work before the restart")
        for (k, version), name in zip(state["flights"].tolist(), names, strict=True)
    }
