# SPDX-License-Identifier: Apache-2.0
"""Attacks on uploads: records, labels and symbols that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.attacks.case import Family, Records, Tells
from archipel.audit.adversaries import Adversary
from archipel.audit.findings import Finding, Picture
from archipel.audit.judging import Matched, clopper_pearson, match
from archipel.audit.letters import Opened, is_mean, opened
from archipel.audit.work import Promised, Work
from archipel.privacy.meaning import found_at_most

_BEST = 6  # records of an attack that are kept for the page
MEASURES: dict[Tells, str] = {
    "records": "of the records behind an upload, made again",
    "labels": "of the labels behind an upload, told right",
    "symbols": "of the symbols behind an upload, told",
}


def inversion(work: Work, name: str, attack: Any, who: Adversary, promise: Promised) -> Finding:
    measure = MEASURES[attack.tells]
    recorder = work.first[1]
    single = "single" in who.has
    if not single and "mean" not in who.has and not is_mean(recorder):
        said = "the models of two rounds do not tell the mean of the uploads"
        return Finding(name, "inversion", measure, None, said=f"does not apply: {said}.")
    key = (name, single)
    if key not in work.results:
        letters = opened(work.subject, recorder, single, work.size.uploads, work.quick)
        work.results[key] = _invert(work, name, attack(), letters, single)
    finding: Finding = work.results[key]
    if finding.score is None or finding.chance is None or promise is None or not who.bounded:
        return finding
    epsilon, delta = promise
    count = finding.details["others"]
    most = clopper_pearson(finding.chance * count, count)[1]
    ceiling = found_at_most(epsilon, delta, min(max(most, 1e-9), 1 - 1e-9))
    within = finding.interval is None or finding.interval[0] <= ceiling
    return replace(finding, ceiling=ceiling, within=within)


def _invert(work: Work, name: str, attack: Any, letters: Sequence[Opened], single: bool) -> Finding:
    nothing = Finding(name, "inversion", MEASURES[attack.tells], None)
    if not letters:
        return replace(nothing, said="does not apply: no message has the form of a gradient.")
    for each in letters:
        if why := attack.applies(each.letter):
            return replace(nothing, said=f"does not apply: {why}.")
    if attack.tells == "records" and not work.subject.data.x.is_floating_point():
        return replace(nothing, said="does not apply: records are text, whose symbols are found.")
    made = []
    for each in letters:
        work.say(f"{name} on an upload of {each.who}, {each.letter.records} records")
        made.append(attack.records(each.letter))
    judges = {"records": of_records, "labels": _of_labels, "symbols": _of_symbols}
    found = judges[attack.tells](work, name, "inversion", letters, made, single)
    return replace(found, measure=MEASURES[attack.tells])


def of_records(
    work: Work,
    name: str,
    family: Family,
    letters: Sequence[Opened],
    all_made: Sequence[Records],
    single: bool,
) -> Finding:
    """Judge records by how near they are to those behind the uploads, and to others."""
    data = work.subject.data
    scale = work.subject.ranges.sd.flatten()
    if len(data.shape) > 1:  # pixels that hardly ever change are no larger than others
        scale = scale.square().mean().sqrt().expand_as(scale)
    span = float(work.subject.ranges.high.max() - work.subject.ranges.low.min())
    found, total, near, others = 0, 0, 0, 0
    peaks: list[float] = []
    far: list[float] = []
    for each, made in zip(letters, all_made, strict=True):
        total += len(each.x)
        rest = others_of(data.x, each)
        others += len(rest)
        if len(made.x) == 0:
            continue
        matched = match(each.x, made.x, scale, span)
        found += matched.found
        near += match(rest, made.x, scale, span).found
        peaks += matched.peak.tolist()
        far += matched.distance.tolist()
        if single:
            picture(work, name, each, made.x[matched.nearest], matched)
    peaks.sort(reverse=True)
    details = {
        "records": total, "others": others, "psnr_best": peaks[0] if peaks else None,
        "psnr_median": peaks[len(peaks) // 2] if peaks else None, "uploads": len(letters),
        "records_per_upload": [each.letter.records for each in letters],
    }  # fmt: skip
    behind = f"{total} records behind {len(letters)} upload" + "s" * (len(letters) != 1)
    said = f"it made none; {behind}"
    if peaks:
        image = len(data.shape) > 1
        nearest = f"{peaks[0]:.0f} dB" if image else f"{min(far):.2g} standard deviations"
        said = f"the nearest pair at {nearest}; {behind}"
    return Finding(
        name, family, MEASURES["records"], found / total, clopper_pearson(found, total),
        near / max(1, others), said=said, details=details,
    )  # fmt: skip


def _of_labels(
    work: Work,
    name: str,
    family: Family,
    letters: Sequence[Opened],
    made: Sequence[Records],
    single: bool,
) -> Finding:
    """Judge labels by how many are right, beside those by the classes' shares alone."""
    classes = work.subject.data.classes
    common = torch.bincount(work.subject.data.y.long(), minlength=classes).double()
    right, guessed, total = 0.0, 0.0, 0
    for each, found in zip(letters, made, strict=True):
        assert found.y is not None
        truth = torch.bincount(each.y.long(), minlength=classes).double()
        ours = torch.bincount(found.y.long(), minlength=classes).double()
        guess = common / common.sum() * truth.sum()
        right += float(torch.minimum(truth, ours).sum())
        guessed += float(torch.minimum(truth, guess).sum())
        total += len(each.y)
    details = {"records": total, "others": total, "uploads": len(letters)}
    return Finding(
        name, family, "", right / total, clopper_pearson(right, total), guessed / total,
        said=f"{total} labels; by guessing: by how common each class is", details=details,
    )  # fmt: skip


def _of_symbols(
    work: Work,
    name: str,
    family: Family,
    letters: Sequence[Opened],
    made: Sequence[Records],
    single: bool,
) -> Finding:
    """Judge symbols by how many of those behind an upload were told, and of those that are not."""
    right, total, wrong, others = 0, 0, 0, 0
    for each, found in zip(letters, made, strict=True):
        there = torch.zeros(work.subject.data.classes, dtype=torch.bool)
        there[each.x.flatten().unique()] = True
        told = torch.zeros_like(there)
        told[found.x] = True
        right, total = right + int((told & there).sum()), total + int(there.sum())
        wrong, others = wrong + int((told & ~there).sum()), others + int((~there).sum())
    details = {"records": total, "others": max(1, others), "false_symbols": wrong}
    return Finding(
        name, family, "", right / total, clopper_pearson(right, total), wrong / max(1, others),
        said=f"{total} symbols; by guessing: of those that were not read, told as well",
        details=details,
    )  # fmt: skip


def others_of(x: Tensor, each: Opened) -> Tensor:
    """Records that were not behind an upload, to see how many are near by chance."""
    random = torch.Generator().manual_seed(0)
    unused = torch.ones(len(x), dtype=torch.bool)
    unused[each.rows] = False
    rows = torch.nonzero(unused).flatten()
    rows = rows if len(rows) else each.rows
    most = max(200, min(2 * len(each.x), 2000))
    return x[rows[torch.randperm(len(rows), generator=random)[:most]]]


def picture(work: Work, name: str, each: Opened, made: Tensor, matched: Matched) -> None:
    """Keep the best of what was made of uploads, for the page."""
    best = np.argsort(matched.distance)[:_BEST]
    at = torch.from_numpy(best.copy())
    shown = Picture(
        name, each.x[at], made[at], matched.peak[best].tolist(), matched.distance[best].tolist()
    )
    told = [each for each in work.pictures if each.attack == name]
    if not told:
        work.pictures.append(shown)
    elif len(told[0].true) < _BEST:
        work.pictures[work.pictures.index(told[0])] = told[0].joined(shown)
