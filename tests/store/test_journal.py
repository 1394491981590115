"""The journal of a run tells what happened, whoever joined or left on the way."""

import json
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa
import torch

import archipel as ar
from archipel import recording
from archipel.engines.evaluation import Evaluation
from archipel.participation import Cohort
from archipel.parts import build_model
from archipel.recording import Recorder
from archipel.report.export import contents
from archipel.run import Spent
from archipel.simulation import Loop, _entry
from archipel.store.folder import Folder
from archipel.store.journal import ROSTER, ROUNDS, RUNS

HEART = ar.load("heart_disease")  # cleveland, hungarian, switzerland, va


def loop_of(data):
    options = {"rounds": 6, "metric": "auc", "workers": 1}
    model = build_model(None, data, None, 0)
    return Loop(ar.FedAvg(lr=0.05), data, model, {}, options)


def begin(path, data):
    """A run that has done nothing yet, and what writes it down."""
    loop = loop_of(data)
    (run,) = loop.runs
    row = {"description": {"objects": {}}, "hash": "0"}
    folder = recording.create(path, run, row, {})
    return run, Recorder(folder, run, loop.engine.state, 0.0)


def cohort(sampled, missing=None, **more):
    sampled, missing = np.array(sampled, np.int64), missing or {}
    present = sampled[~np.isin(sampled, list(missing))]
    return Cohort(sampled, present, np.ones(len(present)), missing, **more)


def do(run, recorder, cohort, scores=None):
    """A round that was done elsewhere, with an evaluation or without."""
    run.participation.append(cohort)
    spent = Spent(10, 100, 1000)
    run.spent = Spent(*map(sum, zip(run.spent, spent, strict=True)))
    recorder.round(spent)
    if scores is not None:
        run.parties = {"auc": torch.tensor(scores, dtype=torch.float64)}
        run.making = {"seconds": run.parties["auc"].clone()}
        entry = _entry(run.done, run, Evaluation(run.parties, {"auc": 0.7}, {}), None)
        cost = {"bytes": {"up": run.spent.up, "down": run.spent.down}, "gradients": 10}
        counts = {"sampled": len(cohort.sampled), "missing": len(cohort.missing)}
        run.history.append({**entry, **cost, **counts, "seconds": 1.0})
        recorder.evaluated()
        recorder.save_in_time()


def without(data, party):
    """The same federation where a party has no points any more."""
    test_from = data.test_from.clone()
    test_from[party] = data.offsets[party]
    return replace(data, test_from=test_from, scan=False)


def read(path, data):
    run = loop_of(data).runs[0]
    recording.restore(Folder.open(path), run)
    return run


def told(run):
    return [
        (c.sampled.tolist(), c.present.tolist(), c.missing, c.counted, c.waited, dict(c.blocked))
        for c in run.participation
    ]


def test_parties_join_and_leave(tmp_path):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]))
    do(run, recorder, cohort([0, 1]), [0.6, 0.7])
    run.data = HEART.select([0, 1, 2])
    recorder.joined()
    do(run, recorder, cohort([0, 1, 2], {1: "away"}))
    run.data = without(HEART, 1)
    recorder.joined()
    do(run, recorder, cohort([0, 2, 3], {0: "silent"}, waited=1, blocked={2: "away"}))
    do(run, recorder, cohort([0, 2, 3]), [0.6, np.nan, 0.8, 0.9])

    again = read(tmp_path / "a", without(HEART, 1))
    assert told(again) == told(run) and told(read(tmp_path / "a", HEART)) == told(run)
    assert again.spent == run.spent and again.history == run.history
    torch.testing.assert_close(again.parties, run.parties, equal_nan=True)
    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        rows = connection.execute(sa.select(ROSTER).order_by(ROSTER.c.party)).all()
    assert [(row.party, row.name) for row in rows] == list(enumerate(HEART.names))
    assert [row.training_points for row in rows] == HEART.n.tolist()


def test_a_party_that_joined_while_the_run_was_down(tmp_path):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]))
    do(run, recorder, cohort([0, 1]), [0.6, 0.7])

    again = read(tmp_path / "a", HEART)
    for values in (again.parties["auc"], again.making["seconds"]):
        np.testing.assert_equal(values.numpy(), [0.6, 0.7, np.nan, np.nan])
    journal = Folder.open(tmp_path / "a").journal
    recorder = Recorder(Folder.open(tmp_path / "a"), again, dict, 0.0)
    assert journal.parties() == 2
    do(again, recorder, cohort([0, 1, 2, 3]))
    assert journal.parties() == 4


def test_parties_of_a_round_that_is_not_written_are_not_either(tmp_path):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]))
    do(run, recorder, cohort([0, 1]))
    run.data = HEART
    recorder.joined()

    assert Folder.open(tmp_path / "a").journal.parties() == 2


def test_reports_of_a_run_that_grew(tmp_path):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]))
    do(run, recorder, cohort([0, 1]), [0.6, 0.7])
    run.baselines["local"] = Evaluation({"auc": torch.tensor([0.5, 0.5])}, {"auc": 0.5}, {})
    run.elsewhere = {"auc": torch.tensor([0.4, 0.4])}
    recorder.baselines()
    run.folder, run.data = tmp_path / "a", HEART
    recorder.joined()
    do(run, recorder, cohort([0, 1, 2, 3], {3: "too slow (asked for work)"}))

    for each in (run, read(tmp_path / "a", HEART), read(tmp_path / "a", without(HEART, 3))):
        page = each.report().read_text()
        assert "switzerland" in page and "0 of 1" in page
        json.dumps(each.to_json())
        assert each.scorecard.efficacy.parties.parties == 2
        each.plot(tmp_path / "curve.png")
        each.vector = each.task_model.w
        rows = contents(each)["parties.csv"].decode().splitlines()
        assert len(rows) == 5


@pytest.mark.parametrize(
    ("sampled", "written"),
    [
        ([], []),
        ([5], [5]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        (list(range(8)), "0-7"),
        ([*range(40), *range(41, 70)], "0-39, 41-69"),
        (list(range(0, 100, 2)), list(range(0, 100, 2))),
    ],
)
def test_cohorts_do_not_depend_on_the_roster(sampled, written):
    row = recording._cohort_to_json(cohort(sampled))

    assert row["sampled"] == written
    assert recording._cohort_of_json(row, {}).sampled.tolist() == sampled


def test_rounds_of_a_million_share_their_parties():
    row = recording._cohort_to_json(cohort(np.arange(1_000_000)))
    known = {}
    first, second = (recording._cohort_of_json(row, known).sampled for _ in range(2))

    assert row["sampled"] == "0-999999" and first is second and len(first) == 1_000_000


def test_a_journal_of_version_1_is_read(tmp_path):
    run, recorder = begin(tmp_path / "a", without(HEART, 1))
    do(run, recorder, cohort([0, 2, 3], {2: "away"}))
    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        connection.execute(sa.update(ROUNDS).values(sampled="all"))
        connection.execute(sa.update(RUNS).values(version=1))

    assert told(read(tmp_path / "a", without(HEART, 1))) == told(run)
    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        connection.execute(sa.update(RUNS).values(version=99))
    with pytest.raises(ar.ArchipelError, match="has version 99"):
        read(tmp_path / "a", HEART)
