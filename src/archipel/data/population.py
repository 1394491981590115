# SPDX-License-Identifier: Apache-2.0
"""A federation whose points are made, or read, when somebody asks for a party's.

Known of all parties are their sizes: two whole numbers each. Points come from a source, which is a
folder of shards (`archipel.data.shards`) or somebody's `Generator`; what a round costs follows the
parties that it asks. What needs all points at once has them put in memory, where they fit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from archipel.data import copies
from archipel.data.about import About
from archipel.data.check import check_offsets
from archipel.data.features import Features
from archipel.data.federation import Federation, Held
from archipel.data.rows import Ints
from archipel.errors import ArchipelError

_FORM = 64  # points by which the form of all is known


class Source(Protocol):
    """Where a population's points come from."""

    def take(self, parties: Ints, sizes: Ints) -> tuple[Tensor, Tensor]:
        """x and y of these parties, which have so many points, one after the other."""

    @property
    def print(self) -> str:
        """Stands for all that it gives."""


class Chosen(NamedTuple):
    """Some parties of a source, in an order of their own."""

    source: Source
    parties: Ints

    def take(self, parties: Ints, sizes: Ints) -> tuple[Tensor, Tensor]:
        return self.source.take(self.parties[parties], sizes)

    @property
    def print(self) -> str:
        from hashlib import blake2b

        return f"{self.source.print} {blake2b(self.parties.tobytes(), digest_size=8).hexdigest()}"


class Facts(NamedTuple):
    """What is known of a population besides sizes and points."""

    training: int
    task: str
    classes: int
    names: Sequence[str] | None = None
    about: About = About()
    columns: Sequence[str] | None = None
    features: Features = Features()
    origin: Tensor | None = None


class Population(Federation):
    """Parties of a source; in every other way a federation."""

    lazy = True

    def __init__(
        self,
        source: Source,
        offsets: Tensor,
        test_from: Tensor,
        facts: Facts,
        aimed: bool = False,
    ) -> None:
        """`aimed` gives numbers to predict as a model is trained on them."""
        told = {"source": source, "offsets": offsets, "test_from": test_from, "aimed": aimed}
        for name, value in (facts._asdict() | told).items():
            object.__setattr__(self, name, value)
        check_offsets(self, self.points)

    source: Source
    aimed: bool

    @property
    def facts(self) -> Facts:
        return Facts(*(getattr(self, name) for name in Facts._fields))

    # Points of some parties, and of all

    def held(self, parties: Ints) -> Held:
        parties = np.asarray(parties, np.int64)
        sizes = self._sizes(parties)
        x, y = self.source.take(parties, sizes)
        if self.aimed and self.features.target is not None:
            y = self.features.target.apply(y)
        return Held(x, y, np.cumsum(sizes) - sizes)

    def _sizes(self, parties: Ints) -> Ints:
        offsets = self.offsets.numpy()
        return np.asarray(offsets[parties + 1] - offsets[parties])

    @cached_property
    def form(self) -> Federation:
        """A few points of the first parties that have any, in a plain federation of one party."""
        able = np.flatnonzero(np.diff(self.offsets[: 10**4].numpy()))[:_FORM]
        if len(able) == 0:
            able = np.flatnonzero(np.diff(self.offsets.numpy()))[:_FORM]
        enough = int(np.searchsorted(np.cumsum(self._sizes(able)), _FORM)) + 1
        held = self.held(able[:enough])
        x, y = held.x[:_FORM].clone(), held.y[:_FORM].clone()
        ends = torch.tensor([0, len(x)])
        told = self.facts._replace(training=1, names=None, origin=None)._asdict()
        return Federation(x=x, y=y, offsets=ends, test_from=ends[1:], **told, scan=False)

    @cached_property
    def here(self) -> Federation:
        """All points in memory; refused where they would not fit."""
        point = sum(t[0].numel() * t.element_size() for t in (self.form.x, self.form.y) if len(t))
        if point * self.points > _memory() // 4:
            raise ArchipelError(
                f"'{self.about.name}': this takes all {self.points:,} points at once, "
                f"{point * self.points / 1e9:.3g} GB, and this machine has too little memory; "
                "take fewer parties, or leave it out."
            )
        held = self.held(np.arange(self.parties))
        at: dict[str, Any] = {"offsets": self.offsets, "test_from": self.test_from}
        return Federation(x=held.x, y=held.y, **at, **self.facts._asdict(), scan=False)

    @property
    def x(self) -> Tensor:
        return self.here.x

    @property
    def y(self) -> Tensor:
        return self.here.y

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form.shape

    # Other federations made from this one

    def _pick(self, chosen: Ints, training: int) -> Federation:
        chosen = chosen[np.argsort(chosen >= self.training, kind="stable")]
        sizes = self._sizes(chosen)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        names = chosen.astype(str) if self.names is None else np.asarray(self.names)[chosen]
        facts = self.facts._replace(
            training=training,
            names=cast(Sequence[str], names),
            origin=copies.chosen_origin(self, chosen),
        )
        test_from = torch.from_numpy(offsets[:-1]) + self.n[torch.from_numpy(chosen)]
        source = Chosen(self.source, chosen)
        return Population(source, torch.from_numpy(offsets), test_from, facts, self.aimed)

    def as_trained(self) -> Federation:
        if self.features.target is None:
            return self
        return Population(self.source, self.offsets, self.test_from, self.facts, aimed=True)

    def _lay_out(self, *layout: Any) -> Federation:
        return self.here._lay_out(*layout)

    def standardised(self, plain: Tensor | None = None) -> Federation:
        return self.here.standardised(plain)

    def filled(self) -> Federation:
        return self.here.filled()

    def cast(self, dtype: torch.dtype = torch.float32) -> Federation:
        return self.here.cast(dtype)

    def with_virtual(self, copies: int, seed: int = 0) -> Federation:
        return self.here.with_virtual(copies, seed)

    def cross_fitted(self, folds: int, seed: int = 0) -> Federation:
        return self.here.cross_fitted(folds, seed)


def _memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
