# SPDX-License-Identifier: Apache-2.0
"""Where data comes from and on what terms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """Provenance of a dataset, shown by `Federation.summary` and kept with saved files."""

    name: str = "unnamed"
    source: str = ""
    licence: str = ""
    citation: str = ""
    note: str = ""
    elsewhere: bool = False  # the points are at the parties, and none is here
    counts: tuple[tuple[int, int] | None, ...] = ()  # elsewhere: training and test points, if told
    gone: bool = False  # of a run that is over: the points were here, and are no more
