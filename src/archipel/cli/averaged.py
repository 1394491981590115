# SPDX-License-Identifier: Apache-2.0
"""What came of a private mean: as plain values, and line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipel.cli.logs import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipel.aggregation.averaging import Numbers, Question
    from archipel.aggregation.trusting import Mean
    from archipel.verifiable.verification import Verdict


def exact(question: Question, values: Any) -> dict[str, float]:
    import numpy as np

    return dict(zip(question.names, np.mean(np.array(values), axis=0).tolist(), strict=True))


def told_of(
    question: Question,
    estimate: Sequence[float] | Numbers,
    there: tuple[str, ...],
    asked: int,
    how: str,
) -> dict[str, Any]:
    """What came of it, as plain values."""
    from archipel.privacy import gopa

    plan, names, n = question.plan(asked), question.names, len(there)
    aside = question.epsilon, question.delta, n, question.moved
    deviation = question.deviation(plan, n)

    def by_name(values: Any) -> dict[str, float]:
        return dict(zip(names, [float(each) for each in values], strict=True))

    return {
        "how": how,
        "trust": "sum",
        "estimate": by_name(estimate),
        "deviation": by_name(deviation),
        "deviation_by_a_trusted_curator": by_name(question.unit * gopa.curator_error(*aside)),
        "deviation_by_everybody_alone": by_name(question.unit * gopa.local_error(*aside)),
        "parties": n,
        "vanished": asked - n,
        "protected": "party" if question.contribution is None else "person",
        "epsilon": question.epsilon,
        "delta": question.delta,
        "honest": question.honest,
        "dropouts": question.dropouts,
        "form": plan.form,
        "neighbours": plan.neighbours,
        "failure": plan.failure,
        "revealed": _revealed(question, plan.neighbours, plan.form, asked),
    }


def _revealed(question: Question, neighbours: int, form: str, parties: int) -> str:
    """What every party has shown of its numbers, in a sentence."""
    share = f"{1 - question.honest:.0%}"
    hidden = "which are uniform by themselves" if form == "modular" else "hidden by pairwise noise"
    return (
        f"every party showed {len(question.names)} number(s), {hidden}: with all others' they tell "
        f"the noisy sum, and no more, as long as at most {share} of the {parties} collude"
    )


_SEEN = {
    "server": "whoever averages sees every number of all {n} parties",
    "shuffler": "every party told {d} report(s), each private by itself at epsilon {e:.3g}; who "
    "reads them does not know whose is which, if whoever mixes them does not tell",
    "nobody": "every party told {d} number(s) with all the noise that they need alone",
}


def trusted(question: Question, found: Mean, trust: str, parties: int) -> dict[str, Any]:
    """What came of a mean where others are trusted than the sum, as plain values."""
    told = told_of(question, found.estimate, ("",) * parties, parties, "simulation")
    for key in ("form", "neighbours", "failure"):  # of the sum
        del told[key]
    deviation = dict(zip(question.names, found.deviation.tolist(), strict=True))
    told |= {"trust": trust, "deviation": deviation}
    if found.reports is not None:
        told |= {"epsilon0": found.reports.epsilon0, "levels": found.reports.levels}
    alone = told.get("epsilon0", 0.0)
    told["revealed"] = _SEEN[trust].format(n=parties, d=len(question.names), e=alone)
    return told


def proved(
    question: Question, verdict: Verdict, asked: int, how: str, bulletin: Path | None
) -> dict[str, Any]:
    """What came of a mean with proofs, as plain values."""
    outcome = verdict.outcomes[-1]
    assert outcome.mean is not None
    told = told_of(question, outcome.mean, outcome.counted, asked, how)
    deviation = dict(zip(question.names, outcome.deviation, strict=True))
    told |= {"deviation": deviation, "form": "modular"}
    told |= {"neighbours": outcome.neighbours, "failure": outcome.alone, "spent": outcome.epsilon}
    told |= {"faults": [fault._asdict() for fault in verdict.told]}
    if bulletin is not None:
        told |= {"bulletin": str(bulletin), "head": verdict.head}
    return told


def show(told: dict[str, Any]) -> None:
    how = {
        "simulation": "simulated",
        "verifiable": "simulated, with all proofs",
        "peers": "between peers",
        "processes": "between processes of this machine",
        "proving peers": "between peers, with all proofs",
        "sites": "between sites, through their coordinator",
        "proving sites": "between sites, through their coordinator, with all proofs",
        "proving processes": "between processes of this machine, with all proofs",
    }[told["how"]]
    trust = f"; trusted: {told['trust']}" if told["trust"] != "sum" else ""
    say(f"Mean of {told['parties']} parties, {how}{trust}")
    for name, value in told["estimate"].items():
        exact = f"; exactly {told['exact'][name]:.6g}" if "exact" in told else ""
        say(f"  {name}: {value:.6g} ± {told['deviation'][name]:.3g}{exact}")
    first = next(iter(told["estimate"]))
    say(
        f"  ± is one deviation of the noise; a trusted curator has "
        f"{told['deviation_by_a_trusted_curator'][first]:.3g} of {first}, everybody alone "
        f"{told['deviation_by_everybody_alone'][first]:.3g}"
    )
    promised = f"epsilon {told['epsilon']:g}, delta {told['delta']:g}"
    say(f"Promised: {promised}, to every {told['protected']}")
    say(f"Revealed: {told['revealed']}")
    if told["vanished"]:
        say(f"Vanished: {told['vanished']} parties, whose numbers are not in the mean")
    for fault in told.get("faults", []):
        say(f"Left out: {fault['party']}: {fault['kind']}: {fault['detail']}")
    if "bulletin" in told:
        say(f"Written: {told['bulletin']}, whose last line has the hash {told['head']}")
    if "published" in told:
        spent = told["published"]
        say(f"This party has published {spent['times']} times, epsilon {spent['epsilon']:g} in all")
