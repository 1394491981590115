# SPDX-License-Identifier: Apache-2.0
"""Memory and processor time of a process and its descendants, from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Memory:
    """Megabytes of a process tree; PSS shares common pages out, RSS counts them in each process."""

    rss: float = 0.0
    pss: float = 0.0
    pss_file: float = 0.0  # of which mapped files: data, libraries; the kernel may take it back


def tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for task in PROC.glob(f"{pid}/task/*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from tree(int(child))


def memory(pid: int) -> Memory:
    """Return the memory of a process tree now."""
    total = dict.fromkeys(("Rss", "Pss", "Pss_File"), 0)
    for member in tree(pid):
        try:
            lines = (PROC / str(member) / "smaps_rollup").read_text().splitlines()[1:]
        except OSError:
            continue  # it ended meanwhile
        for line in lines:
            key, _, value = line.partition(":")
            if key in total:
                total[key] += int(value.split()[0])
    return Memory(total["Rss"] / 1024, total["Pss"] / 1024, total["Pss_File"] / 1024)


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process tree, ended and waited-for children included."""
    ticks = 0
    for member in tree(pid):
        try:
            fields = (PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(v) for v in fields[11:15])
    return ticks / TICK


def machine_cpu_seconds() -> float:
    """Return the busy time of all cores since the machine started, stolen time included."""
    fields = [int(v) for v in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def describe() -> dict[str, str | int | float]:
    """Return the machine: processor, cores, memory, kernel."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in (PROC / "cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 1,
        "memory_gb": round(pages / 2**30, 1),
        "kernel": os.uname().release,
    }
