# SPDX-License-Identifier: Apache-2.0
"""A run's scorecard from what the run remembers.

One file, since every view of it is a few lines over the same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import numpy as np
from torch import Tensor

from archipel.aggregation.gopa import GaussianGopa, Gopa
from archipel.aggregation.secure import SecureSum
from archipel.aggregation.shuffled import ShuffledSum
from archipel.exchange.anatomy import Anatomy, OnWire
from archipel.exchange.boxes import clock_of, has_personal, is_peer
from archipel.exchange.leaving import Outgoing, outgoing
from archipel.measures import larger_is_better
from archipel.models.flops import flops_of_one_gradient
from archipel.privacy.promise import Kept
from archipel.runs.history import absent, spread
from archipel.runs.run import Run
from archipel.scorecard.at_sites import at_sites, guaranteed
from archipel.scorecard.card import (
    JOULES_PER_FLOP,
    KWH_PER_GB,
    SHARES,
    Efficacy,
    Efficiency,
    Energy,
    Privacy,
    Promise,
    Robustness,
    Scorecard,
    Sent,
    Spread,
)
from archipel.scorecard.clock import on_devices, simulated_of
from archipel.tree import leaves

SPARE = "not needed"  # the cause of those asked in excess
_UNASKED = {SPARE, "not visited yet"}  # who was not asked is not absent


def scorecard(run: Run) -> Scorecard:
    """Measure a run, also one that is still under way."""
    return Scorecard(_efficacy(run), _efficiency(run), _robustness(run), privacy(run))


# -- efficacy --------------------------------------------------------------------------------------


def _efficacy(run: Run) -> Efficacy:
    metric, training = run.metric, run.data.training
    up = larger_is_better(metric)
    last = run.history[-1] if run.history else {}
    share = metric in SHARES
    scale = (100.0 if share else 1.0) * (1 if up else -1)

    def over(parties: Mapping[str, Tensor], group: slice) -> Spread | None:
        return _spread(parties[metric][group], up) if metric in parties else None

    seen = slice(0, training)
    together = over(run.parties, seen)
    levels = {name: over(score.parties, seen) for name, score in run.baselines.items()}
    local, central = levels.get("local"), levels.get("central")
    gaining = None
    if local is not None and together is not None:
        gain = scale * (run.parties[metric] - run.baselines["local"].parties[metric])[seen]
        gaining = int((gain > 0).sum())
    return Efficacy(
        metric,
        up,
        "points" if share else metric,
        run.over,
        _get(last, "metrics", metric),
        _get(last, "own", metric),
        over(run.elsewhere, seen),
        run.baselines["central"].pooled.get(metric) if "central" in run.baselines else None,
        together,
        local,
        central,
        _get(last, "new", metric),
        over(run.parties, slice(training, run.data.parties)),
        None if local is None or together is None else scale * (together.mean - local.mean),
        None if central is None or together is None else scale * (central.mean - together.mean),
        gaining,
        run.target,
        tuple(absent(run.history)[-1]) if run.history else (),
        tuple(run.warnings),
        _pair((last.get("scored") or {}).values(), 0),
        _pair((last.get("own_intervals", last.get("intervals")) or {}).get(metric)),
        _pair((last.get("seen_parties") or {}).get("interval")),
    )


def _pair(found: Any, at: int | None = None) -> tuple[Any, Any] | None:
    """Two values of a history's entry, or of two lists the ones at a place; None without."""
    pair = tuple(found or ())
    if len(pair) != 2:
        return None
    return pair if at is None else (pair[0][at], pair[1][at])


def _spread(values: Tensor, larger_is_better: bool) -> Spread | None:
    found = spread(values, larger_is_better)
    if found is None:
        return None
    known = values[~values.isnan()]
    best = float(known.max() if larger_is_better else known.min())
    return Spread(found["mean"], found["sd"], found["worst_tenth"], best, int(found["parties"]))


def _get(entry: dict[str, Any], part: str, metric: str) -> float | None:
    value = (entry.get(part) or {}).get(metric)
    return None if value is None or value != value else float(value)


# -- efficiency ------------------------------------------------------------------------------------


def _efficiency(run: Run) -> Efficiency:
    each, note = flops_of_one_gradient(run.task_model, run.data.form.x[:1])
    flops, peer = each * run.spent.gradients, is_peer(run.algorithm)
    counted = [cohort for cohort in run.participation if cohort.counted]
    arrived = sum(len(cohort.present) for cohort in counted)
    asked = sum(cohort.reached for cohort in counted)
    to_target = None
    if run.target is not None and run.metric in run.metrics:
        to_target = run.rounds_to(run.target)
    at = [0, *(entry["round"] for entry in run.history)]
    carried = [0, *(_carried(entry["bytes"], peer) for entry in run.history)]
    up, down = run.spent.up, run.spent.down
    simulated = simulated_of(run)
    spent = on_devices(energy(flops, _carried({"up": up, "down": down}, peer)), simulated)
    return Efficiency(
        run.done,
        run.rounds,
        run.task_model.p,
        run.spent.gradients,
        each,
        note,
        flops,
        up,
        down,
        up / arrived if arrived else None,
        down / (arrived if peer else asked) if arrived else None,
        run.seconds,
        run.seconds / run.done if run.done else None,
        to_target,
        None if to_target is None else float(np.interp(to_target, at, carried)),
        spent,
        simulated,
    )


def _carried(sent: dict[str, int], peer: bool) -> int:
    """Bytes over the network: what one peer sends, another receives."""
    return sent["up"] if peer else sent["up"] + sent["down"]


def energy(flops: float, carried: float) -> Energy:
    """Watt-hours of so many FLOPs and bytes.

    >>> round(energy(flops=3.6e15, carried=0).high)
    1000
    """
    compute = [joules * flops / 3600 for joules in JOULES_PER_FLOP]
    network = [1000 * kwh * carried / 1e9 for kwh in KWH_PER_GB]
    return Energy(compute[0], compute[1], network[0], network[1])


# -- robustness ------------------------------------------------------------------------------------


def _robustness(run: Run) -> Robustness:
    causes = Counter[str](
        cause.why for cohort in run.participation for cause in cohort.missing.values()
    )
    spare = causes.pop(SPARE, 0)
    sampled = sum(len(cohort.sampled) for cohort in run.participation)
    absence, who = _longest_absence(run)
    below, fell_back = None, None
    if run.target is not None:
        sign = 1 if larger_is_better(run.metric) else -1
        values = [
            _get(entry, "metrics", run.metric)
            for entry, without in zip(run.history, absent(run.history), strict=True)
            if not without  # a mean over others is no measure of the target
        ]
        reached = [value is not None and sign * value >= sign * run.target for value in values]
        first = reached.index(True) if any(reached) else len(reached)
        below, fell_back = reached.count(False), reached[first:].count(False)
    return Robustness(
        sampled - spare,
        sampled - spare - causes.total(),
        dict(causes.most_common()),
        spare,
        sum(not cohort.counted for cohort in run.participation),
        sum(cohort.waited for cohort in run.participation),
        absence,
        who,
        below,
        fell_back,
    )


def _longest_absence(run: Run) -> tuple[int, str | None]:
    """The most rounds in a row, of those it was sampled for, that a party missed."""
    streak = np.zeros(run.data.parties, np.int64)
    longest, who = 0, None
    for cohort in run.participation:
        missing = [k for k, cause in cohort.missing.items() if cause.why not in _UNASKED]
        before = streak[missing] + 1
        streak[cohort.sampled] = 0
        streak[missing] = before
        if missing and before.max() > longest:
            longest, who = int(before.max()), missing[int(before.argmax())]
    return longest, None if who is None else run.data.name(who)


# -- privacy ---------------------------------------------------------------------------------------

_SEES = {
    "sums": "Its code asks only for {asks} over the parties, never for one party's upload. The sum "
    "is plain: who runs the server could look at every upload{passed}.",
    "summed": "Its code is told sums over the parties alone, made by {sum}. What that hides, "
    "and from whom, is for its source to say.",
    "secure": "Its code is told sums over the parties alone. Between institutions they are made by "
    "secure aggregation, {sum}, and it cannot see a single upload, also where it lies.",
    "groups": "Its code is told sums over groups of parties, drawn anew in every round, which "
    "{rule} looks at. Between institutions they are made by secure aggregation, {sum}, and it "
    "cannot see a single upload, also where it lies.",
    "gopa": "Its code is told sums over the parties alone. Between institutions they are made by "
    "GOPA, {sum}: noise that cancels between parties hides each upload, as long as no more of them "
    "work with the server than that says, and it keeps nobody who has published from being heard.",
    "shuffled": "Its code is told sums of randomised reports alone, {sum}. Between institutions a "
    "shuffler mixes them, and the server cannot see whose is which, as long as the shuffler does "
    "not work with it.",
    "individuals": "Its code asks to see every party's upload by itself{passed}, so no secure sum "
    "could hide them.",
    "ruled": "{rule} looks at every party's upload by itself{passed}, so no secure sum could hide "
    "them.",
    "none": "There is no server. A party's neighbours receive what it mixes with them, and "
    "nobody else does.",
    "wakes": "There is no server. A party's neighbours receive what it tells when it wakes, and "
    "nobody else does{asked}.",
    "meetings": "There is no server. Whom a party meets receives what it gives there, and nobody "
    "else does.",
    "walk": "There is no server. Whoever holds the token sees all of it, and passes it on with its "
    "own steps added.",
    "nothing": "There is no server, and nothing is sent: every party trains alone.",
}

_MADE = {
    SecureSum.__name__: "secure",
    Gopa.__name__: "gopa",
    GaussianGopa.__name__: "gopa",
    ShuffledSum.__name__: "shuffled",
}


def privacy(run: Run) -> Privacy:
    """The last of the four views by itself."""
    peer = is_peer(run.algorithm)
    server = "none" if peer else "sums" if run.anatomy.sums_only else "individuals"
    talks = not peer or run.done == 0 or run.spent.up > 0
    asks = {ask for message in run.anatomy.messages for ask in message.asks}
    words = "means weighted by numbers of examples" if "mean by examples" in asks else "means"
    wire = run.anatomy.wire
    kind = {"sums": "summed" if run.anatomy.summed else "sums"}.get(server, server)
    if peer and clock_of(run.algorithm) != "rounds":
        kind = clock_of(run.algorithm)
    if wire.rule and server == "individuals":
        kind = "ruled"
    if kind == "summed":
        kind = _MADE.get(wire.sum.partition("(")[0], kind)
        kind = "groups" if wire.rule else kind  # a rule over a sum is one over groups' sums
    passed = ", as it arrives" if wire.up else ""
    sees = _SEES[kind if talks else "nothing"]
    learns = getattr(run.algorithm, "learns_graph", False)
    asked = " but members that ask it, to learn the graph" if learns else ""
    sees = sees.format(asks=words, sum=wire.sum, rule=wire.rule, passed=passed, asked=asked)
    if run.between_sites and server == "sums" and not run.anatomy.summed:
        sees += " The coordinator received every upload by itself."
    promise = None if run.kept is None else _promise(run, run.kept)
    spent, guarantee = None, _nothing(bool(wire.up))
    if promise is not None:
        spent, guarantee = promise.epsilon, guaranteed(promise)
    elif run.promise is not None:
        spent, guarantee = run.promise.epsilon, at_sites(run.promise)
    return Privacy(
        server,
        sees,
        _messages(run.anatomy, peer) if talks else (),
        tuple(_left(run, peer)) if run.between_sites else (),
        spent,
        guarantee,
        tuple(_on_wire(wire, peer)),
        promise,
    )


def _nothing(steps: bool) -> str:
    if steps:
        return "none: nobody keeps account of what the wire's steps add, so nothing is promised"
    return "none: [privacy] names no unit, so no noise is added and nothing is promised"


def _promise(run: Run, kept: Kept) -> Promise:
    """What was kept so far, for the party that spent the most."""
    from archipel.privacy.meaning import found_in

    promise, counted = kept.promise, run.counted
    spent = kept.spent(counted)
    worst = max(spent, key=lambda k: spent[k], default=next(iter(kept.uses)))
    epsilon, rounds = spent.get(worst, 0.0), counted.get(worst, 0)
    planned = kept.spent({worst: kept.rounds})[worst]
    return Promise(
        promise.unit,
        epsilon,
        planned if isfinite(planned) else None,
        promise.delta,
        "nobody" if promise.unit == "record" else promise.trust,
        promise.clip,
        min(kept.noise.values()),
        "pld",
        kept.neighbours,
        kept.sampling(worst),
        not run.between_sites,
        found_in(kept.releases(worst, rounds), neighbours=kept.neighbours) if rounds else 0.01,
        tuple(kept.curve(worst, rounds)) if rounds else (),
        kept.correlated(worst),
        promise.mechanism,
        kept.counted,
    )


def _on_wire(wire: OnWire, peer: bool) -> Iterator[str]:
    """What messages pass, in words."""
    if wire.up:
        what = "vectors to neighbours" if peer else "uploads"
        yield f"{what} pass {', then '.join(wire.up)}"
    if wire.down:
        yield f"what parties are sent passes {', then '.join(wire.down)}"
    if wire.rule:
        of = "sums of groups" if wire.sum else "uploads"
        whose = (
            "a peer takes of its neighbours' vectors" if peer else f"the server takes of the {of}"
        )
        yield f"{wire.rule} says what {whose}"
    if wire.sum:
        yield f"sums are made by {wire.sum}"


def _left(run: Run, peer: bool) -> list[Outgoing]:
    """All numbers that left a site, its counts among them where a site told them."""
    return outgoing(
        run.anatomy,
        run.data.shape,
        columns=0 if run.study is None else run.study.summed,
        metrics=len(run.metrics),
        own=has_personal(run.algorithm),
        told=any(run.data.about.counts),
        mixed=leaves(run.anatomy.own)[:1] if peer else (),
    )


def _messages(anatomy: Anatomy, peer: bool) -> tuple[Sent, ...]:
    if peer:
        if anatomy.token is not None:
            return tuple(_sent("to the next holder", anatomy.token, "token"))
        if anatomy.said is not None:
            return tuple(_sent("to neighbours", anatomy.said, "model"))
        if anatomy.swapped:
            given = (_sent("to whom it meets", x, "model") for x in anatomy.swapped)
            return tuple(each for sent in given for each in sent)
        if anatomy.wire.up:
            return tuple(each for x in anatomy.mixed for each in _sent("to neighbours", x, "model"))
        return tuple(_sent("to neighbours", anatomy.own, "model")[:1])
    sent = _sent("down", anatomy.sent, "model")
    for message in anatomy.messages:
        sent += _sent("up", message.sent, "update")
        sent += _sent("down", message.reply, "reply")
    for message in anatomy.personal:  # when a party makes its own model
        sent += _sent("up", message.upload, "question")
        sent += _sent("down", message.reply, "answer")
    return tuple(sent)


def _sent(way: str, tree: Any, name: str) -> list[Sent]:
    """A tree's tensors with the names of its fields."""
    if isinstance(tree, tuple):
        fields = getattr(tree, "_fields", [f"{name} {i + 1}" for i in range(len(tree))])
        return [
            sent
            for field, each in zip(fields, tree, strict=True)
            for sent in _sent(way, each, field)
        ]
    return [
        Sent(
            way,
            name,
            tuple(leaf.shape),
            str(leaf.dtype).removeprefix("torch."),
            leaf.numel() * leaf.element_size(),
        )
        for leaf in leaves(tree)
    ]
