# SPDX-License-Identifier: Apache-2.0
"""The one place where a federation is found right or wrong; every message says who and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    from archipel.data.federation import Federation

TASKS = ("classification", "regression", "survival", "text")


def check_layout(fed: Federation) -> None:
    """Check shapes, types and offsets: O(K)."""
    points = len(fed.x)
    if fed.task not in TASKS:
        raise unknown("task", fed.task, TASKS)
    if fed.x.dtype not in (torch.float32, torch.float64, torch.int64):
        raise ArchipelError(
            f"x has type {fed.x.dtype}; use .float() for features or .long() for symbols."
        )
    if len(fed.y) != points:
        raise ArchipelError(f"y has {len(fed.y)} rows but x has {points}; give one target a row.")
    _check_target_type(fed)
    check_offsets(fed, points)


def check_offsets(fed: Federation, points: int) -> None:
    """Check where each party's rows are, of so many."""
    parties = len(fed.offsets) - 1
    if parties < 1:
        raise ArchipelError("offsets: a federation needs at least one party; give [0, n].")
    if fed.offsets.dtype != torch.int64 or fed.test_from.dtype != torch.int64:
        raise ArchipelError("offsets and test_from must be int64; use .long().")
    if int(fed.offsets[0]) != 0 or int(fed.offsets[-1]) != points:
        raise ArchipelError(
            f"offsets run from {int(fed.offsets[0])} to {int(fed.offsets[-1])}; "
            f"they must run from 0 to the number of rows, {points}."
        )
    if bool((fed.offsets[1:] < fed.offsets[:-1]).any()):
        k = int((fed.offsets[1:] < fed.offsets[:-1]).nonzero()[0])
        raise ArchipelError(f"offsets fall at party {k}; party k must own offsets[k]:offsets[k+1].")
    if fed.test_from.shape != (parties,):
        raise ArchipelError(
            f"test_from has shape {tuple(fed.test_from.shape)}; "
            f"give one row per party, ({parties},)."
        )
    outside = (fed.test_from < fed.offsets[:-1]) | (fed.test_from > fed.offsets[1:])
    if bool(outside.any()):
        k = int(outside.nonzero()[0])
        raise ArchipelError(
            f"test_from[{k}]={int(fed.test_from[k])} is outside the rows of party {k}, "
            f"{int(fed.offsets[k])}..{int(fed.offsets[k + 1])}."
        )
    if not 0 <= fed.training <= parties:
        raise ArchipelError(f"training={fed.training} must lie between 0 and {parties} parties.")
    if fed.names is not None and len(fed.names) != parties:
        raise ArchipelError(f"names has {len(fed.names)} entries for {parties} parties.")
    if fed.origin is not None:
        _check_origin(fed.origin, parties)


def _check_origin(origin: Tensor, parties: int) -> None:
    """A fold follows the fold before it, and a copy is of a party that stands for itself."""
    every = torch.arange(parties)
    right = origin.shape == (parties,) and origin.dtype == torch.int64
    right = right and bool((origin <= every).all())
    if right:
        copied, fold = origin < 0, (origin >= 0) & (origin < every)
        source = torch.where(copied, -1 - origin, every)
        right = bool((source < parties).all()) and bool((origin[source] == source)[copied].all())
        right = right and bool((origin[1:] == origin[:-1])[fold[1:]].all())
    if not right:
        raise ArchipelError("origin: make copies of parties with with_virtual or cross_fitted.")


def _check_target_type(fed: Federation) -> None:
    y, shape = fed.y, tuple(fed.y.shape)
    whole = y.dtype == torch.int64
    wanted = {
        "classification": (whole and y.ndim == 1, "int64 classes of shape [N]"),
        "regression": (y.is_floating_point() and y.ndim == 1, "float numbers of shape [N]"),
        "survival": (
            y.is_floating_point() and y.ndim == 2 and shape[1] == 2,
            "float (time, event) pairs of shape [N, 2]",
        ),
        "text": (whole and y.shape == fed.x.shape, "int64 symbols of the shape of x"),
    }
    right, what = wanted[fed.task]
    if not right:
        raise ArchipelError(f"y is {y.dtype} of shape {shape}; task '{fed.task}' needs {what}.")
    if (fed.classes > 0) != whole:
        remedy = "give the number of classes" if whole else "use 0"
        raise ArchipelError(f"classes={fed.classes} does not fit task '{fed.task}'; {remedy}.")


def check_values(fed: Federation) -> None:
    """Check every value: finite, labels in range, times and events possible. O(N)."""
    _check_finite(fed, fed.x, "x", fed.columns)
    _check_finite(fed, fed.y, "y", None)
    if fed.task == "survival":
        _reject(fed, fed.y[:, 0] < 0, "a negative time", "times must be 0 or more")
        event = fed.y[:, 1]
        _reject(fed, (event != 0) & (event != 1), "an event that is not 0 or 1", "recode it")
    if fed.task in ("classification", "text"):
        _check_range(fed, fed.y, "label", "set classes or recode the labels as 0, 1, 2, ...")
    if fed.task == "text":
        _check_range(fed, fed.x, "symbol", "set classes to the size of the vocabulary")
    if fed.names is not None and len(set(fed.names)) < len(fed.names):
        seen: set[str] = set()
        for name in fed.names:
            if name in seen:
                raise ArchipelError(f"names: '{name}' names two parties; names must differ.")
            seen.add(name)


def _check_finite(fed: Federation, t: Tensor, what: str, columns: Sequence[str] | None) -> None:
    if not t.is_floating_point() or t.numel() == 0:
        return
    low, high = t.aminmax()
    if bool(low.isfinite() & high.isfinite()):
        return
    flat = t.reshape(len(t), -1)
    row = int((~flat.isfinite()).any(dim=1).nonzero()[0])
    column = int((~flat[row].isfinite()).nonzero()[0])
    name = f"column '{columns[column]}'" if columns is not None else f"column {column}"
    raise ArchipelError(
        f"party '{fed.name(fed.owner(row))}': {what} has {float(flat[row, column])} in {name}; "
        "fill in or drop such rows before making the federation."
    )


def _check_range(fed: Federation, t: Tensor, what: str, remedy: str) -> None:
    if t.numel() == 0:
        return
    low, high = t.aminmax()
    if int(low) >= 0 and int(high) < fed.classes:
        return
    flat = t.reshape(len(t), -1)
    wrong = (flat < 0) | (flat >= fed.classes)
    row = int(wrong.any(dim=1).nonzero()[0])
    value = int(flat[row][wrong[row]][0])
    raise ArchipelError(
        f"party '{fed.name(fed.owner(row))}' has {what} {value}, outside 0..{fed.classes - 1}; "
        f"{remedy}."
    )


def _reject(fed: Federation, wrong: Tensor, what: str, remedy: str) -> None:
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ArchipelError(f"party '{fed.name(fed.owner(row))}' has {what}; {remedy}.")
