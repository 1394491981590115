"""A bundle predicts what its run predicted, is refused when changed, and runs no code unasked."""

import json
import random
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

import archipel as ar
from archipel.bundle import files, writing
from archipel.errors import ArchipelError
from archipel.runs.listing import open_run
from archipel.study.file import Study

ROWS = 150
KINDS = {"binary": "ill", "several": "ward", "number": "days", "survival": ["time", "dead"]}


def table(target, gaps=True, seed=0):
    """Patients of three hospitals: numbers, texts and empty cells; `serial` tells rows apart."""
    rng = np.random.default_rng(seed)
    age, killip = rng.normal(60, 12, ROWS).round(1), rng.choice(["I", "II", "III", "IV"], ROWS)
    risk = (age - 60) / 12 + (killip == "IV") + rng.normal(0, 1, ROWS)
    columns = {
        "hospital": rng.choice(["north", "south", "east"], ROWS),
        "serial": 1e3 + np.arange(ROWS) + 0.25,
        "age": np.where((rng.random(ROWS) < 0.1) & gaps, np.nan, age),
        "killip": np.where((rng.random(ROWS) < 0.1) & gaps, None, killip),
        "code": rng.choice([3, 7], ROWS),
        "ill": (risk > 0).astype(int),
        "ward": np.array(["icu", "home", "other"])[np.digitize(risk, [-0.5, 0.5])],
        "days": (5 + risk).round(2),
        "time": rng.exponential(np.exp(-risk)).round(3) + 0.01,
        "dead": rng.choice([0, 1], ROWS),
    }
    wanted = [target] if isinstance(target, str) else target
    others = {"ill", "ward", "days", "time", "dead"} - {*wanted}
    return pd.DataFrame(columns).drop(columns=[*others])


def study(folder, target, described=True, **sections):
    """A study of that table, its columns described or found."""
    data = {"file": "all.csv", "by": "hospital", "target": target, "missing": "mean"}
    if described:
        kinds = {"ill": [0, 1], "ward": ["home", "icu", "other"], "dead": [0, 1]}
        outcomes = [target] if isinstance(target, str) else target
        data["schema"] = {
            "serial": "number", "age": "number", "killip": ["I", "II", "III", "IV"],
            "code": [3, 7], **{name: kinds.get(name, "number") for name in outcomes},
        }  # fmt: skip
    data |= sections.pop("data", {})
    about = {"name": "patients", "rounds": 2, **sections.pop("study", {})}
    algorithm = {"name": "fedavg", "lr": 0.05, **sections.pop("algorithm", {})}
    content = {"study": about, "data": data, "algorithm": algorithm, **sections}
    return Study.parse(content, folder)


def trained(folder, target="ill", gaps=True, **given):
    """A run of two rounds on that table."""
    table(target, gaps).to_csv(folder / "all.csv", index=False)
    return study(folder, target, **given).run(folder / "runs", baselines=False, workers=1)


def bundled(run, folder, party=None):
    writing.write(writing.of_run(run, party), folder)
    return ar.load_bundle(folder)


def by_serial(x, column=0):
    return x[x[:, column].argsort()]


@pytest.mark.parametrize("standardise", [True, False])
@pytest.mark.parametrize("described", [True, False], ids=["schema", "plain"])
@pytest.mark.parametrize("target", KINDS.values(), ids=KINDS)
def test_a_bundle_predicts_what_the_run_predicted(tmp_path, target, described, standardise):
    """E2: features from the table to the bit, outputs to 1e-6, the reported score."""
    run = trained(
        tmp_path, target, described=described, data={"standardise": standardise},
        algorithm={"lr": 0.05 if standardise else 1e-12},
    )  # fmt: skip
    bundle, data = bundled(run, tmp_path / "b"), run.data
    frame = pd.read_csv(tmp_path / "all.csv")
    points = bundle.read(tmp_path / "all.csv", outcomes=True)
    serials = torch.cat([data.party(k)[2][:, 0] for k in range(data.parties)])
    tested = torch.isin(points.x[:, 0], serials).numpy()
    frame[tested].sample(frac=1, random_state=0)[frame.columns[::-1]].to_csv(
        tmp_path / "test.csv", index=False
    )
    test = bundle.read(tmp_path / "test.csv", outcomes=True)

    assert torch.equal(by_serial(points.x), by_serial(data.x))
    assert points.ignored == ["hospital"] and tested.sum() == len(serials)
    theirs = run.task_model.predict(run.vector, points.x)
    assert torch.allclose(bundle.outputs(points.x), theirs, atol=1e-6, rtol=1e-6)
    reported = pytest.approx(run.metrics, abs=1e-6, rel=1e-6)
    assert bundle.score(bundle.outputs(test.x), test.y) == reported
    assert bundle.about.metrics == reported


def test_classes_and_probabilities_have_names(tmp_path):
    bundle = bundled(trained(tmp_path, "ward"), tmp_path / "b")
    found = bundle.predict(pd.read_csv(tmp_path / "all.csv"))

    assert bundle.classes == ["home", "icu", "other"] and bundle.targets == ["ward"]
    assert bundle.columns == ["serial", "age", "killip", "code"]
    assert found.probabilities.shape == (ROWS, 3)
    best = [bundle.classes[i] for i in found.probabilities.argmax(axis=1)]
    assert found.values.tolist() == best
    assert np.allclose(found.probabilities.sum(axis=1), 1)


def test_gaps_in_texts_do_not_shorten_them(tmp_path):
    """Categories keep all their letters where a cell is empty: I to IV are four."""
    run = trained(tmp_path, described=False)

    assert run.data.columns == ["serial", "age", "killip=II", "killip=III", "killip=IV", "code"]


def test_a_gap_is_filled_at_prediction_though_training_had_none(tmp_path):
    for described in (True, False):
        folder = tmp_path / str(described)
        folder.mkdir()
        run = trained(folder, gaps=False, described=described, data={"standardise": False})
        frame = pd.read_csv(folder / "all.csv").iloc[:1].assign(age=np.nan)
        x = bundled(run, folder / "b").read(frame).x

        train = torch.cat([run.data.party(k)[0] for k in range(run.data.parties)])
        assert float(x[0, 1]) == pytest.approx(float(train[:, 1].mean()), rel=1e-6)


def refused(bundle, frame):
    with pytest.raises(ArchipelError) as error:
        bundle.predict(frame)
    return str(error.value)


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("missing", ["error", "drop"])
def test_a_table_that_training_would_refuse_is_refused(tmp_path, described, missing):
    run = trained(tmp_path, gaps=False, described=described, data={"missing": missing})
    bundle = bundled(run, tmp_path / "b")
    frame = pd.read_csv(tmp_path / "all.csv")
    path = tmp_path / "one.csv"
    frame.assign(killip=frame["killip"].where(frame.index != 4, "V")).to_csv(path, index=False)

    assert refused(bundle, path) == (
        f"'{path}': column 'killip', row 6: 'V' is not among I, II, III, IV; correct the file."
    )
    assert refused(bundle, frame.assign(age="old")).startswith("column 'age', row 1: 'old' is no")
    assert refused(bundle, frame.assign(age=frame["age"].where(frame.index != 3))) == (
        "column 'age' is empty in row 4; fill it in: the model was trained on rows without empty "
        "cells."
    )
    assert "no column 'age' (is it 'Age'?)" in refused(bundle, frame.rename(columns={"age": "Age"}))


# -- parties ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ditto", "pefll", "dsgd", "fedrep"])
def test_a_party_s_own_model_scores_as_reported(tmp_path, name):
    graph = {"topology": {"name": "ring"}} if name == "dsgd" else {}
    method = {"name": name} if name == "pefll" else {"name": name, "lr": 0.05}
    table("ill").to_csv(tmp_path / "all.csv", index=False)
    made = study(tmp_path, "ill", algorithm={}, model={"name": "mlp"}, **graph)
    made = Study.parse({**made.given(), "algorithm": method}, tmp_path)
    run = made.run(tmp_path / "runs", baselines=False, workers=1)
    bundle = bundled(open_run(run.folder), tmp_path / "b", "south")
    k = run.data.index("south")

    reported = {metric: float(values[k]) for metric, values in run.parties.items()}
    assert bundle.about.metrics == pytest.approx(reported, abs=1e-5)
    assert bundle.about.party == "south" and bundle.about.model == "south's own model"


def test_a_party_without_a_model_of_its_own_is_refused(tmp_path):
    run = trained(tmp_path)

    with pytest.raises(ArchipelError, match="FedAvg has one model for all parties"):
        writing.of_run(run, "south")
    with pytest.raises(ArchipelError, match="unknown party 'west'"):
        writing.of_run(run, "west")


def test_rows_of_a_party_go_into_no_bundle(tmp_path):
    run = trained(tmp_path, algorithm={"name": "knnper"}, model={"name": "mlp"})

    with pytest.raises(ArchipelError, match="predicts by a party's own rows, which no bundle"):
        writing.of_run(run, "south")


NET = """
from torch import nn
from beside import width

def net(shape: list[int], outputs: int, dropout: float = 0.0):
    return nn.Sequential(nn.Linear(shape[0], width), nn.BatchNorm1d(width), nn.ReLU(),
                         nn.Dropout(dropout), nn.Linear(width, outputs))
"""


@pytest.fixture
def normed(tmp_path):
    """A run of a model of the user's own, with BatchNorm."""
    (tmp_path / "mine.py").write_text(NET)
    (tmp_path / "beside.py").write_text("width = 8\n")
    return trained(tmp_path, model={"name": "mine.py:net", "dropout": 0.1})


def test_the_code_of_an_own_model_is_carried_and_not_run(tmp_path, normed):
    writing.write(writing.of_run(normed), tmp_path / "b")
    (tmp_path / "mine.py").unlink()

    with pytest.raises(ArchipelError, match=r"code/mine.py, which is not run unasked"):
        ar.load_bundle(tmp_path / "b")
    bundle = ar.load_bundle(tmp_path / "b", trust_code=True)
    x = bundle.read(tmp_path / "all.csv").x
    theirs = normed.task_model.predict(normed.vector, x, normed.buffers)
    assert torch.allclose(bundle.outputs(x), theirs, atol=1e-6)


def test_statistics_are_said_and_picked(tmp_path, normed):
    """The reported score has each party's statistics; a bundle never shows another unsaid."""
    writing.write(writing.of_run(normed), tmp_path / "all")
    shared = ar.load_bundle(tmp_path / "all", trust_code=True)

    assert shared.about.statistics == "averaged over the parties of each round, as the model is"
    assert shared.about.metrics == pytest.approx(normed.metrics, abs=1e-6)
    with pytest.raises(ArchipelError, match="has one model for all parties"):
        writing.of_run(normed, "south")


def test_who_keeps_its_own_statistics_has_its_own_bundle(tmp_path, normed):
    model = {"name": "mine.py:net", "dropout": 0.1, "statistics": "own"}
    own = trained(tmp_path, model=model)
    writing.write(writing.of_run(own, "south"), tmp_path / "south")
    south, k = ar.load_bundle(tmp_path / "south", trust_code=True), own.data.index("south")

    with pytest.raises(ArchipelError, match=r"keeps its own statistics .* say --party"):
        writing.of_run(own)
    assert south.about.statistics == "south's own"
    reported = {metric: float(values[k]) for metric, values in own.parties.items()}
    assert south.about.metrics == pytest.approx(reported, abs=1e-6)


# -- arrays ----------------------------------------------------------------------------------------


def run_of(folder, data, **sections):
    made = Study.parse({"study": {"rounds": 1}, "data": data, **sections}, folder)
    return made.run(folder / "runs", baselines=False, workers=1)


def test_images_go_in_as_arrays(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\nfrom archipel import Federation\n"
        "def load(seed: int = 0):\n"
        "    x = torch.rand(40, 1, 6, 6, generator=torch.Generator().manual_seed(seed))\n"
        "    y = (x.mean((1, 2, 3)) > 0.5).long()\n"
        "    return Federation.from_rows(x, y, [i % 2 for i in range(40)])\n"
    )
    run = run_of(tmp_path, {"name": "own.py:load", "standardise": True})
    bundle = bundled(run, tmp_path / "b")
    raw = run_of(tmp_path, {"name": "own.py:load"}).data.x
    np.save(tmp_path / "x.npy", raw.numpy())
    flat = pd.DataFrame(raw.flatten(1).numpy().astype(float))
    flat.to_csv(tmp_path / "x.csv", index=False)
    flat.to_csv(tmp_path / "bare.csv", index=False, header=False)

    assert torch.equal(bundle.read(tmp_path / "x.npy").x, run.data.x)
    assert torch.allclose(bundle.read(tmp_path / "x.csv").x, run.data.x, atol=1e-6)
    assert bundle.columns == [] and bundle.classes == [0, 1]
    assert "its first row is no header" in refused(bundle, tmp_path / "bare.csv")
    assert "the model takes [n, 1, 6, 6]" in refused(bundle, np.zeros((2, 7)))
    assert "row 2 of the array" in refused(bundle, np.array([[0.0] * 36, [np.nan] * 36]))


LOADERS = {
    "text": (
        "    x = torch.randint(0, 7, (40, 5), generator=g)\n"
        "    return Federation.from_rows(x, x.roll(1, 1), who, task='text', classes=7)\n"
    ),
    "cnn": (
        "    x = torch.rand(40, 1, 12, 12, generator=g)\n"
        "    return Federation.from_rows(x, (x.mean((1, 2, 3)) > 0.5).long(), who)\n"
    ),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_what_is_reported_of_texts_and_images_is_the_bundles(tmp_path, kind):
    (tmp_path / "own.py").write_text(
        "import torch\nfrom archipel import Federation\n"
        "def load(seed: int = 0):\n"
        "    g, who = torch.Generator().manual_seed(seed), [i % 2 for i in range(40)]\n"
        + LOADERS[kind]
    )
    run = run_of(tmp_path, {"name": "own.py:load"})
    bundle = bundled(run, tmp_path / "b")
    x, y = (torch.cat([run.data.party(k)[i] for k in range(2)]) for i in (2, 3))

    assert bundle.about.metrics == pytest.approx(run.metrics, abs=1e-6)
    assert bundle.score(bundle.outputs(x), y) == pytest.approx(run.metrics, abs=1e-6)


def test_bundled_tables_carry_their_names(tmp_path):
    heart = bundled(run_of(tmp_path, {"name": "heart_disease"}), tmp_path / "heart")
    brca = bundled(run_of(tmp_path, {"name": "tcga_brca"}), tmp_path / "brca")

    assert heart.columns[:2] == ["age", "sex"] and heart.targets == ["disease"]
    assert brca.targets == ["T", "E"] and len(brca.columns) == 39
    assert "CC BY 4.0" in heart.card


def test_a_federation_keeps_how_its_rows_were_read(tmp_path):
    fed = trained(tmp_path).data
    fed.save(tmp_path / "saved")
    again = ar.Federation.open(tmp_path / "saved")

    assert again.features.to_json() == fed.features.to_json()


# -- bundles of strangers --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    run = trained(folder, model={"name": "mlp", "widths": [4]})
    writing.write(writing.of_run(run), folder / "b")
    return folder / "b"


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "b")
    return tmp_path / "b"


def sealed(folder, **changes):
    """Change bundle.json, and write digests that fit, as an attacker does."""
    path = folder / files.ABOUT
    about = json.loads(path.read_text())
    for name, value in changes.items():
        *parents, last = name.split("__")
        inside = about
        for parent in parents:
            inside = inside[parent]
        inside[last] = value
    seal(folder, json.dumps(about).encode())


def seal(folder, about, name=files.ABOUT):
    found = {
        n: (folder / n).read_bytes() for n in (files.MODEL, files.STUDY, files.CARD, files.ABOUT)
    }
    found[name] = about
    shutil.rmtree(folder)
    files.save(folder, found)


def sentence(folder):
    with pytest.raises(ArchipelError) as error:
        ar.load_bundle(folder)
    return str(error.value)


@pytest.mark.parametrize("name", [files.ABOUT, files.MODEL, files.STUDY, files.CARD])
def test_a_changed_bundle_is_refused(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[-2] ^= 1
    (copy / name).write_bytes(content)
    said = sentence(copy)
    (copy / name).unlink()

    assert f"{name} is not as it was written" in said
    assert f"{name} cannot be read" in sentence(copy)


def test_a_newer_format_is_refused(copy):
    sealed(copy, format=3)

    assert "has format 3, and this version reads up to 2: update Archipel" in sentence(copy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"network__options": {"widths": [1 << 30, 1 << 30]}}, "weights are not those"),
        ({"network__options": {"widths": [1] * 1000}}, "does not fit the weights"),
        ({"network__name": "char_lstm", "network__options": {"layers": 1 << 40}}, "does not fit"),
        ({"network__outputs": 1 << 19}, "weights are not those"),
        ({"network__name": "../../mine.py:net"}, "is no Python file of the bundle"),
        ({"network__name": "/tmp/mine.py"}, "is no Python file of the bundle"),
        ({"network__name": "os.system"}, "unknown model"),
        ({"network__shape": [1 << 40]}, "too many numbers"),
        ({"features__scale": [0.0] * 6}, "does not fit features.mean"),
        ({"features__mean": [0.0] * 10_000}, "has not 6 numbers"),
        ({"classes": 3}, "do not fit the classes"),
        ({"study__hash": "\x1b[2J"}, "study.hash"),
        ({"extra": 1}, "extra"),
    ],
)  # fmt: skip
def test_a_stranger_s_bundle_takes_no_memory_and_runs_nothing(copy, changes, said):
    sealed(copy, **changes)

    assert said in sentence(copy)


def test_a_bundle_does_not_reach_outside(copy, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s")
    (copy / files.CARD).unlink()
    (copy / files.CARD).symlink_to(secret)
    linked = sentence(copy)
    sums = (copy / files.SUMS).read_text()
    (copy / files.SUMS).write_text(sums + f"{'0' * 64}  code/../../secret\n")

    assert "card.md is a link" in linked
    assert "'code/../../secret' is no file of a bundle" in sentence(copy)


def test_mutated_bundles_are_one_sentence(made, tmp_path):
    """Bytes and values changed at random, with digests that fit: refused, or right as it stands."""
    rng = random.Random(0)
    contents = {name: (made / name).read_bytes() for name in (files.ABOUT, files.MODEL)}
    for turn in range(150):
        folder = tmp_path / str(turn)
        shutil.copytree(made, folder)
        name = rng.choice([files.ABOUT, files.MODEL])
        content = bytearray(contents[name])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(min(len(content), 2000))
            if rng.random() < 0.5:
                content[at] = rng.randrange(256)
            else:
                content[at:at] = rng.choice([b"9" * 30, b"[" * 3000, b"null", b"-", b'"', b"1e999"])
        seal(folder, bytes(content), name)
        try:
            bundle = ar.load_bundle(folder)
            bundle.predict(np.zeros((1, 6)))
        except ArchipelError as error:
            assert "\n" not in str(error)
        shutil.rmtree(folder)


def test_nothing_half_written_stays(tmp_path, made):
    content = {name: (made / name).read_bytes() for name in (files.ABOUT, files.MODEL)}
    (tmp_path / "b").mkdir()

    with pytest.raises(ArchipelError, match="is there already"):
        files.save(tmp_path / "b", content)
    files.save(tmp_path / "b", content, again=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == sorted(
        [*content, files.SUMS]
    )
