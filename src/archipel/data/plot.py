# SPDX-License-Identifier: Apache-2.0
"""Pictures of a federation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from archipel.data.federation import Federation


def draw(fed: Federation, path: str | Path | None, max_parties: int) -> Figure:
    """Draw how targets and sizes fall across parties."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
