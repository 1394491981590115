# SPDX-License-Identifier: Apache-2.0
"""The experiment on network DP: small, it runs and its ring is the theorem's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "experiments" / "network_dp"


def test_a_small_walk_and_the_ring(tmp_path: Path) -> None:
    small = ["--parties", "100", "--steps", "300", "--seeds", "1", "--repetitions", "3000"]
    command = [sys.executable, FOLDER / "run.py", *small, "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ}, timeout=200)

    found = json.loads((tmp_path / "results.json").read_text())
    assert all(holds for _, _, holds in found["checks"][:4])
    by = found["walk"]
    for epsilon in by["network DP"]:
        assert by["network DP"][epsilon]["sigma"] < by["local DP"][epsilon]["sigma"]
    assert (tmp_path / "plot.png").exists()


def test_the_figures_kept_are_those_of_the_readme() -> None:
    kept, told = (FOLDER / "table.md").read_text(), (FOLDER / "README.md").read_text()

    assert all(line in told for line in kept.splitlines())
    found = json.loads((FOLDER / "results.json").read_text())
    assert all(holds for _, _, holds in found["checks"])
