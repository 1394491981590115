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
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
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
HEIGHT = 1.0  # of a box, in inches as all lengths here


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
    height: float = HEIGHT

    def side(self, where: str) -> tuple[float, float]:
        dx = {"left": -self.width / 2, "right": self.width / 2}.get(where, 0.0)
        dy = {"below": -self.height / 2, "above": self.height / 2}.get(where, 0.0)
        return self.x + dx, self.y + dy


def sheet(width: float, height: float) -> Axes:
    """An empty page with one unit to the inch."""
    figure = plt.figure(figsize=(width, height), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.axis("off")
    return axes


def band(axes: Axes, y: float, height: float, colour: str, text: str, low: bool = False) -> None:
    """Where a part of the round happens."""
    width = axes.get_xlim()[1]
    shape = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch((0.15, y), width - 0.3, height, shape, fc=colour, ec="none", alpha=0.35)
    )
    at = y + 0.2 if low else y + height - 0.2
    axes.text(width - 0.35, at, text, size=10, color=SOFT, ha="right", va="center", style="italic")


def draw(axes: Axes, box: Box) -> None:
    shape = "round,pad=0,rounding_size=0.09"
    at = (box.x - box.width / 2, box.y - box.height / 2)
    edge = EDGES[box.colour]
    axes.add_patch(FancyBboxPatch(at, box.width, box.height, shape, fc=box.colour, ec=edge, lw=1.3))
    if box.read:
        x, y = at[0] + 0.03, at[1] + box.height - 0.03
        axes.plot([x], [y], "o", ms=15, mfc=edge, mec=PAPER, mew=1.2, zorder=5)
        axes.text(
            x, y - 0.005, str(box.read), size=9, weight="bold", color=PAPER,
            ha="center", va="center", zorder=6,
        )  # fmt: skip
    lines = [(box.what, 11, "bold", "DejaVu Sans", INK)]
    lines += [(line, 8.5, "normal", "DejaVu Sans Mono", edge) for line in box.file.splitlines()]
    lines += [(line, 8.5, "normal", "DejaVu Sans", INK) for line in box.note.splitlines()]
    step = 0.2
    top = box.y + step * (len(lines) - 1) / 2
    for i, (text, size, weight, family, colour) in enumerate(lines):
        axes.text(
            box.x, top - i * step, text, size=size, weight=weight, family=family,
            color=colour, ha="center", va="center",
        )  # fmt: skip


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str,
    at: tuple[float, float] | None = None,
    dashed: bool = False,
    bend: str = "arc3",
    ha: str = "center",
) -> None:
    """From here to there, with what travels beside it."""
    style = {"linestyle": (0, (4, 3))} if dashed else {}
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=13, color=LINE, lw=1.5,
            shrinkA=1, shrinkB=1, connectionstyle=bend, **style,
        )
    )  # fmt: skip
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.12)
    x, y = at or middle
    axes.text(x, y, text, size=9, color=SOFT, ha=ha, va="center", linespacing=1.25)


def save(axes: Axes, name: str) -> None:
    """Write a page, in as few colours as it has."""
    drawn = io.BytesIO()
    axes.get_figure(root=True).savefig(drawn, dpi=130, facecolor=PAPER)
    plt.close("all")
    Image.open(drawn).convert("RGB").quantize(64).save(HERE / name, optimize=True)


def round_in_simulation() -> None:
    axes = sheet(11.6, 6.6)
    band(axes, 3.0, 3.45, SERVER, "the main process")
    band(axes, 0.15, 1.95, PARTY, "a worker process, for a block of parties [m, p]", low=True)
    first, gap, up, top, low = 1.5, 2.85, 5.75, 3.95, 1.25
    xs = [first + i * gap for i in range(4)]
    who = Box(
        xs[0], up, "who takes part", "runs/attendance.py", "quorum, absences", SERVER, 1, height=0.8
    )
    loop = Box(xs[1], up, "loop", "runs/loop.py", "evaluates, records", SERVER, height=0.8)
    shared = Box(
        xs[0],
        top,
        "shared state",
        "engines/local/engine.py",
        "deals the parties\nout to workers",
        SERVER,
        2,
    )
    server = Box(
        xs[1],
        top,
        "server",
        "engines/local/server.py",
        "calls the algorithm's,\nmessage by message",
        SERVER,
        3,
    )
    rule = Box(xs[2], top, "rule, or sum", "aggregation/", "one of both,\nor nothing", BETWEEN)
    got = Box(xs[3], top, "uploads", "exchange/uploads.py", "who is present,\nsums or rows", SERVER)
    party = Box(
        xs[0],
        low,
        "party",
        "engines/local/share.py",
        "calls the algorithm's\nme: engines/party.py",
        PARTY,
        4,
    )
    send = Box(
        xs[1], low, "steps: send", "wire/wired.py", "clip, code, add noise,\nor nothing", BETWEEN
    )
    undo = Box(
        xs[2], low, "steps: receive", "wire/wired.py", "undone before\nanything is added", BETWEEN
    )
    add = Box(
        xs[3],
        low,
        "add up",
        "engines/local/share.py",
        "what the server asks\nfor, nothing else",
        PARTY,
        4,
    )
    for box in (who, loop, shared, server, rule, got, party, send, undo, add):
        draw(axes, box)
    (x, y), (end, _) = loop.side("left"), who.side("right")
    arrow(axes, (x, y + 0.12), (end, y + 0.12), "round t", ((x + end) / 2, y + 0.26))
    arrow(axes, (end, y - 0.12), (x, y - 0.12), "Outcome", ((x + end) / 2, y - 0.27))
    arrow(axes, who.side("below"), shared.side("above"), "cohort", (xs[0] + 0.12, 4.9), ha="left")
    arrow(
        axes,
        shared.side("below"),
        party.side("above"),
        "broadcast",
        (xs[0] + 0.12, 2.55),
        ha="left",
    )
    arrow(axes, party.side("right"), send.side("left"), "upload")
    arrow(axes, send.side("right"), undo.side("left"), "payload")
    arrow(axes, undo.side("right"), add.side("left"), "upload")
    arrow(
        axes,
        add.side("above"),
        got.side("below"),
        "sums, or rows",
        (xs[3] - 0.12, 2.55),
        ha="right",
    )
    arrow(axes, got.side("left"), rule.side("right"), "uploads")
    arrow(
        axes,
        rule.side("left"),
        server.side("right"),
        "mean()\nstack()",
        (xs[1] + gap / 2, top + 0.22),
    )
    arrow(
        axes, server.side("left"), shared.side("right"), "next state", (xs[0] + gap / 2, top + 0.14)
    )
    arrow(
        axes,
        (server.x, server.y - HEIGHT / 2),
        (party.x + 0.9, party.y + HEIGHT / 2),
        "reply, in a round of several messages",
        (xs[1] - 0.55, 2.55),
        True,
        ha="left",
    )
    below = {"size": 9, "color": SOFT, "ha": "center"}
    axes.text(xs[0], 0.42, "own states stay with the parties", **below)
    axes.text(xs[1] + 0.2, 0.42, "here begins a sum's protocol", **below)
    save(axes, "round-simulation.png")


def round_on_the_network() -> None:
    axes = sheet(11.6, 8.75)
    band(axes, 4.35, 4.25, SERVER, "the coordinator")
    band(axes, 0.15, 3.05, PARTY, "a site, one party [p]", low=True)
    axes.text(
        6.3,
        3.78,
        "letters over mutual TLS; a site connects outwards, and asks\n"
        "engines/network/grpc.py, letters.py",
        size=9.5,
        color=SOFT,
        ha="center",
        va="center",
        style="italic",
        linespacing=1.4,
    )
    first, gap = 1.5, 2.85
    xs = [first + i * gap for i in range(4)]
    study, network = "federation/coordinator/", "engines/network/"
    who = Box(xs[0], 8.0, "who takes part", f"{study}\nserver_study.py", "", SERVER, 1, height=0.8)
    loop = Box(xs[1], 8.0, "loop", "runs/loop.py", "the journal commits", SERVER, height=0.8)
    shared = Box(
        xs[0],
        6.5,
        "shared state",
        f"{network}engine.py",
        "opens a message\nfor the cohort",
        SERVER,
        2,
    )
    server = Box(
        xs[1],
        6.5,
        "server",
        f"{network}server.py",
        "whose upload spoils it\nis left out",
        SERVER,
        6,
    )
    rule = Box(xs[2], 6.5, "rule, or sum", "aggregation/", "one of both,\nor nothing", BETWEEN)
    take = Box(
        xs[3],
        6.5,
        "take the upload",
        f"{network}engine.py",
        "right form? in time?\nsteps: receive",
        SERVER,
        2,
    )
    tell = Box(
        xs[0],
        5.0,
        "answer",
        f"{network}answers.py",
        "verdict, evaluation, work",
        SERVER,
        3,
        height=0.8,
        width=2.2,
    )
    check = Box(
        xs[3],
        5.0,
        "who says it?",
        f"{study}\ncoordinator.py",
        "registry, signature",
        SERVER,
        height=0.95,
    )
    ask = Box(
        xs[0],
        2.55,
        "ask",
        f"{network}party_loop.py",
        "may it leave? paused?",
        PARTY,
        4,
        height=0.8,
        width=2.3,
    )
    keep = Box(
        xs[1] + 0.75,
        2.55,
        "keep the own state",
        f"{network}party_state.py",
        "only with the verdict",
        PARTY,
        5,
        height=0.8,
        width=2.4,
    )
    sign = Box(
        xs[3],
        2.55,
        "sign, send",
        f"{network}party_loop.py",
        "again where it was cut",
        PARTY,
        4,
        height=0.8,
        width=2.3,
    )
    party = Box(
        xs[0],
        1.1,
        "party",
        f"{network}party_state.py",
        "may this round be?\ncalls the algorithm's",
        PARTY,
        5,
        width=2.4,
    )
    send = Box(
        xs[1] + 0.05,
        1.1,
        "steps: send",
        "wire/wired.py",
        "clip, code, add noise,\nor nothing",
        BETWEEN,
    )
    policy = Box(
        xs[2], 1.1, "the site's policy", "federation/site/\npolicy.py", "records behind it", PARTY
    )
    disk = Box(
        xs[3],
        1.1,
        "to the disk",
        f"{network}party_loop.py",
        "upload, secrets, state,\nbefore it leaves",
        PARTY,
        4,
        width=2.3,
    )
    for box in (
        who,
        loop,
        shared,
        server,
        rule,
        take,
        tell,
        check,
        ask,
        keep,
        sign,
        party,
        send,
        policy,
        disk,
    ):
        draw(axes, box)
    (x, y), (end, _) = loop.side("left"), who.side("right")
    arrow(axes, (x, y + 0.12), (end, y + 0.12), "round t", ((x + end) / 2, y + 0.26))
    arrow(axes, (end, y - 0.12), (x, y - 0.12), "Outcome", ((x + end) / 2, y - 0.27))
    arrow(axes, who.side("below"), shared.side("above"), "cohort", (xs[0] + 0.12, 7.3), ha="left")
    arrow(
        axes,
        shared.side("below"),
        tell.side("above"),
        "sealed letter",
        (xs[0] + 0.12, 5.7),
        ha="left",
    )
    (x, y), (_, end) = tell.side("below"), ask.side("above")
    arrow(axes, (x - 0.25, end), (x - 0.25, y), "next", (x - 0.35, 3.78), ha="right")
    arrow(axes, (x + 0.1, y), (x + 0.1, end), "work", (x + 0.2, 3.78), ha="left")
    arrow(
        axes,
        ask.side("below"),
        party.side("above"),
        "shared state",
        (xs[0] + 0.12, 1.88),
        ha="left",
    )
    arrow(
        axes,
        party.side("right"),
        send.side("left"),
        "upload",
        ((party.side("right")[0] + send.side("left")[0]) / 2, 1.24),
    )
    arrow(axes, send.side("right"), policy.side("left"), "payload")
    arrow(
        axes,
        policy.side("right"),
        disk.side("left"),
        "payload",
        ((policy.side("right")[0] + disk.side("left")[0]) / 2, 1.24),
    )
    arrow(axes, disk.side("above"), sign.side("below"), "", None)
    arrow(axes, sign.side("above"), check.side("below"), "upload", (xs[3] + 0.12, 3.78), ha="left")
    arrow(axes, check.side("above"), take.side("below"), "letter", (xs[3] + 0.12, 5.73), ha="left")
    arrow(axes, take.side("left"), rule.side("right"), "uploads")
    arrow(axes, rule.side("left"), server.side("right"), "mean()\nstack()", (xs[1] + gap / 2, 6.72))
    arrow(axes, server.side("left"), shared.side("right"), "next state", (xs[0] + gap / 2, 6.64))
    arrow(
        axes,
        (tell.side("right")[0], 4.85),
        (keep.x - 0.55, keep.side("above")[1]),
        "verdict, once the journal has the round",
        (3.05, 4.7),
        True,
        ha="left",
    )
    arrow(
        axes,
        server.side("below"),
        (tell.side("right")[0], 5.2),
        "reply, in a round of several messages",
        (3.8, 5.55),
        True,
        ha="left",
    )
    save(axes, "round-network.png")


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
