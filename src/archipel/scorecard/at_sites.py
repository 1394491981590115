# SPDX-License-Identifier: Apache-2.0
"""A promise of privacy in words: while a run goes on, and where every site keeps it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archipel.privacy.promise import Privacy

if TYPE_CHECKING:
    from archipel.runs.run import Run
    from archipel.scorecard.card import Promise


NOT_COVERED = (
    "metrics on test points, a common scale of features, how many records a party has, and "
    "settings that were chosen by looking at several runs"
)


_COVERS = {
    "record": "for every record of a party, whoever sees what left it",
    "party": "for every party with all its records, {who}",
}
_WHO = {
    "server": "against all who see the model, and not against the server, which sees every upload",
    "sum": "whoever sees what comes of sums, the server included, as long as {honest} parties of "
    "every sum keep their share of the noise to themselves",
    "shuffler": "whoever sees shuffled reports, the server included, as long as the shuffler does "
    "not work with it",
    "nobody": "whoever sees what left it, the server included",
}


def guaranteed(promise: Promise) -> str:
    """What was kept so far, for the party that spent the most."""
    who = _WHO[promise.trust].format(honest=promise.honest)
    covers = _COVERS[promise.unit].format(who=who)
    drawn = (
        " Noise was drawn from the seed, as in every simulation: this run itself protects nobody."
        if promise.simulated
        else " As sites plan it, by what they told: each one's own ledger says what it spent."
    )
    return (
        f"(ε, δ) = ({promise.epsilon:.3g}, {promise.delta:g}) {covers}. Not covered: "
        f"{NOT_COVERED}.{drawn}"
    )


def at_sites(promise: Privacy) -> str:
    """What is promised where every site keeps it by itself."""
    much = (
        f"noise of {promise.noise:g} times the clip, and at δ = {promise.delta:g} the ε that comes "
        "of it"
        if promise.epsilon is None
        else f"(ε, δ) = ({promise.epsilon:.3g}, {promise.delta:g}) at most"
    )
    if promise.correlated is not None:
        much += f", with noise that is correlated over rounds ({promise.correlated})"
    return (
        f"{much}, for every record of a site, whoever sees what left it: each site finds its own "
        f"noise and keeps account of what it spent. Not covered: {NOT_COVERED}."
    )


def spent_at_most(run: Run) -> float | None:
    """A bound on ε so far, quickly; None where nobody promises, or its plan is not known here."""
    return None if run.kept is None else run.kept.at_most(max(run.counted.values(), default=0))


def spending(run: Run) -> str:
    """What was spent of privacy at most, of what is planned, in a few words."""
    kept, promise = run.kept, run.promise
    if kept is not None:
        planned = kept.at_most(kept.rounds)
        said = f"ε ≤ {spent_at_most(run):.3g} of {planned:.3g} by {kept.promise.unit}"
        return f"{said}, as sites plan" if run.between_sites else said
    if promise is None:
        return "no differential privacy"
    if promise.epsilon is None:
        return f"noise {promise.noise:g} by {promise.unit}, ε is counted at each site"
    return f"ε ≤ {promise.epsilon:.3g} by {promise.unit} in all rounds, counted at each site"
