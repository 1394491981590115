"""`archipel plan`: what it prints and keeps, and how it ends."""

import pytest

WEIGHTS = 4 * (2 * 2 + 2)  # bytes of two features and two classes
HEART = ["fedavg", "--data", "heart_disease", "--rounds", "5", "--workers", "1", "--no-baselines"]

SITES = """
[study]
name = "between"
rounds = 10

[data]
target = "died"

[data.schema]
age = "number"
sex = ["f", "m"]
died = ["no", "yes"]

[algorithm]
name = "{algorithm}"
{more}
"""


def test_a_study_is_forecast_then_run_then_checked(archipel, tmp_path):
    told = archipel("plan", *HEART, "--seconds", "0", "--json").json
    assert told["rounds"] == 5 and told["figures"]["bytes.up"]["exact"]
    for figure in told["figures"].values():
        assert figure["low"] <= figure["value"] <= figure["high"] and figure["basis"]

    run = archipel("run", *HEART)
    assert "Forecast: " in run.out
    shown = archipel("plan", "last")
    found = archipel("plan", "fedavg-heart_disease-001", "--json").json
    assert "as forecast" in shown.out and shown.err == ""
    assert found["figures"]["bytes.up"]["holds"]
    assert found["figures"]["bytes.up"]["actual"] == told["figures"]["bytes.up"]["value"]

    page = archipel("report", "last", "--json").json
    assert page["forecast"]["figures"] == found["figures"]
    assert (
        "before it ran, beside what happened"
        in (tmp_path / "runs/fedavg-heart_disease-001/report.html").read_text()
    )
    assert [each["name"] for each in archipel("runs", "--json").json["runs"]] == [
        "fedavg-heart_disease-001"
    ]


def test_the_table_is_for_people(archipel):
    done = archipel("plan", *HEART, "--seconds", "0", "--nodes", "2", "--cores", "8",
                    "--memory", "1MB", "--bandwidth", "10Gbit")  # fmt: skip

    assert done.code == 0
    for words in ("time, all of it", "memory, at most", "exact", "On 2 nodes of 8 cores",
                  "Assumed: a core of the cluster is as quick"):  # fmt: skip
        assert words in done.out
    assert "Warning: memory: " in done.err and "on every node" in done.err


@pytest.mark.parametrize(
    "flags",
    [
        ["--set", "algorithm.lr=1e38"],
        ["--set", "round.quorum=9"],
        ["--workers", "0"],
        ["--set", "simulate.away.mars=1-2"],
        ["--set", "simulate.dropouts=1.0", "--set", "round.on_missing=abort"],
    ],
)
def test_what_a_run_refuses_is_refused_in_the_same_words(archipel, flags):
    study = ["fedavg", "--data", "heart_disease", "--no-baselines", "--rounds", "3", *flags]
    ran, planned = archipel("run", *study), archipel("plan", *study)

    assert planned.code == ran.code > 0
    assert planned.sentence == ran.sentence


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--nodes", "2"], "add --cores"),
        (["--memory", "64GB"], "add --nodes"),
        (["--nodes", "2", "--cores", "2", "--memory", "much"], 'memory = "much"'),
        (["--cluster", "none.toml"], "cannot be read"),
        (["--cluster", "few.toml"], "cores is missing"),
        (["--cluster", "odd.toml"], "gpus"),
        (["--cluster", "text.toml"], "write nodes = 4"),
        (["--cluster", "few.toml", "--nodes", "2"], "leave one out"),
    ],
)
def test_clusters_that_are_none(archipel, tmp_path, flags, words):
    (tmp_path / "few.toml").write_text("nodes = 3\n")
    (tmp_path / "odd.toml").write_text("nodes = 3\ncores = 2\ngpus = 1\n")
    (tmp_path / "text.toml").write_text('nodes = "3"\ncores = 2\n')
    done = archipel("plan", *HEART, *flags)

    assert done.code == 2 and words in done.sentence


def test_a_run_of_which_nothing_was_forecast(archipel):
    archipel("run", *HEART)
    done = archipel("plan", "last")

    assert done.code == 2 and "nothing was forecast of its study" in done.sentence
    assert "no run" in archipel("plan", "last", "--out", "elsewhere").sentence


@pytest.mark.parametrize(
    ("algorithm", "more", "each"),
    [
        ("fedavg", "", WEIGHTS),
        ("scaffold", "", 2 * WEIGHTS),
        ("dsgd", '[topology]\nname = "ring"', 2 * WEIGHTS),
    ],
)
def test_of_sites_bytes_and_rounds_are_told(archipel, tmp_path, algorithm, more, each):
    (tmp_path / "sites.toml").write_text(SITES.format(algorithm=algorithm, more=more))
    told = archipel("plan", "sites.toml", "--sites", "3", "--json").json

    figures = told["figures"]
    assert figures["bytes.up"] | {"basis": ""} == {
        "value": 10 * 3 * each, "low": 10 * 3 * each, "high": 10 * 3 * each, "unit": "B",
        "basis": "", "exact": True,
    }  # fmt: skip
    assert figures["bytes.up.site"]["value"] == 10 * each
    assert "time.total" not in figures and told["kept"] is None
    assert not (tmp_path / "runs").exists()
    assert "are not told" in archipel("plan", "sites.toml", "--set", "study.rounds=3").out


def test_a_graph_by_the_sites_names_is_forecast_by_numbers(archipel, tmp_path):
    more = '[topology]\nname = "edges:Ulm-Bonn,Bonn-Cologne"'
    (tmp_path / "sites.toml").write_text(SITES.format(algorithm="dsgd", more=more))
    numbers = ("--set", "topology.name=edges:0-1,1-2*0.5")

    assert (
        "does not know the sites' names; give it numbers"
        in archipel("plan", "sites.toml", "--sites", "3").sentence
    )
    told = archipel("plan", "sites.toml", "--sites", "3", *numbers, "--json").json
    assert told["figures"]["bytes.up"]["value"] == 10 * 4 * WEIGHTS
