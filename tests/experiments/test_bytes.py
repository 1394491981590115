# SPDX-License-Identifier: Apache-2.0
"""The gate of the experiment on bytes: rotation passes it, and without rotation it fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "bytes"


@pytest.fixture
def rotation(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.delitem(sys.modules, "rotation", raising=False)
    import rotation

    yield rotation
    del sys.modules["rotation"]


def test_rotation_divides_the_error_of_two_bits(rotation: ModuleType) -> None:
    rows = rotation.errors(sizes=(2048, 1500), vectors=4)

    checks = rotation.checks(rows)
    assert len(checks) == 2
    assert all(holds for _, _, holds in checks)


def test_the_gate_fails_without_rotation(rotation: ModuleType) -> None:
    rows = rotation.errors(sizes=(2048,), vectors=4, before=())

    assert not any(holds for _, _, holds in rotation.checks(rows))


def test_more_bits_err_less(rotation: ModuleType) -> None:
    rows = rotation.errors(sizes=(1024,), vectors=4)

    errors = [np.median(row["rotated"]) for row in rows]
    assert errors == sorted(errors, reverse=True)
