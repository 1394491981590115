"""The demo tells what four hospitals gained, writes its report, and survives its own death."""

from pathlib import Path

import numpy as np

from archipel.demo import study
from archipel.runs.listing import open_run


def test_the_hospitals_gain(archipel, tmp_path):
    done = archipel("demo", "--splits", "3", "--plot", "gain.png", "--json")
    told = done.json
    alone, together, pooled = (np.mean(told[name]) for name in ("alone", "together", "pooled"))

    assert done.code == 0 and done.err == ""
    assert together >= alone + 0.03
    assert together >= pooled - 0.02
    assert told["names"] == ["cleveland", "hungarian", "switzerland", "va"]
    assert np.shape(told["alone"]) == (3, 4) and np.shape(told["together"]) == (3,)
    assert (tmp_path / "gain.png").read_bytes().startswith(b"\x89PNG")
    missing = [set(each["missing"]) for each in told["run"]["participation"]]
    assert [t for t, who in enumerate(missing, 1) if who] == [*range(11, 21)]
    assert set.union(*missing) == {"hungarian"}
    assert Path(told["report"]).is_file() and told["identical_after_kill"] is None


def test_what_is_printed(archipel):
    done = archipel("demo", "--splits", "1")

    assert done.code == 0
    assert "cleveland" in done.out and "no record left its hospital" in done.out
    assert "hungarian was away for 10 rounds and came back" in done.out
    assert "report.html" in done.out and "archipel demo --kill" in done.out
    run = open_run("last")
    assert run.state == "done" and run.study.hash == study().hash
    assert archipel("runs", "--json").json["runs"][0]["name"] == "demo-001"


def test_killed_and_resumed(archipel):
    done = archipel("demo", "--kill", "--splits", "1", "--json")

    assert done.code == 0 and done.json["identical_after_kill"] is True
    assert "Killed with signal 9" in done.err and "bit for bit" in done.err
    kinds = [event.kind for event in open_run("demo-001").events]
    assert kinds.count("resumed") == 1 and kinds[-1] == "done"
