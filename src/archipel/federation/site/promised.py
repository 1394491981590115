# SPDX-License-Identifier: Apache-2.0
"""What a study promises a site, what that means and costs, and what it does not cover, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archipel.federation.site.account import epsilon_of
from archipel.federation.site.binding import schema_of
from archipel.federation.site.exposure import Exposure
from archipel.privacy.meaning import FALSE_ALARMS, found_in, in_words
from archipel.privacy.release import Release
from archipel.study.file import Study

_WHOM = {
    "record": "for each of your training records",
    "party": "for this site with all its training records, and so for each of them",
}


def hides_uploads(study: Exposure) -> bool:
    """Whether what leaves has all of its noise already, whoever else is in the study."""
    promise = study.promise
    if promise is None or study.unkept:
        return False
    return promise.unit == "record" or promise.trust == "nobody"


def promised(study: Study, exposure: Exposure) -> Iterator[str]:
    """The promise, a line each; nothing where there is none."""
    promise = exposure.promise
    if promise is None:
        return
    if exposure.unkept:
        yield f"NOTHING, though the study says so: {exposure.unkept}"
        return
    cost, found = promise.epsilon, None
    if exposure.planned is not None:
        cost = epsilon_of(exposure.planned, promise.delta)
        found = found_in(exposure.planned) if exposure.planned else FALSE_ALARMS
    from_whom = (
        "whoever sees what leaves"
        if hides_uploads(exposure)
        else "against all who see the model, and NOT against the coordinator, which adds the noise"
    )
    if promise.trust == "sum":
        from_whom = (
            "whoever sees what comes of sums, the coordinator included, as long as "
            f"{promise.honest} sites of every sum keep their share of the noise to themselves "
            f"(yours adds its own, and helps to no sum of fewer than {(promise.honest or 0) + 1})"
        )
    if promise.trust == "shuffler":
        from_whom = (
            "whoever sees shuffled reports, the coordinator included, as long as the shuffler that "
            "the study names does not work with the coordinator"
        )
    if cost is None:
        yield (
            f"noise of {promise.noise:g} times {promise.clip_in_words}, {_WHOM[promise.unit]}, "
            f"{from_whom}; what that promises is known when a table is bound"
        )
    else:
        yield (
            f"(ε, δ) = ({cost:.3g}, {promise.delta:g}) {_WHOM[promise.unit]}, {from_whom}. "
            + in_words(cost, promise.delta, promise.unit, found)
        )
    if promise.correlated is not None:
        yield (
            f"noise is correlated over rounds ({promise.correlated}): a part of it is taken back "
            "later. "
            + (
                "Your records are used in an order that is drawn once; each attempt of a round "
                "uses noise up, and when it is used up this site takes no further part"
                if promise.unit == "record"
                else f"It is the coordinator's, and enough if it asks you once in "
                f"{study.round.separation or 1} rounds at most"
            )
        )
    if promise.adaptive:
        yield (
            "the clip follows the uploads: yours says, besides, whether it was longer than the "
            "clip, which is counted in this promise"
        )
    if exposure.account.unbounded:
        yield (
            "this table was used in a study that promised nothing, so of all studies together "
            "nothing is promised"
        )
    elif exposure.planned is not None and (exposure.account.others or exposure.account.planned):
        yield _together(exposure, exposure.planned, promise.delta)
    yield f"not covered: {', '.join(_uncovered(study, exposure))}"


def _together(exposure: Exposure, planned: Sequence[Release], delta: float) -> str:
    """What this study costs with all others on the table: those that were, and are approved."""
    account = exposure.account.without_own
    said = f"of this table other studies have spent ε = {account.epsilon(delta):.3g}"
    if to_come := account.to_come:
        names = ", ".join(each.study for each in account.planned)
        whole = account.epsilon(delta, to_come)
        said += f", {whole:.3g} with what those that you approved still plan ({names})"
    return f"{said}; with all of this one it is {account.epsilon(delta, [*to_come, *planned]):.3g}"


def _uncovered(study: Study, exposure: Exposure) -> Iterator[str]:
    own = ", those of your own model, which is trained without noise, among them"
    yield "scores on your test rows" + own * (exposure.scored > exposure.evaluations)
    if study.scaled:
        target = " and of the one to predict" * schema_of(study).scales_target
        yield f"the sums of columns{target} for the common scale"
    how = ", in sums with those of other sites," if exposure.counts_in_sums else ","
    yield "how many rows you have" + f"{how} which leaves with every upload" * exposure.counts
    yield "how long a round takes you"
