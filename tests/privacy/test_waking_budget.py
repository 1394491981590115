# SPDX-License-Identifier: Apache-2.0
"""Parties that wake by clocks of their own: each has its budget, keeps it and then rests."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
import torch
from auditing import DELTA, FAR, Found, bound, claim, likelier, records
from test_canaries import halved, holds, is_found, silent, unclipped

import archipel as ar
from archipel.algorithms.coordinate import Coordinate
from archipel.engines.network.party_state import PartyState
from archipel.engines.schedule import woken
from archipel.errors import ArchipelError
from archipel.exchange.neighbours import Trial
from archipel.graphs import topology
from archipel.privacy import budgeted
from archipel.privacy.accounting import Laplace, Release, epsilon
from archipel.privacy.promise import Privacy
from problems import classification, linear, network

RING = topology("ring", 6)


def promised(**changes):
    given = {"noise": 4.0, "delta": 1e-3, "mechanism": "laplace", "neighbours": "replace"}
    return Privacy("record", **{**given, **changes})


def states(algorithm, promise, rounds, data=None, model=None, graph=RING, seed=0):
    """What parties keep after each round, and what was planned."""
    data = data or classification(6, 4, 3, 0)
    everybody, found = np.arange(data.training), []
    with ar.LocalEngine(
        algorithm, data, model or network(4, 3), plan=ar.Plan("stacked", 512, 1), privacy=promise,
        rounds=rounds, seed=seed, topology=graph,
    ) as engine:  # fmt: skip
        for t in range(rounds):
            engine.round(t, everybody)
            found.append(engine._memory.kept.own_of(everybody))
        return found, engine.kept


def test_a_party_wakes_as_often_as_it_may_and_keeps_its_last_model():
    rounds, most = 12, 3
    found, kept = states(Coordinate(), promised(wakes=most), rounds)
    woke = np.zeros(6, int)
    assert kept.rounds == most and kept.wakes
    for t, (before, after) in enumerate(pairwise(found), start=1):
        rested = woke_until(woke, t) >= most
        assert after.woke[:, 0].tolist() == np.minimum(woke_until(woke, t + 1), most).tolist()
        assert torch.equal(before.inner[rested], after.inner[rested])
    assert bool((found[-1].woke == most).all())


def woke_until(none, rounds):
    counts = none.copy()
    for t in range(rounds):
        np.add.at(counts, woken(0, t, np.arange(len(none))), 1)
    return counts


@dataclass(frozen=True)
class Alone:
    """One step by itself."""

    lr: float = 1.0
    local_steps: int = 1
    batch_size: int | None = None
    clock: ClassVar[str] = "wakes"

    def init(self, w):
        return w

    def told(self, w):
        return w

    def party(self, me, w):
        return me.descend(w, self).w


@pytest.mark.parametrize("algorithm", [Alone(), Coordinate(warm_rounds=20, smoothness=1.0)])
def test_a_party_that_goes_on_does_so_with_what_it_released(algorithm):
    """Steps of length 1 by itself: every later one repeats the mean of the first ones."""
    rounds, most = 16, 2
    found, _ = states(algorithm, promised(wakes=most, spent="propagate"), rounds)
    first = states(algorithm, promised(wakes=most), rounds)[0]
    start, last = network(4, 3).w, found[-1]
    mean = (start - first[-1].inner) / most  # of the gradients of those who rest then
    times = torch.from_numpy(woke_until(np.zeros(6, int), rounds)).double()[:, None]

    assert bool((last.woke == most).all())
    torch.testing.assert_close(last.mean, mean)
    torch.testing.assert_close(last.inner, start - times * mean)


def test_each_pays_for_its_own_wake_ups():
    data, model = classification(6, 4, 3, 0), network(4, 3)
    run = ar.simulate(
        Coordinate(), data, model, rounds=4, workers=1, topology="ring", privacy=promised(),
    )  # fmt: skip
    counts = np.minimum(woke_until(np.zeros(6, int), 4), 4)
    assert run.kept.rounds == 4  # as many as rounds, unless a number is given
    assert run.counted == {k: n for k, n in enumerate(counts.tolist()) if n}
    assert len(set(run.counted.values())) > 1
    for k, cost in run.kept.spent(run.counted).items():
        one = [Release(Laplace(4.0), None, int(counts[k]))]
        assert cost == epsilon(one, 1e-3, neighbours="replace") <= counts[k] * 2 / 4.0


class Twice(Alone):
    def party(self, me, w):
        return w - me.grad(w) - me.grad(w)


def test_two_wake_ups_in_one_round_have_noise_of_their_own():
    algorithm = Seen(slots=8)
    (first, *_), _ = states(algorithm, promised(clip=1e-9, wakes=8), 1, seed=1)
    often = np.bincount(woken(1, 0, np.arange(6)), minlength=6)
    assert often.max() > 1
    k = int(often.argmax())
    seen = first.inner.view(6, 8, -1)[k, : often[k]]
    assert len(torch.unique(seen[:, 0])) == often[k]


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        (ar.DSGD(0.1), {"wakes": 3}, "DSGD runs in rounds"),
        (ar.DSGD(0.1), {"spent": "propagate"}, "DSGD runs in rounds"),
        (Twice(), {"spent": "propagate"}, "other than one gradient"),
        (Coordinate(), {"wakes": 0}, "privacy.wakes = 0"),
        (
            Coordinate(),
            {"correlated": "tree", "mechanism": "gaussian"},
            "parties of Coordinate wake one by one",
        ),
    ],
)
def test_what_cannot_be_is_refused(algorithm, changes, said):
    data, model = classification(6, 4, 3, 0), network(4, 3)
    with pytest.raises(ArchipelError, match=said):
        ar.simulate(
            algorithm, data, model, rounds=2, workers=1, topology="ring",
            privacy=promised(**changes),
        )  # fmt: skip


def test_turns_that_others_give_are_refused():
    from archipel.algorithms.gossip import Gossip

    data, model = classification(6, 4, 3, 0), network(4, 3)
    with pytest.raises(ArchipelError, match="as many turns as others give"):
        ar.simulate(Gossip(), data, model, rounds=2, workers=1, topology="ring", privacy=promised())


@pytest.mark.parametrize("afterwards", ["rest", "propagate"])
def test_between_institutions_a_turn_is_charged_before_it_until_the_budget_is_spent(afterwards):
    charged, most = [], 2
    data, model = classification(1, 4, 3, 0), network(4, 3)
    party = PartyState(
        Coordinate(), data, model, party=0, rounds=5, edges=1, private=True,
        privacy=promised(wakes=most, spent=afterwards),
        charge=lambda t, kept, noise: charged.append((t, kept.charged(0, t), noise)),
    )  # fmt: skip
    others = Trial(model.w, 1, 0, model.dtype)
    models = [party.own.state.inner]
    for t in range(5):
        before = len(charged)
        own, *_ = party.awake(t, others)
        assert len(charged) - before == (t < most)
        assert (party.me.gradients > 0) == (t < most)  # of its records
        party.own = own
        models.append(own.state.inner)

    assert [each[:2] for each in charged] == [(t, [Release(Laplace(4.0))]) for t in range(most)]
    assert len({noise for *_, noise in charged}) == most
    assert own.state.woke.item() == most
    assert torch.equal(models[-1], models[most]) == (afterwards == "rest")


# -- attacks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Tells its last gradients, all that a neighbour who knows the rest could work out."""

    slots: int = 4
    clock: ClassVar[str] = "wakes"

    def init(self, w):
        return w.new_zeros(self.slots * w.shape[-1])

    def told(self, seen):
        return seen

    def party(self, me, seen):
        p = seen.shape[-1] // self.slots
        far = torch.zeros_like(seen[..., :p])
        far[..., 0] = FAR
        return torch.cat([me.grad(far), seen[..., :-p]], dim=-1)


def audit(mechanism="laplace", noise=2.5, most=4, parties=6000, clip=0.5):
    """Canaries that are in at every other party: those who woke as often as they may are judged."""
    promise = Privacy(
        "record", noise=noise, delta=DELTA, clip=clip, mechanism=mechanism, wakes=most
    )
    slots = 3 * most
    found, kept = states(
        Seen(slots), promise, 2 * most, records(parties), linear(2), topology("ring", parties)
    )
    seen = found[-1].inner.view(parties, slots, 2)[..., 0].T.numpy() * 4 / clip
    x = np.where(seen == 0, 0.5, seen)[:, None]  # slots that were not used say nothing
    scores = likelier(x, 1.0, noise, mechanism)
    done = found[-1].woke[:, 0].numpy() == most
    here, gone = scores[::2][done[::2]], scores[1::2][done[1::2]]
    return Found(bound(here, gone, DELTA), claim(kept, most, DELTA))


@pytest.mark.parametrize(("mechanism", "noise"), [("laplace", 2.5), ("gaussian", 1.4)])
def test_no_more_is_found_than_is_claimed(mechanism, noise):
    holds(audit(mechanism, noise))


@pytest.mark.parametrize("breaks", [silent, halved, unclipped])
def test_what_is_broken_is_found(breaks, monkeypatch):
    breaks(monkeypatch)
    is_found(audit())


def test_a_party_that_does_not_stop_is_found(monkeypatch):
    started = budgeted.Budgeted.__init__
    monkeypatch.setattr(
        budgeted.Budgeted,
        "__init__",
        lambda self, inner, noised, most, rest: started(self, inner, noised, 3 * most, rest),
    )
    promise = Privacy("record", noise=2.5, delta=DELTA, clip=0.5, mechanism="laplace", wakes=4)
    found, kept = states(Seen(12), promise, 12, records(6000), linear(2), topology("ring", 6000))
    seen = found[-1].inner.view(6000, 12, 2)[..., 0].T.numpy() * 4 / 0.5
    scores = likelier(np.where(seen == 0, 0.5, seen)[:, None], 1.0, 2.5, "laplace")
    is_found(Found(bound(scores[::2], scores[1::2], DELTA), claim(kept, 4, DELTA)))
