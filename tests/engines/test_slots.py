# SPDX-License-Identifier: Apache-2.0
"""What parties keep in a run's folder: the same as in memory, whatever ends when."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.data import load
from archipel.engines.local import memory
from archipel.engines.local.slots import Slots
from archipel.errors import ArchipelError
from archipel.runs.run import Run
from archipel.store.folder import Folder

ALGORITHMS = [ar.Scaffold(lr=0.05), ar.Ditto(lr=0.05), ar.FedBN(lr=0.05)]


def go(algorithm: Any, out: Path | None, rounds: int = 6, **more: Any) -> Run:
    data = load("crowd", parties=60, features=4, classes=3)
    plan = ar.Plan("vmapped", 8, 2)
    options = {"sample": 9, "rounds": rounds, "plan": plan, "seed": 5, **more}
    model: Any = "logistic"
    if isinstance(algorithm, ar.FedBN):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        model.append(torch.nn.Linear(4, 3))
        options["plan"] = ar.Plan("one", 4, 2)
    return ar.simulate(algorithm, data, model, out=out, checkpoint_seconds=0, **options)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LARGE", 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: type(a).__name__)
def test_on_the_disk_as_in_memory(algorithm: Any, tmp_path: Path, on_disk: None) -> None:
    plain = go(algorithm, None)
    kept = go(algorithm, tmp_path / "run", dropouts=0.0)

    assert torch.equal(plain.vector, kept.vector)
    assert plain.history[-1]["metrics"] == kept.history[-1]["metrics"]
    assert plain.history[-1]["own"] == kept.history[-1]["own"]
    assert (tmp_path / "run" / "own" / "rows-0").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # nothing is left beside it


def test_rounds_that_change_nothing_leave_rows_as_they_were(tmp_path: Path, on_disk: None) -> None:
    asked = {"quorum": 7, "dropouts": 0.3, "on_missing": "continue"}
    plain, kept = go(ALGORITHMS[0], None, **asked), go(ALGORITHMS[0], tmp_path / "run", **asked)

    assert torch.equal(plain.vector, kept.vector)
    assert any(not cohort.counted for cohort in kept.participation)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, on_disk: None) -> None:
    whole = go(ALGORITHMS[1], None)
    data, path = load("crowd", parties=60, features=4, classes=3), tmp_path / "run"
    told: Any = {"sample": 9, "rounds": 6, "plan": ar.Plan("vmapped", 8, 2), "seed": 5}
    for stop in (2, 4, 6):
        run = ar.simulate(
            ALGORITHMS[1], data, "logistic", out=path, checkpoint_seconds=0,
            on_round=lambda run, stop=stop: run.done == stop, **told,
        )  # fmt: skip

    assert torch.equal(run.vector, whole.vector)
    assert run.history[-1]["own"] == whole.history[-1]["own"]


def test_a_run_that_was_killed_is_read_without_writing(tmp_path: Path, on_disk: None) -> None:
    told: Any = {"name": "crowd", "parties": 60, "features": 4, "classes": 3}
    study = ar.Study.of("scaffold", study={"rounds": 4}, data=told, round={"sample": 9})
    run = study.run_in(tmp_path / "run", baselines=False, workers=1, checkpoint_seconds=0)
    with Folder.open(tmp_path / "run") as folder:
        folder.journal.commit({"state": "running"})
    before = {p.name: p.read_bytes() for p in (tmp_path / "run" / "own").iterdir()}

    again = ar.open_run(tmp_path / "run")

    assert torch.equal(again.vector, run.vector)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "own").iterdir()} == before


def test_a_checkpoint_with_rows_goes_on_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(ALGORITHMS[0], None)
    data, path = load("crowd", parties=60, features=4, classes=3), tmp_path / "run"
    told: Any = {"sample": 9, "rounds": 6, "plan": ar.Plan("vmapped", 8, 2), "seed": 5}

    def stop(run: Run) -> bool:
        return run.done == 3

    ar.simulate(
        ALGORITHMS[0], data, "logistic", out=path, checkpoint_seconds=0, on_round=stop, **told
    )
    monkeypatch.setattr(memory, "LARGE", 0)
    run = ar.simulate(ALGORITHMS[0], data, "logistic", out=path, checkpoint_seconds=0, **told)

    assert torch.equal(run.vector, whole.vector)


def test_a_checkpoint_costs_what_the_sampled_cost(tmp_path: Path, on_disk: None) -> None:
    sizes, data = [], load("crowd", parties=3000, features=4, classes=3)

    def look(run: Run) -> None:
        (path,) = (tmp_path / "run").glob("checkpoint-*")
        index = sum(p.stat().st_size for p in (tmp_path / "run" / "own").glob("index-*"))
        sizes.append((path.stat().st_size, index))

    ar.simulate(
        ar.Scaffold(lr=0.1), data, "logistic", rounds=8, sample=10, workers=1, evaluate_every=8,
        out=tmp_path / "run", checkpoint_seconds=0, watch=Watching(look),
    )  # fmt: skip

    checkpoints, indices = zip(*sizes[1:], strict=True)
    assert len(set(checkpoints)) == 1 and max(checkpoints) < 2000
    assert set(np.diff(indices)) == {160}  # ten parties and their rows
    rows = (tmp_path / "run" / "own" / "rows-0").stat()
    assert rows.st_size == 1024 * 15 * 4  # 80 parties took part, of 3,000


class Watching:
    def __init__(self, look: Any) -> None:
        self._look = look

    def __call__(self, run: Run) -> None:
        if run.done:
            self._look(run)

    def say(self, text: str) -> None: ...


@pytest.mark.parametrize("name", ["rows-0", "index-0"])
def test_files_that_are_gone_or_short_are_one_sentence(
    name: str, tmp_path: Path, on_disk: None
) -> None:
    go(ALGORITHMS[0], tmp_path / "run")
    path = tmp_path / "run" / "own" / name
    path.write_bytes(path.read_bytes()[:16])

    with pytest.raises(ArchipelError, match="not what the checkpoint names"):
        go(ALGORITHMS[0], tmp_path / "run")
    assert Folder.open(tmp_path / "run").journal.row()["done"] == 6


FORMS = [((3,), torch.float32), ((), torch.int64)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(st.tuples(st.sampled_from("wsck"), st.integers(0, 99)), max_size=40))
def test_whatever_is_written_when_the_last_commit_is_read(
    moves: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Write, take a state, commit it, or be killed: what was committed is there, and no more."""
    folder, parties = tmp_path_factory.mktemp("slots"), 7
    kept, now, committed, mark = fresh(folder, parties), {}, {}, None
    for move, number in moves:
        if move == "w":
            ids = np.flatnonzero(np.random.default_rng(number).random(parties) < 0.4)
            kept.reserve(ids)
            rows = [torch.full((len(ids), 3), float(number)), torch.full((len(ids),), number)]
            kept.write(ids, rows)
            now |= dict.fromkeys(ids.tolist(), number)
        elif move == "s":
            kept.state()
        elif move == "c":
            mark = kept.state()
            committed = dict(now)
            kept.committed()
        else:
            kept.close()
            kept, now = fresh(folder, parties), dict(committed)
            if mark is not None:
                kept.restore(mark)
        assert read(kept, parties) == now
    assert int((kept._place > 0).sum()) <= kept._used <= 3 * parties


def fresh(folder: Path, parties: int) -> memory.Kept:
    kept = memory.Kept.__new__(memory.Kept)
    kept._parties, kept._forms, kept._keeps_buffers = parties, FORMS, False
    kept._first_own = kept._form = tuple(torch.zeros(shape, dtype=d) for shape, d in FORMS)
    kept.visited = torch.zeros(parties, dtype=torch.uint8)
    kept._place = torch.zeros(parties, dtype=torch.int32)
    kept._used, kept._free = 0, np.zeros(0, np.int64)
    kept._touched, kept._retired = [], []
    kept.keep_in(folder)
    return kept


def read(kept: memory.Kept, parties: int) -> dict[int, int]:
    three, one, visited = kept.take(np.arange(parties))
    assert torch.equal(three, one[:, None].expand(-1, 3).float())
    return {k: int(one[k]) for k in range(parties) if visited[k]}


def test_an_index_that_is_mostly_old_is_written_anew(tmp_path: Path) -> None:
    slots = Slots(tmp_path, FORMS, 5, True)
    slots.grow(15)
    ids = np.arange(5)
    for _ in range(1000):
        mark = slots.save(ids, ids, 5, lambda: (ids, ids))
        slots.forget()

    (index,) = tmp_path.glob("index-*")
    assert index.name != "index-0" and index.stat().st_size < 16 * 5000
    found, rows = Slots(tmp_path, FORMS, 5, True).read(mark, 5)
    assert found.tolist() == rows.tolist() == [0, 1, 2, 3, 4]
