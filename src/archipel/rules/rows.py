# SPDX-License-Identifier: Apache-2.0
"""What rules share: rows `[m, p]` of uploads, looked at some columns at a time.

Any row may lie: it may hold NaN, infinities or numbers whose square is none. A row that is not
finite is infinitely far from every other, and stands last where columns are sorted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.errors import ArchipelError
from archipel.tree import Tree, fill, leaves, tree_map

_SORTED = 1 << 19  # numbers that are sorted at a time: they stay in the cache
_MULTIPLIED = 1 << 21  # numbers of a block of a matrix product


class TooFew(ArchipelError):
    """Fewer rows than a rule can tell apart."""

    def __init__(self, rule: object, what: str, least: int, m: int) -> None:
        super().__init__(
            f"round.rule: {type(rule).__name__} with {what} needs {least} uploads and has {m}: "
            "sample more parties, or let fewer of them lie."
        )
        self.needs = f"round.rule: {type(rule).__name__} with {what} needs {least} vectors"


class Made:
    """What a rule makes of uploads: rows of no party, each of which counts the same.

    How many examples a party says it has is a number that it may lie about: no mean is weighed by
    it.
    """

    def __init__(
        self,
        uploads: Uploads,
        x: Tensor,
        form: Callable[[Tensor], Tree],
        weights: Tensor | None = None,
    ) -> None:
        self._x, self.form, self._weights = x, form, weights
        self.sampled, self.parties, self.present = (
            uploads.sampled,
            uploads.parties,
            uploads.present,
        )

    @property
    def x(self) -> Tensor:
        """`[k, p]`: the rows. Of weights, they are made when somebody asks for them."""
        return self._x if self._weights is None else weighed(self._weights, self._x)

    @property
    def n(self) -> Tensor:
        raise _single("n")

    def mean(self, by_examples: bool = False) -> Tree:
        if self._weights is not None:
            row = weighed(self._weights.mean(dim=0, keepdim=True), self._x)
        else:
            row = self._x if len(self._x) == 1 else self._x.mean(dim=0, keepdim=True)
        return tree_map(itemgetter(0), self.form(row))

    def stack(self) -> Tree:
        raise _single("stack()")


class Weighing(ABC):
    """A rule that finds weights `[k, m]` of uploads: the rows that it makes are sums of them."""

    def __call__(self, uploads: Uploads) -> Uploads:
        x, form = _flat(uploads)
        return Made(uploads, x, form, self.weights(x))

    @abstractmethod
    def weights(self, x: Tensor) -> Tensor:
        """`[m, p] -> [k, m]`."""

    def rows(self, x: Tensor) -> Tensor:
        """`[m, p] -> [k, p]`."""
        return weighed(self.weights(x), x)


def made(uploads: Uploads, rule: Callable[[Tensor], Tensor]) -> Made:
    """Uploads after a function of their rows, `[m, p] -> [m', p]`: all of an upload is one row."""
    x, form = _flat(uploads)
    return Made(uploads, rule(x), form)


def _flat(uploads: Uploads) -> tuple[Tensor, Callable[[Tensor], Tree]]:
    """Uploads as rows `[m, p]`, and how rows become trees again."""
    if isinstance(uploads, Made):
        return uploads.x, uploads.form
    rows = uploads.stack()
    parts = leaves(rows)
    if not parts:
        raise ArchipelError(
            "round.rule: the algorithm's last upload of a round holds no numbers, and the rule "
            "looks at no other: leave the rule out."
        )
    whole = [part.flatten(1) for part in parts]
    for part in whole:
        if not part.is_floating_point():
            raise ArchipelError(
                f"the rule looks at uploads as vectors, and one of their tensors holds {part.dtype}"
                ": leave the rule out, or send numbers with a point."
            )
    x = whole[0] if len(whole) == 1 else torch.cat([part.to(whole[0].dtype) for part in whole], 1)

    def form(out: Tensor) -> Tree:
        cut = out.split([part.shape[1] for part in whole], dim=1)
        back = [
            new.to(part.dtype).view(len(out), *part.shape[1:])
            for new, part in zip(cut, parts, strict=True)
        ]
        return fill(rows, back)

    return x, form


def by_columns(
    x: Tensor, fold: Callable[[Tensor], Tensor], chosen: list[int] | None = None
) -> Tensor:
    """`[m, p] -> [1, p]`: a function of sorted columns, `[b, m] -> [b]`, a block at a time.

    With `chosen`, of those rows alone.
    """
    m, p = x.shape
    out = torch.empty((1, p), dtype=x.dtype)
    size = max(64, _SORTED // m)
    data = x.detach().cpu().numpy()
    for at in range(0, p, size):
        some = data[:, at : at + size]
        block = np.ascontiguousarray((some if chosen is None else some[chosen]).T)
        block.sort(axis=1)  # NaN come last; numpy sorts short rows several times as fast as torch
        out[0, at : at + size] = fold(torch.from_numpy(block))
    return out


def blocks(x: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The columns of `[m, p]`, some at a time."""
    size = max(64, _MULTIPLIED // len(x))
    for at in range(0, x.shape[1], size):
        yield slice(at, at + size), x[:, at : at + size]


def finite(x: Tensor) -> Tensor:
    """`[m]`: which rows hold numbers alone, whose squares can be added up."""
    return torch.isfinite(squares(x))


def squares(x: Tensor, centre: Tensor | None = None) -> Tensor:
    """`[m]`: squared distances of rows from a centre `[p]`, or from 0.

    Blocks are in the numbers' own precision, their sum in float64; a row whose squares are too
    large for that is looked at again.
    """
    total = torch.zeros(len(x), dtype=torch.float64)
    if centre is None:
        for _, block in blocks(x):
            total += _squares(block)
        return total
    apart = torch.empty_like(centre)  # the same memory for every row: it stays in the cache
    for i, row in enumerate(x):
        total[i] = _squares(torch.sub(row, centre, out=apart)[None])[0]
    return total


def _squares(rows: Tensor) -> Tensor:
    square: Tensor = torch.linalg.vector_norm(rows, dim=1).double().square()
    if not bool(torch.isfinite(square.sum())):
        odd = ~torch.isfinite(square)
        again = torch.linalg.vector_norm(rows[odd], dim=1, dtype=torch.float64)
        square[odd] = again.square()
    return square


def distances(x: Tensor) -> Tensor:
    """`[m, m]` squared distances between rows; infinite from and to those that are not finite.

    They are |a|² + |b|² − 2ab, one matrix product. What that loses where rows are close and far
    from 0 is avoided: 0 is moved to the row whose norm is in the middle, which at most half of the
    rows could have chosen.
    """
    m = len(x)
    norms = squares(x)
    norms = torch.where(torch.isfinite(norms), norms, torch.inf)
    zero = x[int(norms.argsort(stable=True)[m // 2])]
    gram = torch.zeros((m, m), dtype=torch.float64)
    for columns, block in blocks(x):
        moved = block - zero[columns]
        gram += (moved @ moved.T).double()
    gram = (gram + gram.T) / 2  # a product of many numbers may be added up in another order
    length = gram.diagonal()
    apart = (length[:, None] + length[None, :] - 2 * gram).clamp(min=0)
    apart = torch.where(torch.isfinite(apart), apart, torch.inf)
    far = ~torch.isfinite(length) | ~torch.isfinite(norms)
    apart[far], apart[:, far] = torch.inf, torch.inf
    return apart.fill_diagonal_(0.0)


def weighed(weights: Tensor, x: Tensor) -> Tensor:
    """`[k, m] @ [m, p]`: rows of weight 0 have no say, whatever they hold."""
    used = torch.nonzero((weights != 0).any(dim=0))[:, 0]
    factors = weights[:, used].to(x.dtype)
    if len(used) == len(x):
        return factors @ x
    out = torch.empty((len(weights), x.shape[1]), dtype=x.dtype)
    for columns, block in blocks(x):
        out[:, columns] = factors @ block[used]
    return out


def at_least(rule: object, what: str, m: int, least: int) -> None:
    """Refuse a rule for fewer uploads than it can tell apart."""
    if m < least:
        raise TooFew(rule, what, least, m)


def liars(rule: object, f: int | float, m: int) -> int:
    """How many of m uploads may lie: a number, or a share of them."""
    if isinstance(f, bool) or not f >= 0 or (isinstance(f, float) and not f < 0.5):
        raise ArchipelError(
            f"round.rule: {type(rule).__name__}.f = {f}: give a number of parties, or a share "
            "below 0.5."
        )
    return f if isinstance(f, int) else int(f * m + 1e-9)


def _single(call: str) -> ArchipelError:
    return ArchipelError(
        f"the algorithm's server calls uploads.{call}, and round.rule has made other rows of the "
        "uploads: leave the rule out, or take an algorithm that needs their mean alone."
    )
