"""Figures are the same bytes for the same run, and say what is true of it."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.engine import Cause, Evaluation
from archipel.report.figures import figures, lines_of, save_figures
from archipel.report.grid import bin_sizes, participation
from archipel.report.plots import alone_and_together, curve_and_spread
from archipel.report.style import ORANGE, styled
from archipel.runs.participation import Cohort

PLAN = ar.Plan("stacked", 16, 1)


@pytest.fixture(scope="module")
def hospitals():
    return ar.simulate(
        ar.FedAvg(lr=0.03), "heart_disease", rounds=6, plan=PLAN, baselines=True, metric="auc",
        away={"hungarian": "2-4"},
    )  # fmt: skip


def words(figure):
    """All that is written in a figure."""
    texts = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return [text.get_text() for text in texts if text.get_text()]


def test_png_and_svg_are_written_and_repeat(hospitals, tmp_path):
    first = save_figures(hospitals, tmp_path / "a")
    again = save_figures(hospitals, tmp_path / "b")

    assert sorted(path.name for path in first) == [
        f"{name}.{form}"
        for name in ("curve", "data", "participation", "parties")
        for form in ("png", "svg")
    ]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, again, strict=True))
    for path in first:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_the_curve_compares_like_with_like(hospitals):
    _, what, lines, levels = lines_of(
        hospitals, "auc"
    )  # one model against each own model, on all points
    assert what == "all test points"
    assert lines["together"][-1] == hospitals.metrics["auc"]
    assert levels["each alone"] == pytest.approx(float(hospitals.elsewhere["auc"].mean()))
    assert levels["data pooled"] == hospitals.baselines["central"].pooled["auc"]

    _, what, lines, levels = lines_of(replace(hospitals, elsewhere={}), "auc")
    assert what == "mean over parties"
    assert lines["together"][-1] == pytest.approx(float(hospitals.parties["auc"].nanmean()))
    local = hospitals.baselines["local"].parties["auc"]
    assert levels["each alone"] == pytest.approx(float(local.nanmean()))

    plain = replace(hospitals, baselines={})
    _, what, lines, levels = lines_of(plain, "auc")
    assert (what, levels) == ("all test points", {})
    assert lines["together"][-1] == hospitals.metrics["auc"]


def test_the_grid_shows_who_was_away(hospitals):
    with styled():
        figure = participation(hospitals)

    assert {"took part", "away", "hungarian", "3 of 6", "6 of 6"} <= set(words(figure))


def test_the_grid_of_many_says_what_a_cell_is(hospitals):
    data = ar.Federation.from_arrays([np.zeros((1, 1))] * 200, [np.zeros(1, int)] * 200, classes=2)
    everybody = np.arange(200)
    rounds = [
        Cohort(everybody, everybody[50:], np.ones(150), dict.fromkeys(range(50), Cause("away")))
        for _ in range(400)
    ]
    with styled():
        figure = participation(replace(hospitals, data=data, participation=rounds))

    tall, wide = bin_sizes(200, 400, 200 * 400)
    assert f"round (a cell: {tall} parties, {wide} rounds)" in words(figure)
    assert {"nobody missing", "more"} <= set(words(figure))
    shown = [patch for patch in figure.axes[0].patches if patch.get_facecolor()[3] == 1]
    missing = shown[-1].get_path().get_extents()
    assert missing.y1 == pytest.approx(50 // tall - 1 + 0.38)  # the first fifty parties


@pytest.mark.parametrize("parties", [1, 30, 31, 400])
def test_parties_one_by_one_or_as_a_histogram(hospitals, parties):
    data = ar.Federation.from_arrays(
        [np.zeros((1, 1))] * parties, [np.zeros(1, int)] * parties, classes=2
    )
    values = {"auc": torch.linspace(0.5, 1, parties).double()}
    local = Evaluation({"auc": torch.full((parties,), 0.61).double()}, {}, {})
    run = replace(
        hospitals, data=data, parties=values, baselines={"local": local}, participation=[]
    )

    figure = figures(run)["parties"]

    assert len(figure.axes) == (1 if parties <= 30 else 2)
    gain = int((values["auc"] > 0.61).sum())
    assert (f"{gain} of {parties} parties gain" in words(figure)) == (parties > 30)


def test_a_level_without_measure_leaves_the_curve_readable(hospitals):
    far = Evaluation({"auc": torch.full((4,), 3e13).double()}, {}, {})

    axes = figures(replace(hospitals, baselines={"local": far}, elsewhere={}))["curve"].axes[0]

    assert axes.get_ylim()[1] < 1
    assert "each alone 3e+13" in [text.get_text() for text in axes.texts]


def test_names_may_be_anything(hospitals, tmp_path):
    names = ["$\\frac{", "a" * 500, "\x00\x1b[2J", "<&>\"'"]
    run = replace(hospitals, data=replace(hospitals.data, names=names))

    for path in save_figures(run, tmp_path):
        assert path.stat().st_size > 1000


def test_plot_of_a_run_and_of_gains(hospitals, tmp_path):
    curve_and_spread(hospitals, "auc", tmp_path / "a.png")
    figure = alone_and_together(["a", "$b"], [0.1, 0.2], [0.3, 0.1], {"all": 0.2}, "AUC")

    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert figure.axes[0].get_xlabel() == "AUC"
    assert figure.axes[0].collections[0].get_facecolor()[0].tolist()[:3] == pytest.approx(
        [int(ORANGE[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    )
