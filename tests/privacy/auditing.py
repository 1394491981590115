# SPDX-License-Identifier: Apache-2.0
"""Attacks on our own privacy: what they find is a lower bound on epsilon.

A canary is a record (or a party) whose clipped gradient (or upload) is known to the adversary: C in
a direction of its own. The adversary sees what leaves, and says for each canary whether it is
there. How often it is right bounds epsilon from below: for every test, TPR <= e^eps FPR + delta.

Many canaries share a run. By record, each party has one, and noise and samples are each party's
own; by party, each has a coordinate of its own in a model of as many, and Gaussian noise is
independent over coordinates. Canaries are then as many independent runs; where a cohort has a fixed
size, one that is in makes others less likely in, which makes counts vary less.

Jagielski, Ullman, Oprea, NeurIPS 2020, https://arxiv.org/abs/2006.07709 (the bound); Nasr et al.,
IEEE S&P 2021, https://arxiv.org/abs/2101.04535 (adversaries who see all that DP-SGD lets out);
Steinke, Nasr, Jagielski, NeurIPS 2023, https://arxiv.org/abs/2305.08846 (many canaries in a run).
Departures: a threshold is chosen on a third of the canaries and judged on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

import archipel as ar
from archipel.aggregation.secure import SecureSum
from archipel.core import Party, Uploads, Vector
from archipel.exchange.sender import Sender
from archipel.privacy import noisy_sum
from archipel.privacy.promise import Kept, Noise, Privacy
from archipel.privacy.sources import Simulated
from archipel.wire.integers import decode
from archipel.wire.wire import Wire
from problems import linear

Floats = NDArray[np.float64]
ALPHA = 1e-4  # chance that a bound is above what holds
FAR = 1e6  # a point at which the canary's gradient is clipped
DELTA = 0.1  # at a small one few canaries say little; accountants claim an epsilon for each


class Found(NamedTuple):
    """What an audit says."""

    bound: float  # on epsilon, from below
    claimed: float


# -- from scores to a bound ------------------------------------------------------------------------


def bound(inside: Floats, outside: Floats, delta: float, alpha: float = ALPHA) -> float:
    """The least epsilon with which such scores of canaries that are in, and out, go together.

    One test says "in" above a threshold, the other "out" below one. Which, and where, is chosen on
    one third of the canaries.
    """
    best = _Test(0.0, 1, -np.inf)
    for way, hits, alarms in ((1, inside, outside), (-1, -outside, -inside)):
        tried = np.quantile(np.concatenate([hits[::3], alarms[::3]]), np.linspace(0, 1, 401))
        found = _epsilon(hits[::3], alarms[::3], tried, delta, alpha)
        at = int(found.argmax())
        best = max(best, _Test(float(tried[at]), way, float(found[at])), key=lambda t: t.found)
    pair = (inside, outside) if best.way == 1 else (-outside, -inside)
    hits, alarms = (each[np.arange(len(each)) % 3 > 0] for each in pair)
    return max(0.0, float(_epsilon(hits, alarms, np.array([best.above]), delta, alpha)[0]))


class _Test(NamedTuple):
    above: float
    way: int
    found: float


def _epsilon(hits: Floats, alarms: Floats, above: Floats, delta: float, alpha: float) -> Floats:
    """The bound of each test, from Clopper and Pearson's on how often it is right and wrong."""
    right, wrong = (len(x) - np.searchsorted(np.sort(x), above, "right") for x in (hits, alarms))
    low = np.nan_to_num(stats.beta.ppf(alpha / 2, right, len(hits) - right + 1))  # 0 of 0
    high = np.nan_to_num(stats.beta.isf(alpha / 2, wrong + 1, len(alarms) - wrong), nan=1.0)
    found: Floats = np.log(np.maximum(low - delta, 1e-300) / high)
    return found


def likelier(x: Floats, rate: float, noise: float, mechanism: Noise = "gaussian") -> Floats:
    """Log-likelihood of being in, against out, `[m]`; of `[samples, gradients, m]`.

    Each gradient of one sample is 1 with chance `rate`, all or none, plus its noise; out, it is 0.
    """
    if mechanism == "laplace":
        gained = (np.abs(x) - np.abs(x - 1)).sum(axis=1) / noise
    else:
        gained = (2 * x.sum(axis=1) - x.shape[1]) / (2 * noise**2)
    total: Floats = np.logaddexp(np.log1p(-min(rate, 1 - 1e-12)), np.log(rate) + gained).sum(axis=0)
    return total


# -- by record -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """Asks for gradients where the canary's is C, or -C in turns, and sends them all.

    In turns, so that noise which is used again would cancel.
    """

    batches: int = 1
    gradients: int = 1  # on each
    batch_size: int | float | None = None
    seen: list[Tensor] = field(default_factory=list, compare=False)  # [gradients, m, p] a round

    def init(self, w: Vector) -> tuple[Vector, None]:
        return w, None

    def party(self, me: Party, w: Vector, _: None) -> tuple[tuple[Vector, ...], None]:
        found = list[Vector]()
        far = torch.zeros_like(w)
        far[..., 0] = FAR
        for _drawn in range(self.batches):
            batch = me.batch(self.batch_size)
            for _asked in range(self.gradients):
                sign = (-1) ** (me.round + len(found))
                found.append(sign * me.grad(w + sign * far, batch))
        return tuple(found), None

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        self.seen.append(torch.stack(list(uploads.stack())))
        return w


@dataclass(frozen=True)
class SeenFedAvg(ar.FedAvg):
    """FedAvg whose server keeps what it sees."""

    seen: list[Tensor] = field(default_factory=list, compare=False)

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        self.seen.append(uploads.stack())
        return super().server(w, uploads)


@dataclass(frozen=True)
class SeenPFedMe(ar.PFedMe):
    """pFedMe whose server keeps what it sees: several gradients on each batch."""

    seen: list[Tensor] = field(default_factory=list, compare=False)

    def server(self, w: Vector, uploads: Uploads) -> Vector:
        self.seen.append(uploads.stack())
        return super().server(w, uploads)


def records(parties: int, n: int = 4, y: float = 0.0) -> ar.Federation:
    """Parties of n records, of which the first is a canary at every other one, and else nothing.

    The canary's gradient is 2 (w_0 - y) e_0; the gradients of others lie in a plane without e_0.
    """
    random = np.random.default_rng(0)
    x, target = torch.zeros(parties, n, 2).double(), torch.zeros(parties, n).double()
    x[:, 1:, 1] = 1.0
    target[:, 1:] = torch.from_numpy(random.standard_normal((parties, n - 1)))
    x[::2, 0, 0], target[::2, 0] = 1.0, y
    return ar.Federation.from_arrays(list(x), list(target), test=0.0)


def claim(kept: Kept, rounds: int, delta: float) -> float:
    """The epsilon that is claimed at a delta, also one that no study of so many may promise."""
    told = replace(kept, promise=replace(kept.promise, delta=delta))
    return told.spent({0: rounds})[0]


def seen_by(
    algorithm: Any,
    data: ar.Federation,
    promise: Privacy,
    rounds: int,
    workers: int,
    seed: int,
    delta: float,
) -> tuple[Tensor, float]:
    """All that a server sees of each party, a row for each round, and the epsilon claimed."""
    plan = ar.Plan("stacked", 512, workers)
    with ar.LocalEngine(
        algorithm, data, linear(2), plan=plan, privacy=promise, rounds=rounds, seed=seed
    ) as engine:
        algorithm.seen.clear()  # of what was tried before
        for t in range(rounds):
            engine.round(t, range(data.training))
        assert engine.kept is not None
        return torch.stack(algorithm.seen), claim(engine.kept, rounds, delta)


def of_records(
    asking: Asking,
    noise: float,
    rounds: int = 1,
    parties: int = 6000,
    delta: float = DELTA,
    clip: float = 0.5,
    workers: int = 1,
    seed: int = 0,
    mechanism: Noise = "gaussian",
) -> Found:
    """Audit DP-SGD with the best test there is, of an adversary who sees every gradient."""
    data = records(parties)
    promise = Privacy("record", noise=noise, delta=delta, clip=clip, mechanism=mechanism)
    seen, claimed = seen_by(asking, data, promise, rounds, workers, seed, delta)
    q = rate_of(asking.batch_size, 4)
    x = seen[..., 0].numpy() * q * 4 / clip  # [rounds, gradients, parties]
    scores = likelier(x.reshape(-1, asking.gradients, parties), q, noise, mechanism)
    return Found(bound(scores[::2], scores[1::2], delta), claimed)


def of_training(
    algorithm: Any, noise: float, rounds: int, parties: int = 6000, delta: float = DELTA
) -> Found:
    """Audit what an algorithm sends, by how far it moved towards the canary."""
    promise = Privacy("record", noise=noise, delta=delta, clip=0.5)
    seen, claimed = seen_by(algorithm, records(parties, y=FAR), promise, rounds, 1, 0, delta)
    scores = seen[..., 0].sum(dim=0).numpy()
    return Found(bound(scores[::2], scores[1::2], delta), claimed)


def rate_of(size: int | float | None, n: int) -> float:
    """The chance of a record to be in a batch."""
    return 1.0 if size is None else size if isinstance(size, float) else size / n


# -- by party --------------------------------------------------------------------------------------


def of_uploads(
    noise: float, rounds: int, parties: int = 6000, delta: float = DELTA, clip: float = 0.5
) -> Found:
    """Audit noise that each party adds for itself: a party's data is replaced by the opposite."""
    x = torch.tensor([[1.0, 0.0]]).double()
    ys = [torch.tensor([FAR if k % 2 == 0 else -FAR]).double() for k in range(parties)]
    data = ar.Federation.from_arrays([x] * parties, ys, test=0.0)
    promise = Privacy("party", noise=noise, clip=clip, trust="nobody")
    algorithm = SeenFedAvg(1.0, batch_size=None)
    seen, claimed = seen_by(algorithm, data, promise, rounds, 1, 0, delta)
    scores = seen[..., 0].sum(dim=0).numpy()
    return Found(bound(scores[::2], scores[1::2], delta), claimed)


def of_models(
    noise: float,
    rounds: int,
    sample: int,
    among: int = 800,
    attacked: int | None = None,
    seeds: Sequence[int] = range(4),
    delta: float = DELTA,
    clip: float = 0.5,
) -> Found:
    """Audit noise in the sum: the model after every round, and who was in it is drawn.

    Party k moves coordinate k alone, up or down. The first parties are attacked.
    """
    ups: list[Floats] = []
    downs: list[Floats] = []
    claimed = 0.0
    first = among if attacked is None else attacked
    for seed in seeds:
        sign = np.random.default_rng(seed).permutation(np.arange(among) % 2 == 0)
        ys = [torch.tensor([FAR if up else -FAR]).double() for up in sign]
        eye = torch.eye(among).double()
        data = ar.Federation.from_arrays(list(eye[:, None]), ys, test=0.0)
        models = [torch.zeros(among).double()]
        run = ar.simulate(
            ar.FedAvg(1.0, batch_size=None), data, linear(among), rounds=rounds, sample=sample,
            workers=1, plan=ar.Plan("stacked", 256, 1), seed=seed,
            privacy=Privacy("party", noise=noise, clip=clip),
            on_round=lambda run, models=models: models.append(run.vector.clone()),
        )  # fmt: skip
        x = torch.stack(models).diff(dim=0).numpy() * sample / clip  # [rounds, among]
        q = sample / among
        scores = (_mixture(x, q, noise) - _mixture(-x, q, noise)).sum(axis=0)[:first]
        ups.append(scores[sign[:first]])
        downs.append(scores[~sign[:first]])
        assert run.kept is not None
        claimed = claim(run.kept, rounds, delta)
    return Found(bound(np.concatenate(ups), np.concatenate(downs), delta), claimed)


def of_rounds(
    noise: float, sample: int, among: int, rounds: int, delta: float = DELTA, clip: float = 0.5
) -> Found:
    """Audit single rounds: all pull one way; or the first pulls the other way, when it is in.

    The model's step then has one place where it is out, and one two clips apart where it is in.
    """
    scores, claimed = list[Floats](), 0.0
    for canary in (FAR, -FAR):
        ys = [torch.tensor([canary if k == 0 else -FAR]).double() for k in range(among)]
        x = torch.ones(1, 1).double()
        data = ar.Federation.from_arrays([x] * among, ys, test=0.0)
        models = [torch.zeros(1).double()]
        run = ar.simulate(
            ar.FedAvg(1.0, batch_size=None), data, linear(1), rounds=rounds, sample=sample,
            workers=1, plan=ar.Plan("stacked", 256, 1), seed=int(canary > 0),
            privacy=Privacy("party", noise=noise, clip=clip),
            on_round=lambda run, models=models: models.append(run.vector.clone()),
        )  # fmt: skip
        scores.append(torch.stack(models).diff(dim=0)[:, 0].numpy())
        assert run.kept is not None
        claimed = claim(run.kept, 1, delta)
    return Found(bound(scores[0], scores[1], delta), claimed)


def _mixture(x: Floats, rate: float, noise: float) -> Floats:
    """Log-likelihood of 1 with chance `rate`, else 0, plus noise; up to what all have."""
    found: Floats = np.logaddexp(
        np.log1p(-min(rate, 1 - 1e-12)), np.log(rate) + (2 * x - 1) / (2 * noise**2)
    )
    return found


def of_sums(
    noise: float,
    rounds: int,
    honest: int,
    shares: Any = "gaussian",
    bits: int = 32,
    among: int = 400,
    seeds: Sequence[int] = range(8),
    delta: float = DELTA,
    clip: float = 0.5,
) -> Found:
    """Audit noise in shares: the adversary subtracts those of all but `honest` parties.

    Party k moves coordinate k alone, up or down.
    """
    ups: list[Floats] = []
    downs: list[Floats] = []
    claimed = 0.0
    for seed in seeds:
        up = np.random.default_rng(seed).permutation(np.arange(among) % 2 == 0)
        ys = [torch.tensor([FAR if each else -FAR]).double() for each in up]
        eye = torch.eye(among).double()
        data = ar.Federation.from_arrays(list(eye[:, None]), ys, test=0.0)
        promise = Privacy(
            "party", noise=noise, clip=clip, trust="sum", honest=honest, shares=shares, bits=bits
        )
        with ar.LocalEngine(
            ar.FedAvg(1.0, batch_size=None), data, linear(among),
            plan=ar.Plan("stacked", 256, 1), privacy=promise, rounds=rounds, seed=seed,
            wire=Wire(sum=SecureSum(colluding=0.0)),
        ) as engine:  # fmt: skip
            models = [engine.vector().clone()]
            for t in range(rounds):
                engine.round(t, range(among))
                models.append(engine.vector().clone())
            kept = engine.kept
        assert kept is not None
        (share,) = (use.share for use in kept.uses[0])
        assert share is not None
        x = torch.stack(models).diff(dim=0).double() * among
        for t in range(rounds):
            known = noisy_sum.drawn(
                share, noise, Simulated(seed, t, range(honest, among), "share 0")
            ).sum(axis=0)
            them = Sender(seed, t, 0, np.array([-1]))
            code = replace(share.encoding(noise), bits=60)  # it is not sent, and wraps nowhere
            x[t] -= decode(code, them, torch.from_numpy(known))
        scores = x.sum(dim=0).numpy()[:honest] / clip
        ups.append(scores[up[:honest]])
        downs.append(scores[~up[:honest]])
        claimed = claim(kept, rounds, delta)
    return Found(bound(np.concatenate(ups), np.concatenate(downs), delta), claimed)
