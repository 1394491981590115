"""Killed with SIGKILL at random moments, and at every step of a checkpoint: nothing is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("algorithm", "kills"),
    [
        ("scaffold-on-disk", 6),
        *(
            pytest.param(name, 20, marks=pytest.mark.slow)
            for name in ("scaffold-on-disk", "scaffold", "dsgd", "fedbuff")
        ),
    ],
)
def test_a_killed_run_ends_as_if_nothing_had_happened(algorithm, kills, tmp_path):
    script = Path(__file__).with_name("crash.py")
    done = subprocess.run(
        [sys.executable, str(script), algorithm, str(tmp_path), "0", str(kills)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert found["whole"]["rounds"] == 25
    for each in found["killed"]:
        assert each == found["whole"]
    assert found["leftovers"] == []
    assert len(found["progress"]) > kills / 4 and max(found["progress"]) > 0
