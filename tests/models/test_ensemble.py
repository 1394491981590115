# SPDX-License-Identifier: Apache-2.0
"""Ensembles of given base models: what they say, that they stack, what is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import archipel as ar
from archipel.engines import plan
from archipel.engines.party import LocalParty
from archipel.errors import ArchipelError
from archipel.models import build
from archipel.models.losses import LOSSES
from archipel.runs.parts import build_model

DATA = ar.load("moons", parties=20)


def test_stumps_lie_evenly_between_the_ends() -> None:
    base = build("stumps", (3,), 2, count=6, low=-1.0, high=1.0)[1]

    assert base.feature.tolist() == [0, 0, 1, 1, 2, 2]
    assert base.threshold.tolist() == pytest.approx([-0.5, 0.5] * 3)
    said = base(torch.tensor([[0.0, 2.0, -2.0]]))
    assert said.tolist() == [[-1, 1, -1, -1, 1, 1]]


def test_which_features_have_a_stump_less_is_of_the_seed() -> None:
    first, again, other = (build("stumps", (5,), 2, seed, count=7)[1] for seed in (1, 1, 2))

    assert len(first.feature) == 7
    assert torch.equal(first.feature, again.feature)
    assert not torch.equal(first.feature, other.feature)


def test_a_model_that_says_nothing_has_no_loss() -> None:
    model = build_model("stumps", DATA)
    loss = LOSSES["adaboost"]
    labels = torch.tensor([0, 1, 1])

    assert model.loss_function is loss
    assert float(model.loss(model.w, DATA.x[:7], DATA.y[:7])) == pytest.approx(0, abs=1e-6)
    score = torch.tensor([[0.5], [-1.0], [2.0]])
    expected = np.log(np.mean(np.exp([0.5, 1.0, -2.0])))
    assert float(loss(score, labels, torch.full((3,), 1 / 3))) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["stumps", "linear_score"])
def test_stacks_equal_one_party_at_a_time(name: str) -> None:
    model = build_model(name, DATA, loss="adaboost")
    ways = plan.ways(model, DATA)
    ids = np.arange(DATA.parties)
    w = torch.randn(len(ids), model.p, generator=torch.Generator().manual_seed(0))
    work = ar.FedAvg(lr=0.05, batch_size=4)

    found = {}
    for way in ("one", "stacked"):
        me = LocalParty(DATA, model, ways[way], ids, 0, 0, (len(ids),))
        found[way] = (me.grad(w), me.loss(w), me.descend(w, work).w)

    assert not plan.separable(model, DATA)
    for one, stacked in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, stacked, rtol=1e-4, atol=1e-5)


def test_a_saved_model_has_its_stumps(tmp_path: Path) -> None:
    study = ar.Study.of(
        "fedavg",
        data={"name": "moons", "parties": 10},
        model={"name": "stumps", "count": 30, "low": -2.0, "high": 2.0},
        algorithm={"lr": 0.01},
        study={"rounds": 2},
    )
    run = study.run(tmp_path)

    fresh = build("stumps", (20,), 2, seed=7, count=30)
    fresh.load_state_dict(load_file(run.folder / "model.safetensors"))
    expected = run.task_model.predict(run.vector, DATA.x[:5])
    torch.testing.assert_close(fresh(DATA.x[:5]), expected)


@pytest.mark.parametrize(
    ("outputs", "options", "said"),
    [
        (3, {}, "two classes"),
        (2, {"low": 1.0, "high": 1.0}, "low below high"),
        (2, {"low": "a"}, "give a number"),
        (2, {"count": 0}, "whole number"),
    ],
)
def test_what_cannot_be(outputs: int, options: dict[str, object], said: str) -> None:
    with pytest.raises(ArchipelError, match=said):
        build("stumps", (4,), outputs, **options)


@pytest.mark.parametrize("loss", ["binary_cross_entropy", "adaboost"])
def test_ways_agree_on_a_model_that_says_nothing_yet(loss: str) -> None:
    model = build_model("linear_score", DATA, loss=loss)
    ways, ids = plan.ways(model, DATA, wanted="vmapped"), np.arange(5)
    assert not model.w.any()
    one, *others = (
        LocalParty(DATA, model, way, ids, 0, 0, (len(ids),)).grad(model.w) for way in ways.values()
    )

    assert set(ways) == {"one", "stacked", "vmapped"}
    for other in others:
        torch.testing.assert_close(one, other)
