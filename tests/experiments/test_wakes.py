# SPDX-License-Identifier: Apache-2.0
"""The experiment without rounds: what was measured is in its table, and holds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "wakes"
SPEC = importlib.util.spec_from_file_location("wakes_experiment", FOLDER / "run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)


def test_what_was_measured_holds_and_is_in_the_table() -> None:
    found = json.loads((FOLDER / "results.json").read_text())["found"]
    written = (FOLDER / "table.md").read_text()

    assert written.rstrip() == RUN.tables(found).rstrip()
    assert "| NO" not in written
