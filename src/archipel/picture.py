# SPDX-License-Identifier: Apache-2.0
"""Figures that notebooks show by themselves."""

from __future__ import annotations

import warnings
from io import BytesIO

from matplotlib.figure import Figure

SEA, CORAL, INK, PALE = "#1f6f8b", "#e07a5f", "#33415c", "#e6eaf0"  # of data
_DPI, _PAGE = 144, 96  # of the file, and of a notebook's page


class Picture(Figure):
    """A figure made without pyplot, which a notebook would only name: it has its own display."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        content = BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            self.savefig(content, format="png", dpi=_DPI)
        return content.getvalue(), {"width": round(self.get_figwidth() * _PAGE)}
