# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from archipel.data import Federation
from archipel.errors import ArchipelError


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "hospital": ["b", "a", "b", "a", "a", "b"],
            "age": [50, 60, 70, 40, 30, 20],
            "ward": ["x", "y", "z", "x", "y", "z"],
            "days": [5.0, 6, 7, 8, 9, 10],
            "died": [0, 1, 1, 0, 0, 1],
        }
    )


def test_from_arrays_splits_each_party() -> None:
    fed = Federation.from_arrays(
        [np.zeros((10, 3)), np.ones((5, 3))], [[0] * 10, [1] * 5], test=0.2, names=["a", "b"]
    )

    assert fed.n.tolist() == [8, 4] and fed.n_test.tolist() == [2, 1]
    assert (fed.task, fed.classes, fed.x.dtype) == ("classification", 2, torch.float64)
    assert (fed.party("b")[0] == 1).all()


def test_from_arrays_with_own_test_points_and_an_empty_party() -> None:
    fed = Federation.from_arrays(
        [np.zeros((2, 1)), np.zeros((0, 1)), np.ones((3, 1))],
        [np.array([0.5, 1.5]), np.zeros(0), np.zeros(3)],
        test=[(np.zeros((1, 1)), [2.5]), (np.zeros((1, 1)), [1.0]), (np.zeros((0, 1)), [])],
    )

    assert fed.task == "regression" and fed.classes == 0
    assert fed.n.tolist() == [2, 0, 3] and fed.n_test.tolist() == [1, 1, 0]
    assert fed.party(0)[3].tolist() == [2.5]


@pytest.mark.parametrize(
    ("xs", "ys", "words"),
    [
        ([], [], "at least one party"),
        ([[[1.0]]], [], "one of each"),
        ([[[1.0]]], [[1, 0]], "party '0' has 1 points and 2 targets"),
        ([[[1.0]], [[1.0, 2.0]]], [[1], [0]], "party '1': x has points of shape"),
        ([[["a"]]], [[1]], "no numbers"),
    ],
)
def test_wrong_arrays_are_named(xs: list[Any], ys: list[Any], words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        Federation.from_arrays(xs, ys)


def test_from_frame_by_column() -> None:
    fed = Federation.from_frame(
        frame(), by="hospital", target="died", drop=["days"], test=0.34, standardise=False
    )

    assert list(fed.names or ()) == ["a", "b"]
    assert list(fed.columns or ()) == ["age", "ward=y", "ward=z"]
    assert fed.n.tolist() == [2, 2] and fed.n_test.tolist() == [1, 1]
    x, y, x_test, y_test = fed.party("a")
    got = {(int(a[0]), int(b)) for a, b in zip([*x, *x_test], [*y, *y_test], strict=True)}
    assert got == {(60, 1), (40, 0), (30, 0)}


def test_from_frame_survival_regression_partition_and_text_classes() -> None:
    table = frame()
    survival = Federation.from_frame(table, by="hospital", target=["days", "died"])
    number = Federation.from_frame(
        table, partition="shards:1", parties=3, target="days", test=0.0, task="regression"
    )
    text = Federation.from_frame(table, partition="by:hospital", target="ward")

    assert survival.task == "survival" and survival.y.shape == (6, 2)
    assert number.task == "regression" and number.parties == 3
    assert number.n.tolist() == [2, 2, 2]
    assert text.classes == 3 and text.task == "classification"


def test_from_frame_with_a_column_of_test_rows() -> None:
    table = frame().assign(held_out=[True, False, False, True, False, False])
    fed = Federation.from_frame(
        table, by="hospital", target="died", test="held_out", standardise=False
    )

    assert fed.n_test.tolist() == [1, 1]
    assert int(fed.party("a")[2][0, 0]) == 40


def test_missing_values() -> None:
    table = frame()
    table.loc[2, "age"] = np.nan
    make: dict[str, Any] = {"by": "hospital", "target": "died", "test": 0.0, "standardise": False}

    with pytest.raises(
        ArchipelError, match=r"empty cells in 'age' \(1\), the first in party 'b'"
    ) as e:
        Federation.from_frame(table, **make)
    dropped = Federation.from_frame(table, missing="drop", **make)
    filled = Federation.from_frame(table, missing="mean", **make)

    assert 'data.missing = "drop" (the rows) or "mean"' in str(e.value)
    assert dropped.n.tolist() == [3, 2]
    assert float(filled.party("b")[0][1, 0]) == 40.0  # (50 + 60 + 40 + 30 + 20) / 5


def test_missing_values_are_filled_from_training_rows_only() -> None:
    table = frame().assign(t=[False, False, False, False, False, True])
    table["age"] = [np.nan, 1.0, 3, 1, 3, 100]
    asked = {"by": "hospital", "target": "died", "test": "t", "missing": "mean"}
    fed = Federation.from_frame(table, **asked, standardise=False)

    assert float(fed.party("b")[0][0, 0]) == 2.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"by": "hospitel", "target": "died"}, "did you mean 'hospital'"),
        ({"by": "hospital", "target": "dead"}, "unknown column 'dead'"),
        ({"target": "died"}, "one of the two"),
        ({"by": "hospital", "target": ["days", "died", "age"]}, "time, event"),
        ({"by": "hospital", "target": ["ward", "died"]}, "'ward' is not made of numbers"),
        ({"by": "hospital", "target": "died", "test": "ward"}, "'ward' must be true on test"),
        ({"by": "hospital", "target": "died", "test": "age"}, "'age' must be true on test"),
        ({"by": "hospital", "target": "died", "missing": "guess"}, "Known: drop, error, mean"),
        ({"by": "hospital", "target": "died", "test": 2.0}, "test=2.0"),
        ({"by": "hospital", "target": "died", "drop": ["age", "ward", "days"]}, "drop fewer"),
    ],
)
def test_wrong_tables_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        Federation.from_frame(frame(), **options)


def test_parties_of_numbers_are_in_order() -> None:
    table = frame().assign(hospital=[10, 2, 10, 2, 2, 10], cost=[0.5, 1, 2, 3, 4, 5])
    fed = Federation.from_frame(table, by="hospital", target="died")

    assert list(fed.names or ()) == ["2", "10"]
    with pytest.raises(ArchipelError, match="'cost' has fractions"):
        Federation.from_frame(table, by="hospital", target="cost", task="classification")


def test_free_text_is_refused() -> None:
    table = pd.DataFrame({"p": ["a"] * 30, "note": [f"n{i}" for i in range(30)], "y": [0, 1] * 15})

    with pytest.raises(ArchipelError, match="'note' is text with 30 different values"):
        Federation.from_frame(table, by="p", target="y")


def test_from_dataset_by_list_function_and_partition() -> None:
    data = TensorDataset(torch.arange(12.0)[:, None], torch.arange(12) % 3)
    listed = Federation.from_dataset(data, by=["u", "v"] * 6, test=0.5)
    called = Federation.from_dataset(data, by=lambda item: int(item[1]))
    dealt = Federation.from_dataset(data, partition="shards:1", parties=3, test=data)

    assert listed.names == ["u", "v"] and listed.n.tolist() == [3, 3]
    assert called.names == ["0", "1", "2"]
    assert {int(v) for v in called.party("2")[1]} == {2}
    assert dealt.n.tolist() == [4, 4, 4] and dealt.n_test.tolist() == [4, 4, 4]
    for k in range(3):
        assert set(dealt.party(k)[1].tolist()) == set(dealt.party(k)[3].tolist())


def test_wrong_datasets_are_named() -> None:
    data = TensorDataset(torch.zeros(3, 1), torch.zeros(3).long())

    with pytest.raises(ArchipelError, match="2 entries for 3 items"):
        Federation.from_dataset(data, by=[0, 1])
    with pytest.raises(ArchipelError, match="pair"):
        Federation.from_dataset(TensorDataset(torch.zeros(3)))
    with pytest.raises(ArchipelError, match="empty"):
        Federation.from_dataset([])


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_from_folder_of_tables(tmp_path: Path, kind: str) -> None:
    for name, part in frame().groupby("hospital"):
        write = part.drop(columns="hospital")
        path = tmp_path / f"{name}.{kind}"
        _ = write.to_csv(path, index=False) if kind == "csv" else write.to_parquet(path)
    (tmp_path / "README.txt").write_text("not data")

    fed = Federation.from_folder(tmp_path, target="died", test=0.0)

    assert list(fed.names or ()) == ["a", "b"] and fed.n.tolist() == [3, 3]
    assert list(fed.columns or ()) == ["age", "ward=y", "ward=z", "days"]


def test_from_folder_of_arrays(tmp_path: Path) -> None:
    for name in ("u", "v"):
        np.savez(
            tmp_path / f"{name}.npz",
            x=np.zeros((4, 2), np.float32), y=np.arange(4),
            x_test=np.zeros((1, 2), np.float32), y_test=np.array([3]),
        )  # fmt: skip
    fed = Federation.from_folder(tmp_path)

    assert list(fed.names or ()) == ["u", "v"]
    assert fed.n.tolist() == [4, 4] and fed.n_test.tolist() == [1, 1]


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArchipelError, match="does not exist"):
        Federation.from_folder(tmp_path / "nowhere")
    with pytest.raises(ArchipelError, match="has no"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "u.npz", z=np.zeros(2))
    with pytest.raises(ArchipelError, match="no array 'x'; it has z"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "u.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ArchipelError, match="Python objects"):
        Federation.from_folder(tmp_path)
    frame().to_csv(tmp_path / "a.csv")
    with pytest.raises(ArchipelError, match="mixes"):
        Federation.from_folder(tmp_path)
    (tmp_path / "u.npz").unlink()
    frame().drop(columns="age").to_csv(tmp_path / "b.csv")
    with pytest.raises(ArchipelError, match="party 'b': column 'age'"):
        Federation.from_folder(tmp_path, target="died")
