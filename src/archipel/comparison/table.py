# SPDX-License-Identifier: Apache-2.0
"""A comparison as a table: quality above, cost below, and in words how the numbers were made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from archipel.comparison.results import CENTRAL, LOCAL, NEAR, RANKS, Comparison, Row, Stat
from archipel.comparison.tuning import FRACTION
from archipel.metrics import larger_is_better
from archipel.report.tables import Cell, Column, Table
from archipel.scorecard.words import NOTHING, amount, duration, metric_name, number, plural, size

_EDGE = "†"


def table(comparison: Comparison) -> Table:
    """Lay out the rows: algorithms first, then the baselines."""
    shown = _Columns(comparison)
    sections = [
        [shown.cells(row, rows) for row in rows]
        for rows in (comparison.rows, comparison.baselines)
        if rows
    ]
    bold = any(cell.strong for section in sections for row in section for cell in row)
    return Table(title(comparison), shown.columns, sections, notes(comparison, bold))


def title(comparison: Comparison) -> str:
    """What was compared on."""
    facts = comparison.facts
    data = facts["data"] + (f" ({facts['partition']})" if facts["partition"] else "")
    new = f" ({facts['new_parties']} new)" if facts["new_parties"] else ""
    parts = [
        data,
        plural(facts["parties"], "party") + new,
        facts["model"],
        *([plural(facts["rounds"], "round")] if facts["rounds"] else []),
        *([_sample(facts["sample"])] if facts["sample"] is not None else []),
        f"{metric_name(comparison.metric)} ({_better(comparison.metric)})",
    ]
    return ", ".join(parts)


class _Columns:
    """The columns that this comparison needs, and how each is written."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        rows = [*comparison.rows, *comparison.baselines]
        metric, target = metric_name(comparison.metric), comparison.target
        aim = "target" if target is None else f"{metric} {target:.4g}"
        quality: dict[str, str] = {
            "points": f"{metric}, all test points",
            "parties": "mean over parties",
            "worst_tenth": "worst tenth of parties",
            "new_points": f"{metric}, new parties' test points",
            "new_parties": "mean over new parties",
            "new_worst_tenth": "worst tenth of new parties",
            "mean_model": "common model" if comparison.personal else "mean of the parties' models",
        }
        cost = {
            "rounds_to_target": f"rounds to {aim}",
            **({"simulated_to_target": f"simulated time to {aim}"} if _timed(rows) else {}),
            "bytes_to_target": f"bytes to {aim}",
            "bytes": "bytes in all",
            **({"epsilon": "ε spent"} if comparison.private else {}),
            **({"bytes_up": "bytes up", "bytes_down": "bytes down"} if comparison.wires else {}),
            "gradients": "gradients",
            "seconds": "time",
        }
        joining = {
            "joining_messages": "a new party needs: messages",
            "joining_bytes": "bytes",
            "joining_gradients": "gradients",
            "joining_seconds": "time on one core",
        }
        optional = ("new_points", "new_parties", "new_worst_tenth", "mean_model")
        empty = {key for key in optional if not any(row.figures[key].known for row in rows)}
        self._quality = [key for key in quality if key not in empty]
        self._cost, self._joining = list(cost), list(joining) if comparison.personal else []
        aside = {"worst_tenth", "new_worst_tenth", "mean_model", "bytes_to_target"}
        aside = aside if comparison.personal else set()
        self.columns = [
            Column("", "algorithm", left=True),
            *([Column("chosen", "chosen", 1 if aside else 0, True)] if comparison.grid else []),
            *(Column(quality[key], key, aside=key in aside) for key in self._quality),
            *(Column(cost[key], key, block=1, aside=key in aside) for key in self._cost),
            *(Column(joining[key], key, block=2) for key in self._joining),
        ]

    def cells(self, row: Row, rows: Sequence[Row]) -> list[Cell]:
        edge = f" {_EDGE}" if any(each.edges for each in row.results) else ""
        cells = [Cell(row.label)]
        if self._comparison.grid:
            cells.append(Cell(chosen_words(row) + edge))
        baseline = row.label in (LOCAL, CENTRAL)
        for key in self._quality:
            strong = not baseline and key != "mean_model" and self._leads(row, rows, key)
            cells.append(_cell(row.figures[key], _metric, strong))
        writers: dict[str, Callable[[float], str]] = {
            "rounds_to_target": lambda value: f"{value:,.1f}",
            "simulated_to_target": duration,
            "bytes_to_target": size,
            "bytes": size,
            "epsilon": lambda value: f"{value:.3g}",
            "bytes_up": size,
            "bytes_down": size,
            "gradients": amount,
            "seconds": duration,
            "joining_messages": lambda value: f"{value:g}",
            "joining_bytes": size,
            "joining_gradients": amount,
            "joining_seconds": duration,
        }
        costs = [*self._cost, *self._joining]
        return [*cells, *(_cell(row.figures[key], _with_sd(writers[key])) for key in costs)]

    def _leads(self, row: Row, rows: Sequence[Row], key: str) -> bool:
        """Whether a row is ahead of every other by more than both their deviations."""
        own = row.figures[key]
        sign = 1 if larger_is_better(self._comparison.metric) else -1
        others = [each.figures[key] for each in rows if each is not row]
        others = [each for each in others if each.mean is not None]
        if own.mean is None or own.sd is None or not others:
            return False
        return all(
            sign * (own.mean - (each.mean or 0.0)) > max(own.sd, each.sd or 0.0) for each in others
        )


def chosen_words(row: Row) -> str:
    """What the grid chose: once where all seeds agree, else seed by seed."""
    words = []
    for name in dict.fromkeys(key for each in row.results for key in each.chosen):
        values = [str(each.chosen[name]) for each in row.results if name in each.chosen]
        same = len(set(values)) == 1
        words.append(f"{name} {values[0] if same else ' / '.join(values)}")
    return ", ".join(words) or NOTHING


def notes(comparison: Comparison, bold: bool) -> list[str]:
    """How the numbers were made, and what to be careful about."""
    seeds, rows = comparison.seeds, [*comparison.rows, *comparison.baselines]
    if len(seeds) > 1:
        lines = [
            f"Mean ± sd over {len(seeds)} seeds ({_listed(seeds)}); a seed's splits and first "
            "model are the same for all rows."
        ]
        if bold:
            lines.append("Bold or starred: ahead of all other algorithms by more than both sds.")
    else:
        lines = [f"One seed ({seeds[0]}): no deviation is known."]
    alike = {LOCAL} if comparison.personal else set()  # tested as the algorithms are
    own = [row.label for row in rows if row.label in alike or row.results[0].own_models]
    if any(each.own_models for row in comparison.rows for each in row.results):
        of = f"{', '.join(own[:-1])} and {own[-1]}" if len(own) > 1 else own[0]
        rank = (
            f" Their {metric_name(comparison.metric)} over all points is left out: scores of "
            "different models have no common order."
        )
        lines.append(
            f"Of {of}: each party's own model on its own test points."
            + (rank if comparison.metric in RANKS else "")
        )
    if comparison.personal:
        lines.append(_joining(comparison))
    else:
        lines += [_alone(row) for row in comparison.baselines if row.label == LOCAL]
    if comparison.grid:
        fields = " and ".join(comparison.grid)
        lines.append(
            f"{fields} chosen for each algorithm and seed on {FRACTION:.0%} of the training "
            f"points, from {_tried(comparison)}; test points had no say.{_budgets(comparison)}"
        )
    if comparison.work is not None:
        lines.append(
            f"Both baselines are trained once per seed with {comparison.work}: each party alone as "
            "often as it would be sampled, pooled over as many examples in all."
        )
    if comparison.target is not None:
        value = f"{metric_name(comparison.metric)} {comparison.target:.4g}"
        whence = (
            "the study's target" if comparison.asked is not None else f"{NEAR:.0%} of the best "
            "final mean" if larger_is_better(comparison.metric) else
            f"the best final mean plus {1 - NEAR:.0%}"
        )  # fmt: skip
        reached = [row.figures["rounds_to_target"] for row in comparison.rows]
        some = any(stat.known and stat.mean is None for stat in reached)
        lines.append(
            f"{value} over all test points is {whence}"
            + ("; where not all seeds reached it, the table says how many." if some else ".")
        )
    for row in comparison.rows:
        lines += [f"{_EDGE} {row.label}: {text}" for text in _edges(row)]
        lines += [f"{row.label}, seed {seed} failed: {why}" for seed, why in row.failed.items()]
    return lines


def _timed(rows: Sequence[Row]) -> bool:
    """Whether rounds took simulated time."""
    return any("simulated" in each.last for row in rows for each in row.results if not each.failed)


def _alone(row: Row) -> str:
    """Whose points a party's own model is tested on."""
    if row.figures["points"].known:
        return (
            f"Of {row.label}: over all test points, a party's own model tested on everybody's "
            "(mean over models); over parties, each on its own."
        )
    return (
        f"Of {row.label}: each party's own model on its own test points; on everybody's it is left "
        "out where there are many parties."
    )


def _edges(row: Row) -> list[str]:
    found: dict[tuple[str, Any, str], list[int]] = {}
    for each in row.results:
        for name, edge in each.edges.items():
            found.setdefault((name, each.chosen[name], edge), []).append(each.seed)
    texts = []
    for (name, value, edge), seeds in found.items():
        where = "" if len(seeds) == len(row.results) else f" (seed {_listed(seeds)})"
        texts.append(f"the chosen {name} {value} is the {edge} tried{where}; widen the grid.")
    return texts


def _tried(comparison: Comparison) -> str:
    return "; ".join(
        f"{name} {_listed(values) if len(values) < 20 else f'{len(values)} values'}"
        for name, values in comparison.grid.items()
    )


def _budgets(comparison: Comparison) -> str:
    """How many settings each algorithm had, where that differs."""
    counts = {row.label: row.results[0].tried or 1 for row in comparison.rows}
    if len(set(counts.values())) == 1:
        return ""
    return f" Settings tried: {_listed([f'{label} {n}' for label, n in counts.items()])}."


def _joining(comparison: Comparison) -> str:
    """What the last columns count."""
    where = "new parties" if comparison.facts["new_parties"] else "seen parties, as nobody is new"
    return (
        "What a new party needs before it has a model: messages and bytes both ways, gradients of "
        "single examples, time at party and server without predictions; mean over "
        f"{where}."
    )


def _cell(stat: Stat, words: Callable[[float, float | None], str], strong: bool = False) -> Cell:
    if stat.mean is None:
        some = f"{len(stat.known)} of {len(stat.values)} seeds" if stat.known else NOTHING
        return Cell(some)
    return Cell(words(stat.mean, stat.sd), stat.mean, stat.sd, strong)


def _metric(mean: float, sd: float | None) -> str:
    if sd is None:
        return number(mean)
    return f"{number(mean)} ± " + (f"{sd:.3f}" if abs(mean) < 10 else f"{sd:,.1f}")


def _with_sd(write: Callable[[float], str]) -> Callable[[float, float | None], str]:
    """Write a mean and, unless it is negligible, its deviation."""

    def words(mean: float, sd: float | None) -> str:
        if sd is None or not math.isfinite(sd) or sd <= 0.005 * abs(mean):
            return write(mean)
        (left, *unit), (right, *other) = write(mean).split(" "), write(sd).split(" ")
        if unit == other and len(unit) == 1:
            return f"{left} ± {right} {unit[0]}"
        return f"{write(mean)} ± {write(sd)}"

    return words


def _sample(sample: float | int) -> str:
    if isinstance(sample, int):
        return f"{plural(sample, 'party')} a round"
    return "all parties every round" if sample == 1 else f"{100 * sample:.3g} % of parties a round"


def _better(metric: str) -> str:
    return "larger is better" if larger_is_better(metric) else "smaller is better"


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))
