# SPDX-License-Identifier: Apache-2.0
"""The scale of the columns: sites send sums once, before the first round, and get it back.

The sums are the count, total and total of squares of each column to learn from, and of a number to
predict, over a site's training rows. What is
made of them is written to the disk before any site is told, and never changes once a round is done:
a site that comes later gets the scale and sends nothing. Before that the operator may have it made
anew, without the sums of a site that were wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import safetensors.torch
import torch

from archipel.data.scaling import Scaling, Sums
from archipel.data.schema import Schema
from archipel.data.shadow import MOST_ROWS
from archipel.engines.network.bounds import LARGEST
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import Refused
from archipel.store.files import write

_SOON = Letter("wait", {"seconds": 0.5})
_ROUNDING = 1e-6  # of sums of very many numbers, relative


class Scale:
    """What a study's sites have sent, and the scale once there is one."""

    def __init__(self, path: Path, study: str, schema: Schema) -> None:
        self._path, self._study, self._schema = path, study, schema
        self.sent: dict[int, Sums] = {}
        self.made = read(path) if path.exists() else None
        self.without = _without(path)  # sites whose sums the operator left out

    def answer(self, party: int, letter: Letter, site: str) -> Letter:
        """Answer a site that wants the scale, or take what it sends for it.

        Its sums may be those of an earlier table, which had more rows than the site has now.
        """
        if self.made is not None:
            return Letter("scaling", {"study": self._study}, list(self.made))
        if site in self.without:
            return _SOON
        if letter.kind == "sums":
            self.sent[party] = _checked(letter, self._schema)
        return _SOON if party in self.sent else Letter("wanted", {"study": self._study})

    def is_(self, letter: Letter) -> bool:
        """Whether a site that asks for work has no scale but that of the study.

        One that has another is to send its sums again, also while none is made yet.
        """
        return letter["scale"] in (None, None if self.made is None else digest(self.made))

    def make(self, parties: Iterable[int]) -> None:
        """Fix the scale by what these parties sent, added up in the order of their numbers."""
        columns = len(self._schema.summed)
        total = Sums(*(torch.zeros(columns, dtype=torch.float64) for _ in range(3)))
        for party in sorted(parties):
            total = total + self.sent[party]
        nowhere = (total.counts < 1).double()  # no sums of it may leave: it stays as it is
        made = Sums(total.counts + nowhere, total.totals, total.squares + nowhere).scaling()
        self._path.parent.mkdir(exist_ok=True)
        keep(self._path, made)
        self.made = made


def _checked(letter: Letter, schema: Schema) -> Sums:
    """The sums in a letter, if a table can have them."""
    columns = [name for _, name in schema.summed]
    right = len(letter.arrays) == 3 and all(
        array.dtype == torch.float64 and array.shape == (len(columns),)
        and bool(torch.isfinite(array).all())
        for array in letter.arrays
    )  # fmt: skip
    if not right:
        raise Refused(f"the sums are not those of {len(columns)} columns.")
    sums = Sums(*(array.clone() for array in letter.arrays))
    counts, totals, squares = sums
    marks = torch.tensor([bool(column.values) for column, _ in schema.summed])
    exact = (totals == squares) & (totals == totals.round())
    for wrong, said in [
        (
            (counts < 0) | (counts > MOST_ROWS) | (counts != counts.round()),
            f"counts up to {MOST_ROWS:,}",
        ),
        (squares * (1 + _ROUNDING) * counts < totals.square(), "squares of such totals"),
        ((counts == 0) & (squares != 0), "totals of no value"),
        (squares > counts * LARGEST**2, f"totals of values up to {LARGEST:g}"),
        (marks & ~((totals >= 0) & (totals <= counts) & exact), "totals of zeros and ones"),
    ]:
        for column in wrong.nonzero().flatten().tolist():
            raise Refused(
                f"the sums of column '{columns[column]}' are not {said}: count "
                f"{counts[column]:g}, total {totals[column]:g}, squares {squares[column]:g}."
            )
    return sums


def keep(path: Path, scaling: Scaling) -> None:
    write(path, safetensors.torch.save({"mean": scaling.mean, "scale": scaling.scale}))


def read(path: Path) -> Scaling:
    kept = safetensors.torch.load_file(path)
    return Scaling(kept["mean"], kept["scale"])


def digest(scaling: Scaling) -> str:
    """Names a scale."""
    return sha256(b"".join(part.numpy().tobytes() for part in scaling)).hexdigest()


def name_at(path: Path) -> str | None:
    """The name of the scale in a file, if there is one."""
    return digest(read(path)) if path.exists() else None


def path_of(home: Path, study: str) -> Path:
    """Where a coordinator keeps a study's scale."""
    return home / "scales" / f"{study}.safetensors"


def forget(path: Path, without: Sequence[str]) -> None:
    """Forget a scale; the next one is made without the sums of some sites."""
    path.parent.mkdir(exist_ok=True)
    write(path.with_suffix(".json"), json.dumps({"without": sorted(without)}).encode())
    path.unlink(missing_ok=True)


def _without(path: Path) -> frozenset[str]:
    orders = path.with_suffix(".json")
    return frozenset(json.loads(orders.read_bytes())["without"] if orders.exists() else ())
