"""The journal of a run, in its folder and in PostgreSQL: tells what happened, and no half of it."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import sqlalchemy as sa
import torch

import archipel as ar
from archipel.engines.engine import Cause, Evaluation
from archipel.errors import RunFailed
from archipel.report.export import contents
from archipel.runs import past, recording
from archipel.runs.loop import entry
from archipel.runs.participation import Cohort
from archipel.runs.parts import build_model
from archipel.runs.recording import Recorder
from archipel.runs.run import Spent
from archipel.runs.simulation import build
from archipel.store.folder import Folder
from archipel.store.journal import ROSTER, ROUNDS, RUNS
from archipel.store.registry import Registry

ROW = {"description": {"objects": {}}, "hash": "0"}
HEART = ar.load("heart_disease")  # cleveland, hungarian, switzerland, va


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request):
    """None for a journal in the run's folder."""
    return None if request.param == "sqlite" else request.getfixturevalue("server").address()


def loop_of(data, rounds=6):
    options = {"rounds": rounds, "metric": "auc", "workers": 1}
    model = build_model(None, data, None, 0)
    return build(ar.FedAvg(lr=0.05), data, model, options)[1]


def begin(path, data, database=None):
    """A run that has done nothing yet, and what writes it down."""
    loop = loop_of(data)
    (run,) = loop.runs
    folder = recording.create(path, run, ROW, {}, database)
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
        found = entry(run.done, run, Evaluation(run.parties, {"auc": 0.7}, {}), None)
        cost = {"bytes": {"up": run.spent.up, "down": run.spent.down}, "gradients": 10}
        counts = {"sampled": len(cohort.sampled), "missing": len(cohort.missing)}
        run.history.append({**found, **cost, **counts, "seconds": 1.0})
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


def test_parties_join_and_leave(tmp_path, database):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]), database)
    do(run, recorder, cohort([0, 1]), [0.6, 0.7])
    run.data = HEART.select([0, 1, 2])
    recording.pad(run)
    do(run, recorder, cohort([0, 1, 2], {1: Cause("away")}))
    run.data = without(HEART, 1)
    recording.pad(run)
    do(run, recorder, cohort([0, 2, 3], {0: Cause("silent")}, waited=1, blocked={2: Cause("away")}))
    do(run, recorder, cohort([0, 2, 3]), [0.6, np.nan, 0.8, 0.9])

    again = read(tmp_path / "a", without(HEART, 1))
    assert told(again) == told(run) and told(read(tmp_path / "a", HEART)) == told(run)
    assert again.spent == run.spent and again.history == run.history
    torch.testing.assert_close(again.parties, run.parties, equal_nan=True)
    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        rows = connection.execute(sa.select(ROSTER).order_by(ROSTER.c.party)).all()
    assert [(row.party, row.name) for row in rows] == list(enumerate(HEART.names))
    assert [row.training_points for row in rows] == HEART.n.tolist()


def test_a_party_that_joined_while_the_run_was_down(tmp_path, database):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]), database)
    do(run, recorder, cohort([0, 1]), [0.6, 0.7])

    again = read(tmp_path / "a", HEART)
    for values in (again.parties["auc"], again.making["seconds"]):
        np.testing.assert_equal(values.numpy(), [0.6, 0.7, np.nan, np.nan])
    journal = Folder.open(tmp_path / "a").journal
    recorder = Recorder(Folder.open(tmp_path / "a"), again, dict, 0.0)
    assert journal.parties() == 2
    do(again, recorder, cohort([0, 1, 2, 3]))
    assert journal.parties() == 4


def test_parties_of_a_round_that_is_not_written_are_not_either(tmp_path, database):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]), database)
    do(run, recorder, cohort([0, 1]))
    run.data = HEART
    recording.pad(run)

    assert Folder.open(tmp_path / "a").journal.parties() == 2


def test_reports_of_a_run_that_grew(tmp_path):
    run, recorder = begin(tmp_path / "a", HEART.select([0, 1]))
    do(run, recorder, cohort([0, 1]), [0.6, 0.7])
    run.baselines["local"] = Evaluation({"auc": torch.tensor([0.5, 0.5])}, {"auc": 0.5}, {})
    run.elsewhere = {"auc": torch.tensor([0.4, 0.4])}
    recorder.baselines()
    run.folder, run.data = tmp_path / "a", HEART
    recording.pad(run)
    do(run, recorder, cohort([0, 1, 2, 3], {3: Cause("too slow", "asked for work")}))

    for each in (run, read(tmp_path / "a", without(HEART, 3))):
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
    assert past.cohort_of_json(row, {}).sampled.tolist() == sampled


def test_uploads_of_a_round_that_did_not_count_are_in_vain():
    sampled = np.arange(4)
    below = Cohort(sampled, sampled[:0], np.ones(0), {2: Cause("silent")}, counted=False)
    again = past.cohort_of_json(recording._cohort_to_json(below), {})

    assert again.present.tolist() == [] and again.missing == {2: Cause("silent")}
    assert not again.counted


def test_rounds_of_a_million_share_their_parties():
    row = recording._cohort_to_json(cohort(np.arange(1_000_000)))
    known = {}
    first, second = (past.cohort_of_json(row, known).sampled for _ in range(2))

    assert row["sampled"] == "0-999999" and first is second and len(first) == 1_000_000


def test_a_journal_of_version_1_is_read(tmp_path):
    run, recorder = begin(tmp_path / "a", without(HEART, 1))
    do(run, recorder, cohort([0, 2, 3], {2: Cause("away")}))
    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        connection.execute(sa.update(ROUNDS).values(sampled="all"))
        connection.execute(sa.update(RUNS).values(version=1))

    assert told(read(tmp_path / "a", without(HEART, 1))) == told(run)
    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        connection.execute(sa.update(RUNS).values(version=99))
    with pytest.raises(ar.ArchipelError, match="has version 99"):
        read(tmp_path / "a", HEART)


def test_causes_in_the_words_of_earlier_versions_are_read():
    row = recording._cohort_to_json(cohort([0, 1, 2, 3], {1: Cause("silent", "trains")}))
    row["missing"] |= {"2": "revoked: lost its laptop", "3": "the disk is full"}
    again = past.cohort_of_json(row, {})

    assert again.present.tolist() == [0]
    assert again.missing == {
        1: Cause("silent", "trains"),
        2: Cause("revoked", "lost its laptop"),
        3: Cause("away", "the disk is full"),
    }


# -- in a database that it shares ------------------------------------------------------------------


def at_three(run):
    return run.done == 3


def test_a_run_goes_on_to_the_same_bits(tmp_path, database):
    whole = loop_of(HEART)
    with whole.engine:
        whole.go(None, None)
    for _ in range(2):
        loop = loop_of(HEART)
        (run,) = loop.runs
        if Folder.exists(tmp_path / "a"):
            folder = Folder.open(tmp_path / "a")
            loop.restore(recording.restore(folder, run))
            stop = None
        else:
            folder = recording.create(tmp_path / "a", run, ROW, {}, database)
            stop = at_three
        with folder, loop.engine:
            loop.recorder = Recorder(folder, run, loop.engine.state, 0.0)
            run.event("started", f"after round {run.done}")
            loop.go(stop, None)

    again = read(tmp_path / "a", HEART)
    assert torch.equal(run.vector, whole.runs[0].vector)
    assert again.history == run.history and len(again.history) == 6
    assert again.events == run.events and told(again) == told(run)
    assert again.state == "done" and Folder.open(tmp_path / "a").journal.row()["seconds"] > 0


def test_large_and_odd_numbers_are_kept(tmp_path, database):
    run, recorder = begin(tmp_path / "a", HEART, database)
    run.participation.append(cohort([0, 1, 2, 3]))
    run.spent = Spent(2**40, 2**50, 2**60)
    recorder.round(run.spent)
    odd = {"auc": np.nan, "loss": -np.inf, "name": "\u00fc \U0001f3dd", "float": {"float": "x"}}
    run.history.append({"round": 1, "metrics": odd, "new": [np.inf, 1e-300]})
    recorder.save()

    journal = Folder.open(tmp_path / "a").journal
    assert repr(journal.entries()) == repr(run.history)
    assert read(tmp_path / "a", HEART).spent == run.spent


def test_runs_share_a_database(tmp_path, database):
    runs = [begin(tmp_path / name / "same", HEART, database) for name in ("a", "b")]
    for (run, recorder), sampled in zip(runs, ([0, 1], [2, 3]), strict=True):
        run.event("started", str(sampled))
        do(run, recorder, cohort(sampled), [0.1, 0.2, 0.3, sampled[0]])

    for name, (run, _) in zip(("a", "b"), runs, strict=True):
        again = read(tmp_path / name / "same", HEART)
        assert told(again) == told(run) and again.events == run.events
        assert torch.equal(again.parties["auc"], run.parties["auc"])
        assert Folder.open(tmp_path / name / "same").journal.parties() == 4
        assert [each.state for each in ar.list_runs(tmp_path / name)] == ["interrupted"]
    assert Folder.find("last", tmp_path / "b").path == tmp_path / "b" / "same"


def test_a_folder_in_the_way_leaves_nothing_in_the_database(tmp_path, server):
    database = server.address()
    begin(tmp_path / "a", HEART, database)
    with pytest.raises(ar.ArchipelError, match="something already"):
        begin(tmp_path / "a", HEART, database)

    with Folder.open(tmp_path / "a").journal._transaction() as connection:
        for table in (RUNS, ROSTER):
            assert len(set(connection.scalars(sa.select(table.c.run)))) == 1


def test_a_process_killed_while_it_writes_has_written_nothing(tmp_path, database):
    run, recorder = begin(tmp_path / "a", HEART, database)
    do(run, recorder, cohort([0, 1]))
    pid = os.fork()
    if pid == 0:
        try:
            journal = Folder.open(tmp_path / "a").journal
            insert = journal._insert

            def die(connection, table, rows):
                insert(connection, table, rows)
                if table is ROUNDS:
                    os.kill(os.getpid(), signal.SIGKILL)

            journal._insert = die
            cost = {"gradients": 1, "bytes_up": 1, "bytes_down": 1}
            row = {"round": 2, **recording._cohort_to_json(cohort([2, 3])), **cost}
            journal.commit({"done": 2}, [row])
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL

    journal = Folder.open(tmp_path / "a").journal
    assert (journal.row()["done"], len(journal.rounds())) == (1, 1)


def test_no_password_is_written(tmp_path, server):
    user, rest = server.address().split("@")
    secret = f"{user}:hidden@{rest}&password=hidden"
    run, recorder = begin(tmp_path / "a", HEART, secret)
    do(run, recorder, cohort([0, 1]))

    assert all(b"hidden" not in path.read_bytes() for path in (tmp_path / "a").iterdir())
    for folder in (Folder.open(tmp_path / "a"), Folder.open(tmp_path / "a", secret)):
        assert folder.journal.row()["done"] == 1
    about = json.loads((tmp_path / "a" / "journal.json").read_text())
    assert sa.make_url(about["database"]) == sa.make_url(f"{user}@{rest}")


def test_an_sqlite_address_is_a_journal_in_the_folder(tmp_path):
    begin(tmp_path / "a", HEART, f"sqlite:///{tmp_path}/federation.db")

    assert (tmp_path / "a" / "journal.db").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_database_that_is_away_is_told_in_a_sentence(tmp_path, server):
    begin(tmp_path / "a", HEART, server.address())
    note = tmp_path / "a" / "journal.json"
    about = json.loads(note.read_text())
    for database, what in [
        (
            "postgresql://me@/x?host=/nowhere",
            "'postgresql.*me@/x.host=.*cannot be used",
        ),
        (server.address(), "cannot be used .*runs"),  # an empty one
        ("sqlite:///etc", "names no PostgreSQL database"),
        (None, "names no PostgreSQL database"),
    ]:
        note.write_text(json.dumps({**about, "database": database}))
        with pytest.raises(RunFailed, match=what):
            Folder.open(tmp_path / "a").journal.row()
        assert [each.state for each in ar.list_runs(tmp_path)] == ["broken"]
    note.write_text(json.dumps({**about, "run": "other"}))
    with pytest.raises(RunFailed, match="run 'other' is not in the database"):
        Folder.open(tmp_path / "a").journal.row()


def test_a_connection_that_was_lost_is_made_again(tmp_path, server):
    run, recorder = begin(tmp_path / "a", HEART, server.address())
    do(run, recorder, cohort([0, 1]))
    with server.connect() as connection:
        others = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
        assert connection.execute(ended).fetchall()
    do(run, recorder, cohort([0, 1]))

    assert Folder.open(tmp_path / "a").journal.row()["done"] == 2


def test_the_roll_and_runs_share_a_database(tmp_path, server):
    database = server.address()
    begin(tmp_path / "before", HEART, database)
    with Registry.open(database) as registry:
        registry.submit("heart", b"text")
        begin(tmp_path / "beside", HEART, database)

    for name in ("before", "beside"):
        assert Folder.open(tmp_path / name).journal.parties() == 4


def test_a_database_of_another_program_or_version_is_left_alone(tmp_path, server):
    for table, what in [
        ("runs (id integer)", "belongs to another program, whose table is called 'runs'"),
        ("archipel_version AS SELECT '999' AS version_num", "was written by a newer Archipel"),
    ]:
        database = server.address()
        engine = sa.create_engine(database)
        with engine.begin() as connection:
            connection.execute(sa.text(f"CREATE TABLE {table}"))
        with pytest.raises(ar.ArchipelError, match=what):
            begin(tmp_path / "a", HEART, database)

        assert list(tmp_path.iterdir()) == [] and len(sa.inspect(engine).get_table_names()) == 1
        engine.dispose()
