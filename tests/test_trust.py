"""The models of trust on one question: measured errors are the formulas', and the picture shows."""

import json
from math import sqrt

import numpy as np
import pytest
from scipy.stats import chi2
from typer.testing import CliRunner

from archipel.cli import app
from archipel.errors import ArchipelError
from archipel.privacy.randomisers import Levels
from archipel.scorecard.trust import MODELS, Budget, lines, measured, numbers

ALPHA = 1e-4
ONE = Budget(1.0, 1e-5, 1000)
BY_NAME = {model.name: model for model in MODELS}


def error(name, budget=ONE):
    return BY_NAME[name].error(numbers(budget.parties), budget)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_error_is_what_the_formula_says(model):
    runs, budget = 150, Budget(1.0, 1e-5, 200)
    x = numbers(200)
    errors = model.means(x, budget, runs) - x.mean()
    formula = model.error(x, budget)
    statistic = float((errors**2).sum()) / formula**2
    level = ALPHA / len(MODELS) / 2

    assert chi2.sf(statistic, runs) > level
    assert chi2.cdf(statistic * 1.01, runs) > level  # a secure sum's rounding is counted as most
    found = measured(model, budget, runs)
    assert found.low < found.error < found.high
    assert found.error == pytest.approx(sqrt(float((errors**2).mean())))


def test_a_thousand_parties_at_epsilon_one():
    curator = error("trusted curator")

    assert error("GOPA") == pytest.approx(curator, rel=0.05)
    assert error("secure sum, noise in shares") == pytest.approx(curator, rel=0.05)
    assert error("local, Gaussian noise") == pytest.approx(sqrt(1000) * curator)
    assert error("network DP, on a ring") == pytest.approx(sqrt(2) * curator)
    assert curator < error("shuffled") < error("local, randomised response") / 3


def test_those_who_collude_cost_something_where_the_others_hide_one():
    half = ONE._replace(honest=0.5)
    for name in ("GOPA", "secure sum, noise in shares", "shuffled"):
        assert error(name, half) > error(name)
    for name in ("trusted curator", "local, Gaussian noise"):
        assert error(name, half) == error(name)


def test_lines_have_a_formula_at_every_point():
    budget = (1.0, 2.0)
    for line in lines(50, 1e-4, 3, epsilons=budget):
        assert [point.epsilon for point in line.points] == [*budget]
        assert {*budget} <= {*line.epsilons}
        assert line.errors == sorted(line.errors, reverse=True)


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_picture(tmp_path, form):
    out = tmp_path / f"trust.{form}"
    asked = ["--parties", "40", "--repetitions", "2", "--delta", "1e-3", "--out", str(out)]
    found = CliRunner().invoke(app, ["privacy", "picture", *asked, "--json"])
    told = json.loads(found.stdout)

    assert [each["model"] for each in told["models"]] == [model.name for model in MODELS]
    assert all(np.isfinite(p["measured"]) for each in told["models"] for p in each["points"])
    content = out.read_bytes()
    if form == "svg":
        assert all(model.name in content.decode() for model in MODELS)
    else:
        assert content[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--out", "trust.pdf"], "give a name that ends in .png or .svg"),
        (["--honest", "0"], "give a share above 0 and up to 1"),
        (["--delta", "2"], "delta = 2.0: give a number in (0, 1)"),
        (["--delta", "0.1", "--parties", "10"], "--delta = 0.1: the picture has 10 parties"),
        (["--out", "nodir/p.png"], "--out nodir/p.png: cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_it_is_measured(asked, said, monkeypatch):
    monkeypatch.setattr("archipel.scorecard.trust.lines", None)
    found = CliRunner().invoke(app, ["privacy", "picture", *asked])

    assert isinstance(found.exception, ArchipelError) and said in str(found.exception)
    assert found.exception.exit_code == 2


def test_levels_are_best_where_they_are_chosen():
    chosen = error("local, randomised response", Budget(3.0, 1e-5, 100))
    two = sqrt(Levels(3.0).variance(numbers(100)))

    assert chosen < two
