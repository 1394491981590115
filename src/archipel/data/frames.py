# SPDX-License-Identifier: Apache-2.0
"""Tables to arrays: categories, empty cells, targets. Only this file and `tables` need pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from archipel.data import tables
from archipel.data.dialect import UNSAID, Written
from archipel.data.rows import Bools, Ints
from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from archipel.data.schema import Schema

_CLASSES = 1 << 20  # at most
PARTY = "party (file name)"  # the column that tells files of one folder apart


class Table(NamedTuple):
    """What a federation needs of a table; only `x` may hold NaN, and only if it is to be filled."""

    x: npt.NDArray[np.float64]
    y: npt.NDArray[Any]
    labels: npt.NDArray[Any]  # [N] to sort or share out by
    strata: npt.NDArray[Any]  # [N] to balance train and test over
    classes: int | None
    party: Ints
    names: list[str] | None
    is_test: Bools | None
    schema: Schema  # as which the table was read


def read(
    frame: pd.DataFrame,
    by: str | None,
    target: str | Sequence[str],
    flag: str | None,
    drop: Sequence[str],
    missing: str,
    task: str | None,
) -> Table:
    """Take a table apart; see `Federation.from_frame`."""
    if missing not in ("error", "drop", "mean"):
        raise unknown("way to treat missing values", missing, ["error", "drop", "mean"])
    targets = [target] if isinstance(target, str) else list(target)
    roles = [*targets, *([by] if by else []), *([flag] if flag else [])]
    for column in [*roles, *drop]:
        if column not in frame.columns:
            raise unknown("column", column, map(str, frame.columns))
    frame = frame.drop(columns=list(drop))
    features = [c for c in frame.columns if c not in roles]
    if not features:
        raise ArchipelError("from_frame: no column is left to learn from; drop fewer.")
    if missing == "drop":
        frame = frame.dropna()
    _reject_missing(frame, [*roles, *(features if missing == "error" else [])], by)
    if len(frame) == 0:
        raise ArchipelError("from_frame: no row is left; fill in missing values before.")
    party, names = np.zeros(len(frame), np.int64), None
    if by:
        values, party = np.unique(comparable(frame[by]), return_inverse=True)
        names = [str(v) for v in values]
    from archipel.data.cells import Cells  # which reads numbers by this file

    y, labels, strata, task, classes = _targets(frame, targets, task)
    schema = _schema(frame, features, targets, task, classes, missing)
    x = schema.encode(Cells.of(frame.rename(columns=str).reset_index(drop=True)))
    is_test = _flags(frame[flag]) if flag else None
    return Table(x, y, labels, strata, classes, party.astype(np.int64), names, is_test, schema)


def _reject_missing(frame: pd.DataFrame, columns: Sequence[str], by: str | None) -> None:
    holes = frame[list(columns)].isna().to_numpy()
    if not holes.any():
        return
    row, column = (int(i[0]) for i in np.nonzero(holes))
    who = f"party '{frame[by].iloc[row]}'" if by and columns[column] != by else f"row {row}"
    many = int(holes[:, column].sum())
    raise ArchipelError(
        f"{who}: column '{columns[column]}' has a missing value ({many} in all); "
        "use missing='drop', missing='mean' (features only) or drop=['" + columns[column] + "']."
    )


def comparable(column: pd.Series[Any]) -> npt.NDArray[Any]:
    """Return numbers as they are and anything else as text, so that values have an order."""
    return column.to_numpy() if _numeric(column) else column.astype(str).to_numpy(dtype=str)


def _numeric(column: pd.Series[Any]) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column.dtype))


def _flags(column: pd.Series[Any]) -> Bools:
    if not _numeric(column) or not column.isin([0, 1]).all():
        raise ArchipelError(
            f"column '{column.name}' must be true on test rows and false elsewhere; recode it."
        )
    return column.to_numpy().astype(np.bool_)


def _targets(
    frame: pd.DataFrame, targets: list[str], task: str | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], str, int | None]:
    """Return y, labels, strata, task and number of classes."""
    if len(targets) == 2:
        for name in targets:
            if not _numeric(frame[name]):
                raise ArchipelError(f"target column '{name}' is not made of numbers; recode it.")
        pairs = frame[targets].to_numpy(dtype=np.float64)
        return pairs, pairs[:, 0], pairs[:, 1], "survival", None
    if len(targets) != 1:
        raise ArchipelError(f"target={targets}: give one column, or [time, event].")
    column = frame[targets[0]]
    if not _numeric(column):  # text: classes in sorted order
        kinds, codes = np.unique(column.astype(str).to_numpy(dtype=str), return_inverse=True)
        return codes, codes, codes, "classification", len(kinds)
    y = column.to_numpy()
    whole = y.dtype.kind in "biu"
    task = task or ("classification" if whole else "regression")
    if task == "classification":
        if (y != np.round(y)).any():
            raise ArchipelError(
                f"target column '{targets[0]}' has fractions; use task='regression' or recode it."
            )
        y = y.astype(np.int64)
        classes = int(y.max()) + 1
        if classes > _CLASSES:
            raise ArchipelError(
                f"target column '{targets[0]}' has whole numbers up to {classes - 1}: too many to "
                "be classes; recode it."
            )
        return y, y, y, task, max(1, classes)
    y = y.astype(np.float64)
    return y, y, np.zeros(len(y), np.int64), task, None


def _schema(
    frame: pd.DataFrame,
    features: list[str],
    targets: list[str],
    task: str,
    classes: int | None,
    missing: str,
) -> Schema:
    """Describe a table by what is in it: numbers, and the values of text and categories.

    A text that is the same in every row says nothing, and is left out.
    """
    from archipel.data.schema import Column, Schema  # which reads tables by this file

    found = []
    for name in features:
        if _numeric(frame[name]):
            found.append(Column(str(name)))
            continue
        kinds = _kinds(frame[name])
        if len(kinds) > max(20, len(frame) // 2):
            raise ArchipelError(
                f"column '{name}' is text with {len(kinds)} different values; "
                f"drop=['{name}'] or turn it into numbers or categories."
            )
        found += [Column(str(name), kinds)] if len(kinds) > 1 else []
    if not found:
        raise ArchipelError("from_frame: no column is left that differs from row to row.")
    outcomes = [Column(str(name)) for name in targets]
    if task == "survival":
        outcomes[1] = Column(str(targets[1]), (0, 1))
    elif task == "classification":
        numeric = _numeric(frame[targets[0]])
        values = tuple(range(classes or 0)) if numeric else _kinds(frame[targets[0]])
        outcomes = [Column(str(targets[0]), values)]
    return Schema(tuple(found), tuple(outcomes), missing)


def _kinds(column: pd.Series[Any]) -> tuple[str, ...]:
    """The values of text and categories, in order."""
    return tuple(sorted(set(column.dropna().astype(str))))


def party_files(folder: Path) -> list[Path]:
    """Return the data files of a folder, all of one kind, in order of name."""
    if not folder.is_dir():
        raise ArchipelError(f"folder '{folder}' does not exist; give a folder of party files.")
    kinds = [*tables.ENDINGS, ".npz"]
    files = sorted(f for f in folder.iterdir() if f.name.endswith(tuple(kinds)))
    if not files:
        raise ArchipelError(f"folder '{folder}' has no {', '.join(kinds)} files.")
    if len({f.name.removeprefix(tables.stem(f)) for f in files}) > 1:
        raise ArchipelError(f"folder '{folder}' mixes {', '.join(kinds)} files; keep one kind.")
    return files


def read_npz(file: Path, target: str) -> dict[str, npt.NDArray[Any]]:
    """Read one party's arrays; never a pickle."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except ValueError:
        raise ArchipelError(f"'{file}' holds Python objects; save plain arrays only.") from None
    for name in ("x", target):
        if name not in arrays:
            raise ArchipelError(f"'{file}' has no array '{name}'; it has {', '.join(arrays)}.")
    return arrays


def read_table(file: Path, written: Written = UNSAID) -> pd.DataFrame:
    """Read a .csv, .csv.gz or .parquet file."""
    source = tables.opened(file, written)
    twice = next((name for name in source.header if source.header.count(name) > 1), None)
    if twice is not None:
        raise tables.called_alike(file, twice)
    return source.frame()


def numbers(column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """Return a column as numbers, NaN where it has none."""
    import pandas as pd

    if not _numeric(column):
        column = pd.to_numeric(column.astype(str), errors="coerce")
    return np.array(column.to_numpy(dtype=np.float64, na_value=np.nan))


def codes(column: pd.Series[Any], values: Sequence[int | str]) -> npt.NDArray[np.float64]:
    """Return where in `values` each cell's value is, NaN where it is not there."""
    if isinstance(values[0], int):
        cells: Any = numbers(column)
    else:
        texts = column.astype(str)
        cells = texts.where(texts.isin(list(values)), texts.str.strip()).to_numpy(dtype=object)
    places = {value: float(code) for code, value in enumerate(values)}
    found = np.array([places.get(cell, np.nan) for cell in cells], np.float64)
    found[column.isna().to_numpy()] = np.nan
    return found


def read_tables(files: Sequence[Path], written: Written = UNSAID) -> pd.DataFrame:
    """Read one table per party and put them under each other, in column `PARTY` the file's name."""
    import pandas as pd

    read = [read_table(file, written) for file in files]
    for file, table in zip(files, read, strict=True):
        odd = sorted(set(map(str, table.columns)) ^ set(map(str, read[0].columns)))
        if odd:
            raise ArchipelError(
                f"party '{tables.stem(file)}': column '{odd[0]}' is not in every file; make "
                "columns equal."
            )
    named = [t.assign(**{PARTY: tables.stem(f)}) for f, t in zip(files, read, strict=True)]
    joined: pd.DataFrame = pd.concat(named, ignore_index=True)
    return joined
