# SPDX-License-Identifier: Apache-2.0
"""Pictures of a federation: who has which targets, and how many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from archipel.errors import ArchipelError, clean
from archipel.picture import CORAL, INK, PALE, SEA, Picture

if TYPE_CHECKING:
    from archipel.data.federation import Federation

Ints = npt.NDArray[np.int64]


def draw(fed: Federation, path: str | Path | None, max_parties: int) -> Picture:
    """Draw the targets of up to `max_parties` parties, and the sizes of all."""
    if max_parties < 1:
        raise ArchipelError(f"max_parties={max_parties}: show at least one party.")
    shown = np.unique(np.linspace(0, fed.parties - 1, min(max_parties, fed.parties)).astype(int))
    height = float(np.clip(2.2 + 0.13 * fed.classes, 4.2, 9.5)) if fed.task != "text" else 4.2
    figure = Picture(figsize=(10, height), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=[2.6, 1])
    {
        "classification": _classes,
        "regression": _numbers,
        "survival": _survival,
        "text": _ranks,
    }[fed.task](left, fed, shown)
    if fed.task != "text":
        _party_axis(left, fed, shown)
    (_bars if fed.parties <= 12 else _sizes)(right, fed)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
        axes.tick_params(colors=INK, labelsize=9)
        axes.title.set_fontsize(10.5)
    figure.suptitle(fed.about.name, fontsize=13, fontweight="bold", color=INK, x=0.01, ha="left")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _training_rows(fed: Federation, shown: Ints) -> tuple[Ints, Ints]:
    """Return the training rows of the parties shown, and the place of each row's party."""
    rows = np.flatnonzero(~fed._row_is_test)
    place = np.full(fed.parties, -1)
    place[shown] = np.arange(len(shown))
    where = place[fed.row_party[rows]]
    return rows[where >= 0], where[where >= 0]


def _party_axis(axes: Axes, fed: Federation, shown: Ints) -> None:
    every = -(-len(shown) // (16 if fed.names is None else 40))
    ticks = np.arange(0, len(shown), every)
    labels = [fed.name(int(k)) for k in shown[ticks]]
    long = max(map(len, labels)) * len(labels) > 60
    axes.set_xticks(ticks, labels, rotation=90 if long else 0)
    for tick, k in zip(axes.get_xticklabels(), shown[ticks], strict=True):
        tick.set_color(CORAL if k >= fed.training else INK)
    if long:
        axes.tick_params(axis="x", labelsize=7)
    axes.set_xlim(-0.7, len(shown) - 0.3)
    part = "" if len(shown) == fed.parties else f" ({len(shown)} of {fed.parties})"
    axes.set_xlabel(f"party{part}", color=INK)


def _classes(axes: Axes, fed: Federation, shown: Ints) -> None:
    """Bubbles, parties by classes, area in proportion to the number of points."""
    rows, place = _training_rows(fed, shown)
    counts = np.zeros((len(shown), fed.classes))
    np.add.at(counts, (place, fed.y.numpy()[rows]), 1)
    width, height = axes.get_figure().get_size_inches()  # type: ignore[union-attr]
    cell = 72 * min(0.62 * width / len(shown), 0.78 * height / fed.classes, 0.5)
    most = max(counts.max(), 1)
    axes.set_axisbelow(True)
    axes.grid(color=PALE, linewidth=0.6)
    k, c = np.nonzero(counts)
    colours = np.where(shown[k] >= fed.training, CORAL, SEA)
    axes.scatter(
        k,
        c,
        s=np.maximum((1.15 * cell) ** 2 * counts[k, c] / most, 2.0),
        c=colours.tolist(),
        alpha=0.85,
        linewidth=0,
    )
    axes.set_ylim(-0.8, fed.classes - 0.2)
    ticks = range(0, fed.classes, 1 + fed.classes // 21)
    names = [clean(fed.class_name(each)) for each in ticks]
    names = [name if len(name) <= 20 else f"{name[:19]}…" for name in names]
    axes.set_yticks(ticks, names, parse_math=False)
    axes.set_ylabel("class", color=INK)
    axes.set_title(f"training points by class (largest: {most:.0f})", loc="left", color=INK)


def _numbers(axes: Axes, fed: Federation, shown: Ints) -> None:
    """Boxes of the targets."""
    rows, place = _training_rows(fed, shown)
    y = fed.y.numpy()[rows]
    groups: list[Any] = [y[place == i] for i in range(len(shown))]
    box = axes.boxplot(
        groups,
        positions=range(len(shown)),
        widths=0.65,
        patch_artist=True,
        showfliers=False,
        medianprops={"color": "white", "linewidth": 1.4},
        whiskerprops={"color": INK, "linewidth": 0.8},
        capprops={"color": INK, "linewidth": 0.8},
    )
    for i, patch in enumerate(box["boxes"]):
        patch.set(facecolor=CORAL if shown[i] >= fed.training else SEA, linewidth=0)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_ylabel("target", color=INK)
    axes.set_title("training targets (box: quartiles, line: median)", loc="left", color=INK)


def _survival(axes: Axes, fed: Federation, shown: Ints) -> None:
    """Every time as a dot, events over censored ones."""
    rows, place = _training_rows(fed, shown)
    time, event = fed.y.numpy()[rows].T
    jitter = np.random.default_rng(0).uniform(-0.3, 0.3, len(rows))
    for happened, colour, label in ((0, "#a9bccb", "censored"), (1, CORAL, "event")):
        of = event == happened
        axes.scatter(
            place[of] + jitter[of], time[of], s=11, c=colour, alpha=0.85, linewidth=0,
            label=f"{label} ({of.sum()})",
        )  # fmt: skip
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    axes.set_ylabel("time", color=INK)
    axes.set_title("training times", loc="left", color=INK)


def _ranks(axes: Axes, fed: Federation, shown: Ints) -> None:
    """Sizes from the largest party to the smallest."""
    sizes = np.sort(fed.n.numpy())[::-1]
    axes.fill_between(np.arange(1, len(sizes) + 1), sizes, color=SEA, alpha=0.85, step="mid")
    axes.set_ylim(0)
    axes.set_xlim(1, max(len(sizes), 2))
    axes.set_xlabel("party, from the largest", color=INK)
    axes.set_ylabel("training windows", color=INK)
    axes.set_title("training windows of each party", loc="left", color=INK)


def _bars(axes: Axes, fed: Federation) -> None:
    """Training and test points of each of a few parties."""
    names = [fed.name(k) for k in range(fed.parties)]
    n, n_test = fed.n.numpy(), fed.n_test.numpy()
    axes.barh(names, n, color=SEA, height=0.7, label="training")
    axes.barh(names, n_test, left=n, color="#a9bccb", height=0.7, label="test")
    axes.invert_yaxis()
    axes.legend(  # below: nowhere beside the bars is sure to be free
        frameon=False, fontsize=9, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12)
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    axes.set_xlabel("points", color=INK)
    axes.set_title("sizes", loc="left", color=INK)


def _sizes(axes: Axes, fed: Federation) -> None:
    """Histogram of the number of training points over all parties."""
    n = fed.n.numpy()
    low, high = max(int(n.min()), 1), max(int(n.max()), 1)
    wide = high > 20 * low
    if wide:
        edges = np.geomspace(low, high + 1, 21)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        edges = np.linspace(low - 0.5, high + 0.5, min(high - low + 1, 20) + 1)
        if len(edges) == 2:
            edges = np.linspace(0.5 * low, 1.5 * low, 12)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    parts = [n[: fed.training], n[fed.training :]]
    axes.hist(
        [p for p in parts if len(p)],
        bins=edges.tolist(),
        stacked=True,
        color=[c for p, c in zip(parts, (SEA, CORAL), strict=True) if len(p)],
        label=[t for p, t in zip(parts, ("training", "new"), strict=True) if len(p)],
        rwidth=0.92,
    )
    if len(parts[1]):
        axes.legend(frameon=False, fontsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlabel("training points of a party", color=INK)
    axes.set_ylabel("parties", color=INK)
    axes.set_title(f"sizes of {fed.parties} parties", loc="left", color=INK)
