# SPDX-License-Identifier: Apache-2.0
"""The experiment on GOPA: what it measures is what its formulas say, in small."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

FOLDER = Path(__file__).parents[2] / "experiments" / "gopa"
SPEC = importlib.util.spec_from_file_location("gopa_experiment", FOLDER / "run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)


@pytest.mark.parametrize("kind", RUN.KINDS)
def test_measured_errors_are_the_formulas(kind: str) -> None:
    found = RUN.errors(kind, 1.0, np.random.default_rng(0).random(60), 400)
    ratio = (found**2).sum() / RUN.promised(kind, 1.0, 60) ** 2

    assert chi2.ppf(5e-5, 400) < ratio < chi2.isf(5e-5, 400)


def test_with_every_term_drawn_the_error_is_the_same() -> None:
    x = np.random.default_rng(0).random(40)
    made = RUN.plan("GOPA, Gaussian", 1.0, 40)
    ratio = (RUN.published(x, made, 200) ** 2).sum() / made.error**2

    assert chi2.ppf(5e-5, 200) < ratio < chi2.isf(5e-5, 200)
