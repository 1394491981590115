# SPDX-License-Identifier: Apache-2.0
"""Counts are those of src/archipel/data/files/README.md."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from archipel.data import datasets, load, moons, optimum, quadratics, shakespeare
from archipel.data.sources import bundled_arrays
from archipel.errors import ArchipelError


def sorted_rows(x: Tensor) -> Tensor:
    """Return a fingerprint of rows that does not depend on their order."""
    weights = torch.linspace(1, 2, x[0].numel(), dtype=torch.float64)
    return torch.sort(x.reshape(len(x), -1).double() @ weights).values


def test_listing_has_provenance() -> None:
    assert len(datasets()) == 14
    for name, about in datasets().items():
        assert about.name == name and about.source and about.licence


def test_heart_disease() -> None:
    fed = load("heart_disease")

    assert [fed.name(k) for k in range(4)] == ["cleveland", "hungarian", "switzerland", "va"]
    assert (fed.n + fed.n_test).tolist() == [303, 261, 46, 130]
    sick = [int(fed.y[a:b].sum()) for a, b in zip(fed.offsets[:-1], fed.offsets[1:], strict=True)]
    assert sick == [139, 98, 45, 101]
    assert fed.shape == (13,) and fed.x.dtype == torch.float32
    for k in range(4):  # balanced
        _, y, _, y_test = fed.party(k)
        wanted = len(y_test) * int(y.sum() + y_test.sum()) / (len(y) + len(y_test))
        assert abs(int(y_test.sum()) - wanted) <= 1
    raw = load("heart_disease", standardise=False)
    assert float(raw.x[:, 0].max()) == 77
    assert not torch.equal(raw.y, load("heart_disease", standardise=False, seed=1).y)


def test_mnist_test_points_are_the_official_test_set() -> None:
    fed = load("mnist", partition="shards:2", parties=100, seed=3)
    official = bundled_arrays("mnist.npz")
    tests = torch.cat([fed.party(k)[2] for k in range(100)])

    assert (int(fed.n.sum()), int(fed.n_test.sum())) == (60000, 10000)
    assert (fed.n == 600).all() and fed.shape == (1, 28, 28)
    assert float(fed.x.min()) >= 0 and float(fed.x.max()) == 1
    expected = torch.from_numpy(official["x_test"]).float() / 255
    assert torch.allclose(sorted_rows(tests), sorted_rows(expected))
    for k in range(0, 100, 9):
        _, y, _, y_test = fed.party(k)
        shares = [t.bincount(minlength=10) / len(t) for t in (y, y_test)]
        assert (shares[0] - shares[1]).abs().max() < 0.05


def test_femnist() -> None:
    fed = load("femnist")
    whole = fed.select(np.arange(293))

    assert (fed.training, fed.parties, fed.classes) == (293, 526, 62)
    assert (int(whole.n.sum()), int(whole.n_test.sum())) == (41214, 4697)
    sizes = whole.n + whole.n_test
    assert (int(sizes.min()), int(sizes.median()), int(sizes.max())) == (20, 167, 355)
    assert len(fed.x) - len(whole.x) == 7070
    assert fed.name(0) == "f0424_27" and fed.name(293) == "f0005_26"
    assert (fed.n - fed.n_test)[293:].abs().max() <= 1
    digits = [float((t < 10).double().mean()) for t in (whole.y, fed.y[len(whole.y) :])]
    assert [round(d, 2) for d in digits] == [0.71, 0.34]


def test_femnist_new_writers() -> None:
    assert load("femnist", new="none").parties == 293
    held = load("femnist", new=93, seed=1)
    assert (held.training, held.parties) == (200, 293)
    with pytest.raises(ArchipelError, match="'partial', 'none'"):
        load("femnist", new="some")


def test_tcga_brca() -> None:
    fed = load("tcga_brca")
    ends = zip(fed.offsets[:-1], fed.offsets[1:], strict=True)

    assert (fed.n + fed.n_test).tolist() == [311, 196, 206, 162, 162, 51]
    assert [int(fed.y[a:b, 1].sum()) for a, b in ends] == [59, 39, 22, 19, 9, 3]
    assert fed.n.tolist() == [248, 156, 164, 129, 129, 40]
    assert fed.shape == (39,) and fed.task == "survival"
    assert load("tcga_brca", standardise=False).x[:, 0].max() == 90  # years


def test_school() -> None:
    fed = load("school")
    sizes = fed.n + fed.n_test

    assert (fed.parties, len(fed.x), fed.shape) == (139, 15362, (28,))
    assert (int(sizes.min()), int(sizes.max())) == (22, 251)
    assert (float(fed.y.min()), float(fed.y.max()), fed.classes) == (1, 70, 0)
    assert abs(int(fed.n_test.sum()) / 15362 - 0.25) < 0.01


def test_shakespeare() -> None:
    fed = load("shakespeare")

    assert (fed.parties, fed.classes, fed.shape) == (432, 80, (80,))
    assert (int(fed.n.sum()), int(fed.n_test.sum())) == (28113, 3736)
    assert torch.equal(fed.x[:, 1:], fed.y[:, :-1])
    assert shakespeare.decode(fed.x[0].numpy()).startswith("Yonder comes my master, your brother.")
    assert int(fed.x.min()) > shakespeare.UNKNOWN  # all characters are known
    few = load("shakespeare", min_windows=100)
    assert int(few.n.min()) >= 100


def test_text_survives_encoding() -> None:
    text = shakespeare.CHARACTERS

    assert shakespeare.decode(shakespeare.encode(text)) == text
    assert shakespeare.decode(shakespeare.encode("né?")) == "n�?"


def test_synthetic_follows_the_papers_generator() -> None:
    fed = load("synthetic", alpha=1, beta=1, parties=6, seed=0)
    rng = np.random.RandomState(0)
    sizes = rng.lognormal(4, 2, 6).astype(int) + 50
    u, B = rng.normal(0, 1, 6), rng.normal(0, 1, 6)
    v = np.stack([rng.normal(b, 1, 60) for b in B])
    W, b = rng.normal(u[0], 1, (60, 10)), rng.normal(u[0], 1, 10)
    x = rng.multivariate_normal(v[0], np.diag(np.arange(1, 61) ** -1.2), sizes[0])

    assert (fed.n + fed.n_test).tolist() == sizes.tolist()
    assert fed.n.tolist() == [int(0.9 * n) for n in sizes]
    x_0, y_0, x_t, y_t = fed.party(0)
    mine, labels = torch.cat([x_0, x_t]), torch.cat([y_0, y_t])
    assert np.allclose(np.sort(mine[:, 0]), np.sort(x[:, 0]), atol=1e-6)
    assert np.array_equal(np.bincount(labels), np.bincount(np.argmax(x @ W + b, axis=1)))
    assert int(load("synthetic", parties=6, most=100).n.max()) == 90


def test_iid_synthetic_has_one_model_and_centred_inputs() -> None:
    fed = load("synthetic", iid=True, parties=6, most=200, dtype=torch.float64)
    rng = np.random.RandomState(0)
    rng.lognormal(4, 2, 6)
    W, b = rng.normal(0, 1, (60, 10)), rng.normal(0, 1, 10)

    assert np.array_equal(np.argmax(fed.x.numpy() @ W + b, axis=1), fed.y.numpy())
    assert max(float(fed.party(k)[0].mean(0).abs().max()) for k in range(6)) < 0.5


def test_moons_are_one_sample_turned_by_the_axes() -> None:
    fed = load("moons", seed=2017, dtype=torch.float64)
    axes = moons.axes(seed=2017)
    cos, sin = (axes / np.linalg.norm(axes, axis=1, keepdims=True)).T

    assert fed.parties == 100 and fed.shape == (20,)
    assert int(fed.n.min()) >= 3 and int(fed.n.max()) <= 19 and (fed.n_test == 100).all()
    assert (fed.x[:, 2:] == 0).all()
    unturned = [
        fed.party(k)[2][:, :2].numpy() @ np.array([[cos[k], sin[k]], [-sin[k], cos[k]]])
        for k in (0, 57)
    ]
    assert np.allclose(*unturned)
    unlike = int((fed.party(0)[3] != fed.party(57)[3]).sum())
    assert unlike <= 10  # 5 % flipped at each


def test_moons_graph_has_the_notebooks_mean_degree() -> None:
    axes = moons.axes(seed=2017)
    unit = axes / np.linalg.norm(axes, axis=1, keepdims=True)
    cos = unit @ unit.T
    weight = np.exp(-((1 - cos) ** 2 + (1 - cos**2)) / (2 * 0.1))
    np.fill_diagonal(weight, 0)
    for power in range(1, 100):  # largest threshold that keeps the graph connected
        graph = weight > weight.max() * 10 ** (-power / 2)
        if np.linalg.eigvalsh(np.diag(graph.sum(1)) - graph.astype(float))[1] > 1e-3:
            break

    assert graph.sum(1).mean() == 60.86


def test_clustered_moons() -> None:
    fed, axes = load("moons", clusters=True, seed=1), moons.axes(clusters=True, seed=1)
    centres = np.repeat([[1, 1], [-1, 1], [1, -1], [-1, -1]], [10, 20, 30, 40], axis=0)

    assert fed.parties == 100 and int(fed.n.max()) <= 14
    assert np.abs(axes - centres).mean() < 0.3
    with pytest.raises(ArchipelError, match="multiple of 10"):
        load("moons", clusters=True, parties=7)


@pytest.mark.parametrize("heterogeneity", [0.0, 1.0])
def test_quadratics_optimum_has_no_gradient(heterogeneity: float) -> None:
    fed, w = quadratics(parties=8, dims=4, points=10, heterogeneity=heterogeneity, seed=2)
    uniform = optimum(fed, uniform=True)

    def gradient(k: int, at: Tensor) -> Tensor:
        A, b, _, _ = fed.party(k)
        return A.T @ (A @ at - b) / len(A)

    share = fed.n / fed.n.sum()
    assert fed.x.dtype == torch.float64 and w.shape == (4,)
    assert sum(share[k] * gradient(k, w) for k in range(8)).abs().max() < 1e-12  # type: ignore[union-attr]
    assert sum(gradient(k, uniform) for k in range(8)).abs().max() < 1e-11  # type: ignore[union-attr]
    same = all(bool(gradient(k, w).abs().max() < 1e-10) for k in range(8))
    assert same == (heterogeneity == 0)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def test_fashion_mnist_from_idx_files(tmp_path: Path) -> None:
    for part, n in (("train", 40), ("t10k", 10)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", np.full((n, 28, 28), n))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.arange(n) % 10)
    fed = load("fashion_mnist", folder=tmp_path, parties=4)

    assert fed.n.tolist() == [10] * 4 and int(fed.n_test.sum()) == 10
    assert fed.shape == (1, 28, 28)
    with pytest.raises(ArchipelError, match="dataset-fashion-mnist"):
        load("fashion_mnist", folder=tmp_path / "nowhere")


def test_cifar_from_npz_and_binary_files_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 32, 32, 3)).astype(np.uint8)
    y = (np.arange(60) % 10).astype(np.uint8)
    (tmp_path / "npz").mkdir()
    (tmp_path / "bin").mkdir()
    np.savez(tmp_path / "npz/cifar10.npz", x_train=x[:50], y_train=y[:50], x_test=x[50:],
             y_test=y[50:])  # fmt: skip
    records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(60, -1)], axis=1)
    for i in range(5):
        records[10 * i : 10 * i + 10].tofile(tmp_path / f"bin/data_batch_{i + 1}.bin")
    records[50:].tofile(tmp_path / "bin/test_batch.bin")

    a, b = (load("cifar10", folder=tmp_path / kind, parties=5) for kind in ("npz", "bin"))

    assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    assert a.shape == (3, 32, 32) and int(a.n_test.sum()) == 10
    (tmp_path / "bin/test_batch.bin").write_bytes(b"short")
    with pytest.raises(ArchipelError, match="cut short"):
        load("cifar10", folder=tmp_path / "bin")
    with pytest.raises(ArchipelError, match="folder="):
        load("cifar100")


def test_cifar100_from_binary_files(tmp_path: Path) -> None:
    for name, n in (("train", 200), ("test", 100)):
        record = np.zeros((n, 2 + 3072), np.uint8)
        record[:, 1] = np.arange(n) % 100
        record.tofile(tmp_path / f"{name}.bin")
    fed = load("cifar100", folder=tmp_path, parties=2)

    assert fed.classes == 100 and fed.n.tolist() == [100, 100]
    assert int(fed.y.max()) == 99


def test_uci_har(tmp_path: Path) -> None:
    n = 30
    np.savez(
        tmp_path / "uci_har_inertial.npz",
        x_q=np.full((n, 9, 128), 4096, np.int16), scale=np.float32(1 / 4096),
        y=np.arange(n) % 6, subject=np.arange(n) % 3 + 1, is_test=np.arange(n) >= 24,
    )  # fmt: skip
    fed = load("uci_har", folder=tmp_path)

    assert list(fed.names or ()) == ["1", "2", "3"] and fed.shape == (9, 128)
    assert fed.n.tolist() == [8, 8, 8] and (fed.x == 1).all()


def test_natural_parties_can_be_dealt_anew() -> None:
    fed = load("heart_disease", partition="dirichlet:0.5", parties=6)

    assert fed.parties == 6 and len(fed.x) == 740


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("minst", {}, "did you mean 'mnist'"),
        ("heart_disease", {"parties": 3}, "partition='iid'"),
        ("heart_disease", {"alpha": 3}, "unknown option of dataset 'heart_disease' 'alpha'"),
        ("heart_disease", {"folder": "here"}, "unknown option"),
        ("heart_disease", {"test_fraction": 1.5}, "fraction=1.5"),
        ("mnist", {"partition": "shard:2"}, "did you mean 'shards'"),
        ("synthetic", {"alpha": -1}, "alpha=-1"),
        ("quadratics", {"dims": 0}, "dims=0"),
        ("shakespeare", {"length": 0}, "length=0"),
    ],
)
def test_wrong_requests_are_named(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        load(name, **options)  # type: ignore[arg-type]


def test_uci_har_of_some_activities_with_statistics_of_their_signals(tmp_path: Path) -> None:
    y = np.arange(12) % 6
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "uci_har_inertial.npz",
        x_q=rng.integers(-4096, 4096, (12, 9, 128), dtype=np.int16), scale=1 / 4096, y=y,
        subject=np.repeat([1, 2], 6), is_test=np.arange(12) >= 6,
    )  # fmt: skip

    stairs = {"only": ["upstairs", "downstairs"], "summary": True}
    fed = load("uci_har", folder=tmp_path, dtype=torch.float64, **stairs)
    whole = load("uci_har", folder=tmp_path, dtype=torch.float64)

    assert (fed.parties, len(fed.x), fed.shape, fed.classes) == (2, 4, (72,), 2)
    assert fed.y.tolist() == [0, 1, 0, 1]
    signal = whole.x[1, 4]  # of who walks upstairs, channel 4
    torch.testing.assert_close(fed.x[0, 32], signal.mean())
    torch.testing.assert_close(fed.x[0, 34:37], signal.sort().values[[0, 63, 127]])
    with pytest.raises(ArchipelError, match="activity"):
        load("uci_har", folder=tmp_path, only=["upstairs", "running"])
    with pytest.raises(ArchipelError, match="two activities"):
        load("uci_har", folder=tmp_path, only=["upstairs"])


def test_school_of_two_classes() -> None:
    scores, fed = load("school", standardise=False), load("school", above=20, pupils=True)

    assert (fed.task, fed.classes, fed.shape) == ("classification", 2, (17,))
    assert int(fed.y.sum()) == int((scores.y > 20).sum())


def test_moons_of_points_of_their_own() -> None:
    shared, own = (load("moons", parties=20, seed=3, own_points=each) for each in (False, True))

    assert torch.equal(shared.n, own.n)
    radius = [
        fed.x[:, :2].norm(dim=1)[fed.test_from[k] :][:100] for fed in (shared, own) for k in (0, 1)
    ]
    torch.testing.assert_close(radius[0], radius[1])  # turned, and no more
    assert not torch.allclose(radius[2], radius[3])
