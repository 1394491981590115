# SPDX-License-Identifier: Apache-2.0
"""Three real tables, through the study file with defaults alone: the numbers one expects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TABLES = Path(__file__).parents[2] / "experiments" / "tables"


@pytest.mark.parametrize("name", ["gums", "watch", pytest.param("weather", marks=pytest.mark.slow)])
def test_a_real_table_gives_what_it_should(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TABLES), *sys.path])
    monkeypatch.delitem(sys.modules, "run", raising=False)
    from run import FEDERATED, POOLED, measure

    found = measure(name)

    assert found.behind <= FEDERATED
    assert found.apart <= POOLED
    assert found.warnings == []
