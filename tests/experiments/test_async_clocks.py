# SPDX-License-Identifier: Apache-2.0
"""The experiment on training without waiting: its runs are what they say, and its figures hold."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "async"
SPEC = importlib.util.spec_from_file_location("async_experiment", FOLDER / "run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)


def test_what_was_measured_holds_and_is_in_the_table() -> None:
    found = json.loads((FOLDER / "results.json").read_text())["found"]

    assert all(holds for _, _, holds in RUN.checks(found))
    assert (FOLDER / "table.md").read_text().rstrip() == RUN.tables(found).rstrip()
    assert RUN.tables(found) in (FOLDER / "README.md").read_text()


def test_a_run_by_both_clocks() -> None:
    told = RUN.told(RUN.learnt(RUN.BUFFERED, 0, rounds=3))

    assert told["uploads"] == [10, 20, 30] and told["seconds"] == sorted(told["seconds"])
    measured = json.loads((FOLDER / "results.json").read_text())["found"][RUN.BUFFERED][0]
    assert told["seconds"] == measured["seconds"][:3]  # the clock depends on no machine
