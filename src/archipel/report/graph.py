# SPDX-License-Identifier: Apache-2.0
"""The graph of a run without server: parties coloured by their metric, edges as wide as they weigh.

On a page it is an SVG of its own, which moves with the rounds (`templates/graph.js`) and shows the
last of them to whoever runs no script; as a figure it is the same by matplotlib.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from archipel.errors import clean
from archipel.measures import larger_is_better
from archipel.report.layout import layout
from archipel.report.style import AMBER, BLUE, GREY, INK, ORANGE, short
from archipel.runs.graph import DRAWN, EDGES, Frame, clusters, frames
from archipel.scorecard.words import metric_name, number, plural

if TYPE_CHECKING:
    from archipel.runs.run import Run

_NAMED = 30  # parties with their names
_SIZE, _EDGE = 720, 36  # of the drawing, and what is left free around it
_SCALE = LinearSegmentedColormap.from_list("metric", [AMBER, "#a9cfe6", BLUE])  # worst to best
_SHAPES = {  # of clusters, in turn, around (0, 0)
    "o": "",
    "s": "M-.9-.9H.9V.9H-.9Z",
    "^": "M0-1.2 1.1.8H-1.1Z",
    "D": "M0-1.25 1.25 0 0 1.25-1.25 0Z",
    "v": "M0 1.2 1.1-.8H-1.1Z",
    "P": "M-.4-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z",
}
Floats = npt.NDArray[np.float64]


def places(found: list[Frame]) -> Floats:
    """Where the parties are drawn: mostly by the last graph, which is the one that was learned."""
    others = sum((frame.affinity for frame in found[:-1]), np.zeros(()))
    return layout(found[-1].affinity + 0.5 / len(found) * others)


def _range(run: Run, found: list[Frame]) -> tuple[float, float]:
    """Where the colours begin and end: the worst and the best value of the last drawing."""
    values = found[-1].values
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    return (low, high) if larger_is_better(run.metric) else (high, low)


def _shares(values: Floats, worst: float, best: float) -> Floats:
    """How far each value is on the way from worst to best, NaN where it has none."""
    return np.clip((values - worst) / (best - worst), 0, 1) if best != worst else values * 0 + 1


def _colour(share: float) -> str:
    if not np.isfinite(share):
        return GREY
    red, green, blue = (round(255 * part) for part in _SCALE(float(share))[:3])
    return f"#{red:02x}{green:02x}{blue:02x}"


def came(frame: Frame, before: Frame | None) -> npt.NDArray[np.bool_]:
    """Which edges the drawing before did not have, `[e]`; none where most are new."""
    new = np.zeros(len(frame.i), bool)
    if before is not None:
        known = before.pairs
        new[:] = [
            pair not in known for pair in zip(frame.i.tolist(), frame.j.tolist(), strict=True)
        ]
    return new if 2 * new.sum() <= len(new) else new & False


def _news(frame: Frame, before: Frame | None) -> str:
    """How many edges came and went since the drawing before; empty where none did."""
    if before is None or frame.pairs == before.pairs:
        return ""
    new, gone = len(frame.pairs - before.pairs), len(before.pairs - frame.pairs)
    return f"{plural(new, 'edge')} came, {gone:,} went"


def _befores(found: list[Frame]) -> list[Frame | None]:
    return [None, *found][: len(found)]


def _widths(weight: Floats, most: float, n: int) -> Floats:
    crowd = float(np.clip(12 / np.sqrt(len(weight) + 1), 0.25, 1))
    return (0.4 + 2.0 * weight / most) * crowd if most > 0 else weight


# -- as a figure -----------------------------------------------------------------------------------


def graph(run: Run) -> Figure | None:
    """The last graph."""
    found = frames(run.history)
    if not found:
        return None
    figure = Figure(figsize=(9.0, 6.2), layout="constrained")
    axes = figure.subplots()
    draw(axes, run, found)
    bar = figure.colorbar(_mappable(run, found), ax=axes, shrink=0.6)
    bar.set_label(metric_name(run.metric))
    bar.outline.set_visible(False)
    return figure


def _mappable(run: Run, found: list[Frame]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    worst, best = _range(run, found)
    scale = _SCALE if best >= worst else _SCALE.reversed()
    return ScalarMappable(Normalize(min(worst, best), max(worst, best)), scale)


def draw(axes: Axes, run: Run, found: list[Frame]) -> None:
    """Draw the last graph."""
    at, frame = places(found), found[-1]
    n = len(at)
    i, j, weight = frame.i, frame.j, frame.weight
    most = max(float(f.weight.max(initial=0)) for f in found)
    widths = list(_widths(weight, most, n))
    lines = [tuple(map(tuple, line)) for line in at[np.stack([i, j], axis=-1)]]
    new = came(frame, _befores(found)[-1])
    edges = LineCollection(lines, linewidths=widths, colors=[ORANGE if it else GREY for it in new])
    edges.set(alpha=0.6, zorder=1)
    axes.add_collection(edges)
    colours = np.array([_colour(share) for share in _shares(frame.values, *_range(run, found))])
    of = np.array(clusters(run.history) or [0] * n)
    size = float(np.clip(3000 / n, 14, 240))
    for shape, cluster in zip(list(_SHAPES) * 50, np.unique(of), strict=False):
        mine = of == cluster
        x, y = at[mine].T
        axes.scatter(x, y, s=size, c=list(colours[mine]), marker=shape, ec=INK, lw=0.5, zorder=2)
    for party in range(n if n <= _NAMED else 0):
        place = (float(at[party, 0]), float(at[party, 1]) - 0.03)
        axes.text(*place, short(run.data.name(party), 14), ha="center", va="top", fontsize=8)
    axes.set(xlim=(-0.06, 1.06), ylim=(-0.08, 1.06), aspect="equal")
    axes.axis("off")


# -- on a page -------------------------------------------------------------------------------------


def page(run: Run, alternative: str) -> Markup | None:
    """The graph as elements of a page: the drawing, its scale, and where it moves a slider."""
    found = frames(run.history)
    if not found:
        return None
    at, span = places(found), _range(run, found)
    at = _EDGE + at * (_SIZE - 2 * _EDGE)
    last, most = found[-1], max(float(f.weight.max(initial=0)) for f in found)
    befores = _befores(found)
    lines = [
        f'<path d="{path}" stroke-width="{width:.2f}"{_class(new)}/>'
        for path, width, new in _lines(last, befores[-1], at, most)
    ]
    moves = len(found) > 1
    told = [_told(*each, at, most, span) for each in zip(found, befores, strict=True) if moves]
    for before, frame in reversed([*pairwise(told)]):
        if frame["edges"] == before["edges"]:  # said once
            frame["edges"] = None
    controls = Markup("")
    if moves:
        controls = Markup(
            '<div class="moves" data-frames="{}" hidden>'
            '<button type="button">Play</button>'
            "<label>Round <output>{}</output> "
            '<input type="range" min="0" max="{}" value="{}" step="1" aria-label="Evaluation">'
            '</label><span class="news">{}</span></div>'
        ).format(
            json.dumps(told, separators=(",", ":")), last.round, len(told) - 1, len(told) - 1,
            told[-1]["news"],
        )  # fmt: skip
    return Markup(
        '<svg viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        '<g class="edges">{3}</g><g class="nodes">{4}</g>{5}</svg>{6}'
    ).format(
        _SIZE,
        _SIZE + 40,
        alternative,
        Markup("".join(lines)),
        Markup("").join(_nodes(run, last, at, span)),
        _legend(run, span),
        controls,
    )


def _lines(
    frame: Frame, before: Frame | None, at: Floats, most: float
) -> list[tuple[str, float, bool]]:
    """Edges as paths, with their widths and whether they came since the drawing before.

    Those alike are one: there are as few as there are widths.
    """
    i, j, weight = frame.i, frame.j, frame.weight
    alike: dict[tuple[bool, float], list[str]] = {}
    widths = np.round(_widths(weight, most, len(at)) * 4) / 4
    new = came(frame, before).tolist()
    for a, b, width, it in zip(at[i], at[j], widths.tolist(), new, strict=True):
        alike.setdefault((it, max(width, 0.25)), []).append(
            f"M{a[0]:.0f} {a[1]:.0f}L{b[0]:.0f} {b[1]:.0f}"
        )
    return [("".join(parts), width, it) for (it, width), parts in sorted(alike.items())]


def _class(new: bool) -> str:
    return ' class="came"' if new else ""


def _told(
    frame: Frame, before: Frame | None, at: Floats, most: float, span: tuple[float, float]
) -> dict[str, Any]:
    """A frame as the page's script reads it."""
    shares = _shares(frame.values, *span)
    return {
        "round": frame.round,
        "news": _news(frame, before),
        "edges": [list(each) for each in _lines(frame, before, at, most)],
        "fill": [_colour(share) for share in shares],
        "value": [number(value) if np.isfinite(value) else "no value" for value in frame.values],
    }


def _nodes(run: Run, frame: Frame, at: Floats, span: tuple[float, float]) -> list[Markup]:
    of, n = clusters(run.history), len(at)
    radius = float(np.clip(60 / np.sqrt(n), 4, 14))
    shapes = list(_SHAPES.values())
    kinds = np.unique(of, return_inverse=True)[1] if of is not None else np.zeros(n, int)
    found = []
    for party, (place, share) in enumerate(zip(at, _shares(frame.values, *span), strict=True)):
        path = shapes[int(kinds[party]) % len(shapes)]
        form = Markup('<path d="{}"/>').format(path) if path else Markup('<circle r="1"/>')
        value = frame.values[party]
        name = short(clean(run.data.name(party)), 24)
        label = Markup("")
        if n <= _NAMED:
            label = Markup('<text x="{:.0f}" y="{:.0f}">{}</text>').format(
                place[0], place[1] + radius + 14, name
            )
        found.append(
            Markup(
                '<g fill="{}" transform="translate({:.1f} {:.1f}) scale({:.1f})">{}'
                "<title>{}: <tspan>{}</tspan></title></g>{}"
            ).format(
                _colour(share),
                *place.tolist(),
                radius,
                form,
                name,
                number(value) if np.isfinite(value) else "no value",
                label,
            )
        )
    return found


def _legend(run: Run, span: tuple[float, float]) -> Markup:
    stops = Markup("").join(
        Markup('<stop offset="{}" stop-color="{}"/>').format(share, _colour(share))
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    y = _SIZE + 14
    return Markup(
        '<defs><linearGradient id="graph-scale">{0}</linearGradient></defs>'
        '<rect x="{1}" y="{2}" width="160" height="12" fill="url(#graph-scale)"/>'
        '<text class="end" x="{3}" y="{4}">{5} {6}</text>'
        '<text class="start" x="{7}" y="{4}">{8}</text>'
    ).format(
        stops,
        _SIZE / 2 - 80,
        y,
        _SIZE / 2 - 88,
        y + 11,
        metric_name(run.metric),
        number(span[0]),
        _SIZE / 2 + 88,
        number(span[1]),
    )


# -- in words --------------------------------------------------------------------------------------


def caption(run: Run) -> str:
    """What the drawing shows; empty where there is no graph."""
    found = run.graph
    if found is None:
        return ""
    gap, within = found["spectral_gap"], found["within_clusters"]
    text = f"Who talks to whom: {found['name']}, {plural(found['edges'], 'edge')}"
    if within is not None:
        text += f", {100 * within:.0f} % of their weight between parties of one cluster"
    text += "." if gap is None else f"; spectral gap {gap:.3g}."
    if found["edges"] > EDGES:
        text += f" The {EDGES:,} heaviest edges are drawn."
    if clusters(run.history) is not None:
        text += " A shape for each cluster."
    drawn = frames(run.history)
    if any(came(*each).any() for each in zip(drawn, _befores(drawn), strict=True)):
        text += " Edges that came since the drawing before are orange."
    if len(drawn) > 1:
        text += " Colours are the metric of each party, round by round."
    return text


def undrawn(run: Run) -> str:
    """Why there is no drawing, where there is a graph."""
    if run.graph is None or frames(run.history):
        return ""
    return f"{caption(run)} Graphs of more than {DRAWN} parties are not drawn."
