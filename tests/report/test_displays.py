"""What a notebook's cell and a Python prompt show of results, and results as pandas frames."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from fake_runs import fake_run

import archipel as ar
from archipel.errors import ArchipelError

CELLS = """
import archipel as ar
run = ar.simulate(ar.FedAvg(lr=0.1), "heart_disease", rounds=3, workers=1, baselines=True)
---
run.plot()
---
run.data.plot()
---
run.scorecard
---
found = ar.compare(["fedavg", "fedprox"], "heart_disease", seeds=2, rounds=2, out=None, workers=1)
found
---
found.plot()
---
run.to_frame()
---
found.to_frame()
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What cells display by IPython's own rules, in a process that never saw pyplot."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    shell = shells.InteractiveShell(ipython_dir=str(tmp_path_factory.mktemp("ipython")))
    shell.history_manager.enabled = False
    shown = []
    for cell in CELLS.split("---"):
        done = shell.run_cell(cell)
        done.raise_error()
        shown.append((done.result, *shell.display_formatter.format(done.result)))
    return shown


@pytest.mark.parametrize("cell", [1, 2, 5])
def test_figures_are_pictures(outputs, cell):
    _, bundle, about = outputs[cell]

    assert bundle["image/png"].startswith(b"\x89PNG")
    assert 900 <= about["image/png"]["width"] <= 1000


def test_figures_are_shown_once_where_pyplot_shows_figures(outputs):
    pylab = pytest.importorskip("IPython.core.pylabtools")
    shells = pytest.importorskip("IPython.core.interactiveshell")
    shell = shells.InteractiveShell()
    pylab.select_figure_formats(shell, {"png"})
    bundle, _ = shell.display_formatter.format(outputs[1][0])

    assert set(bundle) == {"image/png", "text/plain"}


@pytest.mark.parametrize("cell", [3, 4, 6, 7])
def test_results_are_tables(outputs, cell):
    html = outputs[cell][1]["text/html"]

    assert "<table" in html
    assert "<script" not in html


def test_names_are_text_on_a_page_and_at_the_prompt(outputs):
    card, found = outputs[3][0], outputs[4][0]
    name = "<script>alert(1)</script>\x1b[2J"
    evil = replace(card, efficacy=replace(card.efficacy, absent=(name,)))
    named = replace(found, results=tuple(replace(each, label=name) for each in found.results))

    for each in (evil, named):
        assert "<script" not in each._repr_html_()
        assert "&lt;script&gt;" in each._repr_html_()
        assert "\x1b" not in repr(each) + each._repr_html_()
        assert "<script>alert(1)" in re.sub(r"\s+", " ", repr(each))


def test_a_prompt_shows_what_a_terminal_does(outputs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    card, found = outputs[3][0], outputs[4][0]

    assert "Efficacy\n" in str(card)
    assert "Efficacy(" not in repr(card)
    assert "fedprox" in repr(found)
    assert "|" not in repr(found)
    assert max(map(len, repr(card).splitlines() + repr(found).splitlines())) <= 90


def test_what_is_bold_has_a_star_where_nothing_is_bold():
    from archipel.report.tables import Cell, Column, Table, as_text, html

    table = Table("T", [Column("", "a"), Column("b", "b")], [[[Cell("x"), Cell("1", strong=True)]]])

    assert "* 1" in as_text(table)
    assert "<b>1</b>" in html(table)


# -- the curve -------------------------------------------------------------------------------------


def drawn(run, metric=None):
    picture = run.plot(metric=metric)
    picture.draw_without_rendering()
    left, right = picture.axes
    words = [text.get_text() for text in left.texts]
    return left, right, words


@pytest.mark.parametrize("done", [1, 2, 3, 4, 7, 100])
def test_ticks_are_whole_rounds(done):
    left, _, _ = drawn(fake_run(done=done))

    low, high = left.get_xlim()
    shown = [float(tick) for tick in left.get_xticks() if low <= tick <= high]
    assert shown
    assert all(tick.is_integer() for tick in shown)


def test_baselines_are_lines_of_the_same_points():
    run = ar.simulate(ar.FedAvg(lr=0.1), "heart_disease", rounds=2, workers=1, baselines=True)
    for metric in ("accuracy", "auc"):
        left, _, words = drawn(run, metric)
        heights = [line.get_ydata()[0] for line in left.lines if len(set(line.get_ydata())) == 1]

        assert left.get_ylabel().endswith("all test points")
        assert run.baselines["central"].pooled[metric] in heights
        assert pytest.approx(float(run.elsewhere[metric].mean())) in heights
        assert sum(word.startswith(("each alone", "data pooled")) for word in words) == 2


def test_lines_over_parties_have_levels_over_parties():
    run = fake_run()  # baselines, and no party's model tested on everybody's points
    left, _, words = drawn(run)

    assert left.get_ylabel() == "accuracy, mean over parties"
    assert {"each alone 0.700", "data pooled 0.900"} <= set(words)


def test_another_metric_is_not_compared_with_means_over_parties():
    run = fake_run()
    for entry in run.history:
        entry["metrics"]["loss"] = 0.4
    for level in run.baselines.values():
        level.parties["loss"] = level.parties["accuracy"]

    left, _, words = drawn(run, "loss")
    assert left.get_ylabel() == "loss, all test points"
    assert words == ["together 0.400"]


def test_few_parties_have_their_names_and_many_a_histogram():
    few = ar.simulate(ar.FedAvg(), "heart_disease", rounds=1, workers=1)
    _, right, _ = drawn(few)
    assert "cleveland" in [tick.get_text() for tick in right.get_yticklabels()]

    import torch

    many = fake_run(parties=40, new=3)
    many.parties = {"accuracy": torch.linspace(0, 1, 43)}
    _, right, _ = drawn(many)
    assert right.get_ylabel() == "parties"
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["seen", "new"]


def test_nothing_evaluated_is_said():
    with pytest.raises(ArchipelError, match="no round was evaluated yet"):
        fake_run(done=0).plot()


def test_a_run_that_diverged_is_drawn():
    drawn(fake_run(values=[float("nan")], levels=None))


def test_classes_have_the_names_of_their_table():
    import pandas as pd

    frame = pd.DataFrame(
        {
            "site": ["ulm", "bonn"] * 20,
            "age": np.arange(40.0) % 7,
            "grade": ["$mild$", "mild", "severe", "worst"] * 10,
        }
    )
    fed = ar.Federation.from_frame(frame, by="site", target="grade", test=0.2)
    left, _ = fed.plot().axes

    names = [fed.class_name(k) for k in range(fed.classes)]
    assert [tick.get_text() for tick in left.get_yticklabels()] == names
    assert names == ["$mild$", "mild", "severe", "worst"]
    fed.plot()._repr_png_()  # a dollar is no formula


# -- frames ----------------------------------------------------------------------------------------


def test_a_frame_has_a_row_per_evaluated_round(outputs):
    frame = outputs[6][0]

    assert frame["round"].tolist() == [1, 2, 3]
    for name in ("accuracy", "auc", "loss", "parties_mean", "parties_worst_tenth", "parties"):
        assert frame[name].notna().all()
    assert frame["bytes_up"].is_monotonic_increasing
    assert {"bytes_down", "gradients", "seconds", "sampled", "missing"} <= set(frame.columns)
    assert all(frame[name].dtype.kind in "fi" for name in frame.columns)


def test_own_models_and_new_parties_have_their_columns():
    data = ar.load("synthetic", parties=8, most=30).with_new(2)
    run = ar.simulate(ar.Ditto(), data, rounds=2, workers=1)
    frame = run.to_frame()

    last = run.history[-1]
    for part, begins in (("own", "own_"), ("new", "new_"), ("own_new", "own_new_")):
        assert frame[f"{begins}accuracy"].iloc[-1] == last[part]["accuracy"]
    assert frame["new_parties"].tolist() == [2, 2]


def test_a_frame_of_a_comparison_has_a_row_per_seed(outputs):
    found, frame = outputs[4][0], outputs[7][0]

    assert len(frame) == 8  # two algorithms and two baselines, two seeds
    assert frame[~frame["baseline"]]["algorithm"].unique().tolist() == ["fedavg", "fedprox"]
    means = frame.groupby("algorithm")["points"].mean()
    for row in found.rows:
        assert means[row.label] == pytest.approx(row.figures["points"].mean)
    assert frame["new_points"].isna().all()
    assert frame["new_points"].dtype.kind == "f"


def test_a_frame_without_pandas_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(ArchipelError, match=r"archipel\[frames\]"):
        fake_run().to_frame()


def test_a_frame_of_no_round_is_empty():
    assert fake_run(done=0).to_frame().columns.tolist() == ["round"]
