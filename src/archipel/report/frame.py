# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows of a run at one moment, line by line.

One file, since every line has to know how much room the others leave it.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import groupby, zip_longest
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.filesize import decimal

from archipel.errors import clean
from archipel.measures import SHARES, larger_is_better
from archipel.report.braille import AXIS, Curve, Level, Line, chart
from archipel.runs.history import absent
from archipel.scorecard.at_sites import spending
from archipel.scorecard.words import metric_name, number, watt_hours

if TYPE_CHECKING:
    from archipel.runs.participation import Cohort
    from archipel.runs.run import Run, Spent

# readable on dark and on light, told apart by everybody
TOGETHER, ALONE, POOLED, NEW, BAD = "#2b8cc4", "#d9770a", "#1f9e77", "#b5609b", "#d64545"
BASELINES = {"pooled": POOLED, "alone": ALONE}
CAUSES = {  # why a party is missing: mark and colour
    "dropped out": ("x", BAD),
    "diverged": ("!", BAD),
    "too slow": ("~", ALONE),
    "away": ("-", NEW),
    "paused": ("-", NEW),
    "left": ("-", AXIS),
    "not needed": ("o", AXIS),
    "not visited yet": ("o", AXIS),
}
OTHER = ("?", BAD)
_HERE, _UNUSED, _UNASKED = ("▇", TOGETHER), ("▁", TOGETHER), ("·", AXIS)
_NAMED = 12  # parties shown one by one, at most
_BESIDE = 108  # columns from which the parties stand beside the curve
_LEAST, _MOST = 6, 14  # lines of the curve


class Pace(NamedTuple):
    """How long a run has taken, and how fast it goes of late."""

    at: float  # on the clock
    elapsed: float  # seconds
    per_round: float | None = None  # seconds
    per_second: float | None = None  # gradients


class Clock:
    """Times a run in this process; rounds done before it began are no measure of its speed."""

    def __init__(self, run: Run, now: float) -> None:
        self.run = run
        self._began = now - run.seconds
        self._recent = deque([(now, run.done, run.spent.gradients)], maxlen=40)

    def tick(self, now: float) -> Pace:
        """Read the clock after a round."""
        since, done, gradients = self._recent[0]
        if now - self._recent[-1][0] >= 0.25:
            self._recent.append((now, self.run.done, self.run.spent.gradients))
        if self.run.done == done or now == since:
            return Pace(now, now - self._began)
        return Pace(
            now,
            now - self._began,
            (now - since) / (self.run.done - done),
            (self.run.spent.gradients - gradients) / (now - since),
        )


class Still(NamedTuple):
    """A run as it stood at one moment; its lists only grow, so their lengths fix the rest."""

    run: Run
    history: list[dict[str, Any]]
    evaluated: int
    participation: list[Cohort]
    done: int
    notes: list[str]
    spent: Spent
    state: str
    pace: Pace

    @classmethod
    def of(cls, run: Run, pace: Pace) -> Still:
        """Keep references and lengths, no copies."""
        history, cohorts, notes = run.history, run.participation, run.notes[-2:]
        state = "done" if run.state == "running" and run.done >= run.rounds else run.state
        return cls(run, history, len(history), cohorts, run.done, notes, run.spent, state, pace)

    def ended(self, kind: type[BaseException] | None) -> Still:
        """Say so if an exception of this kind ended the run."""
        if kind is None or self.state != "running":
            return self
        return self._replace(state="stopped" if issubclass(kind, KeyboardInterrupt) else "failed")


def lines(still: Still, width: int, height: int, now: float) -> list[Line]:
    """Lay a run out in so many columns and lines."""
    top = [_title(still, width), _bar(still, width, now)]
    series = Series.of(still.run, still.history[: still.evaluated])
    middle, end = _flow(standing(still, series), width)[:2], _flow(cost(still), width)[:2]
    few = still.run.data.training <= _NAMED
    side = width // 2 if few and width >= _BESIDE else 0  # columns for the parties
    room = height - len(top) - len(middle) - len(end)
    who = _who(still, side or width, room - (0 if side else _LEAST))
    room -= 0 if side else len(who)
    notes = [_note(note) for note in still.notes[-max(room - _LEAST, 0) :]] if room > _LEAST else []
    room -= len(notes)
    gaps = min(max(room - _LEAST, 0), 2 if side else 3)
    rows = min(room - gaps, _MOST)
    curve = _curve(still, series, width - side - 2 if side else width, rows)
    if side:
        curve, who = _side_by_side(curve, who[: max(rows, 0)], width - side), []
    found: list[Line] = []
    for part in (top, middle + curve, who, end + notes):
        if found and part and gaps > 0:
            found.append([])
            gaps -= 1
        found += part
    return [fit(line, width) for line in found[: max(height, 0)]]


def title(run: Run) -> str:
    """What runs on what."""
    what = f"{type(run.algorithm).__name__} on {run.data.about.name}"
    return clean(what if run.study is None else f"{run.study.name}: {what}")


def levels(run: Run) -> list[Level]:
    """What the curve is compared with: the baselines or, where there are none, the target."""
    found = [] if run.target is None or run.baselines else [Level("target", AXIS, run.target)]
    return [*found, *(Level(name, BASELINES[name], value) for name, value in run.levels.items())]


class Series(NamedTuple):
    """The metric of each evaluated round, NaN where it has no value.

    The curve is of all test points or, where `Run.by_party` says so, the mean over parties.
    """

    rounds: list[int]
    values: list[float]  # the curve
    new: list[float]  # the same at new parties
    points: list[float]  # over all test points at once
    absent: list[list[str]]  # sites that this evaluation lacks and another has

    @classmethod
    def of(cls, run: Run, history: list[dict[str, Any]]) -> Series:
        """Take the run's metric out of so much of its history."""
        parts, key = ("metrics", "new"), run.metric
        points = [entry["metrics"].get(key, nan) for entry in history]
        if run.by_party:
            parts, key = ("seen_parties", "new_parties"), "mean"
        curve, new = (
            [entry[part].get(key, nan) if entry[part] else nan for entry in history]
            for part in parts
        )
        return cls([entry["round"] for entry in history], curve, new, points, absent(history))


def fit(line: Line, width: int) -> Line:
    """Cut a line where the terminal ends."""
    cut: Line = []
    for text, style in line:
        cells = cell_len(text)
        if cells > width:
            text = set_cell_size(text, width - 1) + "…" if width > 0 else ""
            cut.append((text, style))
            break
        cut.append((text, style))
        width -= cells
    return cut


def clock(seconds: float) -> str:
    """A duration such as 1:05 or 2:03:09."""
    minutes, s = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{s:02}" if hours else f"{minutes}:{s:02}"


def _title(still: Still, width: int) -> Line:
    data = still.run.data
    (training, new), virtual = data.real, int(data.virtual.sum())
    more = (f", {virtual:,} virtual" if virtual else "") + (f" and {new:,} new" if new else "")
    about = f" · {_parties(training)}{more} · seed {still.run.seed}"
    line = [(" " + title(still.run), "bold"), (about, "")]
    if still.state == "running":
        return line
    style = {"done": POOLED, "failed": BAD}.get(still.state, ALONE)
    line = fit(line, width - len(still.state) - 2)
    space = width - sum(cell_len(text) for text, _ in line) - len(still.state) - 1
    return [*line, (" " * max(space, 1), ""), (still.state, f"bold {style}")]


def _parties(count: int) -> str:
    return f"{count:,} {'party' if count == 1 else 'parties'}"


def progress(still: Still, now: float | None = None) -> str:
    """Rounds, time taken and time left."""
    total, pace = still.run.rounds, still.pace
    since = now - pace.at if now is not None and still.state == "running" else 0.0
    text = f"round {still.done:,} of {total:,} · {clock(pace.elapsed + since)}"
    if still.state == "running" and pace.per_round is not None:
        text += f", {clock(pace.per_round * (total - still.done) - since)} left"
    return text


def _bar(still: Still, width: int, now: float) -> Line:
    text = " " + progress(still, now)
    room = max(width - cell_len(text) - 2, 4)
    full, half = divmod(round(min(still.done / max(still.run.rounds, 1), 1.0) * room * 2), 2)
    rest = room - full - half
    return [(" " + "━" * full + "╸" * half, TOGETHER), ("─" * rest, AXIS), (text, "")]


def standing(still: Still, series: Series) -> Line:
    """Where the metric is: now, against alone, against the target, and at best."""
    run, up = still.run, larger_is_better(still.run.metric)
    known = [(v, t) for v, t in zip(series.values, series.rounds, strict=True) if isfinite(v)]
    if not known:
        none = "no value" if still.evaluated else "not evaluated yet"
        return [(f"{metric_name(run.metric)}: {none}", AXIS)]
    last, now = known[-1]
    name = metric_name(run.metric)
    what = f"mean {name}" if run.by_party or run.between_sites else name
    phrases = [(f"{what} {number(last)}", f"bold {TOGETHER}")]
    if now < series.rounds[-1]:
        phrases = [(f"{what} diverged", f"bold {BAD}")]
    if run.between_sites:
        without = series.absent[-1]
        less = f", without {clean(', '.join(without))}" if without else ""
        phrases.append((f"over {run.over}{less}", ALONE if without else ""))
    for alone in (level.value for level in levels(run) if level.label == "alone"):
        gain = (last - alone) * (1 if up else -1)
        word, style = ("better", POOLED) if gain > 0 else ("worse", ALONE)
        by = f"{word} than alone by {_difference(run.metric, abs(gain))}"
        phrases.append((by if gain else "as good as alone", f"bold {style}"))
    if run.by_party:
        phrases.append((f"all test points {number(series.points[-1])}", ""))
    if run.target is not None:
        phrases.append((_target(run.target, series, up), ""))
    return [*phrases, *_best(series, up)]


def _best(series: Series, up: bool) -> Line:
    """The best value: of evaluations that have the same sites in their mean, all of them."""
    parts = zip(series.values, series.rounds, series.absent, strict=True)
    known = [(value, t) for value, t, without in parts if isfinite(value) and not without]
    if not known:
        return []
    best, when = (max if up else min)(known, key=lambda pair: pair[0])
    return [(f"best {number(best)} in round {when:,}", "")]


def _target(target: float, series: Series, up: bool) -> str:
    parts = zip(series.points, series.rounds, series.absent, strict=True)
    points = [(value, t) for value, t, without in parts if not without]
    reached = next((t for v, t in points if (v >= target if up else v <= target)), None)
    when = "not reached yet" if reached is None else f"reached in round {reached:,}"
    return f"target {number(target)} {when}"


def _difference(metric: str, gap: float) -> str:
    return f"{100 * gap:.1f} points" if metric in SHARES else number(gap)


def _curve(still: Still, series: Series, width: int, height: int) -> list[Line]:
    run, (rounds, values, new, *_) = still.run, series
    if still.evaluated and not still.history[still.evaluated - 1]["metrics"]:
        return [[(" no party has a test point to score", AXIS)]] if height > 0 else []
    curves = [Curve("together", TOGETHER, rounds, values)]
    if any(map(isfinite, new)):
        curves.append(Curve("new parties", NEW, rounds, new))
    last = {c.label: next((v for v in reversed(c.values) if isfinite(v)), nan) for c in curves}
    curves = [c._replace(label=f"{c.label} {number(last[c.label])}") for c in curves]
    against = [
        level._replace(label=f"{level.label} {number(level.value)}") for level in levels(run)
    ]
    span = max(run.rounds, still.done, 1)
    while span > 40 and still.done * 2 < span:  # the axis grows with the run
        span = -(-span // 2)
    return chart(curves, against, span, width, height, larger_is_better(run.metric))


def _who(still: Still, width: int, height: int) -> list[Line]:
    """Who takes part: each party where there are few, else how many."""
    if not still.done:
        return []
    if still.run.data.training <= min(_NAMED, height):
        return _each(still, width)
    return _counts(still, width)[: max(height, 1)]


def _each(still: Still, width: int) -> list[Line]:
    data = still.run.data
    names = [clean(data.name(k)) for k in range(data.training)]
    column = min(max(map(cell_len, names)), 24, width // 4)
    strip = max(1, min(width - column - 25, still.run.rounds))
    recent = still.participation[max(0, still.done - strip) : still.done]
    asked = [set(cohort.sampled.tolist()) for cohort in recent]
    found: list[Line] = []
    for k, name in enumerate(names):
        marks = [_mark(k, cohort, who) for cohort, who in zip(recent, asked, strict=True)]
        line: Line = [(" " + set_cell_size(fit([(name, "")], column)[0][0], column) + " ", "")]
        for style, run in groupby(marks, key=lambda mark: mark[1]):
            line.append(("".join(mark for mark, _ in run), style))
        line.append((" " * (strip - len(marks) + 1), ""))
        idle = "no training point" if data.n[k] == 0 else "not sampled"
        if still.run.between_sites and data.n[k] == 0:
            idle = "has left"
        found.append([*line, _state(k, recent[-1], asked[-1], idle)])
    return found


def _mark(k: int, cohort: Cohort, asked: set[int]) -> tuple[str, str]:
    if k in cohort.missing:
        return CAUSES.get(cohort.missing[k].why, OTHER)
    if k not in asked:
        return _UNASKED
    return _HERE if cohort.counted else _UNUSED


def _state(k: int, cohort: Cohort, asked: set[int], idle: str) -> tuple[str, str]:
    if k in cohort.missing:
        cause = cohort.missing[k]
        return f"missing: {clean(str(cause))}", CAUSES.get(cause.why, OTHER)[1]
    if k not in asked:
        return idle, AXIS
    return ("present", TOGETHER) if cohort.counted else ("below quorum", ALONE)


def _counts(still: Still, width: int) -> list[Line]:
    last, data = still.participation[still.done - 1], still.run.data
    phrases = [
        (f"sampled {len(last.sampled):,} of {_parties(data.training)}", ""),
        (f"present {_present(last):,}", TOGETHER),
    ]
    for why, count in Counter(cause.why for cause in last.missing.values()).most_common(3):
        phrases.append((f"{why} {count:,}", CAUSES.get(why, OTHER)[1]))
    if not last.counted:
        phrases.append(("below quorum: not counted", f"bold {BAD}"))
    word = " present"
    strip = max(1, min(width - len(word) - 2, still.run.rounds))
    recent = still.participation[max(0, still.done - strip) : still.done]
    marks = [(_share(cohort), TOGETHER if cohort.counted else BAD) for cohort in recent]
    line: Line = [(" ", "")]
    for style, run in groupby(marks, key=lambda mark: mark[1]):
        line.append(("".join(mark for mark, _ in run), style))
    return [*_flow(phrases, width), [*line, (word, AXIS)]]


def _present(cohort: Cohort) -> int:
    return max(len(cohort.sampled) - len(cohort.missing), 0)


def _share(cohort: Cohort) -> str:
    return " ▁▂▃▄▅▆▇█"[-(-8 * _present(cohort) // max(len(cohort.sampled), 1))]


def cost(still: Still) -> Line:
    """Bytes, speed, workers that are elsewhere, and privacy."""
    phrases = [(f"{decimal(still.spent.up)} up", ""), (f"{decimal(still.spent.down)} down", "")]
    timing = still.participation[still.done - 1].timing if still.done else None
    if timing is not None:
        phrases.insert(0, (f"simulated {_moment(timing.end)}", f"bold {TOGETHER}"))
        if timing.high:
            spent = watt_hours(timing.low / 3600, timing.high / 3600)
            phrases.insert(1, (f"{spent} of devices", ""))
    if still.pace.per_second is not None:
        phrases.append((f"{still.pace.per_second:,.0f} gradients/s", ""))
    if graph := next((e["graph"] for e in reversed(still.history) if "graph" in e), None):
        within = graph["within_clusters"]
        inside = "" if within is None else f", {100 * within:.0f} % within clusters"
        phrases.append((f"{graph['edges']:,} edges{inside}", ""))
    if said := still.run.said():
        phrases.append((clean(said), ""))
    return [*phrases, (spending(still.run), "")]


def _moment(seconds: float) -> str:
    """A second of the simulated clock, as day and time.

    >>> _moment(100_000)
    'day 2, 3:46 UTC'
    """
    day, rest = divmod(int(seconds), 86_400)
    return f"day {day + 1}, {rest // 3600}:{rest % 3600 // 60:02} UTC"


def _flow(phrases: Line, width: int) -> list[Line]:
    """Phrases one after the other, on as many lines as they need."""
    found: list[Line] = []
    room = 0
    for text, style in phrases:
        cells = cell_len(text)
        if not found or room < cells + 3:
            found.append([(" ", "")])
            room = width - 1
        else:
            found[-1].append((" · ", AXIS))
            room -= 3
        found[-1].append((text, style))
        room -= cells
    return found


def _note(note: str) -> Line:
    return [(f" {clean(note)}", AXIS)]


def _side_by_side(left: list[Line], right: list[Line], width: int) -> list[Line]:
    found: list[Line] = []
    for a, b in zip_longest(left, right):
        line = fit(a or [], width)
        space = width - sum(cell_len(text) for text, _ in line)
        found.append([*line, (" " * space, ""), *(b or [])])
    return found
