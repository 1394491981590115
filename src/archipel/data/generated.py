# SPDX-License-Identifier: Apache-2.0
"""Populations that somebody's own code makes, party by party, from their numbers."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from archipel.data.about import About
from archipel.data.build import Array, as_tensor
from archipel.data.check import check_values
from archipel.data.federation import Federation
from archipel.data.population import Facts, Population
from archipel.data.rows import Ints
from archipel.errors import ArchipelError

_AT_ONCE = 1 << 18  # parties whose sizes are asked for at a time
_TRIED = 3  # parties that are made together and one by one before the first round


@runtime_checkable
class Generator(Protocol):
    """Makes parties' points from their numbers 0, 1, 2, ...: a population of one's own.

    What it makes of a party depends on that party and on its own fields alone, never on who else
    is asked for; `archipel.rng.generator(seed, party, "points")` draws a party's own numbers. It
    may also say `new`, how many of the last parties take no part in training, and `about`.
    """

    @property
    def parties(self) -> int:
        """How many there are."""

    @property
    def task(self) -> str:
        """classification, regression, survival or text"""

    @property
    def classes(self) -> int:
        """Number of classes or symbols; 0 for regression and survival."""

    def sizes(self, parties: Ints) -> tuple[Ints, Ints]:
        """Training and test points of each of these parties."""

    def generate(self, parties: Ints) -> tuple[Array, Array]:
        """x and y of these parties, one after the other: of each first what it trains on."""


class Made:
    """What a generator makes, looked at."""

    def __init__(self, generator: Generator, facts: Facts) -> None:
        self._generator, self._facts = generator, facts
        self._form: tuple[Any, ...] | None = None

    def take(self, parties: Ints, sizes: Ints) -> tuple[Tensor, Tensor]:
        name = type(self._generator).__name__
        made = self._generator.generate(parties)
        if not isinstance(made, tuple) or len(made) != 2:
            raise ArchipelError(f"{name}.generate returns {type(made).__name__}; return (x, y).")
        x, y = map(as_tensor, made)
        total = int(sizes.sum())
        if not len(x) == len(y) == total:
            raise ArchipelError(
                f"{name}.generate made {len(x)} points and {len(y)} targets of {len(parties)} "
                f"parties, where {name}.sizes says {total}; make them agree."
            )
        if self._facts.task in ("regression", "survival"):
            y = y.to(x.dtype if x.is_floating_point() else torch.float32)
        form = (x.shape[1:], x.dtype, y.shape[1:], y.dtype)
        self._form = self._form or form
        if form != self._form:
            raise ArchipelError(
                f"{name}.generate made points of {form} where others have {self._form}; make "
                "every party's alike."
            )
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
        told = self._facts._replace(
            training=len(parties), names=parties.astype(str).tolist(), origin=None
        )
        check_values(
            Federation(x=x, y=y, offsets=ends, test_from=ends[1:], **told._asdict(), scan=False)
        )
        return x, y

    @property
    def print(self) -> str:
        """The generator's fields, and what it makes of its first party."""
        x, y = self.take(*self._first())
        found = blake2b(repr(self._generator).encode(), digest_size=16)
        for tensor in (x, y):
            found.update(np.ascontiguousarray(tensor.numpy()).data)
        return found.hexdigest()

    def _first(self) -> tuple[Ints, Ints]:
        one = np.zeros(1, np.int64)
        return one, np.asarray(sum(self._generator.sizes(one)), np.int64)


def from_generator(generator: Generator) -> Population:
    """Make a federation whose parties' points are made when somebody asks for them.

    Sizes are asked for once, of all parties.
    """
    name = type(generator).__name__
    if not isinstance(generator, Generator):
        raise ArchipelError(
            f"{name} makes no population: it says parties, task and classes, and has sizes and "
            "generate (archipel.data.generated.Generator)."
        )
    new, about = getattr(generator, "new", 0), getattr(generator, "about", None) or About(name)
    if generator.parties < 1 or not 0 <= new < generator.parties:
        raise ArchipelError(
            f"{name}: parties = {generator.parties}, new = {new}: at least one party trains."
        )
    facts = Facts(generator.parties - new, generator.task, generator.classes, about=about)
    train, test = _sizes(generator)
    offsets = np.zeros(generator.parties + 1, np.int64)
    np.cumsum(train + test, out=offsets[1:])
    test_from = torch.from_numpy(offsets[:-1] + train)
    made = Made(generator, facts)
    fed = Population(made, torch.from_numpy(offsets), test_from, facts)
    if fed.points == 0:
        raise ArchipelError(f"{name}: no party has a point; let sizes give some.")
    _try(made, train + test, name)
    return fed


def _sizes(generator: Generator) -> tuple[Ints, Ints]:
    """Training and test points of every party."""
    name, parts = type(generator).__name__, []
    for first in range(0, generator.parties, _AT_ONCE):
        parties = np.arange(first, min(first + _AT_ONCE, generator.parties))
        found = [np.asarray(each) for each in generator.sizes(parties)]
        right = len(found) == 2 and all(
            each.shape == parties.shape and each.dtype.kind in "iu" and (each >= 0).all()
            for each in found
        )
        if not right:
            raise ArchipelError(
                f"{name}.sizes: give two arrays of whole numbers from 0, a training and a test "
                "size for each of the parties it is asked for."
            )
        parts.append([each.astype(np.int64) for each in found])
    train, test = (np.concatenate(each) for each in zip(*parts, strict=True))
    return train, test


def _try(made: Made, sizes: Ints, name: str) -> None:
    """Refuse a generator whose parties depend on who else is asked for."""
    able = np.flatnonzero(sizes[:_AT_ONCE])[:_TRIED]
    able = able if len(able) else np.flatnonzero(sizes)[:_TRIED]
    together = made.take(able[::-1].copy(), sizes[able[::-1]])
    apart = [made.take(able[[i]], sizes[able[[i]]]) for i in reversed(range(len(able)))]
    for one, parts in zip(together, zip(*apart, strict=True), strict=True):
        if not torch.equal(one, torch.cat(parts)):
            raise ArchipelError(
                f"{name}.generate makes other points of a party when it is asked for others as "
                'well: draw by the party\'s number, archipel.rng.generator(seed, party, "points").'
            )
