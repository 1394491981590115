# SPDX-License-Identifier: Apache-2.0
"""The experiment on noise in shares: its smallest part runs, and keeps what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "secure_noise"


@pytest.mark.slow
def test_the_mean_of_a_thousand_numbers(tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "run.py", "--times", "40", "--seeds", "0"]
    subprocess.run(
        [*command, "--out", tmp_path], check=True, capture_output=True, env={**os.environ}
    )

    found = json.loads((tmp_path / "results.json").read_text())
    assert all(holds for _, _, holds in found["checks"]) and len(found["checks"]) == 3
    bits = [error for error in found["by bits"].values() if error is not None]
    assert bits == sorted(bits, reverse=True)
    assert (tmp_path / "plot.png").exists()


def test_what_is_kept_beside_it_holds() -> None:
    found = json.loads((FOLDER / "results.json").read_text())
    assert all(holds for _, _, holds in found["checks"]) and len(found["checks"]) == 4
