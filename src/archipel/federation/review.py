# SPDX-License-Identifier: Apache-2.0
"""A study in words that a data manager can decide by, made at the site from the study's own bytes.

Every setting that bears on what leaves is shown, with what could be read from it and whether the
site's own policy is met. All lines are free of anything that a terminal would obey.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from archipel import fields
from archipel.data.schema import TEST
from archipel.errors import clean
from archipel.exchange import Anatomy, Message
from archipel.federation.binding import schema_of
from archipel.federation.exposure import Exposure
from archipel.federation.policy import Policy
from archipel.study import Study
from archipel.tree import leaves, nbytes

_PURPOSE = 1000  # characters of a purpose that are shown
_LINE = 2000  # characters of any line


@dataclass(frozen=True)
class Review:
    """All that a review is made of."""

    study: Study
    digest: str
    exposure: Exposure
    anatomy: Anatomy
    policy: Policy
    members: Sequence[str]  # that approved it so far
    mixed: Sequence[Tensor] = ()  # what a peer's round mixes
    changes: Sequence[str] = ()  # since this site last approved a study of that name
    namesakes: Sequence[str] = ()  # hashes of other studies of that name that are known here

    def text(self) -> str:
        lines = [
            *self._about(),
            "",
            "What leaves the building",
            *_indented(self.leaving()),
            "",
            "What could be read from it",
            *_indented(dangers(self.exposure, self.policy)),
            "",
            "This site's policy",
            *_indented(self._policy()),
        ]
        if self.namesakes:
            lines += ["", f"Other studies are called {self.study.name!r} as well: look at the hash"]
            lines += [f"  {digest}" for digest in self.namesakes]
        if self.changes:
            lines += ["", "Changed since you last approved", *_indented(self.changes)]
        return "\n".join(clean(line)[:_LINE] for line in lines)

    def _about(self) -> Iterator[str]:
        study, exposure = self.study, self.exposure
        about, policy, data = study.study, study.round, study.data
        yield f"Study     {about.name}"
        yield f"Purpose   {_shown(about.purpose) or '(none given)'}"
        yield f"Members   {', '.join(self.members) or '(nobody yet)'}"
        yield f"Hash      {self.digest}"
        yield f"Method    {study.algorithm.name}, {about.rounds} rounds, seed {about.seed}"
        yield f"          {_settings(study.algorithm_object)}"
        options = _table(study.model.given)
        yield f"Model     {exposure.model}, {exposure.weights} weights" + (
            f", {options}" if options else ""
        )
        yield (
            f"Rows      {_share_of(data.test)} of yours for testing, the others for training; "
            f"empty cells: {data.missing}; "
            + ("not standardised" if data.standardise is False else "standardised")
        )
        if data.schema is not None:
            schema = schema_of(study)
            yield f"Columns   {', '.join(column.name for column in schema.features)}"
            yield f"          to predict {', '.join(column.name for column in schema.targets)}"
        yield (
            f"Scored    {exposure.evaluations} times, every {about.evaluate_every} rounds, by "
            f"{about.metric or 'the usual metrics'}"
        )
        yield (
            f"Sites     {_share(policy.sample)} a round, quorum {_share(policy.quorum)}; below it: "
            f"{policy.on_missing}; "
            + (f"deadline {policy.deadline:g} s; " if policy.deadline else "no deadline; ")
            + ("others may join later" if policy.late_joiners else "nobody joins later")
        )
        if study.topology.name is not None:
            pace = ", each at its own pace" if study.topology.asynchronous else ""
            yield f"Graph     {study.topology.name}{pace}"

    def leaving(self) -> Iterator[str]:
        """What a site sends, a line each."""
        anatomy, exposure, study = self.anatomy, self.exposure, self.study
        if columns := study.scaled:
            yield (
                f"once, before the first round: of each of {columns} columns the count, the sum "
                "and the sum of squares over your training rows, unless they were given before; "
                "the coordinator sees them site by site"
            )
        for number, message in enumerate(anatomy.messages, 1):
            which = f"upload {number}" if len(anatomy.messages) > 1 else "upload"
            yield f"{which}, every round: {_form(message)}"
        for x in self.mixed:
            yield (
                f"to each neighbour on the graph {study.topology.name}, every round: {x.numel()} "
                f"numbers, {_bytes(nbytes(x))}; neighbours see them as they are, the coordinator "
                "never"
            )
        if exposure.counts:
            yield "your number of training rows, with every upload"
        if self.policy.counts:
            yield "how many gradients an upload took and how many rows you test on"
        yield (
            f"{exposure.evaluations} times at most: the model's metrics on your test rows, rounded "
            "so that no two records show in them"
        )
        for number, message in enumerate(anatomy.personal, 1):
            yield f"question {number} for a model of your own, as often: {_form(message)}"
        yield "once: how many features and classes the study has"
        each = " to each neighbour" if self.mixed else ""
        yield (
            f"in all at most {_bytes(exposure.bytes)}{each}, "
            f"{exposure.numbers * exposure.rounds:,} numbers computed from your data"
        )

    def _policy(self) -> Iterator[str]:
        rules = self.policy.judge(self.exposure)
        for rule in sorted(rules, key=lambda rule: rule.met):
            yield f"{'met    ' if rule.met else 'NOT MET'}  {rule.key}: {rule.said}"
        if not all(rule.met for rule in rules):
            yield "so this study cannot be approved here; 'archipel site policy' changes the rules"


def dangers(study: Exposure, policy: Policy) -> Iterator[str]:
    """What the settings mean for single records, as plainly as it can be said."""
    if study.records == 1:
        yield "ONE UPLOAD IS THE GRADIENT OF ONE RECORD: whoever sees it can read the record"
    elif study.records is not None and study.records < max(policy.least_batch, 8):
        yield (
            f"one upload is computed from {study.records} records: whoever sees it can compute "
            "records from it"
        )
    elif study.steps == 1:
        what = "all your rows" if study.batch is None else f"{study.batch} records"
        yield (
            f"one upload is one gradient over {what}: records that stand out can be computed from "
            "it"
        )
    elif not study.is_known:
        yield "how many records are behind an upload cannot be told from the study's settings"
    else:
        yield "an upload is made of many gradients; without noise nothing bounds what it reveals"
    total = study.numbers * study.rounds
    if study.values is not None and total >= study.values:
        yield (
            f"{total:,} numbers leave and your rows hold {study.values:,}: nothing but the work it "
            "takes keeps them from being computed back"
        )
    if study.neighbours:
        yield "every neighbour sees your vectors as they are, round by round"
    elif study.sites == 1:
        yield (
            "a round counts with ONE site: the shared model is then that site's upload, and all "
            "who get the model see it"
        )
    elif study.sites == 2:
        yield "a round counts with TWO sites: each can compute the other's upload from the mean"
    if not study.neighbours:
        yield (
            "the coordinator receives your uploads one by one, whatever the algorithm uses, and "
            "may send a model that is made to read records from the answer"
        )
    yield "no noise is added, so no privacy budget is spent and no bound is claimed"


def _form(message: Message) -> str:
    shapes = [" x ".join(map(str, leaf.shape)) or "1" for leaf in leaves(message.upload)]
    seen = "one by one" if "stack" in message.asks else "as a mean over sites"
    size = _bytes(nbytes(message.upload))
    return f"{' and '.join(shapes)} numbers, {size}; the algorithm uses them {seen}"


def _settings(algorithm: Any) -> str:
    """All fields of an algorithm that a study can hold."""
    hints = fields.hints(type(algorithm))
    found = {name: getattr(algorithm, name) for name in hints}
    return _table({n: fields.write(v) for n, v in found.items() if fields.holds(hints[n], v)})


def _table(given: dict[str, Any]) -> str:
    return ", ".join(f"{name} {fields.shown(value)}" for name, value in given.items())


def _share_of(test: float | None) -> str:
    share = TEST if test is None else test
    return f"{share:.4%}".rstrip("%").rstrip("0").rstrip(".") + " %"


def _share(count: float) -> str:
    """So many sites, or a share of them."""
    if isinstance(count, int):
        return f"{count} site{'' if count == 1 else 's'}"
    return "all sites" if count == 1 else f"{count:.0%} of the sites"


def _shown(purpose: str) -> str:
    """No longer than a screen: the rest of the review is not pushed out of it."""
    if len(purpose) <= _PURPOSE:
        return purpose
    return f"{purpose[:_PURPOSE]} ... ({len(purpose) - _PURPOSE} characters more)"


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def _indented(lines: Any) -> list[str]:
    return [f"  {line}" for line in lines]
