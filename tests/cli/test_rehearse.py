"""`archipel rehearse`: a federation of processes, in one command."""

import numpy as np
import pytest
from safetensors.torch import load_file

from archipel import load, load_bundle
from archipel.federation.audit import check
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.site.site import Site
from archipel.study.file import Study

STUDY = """
[study]
name = "heart"
rounds = 2
[data]
name = "heart_disease"
[algorithm]
name = "scaffold"
lr = 0.05
"""


def test_a_rehearsal_leaves_what_every_institution_would_have(archipel, tmp_path):
    (tmp_path / "heart.toml").write_text(STUDY)
    where = tmp_path / "out"
    done = archipel("rehearse", tmp_path / "heart.toml", "--sites", 2, "--out", where, "--json")

    assert done.code == 0, done.err
    assert done.json["rounds"] == 2
    folder = where / "heart-001"
    assert sorted(path.name for path in folder.iterdir()) == [
        "cleveland",
        "coordinator",
        "hungarian",
    ]
    for one in (CoordinatorFolder(folder / "coordinator"), Site(folder / "hungarian")):
        assert check(one.audit.path, one.identity.public) > 3
    assert oct((folder / "hungarian" / "site.pem").stat().st_mode)[-3:] == "600"
    (run,) = (folder / "coordinator" / "runs").iterdir()
    assert archipel("export", run, "--bundle", "heart").code == 0
    bundle = load_bundle("heart")
    assert bundle.columns[0] == "age" and bundle.targets == ["disease"]
    assert bundle.features.to_json() == load("heart_disease").features.to_json()


def test_more_sites_than_parties_are_refused(archipel, tmp_path):
    (tmp_path / "heart.toml").write_text(STUDY)
    done = archipel("rehearse", tmp_path / "heart.toml", "--sites", 9, "--out", tmp_path / "out")

    assert done.code == 2
    assert "--sites 9: the study's data has 4 parties" in done.sentence
    assert not list((tmp_path / "out").iterdir())


TABLES = """
[study]
name = "clinics"
rounds = 2
[data]
file = "all.csv"
by = "clinic"
target = "ill"
missing = "mean"
[data.schema]
age = "number"
kind = ["a", "b"]
ill = [0, 1]
[algorithm]
name = "fedavg"
lr = 0.2
"""


@pytest.mark.parametrize(
    "kind",
    ["[0, 1]", pytest.param('"number"', marks=pytest.mark.slow)],
    ids=["classes", "numbers"],
)
def test_sites_bind_tables_of_their_own_and_find_the_scale_together(archipel, tmp_path, kind):
    rng = np.random.default_rng(3)
    ill = [i % 2 if kind == "[0, 1]" else 900 + 3 * i + rng.integers(99) for i in range(60)]
    rows = [
        f"{'AB'[i % 3 == 0]} clinic,{'' if i % 9 == 4 else 40 + i},{'ab'[rng.integers(2)]},{ill[i]}"
        for i in range(60)
    ]
    (tmp_path / "all.csv").write_text("\n".join(["clinic,age,kind,ill", *rows]))
    (tmp_path / "study.toml").write_text(TABLES.replace("[0, 1]", kind))
    where = tmp_path / "out"
    done = archipel("rehearse", tmp_path / "study.toml", "--sites", 2, "--out", where, "--json")

    assert done.code == 0, done.err
    folder = where / "clinics-001"
    (run,) = (folder / "coordinator" / "runs").iterdir()
    simulated = Study.read(tmp_path / "study.toml").run(None, baselines=False)
    expected = simulated.task_model.to_module(simulated.vector).state_dict()
    for name, tensor in load_file(run / "model.safetensors").items():
        assert tensor.numpy() == pytest.approx(expected[name].numpy(), abs=1e-6)
    sent = [e.detail["kind"] for e in Site(folder / "a-clinic").audit.entries() if e.what == "sent"]
    assert sent.count("sums") == 1
    metric, points = simulated.metric, simulated.data.n_test.double()
    of_sites = float((simulated.parties[metric] * points).sum() / points.sum())
    assert done.json["metrics"][metric] == pytest.approx(of_sites, rel=1e-5)  # in its own unit
    assert archipel("export", run, "--bundle", "model").code == 0
    bundle, data = load_bundle("model"), simulated.data
    if kind == '"number"':
        told = bundle.predict(tmp_path / "all.csv").values
        assert np.sort(told) == pytest.approx(
            np.sort(simulated.model(data.x).detach().numpy().ravel()), rel=1e-5
        )
        assert told.mean() == pytest.approx(float(data.y.mean()), rel=0.05)
