# SPDX-License-Identifier: Apache-2.0
"""Attacks on properties: first rounds in which most of a party's records have something in common.

The property is a column of the table with two values, or, where records have no such column, a
class. The party that is attacked is the largest, and the adversary has the records of the next one,
which are not quite alike. In each trial one of the two trains on a draw of its own records of which
a fifth or four fifths have the property, as many in both. All others train on what is theirs, so
the adversary is one that knows these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel import rng
from archipel.audit.adversaries import Adversary
from archipel.audit.findings import Finding
from archipel.audit.judging import area_interval, curve
from archipel.audit.letters import is_mean
from archipel.audit.subject import Subject
from archipel.audit.work import Promised, Work
from archipel.data.federation import Federation
from archipel.privacy.meaning import found_at_most
from archipel.tree import leaves

_SHARE = 0.8  # of the records that have the property, or of those that do not
_FEWEST = 8  # records of the rarer value at either party
_NUMBERS = 50_000  # of an upload that are looked at, at most
_MEASURE = "how often a party with the property is ranked above one without"


class Trait(NamedTuple):
    """Something that some of a party's records have."""

    said: str
    party: int  # that is attacked
    other: int  # whose records the adversary has
    has: NDArray[np.bool_]  # [N] of all rows


def property_of(work: Work, name: str, attack: Any, who: Adversary, promise: Promised) -> Finding:
    """How well the property is told from what this adversary sees of a first round."""
    single = "single" in who.has
    if not single and "mean" not in who.has and not is_mean(work.first[1]):
        said = "does not apply: the models of two rounds do not tell the mean of the uploads."
        return Finding(name, "property", _MEASURE, None, said=said)
    trait = trait_of(work.subject)
    if trait is None:
        said = "does not apply: no column has two values that are common enough."
        return Finding(name, "property", _MEASURE, None, said=said)
    if "trials" not in work.results:
        work.results["trials"] = _trials(work, trait)
    seen, truth, test = work.results["trials"]
    uploads: Tensor | None = seen["single" if single else "mean"]
    if uploads is None:
        said = "does not apply: no message has the form of a gradient."
        return Finding(name, "property", _MEASURE, None, said=said)
    key = (name, single)
    if key not in work.results:
        work.results[key] = attack().scores(uploads[~test], truth[~test], uploads[test])
    area = curve(work.results[key], truth[test]).area
    members = int(truth[test].sum())
    interval = area_interval(area, members, int(test.sum()) - members)
    ceiling = within = None
    unit = None if work.subject.study.promise is None else work.subject.study.promise.unit
    if promise is not None and who.bounded and unit == "party":
        at = np.linspace(1e-4, 1 - 1e-4, 400)
        ceiling = float(np.mean([found_at_most(*promise, float(f)) for f in at]))
        within = interval[0] <= ceiling
    return Finding(
        name, "property", _MEASURE, area, interval, 0.5, ceiling, within,
        f"the property: {trait.said}; party {work.subject.data.name(trait.party)}",
        {"property": trait.said, "auc": area, "trials": int(test.sum())},
    )  # fmt: skip


def trait_of(subject: Subject) -> Trait | None:
    """The column with two values that are the most evenly spread, at the two largest parties."""
    data = subject.data
    if data.training < 2:
        return None
    k, other = data.n[: data.training].argsort(descending=True)[:2].tolist()
    x, party = data.x, data.row_party
    candidates: list[tuple[str, NDArray[np.bool_]]] = []
    if x.dim() == 2 and x.is_floating_point():
        for column in range(x.shape[1]):
            values = x[:, column]
            if len(values.unique()) == 2:
                name = data.columns[column] if data.columns else f"feature {column + 1}"
                candidates.append((name, (values == values.max()).numpy()))
    elif data.y.dim() == 1 and data.classes:
        candidates = [(f"class {c}", (data.y == c).numpy()) for c in range(data.classes)]

    def rarer(has: NDArray[np.bool_]) -> int:
        """Of the rarer value, at the party that has the fewest of it."""
        mine = [has[party == each] for each in (k, other)]
        return min(min(int(each.sum()), int((~each).sum())) for each in mine)

    def worth(has: NDArray[np.bool_]) -> float:
        """The more even and the less it goes with the label, the better."""
        y = data.y.double().numpy() if data.y.dim() == 1 and x.dim() == 2 else None
        along = 0.0 if y is None or y.std() == 0 else abs(float(np.corrcoef(has, y)[0, 1]))
        return rarer(has) * (1 - along) ** 2

    name, has = max(candidates, key=lambda each: worth(each[1]), default=("", party == k))
    return Trait(name, k, other, has) if name and rarer(has) >= _FEWEST else None


def _trials(work: Work, trait: Trait) -> tuple[dict[str, Tensor | None], Tensor, Tensor]:
    """Uploads of trials, whether each has the property, and which are to be told."""
    subject, size = work.subject, work.size.trials
    party = subject.data.row_party
    draws = rng.generator(subject.study.study.seed, 0, "property")
    counts = [
        int((party[trait.has == value] == who).sum())
        for value in (True, False)
        for who in (trait.party, trait.other)
    ]
    found: dict[str, list[Tensor]] = {"single": [], "mean": []}
    truth, test = [], []
    for number in range(4 * size):
        has, told = number % 2 == 0, number >= 2 * size
        work.say(f"property '{trait.said}': trial {number + 1} of {4 * size}")
        who = trait.party if told else trait.other
        fed = _drawn(subject, party == who, trait.has == has, min(counts), draws)
        seed = rng.key(subject.study.study.seed, number, "property") >> 2
        _, recorder = subject.run(frozenset({0}), seed, fed, until=1)
        seen = next(iter(recorder.rounds.values()), None)
        if seen is None:
            continue
        upload = (seen.arrived or seen.left).get(who)
        for name, tree in (("single", upload), ("mean", seen.mean)):
            if tree is not None:
                flat = torch.cat([leaf.flatten() for leaf in leaves(tree)])[:_NUMBERS]
                found[name].append(flat / flat.norm().clamp(min=1e-30))
        truth.append(has)
        test.append(told)
    stacked = {
        name: torch.stack(each) if len(each) == len(truth) else None for name, each in found.items()
    }
    return stacked, torch.tensor(truth), torch.tensor(test)


def _drawn(
    subject: Subject,
    own: NDArray[np.bool_],
    has: NDArray[np.bool_],
    most: int,
    draws: np.random.Generator,
) -> Federation:
    """The federation in which most of the records that a party trains on have something."""
    data = subject.data
    member = np.arange(data.points) < data.test_from.numpy()[data.row_party]
    member[own] = False
    n = int(most / _SHARE)
    many = min(most, round(_SHARE * n))
    for pool, count in ((own & has, many), (own & ~has, n - many)):
        member[draws.choice(np.flatnonzero(pool), count, replace=False)] = True
    return data.with_training(member)[0]
