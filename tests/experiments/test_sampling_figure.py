# SPDX-License-Identifier: Apache-2.0
"""The experiment on peer sampling runs, and its page shows what it printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "sampling"


def test_the_page_has_the_tables_that_were_printed() -> None:
    tables = (FOLDER / "table.md").read_text().split("\n\n")[1:]

    assert len(tables) == 2
    assert all(each.strip() in (FOLDER / "README.md").read_text() for each in tables)


def test_it_runs(tmp_path: Path) -> None:
    few = ["--peers", "60", "--seeds", "1", "--out", str(tmp_path)]
    subprocess.run([sys.executable, FOLDER / "run.py", *few], check=True, capture_output=True)

    assert (tmp_path / "plot.png").exists() and "healer, ring" in (
        tmp_path / "table.md"
    ).read_text()
