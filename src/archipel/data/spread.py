# SPDX-License-Identifier: Apache-2.0
"""Federations from tables: in memory, in a file, or a folder with one per party.

`from_frame` and `from_folder` are class methods of `Federation`, which is their first argument.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from archipel.data import partition as partitions
from archipel.data.about import About
from archipel.data.build import Array, fraction, from_arrays, from_rows
from archipel.data.features import Features
from archipel.data.rows import draw_test
from archipel.data.scaling import Sums
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import pandas as pd

    from archipel.data.federation import Federation
    from archipel.data.frames import Said, Sheet


def from_frame(
    cls: type[Federation],
    frame: pd.DataFrame,
    *,
    target: str | Sequence[str],
    by: str | None = None,
    partition: str | None = None,
    parties: int = 10,
    test: float | str = 0.2,
    time: str | None = None,
    drop: Sequence[str] = (),
    missing: str = "error",
    empty: Sequence[str] = (),
    task: str | None = None,
    columns: Mapping[str, Any] | None = None,
    about: About | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    standardise: bool = True,
) -> Federation:
    """Make a federation of a table: one party per value of column `by`, or as `partition` says.

    `target` is a column, or [time, event], and `task` says whether it has classes or numbers where
    that is not evident. `test` is a share, the name of a column that is true on test rows, or
    "after:2016-01-01" of the column `time`. Text becomes a 0/1 column for each value but the first;
    `columns` says "number", "category", "date" or "skip" of a column. Words in `empty` mean an
    empty cell, and `missing` says what to do about one: "error", "drop" its row, or put the "mean"
    of the training rows. Features, and in training a number to predict, get mean 0 and variance 1
    unless `standardise` is False (`Federation.standardised`).
    """
    from archipel.data.frames import Said, Sheet

    if partition is not None and partition.startswith("by:"):
        by, partition = partition.removeprefix("by:"), None
    said = Said(target, by, test, time, drop, missing, empty, task)
    others = {by, test, time, *drop, *(said.targets if task else ())}  # of which no kind is said
    typed = [str(name) for name, kind in frame.dtypes.items() if kind == "category"]
    kinds = {name: "category" for name in typed if name not in others}
    said = said._replace(columns=kinds | dict(columns or {}))
    return from_sheet(
        cls, Sheet.of(frame, said), said, partition=partition, parties=parties, about=about,
        dtype=dtype, seed=seed, standardise=standardise,
    )  # fmt: skip


def from_sheet(
    cls: type[Federation],
    sheet: Sheet,
    said: Said,
    *,
    partition: str | None = None,
    parties: int = 10,
    about: About | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    standardise: bool = True,
) -> Federation:
    """The same of a table that was read, by all that is said of it."""
    from archipel.data import frames

    if (said.by is None) == (partition is None):
        raise ArchipelError("from_frame: say by='column' or partition='iid', one of the two.")
    share = 0.0 if isinstance(said.test, str) else fraction(said.test)
    table = frames.read(sheet, said)
    if partition is None:
        owner, names = table.party, table.names
    else:
        owner, names = partitions.assign(table.labels, partition, parties, seed), None
    is_test = table.is_test
    if is_test is None:
        is_test = draw_test(owner, table.strata, share, np.random.default_rng([seed, 4]))
    features, x = Features(table.schema), torch.from_numpy(table.x)
    if said.missing == "mean":
        sums = Sums.of(x[torch.from_numpy(~is_test)])
        features = features.filled(sums.scaling(table.schema.columns).mean)
    fed = from_rows(
        cls,
        features.apply(x),
        table.y,
        owner,
        test=is_test,
        names=names,
        task=table.schema.task,
        classes=table.schema.classes or None,
        about=_noted(about or About(), table.notes),
        columns=table.schema.columns,
        features=features,
        seed=seed,
        scan=False,
    )
    return (fed.standardised(fed.marks) if standardise else fed).cast(dtype)


def _noted(about: About, notes: Sequence[str]) -> About:
    """Keep what is said of a table with it, and tell it."""
    for note in notes:
        logging.getLogger("archipel").warning("%s: %s", about.name, note)
    return replace(about, note="; ".join([*([about.note] if about.note else []), *notes]))


def from_folder(
    cls: type[Federation],
    path: str | Path,
    *,
    target: str | Sequence[str] = "y",
    test: float | str = 0.2,
    time: str | None = None,
    drop: Sequence[str] = (),
    missing: str = "error",
    empty: Sequence[str] = (),
    task: str | None = None,
    columns: Mapping[str, Any] | None = None,
    about: About | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    standardise: bool = True,
) -> Federation:
    """Make a federation of a folder with one .csv, .csv.gz, .parquet or .npz file per party.

    The party has the file's name without its ending. Tables are read as `from_frame` does; an
    .npz file holds `x` and the array named by `target`, and may hold `x_test` and `y_test`. How
    text is written is found out unless `sep`, `decimal` or `encoding` says it. Features are
    standardised as those of `from_frame`, but for symbols.
    """
    from archipel.data import frames
    from archipel.data.dialect import Written

    files = frames.party_files(Path(path))
    about = about or About(name=Path(path).name)
    if files[0].suffix == ".npz":
        name = target if isinstance(target, str) else target[0]
        parts = [frames.read_npz(file, name) for file in files]
        tests = [(p.get("x_test"), p.get("y_test")) for p in parts]
        own = all(a is not None and b is not None for a, b in tests)
        fed = from_arrays(
            cls,
            [p["x"] for p in parts],
            [p[name] for p in parts],
            test=cast("list[tuple[Array, Array]]", tests) if own else fraction(test),
            names=[file.stem for file in files],
            task=task,
            about=about,
            seed=seed,
        )
        symbols = not fed.x.is_floating_point()
        return fed if symbols or not standardise else fed.standardised(fed.marks)
    said = frames.Said(target, frames.PARTY, test, time, drop, missing, empty, task, columns or {})
    sheet = frames.read_tables(files, Written.of(sep, decimal, encoding), said)
    return from_sheet(
        cls, sheet, said, about=about, dtype=dtype, seed=seed, standardise=standardise
    )
