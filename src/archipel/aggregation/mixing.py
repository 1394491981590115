# SPDX-License-Identifier: Apache-2.0
"""Rules between peers: what one makes of its neighbours' vectors, in place of their weighted mean.

A peer keeps to its rule whatever others send. A vector that is not finite has no say, and where
fewer came than the rule needs the peer keeps its own. Rules of rows (`rows`, as the server's) are
given the peer's own vector and its neighbours', each of which counts the same: the graph's weights
have no say. Others have `mixed` and know the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from archipel.aggregation.rule import InTurn
from archipel.core import Vector
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes
from archipel.graphs import Topology
from archipel.graphs.sampled import PeerSampling
from archipel.rules.rows import TooFew, finite, liars

_LOOKED_AT = 50  # rounds of a graph that changes, before the start


class MixingRule(Protocol):
    """What a peer gets of `me.mix`."""

    def mixed(self, mine: Vector, theirs: Tensor, weights: Tensor) -> Vector:
        """`[p], [d, p], [d] -> [p]`: of one's own vector, and of d neighbours' with W_ij."""


@dataclass(frozen=True)
class OfRows:
    """Rules of rows in turn, over a peer's own vector and its neighbours'; then their mean."""

    rules: tuple[Any, ...]

    def mixed(self, mine: Vector, theirs: Tensor, weights: Tensor) -> Vector:
        rows = torch.cat([mine[None], theirs])
        rules = [_counted(rule, len(rows)) for rule in self.rules]
        for rule in rules:
            rows = rule.rows(rows)
        return rows[0] if len(rows) == 1 else rows.mean(dim=0)


def _counted(rule: Any, m: int) -> Any:
    """The rule for so many rows, where a share that may lie is one of them at the least."""
    if not any(field.name == "f" for field in fields(rule)) or not isinstance(rule.f, float):
        return rule
    return replace(rule, f=max(1, liars(rule, rule.f, m)) if rule.f else 0)


def mixed(rule: MixingRule, mine: Vector, theirs: Tensor, weights: Tensor) -> Vector:
    """`[p], [d, p], [d] -> [p]`: the rule's, whatever came; one's own where too few did."""
    if len(theirs):
        there = finite(theirs) & finite(theirs - mine)
        theirs, weights = theirs[there], weights[there]
    if not len(theirs):
        return mine
    try:
        return rule.mixed(mine, theirs, weights)
    except TooFew:
        return mine


def of_neighbours(
    rule: MixingRule | None, x: Vector, got: Mapping[int, Tensor], weights: Mapping[int, float]
) -> Vector:
    """`me.mix` of one peer: the rule's of what these neighbours sent, or sum_j W_ij x_j."""
    if rule is None:
        total = x * (1 - sum(weights[j] for j in got))
        for j in sorted(got):
            total = total + weights[j] * got[j]
        return total
    theirs = torch.stack([got[j] for j in sorted(got)]) if got else x.new_zeros(0, len(x))
    shares = torch.tensor([weights[j] for j in sorted(got)], dtype=torch.float64)
    return mixed(rule, x.detach(), theirs, shares)


def mixing_rule(rule: Any, boxes: Boxes, topology: Topology | None) -> MixingRule | None:
    """A study's rule as peers use it; refuse what is none, or has too few neighbours."""
    if rule is None:
        return None
    rules: tuple[Any, ...] = rule.rules if isinstance(rule, InTurn) else (rule,)
    _check_algorithm(boxes, rules, topology)
    if len(rules) == 1 and hasattr(rules[0], "mixed"):
        found: MixingRule = rules[0]
    else:
        found = OfRows(rules)
        for each in rules:
            if not getattr(each, "between_peers", False):
                raise ArchipelError(_unfit(each, boxes))
    if topology is not None:
        _check_degrees(found, topology)
    return found


def _check_algorithm(boxes: Boxes, rules: Sequence[Any], topology: Topology | None) -> None:
    name = type(rules[0]).__name__
    if getattr(boxes.algorithm, "tracks_mean", False):
        raise ArchipelError(
            f"round.rule: {name} changes the sum over peers, which {boxes.name} has to keep (its "
            "W is doubly stochastic): leave the rule out, or take dsgd."
        )
    if isinstance(topology, PeerSampling):
        raise ArchipelError(
            f"round.rule: {name} needs a graph that nobody who lies can change, and in "
            f"topology.name = {topology.name!r} peers tell each other who there is: take one that "
            "is fixed, such as random_regular."
        )


def _unfit(rule: Any, boxes: Boxes) -> str:
    name = type(rule).__name__
    if hasattr(rule, "mixed"):
        return f"round.rule: {name} is a rule by itself between peers: name no other beside it."
    return (
        f"round.rule: {name} is for uploads, which are changes of a model, and {boxes.name} has "
        "peers that send models: take clipped_gossip, nnm or trimmed_mean."
    )


def _check_degrees(rule: MixingRule, topology: Topology) -> None:
    """Refuse a rule that needs more neighbours than somebody has."""
    rounds = range(min(topology.period or _LOOKED_AT, _LOOKED_AT))
    found = {around for t in rounds for around in _weights(topology, t)}
    for around in sorted(found, key=len):
        zeros, weights = torch.zeros(len(around), 1), torch.tensor(around, dtype=torch.float64)
        try:
            if around:
                rule.mixed(torch.zeros(1), zeros, weights)
        except TooFew as few:
            raise ArchipelError(
                f"{few.needs}, one's own among them, and somebody has {len(around) + 1} in "
                f"topology.name = {topology.name!r}: take a graph with more neighbours, or let "
                "fewer of them lie."
            ) from None


def _weights(topology: Topology, t: int) -> Iterator[tuple[float, ...]]:
    """W_ij of each party's neighbours."""
    W = topology.sparse(t)
    for i in range(topology.n):
        part = slice(W.indptr[i], W.indptr[i + 1])
        around = W.data[part][(W.indices[part] != i) & (W.data[part] > 0)]
        yield tuple(np.sort(around.round(12)).tolist())
