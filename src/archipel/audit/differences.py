# SPDX-License-Identifier: Apache-2.0
"""What sums of rounds with different parties tell of one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from archipel.audit.adversaries import Adversary
from archipel.audit.findings import Finding
from archipel.audit.judging import clopper_pearson
from archipel.audit.recorder import Recorder
from archipel.audit.work import Promised, Work
from archipel.tree import leaves

_ROUNDS = 200  # that are looked at, at most
_NUMBERS = 30_000_000  # that are written down for it, at most


def differences(work: Work, name: str, attack: Any, who: Adversary, promise: Promised) -> Finding:
    """Whose number of records, and whose upload, sums over different parties tell."""
    key = (name, "differences")
    if key not in work.results:
        work.results[key] = _found(work, name, attack())
    found: Finding = work.results[key]
    if "single" in who.has and found.score is not None:
        return replace(found, said=f"{found.said}; it sees each upload anyway")
    return found


def _found(work: Work, name: str, attack: Any) -> Finding:
    measure = "of the parties, whose number of records two sums tell exactly"
    subject = work.subject
    rounds = min(subject.options.get("rounds", 100), _ROUNDS)
    each = subject.model.p * subject.data.training
    if each * rounds > _NUMBERS:
        rounds = max(2, _NUMBERS // each)
    work.say(f"{name}: the sums of {rounds} rounds")
    seed = subject.study.study.seed
    _, recorder = subject.run(frozenset(range(rounds)), seed, until=rounds)
    seen = [recorder.rounds[t] for t in sorted(recorder.rounds) if recorder.rounds[t].present]
    weighed = [each for each in seen if each.weight is not None]
    if not weighed:
        return Finding(
            name, "differencing", measure, None,
            said="does not apply: no sum is weighted by numbers of records.",
        )  # fmt: skip
    rosters = [each.present for each in weighed]
    sums = [each.weight or 0.0 for each in weighed]
    parties = subject.data.training
    told = attack.told(rosters, sums, parties)
    right = [k for k, n in told.items() if n == int(subject.data.n[k])]
    alike = _uploads(recorder)
    shown = ", ".join(subject.data.name(k) for k in right[:5])
    said = f"of {shown}" if right else "rosters do not differ by one party"
    if alike is not None:
        said += f"; the difference of two rounds' sums is like its upload (cosine {alike:.2f})"
    score = len(right) / parties
    return Finding(
        name, "differencing", measure, score, clopper_pearson(len(right), parties), 0.0,
        said=said, details={"parties": right, "cosine_of_upload": alike},
    )  # fmt: skip


def _uploads(recorder: Recorder) -> float | None:
    """The best cosine of two rounds' difference with the upload of the party that was missing."""
    best = None
    for a, b in pairwise(sorted(recorder.rounds)):
        one, two = recorder.rounds[a], recorder.rounds[b]
        more, less = (one, two) if len(one.present) > len(two.present) else (two, one)
        gone = {*more.present} - {*less.present}
        if len(gone) != 1 or not {*less.present} < {*more.present} or not less.present:
            continue
        (k,) = gone
        upload = (more.arrived or more.left).get(k)
        if upload is None or more.weight is None or less.weight is None:
            continue
        weights = (more.weight, less.weight)
        sums = [leaves(s.mean)[0] * n for s, n in zip((more, less), weights, strict=True)]
        true = leaves(upload)[0]
        if sums[0].shape != true.shape:
            continue
        near = float(torch.nn.functional.cosine_similarity(sums[0] - sums[1], true, dim=-1))
        best = near if best is None else max(best, near)
    return best
