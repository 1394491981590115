# SPDX-License-Identifier: Apache-2.0
"""Tables, gates and the figure of what run.py has measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import rotation
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from reporting import INK, gates, table
from wires import WAYS

from archipel.runs.history import rounds_to

Floats = npt.NDArray[np.float64]
Check = tuple[str, str, bool]
UP, DOWN = 1e6, 1e7  # bits a second of the simulated line
LAST = 5  # evaluations whose mean is the accuracy of a run
WITHIN = 1.0  # points of accuracy that a sketch may lose
TITLES = {
    "mnist": "MNIST, like parties",
    "shards": "MNIST, two shards each",
    "femnist": "FEMNIST, 293 writers",
    "longer": "FEMNIST, more rounds",
    "mnist-tuned": "MNIST, like parties, rates chosen for the last round",
    "tuned": "FEMNIST, rates chosen for the last round",
    "wider": "FEMNIST, these rates and 100 writers a round",
}
TARGETS = {"longer": 0.75, "femnist": 0.70, "tuned": 0.70, "wider": 0.70, "shards": 0.85,
           "mnist": 0.95, "mnist-tuned": 0.95}  # fmt: skip
BOTTOM = {"mnist": 80, "shards": 40, "femnist": 40}  # of the panels, per cent


def finals(one: dict[str, Any]) -> Floats:
    """The accuracy of each seed's run, in per cent."""
    return np.array([100 * np.mean(run["accuracy"][-LAST:]) for run in one["runs"]])


def curve(one: dict[str, Any]) -> tuple[Floats, Floats]:
    """Rounds, and the mean accuracy over seeds."""
    rounds = np.array(one["runs"][0]["rounds"], float)
    return rounds, np.mean([run["accuracy"] for run in one["runs"]], axis=0)


def upload(one: dict[str, Any]) -> float:
    """Bytes of one upload."""
    return float(np.mean([run["up"] for run in one["runs"]]))


def seconds(one: dict[str, Any], compute: float) -> float:
    """Of a round: the slowest party's bytes over the line, and the same work for every way."""
    longest = float(np.mean([run["longest"] for run in one["runs"]]))
    return 8 * longest / UP + 8 * float(one["runs"][0]["down"]) / DOWN + compute


def work_of(name: str, done: dict[str, Any]) -> float:
    """Seconds of a party's work in an uncompressed round; none where it was not measured."""
    data = "mnist" if name in ("mnist", "shards", "mnist-tuned") else "femnist"
    return float(done["work"]["found"][data]["none"]) if "work" in done else 0.0


def work_table(found: dict[str, dict[str, float]]) -> str:
    """Processor time of every way."""
    rows = [
        [WAYS[way].title, f"{1000 * seconds:.1f}", f"{seconds / found['mnist']['none']:.1f}"]
        for way, seconds in found["mnist"].items()
    ]
    header = ["way up", "milliseconds", "times uncompressed"]
    return (
        "### Processor time of a party's round on MNIST: training, coding and its undoing\n\n"
        + table(header, rows)
    )


def spread(values: Sequence[float] | Floats) -> str:
    if len(values) == 1:
        return f"{values[0]:.1f}"
    return f"{np.mean(values):.1f} ± {np.std(values):.1f}"


def setting_table(name: str, found: dict[str, Any], work: float) -> str:
    """All ways of a setting: accuracy, bytes, and both at equal time."""
    ways, target = found["ways"], TARGETS[name]
    plain = ways["none"]
    budget = seconds(ways["sketch"], work) * found["rounds"]
    rows = []
    for way, one in ways.items():
        each = seconds(one, work)
        rounds, accuracy = curve(one)
        inside = accuracy[rounds * each <= budget * 1.0001]
        ended = rounds[-1] * each < 0.95 * budget
        then = "no round yet" if len(inside) == 0 else f"{100 * inside[-1]:.1f}"
        reached = rounds_to([int(t) for t in rounds], list(accuracy), target, True)
        rows.append(
            [
                WAYS[way].title, f"{one['lr']:g}", spread(finals(one)), f"{upload(one):,.0f}",
                f"{upload(plain) / upload(one):.0f}", f"{each:.2f}",
                then + (" (ended before)" if ended else ""),
                "-" if reached is None else f"{reached * each:.1f}",
            ]
        )  # fmt: skip
    header = [
        "way up", "rate", "accuracy (%)", "bytes an upload", "times fewer", "seconds a round",
        f"accuracy after {budget:.0f} s", f"seconds to {target:.0%}",
    ]  # fmt: skip
    about = (
        f"### {TITLES[name]}\n\n{found['rounds']} rounds of {found['sampled']} parties, "
        f"{found['seeds']} seed{'s' * (found['seeds'] > 1)}; {upload(plain) / 4:,.0f} parameters.\n"
    )
    return f"{about}\n{table(header, rows)}"


def sketch_check(name: str, found: dict[str, Any], way: str) -> Check:
    """What rotation, 1/16 and 2 bits may lose."""
    ways = found["ways"]
    lost = finals(ways["none"]) - finals(ways[way])
    ratio = upload(ways["none"]) / upload(ways[way])
    shown = ", ".join(f"{x:+.2f}" for x in -lost)
    return (
        f"{TITLES[name]}: {WAYS[way].title} within {WITHIN:g} point of uncompressed, mean of seeds",
        f"{-lost.mean():+.2f} points ({shown}), {ratio:.0f} times fewer bytes",
        bool(lost.mean() <= WITHIN),
    )


def size_table(found: dict[str, dict[str, float]]) -> tuple[str, list[Check]]:
    """How many times fewer bytes over all, biases too."""
    rows, checks = [], list[Check]()
    for name, sizes in found.items():
        times = {way: sizes["none"] / size for way, size in sizes.items()}
        coded = [f"{size:,.0f} ({times[way]:.0f})" for way, size in sizes.items() if way != "none"]
        rows.append([name, f"{sizes['none'] / 4:,.0f}", f"{sizes['none']:,.0f}", *coded])
        for way in ("sketch+", "sketch16"):
            checks.append(
                (f"{name}: {WAYS[way].title}: 256 times fewer bytes over all", f"{times[way]:.1f}",
                 times[way] >= 256)
            )  # fmt: skip
    shown = [WAYS[way].title for way in ("sketch", "sketch+", "sketch16")]
    text = table(["model", "parameters", "uncompressed", *shown], rows)
    return f"### Bytes of an upload (times fewer)\n\n{text}", checks


def error_table(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        noted = rotation.NOTED.get(row["bits"]) if row["d"] == 2**14 else None
        pair = [np.median(row[name]) for name in ("plain", "rotated")]
        least, most = min(rotation.gains(row)), max(rotation.gains(row))
        lines.append(
            [
                row["d"], row["bits"], *[f"{x:.3g}" for x in pair],
                "-" if noted is None else f"{noted[0]:g} / {noted[1]:g}",
                f"{np.median(rotation.gains(row)):.0f} ({least:.0f} to {most:.0f})",
            ]
        )  # fmt: skip
    header = ["d", "bits", "plain", "rotated", "expected, plain / rotated", "times smaller"]
    return "### Relative squared error of few bits, median of 20 vectors\n\n" + table(header, lines)


def feedback_table(found: dict[str, Any], longer: dict[str, Any]) -> tuple[str, list[Check]]:
    """The largest 1 % on the way, each figure the mean of three evaluations."""
    rows, checks = [], list[Check]()
    final = dict[str, Floats]()
    for part, marks in ((found, (50, 100, 150)), (longer, (150, 300, 500))):
        for name, one in part.items():
            at = {t: one["rounds"].index(t) + 1 for t in marks if t in one["rounds"]}
            cells = {
                t: np.array([100 * np.mean(curve[k - 3 : k]) for curve in one["accuracy"]])
                for t, k in at.items()
            }
            key = f"{name}, {one['rounds'][-1]} rounds"
            final[key] = cells[one["rounds"][-1]]
            shown = ", ".join(f"{spread(values)} ({t})" for t, values in cells.items())
            rows.append([name, len(one["accuracy"]), shown, f"{one['up']:,.0f}"])
    for key, top in final.items():
        if ", top 1 %, " not in key:
            continue
        plain = final[key.replace("top 1 %", "uncompressed")].mean()
        lost = final.get(key.replace("top 1 %", "no feedback"))
        less = "" if lost is None else f"; without feedback {lost.mean() - plain:+.2f}"
        partition, _, rounds = key.split(", ")
        checks.append(
            (f"every party in every round, {partition}, {rounds}: top 1 % with feedback within 0.5 "
             "points of uncompressed", f"{top.mean() - plain:+.2f} points{less}",
             bool(top.mean() >= plain - 0.5))
        )  # fmt: skip
    header = ["20 parties, all in every round", "seeds", "accuracy (%) (after rounds)",
              "bytes an upload"]  # fmt: skip
    return f"### Error feedback\n\n{table(header, rows)}", checks


def coder_table(found: dict[str, Any]) -> str:
    rows = []
    for name, one in found.items():
        rows.append(
            [
                name.replace("1 bits", "1 bit"), f"{one['bound']:.3f}",
                f"{one['arithmetic bits']:.3f}", f"{one['zstandard bits']:.3f}",
                f"{100 * (one['zstandard bits'] / one['arithmetic bits'] - 1):+.1f} %",
                *[
                    f"{one[f'{coder} encode']:.1f} / {one[f'{coder} decode']:.1f}"
                    for coder in ("arithmetic", "zstandard")
                ],
            ]
        )  # fmt: skip
    header = [
        "codes", "bound", "arithmetic", "zstandard", "zstandard against arithmetic",
        "arithmetic, ms", "zstandard, ms",
    ]  # fmt: skip
    return "### Bits a number, and milliseconds to encode / decode a million numbers\n\n" + table(
        header, rows
    )


def algorithm_table(found: dict[str, Any]) -> str:
    rows = []
    for name, one in found.items():
        algorithm, _, wire = name.partition(", ")
        plain = found[f"{algorithm}, uncompressed"]
        new = "-" if one["new"] is None else f"{100 * one['new']:.1f}"
        rows.append(
            [algorithm, wire, f"{100 * one['accuracy']:.1f}", new, f"{one['up']:,.0f}",
             f"{plain['up'] / one['up']:.0f}"]
        )  # fmt: skip
    header = ["algorithm", "way up", "accuracy (%)", "new parties", "bytes a party", "times fewer"]
    return "### Other algorithms, MNIST in two shards\n\n" + table(header, rows)


def tables(done: dict[str, Any]) -> tuple[str, list[Check]]:
    """All tables of the parts that are there, and the gates."""
    found = {part: one["found"] for part, one in done.items()}
    texts, checks = [], list[Check]()
    if "errors" in found:
        texts.append(error_table(found["errors"]))
        checks += rotation.checks(found["errors"])
    for name in TITLES:
        if name in found:
            texts.append(setting_table(name, found[name], work_of(name, done)))
            checks += [
                sketch_check(name, found[name], way)
                for way in ("sketch", "dither")
                if way in found[name]["ways"]
            ]
    if "work" in found:
        texts.append(work_table(found["work"]))
    if "sizes" in found:
        text, more = size_table(found["sizes"])
        texts.append(text)
        checks += more
    if "feedback" in found:
        text, more = feedback_table(found["feedback"], found.get("patience", {}))
        texts.append(text)
        checks += more
    if "coders" in found:
        texts.append(coder_table(found["coders"]))
    if "algorithms" in found:
        texts.append(algorithm_table(found["algorithms"]))
    return "\n\n".join([gates(checks), *texts]), checks


def figures(done: dict[str, Any]) -> dict[str, Figure]:
    """Accuracy by megabytes, and by seconds on the slow line; a column for each setting."""
    shown = [name for name in ("mnist", "shards", "femnist") if name in done]
    if not shown:
        return {}
    figure = Figure(figsize=(5 * len(shown), 9.6), layout="constrained")
    axes = figure.subplots(2, len(shown), squeeze=False)
    lines = {}
    for column, name in enumerate(shown):
        found = done[name]["found"]
        work = work_of(name, done)
        top = 0.0
        for key, one in found["ways"].items():
            way = WAYS[key]
            rounds, accuracy = curve(one)
            top = max(top, 100 * float(accuracy.max()))
            megabytes = rounds * found["sampled"] * upload(one) / 1e6
            for ax, x in zip(
                axes[:, column], (megabytes, rounds * seconds(one, work)), strict=True
            ):
                (lines[key],) = ax.plot(
                    x, 100 * accuracy, color=way.colour, linestyle=way.style, label=way.title,
                    linewidth=2.8 if key in ("none", "sketch") else 1.6,
                    zorder=3 if key in ("none", "sketch") else 2,
                )  # fmt: skip
        for ax in axes[:, column]:
            ax.set_xscale("log")
            ax.set_ylim(BOTTOM[name], top + 0.04 * (top - BOTTOM[name]))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            ax.set_ylabel("test accuracy (%)")
        axes[0, column].set(title=TITLES[name], xlabel="megabytes sent up by all parties")
        axes[1, column].set_xlabel("seconds, line with 1 Mbit/s up and 10 down")
    ordered = [lines[key] for key in WAYS if key in lines]
    figure.legend(handles=ordered, loc="outside lower center", ncols=5 if len(shown) > 2 else 3,
                  handlelength=3)  # fmt: skip
    figure.suptitle("What an upload's bytes buy, every way at its own best learning rate", x=0.01,
                    ha="left", color=INK, fontweight="bold")  # fmt: skip
    return {"plot.png": figure}
