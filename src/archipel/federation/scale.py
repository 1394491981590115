# SPDX-License-Identifier: Apache-2.0
"""The scale of the features: sites send sums once, before the first round, and get it back.

The sums are each column's count, total and total of squares over a site's training rows. What is
made of them is written to the disk before any site is told, and never changes: a site that comes
later gets the scale and sends nothing.
"""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from archipel.data.scaling import Scaling, Sums
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.store.files import write

_SOON = Letter("wait", {"seconds": 0.5})


class Scale:
    """What a study's sites have sent, and the scale once there is one."""

    def __init__(self, path: Path, study: str, columns: int) -> None:
        self._path, self._study, self._columns = path, study, columns
        self.sent: dict[int, Sums] = {}
        self.made = read(path) if path.exists() else None

    def answer(self, party: int, letter: Letter) -> Letter:
        """Answer a site that wants the scale, or take what it sends for it."""
        if self.made is not None:
            return Letter("scaling", {"study": self._study}, list(self.made))
        if letter.kind == "sums":
            self.sent[party] = self._checked(letter)
        return _SOON if party in self.sent else Letter("wanted", {"study": self._study})

    def _checked(self, letter: Letter) -> Sums:
        right = len(letter.arrays) == 3 and all(
            array.dtype == torch.float64 and array.shape == (self._columns,)
            and bool(torch.isfinite(array).all())
            for array in letter.arrays
        )  # fmt: skip
        if not right or bool((letter.arrays[0] < 0).any()):
            raise Refused(f"the sums are not those of {self._columns} columns.")
        return Sums(*(array.clone() for array in letter.arrays))

    def make(self) -> None:
        """Fix the scale by what was sent, added up in the order of the parties."""
        total = Sums(*(torch.zeros(self._columns, dtype=torch.float64) for _ in range(3)))
        for party in sorted(self.sent):
            total = total + self.sent[party]
        nowhere = total.counts < 1  # nobody's sums were large enough to leave: it stays as it is
        total = total + Sums(*(nowhere.double(), 0 * nowhere, nowhere.double()))
        made = total.scaling()
        self._path.parent.mkdir(exist_ok=True)
        keep(self._path, made)
        self.made = made


def keep(path: Path, scaling: Scaling) -> None:
    write(path, safetensors.torch.save({"mean": scaling.mean, "scale": scaling.scale}))


def read(path: Path) -> Scaling:
    kept = safetensors.torch.load_file(path)
    return Scaling(kept["mean"], kept["scale"])
