"""The local engine: workers, stragglers, who is left out, what is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.engines.engine import Cause
from archipel.engines.plan import Plan
from archipel.runs.participation import Participation
from problems import classification, learn, network

LONG = """
import os, sys, torch, archipel as ar
data = ar.Federation.from_arrays([torch.randn(200, 50)] * 8, [torch.randint(0, 3, (200,))] * 8)
def tell(run):
    print(os.getpid(), flush=True)
ar.simulate(ar.Scaffold(local_epochs=5), data, "mlp", rounds=100_000, workers=2, on_round=tell)
"""


def processes():
    """Every process, with its parent."""
    rows = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            rows[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            continue
    return rows


def gone(pids, seconds=120.0):
    """Whether all of these processes end; on a busy machine that may take a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        alive = [p for p in pids if Path(f"/proc/{p}").exists() and "Z" not in state(p)]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def shared(pids):
    """Files in memory that these processes have mapped or open, and no others'."""
    found = set()
    for pid in pids:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        places = [line.split(maxsplit=5)[5] for line in lines if line.count("/")]
        places += [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
        found |= {place for place in places if place.startswith("/dev/shm/")}
    return {place for place in found if not place.endswith(" (deleted)")}


def heeding():
    """In a child: heed Ctrl-C as at a terminal; jobs in the background are born to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopping_leaves_nothing_behind(how):
    main = subprocess.Popen(
        [sys.executable, "-c", LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=heeding,
    )
    main.stdout.readline()
    workers = [pid for pid, parent in processes().items() if parent == main.pid]
    assert len(workers) == 2
    named = shared([main.pid, *workers])

    main.send_signal(how)
    main.wait(timeout=120)

    assert main.returncode != 0
    assert gone(workers)
    assert not [place for place in named if Path(place).exists()]


def test_closing_ends_the_workers():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    before = set(processes())
    with ar.LocalEngine(ar.FedAvg(), data, model, plan=Plan("one", 2, 2)) as engine:
        engine.round(0, range(4))
        workers = [p for p, parent in processes().items() if parent == os.getpid()]
        assert len(set(workers) - before) == 2

    assert gone([p for p in workers if p not in before])


class Fragile(nn.Module):
    """Fails on large inputs, as a bug in a user's model would."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 2)

    def forward(self, x):
        if x.dim() == 2 and float(x.detach().abs().max()) > 100:
            raise IndexError("a bug of the user's")
        return self.out(x)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_at_a_party_reaches_the_user(workers):
    xs = [torch.ones(4, 2), torch.ones(4, 2), torch.ones(4, 2) * 1000]
    data = ar.Federation.from_arrays(xs, [torch.tensor([0, 1, 0, 1])] * 3, test=0.0)
    engine = ar.LocalEngine(ar.FedAvg(), data, ar.Model(Fragile()), plan=Plan("one", 1, workers))
    with engine, pytest.raises((ar.ArchipelError, IndexError), match="a bug of the user's"):
        engine.round(0, range(3))


def test_a_party_that_diverges_is_left_out_and_named():
    xs = [torch.randn(8, 3), torch.randn(8, 3) * 1e30, torch.randn(8, 3)]
    ys = [torch.randn(8)] * 3
    names = ["lyon", "lille", "paris"]
    data = ar.Federation.from_arrays(xs, ys, test=0.25, names=names)

    run = ar.simulate(ar.Scaffold(lr=0.01), data, "linear", rounds=2, plan=Plan("stacked", 2, 1))

    assert torch.isfinite(run.vector).all()
    assert run.participation[0].missing == {1: Cause("diverged")}
    assert "lille" in run.notes[0]


def test_a_run_that_diverges_stops_with_a_sentence():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    with pytest.raises(ar.ArchipelError, match="lower lr"):
        learn(ar.FedAvg(lr=1e200), data, model, rounds=30)


def test_empty_parties_are_left_out_and_named():
    xs = [torch.randn(6, 3), torch.zeros(0, 3), torch.randn(6, 3)]
    ys = [torch.tensor([0, 1] * 3), torch.zeros(0).long(), torch.tensor([0, 1] * 3)]
    data = ar.Federation.from_arrays(xs, ys, test=0.3)

    run = ar.simulate(ar.FedAvg(), data, rounds=2, workers=1)

    assert run.participation[0].sampled.tolist() == [0, 2]
    assert "1 parties have no training point" in run.notes[0]
    assert run.parties["accuracy"].isnan().tolist() == [False, True, False]


def test_parties_smaller_than_a_batch_and_of_one_class():
    xs = [torch.randn(1, 3), torch.randn(9, 3)]
    ys = [torch.tensor([1]), torch.tensor([0] * 9)]
    data = ar.Federation.from_arrays(xs, ys, test=0.0)

    w = learn(ar.FedAvg(batch_size=64), data, ar.Model(nn.Linear(3, 2)), rounds=2)

    assert torch.isfinite(w).all()


def test_stragglers_are_dropped_or_kept_as_the_algorithm_says():
    who = Participation(sample=10, stragglers=0.9)
    everyone = np.arange(30)

    dropped = who.draw(everyone, 0, 3, keeps_partial_work=False)
    kept = who.draw(everyone, 0, 3, keeps_partial_work=True)

    assert len(dropped.present) == 1 and len(kept.present) == 10
    assert np.array_equal(dropped.sampled, kept.sampled)
    assert (kept.effort < 1).sum() == 9
    assert set(dropped.missing.values()) == {Cause("too slow")}


def test_a_round_nobody_answers_changes_nothing():
    run = ar.simulate(ar.FedAvg(), "heart_disease", rounds=1, dropouts=1.0, workers=1)

    assert torch.equal(run.vector, run.task_model.w)
    assert len(run.participation[0].missing) == 4


def test_dropouts_leave_the_other_parties_numbers_alone():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    uploads = {}

    for ids in ([0, 1, 2, 3], [1, 3]):
        with ar.LocalEngine(ar.Alone(), data, model, plan=Plan("stacked", 3, 1)) as engine:
            engine.round(0, ids)
            uploads[len(ids)] = engine.own_models([1, 3])

    torch.testing.assert_close(uploads[4], uploads[2])


@pytest.mark.parametrize("sample, count", [(0.1, 3), (0.0, 1), (1.0, 30), (7, 7), (1, 1)])
def test_sample_is_a_rate_or_a_count(sample, count):
    assert Participation(sample).count(30) == count


@pytest.mark.parametrize(
    "options, field",
    [
        ({"sample": 1.5}, "sample"),
        ({"sample": 5}, "sample = 5: only 4"),
        ({"dropouts": -0.1}, "dropouts"),
        ({"rounds": 0}, "rounds"),
        ({"workers": 0}, "workers"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"partition": "dirichletx:1"}, "dirichlet"),
    ],
)
def test_bad_options_name_the_field(options, field):
    with pytest.raises(ar.ArchipelError, match=field):
        ar.simulate(ar.FedAvg(), "heart_disease", **options)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ar.ArchipelError, match="did you mean 'heart_disease'"):
        ar.simulate(ar.FedAvg(), "heart_diseases")
    with pytest.raises(ar.ArchipelError, match="did you mean 'logistic'"):
        ar.simulate(ar.FedAvg(), "heart_disease", "logistik")
    with pytest.raises(ar.ArchipelError, match="did you mean 'lr'"):
        ar.sweep(ar.FedAvg(), "heart_disease", None, {"lrr": [0.1, 0.2]})


@pytest.mark.parametrize(
    "module, what",
    [
        (nn.Linear(13, 1), "give the model 2 outputs"),
        (nn.Linear(4, 2), "cannot read points of shape"),
        (nn.Linear(13, 2).double(), "module.double"),
        (nn.Flatten(), "no parameter to train"),
    ],
)
def test_a_model_that_does_not_fit(module, what):
    with pytest.raises(ar.ArchipelError, match=what):
        ar.simulate(ar.FedAvg(), "heart_disease", module)


def test_peers_need_a_topology_of_their_size():
    from archipel.graphs import topology

    with pytest.raises(ar.ArchipelError, match="n = 4"):
        ar.simulate(ar.DSGD(), "heart_disease", topology=topology("ring", 5))
    with pytest.raises(ar.ArchipelError, match="topology='ring'"):
        ar.simulate(ar.DSGD(), "heart_disease", workers=1)


def test_large_states_lie_in_a_sparse_file():
    """A row per party for a million parties is mapped, not filled."""
    from archipel.engines.local import arena

    before = len(os.listdir("/proc/self/fd"))
    store = arena.zeros((1_000_000, 50_000), torch.float32)  # 200 GB if it were filled
    store[123_456] = 1.0

    assert float(store[123_456].sum()) == 50_000
    assert float(store[999_999].sum()) == 0
    del store
    assert len(os.listdir("/proc/self/fd")) <= before


def test_evaluation_is_the_same_in_chunks_and_by_several_workers(monkeypatch):
    from archipel.engines.local import evaluation

    data = ar.load("heart_disease")
    scores = []
    for chunk, workers in ((1 << 30, 1), (1, 1), (1 << 30, 2)):
        monkeypatch.setattr(evaluation, "_CHUNK_BYTES", chunk)
        model = ar.simulate(ar.FedAvg(), data, rounds=1, plan=Plan("one", 4, 1)).task_model
        with ar.LocalEngine(ar.FedAvg(), data, model, plan=Plan("one", 4, workers)) as engine:
            scores.append(engine.evaluate(split="train"))

    for other in scores[1:]:
        torch.testing.assert_close(other.parties, scores[0].parties, equal_nan=True)
        assert other.pooled["accuracy"] == pytest.approx(scores[0].pooled["accuracy"])
        assert other.pooled["loss"] == pytest.approx(scores[0].pooled["loss"])


def test_progress_callback_can_stop_a_run():
    seen = []

    def watch(run):
        seen.append(run.history[-1]["round"])
        return len(seen) == 2

    ar.simulate(ar.FedAvg(), "heart_disease", rounds=9, evaluate_every=2, on_round=watch, workers=1)

    assert seen == [2, 4]
