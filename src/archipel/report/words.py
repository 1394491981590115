# SPDX-License-Identifier: Apache-2.0
"""A run in plain sentences: its result, and what its figures show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from archipel.measures import ALIKE, SITES, WEIGHTED
from archipel.report import graph, worth
from archipel.report.figures import lines_of
from archipel.runs.history import absent
from archipel.scorecard.card import Efficacy, Scorecard
from archipel.scorecard.words import (
    difference,
    duration,
    metric_name,
    number,
    plural,
    size,
    watt_hours,
)

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.data.federation import Federation
    from archipel.runs.run import Run

_PEOPLE = {  # what the parties of known data are, as long as they have names
    "heart_disease": ("hospital", "hospitals"),
    "tcga_brca": ("region", "regions"),
    "femnist": ("writer", "writers"),
    "shakespeare": ("role", "roles"),
    "uci_har": ("person", "people"),
}


_LISTED = 8  # sites named in a sentence
_WEIGHTS = {
    WEIGHTED: "weighted by their test points",
    ALIKE: "each counting the same, since not every site tells its number of test points",
    SITES: "of which the weights are not on record",
}


def nouns(run: Run) -> tuple[str, str]:
    """Return what one party is called, and several."""
    fed = run.data
    if run.between_sites:
        return "site", "sites"
    known = fed.names is not None and fed.training > 1
    return _PEOPLE.get(fed.about.name if known else "", ("party", "parties"))


def title(run: Run) -> str:
    """Return the study's name, or algorithm and data."""
    if run.study is not None and run.study.name:
        return run.study.name
    name = run.data.about.name
    return run.record.algorithm + ("" if name == "unnamed" else f" on {name}")


def sampled(run: Run, card: Scorecard) -> str:
    """Return who was scored where these were a sample, and how sure that is."""
    e, (_, many) = card.efficacy, nouns(run)
    if e.scored is None:
        return ""
    said = f"Measured at {e.scored[0]:,} {many}, drawn for all {e.scored[1]:,}."
    for what, sure in (("all test points", e.interval), (f"{many}, the mean", e.parties_interval)):
        if sure is not None:
            said += f" Over {what}: {number(sure[0])} to {number(sure[1])} with 95 % confidence."
    return said


def result(run: Run, card: Scorecard) -> str:
    """Return the result in one sentence."""
    e, count = card.efficacy, run.data.real[0]
    one, many = nouns(run)
    who = f"the {count:,} {many}" if count > 1 else f"the one {one}"
    rounds = plural(run.done, "round")
    if run.done == 0:
        return (
            f"No round is done yet: {who} {'have' if count > 1 else 'has'} learnt nothing so far."
        )
    points = e.points if e.own is None else e.own
    if e.parties is None and points is None:
        return f"After {rounds} there is a model, but no test point to score it with."
    reach = f"Together {who} reach" if count > 1 else f"{who.capitalize()} reaches"
    metric = metric_name(e.metric)
    if run.between_sites:
        value = e.points if e.own is None else e.own
        by = ", weighted by test points," if e.over == WEIGHTED else ""
        return f"{reach} a mean {metric} of {number(value)}{by} after {rounds}{_without(e.absent)}."
    if e.elsewhere is not None and e.own is None and e.points is not None and count > 1:
        pooled = "" if e.central_points is None else f"; data pooled {number(e.central_points)}"
        return (
            f"{reach} {metric} {number(e.points)} on everybody's test points; a {one}'s own model "
            f"{number(e.elsewhere.mean)} on average{pooled}."
        )
    compared = _compared(e)
    if e.parties is not None and compared and count > 1:
        return f"{reach} {metric} {number(e.parties.mean)}; {compared}."
    value = points if points is not None or e.parties is None else e.parties.mean
    return f"{reach} {metric} {number(value)} after {rounds}."


def _without(sites: Sequence[str]) -> str:
    return f", without {', '.join(sites)}" if sites else ""


def over(run: Run) -> str:
    """Return what the mean over sites is; empty for a simulation."""
    if not run.between_sites or not run.history:
        return ""
    metric = metric_name(run.metric)
    kinds = {entry.get("over", SITES) for entry in run.history}
    weights = "weighted by their test points where all that scored tell them, else each the same"
    if len(kinds) == 1:
        weights = _WEIGHTS[kinds.pop()]
    said = (
        f"Every site scores on its own test points; the {metric} of headline and curve is the mean "
        f"over sites of what they measured, {weights}."
    )
    if run.metric in ("accuracy", "mae") and weights == _WEIGHTS[WEIGHTED]:
        return said  # a mean over points is the same
    return f"{said} It is not the {metric} over all test points, which nobody has in one place."


def attendance(run: Run, most: int = 8) -> str:
    """Return which evaluations lack a site that others have; empty where all have the same."""
    rounds: dict[str, list[int]] = {}
    for entry, without in zip(run.history, absent(run.history), strict=True):
        for site in without:
            rounds.setdefault(site, []).append(entry["round"])
    if not rounds:
        return ""
    named = [f"{site} ({_spans(found)})" for site, found in list(rounds.items())[:most]]
    more = f", and {len(rounds) - most} more sites in others" if len(rounds) > most else ""
    return (
        f"Hollow: evaluations without {', '.join(named)}{more}. They are means over fewer sites, "
        "and do not compare with the rest."
    )


def _spans(rounds: list[int]) -> str:
    """Evaluated rounds in words: all where they are few, else how many and from when to when."""
    if len(rounds) <= 4:
        word = "round" if len(rounds) == 1 else "rounds"
        return f"{word} {', '.join(f'{t:,}' for t in rounds)}"
    return f"{len(rounds)} of them, in rounds {rounds[0]:,} to {rounds[-1]:,}"


def _compared(e: Efficacy) -> str:
    levels = {"alone": e.local, "pooled": e.central}
    return "; ".join(f"{name} {number(s.mean)}" for name, s in levels.items() if s is not None)


def verdict(run: Run, card: Scorecard) -> str:
    """Return what the result means, and how far it can be trusted; empty without baselines."""
    e = card.efficacy
    one, many = nouns(run)
    said = []
    if e.gain_over_local is not None and e.local is not None:
        said.append(
            f"learning together changes {metric_name(e.metric)} at the average {one} by "
            f"{difference(e.gain_over_local, e.unit)} against training alone"
            f"{'' if e.larger_is_better else ', plus being better,'} and is better at "
            f"{e.parties_that_gain:,} of {e.local.parties:,} {many}"
        )
    if e.gap_to_central is not None:
        said.append(
            f"copying all data to one place would add {difference(e.gap_to_central, e.unit)}"
        )
    if not said or run.data.training == 1:
        return ""
    text = "; ".join(said)
    return (
        f"Where each {one} tests on its own data alone: {text}. One run with one split: small "
        "differences may be chance."
    )


def joining(run: Run) -> str:
    """Return what a new party needs for a model of its own; empty where it gets none."""
    needs = run.joining
    if needs is None or not run.record.personal:
        return ""
    gradients = plural(round(needs.gradients), "gradient") if needs.gradients else "no gradient"
    return (
        f"{plural(needs.messages, 'message')}, {size(needs.up + needs.down)}, {gradients} of "
        f"single examples and {duration(needs.seconds)} on one core, in the mean"
    )


def captions(run: Run, card: Scorecard) -> dict[str, str]:
    """Return what stands under each figure."""
    one, many = nouns(run)
    shown = lines_of(run, run.metric)
    metric = metric_name(run.metric)
    metric = metric[0].upper() + metric[1:]
    curve = f"{metric} ({shown.what}) after each evaluated round."
    if shown.levels.keys() & {"each alone", "data pooled"}:
        curve += " Dashed: the same training without the others, and with all data in one place."
    curve += f" {gone}" if (gone := attendance(run)) else ""
    if card.robustness.missing:
        curve += f" Below: how many sampled {many} were missing from the round."
    local = "local" in run.baselines
    if run.data.parties > 30:
        spread = f"How {metric_name(run.metric)} falls across the {run.data.parties:,} {many}."
        spread += f" Right: what each {one} gains over training alone." if local else ""
    else:
        spread = f"{metric} at each {one}, on its own test points."
        spread += " Arrows lead from its own model's value to what it has now." if local else ""
    return {
        "curve": curve,
        "attack": _success(run),
        "parties": spread,
        "graph": graph.caption(run),
        "participation": f"Which {many} took part in which round, and why others did not.",
        "clock": _by_clock(run, card),
        "worth": _contributed(run),
        "privacy": _spending(run, card),
        "data": f"What the {many} hold. The more unlike, the harder it is to learn together.",
    }


def _success(run: Run) -> str:
    """What the figure of an attack shows; empty where there is none."""
    found = [entry["attack_success"] for entry in run.history if "attack_success" in entry]
    if not found:
        return ""
    return (
        f"{metric_name(run.metric).capitalize()} on test points as they are, and how often those "
        "that adversaries changed, or have chosen, are taken for what they want: "
        f"{number(found[-1])} in the end, {number(max(found))} at most."
    )


def _contributed(run: Run) -> str:
    """What the figure of who contributed shows; empty where that was not measured."""
    return "" if run.worth is None else worth.caption(run.worth, run.done)


def _by_clock(run: Run, card: Scorecard) -> str:
    """What the figure of the simulated clock shows; empty where there is none."""
    simulated = card.efficiency.simulated
    if simulated is None:
        return ""
    metric = metric_name(run.metric)
    text = f"{metric[0].upper()}{metric[1:]} by the simulated clock, which stands at "
    text += f"{duration(simulated.seconds)}"
    if simulated.high:
        spent = watt_hours(simulated.low / 3600, simulated.high / 3600)
        text += f", and by what the devices spent, {spent} in all"
    return text + ". Below, where the run is long enough: uploads by the hour and time zone."


def _spending(run: Run, card: Scorecard) -> str:
    """What the figure of privacy shows; empty where none is promised."""
    promise = card.privacy.promise
    if promise is None:
        return ""
    return (
        f"Privacy by {promise.unit}: ε grows to {promise.epsilon:.3g} at the {promise.unit} that "
        f"spent the most. Right: {metric_name(run.metric)} after what was spent."
    )


def alternatives(run: Run, card: Scorecard) -> dict[str, str]:
    """Return each figure in words, for those who cannot see it."""
    e, r = card.efficacy, card.robustness
    shown = lines_of(run, run.metric)
    parts = [
        f"{name} from {number(line[0])} to {number(line[-1])}"
        for name, line in shown.values.items()
    ]
    parts += [f"{name} {number(level)}" for name, level in shown.levels.items()]
    s = e.parties
    spread = "" if s is None else (
        f": mean {number(s.mean)}, worst tenth {number(s.worst_tenth)}, best {number(s.best)}"
    )  # fmt: skip
    missing = ", ".join(f"{count} {cause}" for cause, count in r.missing.items()) or "none"
    low, middle, high = np.quantile(np.asarray(run.data.n), [0, 0.5, 1])
    return {
        "curve": f"Line chart of {metric_name(e.metric)} by round: {'; '.join(parts)}.",
        "attack": _success(run),
        "parties": f"{metric_name(e.metric)} at each party{spread}.",
        "graph": graph.caption(run),
        "participation": (
            f"Grid of {plural(run.data.training, 'party')} by {plural(run.done, 'round')}: "
            f"{r.arrived:,} of {r.party_rounds:,} uploads arrived; missing: {missing}."
        ),
        "clock": _by_clock(run, card),
        "worth": _contributed(run),
        "privacy": _spending(run, card),
        "data": (
            f"Targets and sizes of {plural(run.data.parties, 'party')}: {low:g} to {high:g} "
            f"training points, {middle:g} in the middle."
        ),
    }


def patients(run: Run) -> list[tuple[str, str]]:
    """Return how many records sites have and how many events, as far as they told."""
    if not run.between_sites:
        return []
    points = [run.points(k) for k in range(run.data.parties)]
    train = _sum(run, [each.training for each in points])
    test = _sum(run, [each.test for each in points])
    found = [("Patients", f"{train} to train, {test} to test; a record counts as a patient")]
    if run.data.classes == 2 or run.data.task == "survival":
        found.append(("Events", "not told: sites send no count of an outcome"))
    return found


def _sum(run: Run, counts: Sequence[int | None]) -> str:
    """What was told in all, and by whom it was not."""
    told = [count for count in counts if count is not None]
    silent = [run.data.name(k) for k, count in enumerate(counts) if count is None]
    if not told or not silent:
        return f"{sum(told):,}" if told else "not told"
    more = f" and {len(silent) - _LISTED} more" if len(silent) > _LISTED else ""
    names = ", ".join(silent[:_LISTED]) + more
    return f"{sum(told):,} (not told by {names})"


def lesson(run: Run) -> str:
    """Return what left each party, in a sentence."""
    one, _ = nouns(run)
    if run.record.peer:
        return f"No record leaves its {one}. In a round, a {one} exchanges with its neighbours:"
    return f"No record leaves its {one}. In a round, a {one} receives and sends:"


def before(run: Run) -> str:
    """Return what parties told before the first round, to scale features or to fill gaps."""
    fed, (one, many) = run.data, nouns(run)
    if run.between_sites:  # in the table of what left
        return ""
    asked = {} if run.study is None else run.study.resolved().get("data", {})
    tables = "name" not in asked and bool(asked)
    if fed.training == 1 or not run.record.floating:
        return ""
    aim, said = run.record.target, []
    features, known = int(np.prod(fed.shape)) + aim, run.record.scaling
    known = known or (not (fed.about.gone or fed.lazy) and _standardised(fed))
    if asked.get("standardise", tables) or known:
        what = "features and the target" if aim else "features"
        said.append(
            f"Before the first round, {what} were given mean 0 and variance 1 over the training "
            f"points of all {many}. This is an exchange too: each {one} tells, for each of "
            f"{plural(features, 'column' if aim else 'feature')}, how many training points have a "
            f"value, their sum and the sum of their squares ({3 * features:,} numbers), and is "
            "told the means and variances."
        )
    if tables and asked.get("missing") == "mean":
        said.append(
            f"Empty cells were filled with means over the training points of all {many}, for which "
            f"each {one} tells a sum and a count per feature."
        )
    return " ".join([*said, "No number of bytes here counts it."]) if said else ""


def _standardised(fed: Federation) -> bool:
    """Whether every feature has mean 0 and variance 1 over training points, or is 0."""
    import torch

    owner = torch.repeat_interleave(torch.arange(fed.parties), fed.offsets.diff())
    train = torch.arange(len(fed.x)) < fed.test_from[owner]
    return any(_scaled(fed.x.flatten(1), rows) for rows in (train & (owner < fed.training), train))


def _scaled(x: Tensor, rows: Tensor) -> bool:
    varies = False
    for some in x.split(16, dim=1):  # few at a time: images show at once that they are not
        values = some[rows].double()
        if len(values) == 0:
            return False
        sd, near = values.std(dim=0, correction=0), 1e-3
        if not ((values.mean(dim=0).abs() < near) & (((sd - 1).abs() < near) | (sd < near))).all():
            return False
        varies = varies or bool((sd > near).any())
    return varies
