# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from archipel.data import About, Federation, load
from archipel.errors import ArchipelError

from .strategies import QUICK, federations


@QUICK
@given(federations())
def test_round_trip(tmp_path: Path, fed: Federation) -> None:
    fed.save(tmp_path / "fed")  # over and over: the old one is replaced
    again = Federation.open(tmp_path / "fed")

    for name in ("x", "y", "offsets", "test_from"):
        a, b = getattr(fed, name), getattr(again, name)
        assert torch.equal(a, b) and a.dtype == b.dtype
    assert (again.training, again.task, again.classes) == (fed.training, fed.task, fed.classes)
    assert [again.name(k) for k in range(len(fed))] == [fed.name(k) for k in range(len(fed))]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fed"]


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
    before = (tmp_path / "f" / "x.npy").read_bytes()

    again = Federation.open(tmp_path / "f")
    again.x[0, 0] = 5  # private to this process

    assert (tmp_path / "f" / "x.npy").read_bytes() == before


def test_saving_over_the_open_federation_is_safe(tmp_path: Path) -> None:
    load("heart_disease").save(tmp_path / "f")
    fed = Federation.open(tmp_path / "f")
    fed.save(tmp_path / "f")

    assert torch.equal(Federation.open(tmp_path / "f").x, load("heart_disease").x)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(ArchipelError, match="holds no federation"):
        load("heart_disease").save(tmp_path)
    with pytest.raises(ArchipelError, match="holds no federation"):
        Federation.open(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    load("heart_disease").save(folder)
    objects = np.array([{"a": 1}], dtype=object)

    np.save(folder / "y.npy", objects, allow_pickle=True)
    with pytest.raises(ArchipelError, match="not a plain array"):
        Federation.open(folder)
    (folder / "y.npy").unlink()
    with pytest.raises(ArchipelError, match=r"lacks y\.npy"):
        Federation.open(folder)
    (folder / "meta.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(ArchipelError, match="not of format"):
        Federation.open(folder)
    (folder / "meta.json").write_text("{")
    with pytest.raises(ArchipelError, match="not JSON"):
        Federation.open(folder)
