# SPDX-License-Identifier: Apache-2.0
"""Run tests with the lowest versions that pyproject.toml allows (`make test-floors`).

The environment `.venv-floors` has each dependency, also of the extras `frames` and `postgres`, at
exactly its floor; what these ask for in turn is the newest that fits, as an installation has it.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-floors"
# what touches a dependency; not pages of documentation, which show the locked versions' output
TESTS = [
    "tests/algorithms/test_identities.py",
    "tests/cli/test_institutions.py",
    "tests/cli/test_listing.py",
    "tests/cli/test_run.py",
    "tests/cli/test_usage.py",
    "tests/data",
    "tests/engines/test_local.py",
    "tests/network/test_audit.py",
    "tests/network/test_federation.py",
    "tests/network/test_grpc.py",
    "tests/network/test_letters.py",
    "tests/report/test_figures.py",
    "tests/report/test_live.py",
    "tests/report/test_notebook.py",
    "tests/store/test_folder.py",
    "tests/store/test_roll.py",
    "tests/test_estimators.py",
    "tests/test_study.py",
]


def floors() -> list[str]:
    """Return each dependency at the lowest version allowed: `numpy>=1.26` as `numpy==1.26`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = project["dependencies"] + extras["frames"] + extras["postgres"]
    asked = [Requirement(text) for text in texts]
    for requirement in asked:
        if [bound.operator for bound in requirement.specifier] != [">="]:
            raise SystemExit(f"pyproject.toml: {requirement} needs one floor, such as >=1.0.")
    return [str(r).replace(">=", "==") for r in asked]


def main() -> int:
    """Make the environment anew and run the tests in it."""
    python = VENV / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.check_call([sys.executable, "-m", "venv", "--clear", str(VENV)])
    subprocess.check_call([*pip, *floors(), "pytest", "hypothesis", "ipython"])
    subprocess.check_call([*pip, "--no-deps", "--editable", str(ROOT)])
    return subprocess.call([str(python), "-m", "pytest", *TESTS], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
