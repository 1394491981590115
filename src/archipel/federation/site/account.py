# SPDX-License-Identifier: Apache-2.0
"""What was released of a table, as an account of each of its records: by adding or removing one.

What is promised of a party with all its records, by replacing it, holds for each of them: Gaussian
noise z there is at distance 2 / z, as z / 2 is here; integers that move by 2 R there do so here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from archipel.errors import ArchipelError
from archipel.privacy.release import (
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    Neighbours,
    Release,
    Shuffled,
    Skellam,
    written,
)


class Planned(NamedTuple):
    """What a study that was approved has not spent yet."""

    study: str  # its name, or the beginning of its hash
    releases: tuple[Release, ...]


class Account(NamedTuple):
    """What was spent of one table, besides one study and by it, and what others still plan."""

    others: tuple[Release, ...] = ()
    own: tuple[Release, ...] = ()
    unbounded: tuple[str, ...] = ()  # studies that promised nothing
    planned: tuple[Planned, ...] = ()  # by others that were approved before

    @property
    def without_own(self) -> Account:
        """The same without what the study itself spent: it is in what was planned for it."""
        return self._replace(own=())

    @property
    def to_come(self) -> tuple[Release, ...]:
        """All that others still plan."""
        return tuple(release for each in self.planned for release in each.releases)

    def epsilon(self, delta: float, more: Sequence[Release] = ()) -> float:
        """ε for each record of what was spent, with more releases."""
        return inf if self.unbounded else epsilon_of([*self.others, *self.own, *more], delta)


NOTHING = Account()


def epsilon_of(releases: Sequence[Release], delta: float) -> float:
    """ε of releases as a record's account has them."""
    from archipel.privacy.accounting import epsilon

    return epsilon(releases, delta) if releases else 0.0


def for_records(releases: Iterable[Release], neighbours: Neighbours) -> tuple[Release, ...]:
    """Releases as one record's account has them, that is by adding or removing it.

    >>> for_records([Release(Gaussian(2.0))], "replace")
    (Release(mechanism=Gaussian(noise=1.0), sampling=None, times=1),)
    """
    if neighbours == "add_or_remove":
        return tuple(releases)
    return tuple(Release(_twice(each), None, each.times) for each in releases)


def _twice(release: Release) -> Mechanism:
    """Noise that nobody's absence helps, on twice the contribution: the same in both counts."""
    if release.rate == 1 and isinstance(release.mechanism, Gaussian | Laplace):
        return replace(release.mechanism, noise=release.mechanism.noise / 2)
    if release.rate == 1 and isinstance(release.mechanism, Shuffled):
        return replace(release.mechanism, stays=True)  # a record less is another report
    if release.rate < 1 or not isinstance(release.mechanism, DiscreteGaussian | Skellam):
        raise ArchipelError(
            f"release = {written(release)!r}: is not counted for records; it was changed, or "
            "written by another version."
        )
    return replace(release.mechanism, contribution=2 * release.mechanism.contribution)
