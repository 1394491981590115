# SPDX-License-Identifier: Apache-2.0
"""Memory of this process and its workers, as Linux tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Held(NamedTuple):
    """Bytes of memory, at most so far; pages that processes share are shared out among them."""

    driver: int  # this process
    workers: int  # those that it started, and theirs

    @property
    def total(self) -> int:
        return self.driver + self.workers


def held() -> Held | None:
    """What this process and its workers took at most; None where the system does not tell."""
    me = os.getpid()
    driver = _peak(me)
    if driver is None:
        return None
    return Held(driver, sum(_peak(pid) or 0 for pid in _descendants(me)))


def _peak(pid: int) -> int | None:
    """What a process has now, and by how much it once had more: that was its own."""
    now = _fields(_PROC / str(pid) / "smaps_rollup", "Pss", "Rss")
    most = _fields(_PROC / str(pid) / "status", "VmHWM")
    if now is None or most is None:  # it ended meanwhile, or this is no Linux
        return None
    return now["Pss"] + max(0, most["VmHWM"] - now["Rss"])


def _fields(path: Path, *names: str) -> dict[str, int] | None:
    """Some of a file's lines `name: 12 kB`, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name in names:
            found[name] = 1024 * int(value.split()[0])
    return found if len(found) == len(names) else None


def _descendants(pid: int) -> Iterator[int]:
    for task in _PROC.glob(f"{pid}/task/*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from _descendants(child)


def age() -> float | None:
    """Seconds since this process began; None where the system does not tell."""
    try:
        begun = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()[19]
        up = (_PROC / "uptime").read_text().split()[0]
    except OSError:
        return None
    return float(up) - int(begun) / os.sysconf("SC_CLK_TCK")


def memory_here() -> int:
    """Bytes of memory that this process may have: the machine's, or what its group is granted."""
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        granted = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return here
    return min(here, int(granted)) if granted.isdigit() else here
