# SPDX-License-Identifier: Apache-2.0
"""The experiment on peers that lie: it runs, and what was measured is what the page shows."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "experiments" / "robust_peers"


def experiment() -> Any:
    spec = importlib.util.spec_from_file_location("robust_peers", FOLDER / "run.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["robust_peers"] = found
    spec.loader.exec_module(found)
    return found


def test_it_runs_small() -> None:
    made = experiment()
    made.RULES = {name: made.RULES[name] for name in (made.PLAIN, made.CLIPPED, made.TRIMMED)}
    made.ATTACKS = {name: made.ATTACKS[name] for name in (made.NONE, "dissensus")}
    found = made.measure(6, {"alike": "iid"}, {"all joined": "complete"}, workers=1)
    cells = found["alike, all joined"]

    assert made.lost(cells, made.PLAIN, "dissensus") > 20
    assert made.lost(cells, made.CLIPPED, "dissensus") < 15
    assert made.lost(cells, made.TRIMMED, "dissensus") < 10


def test_what_was_measured_holds_and_is_on_the_page() -> None:
    made = experiment()
    cells = json.loads((FOLDER / "results.json").read_text())["cells"]

    assert len(cells) == 4 and all(holds for _, _, holds in made.checks(cells))
    table = made.tables(cells)
    assert table.rstrip() == (FOLDER / "table.md").read_text().rstrip()
    assert table.rstrip() in (FOLDER / "README.md").read_text()
