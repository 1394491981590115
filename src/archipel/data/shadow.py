# SPDX-License-Identifier: Apache-2.0
"""A federation whose data is elsewhere: names, sizes and shapes, without a single value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from archipel.data.about import About
from archipel.data.federation import Federation
from archipel.errors import ArchipelError, clean
from archipel.metrics import PRIMARY

MOST_ROWS = 10**9  # of one site; no memory is set aside for them
_LONGEST = 200  # characters of a shape: it is said again where it is refused
_MOST_VALUES, _MOST_CLASSES = 1 << 24, 1 << 20  # of one example: memory is set aside for it


@dataclass(frozen=True)
class Facts:
    """What a site tells about its data when it approves a study."""

    shape: tuple[int, ...]
    classes: int
    task: str
    n: int  # training points; 0 where it does not say
    n_test: int

    @classmethod
    def of(cls, data: Federation, counts: bool = True) -> Facts:
        n, n_test = (int(data.n.sum()), int(data.n_test.sum())) if counts else (0, 0)
        return cls(tuple(data.shape), data.classes, data.task, n, n_test)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": "x".join(map(str, self.shape)),
            "classes": self.classes,
            "task": self.task,
            "n": self.n,
            "n_test": self.n_test,
        }

    @classmethod
    def of_json(cls, facts: Mapping[str, Any]) -> Facts:
        try:
            sides = str(facts["shape"])[:_LONGEST].split("x")
            shape = tuple(int(side) for side in sides if side)
            numbers = [int(facts[name]) for name in ("classes", "n", "n_test")]
            task = str(facts["task"])
        except (KeyError, ValueError, TypeError, OverflowError):
            raise ArchipelError("facts: not those of a site's data.") from None
        if any(not 0 <= number <= MOST_ROWS for number in (*numbers, *shape)):
            raise ArchipelError(f"facts: a count below 0, or above {MOST_ROWS:,}.")
        if math.prod(shape) > _MOST_VALUES or numbers[0] > _MOST_CLASSES or task not in PRIMARY:
            raise ArchipelError(
                f"facts: {clean(task[:40])} data of shape {shape} with {numbers[0]} classes is "
                "none that a study takes."
            )
        return cls(shape, numbers[0], task, *numbers[1:])


def shadow(name: str, sites: Mapping[str, Facts | None]) -> Federation:
    """A federation of these sites, in their order, without a value in it.

    A site that left has no points, so that the others keep their numbers.
    """
    first = next(facts for facts in sites.values() if facts is not None)
    gone = replace(first, n=-1, n_test=0)
    for site, facts in sites.items():
        if facts is None:
            continue
        if (facts.shape, facts.classes, facts.task) != (first.shape, first.classes, first.task):
            raise ArchipelError(
                f"site {site} has {facts.task} data of shape {facts.shape} with {facts.classes} "
                f"classes, the others {first.task} data of shape {first.shape} with "
                f"{first.classes}: have it bind the data that the study describes."
            )
    known = [facts or gone for facts in sites.values()]
    told = tuple((facts.n, facts.n_test) if facts.n > 0 else None for facts in known)
    # who does not tell trains all the same: a point stands for its points
    trains = torch.tensor([0 if each.n < 0 else max(1, each.n) for each in known])
    sizes = trains + torch.tensor([facts.n_test for facts in known])
    offsets = torch.cat([trains.new_zeros(1), sizes.cumsum(0)])
    total = int(offsets[-1])
    kind = torch.int64 if first.task == "text" else torch.float32
    y_kind = torch.int64 if first.classes else torch.float32
    y_shape = {"survival": (2,), "text": first.shape}.get(first.task, ())
    x = torch.zeros(1, *first.shape, dtype=kind).expand(total, *first.shape)
    y = torch.zeros(1, *y_shape, dtype=y_kind).expand(total, *y_shape)
    return Federation(
        x, y, offsets, offsets[:-1] + trains, len(sites), first.task, first.classes, list(sites),
        About(name, note="Every site's data is at the site.", elsewhere=True, counts=told),
        scan=False,
    )  # fmt: skip
