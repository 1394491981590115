# SPDX-License-Identifier: Apache-2.0
"""A malicious server: the study's first round with the model that an attack has it send."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from archipel.audit.adversaries import Adversary
from archipel.audit.findings import Finding
from archipel.audit.inversion import MEASURES, of_records
from archipel.audit.letters import opened
from archipel.audit.work import Promised, Work


def imprint(work: Work, name: str, attack: Any, who: Adversary, promise: Promised) -> Finding:
    """What comes back of a model that was made to read records."""
    subject, make = work.subject, attack()
    nothing = Finding(name, "imprint", MEASURES["records"], None)
    if not subject.data.x.is_floating_point():
        return replace(nothing, said="does not apply: records are text.")
    if why := make.applies(subject.model):
        return replace(nothing, said=f"does not apply: {why}.")
    work.say(f"{name}: a first round with another model")
    mean, sd, seed = subject.ranges.mean, subject.ranges.sd, subject.study.study.seed
    _, recorder = subject.run(
        frozenset({0}), seed, until=1,
        tamper=lambda w, t: make.sent(subject.model, w, mean, sd, seed),
    )  # fmt: skip
    single = "single" in who.has
    letters = opened(subject, recorder, single, work.size.uploads, work.quick)
    if not letters:
        return replace(nothing, said="does not apply: no message has the form of a gradient.")
    made = [make.records(each.letter) for each in letters]
    found = of_records(work, name, "imprint", letters, made, single)
    said = f"{found.said}; a site sees that the first layer's units measure the same"
    return replace(found, said=said)
