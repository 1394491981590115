# SPDX-License-Identifier: Apache-2.0
"""An audit's figures: curves at few false alarms, success by round, records made again."""

from __future__ import annotations

from math import exp

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from archipel.audit.findings import Audit, Picture
from archipel.report.figures import WIDTH
from archipel.report.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, short, styled

_COLOURS = (ORANGE, BLUE, GREEN, PINK, AMBER, SKY, INK)
_LEAST = 1e-3  # false positives that the curve begins with
_SHOWN = 7  # curves
_PICTURES = 4  # attacks whose records are shown
_FEATURES = 16  # of a table's record that are drawn


def figures(audit: Audit) -> dict[str, Figure]:
    """Those that there are numbers for."""
    with styled():
        found = {
            "roc": _roc(audit) if audit.curves else None,
            "rounds": _rounds(audit) if audit.by_round else None,
        }
    return {name: figure for name, figure in found.items() if figure is not None}


def records(audit: Audit) -> dict[str, Figure]:
    """Records beside what each attack made of them."""
    with styled():
        best = sorted(audit.pictures, key=lambda each: min(each.distance))[:_PICTURES]
        return {each.attack: _beside(each, audit) for each in best}


def _roc(audit: Audit) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.subplots()
    at = np.logspace(np.log10(_LEAST), 0, 200)
    best = sorted(audit.curves.items(), key=lambda each: -each[1].at(0.01))[:_SHOWN]
    for (name, curve), colour in zip(best, _COLOURS, strict=False):
        axes.plot(at, [max(curve.at(f), 1e-5) for f in at], color=colour, lw=1.8, label=name)
    axes.plot(at, at, color=GREY, lw=1.2, ls=":", label="guessing")
    if audit.epsilon is not None and audit.delta is not None:
        top = np.minimum(1, np.exp(min(audit.epsilon, 700)) * at + audit.delta)
        turned = 1 - exp(-min(audit.epsilon, 700)) * (1 - audit.delta - at)
        label = f"the most that ε = {audit.epsilon:.3g} allows"
        axes.plot(at, np.minimum(top, turned), color=INK, lw=1.4, ls="--", label=label)
    axes.axvline(0.01, color=GREY, lw=0.6)
    axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1), ylim=(_LEAST, 1.05))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
        axis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("false positives: records that were not used, and are accused")
    axes.set_ylabel("true positives")
    axes.grid(visible=True, which="major")
    axes.legend(loc="lower right", fontsize=8.5)
    return figure


def _rounds(audit: Audit) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for (name, points), colour in zip(audit.by_round.items(), _COLOURS, strict=False):
        t, value, low, high = np.array(points).T
        axes.fill_between(t, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(t, value, color=colour, marker="o", ms=4, lw=1.6, label=name)
    axes.axhline(0.5, color=GREY, lw=1.2, ls=":")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("area under the curve")
    axes.grid(visible=True, axis="y")
    axes.legend(loc="best", fontsize=8.5)
    return figure


def _beside(picture: Picture, audit: Audit) -> Figure:
    shape = tuple(picture.true.shape[1:])
    image = len(shape) in (2, 3) and min(shape[-2:]) > 3
    return _images(picture) if image else _tables(picture, audit)


def _images(picture: Picture) -> Figure:
    count = min(len(picture.true), 6)
    figure = Figure(figsize=(1.4 * 6, 3.2), layout="constrained")
    axes = figure.subplots(2, 6, squeeze=False)
    for each in axes.flat:
        each.set_axis_off()
    low, high = float(picture.true.min()), float(picture.true.max())
    for i in range(count):
        for row, tensor in enumerate((picture.true[i], picture.made[i])):
            shown = ((tensor.double() - low) / max(high - low, 1e-12)).clamp(0, 1).numpy()
            if shown.ndim == 3:
                shown = shown[0] if len(shown) == 1 else np.moveaxis(shown[:3], 0, -1)
            axes[row, i].imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes[1, i].set_title(f"{picture.peak[i]:.0f} dB", fontsize=9)
    axes[0, 0].set_title("the record", fontsize=9, loc="left")
    return figure


def _tables(picture: Picture, audit: Audit) -> Figure:
    """A table's records: each feature of the record, and of what was made of it."""
    count = 1
    figure = Figure(figsize=(WIDTH, 2.5 * count), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    true, made = picture.true.flatten(1), picture.made.flatten(1)
    width = min(true.shape[1], _FEATURES)
    names = [short(name, 14) for name in audit.columns[:width]] or [str(i) for i in range(width)]
    for i in range(count):
        _record(axes[i], true[i, :width].numpy(), made[i, :width].numpy(), names)
        axes[i].set_title(
            f"{picture.distance[i]:.2g} standard deviations apart", fontsize=9, loc="left"
        )
    axes[0].legend(loc="upper right", fontsize=8.5)
    return figure


def _record(axes: Axes, true: object, made: object, names: list[str]) -> None:
    at = np.arange(len(names))
    axes.bar(at - 0.2, np.asarray(true), 0.4, color=BLUE, label="the record")
    axes.bar(at + 0.2, np.asarray(made), 0.4, color=ORANGE, label="what the attack made")
    axes.set_xticks(at, names, rotation=30, ha="right", fontsize=8)
    axes.axhline(0, color=INK, lw=0.6)
