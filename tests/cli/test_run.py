"""`archipel run`: what it records and prints, flags over files, and how it ends."""

import os
from contextlib import suppress
from threading import Thread

import pytest
import torch

from archipel.algorithms import ALGORITHMS
from archipel.errors import RunFailed
from archipel.exchange.boxes import is_peer
from archipel.runs.listing import list_runs, open_run

QUICK = ["--rounds", "2", "--workers", "1", "--no-baselines"]
HEART = ["run", "fedavg", "--data", "heart_disease", *QUICK]

STUDY = """
[study]
name = "mine"
rounds = 3
seed = 5

[data]
name = "heart_disease"

[algorithm]
name = "fedprox"
lr = 0.05
optimiser = {name = "sgd", momentum = 0.5}
"""

KEYS = {  # of the design
    "run", "algorithm", "data", "model", "engine", "seed", "rounds", "parties", "metrics",
    "personal", "baselines", "participation", "bytes", "seconds", "privacy", "history",
}  # fmt: skip


def test_json_has_what_the_design_says(archipel):
    done = archipel("run", "fedavg", "--data", "heart_disease", "--rounds", "2", "--json")
    told = done.json

    assert done.code == 0 and done.err == ""
    assert {*told} >= KEYS
    assert told["rounds"] == 2 and told["parties"] == 4 and told["seed"] == 0
    assert {"accuracy", "loss"} <= {*told["metrics"]}
    assert told["personal"] is None and told["privacy"] is None
    assert {*told["baselines"]} == {"local", "central"}
    assert {*told["baselines"]["local"]} >= {"metrics", "seen_parties"}
    assert {*told["bytes"]} == {"up", "down"} and told["bytes"]["up"] > 0
    assert {*told["seconds"]} == {"total", "per_round"}
    assert [entry["round"] for entry in told["history"]] == [1, 2]
    assert told["participation"][0]["arrived"] == 4


def test_peers_have_personal_models(archipel):
    done = archipel("run", "dsgd", "--data", "heart_disease", "--set", "topology.name=ring",
                    *QUICK, "--json")  # fmt: skip

    assert done.json["personal"]["seen"]["accuracy"] > 0
    assert done.json["personal"]["unseen"] is None


def test_what_is_printed_and_recorded(archipel, tmp_path):
    done = archipel(*HEART)

    assert done.code == 0 and done.err == ""
    assert "archipel report fedavg-heart_disease-001" in done.out
    folder = tmp_path / "runs" / "fedavg-heart_disease-001"
    assert {path.name for path in folder.iterdir()} >= {
        "journal.db", "model.safetensors", "study.toml",
    }  # fmt: skip
    assert open_run(folder).done == 2
    archipel(*HEART, "--name", "second")
    assert list_runs("runs")[0].name == "second-001"


def test_flags_and_set_override_the_file(archipel, tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY)
    plain = archipel("run", "mine.toml", "--no-baselines", "--workers", "1", "--json").json
    changed = archipel(
        "run", "mine.toml", "--rounds", "1", "--seed", "6", "--sample", "2", "--model", "mlp",
        "--set", "algorithm.lr=0.25", "--set", "algorithm.optimiser.momentum=0.9",
        "--set", "simulate.away.hungarian=1", "--set", "model.widths=[3, 4]",
        "--no-baselines", "--workers", "1", "--json",
    ).json  # fmt: skip

    assert plain["run"] == "mine-001" and plain["seed"] == 5 and plain["rounds"] == 3
    assert "lr=0.05" in plain["algorithm"] and "momentum=0.5" in plain["algorithm"]
    assert changed["run"] == "mine-002" and changed["seed"] == 6 and changed["rounds"] == 1
    assert "lr=0.25" in changed["algorithm"] and "momentum=0.9" in changed["algorithm"]
    assert changed["participation"][0]["sampled"] == 2
    module = open_run("mine-002").task_model.module
    assert [layer.out_features for layer in module if isinstance(layer, torch.nn.Linear)][:2] == [
        3, 4,
    ]  # fmt: skip


def test_the_file_that_is_kept_runs_the_same_again(archipel, tmp_path):
    (tmp_path / "mine.toml").write_text(STUDY)
    first = archipel("run", "mine.toml", "--no-baselines", "--workers", "1", "--json").json
    again = archipel("run", "runs/mine-001/study.toml", "--no-baselines", "--workers", "1",
                     "--json").json  # fmt: skip

    assert again["metrics"] == first["metrics"] and again["resolved_hash"] == first["resolved_hash"]


def test_resume_flag_finds_the_same_study(archipel):
    first = archipel(*HEART, "--json").json
    same = archipel(*HEART, "--resume", "--json").json
    other = archipel(*HEART, "--seed", "1", "--resume", "--json").json

    assert same["run"] == first["run"] and same["history"] == first["history"]
    assert other["run"] == "fedavg-heart_disease-002"


def test_paths_are_relative_to_the_study(archipel, tmp_path, patients):
    folder = tmp_path / "studies"
    folder.mkdir()
    patients.rename(folder / "patients.csv")
    (folder / "mine.toml").write_text(
        '[data]\nfile = "patients.csv"\nby = "hospital"\ntarget = "died"\ntest = 0.3\n'
    )
    done = archipel("run", "studies/mine.toml", *QUICK, "--json")

    assert done.code == 0 and done.json["parties"] == 3 and done.json["data"] == "patients"
    assert archipel("report", "--json").code == 0  # from a folder that is not the study's


def test_names_that_are_markup(archipel, patients):
    arguments = [
        "run", "fedavg", "--data", patients, "--set", "data.by=hospital", "--set",
        "data.target=died", "--set", "data.test=0.3", "--set", 'simulate.away."south [/]"="1"',
        "--name", "[bold]odd[/]", "--rounds", "2",
    ]  # fmt: skip
    done = archipel(*arguments)

    assert done.code == 0
    told = archipel("resume", "--json").json
    assert told["participation"][0]["missing"] == {"south [/]": "away"}
    assert archipel("runs").code == 0
    for verb in ("report", "export"):
        assert archipel(verb, "last").code == 0
    page = open("runs/bold-odd-001/report.html", encoding="utf-8").read()  # noqa: PTH123, SIM115
    assert "[red]north[/red]" in page and "south [/]" in page


# -- how it ends -----------------------------------------------------------------------------------


def test_below_quorum_is_three(archipel):
    done = archipel(
        *HEART, "--set", "round.quorum=4", "--set", "round.on_missing=abort",
        "--set", "simulate.away.hungarian=2", "--json",
    )  # fmt: skip

    assert done.code == 3 and done.out == ""
    assert "round 2: 3 of 4 parties answer (away), below the quorum of 4" in done.sentence
    (listed,) = list_runs("runs")
    assert listed.state == "failed" and listed.done <= 1


def test_a_run_that_diverges_is_one(archipel):
    done = archipel(*HEART, "--set", "algorithm.lr=1e38", "--json")

    assert done.out == "" and "lower lr" in done.sentence
    assert done.code == RunFailed.exit_code
    assert [each.state for each in list_runs("runs")] == ["failed"]


def test_a_new_party_and_no_test_points(archipel):
    done = archipel(*HEART, "--set", "data.new=1", "--json")
    assert done.json["history"][-1]["new_parties"]["parties"] == 1

    done = archipel(*HEART, "--set", "data.test=0.0", "--json")
    assert done.code in (0, 2)
    assert done.code == 0 or "test" in done.sentence


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_by_name(archipel, algorithm):
    made = ALGORITHMS[algorithm]()
    joined = is_peer(made) and not getattr(made, "learns_graph", False)
    more = ["--set", "topology.name=ring"] if joined else []
    more += ["--model", "mlp"] if algorithm in ("fedper", "fedrep") else []  # a body and a head
    done = archipel("run", algorithm, "--data", "heart_disease", *QUICK, *more, "--json")

    assert done.code == 0 and done.json["rounds"] == 2


def test_in_a_terminal_the_picture_goes_to_standard_error(process, tmp_path, patients):
    ours, theirs = os.openpty()
    drawn = []

    def read():
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 4096):
                drawn.append(part)

    reader = Thread(target=read)
    reader.start()
    done = process(
        "run", "fedavg", "--data", patients, "--set", "data.by=hospital", "--set",
        "data.target=died", "--set", "data.test=0.3", "--set", "simulate.dropouts=0.3",
        "--rounds", "30", "--no-baselines", "--json",
        stderr=theirs, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    reader.join()

    assert done.code == 0 and done.json["rounds"] == 30
    assert b"30" in b"".join(drawn) and b"Traceback" not in b"".join(drawn)


def test_values_of_set_are_toml(archipel):
    done = archipel(
        *HEART, "--set", 'algorithm.optimiser={name = "adam", beta1 = 0.8}',
        "--set", "algorithm.lr=1e-2", "--set", "study.purpose=a text = with signs", "--json",
    )  # fmt: skip

    assert "Adam(beta1=0.8" in done.json["algorithm"] and "lr=0.01" in done.json["algorithm"]
    assert open_run("last").study.purpose == "a text = with signs"


def test_a_folder_is_no_study(archipel, tmp_path):
    (tmp_path / "mine.toml").write_text("")

    assert archipel("run", ".").sentence.endswith(
        "'.': is no study file; name one (mine.toml), or an algorithm."
    )


def test_a_run_that_diverged_says_so_in_the_terminal_and_is_remembered(archipel):
    flags = [
        "--data",
        "heart_disease",
        "--rounds",
        6,
        "--no-baselines",
        "--set",
        "algorithm.lr=1e9",
    ]
    done = archipel("run", "fedavg", *flags, "--json")

    assert done.code == 0 and "Warning: the loss" in done.err
    (said,) = done.json["warnings"]
    assert "the training diverged; lower algorithm.lr" in said
    assert said in open_run(done.json["folder"]).notes
