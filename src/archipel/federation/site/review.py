# SPDX-License-Identifier: Apache-2.0
"""A study in words that a data manager can decide by, made at the site from the study's own bytes.

Every setting that bears on what leaves is shown, with what could be read from it and whether the
site's own policy is met. All lines are free of anything that a terminal would obey, what a study
says begins no line, and what is cut is said.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from archipel.data.schema import TEST, Column
from archipel.errors import clean
from archipel.exchange.anatomy import Anatomy, Message
from archipel.exchange.boxes import clock_of, is_asynchronous
from archipel.federation.site.binding import schema_of
from archipel.federation.site.dangers import dangers
from archipel.federation.site.exposure import Exposure
from archipel.federation.site.policy import Policy
from archipel.federation.site.promised import promised
from archipel.study import fields
from archipel.study.checks import share_of
from archipel.study.file import Study
from archipel.tree import leaves, nbytes

_WIDTH = 98  # characters of a line
_PURPOSE = 1000  # characters of a purpose that are shown
_NAME = 60  # characters of any other text of a study
_VALUES = 12  # of a column
_COLUMNS = 200
_EMPTY = {
    "error": "no cell may be empty",
    "drop": "rows with an empty cell are left out",
    "mean": "empty cells are filled in with the mean of all sites",
}


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
    met: Sequence[str] = ()  # of the members, those whose keys this site knows, itself among them
    confirmed: Sequence[str] = ()  # of these, those whose keys somebody here has confirmed

    def text(self) -> str:
        about = [*_wrapped(self._about(), 10), ""]
        parts = [
            ("What is promised", [f"- {line}" for line in promised(self.study, self.exposure)]),
            ("What leaves the building", [f"- {line}" for line in self.leaving()]),
            (
                "What could be read from it",
                [f"- {line}" for line in self._dangers()],
            ),
            ("This site's policy", list(self._policy())),
            ("Other studies have this name, or nearly: look at the hash", self.namesakes),
            ("Changed since you last approved", self.changes),
        ]
        for title, lines in parts:
            if lines:
                about += [title, *(f"  {line}" for line in _wrapped(lines, 2)), ""]
        return "\n".join(about[:-1])

    def _dangers(self) -> Iterator[str]:
        yield from dangers(self.exposure, self.policy, self.wire)
        if self.exposure.hidden and self.members:
            new = [name for name in self.members if name not in self.met]
            more = f": {_cut(', '.join(new))}" if new else ""
            yield (
                f"Of {len(self.members)} sites that approved it so far this site knows the keys of "
                f"{len(self.members) - len(new)} and has not met {len(new)}{more}. "
                + self._unconfirmed()
            )

    def _unconfirmed(self) -> str:
        """Whose keys are believed because the coordinator says so, and what comes of that."""
        names = [name for name in self.members if name not in self.confirmed]
        late = "later ones, too" if self.study.round.late_joiners else "nobody after these"
        said = "Somebody here has confirmed all of their keys. "
        if names:
            said = f"Nobody here has confirmed the keys of {len(names)}: {_cut(', '.join(names))}. "
        if self.policy.confirmed:
            return said + (
                "This site adds up with none that is not confirmed (policy confirmed), whatever "
                f"the coordinator says ({late})."
            )
        return said + (
            f"It believes the coordinator once who others are, when they first add up ({late}): "
            "look then at 'archipel site keys', or before at --trust."
        )

    def _about(self) -> Iterator[str]:
        study, exposure = self.study, self.exposure
        about, data, name = study.study, study.data, study.name
        yield f"Study     {name}"
        if not name.isascii() or name != " ".join(name.split()):  # may look like another
            yield f"          exactly {name!a}"
        yield f"Hash      {self.digest}"
        yield f"Purpose   {_cut(about.purpose, _PURPOSE) or '(none given)'}"
        yield f"Members   {', '.join(self.members) or '(nobody yet)'}"
        yield f"Method    {study.algorithm.name}, {about.rounds} rounds, seed {about.seed}"
        yield f"          {_settings(study.algorithm_object)}"
        options = {"loss": exposure.loss, **study.model.given}
        yield f"Model     {exposure.model}, {exposure.weights} weights, {_table(options)}"
        share = share_of(data)
        test = TEST if share is None else share
        yield (
            f"Rows      {_percent(1 - test)} of yours train the model, {_percent(test)} test it; "
            f"{_EMPTY[data.missing]}; numbers are "
            + ("taken as they are" if data.standardise is False else "put on one scale")
        )
        if data.schema is not None:
            schema = schema_of(study)
            yield f"Columns   {len(schema.features)} to learn from: {_columns(schema.features)}"
            yield f"          to predict: {_columns(schema.targets)}"
        often = "round" if about.evaluate_every == 1 else f"{about.evaluate_every} rounds"
        judged = f"; the study is judged by {about.metric}" if about.metric else ""
        yield f"Scores    after every {often}, {exposure.evaluations} times{judged}"
        yield f"Sites     {self._sites()}"
        if self.wire:
            yield f"Wire      {_cut(self.wire)}"
        if study.topology.name is not None:
            pace = ", each at its own pace" if study.topology.asynchronous else ""
            yield f"Graph     {_cut(study.topology.name)}{pace}"
        if exposure.learned:
            yield "Graph     learned: from what members tell each other"

    def _sites(self) -> str:
        """Who is in a round."""
        rules = self.study.round
        below = {"wait": "it waits", "abort": "the study ends", "continue": "it is left out"}
        more = f" and {rules.over_select:.0%} more" if rules.over_select else ""
        rest = (rules.separation or 1) - 1
        if is_asynchronous(self.study.algorithm_object):
            return self._own_pace(below[rules.on_missing])
        return (
            f"a round asks {_share(rules.sample)}{more} and counts with {_share(rules.quorum)} or "
            f"more (quorum), else {below[rules.on_missing]}; "
            + (f"after one a site sits out {rest}; " if rest else "")
            + (f"{rules.deadline:g} s for a round; " if rules.deadline else "no time limit; ")
            + ("sites may join later" if rules.late_joiners else "nobody joins later")
        )

    def _own_pace(self, below: str) -> str:
        """The same where nobody waits for anybody."""
        rules, buffer = self.study.round, getattr(self.study.algorithm_object, "buffer", None)
        many = "half of the sites that train at once" if buffer is None else _share(buffer)
        return (
            f"{_share(rules.sample)} train at once, each at its own pace, and nobody waits for a "
            f"slow one; a round is a step of the server with uploads of {many}, or with "
            f"{_share(rules.quorum)} (quorum) where no more come, else {below}; a site is in a "
            "round once at most; "
            + (f"{rules.deadline:g} s for a site's work; " if rules.deadline else "")
            + ("sites may join later" if rules.late_joiners else "nobody joins later")
        )

    def leaving(self) -> Iterator[str]:
        """What a site sends, a line each."""
        anatomy, exposure, study = self.anatomy, self.exposure, self.study
        if columns := study.scaled:
            target = ", the one to predict among them," if schema_of(study).scales_target else ""
            yield (
                f"once: count, sum and sum of squares of {columns} columns{target} over your "
                "training rows, for the common scale; the coordinator sees each site's. What an "
                "earlier study got of a column is sent again as it was"
            )
        own_pace = is_asynchronous(study.algorithm_object)
        often = "once a round at most" if own_pace else "every round"
        if own_pace:
            yield "once a round at most: that you have trained, before the upload leaves"
        for number, message in enumerate(anatomy.messages, 1):
            which = f"upload {number}" if len(anatomy.messages) > 1 else "an upload"
            yield f"{often}: {which} of {_form(message, anatomy.wire.sum)}"
        if self.wire:
            hidden = "your numbers are masked, and no key to them leaves that would show them alone"
            shuffled = "your report has noise of its own, and leaves sealed for the shuffler"
            unknown = "nobody keeps account of what that hides, and nothing is promised of it"
            yield (
                f"before it leaves, an upload passes the wire: {_cut(self.wire)}; "
                + (hidden if exposure.hidden else shuffled if exposure.shuffled else unknown)
            )
        when, whom = self._among_peers()
        for x in self.mixed:
            yield (
                f"{when}: {x.numel()} numbers, {_bytes(nbytes(x))}, to {whom} them as they are; "
                "the coordinator does not get them"
            )
        if exposure.learned:
            yield (
                "with every score: the weights of your edges, which tell whose data is like yours, "
                "to the coordinator; their sum is told to each member that asks"
            )
        if exposure.statistics:
            yield (
                f"{exposure.statistics} of these numbers are BatchNorm's running means and "
                "variances: statistics of your training rows as they pass the model's layers, "
                'which stay with you in a study that says model.statistics = "own"'
            )
        if exposure.counts_in_sums:
            yield (
                "with every upload: your number of training rows, of which the coordinator sees "
                "the sum of the sites' numbers of rows; from two sums, one site's"
            )
        elif exposure.counts:
            yield "with every upload: your number of training rows"
        if self.policy.tells_counts:
            yield "numbers of training rows, test rows and gradients, since your policy has counts"
        which = "the shared model" + " and your own" * (exposure.scored > exposure.evaluations)
        yield (
            f"{exposure.evaluations} times: scores of "
            f"{'your model' if exposure.neighbours else which} on your test rows, "
            + self._rounding()
        )
        if exposure.untold and not self.policy.is_exact:
            yield (
                f"no {', '.join(exposure.untold)}: how far one record moves it is not known, so it "
                "is measured and does not leave"
            )
        for number, message in enumerate(anatomy.personal, 1):
            which = f"question {number} for your own model"
            yield f"{exposure.evaluations} times: {which}, {_form(message)}"
        each = " to each neighbour" if self.mixed else ""
        most = "at most" if clock_of(study.algorithm_object) == "rounds" else "about"
        yield (
            f"in all {most} {_bytes(exposure.bytes)}{each}; the uploads are "
            f"{exposure.numbers * exposure.rounds:,} numbers computed from your data"
        )

    def _among_peers(self) -> tuple[str, str]:
        """When something goes from peer to peer, and to whom, who sees it."""
        clock, graph = clock_of(self.study.algorithm_object), _cut(self.study.topology.name or "")
        near = f"each neighbour on the graph {graph}, which sees"
        if self.exposure.learned:
            near = "every member that asks, and to neighbours as they are learned, who see"
        return {
            "rounds": ("every round", near),
            "wakes": ("whenever this site wakes, once a round", near),
            "meetings": ("in each meeting, once a round and whenever a neighbour asks", near),
            "walk": (
                "whenever a token was here, once a round on average",
                f"the neighbour on the graph {graph} that it goes to, which sees",
            ),
        }[clock]

    @property
    def wire(self) -> str:
        """What the study puts between an upload and the server, as it is set; empty for nothing."""
        found = self.anatomy.wire
        steps = [*found.up, *(f"down {step}" for step in found.down)]
        steps += [f"rule {found.rule}"] if found.rule else []
        return ", then ".join([*steps, *([f"sums by {found.sum}"] if found.sum else [])])

    def _rounding(self) -> str:
        if self.policy.is_exact:
            return "with all their digits, since your policy has digits = 15"
        return "rounded up or down at random, in steps of two records or more"

    def _policy(self) -> Iterator[str]:
        rules = self.policy.judge(self.exposure)
        for rule in sorted(rules, key=lambda rule: rule.met):
            yield f"{'met    ' if rule.met else 'NOT MET'}  {rule.key}: {rule.said}"
        if not all(rule.met for rule in rules):
            yield "So this study cannot be approved here; 'archipel site policy set' changes rules."


_SHOWN = 4  # shapes of a message, at most; more are counted


def _form(message: Message, summed_by: str = "") -> str:
    sent = leaves(message.sent)
    shapes = [" x ".join(map(str, leaf.shape)) or "1" for leaf in sent]
    if len(shapes) > _SHOWN:
        shapes = [f"{sum(leaf.numel() for leaf in sent)} (in {len(sent)} parts)"]
    seen = "each site's by itself" if "stack" in message.asks else "only the mean over sites"
    if summed_by:
        seen = f"only their sum, which {_cut(summed_by)} makes of all sites' messages"
    size = _bytes(nbytes(message.sent))
    return f"{' and '.join(shapes) or 'no'} numbers, {size}; the algorithm uses {seen}"


def _settings(algorithm: Any) -> str:
    """All fields of an algorithm that a study can hold."""
    hints = fields.hints(type(algorithm))
    found = {name: getattr(algorithm, name) for name in hints}
    return _table({n: fields.write(v) for n, v in found.items() if fields.holds(hints[n], v)})


def _table(given: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in given.items())


def _value(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        rest = _table({key: each for key, each in value.items() if key != "name"})
        return f"{_cut(str(value['name']))} ({rest})" if rest else _cut(str(value["name"]))
    return _cut(value if isinstance(value, str) else fields.shown(value), 10 * _NAME)


def _columns(columns: Sequence[Column]) -> str:
    """Names, with values in their order, or the unit and range that were agreed."""
    shown = []
    for column in columns[:_COLUMNS]:
        values = [_cut(str(value)) for value in column.values[:_VALUES]]
        more = len(column.values) - len(values)
        values += [f"{more} more"] if more else []
        values += [_cut(column.range)] if column.range else []
        shown.append(_cut(column.name) + (f" ({', '.join(values)})" if values else ""))
    more = len(columns) - len(shown)
    return ", ".join(shown) + (f", and {more} more" if more else "")


def _percent(share: float) -> str:
    return f"{share:.4%}".rstrip("%").rstrip("0").rstrip(".") + " %"


def _share(count: float) -> str:
    """So many sites, or a share of them."""
    if isinstance(count, int):
        return f"{count} site{'' if count == 1 else 's'}"
    return "all sites" if count == 1 else f"{_percent(count)} of the sites"


def _cut(text: str, most: int = _NAME) -> str:
    """No longer than that: the rest of the review is not pushed out of the screen."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most} characters more)"


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def _wrapped(lines: Any, indent: int) -> Iterator[str]:
    """Lines of a screen; what goes on in the next one is indented."""
    for line in lines:
        head = clean(line)
        yield from textwrap.wrap(
            head, _WIDTH, subsequent_indent=" " * indent, drop_whitespace=True,
            break_on_hyphens=False,
        )  # fmt: skip
