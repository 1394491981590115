# SPDX-License-Identifier: Apache-2.0
"""The data of K parties in a few arrays: values, and where each party's rows begin.

There is no object per party, and nothing here loops over parties, so that a million small parties
cost no more than a thousand; arrays may be memory-mapped (`Federation.open`).

One file, since it is one class whose methods all keep the same arrays in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.data import build, copies, describe, shards, spread
from archipel.data import partition as partitions
from archipel.data.about import About
from archipel.data.check import check_layout, check_values
from archipel.data.features import Features
from archipel.data.rows import Bools, Ints, arrange, draw_test, ranges
from archipel.data.scaling import Scaling, Sums
from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    from archipel.data.generated import Generator
    from archipel.picture import Picture


class Held(NamedTuple):
    """The points of some parties: their rows lie one after the other, training points first."""

    x: Tensor
    y: Tensor
    starts: Ints  # [m] the first row of each


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Parties with their training and test points.

    >>> fed = Federation.from_arrays([[[0.0]] * 4, [[1.0]] * 6], [[0] * 4, [1] * 6], test=0.5)
    >>> fed
    Federation 'unnamed': 2 parties, 5 training and 5 test points of shape (1,), 2 classes
    """

    x: Tensor  # [N, *shape] float features or int64 symbols, each party's rows together
    y: Tensor  # [N] classes, numbers in their unit, [N, 2] (time, event), [N, T] next characters
    offsets: Tensor  # int64 [K+1]: party k owns rows offsets[k]:offsets[k+1]
    test_from: Tensor  # int64 [K]: its training points come before this row, its test points after
    training: int  # parties 0..training-1 train; the rest are new, seen only at evaluation
    task: str  # classification, regression, survival or text
    classes: int  # number of classes or symbols; 0 for regression and survival
    names: Sequence[str] | None = None  # of the parties; "0", "1", ... if None
    about: About = field(default_factory=About)
    columns: Sequence[str] | None = None  # of the features, where they have names
    features: Features = Features()  # how a row becomes a point
    origin: Tensor | None = None  # int64 [K]: whose points a copy has; see archipel.data.copies
    clusters: Sequence[int] | None = None  # of each training party, where who is alike is known
    scan: InitVar[bool] = True  # whether to look at every value; False if it was done before
    lazy: ClassVar[bool] = False  # whether points come when they are asked for: a `Population`

    def __post_init__(self, scan: bool) -> None:
        check_layout(self)
        if scan:
            check_values(self)

    # What is there

    @property
    def parties(self) -> int:
        """K, new parties included."""
        return len(self.offsets) - 1

    @cached_property
    def n(self) -> Tensor:
        """Number of training points of each party, int64 [K]."""
        return self.test_from - self.offsets[:-1]

    @cached_property
    def n_test(self) -> Tensor:
        """Number of test points of each party, int64 [K]."""
        return self.offsets[1:] - self.test_from

    @cached_property
    def able(self) -> Ints:
        """Parties that train, and have something to train on."""
        return np.flatnonzero(self.n[: self.training].numpy() > 0)

    @cached_property
    def virtual(self) -> Tensor:
        """Which parties are copies of others, to train with and no more: bool [K]."""
        if self.origin is None:
            return torch.zeros(self.parties, dtype=torch.bool)
        return self.origin < 0

    @cached_property
    def stands(self) -> Tensor:
        """Which parties stand for real ones, virtual ones aside the first of a party's folds."""
        if self.origin is None:
            return torch.ones(self.parties, dtype=torch.bool)
        return self.origin == torch.arange(self.parties)

    @cached_property
    def tested(self) -> Tensor:
        """Number of test points of each real party, of all its folds: int64 [K], else 0."""
        if self.origin is None:
            return self.n_test
        real = ~self.virtual
        return torch.zeros_like(self.n_test).index_add_(0, self.origin[real], self.n_test[real])

    @property
    def folded(self) -> bool:
        """Whether new parties are cut into folds, so that each of their points is tested."""
        return not bool((self.stands | self.virtual).all())

    @property
    def real(self) -> tuple[int, int]:
        """How many real parties train, and how many are new."""
        return int(self.stands[: self.training].sum()), int(self.stands[self.training :].sum())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return tuple(self.x.shape[1:])

    @property
    def points(self) -> int:
        """How many there are of all parties."""
        return int(self.offsets[-1])

    @property
    def form(self) -> Federation:
        """The same, or a few of the points where they come when they are asked for."""
        return self

    @property
    def here(self) -> Federation:
        """The same, with all points in memory or mapped."""
        return self

    def held(self, parties: Ints) -> Held:
        """The points of these parties: those of all, and where each party's begin."""
        return Held(self.x, self.y, self.offsets.numpy()[parties])

    def __len__(self) -> int:
        return self.parties

    def name(self, k: int) -> str:
        """Return the name of party k."""
        return str(k) if self.names is None else str(self.names[k])

    def class_name(self, number: int) -> str:
        """Return the name of a class, as its table writes it; its number where it has none."""
        names = self.features.labels
        return names[number] if names else str(number)

    def index(self, party: int | str) -> int:
        """Return the number of a party given by number or name."""
        if isinstance(party, str):
            names = np.arange(self.parties).astype(str) if self.names is None else self.names
            found = np.flatnonzero(np.asarray(names) == party)
            if len(found) == 0:
                if len(names) <= 100:
                    raise unknown("party", party, map(str, names))
                raise ArchipelError(f"unknown party '{party}': there are {len(names)}, see .names.")
            return int(found[0])
        if not 0 <= party < self.parties:
            raise ArchipelError(f"party {party} does not exist; there are 0..{self.parties - 1}.")
        return party

    def owner(self, row: int) -> int:
        """Return the party that owns a row."""
        return int(torch.searchsorted(self.offsets, row, right=True)) - 1

    def party(self, party: int | str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x_train, y_train, x_test, y_test of one party, as views."""
        k = self.index(party)
        held, n = self.held(np.array([k])), int(self.n[k])
        a = int(held.starts[0])
        b, c = a + n, a + n + int(self.n_test[k])
        return held.x[a:b], held.y[a:b], held.x[b:c], held.y[b:c]

    @cached_property
    def row_party(self) -> Ints:
        return np.repeat(np.arange(self.parties), np.diff(self.offsets.numpy()))

    @cached_property
    def _row_is_test(self) -> Bools:
        rows = np.arange(self.points)
        return rows >= self.test_from.numpy()[self.row_party]

    def strata(self) -> npt.NDArray[Any]:
        """Return what a fair draw is balanced over: classes, events, or nothing."""
        if self.task == "classification":
            return self.y.numpy()
        if self.task == "survival":
            return self.y[:, 1].numpy()
        return np.zeros(len(self.y), np.int64)

    # Other federations made from this one

    def _lay_out(
        self,
        rows: Ints,
        party: Ints,
        is_test: Bools,
        parties: int,
        training: int,
        names: Sequence[str] | None,
        origin: Tensor | None = None,
    ) -> Federation:
        """Return the federation in which source row rows[i] belongs to party[i]."""
        layout = arrange(party, is_test, parties)
        order = torch.from_numpy(rows[layout.order])
        return replace(
            self,
            x=self.x[order],
            y=self.y[order],
            offsets=torch.from_numpy(layout.offsets),
            test_from=torch.from_numpy(layout.test_from),
            training=training,
            names=names,
            origin=origin,
            scan=False,
        )

    def with_training(self, rows: Bools) -> tuple[Federation, Ints]:
        """Have these rows `[N]` as training points and the others as test points.

        Also returns where each row of the new federation was in this one. New parties stay as they
        are.
        """
        new = self.row_party >= self.training
        is_test = np.where(new, self._row_is_test, ~rows)
        order = arrange(self.row_party, is_test, self.parties).order
        names, every = self.names, np.arange(self.points)
        laid = self._lay_out(every, self.row_party, is_test, self.parties, self.training, names)
        return laid, order

    def select(self, parties: Sequence[int | str] | Tensor | npt.NDArray[Any]) -> Federation:
        """Return a copy with these parties only, training parties first."""
        if isinstance(parties, Tensor):
            parties = parties.numpy()
        if isinstance(parties, np.ndarray):
            chosen = np.flatnonzero(parties) if parties.dtype == np.bool_ else parties
            chosen = chosen.astype(np.int64)
        else:
            chosen = np.array([self.index(k) for k in parties], np.int64)
        if len(chosen) == 0:
            raise ArchipelError("select: no party is chosen; name at least one.")
        if chosen.min() < 0 or chosen.max() >= self.parties:
            raise ArchipelError(f"select: parties must lie in 0..{self.parties - 1}.")
        if len(np.unique(chosen)) < len(chosen):
            raise ArchipelError("select: a party is chosen twice; name each once.")
        return self._pick(chosen, int((chosen < self.training).sum()))

    def _pick(self, chosen: Ints, training: int) -> Federation:
        chosen = chosen[np.argsort(chosen >= self.training, kind="stable")]
        starts, stops = self.offsets[:-1].numpy()[chosen], self.offsets[1:].numpy()[chosen]
        rows = torch.from_numpy(ranges(starts, stops))
        offsets = np.concatenate([[0], np.cumsum(stops - starts)])
        names = chosen.astype(str) if self.names is None else np.asarray(self.names)[chosen]
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            offsets=torch.from_numpy(offsets),
            test_from=torch.from_numpy(offsets[:-1]) + self.n[torch.from_numpy(chosen)],
            training=training,
            names=cast(Sequence[str], names),
            origin=copies.chosen_origin(self, chosen),
            scan=False,
        )

    def with_new(self, new: int | float, seed: int = 0) -> Federation:
        """Move a number (int) or share (float) of the training parties to the new ones."""
        copies.refuse_copies(self, f"new={new}")
        count = new if isinstance(new, int) else round(new * self.training)
        if not 0 <= count < self.training:
            raise ArchipelError(
                f"new={new}: at least one of {self.training} training parties must remain; "
                f"give at most {self.training - 1} or a share below 1."
            )
        moved = np.random.default_rng([seed, 3]).permutation(self.training)[:count]
        rest = np.setdiff1d(np.arange(self.training), moved)
        chosen = np.concatenate([rest, np.sort(moved), np.arange(self.training, self.parties)])
        return self._pick(chosen, self.training - count)

    def split_test(self, fraction: float, seed: int = 0) -> Federation:
        """Draw every party's test points afresh from all its points, balanced over classes."""
        copies.refuse_copies(self, f"split_test({fraction})")
        return self._split(np.arange(len(self.x)), fraction, seed, 4)

    def validation(self, fraction: float = 0.2, seed: int = 0) -> Federation:
        """Return the training points only, some of them as test points, to tune without testing.

        Virtual parties lose their copies of these. New parties that are cut into folds are left
        out: every point of theirs is a test point.
        """
        rows = np.flatnonzero(~self._row_is_test)
        if not self.folded:
            return self._split(rows, fraction, seed, 5)
        return self.select(np.arange(self.training)).validation(fraction, seed)

    def _split(self, rows: Ints, fraction: float, seed: int, stream: int) -> Federation:
        if not 0 <= fraction < 1:
            raise ArchipelError(f"fraction={fraction}: give a share of at least 0 and below 1.")
        party, rng = self.row_party[rows], np.random.default_rng([seed, stream])
        is_test = draw_test(party, self.strata()[rows], fraction, rng)
        is_test &= ~self.virtual.numpy()[party]
        kept = ~copies.held_out_copies(self, rows, is_test)
        return self._lay_out(
            rows[kept],
            party[kept],
            is_test[kept],
            self.parties,
            self.training,
            self.names,
            self.origin,
        )

    def pooled(self) -> Federation:
        """Put all training parties together in one party; new parties stay as they are."""
        party = np.maximum(self.row_party - self.training + 1, 0)
        new = np.arange(self.training, self.parties)
        names = new.astype(str) if self.names is None else np.asarray(self.names)[new]
        everything, origin = np.arange(len(self.x)), None
        if self.folded and self.origin is not None:
            first = torch.zeros(1, dtype=torch.int64)
            origin = torch.cat([first, self.origin[self.training :] - self.training + 1])
        return self._lay_out(
            everything, party, self._row_is_test, 1 + len(new), 1, ["all", *names.tolist()], origin
        )

    def repartition(self, spec: str, parties: int, seed: int = 0) -> Federation:
        """Deal the points of the training parties out anew; new parties are left out.

        Training points go as `spec` says (see `archipel.data.partition`), test points in
        proportion to the training points of their class.
        """
        copies.refuse_copies(self, f"partition='{spec}'")
        inside = self.row_party < self.training
        train = np.flatnonzero(inside & ~self._row_is_test)
        test = np.flatnonzero(inside & self._row_is_test)
        labels = build.sort_keys(self.y)
        strata = self.strata().astype(np.int64)
        party = partitions.assign(labels[train], spec, parties, seed)
        test_party = partitions.deal_test(strata[train], party, strata[test], parties, seed)
        rows = np.concatenate([train, test])
        is_test = np.arange(len(rows)) >= len(train)
        party = np.concatenate([party, test_party])
        return self._lay_out(rows, party, is_test, parties, parties, None)

    @property
    def marks(self) -> Tensor:
        """Which features are 0 or 1 wherever they are not empty, bool of the shape of a point."""
        fill, schema = self.features.fill, self.features.schema
        empty = self.x.isnan()
        if fill is not None:  # with the mean of zeros and ones
            empty |= (self.x == fill.to(self.x.dtype)) & (fill >= 0) & (fill <= 1)
        marks = ((self.x == 0) | (self.x == 1) | empty).all(dim=0)
        return marks if schema is None else marks | schema.marks

    def standardised(self, plain: Tensor | None = None) -> Federation:
        """Give features mean 0 and variance 1 over the training points of training parties.

        In training, so get numbers to predict (`as_trained`); here, in metrics and in predictions
        they keep their unit. Features of the mask `plain` stay as they are. Mean and variance are
        sums of per-party sums, which parties can compute together without showing their points.
        Test points and new parties do not count. Constant features stay 0. Empty cells (NaN, see
        `archipel.data.schema`) get the mean.
        """
        if not self.x.is_floating_point():
            raise ArchipelError("x holds symbols; only features can be standardised.")
        scaling, filled, aim = self._scaling(), self.filled(), None
        scaling = scaling if plain is None else scaling.without(plain)
        if self.task == "regression":
            aim = Sums.of(self.y[self._trained]).scaling()
        features = filled.features.scaled(scaling, self.x.dtype).aimed(aim)
        return replace(self, x=scaling.apply(filled.x), features=features, scan=False)

    def as_trained(self) -> Federation:
        """The same, with numbers to predict as a model is trained on them: what engines see."""
        target = self.features.target
        return self if target is None else replace(self, y=target.apply(self.y), scan=False)

    def filled(self) -> Federation:
        """Put the mean over the training points of training parties in empty cells, NaN."""
        schema = self.features.schema
        wanted = schema is not None and schema.missing == "mean"
        if self.features.fill is not None or not (wanted or self.x.isnan().any()):
            return self
        scaling = self._scaling()
        x, features = scaling.fill(self.x), self.features.filled(scaling.mean)
        return replace(self, x=x, features=features, scan=False)

    def cast(self, dtype: torch.dtype = torch.float32) -> Federation:
        """Have features and numbers to predict of this type, and every value looked at."""
        x, y = (t.to(dtype) if t.is_floating_point() else t for t in (self.x, self.y))
        return replace(self, x=x, y=y)

    def _scaling(self) -> Scaling:
        return Sums.of(self.x[self._trained]).scaling(self.columns)

    @property
    def _trained(self) -> Tensor:
        """Training rows of training parties, bool [N]."""
        return torch.from_numpy((self.row_party < self.training) & ~self._row_is_test)

    with_virtual = copies.with_virtual
    cross_fitted = copies.cross_fitted

    # Out

    __repr__ = describe.line
    summary = describe.summary

    def plot(self, path: str | Path | None = None, max_parties: int = 40) -> Picture:
        """Draw how targets and sizes fall across parties; write it to `path` if given."""
        from archipel.data.plot import draw

        return draw(self, path, max_parties)

    def save(self, folder: str | Path) -> None:
        """Write to a folder of shards, complete or not at all, over a federation that is there."""
        shards.write(self, Path(folder), again=True)

    @staticmethod
    def open(folder: str | Path, scan: bool = False, check: bool = False) -> Federation:
        """Memory-map a folder of shards; values were checked when it was made.

        The sizes of its files are looked at; with `check` every byte is (`archipel.data.shards`).
        """
        fed = shards.open_folder(Path(folder), check)
        if scan:
            check_values(fed.here)
        return fed

    # From elsewhere; see archipel.data.build and archipel.data.spread

    from_rows = classmethod(build.from_rows)
    from_arrays = classmethod(build.from_arrays)
    from_split = classmethod(build.from_split)
    from_frame = classmethod(spread.from_frame)
    from_dataset = classmethod(build.from_dataset)
    from_folder = classmethod(spread.from_folder)

    @staticmethod
    def from_generator(generator: Generator) -> Federation:
        """Make a federation whose parties' points are made when they are asked for."""
        from archipel.data.generated import from_generator

        return from_generator(generator)
