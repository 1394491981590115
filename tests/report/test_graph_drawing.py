# SPDX-License-Identifier: Apache-2.0
"""The graph of a run: written down as it changes, drawn on the page, in figures and live."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

import archipel as ar
from archipel.algorithms import Gossip
from archipel.data import moons
from archipel.graphs import Topology, ring, small_world, topology, weighted
from archipel.graphs.summary import rounds_to, summary
from archipel.report import graph, html
from archipel.report.figures import figures
from archipel.report.frame import Pace, Still, cost
from archipel.report.layout import layout
from archipel.report.notebook import figure
from archipel.runs import graph as recorded


@pytest.fixture(scope="module")
def clustered() -> ar.Federation:
    return moons.load(20, clusters=True, test_points=20)


def run_of(data: ar.Federation, spec: str, rounds: int = 6) -> ar.Run:
    return ar.simulate(ar.DSGD(lr=0.1), data, topology=spec, rounds=rounds, workers=1)


def test_a_graph_that_stays_is_written_once(clustered: ar.Federation) -> None:
    run = run_of(clustered, "small_world:4")
    drawn = [entry["graph"]["drawn"] for entry in run.history]
    found = recorded.frames(run.history)

    assert ["i" in each for each in drawn] == [True] + 5 * [False]
    assert [frame.round for frame in found] == [1, 2, 3, 4, 5, 6]
    A = small_world(20, 4).affinity().toarray()
    for frame in found:
        np.testing.assert_array_equal(frame.affinity, A)
    np.testing.assert_allclose(found[-1].values, run.parties["accuracy"], rtol=1e-3)
    of = np.array(clustered.clusters)
    within = (A * (of[:, None] == of)).sum() / A.sum()
    assert run.graph == {
        "name": "small_world:4",
        "edges": 40,
        "spectral_gap": small_world(20, 4).spectral_gap,
        "rounds_to_tenth": 29,
        "within_clusters": pytest.approx(within),
    }
    assert json.loads(json.dumps(run.to_json()["graph"])) == run.graph


def test_a_graph_that_changes_moves_on_the_page(clustered: ar.Federation) -> None:
    run = run_of(clustered, "changing_regular:2")
    page = html.render(run)
    frames = json.loads(unescape(re.search(r'data-frames="([^"]*)"', page)[1]))  # type: ignore[index]

    assert len(frames) == 6
    assert all(frame["edges"] is not None for frame in frames)
    assert frames[0]["edges"] != frames[1]["edges"]
    assert len(frames[0]["fill"]) == 20
    assert page.count('<g fill="#') == 20
    assert "A shape for each cluster." in page
    assert "url(http" not in page


def test_edges_that_came_and_went_are_shown() -> None:
    def frame(t: int, *pairs: tuple[int, int]) -> recorded.Frame:
        i, j = np.array(pairs).T
        return recorded.Frame(t, i, j, np.ones(len(pairs)), np.linspace(0.5, 0.9, 4))

    first, then = frame(1, (0, 1), (1, 2), (2, 3)), frame(2, (0, 1), (0, 3), (2, 3))
    other = frame(3, (0, 2), (1, 3))

    assert graph.came(then, first).tolist() == [False, True, False]
    assert not graph.came(first, None).any() and not graph.came(other, then).any()
    run = run_of(moons.load(4, test_points=10), "ring", 2)
    run.history[0]["graph"]["drawn"] |= {"i": [0, 1, 2], "j": [1, 2, 3], "weight": [1.0] * 3}
    run.history[1]["graph"]["drawn"] |= {"i": [0, 0, 2], "j": [1, 3, 3], "weight": [1.0] * 3}
    page = html.render(run)
    told = json.loads(unescape(re.search(r'data-frames="([^"]*)"', page)[1]))  # type: ignore[index]

    assert [each["news"] for each in told] == ["", "1 edge came, 1 went"]
    assert [[new for *_, new in each["edges"]] for each in told] == [[False], [False, True]]
    assert page.count('class="came"/>') == 1
    assert "Edges that came since the drawing before are orange." in page
    assert '<span class="news">1 edge came, 1 went</span>' in page


def test_at_most_so_many_drawings_are_kept(clustered: ar.Federation) -> None:
    run = run_of(clustered, "matching", rounds=95)

    rounds = [frame.round for frame in recorded.frames(run.history)]

    assert len(rounds) <= recorded.FRAMES + 1
    assert rounds[-1] == 95


def test_names_are_escaped() -> None:
    data = moons.load(3, test_points=10)
    data = replace(data, names=["<script>alert(1)</script>", "&", '"'])

    page = html.render(run_of(data, "ring", 1))

    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page


def test_large_graphs_are_told_and_not_drawn() -> None:
    data = moons.load(310, test_points=2)
    run = run_of(data, "ring", 1)

    page = html.render(run)

    assert "drawn" not in run.history[0]["graph"]
    assert "310 edges" in page
    assert "Graphs of more than 300 parties are not drawn." in page
    assert graph.graph(run) is None


def test_runs_with_a_server_have_no_graph(clustered: ar.Federation) -> None:
    run = ar.simulate(ar.FedAvg(lr=0.1), clustered, rounds=1, workers=1)

    assert run.graph is None
    assert "graph" not in run.to_json()
    assert "graph" not in figures(run)
    assert 'id="graph"' not in html.render(run)


def test_live_views_show_the_graph(clustered: ar.Federation) -> None:
    run = run_of(clustered, "ring", 2)
    still = Still.of(run, Pace(0.0, 1.0))

    assert any(re.match(r"20 edges, \d+ % within clusters", text) for text, _ in cost(still))
    assert len(figure(still).axes) == 4
    assert "graph" in figures(run)


def test_a_graph_that_is_learned_is_what_the_engine_says(clustered: ar.Federation) -> None:
    class Learning:
        def graph(self) -> Topology:
            return weighted(np.full((20, 20), 0.25), "learned")

    run = run_of(clustered, "ring", 2)
    found = recorded.recorded(Learning(), run, 1, 1)["graph"]  # type: ignore[arg-type]

    assert found["name"] == "learned"
    assert found["edges"] == 190
    assert set(found["drawn"]["weight"]) == {0.25}


def test_who_is_joined_lies_together() -> None:
    two = np.kron(np.eye(2), np.ones((10, 10)))
    np.fill_diagonal(two, 0)
    two[0, 19] = two[19, 0] = 0.1
    at = layout(two)
    apart = np.linalg.norm(at[:10].mean(axis=0) - at[10:].mean(axis=0))

    assert at.min() >= -1e-9 and at.max() <= 1 + 1e-9
    assert apart > 2 * np.linalg.norm(at[:10] - at[:10].mean(axis=0), axis=1).max()
    around = layout(ring(12).affinity().toarray())
    turns = np.linalg.norm(around - np.roll(around, 1, axis=0), axis=1)
    assert turns.max() < 1.3 * turns.min()
    for n in (1, 2, 3):
        assert np.isfinite(layout(ring(n).affinity().toarray())).all()
    np.testing.assert_array_equal(around, layout(ring(12).affinity().toarray()))


def test_rates_in_a_sentence() -> None:
    assert rounds_to(0.5, 2) == pytest.approx(1)
    assert str(summary(topology("complete", 5))).endswith("one round of mixing leaves the mean.")
    changing = str(summary(topology("changing_regular:4", 10)))
    assert (
        "20 edges between 10 parties in its first round; spectral gap 0.667: on average" in changing
    )
    assert summary(topology("alternate:ring,star", 15_000)).spectral_gap is None


def test_where_nobody_mixes_by_w_no_rate_is_told() -> None:
    met = summary(topology("complete", 5), algorithm=Gossip())

    assert str(met).endswith("10 edges between 5 parties; spectral gap 1.")
    assert met.to_json()["rounds_to_tenth"] is None
