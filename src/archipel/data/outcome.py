# SPDX-License-Identifier: Apache-2.0
"""What is to be predicted: classes, numbers, or times until an event; as said, or guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from archipel.data.column import Column
from archipel.data.kinds import FEW, MANY, Place, refuse_spellings
from archipel.data.looks import Looks
from archipel.errors import ArchipelError, unknown

TASKS = ("classification", "regression", "survival")
_CLASSES = 20  # at most, where whole numbers are taken for classes unasked
_MOST = 1 << 20  # classes


class Outcome(NamedTuple):
    """The target's columns, and the task."""

    columns: tuple[Column, ...]  # one, or time and event
    task: str
    guessed: bool


def outcome(
    targets: Sequence[Looks], kinds: Sequence[str | Column | None], task: str | None, place: Place
) -> Outcome:
    """Say what targets are; what may be classes or numbers is refused unless `task` says it."""
    if task is not None and task not in TASKS:
        raise unknown("data.task", task, TASKS)
    if len(targets) == 2:
        return _survival(targets, task)
    if len(targets) != 1:
        names = [each.name for each in targets]
        raise ArchipelError(f"data.target = {names}: give one column, or [time, event].")
    if task == "survival":
        raise ArchipelError(
            'data.task = "survival": data.target has one column; give two, [time, event].'
        )
    (looks,), (kind,) = targets, kinds
    said = task or _task_of(kind)
    if task and kind is not None and _task_of(kind) != task:
        raise ArchipelError(
            f'data.columns.{looks.name}: does not fit data.task = "{task}"; leave one out.'
        )
    _refuse_one_value(looks)
    chosen = said or _guess(looks, place)
    if isinstance(kind, Column):
        return Outcome((kind,), chosen, False)
    if chosen == "regression":
        _refuse_no_numbers(looks, place)
        return Outcome((Column(looks.name),), chosen, said is None)
    if not looks.whole and looks.is_number[~looks.empty].all():
        raise ArchipelError(
            f"target column '{looks.name}' has fractions; say data.task = \"regression\", or "
            "recode it."
        )
    if len(looks.values) > _MOST:
        raise ArchipelError(
            f"target column '{looks.name}' has {len(looks.values)} different values: too many to "
            "be classes; recode it."
        )
    if kind is None:
        refuse_spellings(looks)
    return Outcome((Column(looks.name, looks.values),), chosen, said is None)


def _task_of(kind: str | Column | None) -> str | None:
    """The task that goes with what is said of a target's column."""
    word = kind.kind if isinstance(kind, Column) else kind
    if word in ("date", "skip"):
        raise ArchipelError(
            f'data.columns has "{word}" for the target; say "number" or "category", or nothing.'
        )
    return {None: None, "number": "regression", "category": "classification"}[word]


def _guess(looks: Looks, place: Place) -> str:
    """The task that a target's values leave no doubt of."""
    values, cells = looks.values, int((~looks.empty).sum())
    if looks.is_number[~looks.empty].any():
        _refuse_no_numbers(looks, place)
        if not looks.whole and len(values) > 2:
            return "regression"
        if looks.whole and _are_classes(values, cells):
            return "classification"
        known = looks.numbers[~looks.empty]
        raise ArchipelError(
            f"target column '{looks.name}' has {len(values)} different "
            f"{'whole ' * looks.whole}numbers, from {known.min():g} to {known.max():g}: classes, "
            'or numbers? Say data.task = "classification" or "regression".'
        )
    if looks.dated:
        raise ArchipelError(f"target column '{looks.name}' has dates; name another data.target.")
    if len(values) > MANY or (len(values) > FEW and 2 * len(values) > cells):
        raise ArchipelError(
            f"target column '{looks.name}' is text with {len(values)} different values in {cells} "
            'cells; name another, or say data.task = "classification".'
        )
    return "classification"


def _are_classes(values: Sequence[int], cells: int) -> bool:
    """Whether whole numbers are evidently classes: two, or all of 0 to k-1, or of 1 to k."""
    k = len(values)
    if k == 2:
        return True
    counted = list(values) in (list(range(k)), list(range(1, k + 1)))
    return counted and k <= _CLASSES and 2 * k <= cells


def _survival(targets: Sequence[Looks], task: str | None) -> Outcome:
    if task not in (None, "survival"):
        raise ArchipelError(
            f'data.task = "{task}": data.target has two columns, time and event; name one.'
        )
    for looks in targets:
        if np.isnan(looks.numbers[~looks.empty]).any():
            raise ArchipelError(f"target column '{looks.name}' is not made of numbers; recode it.")
    time, event = targets
    if not set(event.values) <= {0, 1}:
        raise ArchipelError(
            f"target column '{event.name}' must be 1 where the event was seen and 0 elsewhere; "
            "recode it."
        )
    if set(event.values) == {0}:
        raise ArchipelError(f"target column '{event.name}' is 0 in every row: no event was seen.")
    return Outcome((Column(time.name), Column(event.name, (0, 1))), "survival", False)


def _refuse_one_value(looks: Looks) -> None:
    if len(looks.values) == 1:
        raise ArchipelError(
            f"target column '{looks.name}' is '{looks.values[0]}' in every row: there is nothing "
            "to learn; name another data.target."
        )


def _refuse_no_numbers(looks: Looks, place: Place) -> None:
    odd = ~looks.empty & np.isnan(looks.numbers)
    if odd.any():
        row = int(np.flatnonzero(odd)[0])
        raise ArchipelError(
            f"target column '{looks.name}': '{looks.cells.iloc[row]}' is no number "
            f"({int(odd.sum())} of {int((~looks.empty).sum())} cells, the first in {place(row)}); "
            'correct it, say data.empty if it means nothing, or data.task = "classification".'
        )
