# SPDX-License-Identifier: Apache-2.0
"""The table of the runs, what must hold, and the plot: seen parties beside new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from methods import METHODS
from reporting import BLUE, GREY, INK, ORANGE, gates, show, table

Record = dict[str, Any]
BASELINES = ("local", "pooled")
OURS = ("pefll", "pefll-tuned")
NOTHING = "-"
KINDS = {"femnist": "writers"}  # what the parties are called


def report(folder: Path, dataset: str, runs: list[Record]) -> None:
    """Write table.md and the plots of the runs, and print the table."""
    kind = KINDS.get(dataset, "parties")
    counts = {each["groups"]["seen"]["parties"] for each in runs}
    every = _by_count(runs)[max(counts)]
    seeds = set.intersection(*({each["seed"] for each in found} for found in every.values()))
    main = _of_seeds(every, seeds) if seeds else every
    parts = [_table(main, kind), _edges(main), gates(_checks(main, kind))]
    if any(name in main for name in OURS) and _paired(main):
        parts.insert(1, _differences(main, kind))
        parts.insert(0, _headline(main, kind))
    more = {name: found for name, found in every.items() if len(found) > len(main[name])}
    if len(more) > 1 and _paired(more):
        parts.append(_more(more, kind))
    figures = {"plot.png": draw(main, kind)}
    if len(counts) > 1:
        parts.append(_gaps(runs, kind))
        figures["writers.png"] = draw_gaps(runs, kind)
    show(folder, "\n\n".join(parts), figures)


def _of_seeds(main: dict[str, list[Record]], seeds: set[int]) -> dict[str, list[Record]]:
    """The runs with these seeds: what is compared has the same splits."""
    return {name: [e for e in runs if e["seed"] in seeds] for name, runs in main.items()}


def _more(more: dict[str, list[Record]], kind: str) -> str:
    """The methods that ran on more splits than all have in common."""
    seeds = set.intersection(*({each["seed"] for each in runs} for runs in more.values()))
    main = _of_seeds(more, seeds)
    groups = list(next(iter(main.values()))[0]["groups"])
    rows = [
        [METHODS[name].label, *(_spread(_values(runs, group)) for group in groups)]
        for name, runs in main.items()
    ]
    parts = [f"On {len(seeds)} splits (mean ± sd over seeds). {_headline(main, kind)}",
             table(["", *(f"{group} {kind} (%)" for group in groups)], rows)]  # fmt: skip
    if any(name in main for name in OURS):
        parts.append(_differences(main, kind))
    return "\n\n".join(parts)


def _by_method(runs: list[Record]) -> dict[str, list[Record]]:
    found = {name: [each for each in runs if each["method"] == name] for name in METHODS}
    return {name: each for name, each in found.items() if each}


def _values(runs: list[Record], group: str, figure: str = "accuracy") -> list[float]:
    return [100 * each["groups"][group][figure] for each in runs if group in each["groups"]]


def _spread(values: list[float], digits: int = 1) -> str:
    if not values:
        return NOTHING
    sd = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{sd}"


def _table(main: dict[str, list[Record]], kind: str) -> str:
    groups = list(next(iter(main.values()))[0]["groups"])
    header = ["", *(text for g in groups for text in (f"{g} {kind} (%)", f"{g}, mean over {kind}")),
              *(["seconds of one core"] if _paired(main) else []),
              "messages", "KB", "gradients", "ms"]  # fmt: skip
    rows = []
    for name, runs in main.items():
        untuned = "" if all(each["tuned"] for each in runs) else " (not tuned)"
        cells = [METHODS[name].label + untuned]
        for group in groups:
            cells += [_spread(_values(runs, group)), _spread(_values(runs, group, "mean"))]
        if _paired(main):  # earlier runs were timed by the clock
            cells.append(f"{min(each['seconds'] for each in runs):.0f}")
        needs = [each["joining"] for each in runs if each["joining"]]
        for write in _NEEDS:
            cells.append(write(needs) if needs else NOTHING)
        rows.append(cells)
    first = next(iter(main.values()))[0]
    sizes = ", ".join(
        f"{part['parties']} {name} {kind} ({part['points']} test images)"
        for name, part in first["groups"].items()
    )
    seeds = max(len({each["seed"] for each in runs}) for runs in main.values())
    total = sum(each["seconds"] for runs in main.values() for each in runs) / 60
    spent = f"All runs together took {total:.0f} minutes of one core." if _paired(main) else ""
    return (
        f"{sizes}; {first['model']}, {first['rounds']} rounds, {first['sample']:g} of the {kind} a "
        f"round; mean ± sd over {seeds} seed{'s' if seeds > 1 else ''}, which draw the new {kind}, "
        f"too.{_extras(main, kind)} Accuracy over all test images of a group, and mean over its "
        f"{kind}. Messages, bytes, gradients of single images and time on one core: what a new "
        f"party needs before it has a model. {spent}\n\n{table(header, rows)}"
    )


def _extras(main: dict[str, list[Record]], kind: str) -> str:
    """What else the numbers depend on: folds, virtual parties, and classes that are known."""
    first, said = next(iter(main.values()))[0], ""
    if first.get("folds"):
        said += f" New {kind} are cross-fitted in {first['folds']} folds: each image is tested."
    copied = [name for name, runs in main.items() if runs[0]["settings"].get("virtual")]
    if copied:
        labels = ", ".join(METHODS[name].label for name in copied)
        copies = main[copied[0]][0]["settings"]["virtual"]
        said += f" With {copies} virtual copies of every training party, where validation "
        said += f"points chose them: {labels}."
    if "known" in first:
        said += (
            f" {100 * first['known']:.0f} % of the seen {kind}' test images are of a class that "
            "the party has in training: a head trained on its own images alone has no other."
        )
    return said


def _edges(main: dict[str, list[Record]]) -> str:
    """Which chosen settings sit at an edge of what was tried."""
    found = [
        f"{METHODS[name].label} ({', '.join(runs[0]['edges'])})"
        for name, runs in main.items()
        if runs[0].get("edges")
    ]
    return f"Chosen at the edge of what was tried: {'; '.join(found) or 'nothing'}."


def _headline(main: dict[str, list[Record]], kind: str) -> str:
    """Who is first in each group, how far ahead of the best that is not ours or not theirs."""
    said = []
    for group in next(iter(main.values()))[0]["groups"]:
        means = {name: fmean(_values(runs, group)) for name, runs in main.items()
                 if name not in BASELINES}  # fmt: skip
        first = max(means, key=lambda name: means[name])
        rest = [name for name in means if (name in OURS) != (first in OURS)]
        if not rest:
            continue
        second = max(rest, key=lambda name: means[name])
        lead = difference(main[first], main[second], group)
        ahead = "" if lead is None else f", {lead[0]:+.1f} ± {lead[1]:.1f} points against"
        said.append(
            f"{group} {kind}: {METHODS[first].label} is first, {means[first]:.1f} %{ahead} "
            f"{METHODS[second].label}, {means[second]:.1f} %"
        )
    text = "; ".join(said)
    return f"**{text[:1].upper()}{text[1:]}.**"


def _paired(main: dict[str, list[Record]]) -> bool:
    return all("by_party" in group for runs in main.values() for each in runs
               for group in each["groups"].values())  # fmt: skip


def difference(ours: list[Record], theirs: list[Record], group: str) -> tuple[float, float] | None:
    """Points that one method is ahead over all images, and the standard error over parties.

    A party's images of all seeds count as one draw: they are alike.
    """
    right: dict[str, float] = {}
    points: dict[str, float] = {}
    seeds = {each["seed"]: each["groups"].get(group) for each in theirs}
    for each in ours:
        other, mine = seeds.get(each["seed"]), each["groups"].get(group)
        if other is None or mine is None:
            continue
        for name, (count, n) in mine["by_party"].items():
            right[name] = right.get(name, 0) + count - other["by_party"][name][0]
            points[name] = points.get(name, 0) + n
    if len(points) < 2:
        return None
    total, parties = sum(points.values()), len(points)
    lead = sum(right.values()) / total
    spread = sum((right[name] - lead * points[name]) ** 2 for name in points)
    return 100 * lead, 100 * (spread * parties / (parties - 1)) ** 0.5 / total


def _differences(main: dict[str, list[Record]], kind: str) -> str:
    """How far our rows are ahead of every other one."""
    ours = [name for name in OURS if name in main]
    groups = list(next(iter(main.values()))[0]["groups"])
    columns = [f"{METHODS[name].label}: {group}" for name in ours for group in groups]
    header, rows = ["behind, in points", *columns], []
    for name, runs in main.items():
        cells = [METHODS[name].label]
        for mine in ours:
            for group in groups:
                found = None if mine == name else difference(main[mine], runs, group)
                cells.append(NOTHING if found is None else f"{found[0]:+.1f} ± {found[1]:.1f}")
        rows.append(cells)
    return (
        f"How far each method is behind: paired differences over the same images and seeds, "
        f"± the standard error over {kind}.\n\n{table(header, rows)}"
    )


def _need(write: Callable[[dict[str, float]], float], digits: int) -> Callable[[list[Any]], str]:
    return lambda needs: f"{fmean(map(write, needs)):,.{digits}f}"


_NEEDS = [
    _need(lambda each: each["messages"], 0),
    _need(lambda each: (each["up"] + each["down"]) / 1000, 0),
    _need(lambda each: each["gradients"], 0),
    _need(lambda each: 1000 * each["seconds"], 1),
]


def _checks(main: dict[str, list[Record]], kind: str) -> list[tuple[str, str, bool]]:
    """What the table is to show."""
    means = {
        group: {name: fmean(_values(runs, group)) for name, runs in main.items()}
        for group in ("seen", "new")
    }
    checks = []
    if "fedavg" in main:
        for name in main:
            if name in (*BASELINES, "fedavg"):
                continue
            gain = means["seen"][name] - means["seen"]["fedavg"]
            what = f"{METHODS[name].label} at least as good as FedAvg on seen {kind}"
            checks.append((what, f"{gain:+.1f}", gain >= 0))
    for ours in OURS:
        if ours not in main:
            continue
        for group, least in (("seen", 0.0), ("new", 0.0), ("new", 2.0)):
            others = {k: v for k, v in means[group].items() if k not in (*OURS, *BASELINES)}
            if not others:
                continue
            second = max(others, key=lambda name: others[name])
            lead = means[group][ours] - others[second]
            error = difference(main[ours], main[second], group) if _paired(main) else None
            told = f"{lead:+.1f}" + (f" ± {error[1]:.1f}" if error else "")
            ahead = f", by {least:g} points" if least else ""
            what = f"{METHODS[ours].label} first on {group} {kind}{ahead}"
            checks.append((what, f"{told} ({METHODS[second].label})", lead >= least))
    if OURS[0] in main:
        needs = [each["joining"] for each in main[OURS[0]] if each["joining"]]
        if needs:
            told = all(each["messages"] == 3 and each["gradients"] == 0 for each in needs)
            what = "PeFLL: a new party has a model after 3 messages, without a gradient"
            checks.append((what, f"{needs[0]['messages']:g}, {needs[0]['gradients']:g}", told))
    if _paired(main):
        minutes = sum(each["seconds"] for runs in main.values() for each in runs) / 120
        what = "the whole table in less than 60 minutes of two cores"
        checks.append((what, f"{minutes:.0f}", minutes < 60))
    return checks


def draw(main: dict[str, list[Record]], kind: str) -> Figure:
    """Draw one panel per group: a dot per method, bars of one sd, baselines in grey."""
    names = list(main)[::-1]
    groups = list(next(iter(main.values()))[0]["groups"])
    figure = Figure(
        figsize=(4.3 * len(groups) + 1.6, 1.3 + 0.36 * len(names)), layout="constrained"
    )
    axes = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for ax, group in zip(axes, groups, strict=True):
        parties = next(iter(main.values()))[0]["groups"][group]["parties"]
        for y, name in enumerate(names):
            values = _values(main[name], group)
            if not values:
                continue
            colour = ORANGE if name in OURS else GREY if name in BASELINES else BLUE
            mean, sd = fmean(values), stdev(values) if len(values) > 1 else 0.0
            ax.errorbar(mean, y, xerr=sd, fmt="o", color=colour, capsize=3, markersize=7,
                        linewidth=1.6)  # fmt: skip
            weight = "bold" if name in OURS else None
            ax.annotate(f"{mean:.1f}", (mean, y), (0, 6), textcoords="offset points", ha="center",
                        color=colour, fontsize=9, fontweight=weight)  # fmt: skip
        ax.set_title(f"{parties} {group} {kind}")
        ax.set_xlabel("accuracy over all test images (%)")
        ax.set_yticks(range(len(names)), [METHODS[name].label for name in names])
        ax.set_ylim(-0.6, len(names) - 0.2)
        ax.margins(x=0.08)
        ax.grid(axis="y", visible=False)
    for tick, name in zip(axes[0].get_yticklabels(), names, strict=True):
        tick.set_color(ORANGE if name in OURS else GREY if name in BASELINES else INK)
        tick.set_fontweight("bold" if name in OURS else "normal")
    figure.suptitle(f"A model of one's own, at {kind} seen in training and at new ones", x=0.01,
                    ha="left", color=INK, fontweight="bold")  # fmt: skip
    return figure


def _by_count(runs: list[Record]) -> dict[int, dict[str, list[Record]]]:
    counts = sorted({each["groups"]["seen"]["parties"] for each in runs})
    return {
        count: _by_method([each for each in runs if each["groups"]["seen"]["parties"] == count])
        for count in counts
    }


def _gaps(runs: list[Record], kind: str) -> str:
    """Accuracy on new parties against the number of those that train."""
    found = _by_count(runs)
    names = [name for name in METHODS if sum(name in each for each in found.values()) > 1]
    rows = [
        [METHODS[name].label, *(_spread(_values(e.get(name, []), "new")) for e in found.values())]
        for name in names
    ]
    header = [f"{kind} that train", *map(str, found)]
    return f"Accuracy on new {kind} (%) against how many train.\n\n{table(header, rows)}"


def draw_gaps(runs: list[Record], kind: str) -> Figure:
    """Draw accuracy at seen and at new parties against the number of those that train."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    found = _by_count(runs)
    for ax, group in zip(axes, ("seen", "new"), strict=True):
        labels = []
        for name in METHODS:
            points = [(n, _values(each[name], group)) for n, each in found.items() if name in each]
            if len(points) < 2:
                continue
            colour = ORANGE if name in OURS else GREY if name in BASELINES else BLUE
            ends = [fmean(values) for _, values in points]
            sds = [stdev(values) if len(values) > 1 else 0.0 for _, values in points]
            ax.errorbar([n for n, _ in points], ends, yerr=sds, color=colour, marker="o",
                        linewidth=2.4 if name in OURS else 1.3, capsize=2)  # fmt: skip
            labels.append((ends[-1], points[-1][0], METHODS[name].label, colour))
        lowest = -float("inf")
        for value, at, text, colour in sorted(labels):  # one above the other
            lowest = max(value, lowest + 0.45)
            ax.annotate(text, (at, lowest), (6, 0), va="center", textcoords="offset points",
                        color=colour, fontsize=8)  # fmt: skip
        ax.set_title(f"{group} {kind}")
        ax.set_xlabel(f"{kind} that train")
        ax.margins(x=0.18)
    axes[0].set_ylabel("accuracy over all test images (%)")
    return figure
