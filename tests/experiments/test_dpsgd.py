# SPDX-License-Identifier: Apache-2.0
"""The experiment on DP-SGD: its smallest part runs, and its features cost no privacy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "experiments" / "dpsgd"


@pytest.fixture
def scattering(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import scattering

    yield scattering
    del sys.modules["scattering"]


def test_four_hospitals_keep_their_budget_and_find_something(tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "run.py", "heart", "--seeds", "1", "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ}, timeout=100)

    found = json.loads((tmp_path / "results.json").read_text())
    assert all(holds for _, _, holds in found["checks"])
    by = found["parts"]["heart"]["by epsilon"]
    assert all(0.95 * float(b) < one["spent"] <= float(b) for b, one in by.items() if b != "inf")
    noise = [one["noise"][0] for b, one in by.items() if b != "inf"]
    assert noise == sorted(noise, reverse=True)
    assert 0.8 < by["4"]["scores"][0] <= by["inf"]["scores"][0] + 0.03
    assert (tmp_path / "plot.png").exists() and "ε spent" in (tmp_path / "table.md").read_text()


def test_a_picture_s_features_are_its_own(scattering: ModuleType) -> None:
    """They depend on no other picture, so nothing about others is in them."""
    pictures = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))

    together = scattering.scattered(pictures)
    alone = torch.cat([scattering.scattered(one[None]) for one in pictures])
    assert together.shape == (6, scattering.FEATURES)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_small_shifts_move_features_less_than_pictures(scattering: ModuleType) -> None:
    picture = torch.zeros(1, 1, 28, 28)
    picture[..., 6:22, 12:16] = 1.0
    moved = picture.roll(1, dims=-1)

    def apart(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a - b).norm() / a.norm())

    few = apart(scattering.scattered(picture), scattering.scattered(moved))
    assert few < 0.7 * apart(picture, moved)
