# SPDX-License-Identifier: Apache-2.0
"""Which line of an algorithm's file is to blame: what every line made, in two calls, compared."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_DEEP = 3  # levels of tuples, lists and dictionaries that are looked into

Values = dict[str, Tensor]  # what a line has made, by name


class Line(NamedTuple):
    """A line of a file."""

    file: str
    number: int

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.number).strip()
        name = Path(self.file).name if Path(self.file).is_file() else self.file
        return f"{name}, line {self.number}" + (f" ('{text}')" if text else "")


class Step(NamedTuple):
    """A line that was run, and the values that were there afterwards."""

    line: Line
    values: Values


class Code:
    """The files in which an algorithm is written."""

    def __init__(self, algorithm: object) -> None:
        self._files = {
            method.__code__.co_filename
            for kind in type(algorithm).__mro__
            for name, method in vars(kind).items()
            if hasattr(method, "__code__") and not name.startswith("__")  # those are generated
        }
        self._folders = {Path(file).parent for file in self._files if Path(file).is_file()}

    def holds(self, file: str) -> bool:
        """Whether a file is the algorithm's, or one that lies beside it."""
        return file in self._files or Path(file).parent in self._folders

    def blame(self, traceback: TracebackType | None) -> Line | None:
        """The line of the algorithm from which an error came."""
        found = None
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if self.holds(file):
                found = Line(file, traceback.tb_lineno)
            traceback = traceback.tb_next
        return found

    @contextmanager
    def followed(self, steps: list[Step]) -> Iterator[None]:
        """Write down each line of the algorithm that is run, with what it made."""
        at: dict[FrameType, int] = {}

        def local(frame: FrameType, event: str, found: Any) -> Any:
            values = dict(_values(frame.f_locals))
            if event == "return":
                values |= dict(_values({"": found}))
            if event in ("line", "return") and frame in at:
                steps.append(Step(Line(frame.f_code.co_filename, at[frame]), values))
            at[frame] = frame.f_lineno
            return local

        def called(frame: FrameType, _: str, __: Any) -> Any:
            return local if self.holds(frame.f_code.co_filename) else None

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)


def first_difference(
    one: list[Step], other: list[Step], same: Callable[[Tensor, Tensor], bool]
) -> Line | None:
    """The first line after which two calls differ, in a value or in where they go on."""
    last: Line | None = None
    for a, b in zip(one, other, strict=False):
        if a.line != b.line:
            return last
        shared = a.values.keys() & b.values.keys()
        if not all(same(a.values[name], b.values[name]) for name in shared):
            return a.line
        last = a.line
    return last if len(one) != len(other) else None


def _values(tree: Any, name: str = "", depth: int = _DEEP) -> Iterator[tuple[str, Tensor]]:
    """The numbers in a value, each as a tensor of its own."""
    if isinstance(tree, Tensor):
        yield name, tree.detach().clone()
    elif isinstance(tree, bool | int | float | np.number):
        yield name, torch.tensor(float(tree), dtype=torch.float64)
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "biuf":
        yield name, torch.from_numpy(tree.copy())
    elif isinstance(tree, tuple | list | dict) and depth:
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield from _values(value, f"{name}.{key}", depth - 1)
