"""A forecast: rounds ahead are those of the run, figures hold them, and what is wrong is said."""

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms.fedbuff import FedBuff
from archipel.errors import ArchipelError
from archipel.forecast import measuring
from archipel.forecast import warnings as warned
from archipel.forecast.ahead import Ahead, look_ahead
from archipel.forecast.cluster import Cluster, amount, on_cluster
from archipel.forecast.figure import Figure, exactly, law, noise_of
from archipel.forecast.figures import laws
from archipel.forecast.kept import FOLDER, keep, kept
from archipel.forecast.making import make
from archipel.runs import processes
from archipel.runs.beginning import Beginning
from archipel.runs.simulation import build
from archipel.study.file import Study
from archipel.wire import TopK
from problems import classification, network


class Quiet:
    """Somebody who looks on and says nothing."""

    def __call__(self, run):
        return None

    def say(self, text):
        pass


# -- rounds ahead ----------------------------------------------------------------------------------

FEDAVG = ar.FedAvg(lr=0.05, local_epochs=2, batch_size=3)
SAMPLED = {"sample": 0.5}
CASES = {
    "everybody": (FEDAVG, {}),
    "dropouts": (FEDAVG, {**SAMPLED, "dropouts": 0.3}),
    "stragglers": (ar.FedProx(lr=0.05), {"stragglers": 0.4}),
    "over-selection": (FEDAVG, {**SAMPLED, "over_select": 0.6, "stragglers": 0.2}),
    "quorum": (FEDAVG, {**SAMPLED, "dropouts": 0.4, "quorum": 3}),
    "waiting": (FEDAVG, {**SAMPLED, "dropouts": 0.4, "quorum": 3, "on_missing": "wait"}),
    "away": (ar.Scaffold(lr=0.05), {"away": {"1": "2-4"}, "availability": "day:4"}),
    "separation": (FEDAVG, {"sample": 2, "separation": 3}),
    "deadline": (FEDAVG, {"speed": 8.0, "speed_spread": 1.0, "deadline": 2.0}),
    "phones": (FEDAVG, {"sample": 3, "over_select": 0.5, "devices": "phones"}),
    "asynchronous": (
        FedBuff(lr=0.05, buffer=2),
        {"sample": 4, "devices": "phones", "dropouts": 0.2},
    ),
    "messages": (ar.PeFLL(lr=0.05), {**SAMPLED, "lost": 0.3}),
    "personal": (ar.Ditto(lr=0.05), SAMPLED),
    "peers": (ar.DSGD(lr=0.05), {"topology": "ring", "dropouts": 0.3}),
    "copies": (
        ar.Choco(lr=0.05),
        {"topology": "ring", "dropouts": 0.3, "wire": ar.Wire(up=(TopK(0.2),))},
    ),
    "alone": (ar.Alone(lr=0.05), {}),
}


def seen_ahead(algorithm, data, model, options, seconds=60.0):
    engine, _ = build(algorithm, data, model, options)
    begun = Beginning(algorithm, data, model, options)
    return look_ahead(begun, engine.anatomy, algorithm, data, options, 1, seconds=seconds)


@pytest.mark.parametrize("name", CASES)
def test_rounds_ahead_are_those_of_the_run(name):
    algorithm, options = CASES[name]
    data, model = classification(8, 3, 3, seed=1), network(3, 3)
    options = {"rounds": 7, "seed": 3, "plan": ar.Plan("one", 4, 1), **options}
    ahead = seen_ahead(algorithm, data, model, options)

    run = ar.simulate(algorithm, data, model, **options)

    cohorts = run.participation
    assert ahead.drawn == 7 and ahead.ends == ""
    assert ahead.counted.tolist() == [cohort.counted for cohort in cohorts]
    assert ahead.waited.tolist() == [cohort.waited for cohort in cohorts]
    assert ahead.present.tolist() == [len(cohort.present) for cohort in cohorts]
    asked = np.bincount(np.concatenate([c.sampled for c in cohorts]), minlength=data.parties)
    assert ahead.asked.tolist() == asked.tolist()
    trained = {int(k) for cohort in cohorts if cohort.counted for k in cohort.present}
    assert ahead.touched == len(trained)
    assert ahead.timing == cohorts[-1].timing
    if name == "peers":  # exchanges, of a vector each
        assert run.spent.up == ahead.up.sum() * model.w.nbytes > 0
    else:
        assert (ahead.up.sum(), ahead.down.sum()) == (run.spent.up, run.spent.down)


def test_a_round_that_aborts_is_seen_ahead():
    data, model = classification(6, 3, 2, seed=0), network(3, 2)
    options = {"rounds": 20, "quorum": 5, "dropouts": 0.3, "on_missing": "abort",
               "plan": ar.Plan("one", 4, 1)}  # fmt: skip
    ahead = seen_ahead(FEDAVG, data, model, options)

    with pytest.raises(ArchipelError) as error:
        ar.simulate(FEDAVG, data, model, **options)
    assert ahead.ends == str(error.value) and 0 < ahead.drawn < 20


def test_rounds_beyond_those_drawn_are_like_them():
    data, model = classification(9, 3, 2, seed=0), network(3, 2)
    options = {"rounds": 50, "sample": 3, "plan": ar.Plan("one", 4, 1)}
    ahead = seen_ahead(FEDAVG, data, model, options, seconds=0.0)

    assert ahead.drawn == 1 and ahead.scale == 50
    assert 3 < ahead.touched <= 9


# -- times -----------------------------------------------------------------------------------------


@given(st.floats(0, 10), st.floats(0.01, 10), st.lists(st.floats(1, 100), min_size=4, max_size=30))
def test_a_law_that_holds_is_found(constant, slope, work):
    ahead = np.array([50.0, 60.0, 70.0])
    seconds = [constant + slope * x for x in work]
    found = law(seconds, work, ahead)
    value, low, high = found.over(ahead)
    expected = 3 * constant + slope * ahead.sum()

    assert low <= value <= high
    assert low <= expected * (1 + 1e-6) and expected * (1 - 1e-6) <= high
    if np.std(work) > 0.1 * np.mean(work):
        assert value == pytest.approx(expected, rel=1e-3)


def test_work_that_is_all_alike_leaves_both_laws_open():
    found = law([2.0] * 6, [10.0] * 6, np.array([20.0]))

    assert not found.known
    assert found.over(np.array([20.0]))[1] <= 2.0 and found.over(np.array([20.0]))[2] >= 4.0


def test_times_that_jump_are_less_sure():
    assert noise_of([1.0]) > noise_of([1.0, 1.0, 1.0])
    assert noise_of([1, 1, 1, 1, 3, 3, 3, 3]) > noise_of([1, 3, 1, 3, 1, 3, 1, 3]) >= 0.1


# -- a whole forecast ------------------------------------------------------------------------------

STUDY = {
    "study": {"name": "small", "rounds": 9, "evaluate_every": 4},
    "data": {"name": "heart_disease"},
    "algorithm": {"name": "scaffold", "lr": 0.03},
    "simulate": {"dropouts": 0.2},
}


def forecast_of(study, folder, **how):
    options = {**study.options(), "workers": 1}
    how = {"seconds": 0.0, "baselines": False, **how}
    return make(study, study.parts(), options, Quiet(), out=folder, **how)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study, where it is forecast, and that."""
    folder, study = tmp_path_factory.mktemp("runs"), Study.parse(STUDY)
    return study, folder, forecast_of(study, folder, baselines=True)


def test_a_forecast_is_checked_by_the_run(made):
    study, folder, forecast = made
    keep(forecast, folder)
    run = study.run(folder, baselines=False, workers=1)
    lines = {line.name: line for line in run.forecast.lines}

    assert forecast.measured["rounds"] == 4 and not forecast.measured["whole"]
    for name in ("bytes.up", "bytes.down", "gradients", "rounds.counted", "parties.touched"):
        assert lines[name].figure.exact and lines[name].holds, name
    assert {"time.loop", "memory.peak", "disk.total"} <= {*lines}
    assert run.memory is None or lines["memory.peak"].actual == run.memory
    assert run.forecast.notes == ()
    told = run.to_json()["forecast"]
    assert told["figures"]["bytes.up"]["actual"] == run.spent.up


def test_every_part_of_the_time_is_apart(made):
    _, _, forecast = made
    figures = forecast.figures
    parts = ("start", "baselines", "rounds", "evaluations", "checkpoints", "end")

    total = sum(figures[f"time.{part}"].value for part in parts)
    assert figures["time.total"].value == pytest.approx(total)
    assert all(f.low <= f.value <= f.high for f in figures.values())
    assert "times 3" in figures["time.evaluations"].basis  # after 4, 8 and the last


def test_what_is_told_is_strict_json_and_read_back(made, tmp_path):
    _, _, forecast = made
    path = keep(forecast, tmp_path)

    assert path.parent.name == FOLDER
    json.loads(path.read_text(), parse_constant=pytest.fail)
    assert kept(tmp_path, forecast.hash) == replace(
        forecast, machine=dict(forecast.machine), how=dict(forecast.how)
    )


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1}', '{"version": 99}', "\0"])
def test_a_damaged_forecast_is_none(made, tmp_path, content):
    _, _, forecast = made
    keep(forecast, tmp_path).write_text(content)

    assert kept(tmp_path, forecast.hash) is None
    assert kept(tmp_path, "../../etc/passwd") is None


def test_nothing_is_left_behind_and_nothing_written_among_the_runs(tmp_path, monkeypatch):
    place, out = tmp_path / "temporary", tmp_path / "runs"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    forecast_of(Study.parse(STUDY), out)

    assert [*place.iterdir()] == [] and not out.exists()


def test_a_study_shorter_than_what_is_measured_is_measured_whole(tmp_path):
    study = Study.parse({**STUDY, "study": {"rounds": 2}})
    forecast = forecast_of(study, tmp_path)

    assert forecast.measured["whole"] and forecast.measured["rounds"] == 2
    assert forecast.figures["rounds.counted"].value == 2


def test_of_rounds_that_take_long_few_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "LONG", 0.0)
    study = Study.parse({**STUDY, "study": {"rounds": 9}})

    assert forecast_of(study, tmp_path).measured["rounds"] == measuring.FEW


class Stops(Quiet):
    """Somebody who stops the first round, as Ctrl-C does."""

    def __call__(self, run):
        return run.done >= 1


def test_who_stops_it_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    study = Study.parse(STUDY)
    before = processes.held() and {*processes._descendants(os.getpid())}
    with pytest.raises(KeyboardInterrupt):
        make(study, study.parts(), {**study.options(), "workers": 2}, Stops(), seconds=0.0)

    assert [*tmp_path.iterdir()] == []
    assert before is None or {*processes._descendants(os.getpid())} <= before


def test_a_promise_is_counted_to_the_end(tmp_path):
    tables = {"study": {"rounds": 6}, "data": STUDY["data"], "algorithm": {"name": "fedavg"},
              "privacy": {"unit": "party", "noise": 3.0, "clip": 1.0}}  # fmt: skip
    study = Study.parse(tables)
    forecast = forecast_of(study, tmp_path, budget=0.1)
    run = study.run(None, baselines=False, workers=1)

    spent = run.scorecard.privacy.promise.epsilon
    assert forecast.figures["privacy.epsilon"].value == pytest.approx(spent)
    (said,) = [text for text in forecast.warnings if text.startswith("privacy")]
    assert "epsilon = 0.1 lasts for about 0 of the 6 rounds" in said
    assert not any("privacy" in t for t in forecast_of(study, tmp_path, budget=1e6).warnings)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.skipif(processes.held() is None, reason="this system does not tell")
def test_memory_of_workers_is_counted():
    before = processes.held()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        block = bytearray(os.urandom(1 << 20)) * 64
        os.write(writing, b"x" if block else b"")
        os.read(os.pipe()[0], 1)
        os._exit(0)
    os.read(reading, 1)
    found = processes.held()
    os.kill(child, 9)
    os.waitpid(child, 0)

    assert found.workers - before.workers > 60 << 20
    assert processes.memory_here() > 0


# -- clusters --------------------------------------------------------------------------------------


def test_more_cores_take_no_longer(made):
    _, _, forecast = made
    assert forecast.on_cluster == {}
    data, model = classification(40, 3, 2, seed=0), network(3, 2)
    options = {"rounds": 10, "plan": ar.Plan("one", 1, 1)}
    ahead = seen_ahead(FEDAVG, data, model, options)
    run = ar.simulate(FEDAVG, data, model, **options)
    laps = SimpleNamespace(rounds=[0.5] * 10, held=processes.Held(10**8, 0))
    measured = SimpleNamespace(run=run, laps=laps, workers=1)
    times = laws(measured, ahead)

    few, many = (
        on_cluster(Cluster(nodes, 4), measured, ahead, times, forecast.figures) for nodes in (1, 8)
    )
    slow = on_cluster(Cluster(8, 4, bandwidth=1e3), measured, ahead, times, forecast.figures)

    assert many["time.rounds"].value < few["time.rounds"].value < 5.0
    assert slow["time.rounds"].value > many["time.rounds"].value
    assert many["memory.node"].value == few["memory.node"].value


@pytest.mark.parametrize(
    ("text", "value"), [("64GB", 64e9), ("1.5 TiB", 1.5 * 2**40), ("500 MB", 5e8)]
)
def test_amounts(text, value):
    assert amount("memory", text, "B", "64GB") == value


@pytest.mark.parametrize("text", ["64", "GB", "0GB", "-1GB", "64GBit", "many"])
def test_amounts_without_sense(text):
    with pytest.raises(ArchipelError, match="give a number with its unit"):
        amount("memory", text, "B", "64GB")


# -- warnings --------------------------------------------------------------------------------------

FIGURES = {
    "time.total": exactly(10.0, "s", ""),
    "memory.peak": Figure(2e9, 1e9, 3e9, "B", ""),
    "disk.total": exactly(1e6, "B", ""),
    "privacy.epsilon": exactly(1.0, "epsilon", ""),
}


def rounds_of(counted=1, waited=0, present=3, slow=0, ends=""):
    row = np.ones(10)
    numbers = (np.full(10, each) for each in (counted, waited, present, slow, 3))
    asked = np.zeros(4, np.int64)
    return Ahead(10, *[row] * 6, *numbers, asked, 4, 0.0, frozenset(), ends)


def said(figures=None, ahead=None, options=None, **how):
    found = {**FIGURES, **(figures or {})}
    return warned.warnings(found, ahead or rounds_of(), options or {}, Path("nowhere"), **how)


def test_what_fits_is_not_warned_of(monkeypatch):
    monkeypatch.setattr(processes, "memory_here", lambda: 10**10)
    assert said() == ()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"figures": {"time.total": Figure(9e4, 8e4, 1e5, "s", "")}}, "more than a day"),
        ({"figures": {"disk.total": exactly(1e18, "B", "")}}, "is free in"),
        ({"ahead": rounds_of(present=0, slow=3, counted=0), "options": {"deadline": 2.0}},
         "round.deadline = 2.0: in 10 of 10 rounds nobody meets it"),
        ({"ahead": rounds_of(counted=0), "options": {"quorum": 3}},
         "round.quorum = 3: 10 of 10 rounds will be below it and change nothing"),
        ({"ahead": rounds_of(waited=2), "options": {"quorum": 3, "on_missing": "wait"}},
         "below it and wait"),
        ({"ahead": rounds_of(ends="round 3: nobody.")}, "the run will stop: round 3: nobody."),
        ({"cluster": Cluster(2, 2, memory=1e9),
          "on_cluster": {"time.total": exactly(1.0, "s", ""),
                         "memory.node": Figure(1e9, 9e8, 2e9, "B", "")}}, "on every node"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(how, sentence, monkeypatch):
    monkeypatch.setattr(processes, "memory_here", lambda: 10**10)
    (found,) = said(**how)

    assert sentence in found and found.endswith(".") and "\n" not in found


def test_memory_that_is_not_there(monkeypatch):
    monkeypatch.setattr(processes, "memory_here", lambda: int(2.5e9))
    (found,) = said()

    assert found.startswith("memory: 1 GB to 3 GB will be needed, and there is 2.5 GB; ")
