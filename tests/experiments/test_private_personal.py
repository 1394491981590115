# SPDX-License-Identifier: Apache-2.0
"""The experiment on private models of parties' own: what was measured is in its table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[2] / "experiments" / "private_personal"
SPEC = importlib.util.spec_from_file_location("private_personal_experiment", FOLDER / "run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)


def test_what_was_measured_holds_and_is_in_the_table() -> None:
    found = json.loads((FOLDER / "results.json").read_text())["found"]
    written = (FOLDER / "table.md").read_text()

    assert written.rstrip() == RUN.tables(found).rstrip()
    assert "| NO" not in written


def test_a_small_one_learns_together_what_nobody_can_alone() -> None:
    data, graph = RUN.problem(30, 1)
    together = RUN.ar.Coordinate(mu=0.3, smoothness=2.0, l2=1.0)
    private = RUN.accuracy(data, graph, together, 8, 1, RUN.promised(10.0))
    alone = RUN.ar.Coordinate(smoothness=2.0, l2=1.0, warm_rounds=100)
    by_itself = RUN.accuracy(data, graph, alone, 8, 1, RUN.promised(10.0, spent="rest"))

    assert np.mean(private) > np.mean(by_itself) + 0.02
