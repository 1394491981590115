# SPDX-License-Identifier: Apache-2.0
"""Names of metrics, which of them are better when larger, and what they are taken over.

What computes them is in `archipel.metrics`; a report needs their names alone, and no torch.
"""

from __future__ import annotations

PRIMARY = {
    "classification": "accuracy",
    "regression": "rmse",
    "survival": "c_index",
    "text": "accuracy",
}

_CLASSES = (  # of two classes or more; the last two of two
    "accuracy", "auc", "average_precision", "balanced_accuracy", "brier", "ece", "f1", "f1_macro",
    "calibration_intercept", "calibration_slope",
)  # fmt: skip

METRICS = (*_CLASSES, "rmse", "mae", "r2", "c_index", "loss")

SHARES = (  # metrics between 0 and 1
    "accuracy", "auc", "average_precision", "balanced_accuracy", "c_index", "ece", "f1", "f1_macro",
)  # fmt: skip

MEANS = ("accuracy", "brier", "loss", "mae")  # of all points: the mean of parties', by points

ALL_POINTS = "all test points at once"
WEIGHTED = "sites, weighted by test points"  # a mean of their metrics: nobody has all points
ALIKE = "sites, each the same"
SITES = "sites"  # a mean of which the weights are not on record

_SMALLER = ("rmse", "mae", "loss", "brier", "ece")  # is better


def larger_is_better(metric: str) -> bool:
    """Return whether a larger value of this metric is a better one, as of all own metrics."""
    return metric not in _SMALLER
