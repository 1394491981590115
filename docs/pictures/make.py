# SPDX-License-Identifier: Apache-2.0
"""Make the pictures of the live view and of the report: python docs/pictures/make.py

Needs chromium. live.png is the demo's study as the terminal shows it after round 30; report.png is
the top of the report that `archipel demo` writes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from archipel.demo import study
from archipel.report.live import picture
from archipel.runs.run import Run

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class DrawAt:
    """Looks on, and draws the live view after one round."""

    def __init__(self, after: int, path: Path) -> None:
        self._after, self._path = after, path

    def __call__(self, run: Run) -> None:
        if run.done == self._after:
            picture(run, self._path, 84, 25)

    def say(self, text: str) -> None:
        pass


def screenshot(page: Path, to: Path, width: int, height: int, scale: float) -> None:
    """Have chromium draw the top of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("docs/pictures/make.py: chromium is not installed.")
    subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
            f"--force-device-scale-factor={scale}",
            f"--screenshot={to}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )


def size(svg: Path) -> tuple[int, int]:
    """Width and height of a drawing, in pixels."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text())
    assert found is not None
    return round(float(found[1])), round(float(found[2]))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        drawing, page = Path(scratch) / "live.svg", Path(scratch) / "live.html"
        run = study().run(scratch, watch=DrawAt(30, drawing))
        width, height = size(drawing)
        page.write_text(f'<body style="margin:0">{drawing.read_text()}</body>')
        screenshot(page, HERE / "live.png", width, height, scale=1.5)
        screenshot(run.report(), HERE / "report.png", 1100, 880, scale=1)


if __name__ == "__main__":
    main()
