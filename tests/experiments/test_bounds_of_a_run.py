# SPDX-License-Identifier: Apache-2.0
"""What the bounds of a run are made of, where it can be checked, and a short run of it all."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib as mpl
import pytest
import torch

import archipel as ar
from archipel.bounds import generalisation_bound

FOLDER = Path(__file__).parents[2] / "experiments" / "personal"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    names, threads = ("bounds", "acceptance"), torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, mpl.rc_context():  # the style stays theirs
        patch.setattr(sys, "path", [str(FOLDER), str(FOLDER.parent), *sys.path])
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        import bounds

        yield bounds
    for name in names:
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def at(script: ModuleType) -> Any:
    """The problem in double precision."""
    small = script.problem(script.QUICK)
    fed = replace(small.fed, x=small.fed.x.double())
    model = ar.Model(script.softmax_regression(fed).double())
    return replace(small, fed=fed, model=model)


@pytest.fixture(scope="module")
def journey(script: ModuleType, at: Any) -> Any:
    return script.follow(at.algorithm, at, script.QUICK, sampled=4)


def test_gradient_is_that_of_the_composed_objective(script: ModuleType, at: Any, journey: Any):
    state = journey.states[6]
    gradient, h = at.gradient(state), 1e-5
    random = torch.Generator().manual_seed(0)
    for direction in (gradient, torch.randn(gradient.shape, generator=random, dtype=torch.float64)):
        d = direction / direction.norm()
        ahead, behind = (at.loss(state._replace(eta=state.eta + s * d)) for s in (h, -h))
        assert (ahead - behind) / (2 * h) == pytest.approx(float(gradient @ d), rel=1e-4, abs=1e-7)

    points = at.points
    each = torch.cat(list(at.pulled(state, points, at.slopes(at.models(state, points)))))
    torch.testing.assert_close(each.mean(dim=0), gradient)


def test_plain_steps_of_all_parties_on_all_points_are_gradient_descent(
    script: ModuleType, at: Any
) -> None:
    pefll = replace(
        at.algorithm, lr=0.1, local_steps=1, batch_size=None, optimiser=ar.SGD(weight_decay=5e-5)
    )
    few = script.QUICK._replace(rounds=2, closely=2, kept=(0, 2))
    states = script.follow(script.Plain(pefll, 0.5), at, few, sampled=len(at.ids)).states

    for t in (0, 1):
        moved = states[t].eta - 0.05 * at.gradient(states[t])
        torch.testing.assert_close(states[t + 1].eta, moved)
        torch.testing.assert_close(states[t + 1].scale.mean, states[0].scale.mean)


def test_rounds_not_looked_at_are_stood_for(script: ModuleType) -> None:
    size = script.QUICK._replace(rounds=12, closely=3, every=5)

    assert size.looked == {0: 1, 1: 1, 2: 3, 5: 5, 10: 2}


def test_largest_singular_value_of_a_jacobian(script: ModuleType, at: Any, journey: Any) -> None:
    state, points = journey.states[6], at.points
    _, length = script.largest_direction(at, state, points, at.slopes(at.models(state, points)), 20)

    found = 0.0
    for k in range(len(at.ids)):  # that of some rows of J_k is at most that of all
        one = script.Examples(*(part[k : k + 1] for part in points))
        d = torch.eye(at.model.p, dtype=torch.float64)[:: at.model.p // 20]
        many = script.Examples(*(part.expand(len(d), *part.shape[1:]) for part in one))
        back = torch.cat(list(at.pulled(state, many, d)))
        found = max(found, float(torch.linalg.matrix_norm(back, 2)))

    assert 0 < found <= length * (1 + 1e-6)


def test_networks_with_the_scale_inside_make_the_same_models(
    script: ModuleType, at: Any, journey: Any
) -> None:
    learnt = script.Learnt.of(at, journey)
    expected = at.models(journey.states[6], at.points)

    torch.testing.assert_close(learnt.models(learnt.eta, at), expected)
    none = script.Sds(0.0, 0.0, 0.0)
    assert torch.equal(learnt.drawn(none, torch.Generator().manual_seed(0)), learnt.eta)
    with_new = replace(at, ids=tuple(range(at.fed.training, at.fed.parties)))
    error = script.wrong(with_new, learnt.models(learnt.eta, with_new), "test")
    assert error == pytest.approx(journey.errors["new"], abs=1e-6)


def test_other_numbers_of_parties_and_points(script: ModuleType, at: Any, journey: Any) -> None:
    learnt = script.Learnt.of(at, journey)
    tried = list(script.draw(learnt, script.NOISES[::20], 1, seed=0))
    some = script.options(learnt, tried, printed=False)
    n, m, delta = 40, 300, (script.DELTA - script.FOR_DRAWS) / script.CHOICES

    expected = [
        generalisation_bound(
            training_error=one.draws.errors, sizes=[m] * n, delta=delta,
            kl_networks=one.kl_networks, kl_models=n * one.kl_model,
        ).total
        for one in some
    ]  # fmt: skip
    found = script.projected(some, torch.tensor([n]), m)

    assert float(found[0]) == pytest.approx(min(expected))
    for one in some:  # no other prior has a smaller divergence
        for sd in script.PRIORS.models:
            assert one.kl_model <= float(one.draws.kl_models[sd].mean()) + 1e-9


def test_a_short_run_writes_what_it_found(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        script.main(["--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "bounds.json").read_text())
    told = (tmp_path / "bounds.md").read_text()

    assert end.value.code == 0
    assert told.strip() in capsys.readouterr().out
    assert "**3 of 3 bounds are vacuous.**" in told
    assert all(each["bound"] > 1 for each in found["generalisation"])
    adam, plain, one_step, all_points, everybody = found["convergence"]
    for run in (plain, one_step, all_points, everybody):
        assert run["bound"]["valid"] and run["step"] == pytest.approx(plain["step"])
    assert plain["bound"]["drift"] > 0 == one_step["bound"]["drift"]
    assert one_step["bound"]["noise"] > 0 == all_points["bound"]["noise"]
    assert all_points["bound"]["dissimilarity"] > 0 == everybody["bound"]["dissimilarity"]
    assert everybody["squared"] <= everybody["bound"]["start"] < 3 * everybody["squared"]
    assert adam["constants"]["smoothness"] * plain["step"] == pytest.approx(script.STEP)
    assert (tmp_path / "bounds.png").stat().st_size > 10_000
