"""A site that poisons what it sends moves a real federation as far as the rule lets it."""

import asyncio
from dataclasses import dataclass

import torch

from archipel import rules
from archipel.adversaries import SignFlip
from archipel.aggregation.rule import InTurn
from archipel.engines.network.in_process import play
from archipel.wire.wire import Wire
from problems import classification, network

PARTIES, ROUNDS = 7, 3
DATA = classification(PARTIES, 4, 3, 0)


@dataclass(frozen=True)
class Poisoned:
    """FedAvg, whose party 2 runs other code than the study says: a site is its own master."""

    scale: float
    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        upload = me.descend(w, self).w - w
        if self.scale and int(me.number.flatten()[0]) == 2:
            upload = SignFlip(self.scale).sent(me, w, upload, w, 1.0)
        return upload, None

    def server(self, w, uploads):
        return w + uploads.mean()


def learnt(scale, rule=None):
    wire = None if rule is None else Wire(rule=rule)
    cohorts = [range(PARTIES)] * ROUNDS
    played = asyncio.run(
        asyncio.wait_for(play(Poisoned(scale), DATA, network(4, 3), cohorts, wire=wire), 60)
    )
    assert all(len(outcome.arrived) == PARTIES for outcome in played.outcomes)
    return played.engine.vector()


def test_a_site_that_poisons_is_bounded_by_the_rule():
    honest, start = learnt(0.0), network(4, 3).w
    way = (honest - start).norm()
    lost = learnt(1e4)

    assert (lost - honest).norm() > 100 * way
    for rule in (
        InTurn((rules.NNM(1), rules.TrimmedMean(1))), rules.Krum(1), rules.Median(),
        rules.GeometricMedian(), rules.NormBound(),
    ):  # fmt: skip
        kept = learnt(1e4, rule)
        assert (kept - honest).norm() < 5 * way, rule  # parties are unlike, and Krum takes one
        assert torch.isfinite(kept).all()
