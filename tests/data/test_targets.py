"""Numbers to predict: scaled for training, in their own unit everywhere else."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import archipel as ar
from archipel.data.federation import Federation
from archipel.engines.plan import Plan
from archipel.study.file import Study

ROWS = 120
PLANS = [Plan("stacked", 4, 1), Plan("one", 1, 1), Plan("stacked", 4, 2)]


def table() -> pd.DataFrame:
    """Three clinics; a dose of some thousands, and a mark that few rows have."""
    rng = np.random.default_rng(5)
    weight = rng.normal(70, 15, ROWS)
    return pd.DataFrame(
        {
            "clinic": rng.choice(["a", "b", "c"], ROWS),
            "weight": weight,
            "sex": rng.choice(["f", "m"], ROWS),
            "rare": (np.arange(ROWS) % 40 == 0).astype(int),
            "dose": 5000 + 40 * weight + 200 * rng.normal(size=ROWS),
        }
    )


def study(folder, **data) -> Study:
    table().to_csv(folder / "all.csv", index=False)
    asked = {"file": "all.csv", "by": "clinic", "target": "dose", **data}
    return Study.parse({"study": {"rounds": 12}, "data": asked}, folder)


def test_training_is_on_targets_of_mean_0_and_variance_1(tmp_path):
    fed = study(tmp_path).federation()
    trained = fed.as_trained()
    rows = torch.cat([trained.party(k)[1] for k in range(3)]).double()

    assert float(rows.mean()) == pytest.approx(0, abs=1e-6)
    assert float(rows.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert float(fed.y.mean()) > 5000  # in its own unit


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_metrics_and_the_model_are_in_the_targets_unit(tmp_path, plan):
    run = study(tmp_path).run(None, baselines=False, workers=plan.workers)
    again = ar.simulate(
        run.algorithm, run.data, run.task_model, rounds=12, plan=plan, evaluate_every=12
    )
    data = run.data
    tests = [data.party(k)[2:] for k in range(data.parties)]
    x, y = (torch.cat(parts) for parts in zip(*tests, strict=True))
    error = again.model(x).detach().double().ravel() - y.double()

    assert again.metrics["rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-5)
    assert again.metrics["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    assert again.metrics["rmse"] < float(y.std()) / 2  # it learnt, at the default rate
    assert again.metrics == pytest.approx(run.metrics, rel=1e-4)


def test_standardise_false_leaves_targets_alone(tmp_path):
    fed = study(tmp_path, standardise=False).federation()

    assert fed.features.target is None and fed.as_trained() is fed


def test_a_run_on_another_scale_is_another_run(tmp_path):
    fed = study(tmp_path).federation()
    other = replace(fed, features=fed.features.aimed(None))
    ar.simulate(ar.FedAvg(), fed, rounds=1, out=tmp_path / "run", workers=1)

    with pytest.raises(ar.ArchipelError, match="data differ"):
        ar.simulate(ar.FedAvg(), other, rounds=1, out=tmp_path / "run", workers=1)


def test_classes_and_survival_are_left_alone():
    for name in ("heart_disease", "tcga_brca"):
        assert ar.load(name).features.target is None


def test_from_python_a_table_is_what_it_is_in_a_study(tmp_path):
    described = study(tmp_path)
    fed = Federation.from_frame(pd.read_csv(tmp_path / "all.csv"), by="clinic", target="dose")
    raw = Federation.from_frame(
        pd.read_csv(tmp_path / "all.csv"), by="clinic", target="dose", standardise=False
    )

    there = described.federation()
    assert torch.equal(fed.x, there.x) and torch.equal(fed.y, there.y)
    assert fed.features.to_json() == there.features.to_json()
    assert raw.features.target is None and float(raw.x[:, 0].mean()) > 50
    assert set(fed.x[:, 1:].flatten().tolist()) == {0.0, 1.0}  # marks stay marks


def test_a_folder_of_tables_from_python_is_scaled_too(tmp_path):
    for clinic, rows in table().groupby("clinic"):
        rows.drop(columns="clinic").to_csv(tmp_path / f"{clinic}.csv", index=False)
    fed = Federation.from_folder(tmp_path, target="dose")
    asked = {"folder": ".", "target": "dose"}

    there = Study.parse({"data": asked}, tmp_path).federation()
    assert torch.equal(fed.x, there.x)
    assert fed.features.to_json() == there.features.to_json()


def test_a_column_that_never_differs_is_left_out():
    frame = table().assign(year=2013.0, gap=[None, *[1.0] * (ROWS - 1)])
    fed = Federation.from_frame(frame, by="clinic", target="dose", missing="mean")

    assert fed.columns is not None and not {"year", "gap"} & set(fed.columns)


def test_saved_and_opened_again_the_scale_is_there(tmp_path):
    fed = Federation.from_frame(table(), by="clinic", target="dose")
    fed.save(tmp_path / "fed")

    assert Federation.open(tmp_path / "fed").features.to_json() == fed.features.to_json()


def test_school_learns_at_the_default_rate():
    run = ar.simulate(ar.FedAvg(), "school", rounds=15, evaluate_every=15, workers=1)

    assert run.metrics["r2"] > 0.3


def test_what_leaves_is_in_the_review(tmp_path):
    from archipel.federation.site.exposure import exposure  # noqa: F401  (counts the same columns)

    schema = {"weight": "number", "sex": ["f", "m"], "rare": [0, 1], "dose": "number"}
    described = study(tmp_path, schema=schema)
    plain = study(tmp_path, schema=schema, standardise=False)

    assert (described.scaled, described.summed) == (2, 4)  # weight and dose; zeros for the others
    assert (plain.scaled, plain.summed) == (0, 0)
