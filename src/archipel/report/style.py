# SPDX-License-Identifier: Apache-2.0
"""How figures look: colours that everybody can tell apart, quiet axes, text taken as it is."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes

from archipel.errors import clean

# Okabe and Ito's colours, and greys
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#8a8a8a"
GREEN, AMBER, PINK, SKY = "#009e73", "#e69f00", "#cc79a7", "#a9cfe6"
INK, RULE = "#1f2933", "#d8dee6"

_RC: Any = {
    "font.size": 9.5,
    "text.color": INK,
    "text.parse_math": False,  # a party's name may hold a dollar
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text: it can be searched, and read aloud
    "svg.hashsalt": "archipel",  # the same figure, the same bytes
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in this style."""
    with mpl.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def short(name: str, most: int = 24) -> str:
    """Return a name that fits beside an axis, without characters that cannot be drawn.

    >>> short("St. Elsewhere\\x00 General Teaching Hospital")
    'St. Elsewhere General T…'
    """
    name = " ".join(clean(name).split())
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"


def bare(axes: Axes) -> None:
    """Leave only the names on the vertical axis."""
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)
