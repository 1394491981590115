# SPDX-License-Identifier: Apache-2.0
"""Make the pictures: python docs/pictures/make.py; with `rounds` behind it, the last two alone.

live.png is the demo's study as the terminal shows it after round 30; report.png is the top of the
report that `archipel demo` writes: both need chromium. round-simulation.png and round-network.png
are the path of a round, each box with the file that does it.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

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


# -- the path of a round ---------------------------------------------------------------------------

PAPER, INK, SOFT, LINE = "#fbfaf7", "#22262e", "#5c6470", "#7d8590"
SERVER, PARTY, BETWEEN = "#dbe7f6", "#dcefdf", "#f8e6c4"  # whose work it is
EDGES = {SERVER: "#4a76ad", PARTY: "#4c8a58", BETWEEN: "#b4812a"}
Point = tuple[float, float]  # in inches, as all lengths here


class Box(NamedTuple):
    """A step of a round: what is done, in which file, and a word on it."""

    x: float  # of its middle
    y: float
    what: str
    file: str
    note: str
    colour: str
    read: int = 0  # its place among the files to read; 0 for none
    width: float = 2.1
    height: float = 1.0

    def side(self, dx: int, dy: int) -> Point:
        return self.x + dx * self.width / 2, self.y + dy * self.height / 2


class Sheet:
    """A page with one unit to the inch."""

    def __init__(self, width: float, height: float) -> None:
        self._width = width
        self._figure = plt.figure(figsize=(width, height), facecolor=PAPER)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set(xlim=(0, width), ylim=(0, height))
        self._axes.axis("off")

    def text(self, x: float, y: float, text: str, ha: str = "center", **style: Any) -> None:
        style = {"size": 9, "color": SOFT, "linespacing": 1.3} | style
        self._axes.text(x, y, text, ha=ha, va="center", **style)

    def band(self, y: float, height: float, colour: str, text: str, at: float) -> None:
        """Where a part of the round happens."""
        self._round(0.15, y, self._width - 0.3, height, fc=colour, ec="none", alpha=0.35)
        self.text(self._width - 0.35, at, text, "right", size=10, style="italic")

    def box(self, *boxes: Box) -> None:
        for box in boxes:
            (x, y), edge = box.side(-1, -1), EDGES[box.colour]
            self._round(x, y, box.width, box.height, fc=box.colour, ec=edge, lw=1.3)
            lines = [(box.what, {"size": 11, "weight": "bold", "color": INK})]
            code = {"size": 8.5, "family": "DejaVu Sans Mono", "color": edge}
            lines += [(line, code) for line in box.file.splitlines()]
            lines += [(line, {"size": 8.5, "color": INK}) for line in box.note.splitlines()]
            for i, (text, style) in enumerate(lines):
                self.text(box.x, box.y + 0.2 * ((len(lines) - 1) / 2 - i), text, **style)
            if box.read:
                x, y = x + 0.03, y + box.height - 0.03
                self._axes.plot([x], [y], "o", ms=15, mfc=edge, mec=PAPER, mew=1.2, zorder=5)
                number = {"weight": "bold", "color": PAPER, "zorder": 6}
                self.text(x, y - 0.005, str(box.read), **number)

    def join(self, one: Box, other: Box, text: str, shift: float = 0.0) -> None:
        """An arrow between neighbours, with what travels beside it, `shift` off the middle."""
        if one.y == other.y:
            way = 1 if other.x > one.x else -1
            (x, y), (end, _) = one.side(way, 0), other.side(-way, 0)
            self.arrow((x, y + shift), (end, y + shift))
            above = -0.14 if shift < 0 else 0.14 + 0.08 * text.count("\n")
            self.text((x + end) / 2, y + shift + above, text)
            return
        way = 1 if other.y > one.y else -1
        (x, y), (_, end) = one.side(0, way), other.side(0, -way)
        self.arrow((x + shift, y), (x + shift, end))
        beside = -0.1 if shift < 0 else 0.12
        self.text(x + shift + beside, (y + end) / 2, text, "right" if shift < 0 else "left")

    def arrow(self, start: Point, end: Point, dashed: bool = False) -> None:
        style = {"linestyle": (0, (4, 3))} if dashed else {}
        ends = {"arrowstyle": "-|>", "mutation_scale": 13, "shrinkA": 1, "shrinkB": 1}
        self._axes.add_patch(FancyArrowPatch(start, end, color=LINE, lw=1.5, **ends, **style))

    def _round(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        shape = "round,pad=0,rounding_size=0.1"
        self._axes.add_patch(FancyBboxPatch((x, y), width, height, shape, **style))

    def save(self, name: str) -> None:
        """Write the page, in as few colours as it has."""
        drawn = io.BytesIO()
        self._figure.savefig(drawn, dpi=130, facecolor=PAPER)
        plt.close(self._figure)
        Image.open(drawn).convert("RGB").quantize(64).save(HERE / name, optimize=True)


A, B, C, D = (1.5 + 2.85 * i for i in range(4))  # columns
STEPS = "clip, code, add noise,\nor nothing"


def round_in_simulation() -> None:
    sheet, local = Sheet(11.6, 6.6), "engines/local/"
    sheet.band(3.0, 3.45, SERVER, "the main process", 6.25)
    sheet.band(0.15, 1.95, PARTY, "a worker process, for a block of parties [m, p]", 0.35)
    who = Box(A, 5.75, "who takes part", "runs/attendance.py", "quorum, absences", SERVER, 1)
    loop = Box(B, 5.75, "loop", "runs/loop.py", "evaluates, records", SERVER)
    who, loop = (box._replace(height=0.8) for box in (who, loop))
    deals, calls = "deals the parties\nout to workers", "calls the algorithm's,\nmessage by message"
    shared = Box(A, 3.95, "shared state", f"{local}engine.py", deals, SERVER, 2)
    server = Box(B, 3.95, "server", f"{local}server.py", calls, SERVER, 3)
    rule = Box(C, 3.95, "rule, or sum", "aggregation/", "one of both,\nor nothing", BETWEEN)
    there = "who is present,\nsums or rows"
    uploads = Box(D, 3.95, "uploads", "exchange/uploads.py", there, SERVER)
    me, asked = (
        "calls the algorithm's\nme: engines/party.py",
        "what the server asks\nfor, nothing else",
    )
    party = Box(A, 1.25, "party", f"{local}share.py", me, PARTY, 4)
    send = Box(B, 1.25, "steps: send", "wire/wired.py", STEPS, BETWEEN)
    undone = "undone before\nanything is added"
    receive = Box(C, 1.25, "steps: receive", "wire/wired.py", undone, BETWEEN)
    add = Box(D, 1.25, "add up", f"{local}share.py", asked, PARTY, 4)
    sheet.box(who, loop, shared, server, rule, uploads, party, send, receive, add)
    sheet.join(loop, who, "round t", 0.12)
    sheet.join(who, loop, "Outcome", -0.12)
    sheet.join(who, shared, "cohort")
    sheet.join(shared, party, "broadcast")
    sheet.join(party, send, "upload")
    sheet.join(send, receive, "payload")
    sheet.join(receive, add, "upload")
    sheet.join(add, uploads, "sums, or rows")
    sheet.join(uploads, rule, "uploads")
    sheet.join(rule, server, "mean()\nstack()")
    sheet.join(server, shared, "next state")
    sheet.arrow(server.side(0, -1), (party.x + 0.9, party.side(0, 1)[1]), dashed=True)
    sheet.text(B - 0.55, 2.55, "reply, in a round of several messages", "left")
    sheet.text(A, 0.42, "own states stay with the parties")
    sheet.text(B, 0.42, "here begins a sum's protocol")
    sheet.save("round-simulation.png")


def round_on_the_network() -> None:
    sheet, study, engine = Sheet(11.6, 8.75), "federation/coordinator/\n", "engines/network/"
    sheet.band(4.35, 4.25, SERVER, "the coordinator", 8.4)
    sheet.band(0.15, 3.05, PARTY, "a site, one party [p]", 0.35)
    crosses = "letters over mutual TLS; a site connects outwards, and asks"
    sheet.text(6.3, 3.78, f"{crosses}\n{engine}grpc.py, letters.py", size=9.5, style="italic")
    who = Box(A, 8.0, "who takes part", f"{study}server_study.py", "", SERVER, 1, 2.1, 0.8)
    loop = Box(B, 8.0, "loop", "runs/loop.py", "the journal commits", SERVER, 0, 2.1, 0.8)
    opens, spoils = "opens a message\nfor the cohort", "whose upload spoils it\nis left out"
    shared = Box(A, 6.5, "shared state", f"{engine}engine.py", opens, SERVER, 2)
    server = Box(B, 6.5, "server", f"{engine}server.py", spoils, SERVER, 6)
    rule = Box(C, 6.5, "rule, or sum", "aggregation/", "one of both,\nor nothing", BETWEEN)
    right = "right form? in time?\nsteps: receive"
    take = Box(D, 6.5, "take the upload", f"{engine}engine.py", right, SERVER, 2)
    due = "verdict, evaluation, work"
    tell = Box(A, 5.0, "answer", f"{engine}answers.py", due, SERVER, 3, 2.2, 0.8)
    says = "registry, signature"
    check = Box(D, 5.0, "who says it?", f"{study}coordinator.py", says, SERVER, 0, 2.1, 0.95)
    may, cut, counted = "may it leave? paused?", "again where it was cut", "only with the verdict"
    ask = Box(A, 2.55, "ask", f"{engine}party_loop.py", may, PARTY, 4, 2.3, 0.8)
    keep = Box(
        5.1, 2.55, "keep the own state", f"{engine}party_state.py", counted, PARTY, 5, 2.4, 0.8
    )
    sign = Box(D, 2.55, "sign, send", f"{engine}party_loop.py", cut, PARTY, 4, 2.3, 0.8)
    runs, before = (
        "may this round be?\ncalls the algorithm's",
        "upload, secrets, state,\nbefore it leaves",
    )
    party = Box(A, 1.1, "party", f"{engine}party_state.py", runs, PARTY, 5, 2.4)
    send = Box(B + 0.05, 1.1, "steps: send", "wire/wired.py", STEPS, BETWEEN)
    rules = "federation/site/\npolicy.py"
    policy = Box(C, 1.1, "the site's policy", rules, "records behind it", PARTY)
    disk = Box(D, 1.1, "to the disk", f"{engine}party_loop.py", before, PARTY, 4, 2.3)
    sheet.box(who, loop, shared, server, rule, take, tell, check)
    sheet.box(ask, keep, sign, party, send, policy, disk)
    sheet.join(loop, who, "round t", 0.12)
    sheet.join(who, loop, "Outcome", -0.12)
    sheet.join(who, shared, "cohort")
    sheet.join(shared, tell, "sealed letter")
    sheet.join(ask, tell, "next", -0.25)
    sheet.join(tell, ask, "work", 0.1)
    sheet.join(ask, party, "shared state")
    sheet.join(party, send, "upload")
    sheet.join(send, policy, "payload")
    sheet.join(policy, disk, "payload")
    sheet.join(disk, sign, "payload")
    sheet.join(sign, check, "upload")
    sheet.join(check, take, "letter")
    sheet.join(take, rule, "uploads")
    sheet.join(rule, server, "mean()\nstack()")
    sheet.join(server, shared, "next state")
    sheet.arrow((tell.side(1, 0)[0], 4.85), (keep.x - 0.55, keep.side(0, 1)[1]), dashed=True)
    sheet.text(3.05, 4.7, "verdict, once the journal has the round", "left")
    sheet.arrow(server.side(0, -1), (tell.side(1, 0)[0], 5.2), dashed=True)
    sheet.text(3.8, 5.55, "reply, in a round of several messages", "left")
    sheet.save("round-network.png")


def main() -> None:
    round_in_simulation()
    round_on_the_network()
    if sys.argv[1:] == ["rounds"]:
        return
    with tempfile.TemporaryDirectory() as scratch:
        drawing, page = Path(scratch) / "live.svg", Path(scratch) / "live.html"
        run = study().run(scratch, watch=DrawAt(30, drawing))
        width, height = size(drawing)
        page.write_text(f'<body style="margin:0">{drawing.read_text()}</body>')
        screenshot(page, HERE / "live.png", width, height, scale=1.5)
        screenshot(run.report(), HERE / "report.png", 1100, 880, scale=1)


if __name__ == "__main__":
    main()
