# SPDX-License-Identifier: Apache-2.0
"""The scorecard in words and numbers as people read them."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from archipel.errors import clean
from archipel.measures import ALIKE, ALL_POINTS
from archipel.report import tables
from archipel.scorecard.card import (
    Efficacy,
    Efficiency,
    Privacy,
    Promise,
    Robustness,
    Scorecard,
    Simulated,
    Spread,
)

METRIC_NAMES = {
    "auc": "AUC", "c_index": "C-index", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "f1": "F1",
    "f1_macro": "macro F1", "brier": "Brier score", "ece": "ECE",
    "average_precision": "average precision", "balanced_accuracy": "balanced accuracy",
    "calibration_slope": "calibration slope", "calibration_intercept": "calibration intercept",
}  # fmt: skip
NOTHING = "\N{EN DASH}"
_NUMBERS = ("", " thousand", " million", " billion", " trillion", " quadrillion")


class Row(NamedTuple):
    """A line of the scorecard."""

    section: str
    name: str
    value: str
    note: str = ""


def rows(card: Scorecard) -> list[Row]:
    """Return the lines to print, without what does not apply."""
    return [
        *(Row("Efficacy", *line) for line in _efficacy(card.efficacy)),
        *(Row("Efficiency", *line) for line in _efficiency(card.efficiency)),
        *(Row("Robustness", *line) for line in _robustness(card.robustness, card.efficiency)),
        *(Row("Privacy", *line) for line in _privacy(card.privacy)),
    ]


def table(card: Scorecard) -> Table:
    """Return the lines as a table for the terminal."""
    shown = Table(title="Scorecard", title_justify="left", box=None, padding=(0, 2, 0, 0))
    shown.add_column("")
    shown.add_column("", justify="right")
    shown.add_column("", style="dim")
    section = ""
    for row in rows(card):
        if row.section != section:
            section = row.section
            shown.add_row(Text(section, "bold"))
        shown.add_row(_text(f"  {row.name}"), _text(row.value), _text(row.note))
    return shown


def page(card: Scorecard) -> tables.Table:
    """Return the lines as a table for a page, with a section for each view."""
    columns = [
        tables.Column("", "name"),
        tables.Column("", "value"),
        tables.Column("", "note", left=True),
    ]
    sections = [
        [
            [tables.Cell(section, strong=True), tables.Cell(""), tables.Cell("")],
            *([tables.Cell(cell) for cell in (_dotted(row.name), *row[2:])] for row in lines),
        ]
        for section, lines in groupby(rows(card), lambda row: row.section)
    ]
    return tables.Table("Scorecard", columns, sections)


def _dotted(name: str) -> str:
    """A name that is set in under another, for a page that keeps no spaces."""
    return f"· {name.strip()}" if name.startswith(" ") else name


def _text(words: str) -> Text:
    """Words that may hold a party's name: no markup, nothing that moves the cursor."""
    return Text(clean(words))


# -- numbers ---------------------------------------------------------------------------------------


def metric_name(metric: str) -> str:
    """Return a metric's name as people write it.

    >>> metric_name("auc"), metric_name("accuracy")
    ('AUC', 'accuracy')
    """
    return METRIC_NAMES.get(metric, metric)


def number(value: float | None) -> str:
    """Return a metric's value.

    >>> number(0.87349), number(12.3456), number(3.7e13)
    ('0.873', '12.3', '3.7e+13')
    """
    if value is None or value != value:
        return NOTHING
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}"


def difference(value: float, unit: str) -> str:
    """Return a gain with its sign.

    >>> difference(5.02, "points"), difference(0.125, "rmse")
    ('+5.0 points', '+0.125')
    """
    text = f"{value:+.1f} points" if unit == "points" else f"{value:+.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def amount(value: float, unit: str = "") -> str:
    """Return a large number with three digits and the prefix of its unit.

    >>> amount(10_400, "FLOP"), amount(3), amount(25_000_000)
    ('10.4 kFLOP', '3', '25 million')
    """
    if not unit and value < 1e6:
        return f"{value:,.0f}"
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    names = [f" {p}{unit}" for p in prefixes] if unit else _NUMBERS
    step = 0
    while step < len(names) - 1 and float(f"{value:.3g}") >= 1000:
        value, step = value / 1000, step + 1
    return (f"{value:.3g}" if value < 1000 else f"{value:,.0f}") + names[step]


def size(count: float) -> str:
    """Return a number of bytes.

    >>> size(112), size(31_400_000)
    ('112 B', '31.4 MB')
    """
    return amount(count, "B")


def duration(seconds: float) -> str:
    """Return a time.

    >>> duration(0.0032), duration(0.387), duration(187), duration(9000)
    ('3.2 ms', '387 ms', '3 min 7 s', '2 h 30 min')
    """
    if seconds < 59.5:
        value, unit = (1000 * seconds, "ms") if seconds < 0.9995 else (seconds, "s")
        return f"{value:.2g} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def watt_hours(low: float, high: float) -> str:
    """Return a range of energies, each with one digit: it is not known better.

    >>> watt_hours(0.00021, 0.0043), watt_hours(12, 4300)
    ('0.2 to 4 mWh', '0.01 to 4 kWh')
    """
    if high == 0:
        return "0 Wh"
    units = {"kWh": 1e3, "Wh": 1.0, "mWh": 1e-3, "µWh": 1e-6, "nWh": 1e-9}
    unit = next((unit for unit, least in units.items() if high >= least), "nWh")
    shown = [f"{float(f'{value / units[unit]:.1g}'):g}" for value in (low, high)]
    return f"{' to '.join(dict.fromkeys(shown))} {unit}"


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "round"), plural(1200, "party")
    ('1 round', '1,200 parties')
    """
    many = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else many}"


# -- lines -----------------------------------------------------------------------------------------

Lines = list[tuple[str, str, str]]


def _efficacy(e: Efficacy) -> Lines:
    better = "larger is better" if e.larger_is_better else "smaller is better"
    if e.absent:
        better += f"; without {', '.join(e.absent)}"
    name = f"{metric_name(e.metric)} over all test points"
    if e.over != ALL_POINTS:
        name = f"mean {metric_name(e.metric)} over {e.over}"
    if e.scored is not None:
        better = f"{between(e.interval)}from {sample(e.scored)}; {better}"
    lines = [(name, number(e.points), better)]
    warned = [("warning", "", said) for said in e.warnings]
    if e.own is not None:
        lines[0] = (name, number(e.own), f"each party's own model; {better}")
        lines.append(("  the common model", number(e.points), "shared, or the mean of the peers'"))
    lines += _spread("  a party's own model there", e.elsewhere)
    if e.central_points is not None:
        lines.append(("  data pooled, there", number(e.central_points), ""))
    alike = e.over == ALIKE  # the same number once more: only how sites differ is new
    by_party = _spread("  how sites differ" if alike else "mean over parties", e.parties, alike)
    if e.parties_interval is not None:
        by_party = [(*each[:2], between(e.parties_interval) + each[2]) for each in by_party]
    lines += by_party
    lines += _spread("each alone, mean", e.local)
    lines += _spread("data pooled, mean", e.central)
    if e.gain_over_local is not None and e.local is not None:
        gaining = f"{e.parties_that_gain} of {plural(e.local.parties, 'party')} gain"
        lines.append(("gain over training alone", difference(e.gain_over_local, e.unit), gaining))
    if e.gap_to_central is not None:
        gap = difference(e.gap_to_central, e.unit)
        lines.append(("what pooling all data would add", gap, ""))
    if e.new_points is not None:
        lines.append(
            ("new parties, all test points", number(e.new_points), "never seen in training")
        )
    return warned + lines + _spread("new parties, mean", e.new_parties)


def between(interval: tuple[float, float] | None) -> str:
    """A 95 % interval, before what else is said.

    >>> between((0.71, 0.74))
    '0.710 to 0.740 (95 %); '
    """
    return "" if interval is None else f"{number(interval[0])} to {number(interval[1])} (95 %); "


def sample(scored: tuple[int, int]) -> str:
    """Who was scored, for all.

    >>> sample((1000, 1000000))
    'a sample of 1,000 of 1,000,000 parties'
    """
    return f"a sample of {scored[0]:,} of {scored[1]:,} parties"


def _spread(name: str, s: Spread | None, told: bool = False) -> Lines:
    """A line with the mean, which may be told already, and a note on how parties differ."""
    if s is None:
        return []
    note = f"sd {number(s.sd)}, worst tenth {number(s.worst_tenth)}, best {number(s.best)}"
    return [(name, "" if told else number(s.mean), note if s.parties > 1 else "one party")]


def _efficiency(e: Efficiency) -> Lines:
    energy = e.energy
    up, down = (
        "" if each is None else f"{size(each)} per party and round"
        for each in (e.bytes_up_per_party_round, e.bytes_down_per_party_round)
    )
    per_round = "" if e.seconds_per_round is None else f"{duration(e.seconds_per_round)} per round"
    compute = "computing" if e.simulated is None or not e.simulated.high else "devices"
    parts = (
        f"{compute} {watt_hours(energy.compute_low, energy.compute_high)}, "
        f"network {watt_hours(energy.network_low, energy.network_high)}; estimated"
    )
    lines = [
        ("rounds", f"{e.rounds:,}", "" if e.rounds == e.planned else f"of {e.planned:,} planned"),
        (
            "gradients of one example",
            amount(e.gradients),
            f"model of {amount(e.parameters)} parameters",
        ),
        (
            "computing",
            amount(e.flops, "FLOP"),
            f"{amount(e.flops_per_gradient, 'FLOP')} per gradient",
        ),
        ("sent by parties", size(e.bytes_up), up),
        ("received by parties", size(e.bytes_down), down),
        ("time", duration(e.seconds), per_round),
        ("energy", watt_hours(energy.low, energy.high), parts),
    ]
    if e.rounds_to_target is not None and e.bytes_to_target is not None:
        lines.append(("rounds to target", f"{e.rounds_to_target:.3g}", ""))
        lines.append(("bytes to target", size(e.bytes_to_target), "over the network"))
    return lines + ([] if e.simulated is None else _simulated(e.simulated))


def _simulated(s: Simulated) -> Lines:
    """What the simulated clock says."""
    waiting = f"{duration(s.waiting)} of it until enough were there" if s.waiting else ""
    lines = [("simulated time", duration(s.seconds), waiting)]
    if s.seconds_to_target is not None:
        lines.append(("simulated time to target", duration(s.seconds_to_target), ""))
    if s.low_to_target is not None and s.high_to_target:
        spent = watt_hours(s.low_to_target / 3600, s.high_to_target / 3600)
        lines.append(("devices' energy to target", spent, "estimated"))
    return lines


def _robustness(r: Robustness, e: Efficiency) -> Lines:
    share = NOTHING if r.share_arrived is None else _percent(r.share_arrived)
    lines = [("uploads that arrived", share, f"{r.arrived:,} of {r.party_rounds:,}")]
    lines += [(f"  {cause}", f"{count:,}", "") for cause, count in r.missing.items()]
    if r.spare:
        lines.append(("asked in excess, not needed", f"{r.spare:,}", ""))
    if e.simulated is not None and e.simulated.slow_share is not None:
        shared = _percent(e.simulated.slow_share)
        lines.append(("from the slowest fifth", shared, "of the uploads; 20 % is an even share"))
    if r.longest_absence and r.longest_absent is not None:
        absence = plural(r.longest_absence, "round")
        lines.append(("longest absence", absence, f"party {r.longest_absent}"))
    lines.append(
        ("rounds below quorum", f"{r.below_quorum:,}", "changed nothing" if r.below_quorum else "")
    )
    if r.waited:
        lines.append(("rounds tried again", f"{r.waited:,}", "to reach the quorum"))
    if r.below_target is not None:
        reached = "target never reached" if e.rounds_to_target is None else ""
        after = f"{r.fell_back:,} after it was reached" if r.fell_back else reached
        lines.append(("evaluations below target", f"{r.below_target:,}", after))
    return lines


def _percent(share: float) -> str:
    """Never 100 % with somebody missing."""
    text = f"{100 * share:.1f} %"
    return "99.9 %" if text == "100.0 %" and share < 1 else text.replace(".0 %", " %")


def _meant(promise: Promise | None) -> Lines:
    """What the promise means, and what it was made of."""
    if promise is None:
        return []
    from archipel.privacy.meaning import several

    of = "" if promise.planned is None else f" of {promise.planned:.3g} planned"
    clip = "a clip that adapts" if isinstance(promise.clip, str) else f"a clip of {promise.clip:g}"
    if promise.mechanism == "laplace":
        clip += " in L1, Laplace noise"
    over = "" if promise.correlated is None else f", correlated over rounds ({promise.correlated})"
    return [
        ("best membership attack", f"{promise.found:.1%}",
         f"of the {several(promise.unit)} that were used it finds at most, at 1 % false alarms"),
        ("noise", f"z = {promise.noise:.3g}",
         f"over {clip}{over}; ε = {promise.epsilon:.3g}{of}, {promise.sampling}"),
    ]  # fmt: skip


def _privacy(p: Privacy) -> Lines:
    who = {"sums": "sums only", "individuals": "every upload", "none": "no server"}[p.server]
    return [
        ("the server's code asks for", who, p.sees),
        *((("on the wire", "", "; ".join(p.wire)),) if p.wire else ()),
        ("differential privacy", "none" if p.epsilon is None else f"ε = {p.epsilon:.3g}",
         p.guarantee.removeprefix("none: ")),
        *_meant(p.promise),
    ]  # fmt: skip
