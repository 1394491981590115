# SPDX-License-Identifier: Apache-2.0
"""Which rows of a table test: those that a column marks, or those from a date on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from archipel.data import looks
from archipel.data.looks import Looks
from archipel.data.rows import Bools, Ints
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from archipel.data.frames import Roles, Said, Sheet

_AFTER = "after:"
_FLAGS = {"1": True, "0": False, "true": True, "false": False, "test": True, "train": False}


def is_after(test: str) -> bool:
    """Whether rows are told by a time, "after:2016-01-01"."""
    return test.startswith(_AFTER)


def time_of(sheet: Sheet, said: Said) -> str | None:
    """The column that says when: the one that is named, or the only one with dates."""
    if not (isinstance(said.test, str) and is_after(said.test)):
        if said.time is not None:
            raise ArchipelError(
                f'data.time = "{said.time}": is for data.test = "after:2016-01-01"; say that, or '
                "leave it out."
            )
        return None
    if said.time is not None:
        return said.time
    free = [
        name for name in sheet.frame.columns if name not in {said.by, *said.targets, *said.drop}
    ]
    dated = [n for n in free if said.columns.get(n) == "date" or sheet.look(n).dated]
    if len(dated) == 1:
        return str(dated[0])
    found = f"{', '.join(dated)} have dates" if dated else "no column has dates"
    raise ArchipelError(f'data.test = "{said.test}": {found}; say which column in data.time.')


def test_rows(sheet: Sheet, roles: Roles, test: float | str) -> Bools | None:
    """Which rows test; None where a share of them is drawn."""
    if not isinstance(test, str):
        return None
    is_test = _late(sheet.look(roles.time), test) if roles.time else _flags(sheet.look(test))
    if is_test.all() or not is_test.any():
        side = "train" if is_test.all() else "test"
        raise ArchipelError(f'data.test = "{test}": no row is left to {side} on; say another.')
    return is_test


def one_sided(is_test: Bools, party: Ints, names: Sequence[str] | None) -> Iterator[str]:
    """What is said of parties that have no row on one side."""
    if names is None:
        return
    count, tests = np.bincount(party), np.bincount(party, weights=is_test)
    for side, missing in (("training", tests == count), ("test", tests == 0)):
        if missing.any():
            who = ", ".join(f"'{names[k]}'" for k in np.flatnonzero(missing)[:5])
            more = f" and {int(missing.sum()) - 5} more" if missing.sum() > 5 else ""
            yield f"no {side} rows: party {who}{more}"


def _late(column: Looks, test: str) -> Bools:
    """Rows on or after a date, or with this number or a larger one."""
    since = test.removeprefix(_AFTER).strip()
    first = looks.day(since)
    if first is not None and column.is_text | column.dated:
        when = looks.days(column.cells, column.name)
    elif first is None and not column.dated:
        when, first = column.numbers, _number(test, since)
    else:
        kind, such = ("dates", "2016-01-31") if column.dated else ("numbers", "2016")
        raise ArchipelError(
            f"data.test = \"{test}\": column '{column.name}' has {kind}; give one as in "
            f'"after:{such}".'
        )
    wrong = np.isnan(when)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ArchipelError(
            f"data.time: column '{column.name}' has '{column.cells.iloc[row]}', which is no time "
            f"({int(wrong.sum())} rows); correct it, or write dates as 2016-01-31."
        )
    return np.asarray(when >= first, np.bool_)


def _number(test: str, since: str) -> float:
    try:
        return float(since)
    except ValueError:
        raise ArchipelError(
            f'data.test = "{test}": write "after:2016-01-31", or a number for a column of numbers.'
        ) from None


def _flags(column: Looks) -> Bools:
    if column.is_text:
        marks = [_FLAGS.get(str(cell).lower()) for cell in column.cells]
    else:
        marks = [{0.0: False, 1.0: True}.get(float(cell)) for cell in column.numbers]
    if None in marks:
        raise ArchipelError(
            f"column '{column.name}' must be true on test rows and false elsewhere (or 1 and 0, "
            "test and train); recode it."
        )
    return np.array(marks, np.bool_)
