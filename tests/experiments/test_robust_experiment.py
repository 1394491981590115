# SPDX-License-Identifier: Apache-2.0
"""The experiment on parties that lie: a small form runs, and what is kept holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "robust"


@pytest.fixture
def robust(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", [str(FOLDER), str(FOLDER.parent), *sys.path])
    for name in ("run", "limits"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import run

    yield run
    for name in ("run", "limits"):
        sys.modules.pop(name, None)


def test_what_is_kept_holds_and_is_what_the_table_says(robust: ModuleType) -> None:
    found = json.loads((FOLDER / "results.json").read_text())

    assert all(holds for _, _, holds in robust.checks(found))
    told = robust.tables(found)
    assert (FOLDER / "table.md").read_text().strip() == told.strip()
    page = (FOLDER / "README.md").read_text()
    assert all(part in page for part in told.split("\n\n"))


@pytest.mark.slow
def test_rules_keep_what_a_mean_loses(robust: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of two rules and two attacks, and of the sums of groups."""
    limits = robust.limits
    small = {
        (robust, "RULES"): ("mean", robust.MIXED), (robust, "ATTACKS"): ("nobody", "ipm, 10"),
        (limits, "GROUPED"): ("one secure sum", "5 groups, median"),
        (limits, "LIARS"): ("nobody", "sign flip 10, 2"),
    }  # fmt: skip
    for (module, name), some in small.items():
        monkeypatch.setattr(module, name, {key: getattr(module, name)[key] for key in some})
    data = robust.federation("mnist", "iid", robust.PARTIES, 0)

    crossed = robust.crossed(data, 2, workers=1)
    grouped = limits.grouped(2)["iid"]

    assert crossed["mean"]["ipm, 10"] < 0.3 < 0.8 < crossed[robust.MIXED]["ipm, 10"]
    assert grouped["one secure sum"]["sign flip 10, 2"] < 0.3
    assert grouped["5 groups, median"]["sign flip 10, 2"] > 0.8


@pytest.mark.slow
def test_a_memory_and_a_little_are_measured(
    robust: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = robust.limits
    name = "linear, an epoch a round, 4 of 20"
    monkeypatch.setattr(limits, "LITTLE", {name: limits.LITTLE[name]})

    drifted, little = limits.drifted(2), limits.little(1)[name]

    assert drifted["10, from the round before"]["drift"] < drifted["1, from 0"]["drift"]
    assert 0 < little["pull, formula"] < little["pull, 1.5"]
    assert little["alike"] > 0.8
