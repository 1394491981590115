# SPDX-License-Identifier: Apache-2.0
"""What an audit found: for each adversary what it sees, and how well each attack did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from archipel.attacks.case import Family
from archipel.audit.adversaries import Adversary
from archipel.audit.judging import Curve, Interval
from archipel.plain import plain


@dataclass(frozen=True)
class Finding:
    """How well one attack did for one adversary."""

    name: str
    family: Family
    measure: str  # what the score is, in words
    score: float | None  # None where the attack does not apply
    interval: Interval | None = None  # 95 %
    chance: float | None = None  # what guessing gives
    ceiling: float | None = None  # what the study's ε allows, where its promise holds
    within: bool | None = None  # whether the score is under it, by its interval
    said: str = ""  # one sentence more, or why it does not apply
    details: dict[str, Any] = field(default_factory=dict)  # further numbers

    @property
    def alarming(self) -> bool:
        """Whether it did better than guessing, as far as the interval tells."""
        if self.score is None or self.interval is None or self.chance is None:
            return False
        return self.interval[0] > self.chance

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "family": self.family, "measure": self.measure,
            "score": self.score, "interval": self.interval, "chance": self.chance,
            "ceiling": self.ceiling, "within": self.within, "said": self.said, **self.details,
        }  # fmt: skip


@dataclass(frozen=True)
class Learnt:
    """What an adversary could learn."""

    adversary: Adversary
    findings: Sequence[Finding]

    def to_json(self) -> dict[str, Any]:
        who = self.adversary
        return {
            "who": who.who, "title": who.title, "there": who.there, "sees": who.sees,
            "has": sorted(who.has), "bounded": who.bounded,
            "attacks": [each.to_json() for each in self.findings],
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Picture:
    """Records beside what an attack made of them."""

    attack: str
    true: Tensor  # [r, *shape]
    made: Tensor  # [r, *shape]
    peak: Sequence[float]  # dB
    distance: Sequence[float]  # in standard deviations

    def joined(self, other: Picture) -> Picture:
        """Both together."""
        return Picture(
            self.attack, torch.cat([self.true, other.true]), torch.cat([self.made, other.made]),
            [*self.peak, *other.peak], [*self.distance, *other.distance],
        )  # fmt: skip


@dataclass(frozen=True)
class Audit:
    """All that was found, with what the page draws."""

    study: str
    hash: str
    quick: bool
    worlds: int
    records: int  # that were asked about
    seconds: float
    epsilon: float | None
    delta: float | None
    guarantee: str
    learnt: Sequence[Learnt]
    curves: dict[str, Curve] = field(default_factory=dict)  # of attacks on membership, by words
    by_round: dict[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()  # names of the features, where they have some
    sentence: str = ""

    @property
    def worst(self) -> tuple[Learnt, Finding] | None:
        """The attack that did best, over what guessing gives."""
        all_of = [
            (learnt, finding)
            for learnt in self.learnt
            for finding in learnt.findings
            if finding.score is not None and finding.alarming
        ]
        return max(all_of, key=lambda each: excess(each[1]), default=None)

    def to_json(self) -> dict[str, Any]:
        document = {
            "study": self.study, "hash": self.hash, "quick": self.quick, "worlds": self.worlds,
            "records": self.records, "seconds": self.seconds, "epsilon": self.epsilon,
            "delta": self.delta, "guarantee": self.guarantee, "sentence": self.sentence,
            "adversaries": [each.to_json() for each in self.learnt],
            "by_round": self.by_round, "notes": list(self.notes),
        }  # fmt: skip
        found: dict[str, Any] = plain(document)
        return found


_WEIGHTS = {"property": 0.5, "differencing": 0.2}  # records harm people most
_LESSER = {"labels": 0.3, "tokens": 0.6}


def excess(finding: Finding) -> float:
    """How much better than guessing, 1 where everything is found; less where it tells less."""
    assert finding.score is not None
    chance, weight = finding.chance or 0.0, _WEIGHTS.get(finding.family, 1.0)
    weight *= _LESSER.get(finding.name, 1.0)
    return weight * (finding.score - chance) / max(1e-9, 1 - chance)
