"""Computing on a device. There is none here: its parts are tried on "cpu" and on torch's "meta".

On "meta" tensors have shapes and no values, and torch refuses to mix them with tensors of main
memory, as it would on a graphics card.
"""

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.engines.local.device import Away, Held, check_device, on_device
from archipel.engines.party import LocalParty
from archipel.models.model import Model, OneByOne, Vmapped
from problems import classification, network


@pytest.mark.parametrize("name", ["cuda", "mps", "cuda:3"])
def test_a_device_that_torch_does_not_have_is_refused(name):
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(
        ar.ArchipelError, match=rf"device = '{name}': this torch \(.*\) has no {name}"
    ):
        ar.simulate(ar.FedAvg(), "heart_disease", rounds=1, device=name)


def test_what_is_no_device_and_several_processes_are_refused(monkeypatch):
    with pytest.raises(ar.ArchipelError, match="device = 'gpu': give cpu, cuda"):
        check_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_device("cuda", 1)
    with pytest.raises(ar.ArchipelError, match="workers = 2: on cuda one process does it all"):
        check_device("cuda", 2)
    with pytest.raises(ar.ArchipelError, match="has no cuda:1"):
        check_device("cuda:1")


MODULES = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
}


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        ("mlp", ar.FedAvg(lr=0.1, batch_size=2)),
        ("batch norm", ar.Ditto(lr=0.1, batch_size=2)),
        ("dropout", ar.KNNPer(batch_size=3)),
    ],
    ids=["mlp", "batch norm", "dropout"],
)
def test_the_path_there_and_back_changes_nothing(kind, algorithm, monkeypatch):
    """The device's way with main memory as the device is the usual run."""
    monkeypatch.setattr("archipel.engines.local.engine.CPU", "no such")
    monkeypatch.setattr("archipel.engines.local.engine.check_device", lambda *_: None)
    data, ends = classification(4, 3, 3, 0, torch.float32), []
    torch.manual_seed(0)
    module = MODULES[kind]()
    for name in ("no such", "cpu"):  # the first is what main memory is called here
        plan = ar.Plan("one", 2, 1) if name == "no such" else None
        with ar.LocalEngine(algorithm, data, Model(module), plan=plan, device=name) as engine:
            for t in range(2):
                engine.round(t, range(4))
            own = engine.evaluate(own=engine.has_own, split="train")
            ends.append([*engine.state().values(), *own.parties.values()])
            assert engine.plan.workers == 1
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("kind", [OneByOne, Vmapped])
def test_nothing_of_main_memory_is_mixed_in(kind, monkeypatch):
    data, here = classification(3, 3, 3, 0), network(3, 3)
    there = Model(here.to_module(here.w).to("meta"))
    way = Away(kind(there), Held(data, torch.device("meta")))
    ends = []
    monkeypatch.setattr(Away, "_run", lambda self, call, w, given, buffers: ends.append(
        call(self._held.move(w), self._held.moved(given), None)) or w)  # fmt: skip
    me = LocalParty(data, here, way, np.arange(3), 0, 0, (3,))
    w = here.w.expand(3, -1)
    me.grad(w, me.batch(2))
    me.descend(w, ar.FedAvg(batch_size=2))
    me.descend(w, ar.FedProx(batch_size=2), shift=w, pull=0.5)
    me.descend(w, ar.FedAvg(batch_size=2, optimiser=ar.SGD(momentum=0.9)))
    assert len(ends) == 4 and all(end.device.type == "meta" for end in ends)
    assert all(end.shape == (3, here.p) for end in ends)


def test_the_model_is_asked_there(monkeypatch):
    data, here = classification(3, 3, 3, 0), network(3, 3)
    there, right = on_device(here, data, "cpu")
    assert set(right) == {"one", "vmapped"}
    torch.testing.assert_close(there.predict(here.w, data.x), here.predict(here.w, data.x))
    torch.testing.assert_close(
        there.one.features(here.w, data.x), here.one.features(here.w, data.x)
    )
    assert not there.one.draws(data.x)


def test_the_device_is_on_record_and_not_in_the_study_s_hash(tmp_path):
    study = ar.Study.of("fedavg", data={"name": "heart_disease"}, study={"rounds": 1})
    run = study.run(tmp_path, workers=1, baselines=False, device="cpu")
    assert run.environment["device"] == "cpu"
    assert ar.open_run("last", tmp_path).environment["device"] == "cpu"
    assert "device" not in str(study.resolved())
