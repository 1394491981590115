# SPDX-License-Identifier: Apache-2.0
"""The experiment on CHOCO: what was measured holds, and is what the page shows."""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "choco"


def test_what_was_measured_holds_and_is_on_the_page() -> None:
    checks = json.loads((FOLDER / "results.json").read_text())["checks"]

    assert len(checks) == 10 and all(holds for _, _, holds in checks)
    assert (FOLDER / "table.md").read_text().rstrip() in (FOLDER / "README.md").read_text()
