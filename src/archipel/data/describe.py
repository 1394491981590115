# SPDX-License-Identifier: Apache-2.0
"""A federation in words: in one line, and in a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from archipel.data.federation import Federation


def line(fed: Federation) -> str:
    """Return the federation in one line."""
    (training, new), virtual = fed.real, int(fed.virtual.sum())
    kind = f"{fed.classes} {'symbols' if fed.task == 'text' else 'classes'}"
    points = f"{int(fed.n[fed.stands].sum())} training and {int(fed.n_test.sum())} test points"
    if fed.about.elsewhere:
        points = "points elsewhere"
    return (
        f"Federation '{fed.about.name}': {training + new} parties"
        f"{f' ({new} new)' if new else ''}{f', {virtual} virtual ones' if virtual else ''}, "
        f"{points} of shape {fed.shape}, "
        f"{kind if fed.classes else fed.task}"
    )


def summary(fed: Federation) -> str:
    """Return a small table: parties, points, sizes, labels, source and licence."""
    low, mid, high = (f"{q:g}" for q in np.quantile(fed.n.numpy(), [0, 0.5, 1]))
    rows = {
        "parties": f"{fed.real[0]} training, {fed.real[1]} new",
        "virtual": f"{int(fed.virtual.sum())} copies" if fed.virtual.any() else "",
        "points": f"{int(fed.n[fed.stands].sum())} training, {int(fed.n_test.sum())} test",
        "per party": f"{low} / {mid} / {high} training points (least / median / most)",
        "one point": f"{str(fed.form.x.dtype).removeprefix('torch.')} {fed.shape}",
        "target": _target(fed),
        "source": fed.about.source,
        "licence": fed.about.licence,
        "cite": fed.about.citation,
        "note": fed.about.note,
    }
    width = max(map(len, rows))
    lines = [f"{key:<{width}}  {value}" for key, value in rows.items() if value]
    return "\n".join([fed.about.name, "-" * len(fed.about.name), *lines])


def _target(fed: Federation) -> str:
    if fed.lazy:  # nobody has looked at all points
        return f"{fed.classes} classes or symbols" if fed.classes else fed.task
    if fed.task == "survival":
        events = int(fed.y[:, 1].sum())
        return f"survival, {events} events, longest time {float(fed.y[:, 0].max()):g}"
    if fed.task == "regression":
        return f"number, {float(fed.y.mean()):.3g} ± {float(fed.y.std()):.3g}"
    if fed.task == "text":
        return f"next character, {fed.classes} symbols"
    counts = fed.y.bincount(minlength=fed.classes)
    return (
        f"{fed.classes} classes, {100 * int(counts.min()) / len(fed.y):.1f} % to "
        f"{100 * int(counts.max()) / len(fed.y):.1f} % of points each"
    )
