# SPDX-License-Identifier: Apache-2.0
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel.data import About, Federation, load
from archipel.data.population import Population
from archipel.data.shards import MANIFEST, write
from archipel.errors import ArchipelError

from .strategies import QUICK, federations

TARGETS = {
    "classification": lambda n: torch.arange(n) % 3,
    "regression": lambda n: torch.arange(n).float(),
    "survival": lambda n: torch.stack([torch.arange(n).float(), torch.arange(n) % 2.0], dim=1),
}


def same(a: Federation, b: Federation) -> None:
    for name in ("offsets", "test_from", "x", "y"):
        one, two = getattr(a, name), getattr(b, name)
        assert torch.equal(one, two) and one.dtype == two.dtype and one.shape == two.shape
    assert (a.training, a.task, a.classes, a.about) == (b.training, b.task, b.classes, b.about)
    assert [a.name(k) for k in range(len(a))] == [b.name(k) for k in range(len(a))]
    for k in range(len(a)):
        assert all(map(torch.equal, a.party(k), b.party(k)))


@QUICK
@given(federations(), st.sampled_from(list(TARGETS)), st.sampled_from([1, 40, 100, 10**6]))
def test_what_is_written_is_read(tmp_path: Path, fed: Federation, task: str, size: int) -> None:
    y = TARGETS[task](fed.points)
    fed = replace(fed, y=y, task=task, classes=3 if task == "classification" else 0)
    write(fed, tmp_path / "fed", size, again=True)  # over and over: the old one is replaced

    again = Federation.open(tmp_path / "fed", scan=True, check=True)

    same(fed, again)
    if isinstance(again, Population):
        copied = again.select(list(reversed(range(len(fed)))))
        same(fed.select(list(reversed(range(len(fed))))), copied)
        write(copied, tmp_path / "copied", again=True)
        same(copied.here, Federation.open(tmp_path / "copied"))


def test_about_columns_and_derived_federations_survive(tmp_path: Path) -> None:
    fed = load("heart_disease")
    fed.select([3, 1]).save(tmp_path / "two")
    again = Federation.open(tmp_path / "two")

    assert isinstance(again.about, About) and again.about == fed.about
    assert list(again.columns or ()) == list(fed.columns or ())
    assert again.names is not None and [again.name(0), again.name(1)] == ["va", "hungarian"]
    assert torch.equal(again.party("va")[0], fed.party("va")[0])
    assert again.validation(0.2).select(["va"]).parties == 1


def test_opened_files_are_mapped_not_read_and_never_written(tmp_path: Path) -> None:
    fed = Federation.from_arrays([np.zeros((4, 2), np.float32)], [np.zeros(4)], test=0.0)
    fed.save(tmp_path / "f")
    before = (tmp_path / "f" / "x-00000.npy").read_bytes()

    again = Federation.open(tmp_path / "f")
    again.x[0, 0] = 5  # private to this process

    assert (tmp_path / "f" / "x-00000.npy").read_bytes() == before


def test_a_shard_is_mapped_when_a_party_of_it_is_asked_for(tmp_path: Path) -> None:
    write(load("heart_disease"), tmp_path / "f", size=1)
    fed = Federation.open(tmp_path / "f")
    assert isinstance(fed, Population)

    fed.held(np.array([2]))

    assert {name for name in fed.source._mapped if name[:2] in ("x-", "y-")} == {  # type: ignore[attr-defined]
        "x-00002.npy",
        "y-00002.npy",
    }


def test_saving_over_the_open_federation_is_safe(tmp_path: Path) -> None:
    load("heart_disease").save(tmp_path / "f")
    fed = Federation.open(tmp_path / "f")
    fed.save(tmp_path / "f")

    assert torch.equal(Federation.open(tmp_path / "f").x, load("heart_disease").x)


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    fed = load("heart_disease")
    fed.save(tmp_path / "f")
    before = (tmp_path / "f" / MANIFEST).read_bytes()

    with pytest.raises(ArchipelError, match="holds no federation"):
        fed.save(tmp_path)
    with pytest.raises(ArchipelError, match="holds no federation"):
        Federation.open(tmp_path)
    with pytest.raises(ArchipelError, match="is there already"):
        write(fed, tmp_path / "f")
    assert (tmp_path / "thesis.tex").exists()
    assert (tmp_path / "f" / MANIFEST).read_bytes() == before


def test_a_generator_that_fails_leaves_nothing(tmp_path: Path) -> None:
    @replace_of_generate
    def generate(self: object, parties: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if parties.max() > 5:
            raise ArchipelError("no more")
        return np.zeros((len(parties), 1), np.float32), np.zeros(len(parties), np.int64)

    with pytest.raises(ArchipelError, match="no more"):
        write(Federation.from_generator(generate), tmp_path / "f", size=16)

    assert list(tmp_path.iterdir()) == []


def replace_of_generate(generate: object) -> object:
    """A small population with this way to make points."""
    one = lambda self, parties: (np.ones_like(parties), np.zeros_like(parties))  # noqa: E731
    told = {"parties": 10, "task": "classification", "classes": 2, "sizes": one}
    return type("Small", (), {**told, "generate": generate})()


@pytest.fixture(params=["one", "many"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    write(load("heart_disease"), tmp_path / "f", 1 if request.param == "many" else 1 << 20)
    return tmp_path / "f"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != MANIFEST)


def test_a_file_that_is_missing_or_short_is_named(folder: Path) -> None:
    for path in files(folder):
        before = path.read_bytes()
        path.write_bytes(before[:-1])
        with pytest.raises(ArchipelError, match=rf"{path.name}' has .* bytes"):
            Federation.open(folder)
        path.unlink()
        with pytest.raises(ArchipelError, match=rf"{path.name}' is missing"):
            Federation.open(folder)
        path.write_bytes(before)


def test_a_changed_byte_is_found_and_named(folder: Path) -> None:
    for path in files(folder):
        before = path.read_bytes()
        for at in (7, len(before) // 2, len(before) - 1):
            path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
            with pytest.raises(ArchipelError, match=rf"{path.name}'"):
                Federation.open(folder, check=True)
        path.write_bytes(before)
    Federation.open(folder, check=True)


def test_an_array_of_objects_is_never_loaded(folder: Path) -> None:
    meta = json.loads((folder / MANIFEST).read_text())
    path = folder / "y-00000.npy"
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    meta["files"]["y-00000.npy"]["bytes"] = path.stat().st_size
    (folder / MANIFEST).write_text(json.dumps(meta))

    with pytest.raises(ArchipelError, match=r"y-00000\.npy' is not a plain array"):
        Federation.open(folder).here.y.sum()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, "not of format"),
        ({"files": {}}, "does not say all"),
        ({"files": {"../x.npy": {"bytes": 1, "blake2b": ""}}}, "does not say all"),
        ({"shards": []}, "does not say all"),
        ({"shards": [-1, 4]}, "does not say all"),
        ({"x": {"dtype": "object", "shape": [13]}}, "does not say all"),
        ({"x": {"dtype": "float64", "shape": [13]}}, "holds other arrays"),
        ({"training": "all"}, "does not say all"),
        ({"parties": 400, "shards": [400]}, "does not fit|does not say all"),
        ({"task": "guessing"}, "unknown task"),
    ],
)
def test_manifests_that_lie(folder: Path, change: dict[str, object], said: str) -> None:
    meta = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(meta | change))

    with pytest.raises(ArchipelError, match=said):
        _ = Federation.open(folder).here.x


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"format": "archipel federation 2"}'])
def test_manifests_that_are_none(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(ArchipelError, match=MANIFEST):
        Federation.open(folder)


def test_folders_of_version_1_are_still_read(tmp_path: Path) -> None:
    fed = load("heart_disease")
    arrays = {"x": fed.x, "y": fed.y, "offsets": fed.offsets, "test_from": fed.test_from}
    for name, tensor in arrays.items():
        np.save(tmp_path / f"{name}.npy", tensor.numpy())
    np.save(tmp_path / "names.npy", np.array(list(fed.names or ()), np.str_))
    about = {"name": "heart_disease"}
    told = {"format": "archipel federation 1", "training": 4, "task": fed.task, "classes": 2}
    (tmp_path / "meta.json").write_text(json.dumps(told | {"about": about, "columns": None}))

    again = Federation.open(tmp_path)
    assert torch.equal(again.x, fed.x) and again.name(1) == fed.name(1)

    (tmp_path / "y.npy").unlink()
    with pytest.raises(ArchipelError, match=r"lacks y\.npy"):
        Federation.open(tmp_path)


def test_a_population_travels_as_a_path(tmp_path: Path) -> None:
    write(load("femnist", parties=None).select([0, 1, 2, 3]), tmp_path / "f", size=1)
    fed = Federation.open(tmp_path / "f")
    assert isinstance(fed, Population)

    text = pickle.dumps(fed.source)

    assert len(text) < 1000
    one = np.array([2])
    assert torch.equal(pickle.loads(text).take(one, fed._sizes(one))[0], fed.held(one).x)


@pytest.mark.parametrize("algorithm", [ar.FedAvg(lr=0.1), ar.Scaffold(lr=0.1), ar.Ditto(lr=0.1)])
def test_a_run_on_shards_is_the_run_in_memory(tmp_path: Path, algorithm: ar.FedAvg) -> None:
    fed = load("crowd", parties=40, features=5, classes=3).with_new(4)
    write(fed, tmp_path / "many", size=2000)
    write(fed, tmp_path / "one")
    options = {"rounds": 3, "sample": 7, "seed": 3, "workers": 2, "plan": ar.Plan("stacked", 4, 2)}

    ran = [
        ar.simulate(algorithm, data, "logistic", **options)  # type: ignore[arg-type]
        for data in (
            fed.here,
            fed,
            Federation.open(tmp_path / "many"),
            Federation.open(tmp_path / "one"),
        )
    ]

    for run in ran[1:]:
        assert torch.equal(run.vector, ran[0].vector)
        assert [e["metrics"] for e in run.history] == [e["metrics"] for e in ran[0].history]
        assert [e["own_new"] for e in run.history] == [e["own_new"] for e in ran[0].history]


def test_numbers_to_predict_are_trained_on_alike(tmp_path: Path) -> None:
    x = torch.randn(30, 3, generator=torch.manual_seed(0))
    fed = Federation.from_rows(x, 100 + 9 * x[:, 0], torch.arange(30) % 5).standardised()
    write(fed, tmp_path / "f", size=1)
    again = Federation.open(tmp_path / "f")

    runs = [ar.simulate(ar.FedAvg(lr=0.1), each, rounds=3, workers=1) for each in (fed, again)]

    assert isinstance(again, Population)
    assert torch.equal(runs[0].vector, runs[1].vector)
    assert runs[0].history[-1]["metrics"] == runs[1].history[-1]["metrics"]
