# SPDX-License-Identifier: Apache-2.0
"""Ways to deal one dataset out to parties, named by short strings.

iid              shuffled, equal sizes
shards:n         sorted by label, cut in parties * n shards, n to each party (McMahan et al. 2017)
dirichlet:a      each class shared out by a Dirichlet(a) draw over parties (Hsu et al. 2019);
                 `dirichlet:a:m` guarantees m points to each party (one, if not said)
quantity:a       sizes from a Dirichlet(a) draw, labels iid; `quantity:a:m` as above
similarity:s     s % of the points shuffled to all, the rest sorted by label (SCAFFOLD, 2020)
by:column        one party per value of a table's column (`Federation.from_frame` only)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from archipel.data.rows import Ints
from archipel.errors import ArchipelError, unknown

Labels = npt.NDArray[Any]  # [N], classes or numbers

# name -> the numbers it takes: how many are needed, how many are allowed, what the first one means
_NUMBERS = {
    "iid": (0, 0, ""),
    "shards": (1, 1, "shards per party, as in 'shards:2'"),
    "dirichlet": (1, 2, "the concentration, as in 'dirichlet:0.5'"),
    "quantity": (1, 2, "the concentration, as in 'quantity:1'"),
    "similarity": (1, 1, "the percentage of shared points, as in 'similarity:10'"),
}


def parse_spec(spec: str) -> tuple[str, tuple[float, ...]]:
    """Return the partitioner's name and its numbers.

    >>> parse_spec("dirichlet:0.5")
    ('dirichlet', (0.5,))
    """
    name, *rest = spec.split(":")
    if name == "by":
        raise ArchipelError(
            f"partition '{spec}' goes by a table's column, and this data is not a table; "
            "use Federation.from_frame, or a partition such as 'iid' or 'dirichlet:0.5'."
        )
    if name not in _NUMBERS:
        raise unknown("partition", name, [*_NUMBERS, "by"])
    least, most, meaning = _NUMBERS[name]
    if not least <= len(rest) <= most:
        needs = f"needs {meaning}" if least else "takes no number; write 'iid'"
        raise ArchipelError(f"partition '{spec}' {needs}.")
    try:
        numbers = tuple(float(text) for text in rest)
    except ValueError:
        raise ArchipelError(
            f"partition '{spec}': '{':'.join(rest)}' is not a number; give {meaning}."
        ) from None
    _check_numbers(spec, name, numbers)
    return name, numbers


def _check_numbers(spec: str, name: str, numbers: tuple[float, ...]) -> None:
    if name == "shards" and (numbers[0] < 1 or numbers[0] % 1):
        raise ArchipelError(f"partition '{spec}': shards per party must be 1, 2, 3, ...")
    if name in ("dirichlet", "quantity"):
        if not 0 < numbers[0] < np.inf:
            raise ArchipelError(f"partition '{spec}': the concentration must be above 0.")
        if len(numbers) > 1 and (numbers[1] < 0 or numbers[1] % 1):
            raise ArchipelError(f"partition '{spec}': the least size must be 0, 1, 2, ...")
    if name == "similarity" and not 0 <= numbers[0] <= 100:
        raise ArchipelError(f"partition '{spec}': the percentage must be between 0 and 100.")


def assign(labels: Labels, spec: str, parties: int, seed: int = 0) -> Ints:
    """Return the party, 0..parties-1, of each of the N labelled points.

    >>> assign(np.array([0, 1, 0, 1]), "shards:1", parties=2, seed=0).tolist()
    [0, 1, 0, 1]
    """
    name, numbers = parse_spec(spec)
    points = len(labels)
    if parties < 1:
        raise ArchipelError(f"parties={parties}: a federation needs at least one party.")
    if parties > points:
        raise ArchipelError(
            f"parties={parties}: {points} points do not reach for that many parties; "
            f"ask for at most {points}."
        )
    rng = np.random.default_rng([seed, 1])
    if name == "iid":
        return iid(labels, parties, rng)
    if name == "shards":
        return shards(labels, parties, rng, int(numbers[0]))
    if name == "similarity":
        return similarity(labels, parties, rng, numbers[0])
    least = int(numbers[1]) if len(numbers) > 1 else 1
    if least * parties > points:
        raise ArchipelError(
            f"partition '{spec}': {points} points cannot give {parties} parties {least} each; "
            f"ask for at most {points // least} parties or a smaller least size."
        )
    deal = dirichlet if name == "dirichlet" else quantity
    return deal(labels, parties, rng, numbers[0], least)


def _even(points: int, parties: int) -> Ints:
    """Return the party of each point in a row, sizes equal to within one."""
    sizes = np.full(parties, points // parties, np.int64)
    sizes[: points % parties] += 1
    return np.repeat(np.arange(parties, dtype=np.int64), sizes)


def iid(labels: Labels, parties: int, rng: np.random.Generator) -> Ints:
    """Shuffle, then cut in equal parts."""
    return rng.permutation(_even(len(labels), parties))


def shards(labels: Labels, parties: int, rng: np.random.Generator, per_party: int) -> Ints:
    """Sort by label, cut in parties * per_party shards, deal them without replacement."""
    total = parties * per_party
    if total > len(labels):
        raise ArchipelError(
            f"partition 'shards:{per_party}': {len(labels)} points do not make {total} shards; "
            + _fewer(len(labels), parties, per_party)
        )
    owner = rng.permutation(_even(total, parties))  # of each shard
    party = np.empty(len(labels), np.int64)
    party[np.argsort(labels, kind="stable")] = owner[_even(len(labels), total)]
    return party


def _fewer(points: int, parties: int, per_party: int) -> str:
    """What to ask for instead of too many shards."""
    ways = [f"shards:{points // parties}"] if points >= parties else []
    ways += [f"at most {points // per_party} parties"] if points >= per_party else []
    return f"ask for {' or '.join(ways)}."


def similarity(labels: Labels, parties: int, rng: np.random.Generator, percent: float) -> Ints:
    """Shuffle `percent` % of the points to all parties; deal the rest sorted by label."""
    points = len(labels)
    shared = round(percent / 100 * points)
    mixed = rng.permutation(points)[:shared]
    rest = np.setdiff1d(np.arange(points), mixed)
    party = np.empty(points, np.int64)
    party[mixed] = _even(shared, parties)
    sizes = np.bincount(_even(points, parties)) - np.bincount(party[mixed], minlength=parties)
    by_label = rest[np.argsort(labels[rest], kind="stable")]
    party[by_label] = np.repeat(np.arange(parties, dtype=np.int64), sizes)
    return party


def dirichlet(
    labels: Labels, parties: int, rng: np.random.Generator, alpha: float, least: int = 1
) -> Ints:
    """Share each class out in proportions drawn from Dirichlet(alpha, ..., alpha) over parties."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise ArchipelError(
            "partition 'dirichlet' shares out classes, and these targets are not classes; "
            "use 'iid', 'quantity:a', 'shards:n' or 'similarity:s'."
        )
    party = np.empty(len(labels), np.int64)
    order = np.lexsort((rng.random(len(labels)), labels))
    start = 0
    for size in np.unique(labels, return_counts=True)[1]:  # over classes
        party[order[start : start + size]] = _cut(rng.dirichlet(np.full(parties, alpha)), size)
        start += size
    return _top_up(party, parties, rng, least)


def quantity(
    labels: Labels, parties: int, rng: np.random.Generator, alpha: float, least: int = 1
) -> Ints:
    """Draw the parties' shares from Dirichlet(alpha, ..., alpha); deal the points at random."""
    shares = rng.dirichlet(np.full(parties, alpha))
    party = rng.permutation(_cut(shares, len(labels)))
    return _top_up(party, parties, rng, least)


def _cut(shares: npt.NDArray[np.float64], points: int) -> Ints:
    """Return the party of each point in a row that is cut in proportion to `shares`."""
    ends = np.cumsum(shares)[:-1]
    return np.searchsorted(ends, (np.arange(points) + 0.5) / points).astype(np.int64)


def _top_up(party: Ints, parties: int, rng: np.random.Generator, least: int) -> Ints:
    """Move random points from parties that can spare them to those with fewer than `least`."""
    sizes = np.bincount(party, minlength=parties)
    missing = np.maximum(least - sizes, 0)
    if not missing.any():
        return party
    order = np.lexsort((rng.random(len(party)), party))
    rank = np.arange(len(party)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    spare = order[rank >= least]
    moved = rng.choice(spare, missing.sum(), replace=False)
    party = party.copy()
    party[moved] = np.repeat(np.arange(parties), missing)
    return party


def deal_test(labels: Ints, party: Ints, test_labels: Ints, parties: int, seed: int = 0) -> Ints:
    """Return the party of each test point, so that every party's test mix is its training mix.

    A party gets the points of a class in proportion to its share of the training points of that
    class (largest remainders); of a class nobody trains on, in proportion to its size.
    """
    rng = np.random.default_rng([seed, 2])
    out = np.empty(len(test_labels), np.int64)
    order = np.lexsort((rng.random(len(test_labels)), test_labels))
    by_label = np.argsort(labels, kind="stable")
    sorted_labels = labels[by_label]
    classes, sizes = np.unique(test_labels, return_counts=True)
    start = 0
    for label, size in zip(classes, sizes, strict=True):
        low, high = np.searchsorted(sorted_labels, [label, label + 1])
        owners = party[by_label[low:high]] if high > low else party
        quota = np.bincount(owners, minlength=parties) * (size / len(owners))
        counts = _largest_remainders(quota, int(size), rng)
        out[order[start : start + size]] = np.repeat(np.arange(parties), counts)
        start += size
    return out


def _largest_remainders(
    quota: npt.NDArray[np.float64], total: int, rng: np.random.Generator
) -> Ints:
    """Round `quota` to whole numbers that sum to `total`, ties at random."""
    counts = np.floor(quota + 1e-9).astype(np.int64)
    left = np.lexsort((rng.random(len(quota)), np.round(counts - quota, 9)))[: total - counts.sum()]
    counts[left] += 1
    return counts
