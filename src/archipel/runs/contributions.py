# SPDX-License-Identifier: Apache-2.0
"""What each party contributed to rounds in which nobody waits for anybody, and how late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from archipel.runs.participation import Cohort


class Contribution(NamedTuple):
    """What a party has contributed so far."""

    uploads: int  # that counted
    stale: float  # steps of the server that went by meanwhile, on average
    most: int  # the same, at most

    def __str__(self) -> str:
        many = "upload" if self.uploads == 1 else "uploads"
        late = f", {self.stale:.2g} steps late on average, {self.most} at most"
        return f"{self.uploads} {many}" + (late if self.most else "")


def has_own_pace(algorithm: object, cohorts: Sequence[Cohort]) -> bool:
    """Whether nobody waited for anybody in a run: its algorithm says so, or its rounds show it."""
    return bool(getattr(algorithm, "asynchronous", False)) or any(each.stale for each in cohorts)


def contributions(cohorts: Sequence[Cohort], parties: int) -> list[Contribution]:
    """What each of so many parties has contributed in these rounds.

    >>> import numpy as np
    >>> both, one = np.arange(2), np.array([1])
    >>> first = Cohort(both, both, np.ones(2), {})
    >>> later = Cohort(one, one, np.ones(1), {}, stale={1: 3})
    >>> [str(each) for each in contributions([first, later], 2)]
    ['1 upload', '2 uploads, 1.5 steps late on average, 3 at most']
    """
    late: list[list[int]] = [[] for _ in range(parties)]
    for cohort in cohorts:
        for k in cohort.present.tolist() if cohort.counted else ():
            late[k].append(cohort.stale.get(k, 0))
    return [
        Contribution(len(each), sum(each) / max(1, len(each)), max(each, default=0))
        for each in late
    ]
