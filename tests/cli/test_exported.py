# SPDX-License-Identifier: Apache-2.0
"""The score that a run reports is that of the model it hands over, for every kind of model."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from archipel.study.file import Study

NETS = """
from torch import nn

def normed(shape: list[int], outputs: int):
    return nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU(),
                         nn.Linear(6, outputs))

def grouped(shape: list[int], outputs: int):
    return nn.Sequential(nn.Linear(shape[0], 6), nn.GroupNorm(2, 6), nn.Dropout(0.3), nn.ReLU(),
                         nn.Linear(6, outputs))
"""


def clinic(target):
    random = np.random.default_rng(1)
    n = 90
    age, dose = random.normal(60, 9, n), random.normal(size=n)
    risk = 0.08 * (age - 60) + dose
    table = pd.DataFrame(
        {
            "age": age, "dose": dose, "kind": random.choice(["a", "b", "c"], n),
            "site": np.repeat(["north", "south", "west"], n // 3),
        }
    )  # fmt: skip
    outcomes = {
        "ill": (risk + random.normal(size=n) > 0).astype(int),
        "ward": np.where(risk > 0.8, "icu", np.where(risk > -0.5, "home", "other")),
        "days": 500 + 80 * risk,
        "time": random.exponential(np.exp(-risk)),
        "dead": random.integers(0, 2, n),
    }
    wanted = target if isinstance(target, list) else [target]
    return table.assign(**{name: outcomes[name] for name in wanted})


KINDS = {
    "linear": ("ill", {}, {}),
    "weighted": ("ill", {"class_weights": "balanced"}, {}),
    "classes": ("ward", {"name": "mlp"}, {}),
    "numbers": ("days", {"name": "mlp"}, {"lr": 1e-6}),
    "survival": (["time", "dead"], {}, {}),
    "BatchNorm averaged": ("ill", {"name": "nets.py:normed"}, {}),
    "BatchNorm own": ("ill", {"name": "nets.py:normed", "statistics": "own"}, {}),
    "GroupNorm, dropout": ("ill", {"name": "nets.py:grouped"}, {}),
    "finetuned": ("ill", {"name": "nets.py:normed"}, {"name": "finetuned"}),
    "ditto": ("ill", {"name": "nets.py:normed"}, {"name": "ditto"}),
    "fedbn": ("ill", {"name": "nets.py:normed"}, {"name": "fedbn"}),
    "fedper": ("ill", {"name": "mlp"}, {"name": "fedper"}),
    "peers": ("ill", {"name": "nets.py:normed"}, {"name": "dsgd"}),
    "knnper": ("ill", {"name": "nets.py:normed"}, {"name": "knnper"}),
}
OWN = {"BatchNorm own", "finetuned", "ditto", "fedbn", "fedper", "peers"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_that_is_reported_is_that_of_the_bundle(archipel, kind):
    """By the command line: export --bundle, predict --score, on the rows that were tested on."""
    target, model, algorithm = KINDS[kind]
    table = clinic(target)
    table.to_csv("all.csv", index=False)
    Path("nets.py").write_text(NETS)
    data = {"file": "all.csv", "by": "site", "target": target, "test": 0.4}
    content = {
        "study": {"rounds": 3}, "data": data, "model": model,
        "algorithm": {"name": "fedavg", "lr": 0.05, **algorithm},
    }  # fmt: skip
    if kind == "peers":
        content["topology"] = {"name": "ring"}
    if target == "ill":
        content["study"]["metrics"] = ["auc", "f1", "brier", "ece", "average_precision"]
    run = Study.parse(content, Path.cwd()).run(Path.cwd() / "runs", baselines=False, workers=1)
    party = "south" if kind in OWN else None
    k = run.data.index("south")
    reported = run.metrics
    if party is not None:
        reported = {name: float(values[k]) for name, values in run.parties.items()}

    export = ["export", str(run.folder), "--bundle", "b", *(["--party", party] if party else [])]
    called = archipel(*export)
    assert called.code == 0, called.err
    rows_tested(run, table, party).to_csv("test.csv", index=False)
    predict = ["predict", "b", "test.csv", "--score", "--trust-code", "--json"]
    called = archipel(*predict)
    assert called.code == 0, called.err
    found = called.json["metrics"]

    assert found == pytest.approx(reported, abs=1e-6, rel=1e-6)
    about = json.loads(Path("b/bundle.json").read_text())
    assert about["metrics"] == pytest.approx(reported, abs=1e-6, rel=1e-6)


def test_the_score_of_a_messy_table_is_that_of_the_bundle(archipel):
    """Gaps, words for nothing, dates, flags, codes, decimal commas, western letters, blanks."""
    random, n = np.random.default_rng(3), 120
    age = random.normal(60, 9, n).round(1)
    table = pd.DataFrame(
        {
            "id": [f"p{i}" for i in range(n)],
            "site": random.choice(["Köln", "Bonn", "Bonn "], n),
            "age": [f"{value:.1f}".replace(".", ",") for value in age],
            "stage": random.choice(["Killip I", "Killip II", "Killip IV", ""], n),
            "smoker": random.choice(["True", "False", ""], n),
            "ward": random.choice([101, 102, 103], n),
            "visit": pd.date_range("2016-01-01", periods=n).strftime("%d.%m.%Y"),
            "none": "",
            "set": random.choice(["train", "test"], n),
            "died": np.where(age + random.normal(0, 5, n) > 60, "oui", "non"),
        }
    )  # fmt: skip
    table.loc[[3, 40], "age"] = ["?", "-999"]
    form = {"sep": ";", "index": False, "encoding": "cp1252"}
    table.to_csv("all.csv", **form)
    table[table["set"] == "test"].to_csv("test.csv", **form)
    data = {
        "file": "all.csv", "by": "site", "target": "died", "test": "set", "missing": "mean",
        "drop": ["id", "none"], "empty": ["?", "-999"],
        "columns": {"visit": "date", "ward": "category"},
    }  # fmt: skip
    run = Study.parse({"study": {"rounds": 3}, "data": data}, Path.cwd()).run(
        Path.cwd() / "runs", baselines=False, workers=1
    )

    archipel("export", str(run.folder), "--bundle", "b")
    found = archipel("predict", "b", "test.csv", "--score", "--json").json

    assert len(found["rows"]) == int((table["set"] == "test").sum()) and found["classes"] == [
        "non", "oui",
    ]  # fmt: skip
    assert found["metrics"] == pytest.approx(run.metrics, abs=1e-6, rel=1e-6)
    assert run.metrics["accuracy"] > 0.6


def rows_tested(run, table, party):
    """The rows of the table that are test points of a party, or of all."""
    data, rows = run.data, []
    by_age = {float(np.float32(v)): i for i, v in enumerate(table["age"])}
    mean, scale = data.features.scaling.mean[0], data.features.scaling.scale[0]
    for k in range(data.training):
        if party is not None and data.name(k) != party:
            continue
        ages = data.party(k)[2][:, 0].double() * scale + mean
        known = np.array([*by_age])
        rows += [by_age[known[np.abs(known - float(age)).argmin()]] for age in ages]
    return table.iloc[rows]
