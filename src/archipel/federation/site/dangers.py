# SPDX-License-Identifier: Apache-2.0
"""What could be read from what leaves, in words: of single records, and by whom."""

from __future__ import annotations

from collections.abc import Iterator

from archipel.federation.site.exposure import Exposure
from archipel.federation.site.policy import Policy
from archipel.federation.site.promised import hides_uploads
from archipel.privacy.promise import Privacy

_SCORES = "Scores leave one by one: the more there are, the more they tell of test records."


def dangers(study: Exposure, policy: Policy, wire: str = "") -> Iterator[str]:
    """What the settings mean for single records, as plainly as it can be said."""
    if hides_uploads(study):
        yield (
            "Uploads leave with noise, and of training records they tell no more than is promised, "
            "whatever the coordinator sends or whoever looks."
        )
        yield (
            "Scores have no such noise: a dishonest coordinator can have models scored that are "
            "made to tell of single test records."
        )
        return
    promise = None if study.unkept else study.promise
    if promise is not None and promise.trust in ("sum", "shuffler"):
        yield _condition(promise)
        yield from _sums(study, policy) if study.hidden else _reports()
        return
    if study.records == 1:
        yield "ONE UPLOAD IS THE GRADIENT OF ONE RECORD: whoever sees it can read the record."
    elif study.records is not None and study.records < max(policy.least_batch, 8):
        yield (
            f"One upload is computed from {study.records} records: whoever sees it can compute "
            "records from it."
        )
    elif study.steps == 1:
        what = "all your rows" if study.batch is None else f"{study.batch} records"
        yield (
            f"One upload is one gradient over {what}: records that stand out can be computed from "
            "it."
        )
    elif not study.is_known:
        yield "How many records are behind an upload cannot be told from the study's settings."
    total = study.numbers * study.rounds
    if study.values is not None and total >= study.values:
        yield (
            f"{total:,} numbers leave and your rows hold {study.values:,}: nothing but the work it "
            "takes keeps them from being computed back."
        )
    if study.learned:
        yield "Every member of the study sees your vectors as they are whenever it asks."
    elif study.neighbours:
        yield "Every neighbour sees your vectors as they are, round by round."
    elif study.sites == 1 and study.groups == 1:
        yield (
            "A round counts with ONE site: the shared model is then that site's upload, and all "
            "who get the model see it."
        )
    elif study.sites == 2 and study.groups == 1:
        yield "A round counts with TWO sites: each can compute the other's upload from the mean."
    if study.hidden:
        yield from _sums(study, policy)
    elif study.shuffled:
        yield from _reports()
    elif not study.neighbours:
        yield (
            "The coordinator sees your uploads one by one. A dishonest one can send models that "
            "are made so that the answers give single records, exactly."
        )
        if study.sorting:
            yield (
                f"Such a model can sort records with the {study.sorting} units of this one's first "
                "layer, and read up to as many from one upload. One whose units measure the same "
                "is told for it, and nothing is sent; 'archipel audit' says how much it would read."
            )
        yield (
            "It can have such models scored, too: the more scores, the more they tell of single "
            "test records."
        )
    if promise is not None:
        yield (
            "Noise is added by the coordinator, which sees your uploads without it: what is "
            "promised holds against all others, and not against the coordinator."
        )
    elif wire:
        yield "No bound is claimed of what uploads tell: nobody keeps account of the wire's steps."
    else:
        yield (
            "No noise is added to uploads: nothing bounds what they tell, and no bound is claimed."
        )


def _condition(promise: Privacy) -> str:
    """On what it depends that noise which no upload has by itself is enough."""
    if promise.trust == "sum":
        return (
            "Your upload has a share of the noise alone. A sum tells no more than is promised only "
            f"if at least {promise.honest} of its sites are real and honest: those that are "
            "invented, or work with the coordinator, can take their noise off."
        )
    return (
        "Your report has little noise by itself. What arrives tells no more than is promised only "
        "if the shuffler does not work with the coordinator, and as many sites as the study counts "
        "on are real and do not work with it either."
    )


def _sums(study: Exposure, policy: Policy) -> Iterator[str]:
    """Where a protocol shows sums of uploads alone."""
    yield (
        "The coordinator sees sums of uploads, and no single one: cryptography keeps that, also "
        "against a coordinator that lies, as long as fewer sites work with it than the study "
        f"allows for. This site unmasks no sum of fewer than {max(2, policy.least_sites)} sites "
        "(least_sites); who the others are it knows by their keys: compare them by telephone "
        "('archipel site keys')."
    )
    if study.groups > 1:
        yield (
            f"A round's sites are drawn into {study.groups} groups, and the coordinator sees a sum "
            f"of each: of {study.sites} site{'s' * (study.sites != 1)} where no more than the "
            "quorum come. Your upload is hidden among those of your group alone, which the "
            "coordinator, if it lies, can choose: all others of it, together with the coordinator, "
            "know your upload."
        )
    yield (
        "A sum still tells what all its sites have in common, and all of them but one, together, "
        "know that one's upload. A dishonest coordinator can invent sites: count those that you "
        "know."
    )
    if study.unheard:
        yield (
            "A coordinator that takes your upload, cuts you off, and tells the other sites that "
            "you sent none, sees it: GOPA has no second mask against that, and secure sums have."
        )
    if study.counts:
        yield (
            "The sum of the sites' numbers of rows is in it; from two sums, of which one is "
            "without you, yours follows."
        )
    yield _SCORES


def _reports() -> Iterator[str]:
    """Where uploads leave as reports that are shuffled."""
    yield (
        "The coordinator sees reports of a few numbers of an upload, a bit each, and not whose "
        "they are, as long as the shuffler that the study names does not work with it; if it does, "
        "they see yours by itself. The shuffler passes on reports of sites that its operator "
        "admitted: ask who runs it, and whom it admits."
    )
    yield _SCORES
