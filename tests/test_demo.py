"""The demo tells what four hospitals gained, and bad input gives one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from archipel.cli.demo import measure


def test_the_hospitals_gain():
    gain = measure(splits=3, quiet=True)
    alone, together, pooled = (float(v.mean()) for v in (gain.alone, gain.together, gain.pooled))

    assert together >= alone + 0.03
    assert together >= pooled - 0.02


def archipel(*arguments):
    command = [str(Path(sys.executable).parent / "archipel"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_demo_prints_a_table():
    done = archipel("demo", "--splits", "1")

    assert done.returncode == 0, done.stderr
    assert "cleveland" in done.stdout and "no record left its hospital" in done.stdout


def test_demo_as_json():
    done = archipel("demo", "--splits", "1", "--json")

    assert len(json.loads(done.stdout)["names"]) == 4


@pytest.mark.parametrize("arguments", [["demo", "--splits", "0"], ["demo", "--splitz"], ["demoo"]])
def test_wrong_usage_is_two(arguments):
    done = archipel(*arguments)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
