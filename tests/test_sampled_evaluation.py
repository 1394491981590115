# SPDX-License-Identifier: Apache-2.0
"""Models scored at a sample of the parties: how sure that is, and where it is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.data import load
from archipel.errors import ArchipelError
from archipel.metrics import intervals
from archipel.report.export import contents
from archipel.runs import recording
from archipel.runs.participation import Participation
from archipel.runs.run import Run
from archipel.runs.some import OfSome
from archipel.store.folder import Folder


def go(**more: Any) -> Run:
    told: Any = {"rounds": 2, "sample": 9, "workers": 1, "evaluate_sample": 40, **more}
    data = load("crowd", parties=300, features=4, classes=3).with_new(60)
    return ar.simulate(ar.FedAvg(lr=0.1), data, "logistic", **told)


def test_intervals_hold_what_they_promise() -> None:
    rng, population = np.random.default_rng(0), 2000
    sizes = rng.integers(1, 30, population)
    rates = rng.beta(2, 1, population)
    values = rng.binomial(sizes, rates) / sizes
    truth = (sizes * values).sum() / sizes.sum()
    inside = by_party = again = 0
    for _ in range(200):
        at = rng.choice(population, 200, replace=False)
        low, high = intervals.of_points(values[at], sizes[at], population) or (0, 0)
        inside += low <= truth <= high
        low, high = intervals.of_mean(values[at], population) or (0, 0)
        by_party += low <= values.mean() <= high
    for _ in range(40):
        at = rng.choice(population, 200, replace=False)
        hits = np.repeat(values[at], sizes[at])
        found = intervals.again(
            lambda rows, hits=hits: {"own": float(hits[rows].mean())},
            sizes[at], {"own": float(hits.mean())}, population,
        )  # fmt: skip
        again += found["own"][0] <= truth <= found["own"][1]

    assert 180 <= inside <= 200 and 180 <= by_party <= 200 and again >= 33


def test_a_sample_of_everybody_is_sure() -> None:
    values, sizes = np.linspace(0, 1, 9), np.arange(1, 10)
    low, high = intervals.of_points(values, sizes, 9) or (0, 1)
    assert low == high == pytest.approx(float((values * sizes).sum() / sizes.sum()))
    assert intervals.of_mean(values[:1], 9) is None
    assert intervals.again(lambda rows: {}, np.array([0, 3]), {}, 9) == {}


def test_the_same_parties_are_scored_every_time_and_told_everywhere(tmp_path: Path) -> None:
    run = go(out=tmp_path / "run", metrics=["accuracy", "auc", "loss"])
    last = run.history[-1]

    assert last["scored"] == {"parties": [40, 40], "of": [240, 60]}
    assert isinstance(run.parties, OfSome) and len(run.parties.who) == 80
    assert run.parties["accuracy"].shape == (300,)
    assert int((~run.parties["accuracy"].isnan()).sum()) == 80
    for name in ("accuracy", "auc", "loss"):  # a mean, and what is none
        low, high = last["intervals"][name]
        assert low < last["metrics"][name] < high
    assert last["seen_parties"]["interval"][0] < last["seen_parties"]["mean"]
    card = run.scorecard
    assert card.efficacy.scored == (40, 240) and card.efficacy.interval is not None
    assert "a sample of 40 of 240 parties" in " ".join(str(card).split())
    html = run.report(tmp_path / "report.html").read_text()
    assert "Measured at 40 parties, drawn for all 240." in html and "95 % confidence" in html
    files = contents(run)
    assert b"accuracy_low,accuracy_high" in files["history.csv"]
    assert files["parties.csv"].count(b"\n") == 81

    again = go(out=tmp_path / "run", metrics=["accuracy", "auc", "loss"])
    assert torch.equal(again.parties["loss"], run.parties["loss"].double()) or torch.allclose(
        again.parties["loss"], run.parties["loss"], equal_nan=True
    )
    assert again.history == run.history


def test_the_sample_estimates_what_everybody_has() -> None:
    sampled, everybody = go(evaluate_sample=150), go(evaluate_sample=None)

    assert torch.equal(sampled.vector, everybody.vector)
    low, high = sampled.history[-1]["intervals"]["accuracy"]
    assert low - 0.02 < everybody.metrics["accuracy"] < high + 0.02
    assert "intervals" not in everybody.history[-1] and "scored" not in everybody.history[-1]
    assert "intervals" not in go(evaluate_sample=1000).history[-1]  # all of them


def test_samples_that_cannot_be() -> None:
    with pytest.raises(ArchipelError, match="fewer than 30"):
        go(evaluate_sample=5)
    folded = load("crowd", parties=100, features=4, classes=3).with_new(20).cross_fitted(2)
    with pytest.raises(ArchipelError, match="virtual parties or folds"):
        ar.simulate(ar.FedAvg(lr=0.1), folded, "logistic", evaluate_sample=50)


@pytest.mark.parametrize("how", [{"availability": 0.5}, {"availability": "day:24"}, {}])
def test_of_many_parties_those_who_are_there_are_asked(how: dict[str, Any]) -> None:
    who, eligible = Participation(sample=50, separation=2, **how), np.arange(0, 400_000, 2)
    first = who.draw(eligible, 3, 0)
    second = who.draw(eligible, 3, 1, past=[first])

    for t, cohort in enumerate((first, second)):
        assert len(cohort.present) == 50 and len(np.unique(cohort.sampled)) == 50
        assert (np.diff(cohort.sampled) > 0).all() and np.isin(cohort.sampled, eligible).all()
        assert who.here(cohort.sampled, 3, t).all()
    assert not np.isin(second.sampled, first.sampled).any()


def test_nobody_looks_at_each_of_many_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    here = Participation.here

    def counted(self: Participation, parties: Any, seed: int, clock: int) -> Any:
        looked.append(len(parties))
        return here(self, parties, seed, clock)

    monkeypatch.setattr(Participation, "here", counted)
    Participation(sample=50, availability=0.5).draw(np.arange(10**6), 0, 0)
    assert max(looked) <= 1000

    looked.clear()
    few = Participation(sample=900, availability=0.001).draw(np.arange(200_000), 0, 0)
    assert max(looked) == 200_000 and len(few.sampled) == 900  # too few are there: others are asked


def test_drawing_is_fair_where_parties_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archipel.runs.participation._MANY", 0)
    counts, who = np.zeros(400), Participation(sample=8, availability=0.6)
    for t in range(3000):
        counts[who.draw(np.arange(400), 1, t).present] += 1

    assert abs(counts.mean() - 60) < 1 and counts.std() < 3 * 60**0.5 and counts.min() > 25


def test_a_crowd_is_on_record_in_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_CROWD", 100)
    told: Any = {"name": "crowd", "parties": 300, "features": 4, "classes": 3}
    about = {"rounds": 2, "evaluate_sample": 40}
    study = ar.Study.of("fedavg", study=about, data=told, round={"sample": 9})
    run = study.run_in(tmp_path / "run", workers=1)
    assert any("no baselines" in note for note in run.notes)

    folder = Folder.open(tmp_path / "run")
    assert folder.journal.parties() == 0
    roster = folder.journal.roster()
    assert [each["training_points"] for each in roster] == run.data.n.tolist()
    assert all(each["trains"] for each in roster)
    again = ar.open_run(tmp_path / "run")
    assert (
        again.data.parties == 300
        and "Measured at 40 parties" in again.report(tmp_path / "r.html").read_text()
    )
