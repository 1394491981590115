# SPDX-License-Identifier: Apache-2.0
"""What attacks are run on, and how much of it: made once, for all adversaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archipel.audit.findings import Picture
from archipel.audit.judging import Curve
from archipel.audit.recorder import Recorder
from archipel.audit.subject import Subject
from archipel.audit.worlds import Candidates, World
from archipel.runs.run import Run

Say = Callable[[str], None]
Promised = tuple[float, float] | None  # (ε, δ) of the study, for all rounds


@dataclass(frozen=True)
class Size:
    """How much is done."""

    worlds: int
    seconds: float  # for worlds: no more are begun after
    records: int  # that are asked about
    uploads: int  # that are opened
    trials: int  # uploads with a property, and as many without, for training and for testing each


FULL = Size(worlds=64, seconds=360.0, records=4000, uploads=4, trials=40)
QUICK = Size(worlds=16, seconds=20.0, records=1000, uploads=2, trials=12)
LEAST = 4  # worlds, however long they take


@dataclass
class Work:
    """A study at work: its first round, its worlds, and what came of attacks so far."""

    subject: Subject
    size: Size
    quick: bool
    folder: Path | None
    say: Say
    first: tuple[Run, Recorder]
    about: Candidates
    worlds: list[World] = field(default_factory=list)
    results: dict[Any, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    by_round: dict[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
