# SPDX-License-Identifier: Apache-2.0
"""The picture of client drift shows what the engine does."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import archipel as ar

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("method", [ar.FedAvg, ar.Scaffold])
def test_local_paths_end_where_the_shared_model_comes_from(
    method: type[ar.FedAvg | ar.Scaffold], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(EXPERIMENTS), str(EXPERIMENTS / "scaffold"), *sys.path])
    with mpl.rc_context():  # the experiments' style stays theirs
        from drift import follow, problem

    fed, best = problem(seed=3)
    algorithm = method(lr=0.1, local_steps=4, batch_size=None)
    path, local = follow(algorithm, fed, best + 1, rounds=4, watch=4)

    for t, paths in enumerate(local):
        ends = torch.stack([steps[-1] for steps in paths])
        assert torch.allclose(ends.mean(dim=0), path[t + 1], atol=1e-10)
        assert all(torch.equal(steps[0], path[t]) for steps in paths)
