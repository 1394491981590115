"""The live picture in a notebook."""

import sys

import pytest
from fake_runs import fake_run
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.algorithms import FedAvg
from archipel.errors import ArchipelError
from archipel.report.frame import Pace, Still
from archipel.report.notebook import NotebookView, figure
from archipel.report.style import styled
from archipel.runs.simulation import simulate


class Page:
    """A notebook's page: what was put in its one place."""

    def __init__(self):
        self.shown = []

    def __call__(self, what, display_id):
        assert display_id
        assert not self.shown
        self.shown.append(what)
        return self

    def update(self, what):
        self.shown.append(what)


def test_one_figure_drawn_anew_in_its_place():
    page = Page()
    with NotebookView(page) as view:
        view.say("making ready")
        run = simulate(FedAvg(), "heart_disease", rounds=4, workers=1, watch=view)

    first, *rest = page.shown
    assert repr(first) == "making ready"
    assert first._repr_png_() is None
    png, size = rest[-1]._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert size["width"] > 0
    assert repr(rest[-1]).startswith("FedAvg on heart_disease: round 4 of 4")
    assert run.done == 4


def test_drawings_are_few_and_the_last_is_of_the_end():
    page = Page()
    run = fake_run(rounds=2000, done=1)
    cohort = run.participation[0]
    view = NotebookView(page)
    for _ in range(1999):
        run.participation.append(cohort)
        view(run)

    assert len(page.shown) <= 3
    assert "round 2,000 of 2,000" in repr(page.shown[-1])


def test_an_interrupted_run_keeps_its_last_figure():
    page = Page()
    with pytest.raises(KeyboardInterrupt), NotebookView(page) as view:
        view(fake_run(done=3))
        view(fake_run(done=5))
        raise KeyboardInterrupt

    assert "round 5 of 40" in repr(page.shown[-1])
    assert "left" not in repr(page.shown[-1])


@settings(max_examples=12)
@given(
    parties=st.sampled_from([1, 4, 20, 21, 1000]),
    done=st.sampled_from([0, 1, 40]),
    new=st.sampled_from([0, 3]),
    values=st.sampled_from([None, [], [float("nan")], [float("inf"), 0.5]]),
    levels=st.sampled_from([None, (0.5, float("nan"))]),
    name=st.sampled_from(["[red]", "$\\frac$", "島", "\x00\x1b[31m\n", "x" * 200]),
)
def test_any_run_can_be_drawn(parties, done, new, values, levels, name):
    names = tuple(f"{name}{k}" for k in range(parties + new))
    run = fake_run(parties, done=done, new=new, names=names, values=values, levels=levels)

    with styled():
        figure(Still.of(run, Pace(0.0, 1.0))).draw_without_rendering()


def test_baselines_and_causes_are_named():
    run = fake_run(new=2, missing=0.5)
    with styled():
        curve, _, who = figure(Still.of(run, Pace(0.0, 1.0))).axes

    names = [text.get_text() for text in curve.get_legend().get_texts()]
    assert names == ["together", "new parties", "alone 0.700", "pooled 0.900"]
    causes = [text.get_text() for text in who.get_legend().get_texts()]
    assert {"present", "dropped out", "too slow", "away"} <= set(causes)


def test_without_ipython_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", None)

    with pytest.raises(ArchipelError, match="pip install ipython"):
        NotebookView()


def test_ipython_shows_the_picture():
    formatters = pytest.importorskip("IPython.core.formatters")
    page = Page()
    NotebookView(page)(fake_run())

    found, about = formatters.DisplayFormatter().format(page.shown[-1])
    assert found["image/png"].startswith(b"\x89PNG")
    assert about["image/png"] == {"width": 864}
