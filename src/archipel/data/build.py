# SPDX-License-Identifier: Apache-2.0
"""Federations from rows, arrays and torch datasets; those of tables are made in `spread`.

Each function is a class method of `Federation`, which is its first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.data import partition as partitions
from archipel.data.about import About
from archipel.data.features import Features
from archipel.data.rows import Ints, arrange
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from archipel.data.federation import Federation

Array = npt.NDArray[Any] | Tensor | Sequence[Any]


def from_rows(
    cls: type[Federation],
    x: Array,
    y: Array,
    party: Array,
    *,
    test: float | Array = 0.2,
    names: Sequence[str] | None = None,
    new: int = 0,
    task: str | None = None,
    classes: int | None = None,
    about: About | None = None,
    columns: Sequence[str] | None = None,
    features: Features | None = None,
    seed: int = 0,
    scan: bool = True,
) -> Federation:
    """Make a federation of rows in any order, row i belonging to party[i].

    `test` is the share of each party's points to test on, or a mask of them; the last `new`
    parties take no part in training. Without `task`, whole numbers are classes, numbers with a
    point are regression, pairs of these survival, and sequences of whole numbers text. Whole
    numbers in x stay whole, as symbols to embed; make features float.
    """
    x, y, owner = as_tensor(x), as_tensor(y), np.asarray(party).astype(np.int64)
    if not len(x) == len(y) == len(owner):
        raise ArchipelError(
            f"x has {len(x)} rows, y {len(y)} and party {len(owner)}; give one of each a row."
        )
    task = task or guess_task(y)
    y = _target(y, task, x.dtype)
    if y.is_floating_point():
        classes = 0
    elif classes is None:
        seen = [t for t in ((x, y) if task == "text" else (y,)) if t.numel()]
        classes = max([1, *(int(t.max()) + 1 for t in seen)])
    parties = len(names) if names is not None else int(owner.max(initial=-1)) + 1
    if len(owner) and not 0 <= owner.min() <= owner.max() < parties:
        raise ArchipelError(
            f"party runs from {owner.min()} to {owner.max()}; it must lie in 0..{parties - 1}."
        )
    is_test = np.zeros(len(x), np.bool_) if _share(test) else np.asarray(test).astype(np.bool_)
    layout = arrange(owner, is_test, parties)
    order = torch.from_numpy(layout.order)
    fed = cls(
        x=x[order],
        y=y[order],
        offsets=torch.from_numpy(layout.offsets),
        test_from=torch.from_numpy(layout.test_from),
        training=parties - new,
        task=task,
        classes=classes,
        names=names,
        about=about or About(),
        columns=columns,
        features=features or Features(),
        scan=scan,
    )
    return fed.split_test(cast(float, test), seed) if _share(test) else fed


def from_arrays(
    cls: type[Federation],
    xs: Sequence[Array],
    ys: Sequence[Array],
    *,
    test: float | Sequence[tuple[Array, Array]] = 0.2,
    names: Sequence[str] | None = None,
    new: int = 0,
    task: str | None = None,
    classes: int | None = None,
    about: About | None = None,
    columns: Sequence[str] | None = None,
    seed: int = 0,
) -> Federation:
    """Make a federation of one array of points and one of targets per party.

    `test` is the share of each party's points to test on, or (x, y) of test points per party.
    """
    pairs = [] if _share(test) else list(cast("Sequence[tuple[Array, Array]]", test))
    if len(xs) != len(ys) or (not _share(test) and len(pairs) != len(xs)):
        counts = f"{len(xs)} xs, {len(ys)} ys" + (f", {len(pairs)} tests" if pairs else "")
        raise ArchipelError(f"{counts}: give one of each for every party.")
    if len(xs) == 0:
        raise ArchipelError("xs is empty: a federation needs at least one party.")
    parts_x = [as_tensor(a) for a in [*xs, *(p[0] for p in pairs)]]
    parts_y = [as_tensor(a) for a in [*ys, *(p[1] for p in pairs)]]
    labels = names if names is not None else [str(k) for k in range(len(xs))]
    for i, (a, b) in enumerate(zip(parts_x, parts_y, strict=True)):
        if len(a) != len(b):
            raise ArchipelError(
                f"party '{labels[i % len(xs)]}' has {len(a)} points and {len(b)} targets; "
                "give one target a point."
            )
    sizes = np.array([len(a) for a in parts_x])
    parts = np.arange(len(parts_x))
    return from_rows(
        cls,
        _concatenate(parts_x, "x", labels),
        _concatenate(parts_y, "y", labels),
        np.repeat(parts % len(xs), sizes),
        test=cast(float, test) if _share(test) else np.repeat(parts >= len(xs), sizes),
        names=labels,
        new=new,
        task=task,
        classes=classes,
        about=about,
        columns=columns,
        seed=seed,
    )


def from_split(
    cls: type[Federation],
    x: Array,
    y: Array,
    x_test: Array,
    y_test: Array,
    *,
    partition: str = "iid",
    parties: int = 10,
    task: str | None = None,
    classes: int | None = None,
    about: About | None = None,
    seed: int = 0,
) -> Federation:
    """Deal a central dataset and its own test set out to parties, as `Federation.repartition`."""
    central = from_arrays(
        cls, [x], [y], test=[(x_test, y_test)], task=task, classes=classes, about=about
    )
    return central.repartition(partition, parties, seed)


def from_dataset(
    cls: type[Federation],
    dataset: Any,
    *,
    by: Sequence[Hashable] | Tensor | Callable[[Any], Hashable] | None = None,
    partition: str = "iid",
    parties: int = 10,
    test: float | Any = 0.2,
    task: str | None = None,
    classes: int | None = None,
    about: About | None = None,
    seed: int = 0,
) -> Federation:
    """Make a federation of a torch dataset of (x, y) pairs.

    `by` names the party of each item, by a list or a function of the item; without it `partition`
    deals the items out. `test` is a share, or the dataset's own test set, which is then dealt in
    proportion to each party's classes (only with `partition`).
    """
    x, y = _read_items(dataset)
    if by is None and not _share(test):
        x_test, y_test = _read_items(test)
        return from_split(
            cls, x, y, x_test, y_test,
            partition=partition, parties=parties, task=task, classes=classes, about=about,
            seed=seed,
        )  # fmt: skip
    if not _share(test):
        raise ArchipelError("from_dataset: with `by`, give test as a share such as 0.2.")
    names: list[str] | None = None
    if by is None:
        owner = partitions.assign(sort_keys(y), partition, parties, seed)
    else:
        owner, names = _number(_keys(dataset, by), len(x))
    return from_rows(
        cls, x, y, owner, test=test, names=names, task=task, classes=classes, about=about, seed=seed
    )


def as_tensor(values: Array) -> Tensor:
    """Return a tensor of float32, float64 or int64; whole numbers become int64."""
    if isinstance(values, Tensor):
        t = values.detach().cpu()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise ArchipelError(
                f"an array of type {array.dtype} holds no numbers; encode it or use from_frame."
            )
        t = torch.from_numpy(array if array.flags.writeable else array.copy())
    if t.dtype in (torch.float32, torch.float64, torch.int64):
        return t
    return t.float() if t.is_floating_point() else t.long()


def guess_task(y: Tensor) -> str:
    """Return the task that targets of this type and shape belong to."""
    if y.is_floating_point():
        return "survival" if y.ndim == 2 and y.shape[1] == 2 else "regression"
    return "text" if y.ndim == 2 else "classification"


def sort_keys(y: Tensor) -> npt.NDArray[Any]:
    """Return what a partition sorts by, [N]: classes, numbers, times; nothing for text."""
    if y.ndim == 1:
        return y.numpy()
    return y[:, 0].numpy() if y.is_floating_point() else np.zeros(len(y))


def _target(y: Tensor, task: str, dtype: torch.dtype) -> Tensor:
    if task in ("regression", "survival"):
        return y.to(dtype if dtype.is_floating_point else torch.float32)
    if y.is_floating_point() and bool((y != y.round()).any()):
        raise ArchipelError(f"y has fractions; task '{task}' needs whole numbers 0, 1, 2, ...")
    return y.long()


def _share(test: object) -> bool:
    return isinstance(test, int | float)


def fraction(test: float | str) -> float:
    """Check a share of rows to test on."""
    if isinstance(test, str) or not 0 <= test < 1:
        raise ArchipelError(f"test={test!r}: give a share of at least 0 and below 1.")
    return test


def _concatenate(parts: list[Tensor], what: str, names: Sequence[str]) -> Tensor:
    """Concatenate, empty parts taking the shape of the others."""
    full = [t for t in parts if len(t)] or parts[:1]
    for i, t in enumerate(parts):
        if len(t) and t.shape[1:] != full[0].shape[1:]:
            raise ArchipelError(
                f"party '{names[i % len(names)]}': {what} has points of shape "
                f"{tuple(t.shape[1:])} where others have "
                f"{tuple(full[0].shape[1:])}; make them equal."
            )
    kind = torch.int64
    for t in full:
        kind = torch.promote_types(kind, t.dtype)
    return torch.cat([t.to(kind) for t in full])


def _read_items(dataset: Any) -> tuple[Tensor, Tensor]:
    if not len(dataset):
        raise ArchipelError("from_dataset: the dataset is empty; give at least one item.")
    items = [dataset[i] for i in range(len(dataset))]
    if not isinstance(items[0], tuple | list) or len(items[0]) != 2:
        raise ArchipelError("from_dataset: every item must be a pair (x, y).")
    x, y = (torch.stack([as_tensor(item[i]) for item in items]) for i in (0, 1))
    return x, y


def _keys(dataset: Any, by: Sequence[Hashable] | Tensor | Callable[[Any], Hashable]) -> list[Any]:
    if callable(by):
        return [by(dataset[i]) for i in range(len(dataset))]
    return by.tolist() if isinstance(by, Tensor) else list(by)


def _number(keys: list[Any], points: int) -> tuple[Ints, list[str]]:
    """Number parties in order of first appearance."""
    if len(keys) != points:
        raise ArchipelError(f"by has {len(keys)} entries for {points} items; give one an item.")
    numbers: dict[Any, int] = {}
    owner = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    return owner, [str(key) for key in numbers]
