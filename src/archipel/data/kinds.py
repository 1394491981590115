# SPDX-License-Identifier: Apache-2.0
"""What a careful person makes of a column that nobody described, or a sentence that asks.

Numbers are numbers, words are categories. What may be meant in two ways is never guessed: numbers
with words between them, dates, and what tells rows apart and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from archipel.data.column import Column
from archipel.data.looks import Looks, alike
from archipel.data.rows import Bools, Ints
from archipel.errors import ArchipelError, unknown

KINDS = ("number", "category", "date", "skip")
Place = Callable[[int], str]  # of a row, in words: whose it is, and its number in the file

# A 0/1 feature learns from the rows that have its value. Beyond 50 values few tables have enough of
# them, and text that takes another value in most rows (names, notes, codes) is known by that.
MANY, FEW = 50, 10
_IDENTIFIERS = {"id", "ids", "identifier", "uid", "uuid", "guid", "pid", "mrn", "ssn"}
_NUMBERED = {
    "nr", "no", "num", "number", "index", "idx", "key", "row", "rowid", "rownum", "unnamed", "case",
    "patient", "patientid", "subject", "subjectid", "subjid", "record", "recordid", "seqn",
}  # fmt: skip


def said(columns: Mapping[str, Any], there: Sequence[str]) -> dict[str, str | Column]:
    """Check [data.columns]: for each column a word of `KINDS`, or all that `data.schema` takes."""
    found: dict[str, str | Column] = {}
    for name, kind in columns.items():
        if name not in there:
            raise unknown("column in data.columns", name, there)
        plain = kind["kind"] if isinstance(kind, Mapping) and [*kind] == ["kind"] else kind
        if isinstance(plain, str):
            if plain not in KINDS:
                raise unknown(f"kind of data.columns.{name}", plain, KINDS)
            found[name] = plain
        else:
            found[name] = Column.of(name, plain, "data.columns")
    return found


def column_of(looks: Looks, kind: str | Column | None, party: Ints, place: Place) -> Column | None:
    """Return what a column becomes; None for one that never differs.

    `kind` is what is said of it. What has to be said is refused in a sentence.
    """
    name = looks.name
    if isinstance(kind, Column):
        return kind
    if looks.empty.all():
        raise ArchipelError(f"column '{name}' has no value in any row; data.drop = [\"{name}\"].")
    if kind == "date":
        return Column(name, date=True)
    if kind == "category":
        return Column(name, looks.values) if len(looks.values) > 1 else None
    _refuse_words(looks, kind, place)
    if kind == "number":
        return Column(name)
    if looks.dated:
        raise ArchipelError(
            f"column '{name}' has dates, such as {_first(looks)}; say data.columns.{_key(name)} = "
            f'"date" to learn from the number of days, or data.drop = ["{name}"].'
        )
    if looks.is_number[~looks.empty].all():
        known = looks.numbers[~looks.empty]
        if (known == known[0]).all():
            return None
        if why := _numbered(looks, party):
            raise _identifier(looks, why, "number")
        return Column(name)
    if why := _unlike(looks):
        raise _identifier(looks, why, "category")
    refuse_spellings(looks)
    return Column(name, looks.values) if len(looks.values) > 1 else None


def _refuse_words(looks: Looks, kind: str | None, place: Place) -> None:
    """Refuse a column of numbers, or of dates, with something else in some of its cells."""
    some = ~looks.empty
    if kind == "number" or looks.is_number[some].any():
        odd, what = some & ~looks.is_number, "number"
        odd = odd if odd.any() else some & np.isnan(looks.numbers)  # decimal commas among points
    elif looks.dates[some].any():
        odd, what = some & ~looks.dates, "date"
    else:
        return
    if odd.any():
        raise ArchipelError(_words(looks, odd, what, kind, place))


def _words(looks: Looks, odd: Bools, what: str, kind: str | None, place: Place) -> str:
    texts = looks.cells[odd].astype(str)
    words = list(dict.fromkeys(texts))
    shown = ", ".join(f"'{word}'" for word in words[:3]) + (", ..." if len(words) > 3 else "")
    where = place(int(np.flatnonzero(odd)[0]))
    count, total = int(odd.sum()), int((~looks.empty).sum())
    means = json.dumps(words[:3], ensure_ascii=False)
    also = "" if kind or what == "date" else f', or data.columns.{_key(looks.name)} = "category"'
    comma = " (a decimal comma?)" if texts.str.fullmatch(r"[+-]?\d*,\d+").any() else ""
    return (
        f"column '{looks.name}' has {what}s, but {shown}{comma} in {count} of {total} cells, the "
        f"first in {where}; say data.empty = {means} if that means nothing{also}."
    )


def refuse_spellings(looks: Looks) -> None:
    """Refuse categories that may be one in two spellings, such as 'Yes' and 'yes'."""
    if pair := alike(looks.values):
        raise ArchipelError(
            f"column '{looks.name}' has '{pair[0]}' and '{pair[1]}', which differ in capitals "
            f'alone; write them alike, or say data.columns.{_key(looks.name)} = "category" if '
            "they are two."
        )


def _numbered(looks: Looks, party: Ints) -> str:
    """Why whole numbers tell rows apart and nothing else; empty if they may be more."""
    known = looks.numbers[~looks.empty]
    if not looks.whole or len(known) < 3:
        return ""
    words = _parts(looks.name)
    different = len(np.unique(known)) == len(known)
    if words[-1:] and words[-1] in _IDENTIFIERS:
        return "by its name is an identifier"
    if different and _NUMBERED & {*words}:
        return "has another number in every row, and by its name is an identifier"
    if len(known) < FEW:
        return ""
    if different and known.max() - known.min() + 1 == len(known):
        return "numbers the rows one by one"
    owner = party[~looks.empty]
    order = np.argsort(owner, kind="stable")
    steps, same = np.diff(known[order]), np.diff(owner[order]) == 0
    starts = known[order][np.concatenate([[True], ~same])]
    if same.any() and (steps[same] == 1).all() and (starts == starts[0]).all():
        return "numbers the rows of every party one by one"
    return ""


def _unlike(looks: Looks) -> str:
    """Why text has too many values for categories; empty if it has not."""
    many, cells = len(looks.values), int((~looks.empty).sum())
    named = bool(_IDENTIFIERS & {*_parts(looks.name)})
    if many > MANY or (many > FEW and 2 * many > cells) or (named and many == cells > 2):
        return f"is text with {many} different values in {cells} cells"
    return ""


def _identifier(looks: Looks, why: str, kind: str) -> ArchipelError:
    name = looks.name
    return ArchipelError(
        f"column '{name}' {why}, such as {_first(looks)}; data.drop = [\"{name}\"], or say "
        f'data.columns.{_key(name)} = "{kind}" to learn from it all the same.'
    )


def _first(looks: Looks) -> str:
    value = looks.cells[~looks.empty].iloc[0]
    return f"{value:g}" if isinstance(value, float) else f"'{value}'"


def _parts(name: str) -> list[str]:
    """The words of a name: 'patientID_2' has patient, id and 2."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return re.findall(r"[^\W\d_]+", spaced.lower())


def _key(name: str) -> str:
    """A column's name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
