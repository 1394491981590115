"""`archipel export --bundle` and `archipel predict`: a model, applied anywhere."""

import csv
import io
import json
import os
import subprocess
import sys

import pytest

RUN = ["run", "fedavg", "--data", "patients.csv", "--rounds", "2", "--workers", "1",
       "--no-baselines", "--set", "data.by=hospital", "--set", "data.target=died"]  # fmt: skip
NEW = "died,patient,pressure,age\n1,=1+1,3,50\n0,007,-8,41\n"


@pytest.fixture
def bundle(archipel, patients, tmp_path):
    archipel(*RUN)
    archipel("export", "--bundle", "model")
    (tmp_path / "new.csv").write_text(NEW)
    return archipel


def test_a_table_gets_a_line_for_each_row(bundle, tmp_path):
    done = bundle("predict", "model", "new.csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))

    assert [row["row"] for row in rows] == ["2", "3"]
    assert list(rows[0]) == ["row", "predicted", "p(0)", "p(1)"]
    assert all(abs(float(row["p(0)"]) + float(row["p(1)"]) - 1) < 1e-9 for row in rows)
    assert done.err == "not used: patient\n"


def test_a_column_is_carried_along_and_no_formula(bundle, tmp_path):
    done = bundle("predict", "model", "new.csv", "--id", "patient", "--score", "--out", "found.csv")
    rows = list(csv.DictReader((tmp_path / "found.csv").open()))

    assert [row["patient"] for row in rows] == ["'=1+1", "007"]
    assert done.out == "" and done.err.startswith("on 2 rows: accuracy ")
    assert "--id name: 'new.csv' has no such column" in (
        bundle("predict", "model", "new.csv", "--id", "name").sentence
    )


def test_a_clean_environment_predicts_what_the_run_predicted(bundle, tmp_path):
    """E2: an empty folder with the bundle and a table; no study, no run, no training data."""
    here = bundle("predict", "model", "new.csv", "--json", "--score").json
    clean = tmp_path / "elsewhere"
    clean.mkdir()
    for name in ("model", "new.csv"):
        (tmp_path / name).rename(clean / name)
    for name in ("runs", "patients.csv"):
        (tmp_path / name).rename(tmp_path / f"gone-{name}")
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "archipel", "predict", "model", "new.csv", "--json", "--score"],
        cwd=clean, env={**kept, "HOME": str(clean)}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert json.loads(done.stdout) == here
    assert here["target"] == ["died"] and here["metrics"].keys() == {"accuracy", "auc", "loss"}


def test_the_run_s_test_rows_score_as_reported(archipel, patients, tmp_path):
    from archipel.runs.listing import open_run

    archipel(*RUN)
    run = open_run("last")
    told = archipel("export", "--bundle", "model", "--json").json
    data = run.data
    x = data.features.scaling
    rows = ["age,pressure,died"]
    for k in range(data.parties):
        _, _, points, y = data.party(k)
        raw = (points.double() * x.scale + x.mean).round().int().tolist()
        rows += [
            f"{age},{pressure},{died}"
            for (age, pressure), died in zip(raw, y.tolist(), strict=True)
        ]
    (tmp_path / "test.csv").write_text("\n".join(rows))
    scored = archipel("predict", "model", "test.csv", "--score", "--json").json["metrics"]

    assert told["metrics"] == pytest.approx(run.metrics, abs=1e-6)
    assert scored == pytest.approx(run.metrics, abs=1e-6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("age,died\n50,1\n", "no column 'pressure'"),
        ("age,pressure\n50,high\n", "column 'pressure', row 2: 'high' is no number"),
        ("age,pressure\n50,\n", "column 'pressure' is empty in row 2; fill it in"),
    ],
)
def test_a_wrong_table_is_one_sentence(bundle, tmp_path, content, said):
    (tmp_path / "wrong.csv").write_text(content)

    assert said in bundle("predict", "model", "wrong.csv").sentence


def test_a_table_that_may_be_read_in_two_ways_is_read_as_said(bundle, tmp_path):
    """What the sentence says to type is there to be typed."""
    (tmp_path / "how.csv").write_bytes("patient;pressure;age\nJosé;3,125;50\n".encode("cp1252"))
    (tmp_path / "same.csv").write_text("patient,pressure,age\nJosé,3.125,50\n")

    refused = bundle("predict", "model", "how.csv").sentence
    said = ["--sep", ";", "--decimal", ",", "--encoding", "latin-1"]
    found, same = (
        bundle("predict", "model", *args, "--id", "patient").out
        for args in (["how.csv", *said], ["same.csv"])
    )

    assert "may be 3.125 or thousands; say which in data.decimal (--decimal)" in refused
    assert found == same and "José" in found


def test_what_export_cannot_do_is_one_sentence(bundle):
    assert "--bundle model: is there already" in bundle("export", "--bundle", "model").sentence
    assert "--party east: FedAvg has one model" in (
        bundle("export", "--bundle", "b", "--party", "east").sentence
    )
    assert "say --bundle FOLDER" in bundle("export", "--party", "east").sentence
    assert "no such folder" in bundle("predict", "nowhere", "new.csv").sentence
    assert "no such file" in bundle("predict", "model", "nothing.csv").sentence


SCHEMA = """
[study]
name = "clinics"
purpose = "Who is ill?"
rounds = 2
[data]
file = "all.csv"
by = "clinic"
target = "ill"
missing = "mean"
[data.schema]
age = "number"
pain = ["none", "some", "much"]
ill = ["no", "yes"]
[round]
quorum = 2
"""


def test_a_rehearsed_study_gives_the_bundle_of_the_simulated_one(archipel, tmp_path):
    """E2: the coordinator has no data; study and scale say how a table becomes features."""
    pains, rows = ["none", "some", "much", ""], ["clinic,age,pain,ill"]
    rows += [
        f"{'ab'[i % 2]},{30 + i * 7 % 41},{pains[i % 4]},{['no', 'yes'][i * 7 % 41 > 20]}"
        for i in range(80)
    ]
    (tmp_path / "all.csv").write_text("\n".join(rows))
    (tmp_path / "clinics.toml").write_text(SCHEMA)
    archipel("rehearse", "clinics.toml", "--sites", 2, "--out", "out")
    archipel("run", "clinics.toml", "--workers", 1, "--no-baselines")
    (run,) = (tmp_path / "out" / "clinics-001" / "coordinator" / "runs").iterdir()
    told = archipel("export", run, "--bundle", "theirs", "--json").json
    archipel("export", "last", "--bundle", "ours")
    theirs, ours = (
        archipel("predict", name, "all.csv", "--score", "--json").json
        for name in ("theirs", "ours")
    )

    assert told["model"] == "the model that 2 sites share"
    assert theirs["classes"] == ["no", "yes"] and "Who is ill?" in (
        (tmp_path / "theirs" / "card.md").read_text()
    )
    for one, other in zip(theirs["rows"], ours["rows"], strict=True):
        assert one["predicted"] == other["predicted"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-6)
    assert theirs["metrics"] == pytest.approx(ours["metrics"], abs=1e-6)
