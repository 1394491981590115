# SPDX-License-Identifier: Apache-2.0
"""What PeFLL's two theorems say of actual runs, with the constants of these runs, measured.

The run is that of PeFLL's acceptance (section 4g): MNIST-10k, two labels a party, softmax
regression. Beside it runs of the method that the convergence theorem speaks of, plain SGD at
parties and server, each with one more cause of error taken away.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import archipel as ar
from archipel import bounds
from archipel.algorithms.pefll import PeFLL, Scale, Shared
from archipel.bounds import Constants, Convergence, Generalisation
from archipel.core import Each, Examples, Party, Uploads, Vector
from archipel.engines.party import LocalParty
from archipel.models.model import Points, Way
from archipel.models.networks import Embedding, pull_back
from archipel.models.stacked import Stacked

sys.path.insert(0, str(Path(__file__).parents[1]))
from acceptance import softmax_regression, two_labels
from reporting import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, SKY, gates, table

FOLDER = Path(__file__).parent
PLAN = ar.Plan("stacked", 20, 1)
FEW = 3  # Jacobians are looked at for every so many parties
ROWS = 9  # parties whose gradients by all weights are made at a time
DISTANCE = 1e-2  # of the differences from which curvature is measured: single precision


class Size(NamedTuple):
    """How much is done."""

    parties: int
    new: int
    hidden: int
    rounds: int
    kept: tuple[int, ...]  # rounds at which all constants are measured
    closely: int  # the gradient is looked at in each of the first rounds
    every: int  # and then every so many
    batches: int  # drawn for each variance
    noises: int  # every so many of NOISES is tried
    tries: int  # draws of each
    draws: int  # of the one chosen

    @property
    def looked(self) -> dict[int, int]:
        """Rounds whose gradient is looked at, and how many each stands for."""
        at = [t for t in range(self.rounds) if t < self.closely or t % self.every == 0]
        return {t: after - t for t, after in zip(at, [*at[1:], self.rounds], strict=True)}


WHOLE = Size(45, 5, 100, 300, (0, 10, 50, 300), 40, 5, 6, 1, 4, 120)
QUICK = Size(6, 2, 10, 6, (0, 6), 2, 2, 2, 11, 2, 4)
SAMPLED, LOCAL_STEPS, BATCH = 5, 50, 32
STEP = 0.5  # of the plain runs, in parts of 1 / L as PeFLL's run shows it
DELTA = 0.05
FOR_DRAWS = 0.01  # of DELTA: the training error is known from draws of the noise alone
BEARABLE = 0.1  # training error up to which noise leaves the models of use


# -- the objective -----------------------------------------------------------------------------


class State(NamedTuple):
    """What the objective depends on, after a round."""

    eta: Vector  # both networks: the embedding first
    scale: Scale


@dataclass(frozen=True)
class Composed:
    """F(eta), the mean over parties of f_i(theta_i(eta)) + decay |theta_i|^2 / 2, and its parts."""

    algorithm: PeFLL
    fed: ar.Federation
    model: ar.Model
    ids: tuple[int, ...]  # the parties
    seed: int = 0

    def me(self, t: int = 0) -> LocalParty:
        """The parties; another t has other batches."""
        ids, way = np.array(self.ids), self._way
        return LocalParty(self.fed, self.model, way, ids, self.seed, t, (len(ids),), separable=True)

    @cached_property
    def _way(self) -> Way:
        return Stacked.of(self.model) or self.model.one

    @cached_property
    def phi(self) -> Embedding:
        return Embedding.of(self.algorithm.embedding, self.me().blueprint, self.algorithm.size)

    @cached_property
    def points(self) -> Examples:
        """All of the parties' training points."""
        return self.me().examples()

    @cached_property
    def sizes(self) -> Tensor:
        return self.me().n[:, 0]

    @property
    def decay(self) -> float:
        return float(self.algorithm.optimiser.weight_decay)  # type: ignore[attr-defined]

    def descriptors(self, eta: Vector, points: Examples) -> Tensor:
        """`[m, e]`, of networks `[p]`, or `[m, p]` with one copy for each party."""
        eta_v = eta[..., : self.phi.spec.size]
        return self.phi(eta_v.expand(len(points.y), -1), points)

    def models(self, state: State, points: Examples) -> Tensor:
        """theta_i `[m, p]`, the scale of the embeddings being a constant."""
        eta, scale = state
        v, eta_h = self.descriptors(eta, points), eta[..., self.phi.spec.size :]
        if eta.dim() == 1:
            return self.algorithm._models(eta_h, v, scale, self.model.p)
        return self.algorithm._models(eta_h, v.unsqueeze(-2), scale, self.model.p).squeeze(-2)

    def slopes(self, theta: Tensor, points: Examples | None = None) -> Tensor:
        """Gradients of the parties' losses by their models, on all points unless given."""
        x, y, weights = points or self.points
        lengths = (weights > 0).sum(dim=1).numpy()
        return self._way.grad(theta, Points(x, y, weights, lengths)) + self.decay * theta

    def loss(self, state: State) -> float:
        theta = self.models(state, self.points)
        own = self.me().loss(theta)[:, 0] + self.decay / 2 * theta.square().sum(dim=-1)
        return float(own.mean())

    def gradient(self, state: State) -> Vector:
        eta = state.eta.detach().requires_grad_()
        theta = self.models(state._replace(eta=eta), self.points)
        return pull_back(theta, (eta,), self.slopes(theta.detach()) / len(theta))[0]

    def pulled(self, state: State, points: Examples, d: Tensor) -> Iterator[Tensor]:
        """J_i^T d_i `[rows, q]`, some parties at a time: all of them need much memory."""
        for at in range(0, len(d), ROWS):
            some = Examples(*(part[at : at + ROWS] for part in points))
            eta = state.eta.expand(len(some.y), -1).clone().requires_grad_()
            theta = self.models(state._replace(eta=eta), some)
            yield pull_back(theta, (eta,), d[at : at + ROWS])[0]

    def pushed(self, state: State, points: Examples, eta: Tensor) -> Tensor:
        """J_i d_i for d `[m, q]`."""

        def models(copies: Tensor) -> Tensor:
            return self.models(state._replace(eta=copies), points)

        copies = state.eta.expand(len(points.y), -1).clone()
        return torch.func.jvp(models, (copies,), (eta,))[1]


def problem(size: Size, seed: int = 0) -> Composed:
    """PeFLL's acceptance run: its data, model and settings."""
    fed = two_labels(50, seed).with_new(5, seed)
    new = fed.training + np.arange(size.new)
    fed = fed.select(np.concatenate([np.arange(size.parties), new])).standardised()
    algorithm = PeFLL(
        lr=0.002, optimiser=ar.SGD(momentum=0.9, weight_decay=5e-5), server_lr=2e-4,
        embedding_lr=1.0, averaging=1.0, embedding="labels", size=13, hidden=size.hidden,
        local_steps=LOCAL_STEPS, batch_size=BATCH,
    )  # fmt: skip
    model = ar.Model(softmax_regression(fed))
    return Composed(algorithm, fed, model, tuple(range(fed.training)), seed)


# -- runs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """PeFLL as the theorem has it: plain steps everywhere, and a scale of embeddings that stays."""

    pefll: PeFLL
    server_lr: float

    def init(self, w: Vector, blueprint: ar.Blueprint) -> tuple[Shared, None]:
        return self.pefll.init(w, blueprint)

    def broadcast(self, shared: Shared) -> Vector:
        return shared.eta_v

    def party(self, me: Party, eta_v: Vector, own: None) -> Any:
        return self.pefll.party(me, eta_v, own)

    def server(self, shared: Shared, uploads: Uploads) -> Any:
        v = uploads.stack()
        with torch.enable_grad():
            eta, v = shared.eta_h.detach().requires_grad_(), v.requires_grad_()
            theta = self.pefll._models(eta, v, shared.scale, shared.theta.shape[-1])
        uploads = yield Each(theta.detach())
        d_eta_h, d_v = pull_back(theta, (eta, v), uploads.stack())
        uploads = yield Each(d_v)
        return shared._replace(
            theta=theta.detach().mean(dim=-2),
            eta_v=shared.eta_v - self.server_lr * uploads.mean(),
            eta_h=shared.eta_h - self.server_lr * d_eta_h / uploads.sampled,
        )


class Journey(NamedTuple):
    """Where a run went."""

    states: dict[int, State]  # by round
    steps: list[float]  # |eta_{t+1} - eta_t| of every round
    shared: Shared  # at the end
    errors: dict[str, float]  # on test points, mean over parties, where they have their own models


def first_scale(at: Composed, eta: Vector) -> Scale:
    """Mean and variance over parties of the embeddings that the first networks make."""
    v = at.descriptors(eta, at.points)
    return Scale(v.mean(dim=0), v.var(dim=0, correction=0))


def joined(shared: Shared) -> Vector:
    return torch.cat([shared.eta_v, shared.eta_h])


def follow(algorithm: Any, at: Composed, size: Size, sampled: int) -> Journey:
    """Run the rounds; parties are drawn evenly, without replacement."""
    states, steps, errors = {}, [], {}
    with ar.LocalEngine(algorithm, at.fed, at.model, plan=PLAN, seed=at.seed) as engine:
        scale = first_scale(at, joined(engine.shared))  # of use before the first round
        engine.shared = engine.shared._replace(scale=scale)
        for t in range(size.rounds + 1):
            eta = joined(engine.shared)
            if t in size.looked or t in size.kept:
                states[t] = State(eta, engine.shared.scale)
            if t == size.rounds:
                break
            random = np.random.default_rng([at.seed, t])
            engine.round(t, random.choice(at.fed.training, sampled, replace=False))
            steps.append(float((joined(engine.shared) - eta).norm()))
        if engine.has_own:
            right = engine.evaluate(own=True).parties["accuracy"].double()
            seen, new = right[: at.fed.training], right[at.fed.training :]
            errors = {"seen": 1 - float(seen.mean()), "new": 1 - float(new.mean())}
        return Journey(states, steps, engine.shared, errors)


def squared_gradient(at: Composed, path: Journey, size: Size) -> float:
    """The mean over rounds of |grad F|^2: of those not looked at, as in the last one before."""
    total = 0.0
    for t, rounds in size.looked.items():
        total += rounds * float(at.gradient(path.states[t]).square().sum())
    return total / size.rounds


# -- measured constants ------------------------------------------------------------------------


def constants(at: Composed, path: Journey, size: Size) -> tuple[Constants, list[int]]:
    """The largest of each constant over the kept rounds, and in which of them it was."""
    kept = [path.states[t] for t in size.kept]
    each = list(zip(*(measured(at, state, size) for state in kept), strict=True))
    one = [state._replace(scale=kept[-1].scale) for state in kept]  # one function all the way
    along = bounds.smoothness(
        torch.stack([state.eta for state in one]), torch.stack([at.gradient(s) for s in one])
    )
    found = Constants(*map(max, each))
    found = found._replace(smoothness=max(found.smoothness, along))
    return found, [size.kept[int(np.argmax(values))] for values in each]


def measured(at: Composed, state: State, size: Size) -> Constants:
    """All constants at one place, and on the local steps that begin there."""
    random, theta = torch.Generator().manual_seed(0), at.models(state, at.points)
    each = torch.cat(list(at.pulled(state, at.points, at.slopes(theta))))  # [n, q]
    L = bounds.sharpness(
        lambda eta: at.gradient(state._replace(eta=eta)), state.eta, 20, DISTANCE, random
    )
    # the largest eigenvalue of a block matrix is that of one of its blocks: all parties at once
    L_1 = bounds.sharpness(
        lambda thetas: at.slopes(thetas.view_as(theta)).flatten(), theta.flatten(), 12, DISTANCE,
        random,
    )  # fmt: skip
    path, slopes = local_path(at, state)
    return Constants(
        L,
        bounds.dissimilarity(each),
        0.0,
        max(L_1, bounds.smoothness(path, slopes)),
        max(bounds.largest_norm(at.slopes(theta)), bounds.largest_norm(slopes)),
    )._replace(**of_batches(replace(at, ids=at.ids[::FEW]), state, size))


def of_batches(at: Composed, state: State, size: Size) -> dict[str, float]:
    """The constants that need Jacobians."""
    theta, size_of = at.models(state, at.points), at.algorithm.batch_size
    top, b_2 = largest_direction(at, state, at.points, at.slopes(theta))
    if size_of is None:
        return {"hyper_gradient": b_2}
    some = [me.examples(me.batch(size_of)) for me in (at.me(1 + i) for i in range(size.batches))]
    noisy = [at.slopes(theta, points) for points in some]
    others = torch.stack([at.models(state, points) for points in some], dim=1)
    sigma_1 = sigma_2 = 0.0
    # one step's gradients as they reach the networks: of several batches, some parties at a time
    for rows in zip(*(at.pulled(state, at.points, d) for d in noisy), strict=True):
        sigma_1 = max(sigma_1, bounds.noise(torch.stack(rows, dim=1)))
    turned = [at.pulled(state, points, top) for points in (at.points, *some)]
    for whole, *rows in zip(*turned, strict=True):
        sigma_2 = max(sigma_2, bounds.batch_noise(torch.stack(rows, dim=1), whole, BATCH))
        b_2 = max(b_2, bounds.largest_norm(torch.stack(rows)))  # top has length 1
    return {
        "noise": sigma_1,
        "hyper_gradient": b_2,
        "jacobian_noise": sigma_2,
        "model_noise": bounds.batch_noise(others, theta, BATCH),
    }


def largest_direction(
    at: Composed, state: State, points: Examples, d: Tensor, steps: int = 4
) -> tuple[Tensor, float]:
    """For each party u of length 1 with the longest J_i^T u, by power iteration; that length."""
    found, longest = [], 0.0
    for first in range(0, len(d), ROWS):
        some = Examples(*(part[first : first + ROWS] for part in points))
        u = d[first : first + ROWS]
        for _ in range(steps):
            u = u / u.norm(dim=-1, keepdim=True)
            (back,) = at.pulled(state, some, u)
            longest = max(longest, bounds.gain(u, back))
            u = at.pushed(state, some, back)
        found.append(u / u.norm(dim=-1, keepdim=True))
    return torch.cat(found), longest


def local_path(at: Composed, state: State, looks: int = 5) -> tuple[Tensor, Tensor]:
    """Models on the parties' local steps `[looks, n, p]`, and their losses' gradients there."""
    me, work = at.me(), at.algorithm
    theta = at.models(state, me.examples(me.batch(work.batch_size)))
    part = replace(work, local_steps=max(1, work.local_steps // (looks - 1)))
    path = [theta]
    for _ in range(min(looks - 1, work.local_steps)):
        path.append(me.descend(path[-1], part).w)
    return torch.stack(path), torch.stack([at.slopes(theta) for theta in path])


# -- convergence -------------------------------------------------------------------------------


class Followed(NamedTuple):
    """A run beside its bound."""

    name: str
    sampled: int
    local_steps: int
    step: float  # s
    loss: tuple[float, float]  # F at the start and at the end
    squared: float  # mean over rounds of |grad F|^2
    constants: Constants
    rounds: list[int]  # in which the constants were largest
    bound: Convergence


def watched(
    name: str, at: Composed, journey: Journey, size: Size, sampled: int, server_lr: float | None
) -> Followed:
    """Measure a run's constants and gradients, and bound these; Adam's step is measured, too."""
    squared = squared_gradient(at, journey, size)
    found, rounds = constants(at, journey, size)
    lr, k = float(at.algorithm.lr), at.algorithm.local_steps  # type: ignore[arg-type]
    if server_lr is None:
        far = sum(d**2 for d in journey.steps) / len(journey.steps)
        server_lr = sqrt(far / squared) / (lr * k)
    start, *_, end = (at.loss(journey.states[t]) for t in size.kept)
    bound = bounds.convergence_bound(
        found,
        gap=start,  # F >= 0
        parties=len(at.ids),
        sampled=sampled,
        local_steps=k,
        rounds=size.rounds,
        lr=lr,
        server_lr=server_lr,
        batch=BATCH if at.algorithm.batch_size else 1,
    )
    return Followed(name, sampled, k, bound.step, (start, end), squared, found, rounds, bound)


def plain_runs(at: Composed, size: Size, smoothness: float) -> Iterator[Followed]:
    """Runs that the theorem speaks of, each without one more of the causes of its terms."""
    travel = float(at.algorithm.lr) * at.algorithm.local_steps  # type: ignore[arg-type]
    server_lr = STEP / smoothness / travel
    k, b, n = at.algorithm.local_steps, at.algorithm.batch_size, len(at.ids)
    for name, steps, batch, sampled in (
        ("plain SGD", k, b, SAMPLED),
        ("one local step", 1, b, SAMPLED),
        ("one step on all points", 1, None, SAMPLED),
        ("that of all parties", 1, None, n),
    ):
        algorithm = replace(
            at.algorithm, lr=travel / steps, local_steps=steps, batch_size=batch,
            optimiser=ar.SGD(weight_decay=at.decay),
        )  # fmt: skip
        one = replace(at, algorithm=algorithm)
        journey = follow(Plain(algorithm, server_lr), one, size, sampled)
        yield watched(name, one, journey, size, sampled, server_lr)


# -- generalisation ----------------------------------------------------------------------------


class Sds(NamedTuple):
    """Of Gaussians over the weights of both networks and of every party's model."""

    embedding: float
    hyper: float
    models: float


NOISES = tuple(  # posteriors: the data may choose
    Sds(*sds)
    for sds in product((0.1, 0.3, 1.0), (0.01, 0.02, 0.04, 0.08, 0.16), (0.05, 0.1, 0.2, 0.4))
)
PRIORS = Sds(  # to choose among these costs
    (0.3, 1.0, 3.0),
    (0.01, 0.02, 0.04, 0.08, 0.16),
    (0.05, 0.1, 0.2, 0.4, 0.8),  # type: ignore[arg-type]
)
CHOICES = len(list(product(*PRIORS)))  # type: ignore[call-overload]


@dataclass(frozen=True)
class Learnt:
    """The networks after a run and before it, standardisation being a part of the first."""

    at: Composed
    eta: Vector
    first: Vector

    @classmethod
    def of(cls, at: Composed, journey: Journey) -> Learnt:
        """With the embeddings' scale, which the data made, put into the embedding's weights.

        Shares of labels sum to 1, so that (v - mean) / sd is again linear in them.
        """
        shared = journey.shared
        label = at.phi.spec.views(shared.eta_v)["label"]
        label = (label - shared.scale.mean[:, None]) / shared.scale.sd[:, None]
        return cls(at, torch.cat([label.flatten(), shared.eta_h]), journey.states[0].eta)

    def parts(self, eta: Vector) -> tuple[Vector, Vector]:
        """Embedding, hyper-network."""
        split = self.at.phi.spec.size
        return eta[:split], eta[split:]

    def models(self, eta: Vector, at: Composed) -> Tensor:
        """Of the parties of `at`, from all their training points."""
        none = torch.zeros(at.algorithm.size)
        return at.models(State(eta, Scale(none, none + 1)), at.points)

    def drawn(self, noise: Sds, random: torch.Generator) -> Vector:
        more = self.parts(torch.randn(self.eta.shape, generator=random))
        return self.eta + torch.cat([sd * part for sd, part in zip(noise[:2], more, strict=True)])


def wrong(at: Composed, theta: Tensor, split: str) -> float:
    """Mean over parties of the share of their points that their models get wrong."""
    shares = []
    for k, w in zip(at.ids, theta, strict=True):
        x, y, x_test, y_test = at.fed.party(k)
        x, y = (x, y) if split == "train" else (x_test, y_test)
        shares.append(float((at.model.predict(w, x).argmax(-1) != y).double().mean()))
    return sum(shares) / len(shares)


class Draws(NamedTuple):
    """Networks and models with noise."""

    noise: Sds
    errors: Tensor  # [r], on training points
    kl_models: dict[float, Tensor]  # [r, n], by the prior's sd


def draw(learnt: Learnt, noises: Sequence[Sds], count: int, seed: int) -> Iterator[Draws]:
    """Some draws for each noise; networks are drawn once for all noises of the models."""
    at = learnt.at
    for _, group in groupby(noises, key=lambda noise: noise[:2]):
        alike = list(group)
        random = torch.Generator().manual_seed(seed)
        thetas = [learnt.models(learnt.drawn(alike[0], random), at) for _ in range(count)]
        for noise in alike:
            errors = [
                wrong(at, t + noise.models * torch.randn(t.shape, generator=random), "train")
                for t in thetas
            ]
            kl_models = {
                sd: torch.stack(
                    [bounds.gaussian_kl(t, sd, noise.models, at.model.w) for t in thetas]
                )
                for sd in {*PRIORS.models, noise.models}  # type: ignore[misc]
            }
            yield Draws(noise, torch.tensor(errors, dtype=torch.float64), kl_models)


class Option(NamedTuple):
    """A noise and the prior that suits it."""

    draws: Draws
    prior: Sds
    kl_networks: float

    @property
    def kl_model(self) -> float:
        """Of one party's model: the mean over parties and draws."""
        return float(self.draws.kl_models[self.prior.models].mean())

    def bound(self, at: Composed, delta: float, error: float | Tensor) -> Generalisation:
        return bounds.generalisation_bound(
            training_error=error, sizes=at.sizes, delta=delta,
            kl_networks=self.kl_networks, kl_models=self.draws.kl_models[self.prior.models],
        )  # fmt: skip


def options(learnt: Learnt, tried: Sequence[Draws], printed: bool) -> list[Option]:
    """For every noise the prior with the smallest divergences; as printed, the noise is the prior.

    The prior's mean is the networks as they began; as printed, it is 0.
    """
    start = torch.zeros_like(learnt.eta) if printed else learnt.first
    known: dict[tuple[int, float, float], float] = {}

    def divergence(part: int, noise: float, prior: float) -> float:
        key = part, noise, prior
        if key not in known:
            w, w_0 = learnt.parts(learnt.eta)[part], learnt.parts(start)[part]
            known[key] = float(bounds.gaussian_kl(w, prior, noise, w_0))
        return known[key]

    found = []
    for one in tried:
        prior = one.noise
        if not printed:
            networks = [
                min(PRIORS[part], key=lambda sd, part=part: divergence(part, one.noise[part], sd))
                for part in (0, 1)
            ]
            models = min(PRIORS.models, key=lambda sd: float(one.kl_models[sd].mean()))  # type: ignore[arg-type]
            prior = Sds(*networks, models)
        total = sum(divergence(part, one.noise[part], prior[part]) for part in (0, 1))
        found.append(Option(one, prior, total))
    return found


class Bounded(NamedTuple):
    """A bound of the error at new parties, beside the error that was measured there."""

    name: str
    option: Option  # with new draws
    bound: Generalisation
    new: float  # with the noise, on test points


def generalisation(learnt: Learnt, tried: Sequence[Draws], size: Size) -> list[Bounded]:
    """Choose noise and prior by a few draws, then bound with the errors of many new ones."""
    at, delta = learnt.at, DELTA - FOR_DRAWS
    new = replace(at, ids=tuple(range(at.fed.training, at.fed.parties)))
    printed, ours = (options(learnt, tried, printed) for printed in (True, False))
    bearable = [one for one in ours if one.draws.errors.mean() <= BEARABLE] or ours

    def at_best(some: Sequence[Option]) -> Option:
        place, _ = bounds.best_posterior(
            lambda i: some[int(i)].bound(at, delta / CHOICES, some[int(i)].draws.errors),
            range(len(some)),
        )
        return some[int(place)]

    place, _ = bounds.best_prior(
        lambda i, delta: printed[int(i)].bound(at, delta, printed[int(i)].draws.errors),
        range(len(printed)), delta,
    )  # fmt: skip
    found = []
    for name, option, choices in (
        ("as printed", printed[int(place)], len(printed)),
        ("prior about the first weights, sds of its own", at_best(ours), CHOICES),
        ("the same, noise that the models bear", at_best(bearable), CHOICES),
    ):
        noise = option.draws.noise
        (again,) = draw(learnt, [noise], size.draws, seed=2)
        option = option._replace(draws=again)
        error = bounds.drawn_error(again.errors, FOR_DRAWS)
        random = torch.Generator().manual_seed(3)
        at_new = []
        for _ in range(max(2, size.draws // 10)):
            theta = learnt.models(learnt.drawn(noise, random), new)
            theta = theta + noise.models * torch.randn(theta.shape, generator=random)
            at_new.append(wrong(new, theta, "test"))
        bound = option.bound(at, delta / choices, error)
        found.append(Bounded(name, option, bound, sum(at_new) / len(at_new)))
    return found


def projected(some: Sequence[Option], parties: Tensor, points: float) -> Tensor:
    """The smallest bound for other numbers of parties `[k]`, of so many points each: `[k]`.

    With the errors and norms of the run. Same as `generalisation_bound`, for more parties than fit
    into a list.
    """
    n, delta = parties.double(), (DELTA - FOR_DRAWS) / CHOICES
    totals = []
    for option in some:
        log_n, log_mn = (2 * n.sqrt() / delta).log(), (8 * points * n / delta).log()
        totals.append(
            option.draws.errors.mean()
            + ((option.kl_networks + log_n) / (2 * n)).sqrt()
            + ((option.kl_model * n + log_mn + 1) / (2 * points * n)).sqrt()
        )
    return torch.stack(totals).min(dim=0).values


PARTIES = torch.logspace(1, 10, 181, dtype=torch.float64).round()
BELOW = (1, 0.5, 0.2)
TIMES = (1, 10, 100, 1_000, 10_000)  # as many points as the run's parties have


def needed(some: Sequence[Option], points: float, below: float) -> int | None:
    """The first of PARTIES with a bound below that; None where there is none."""
    enough = PARTIES[projected(some, PARTIES, points) < below]
    return int(enough[0]) if len(enough) else None


# -- what comes of it --------------------------------------------------------------------------


def plot(some: Sequence[Option], n: int, m: float, new: float) -> Figure:
    """Draw the bound against the number of parties, a line for each number of points."""
    figure = Figure(figsize=(8.6, 4.8), layout="constrained")
    ax = figure.subplots()
    low, high = float(PARTIES[0]), float(PARTIES[-1])
    at_run = float(projected(some, torch.tensor([n]), m)[0])
    ax.axhspan(1, 10 * at_run, color=GREY, alpha=0.13, linewidth=0)
    for times, colour in zip(TIMES, (INK, PURPLE, BLUE, SKY, GREEN), strict=True):
        values = projected(some, PARTIES, times * m)
        ax.plot(PARTIES, values, color=colour)
        ax.annotate(f"{times * m:,.0f}", (high, float(values[-1])), (6, 0), va="center",
                    textcoords="offset points", color=colour, annotation_clip=False)  # fmt: skip
    ax.plot(n, at_run, "o", color=ORANGE, markersize=8, zorder=3)
    ax.annotate(f"this run: {at_run:.1f}", (n, at_run), (9, 5), textcoords="offset points",
                color=ORANGE, fontweight="bold")  # fmt: skip
    ax.axhline(new, color=ORANGE, linestyle="--", linewidth=1.4)
    ax.annotate(f"measured at new parties, without noise: {new:.3f}", (low, new), (4, 5),
                textcoords="offset points", color=ORANGE)  # fmt: skip
    ax.annotate("vacuous: an error is at most 1 anyway", (0.98, 0.95), xycoords="axes fraction",
                va="top", ha="right", color=INK)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlim=(low, high), ylim=(new / 2, 4 * at_run),
           xlabel="parties that train", ylabel="bound of the error at a new party")  # fmt: skip
    ax.set_title("What PeFLL's generalisation bound would need (right: points of each party)")
    return figure


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1e4 else f"{value:.1e}"


def convergence_text(runs: Sequence[Followed], size: Size) -> str:
    first = runs[0]
    names = ("L", "gamma_G", "sigma_1", "L_1", "b_1", "b_2", "sigma_2", "sigma_3")
    measured_ = table(
        ["run", *names],
        [
            [run.name, *(f"{short(value)} ({t})" if value else "0" for value, t in
             zip(run.constants, run.rounds, strict=True))]
            for run in runs
        ],
    )  # fmt: skip
    terms = table(
        ["run", "c", "k", "s", "1 / L", *first.bound.terms, "bound", "measured", "times", "F"],
        [
            [run.name, run.sampled, run.local_steps, short(run.step),
             short(1 / run.constants.smoothness), *map(short, run.bound.terms.values()),
             short(run.bound.total) + ("" if run.bound.valid else " (void)"), short(run.squared),
             short(run.bound.total / run.squared), f"{run.loss[0]:.2f} to {run.loss[1]:.3f}"]
            for run in runs
        ],
    )  # fmt: skip
    printed = printed_bound(first, size)
    rounds = 4 * first.sampled * first.constants.smoothness**2
    return f"""## Convergence

The mean over {size.rounds} rounds of the squared gradient of F, and what bounds it, term by term.
`PeFLL` is the acceptance run. **The theorem does not cover it**: it has Adam at the server and
momentum at the parties; as its step s stands how far Adam went for the gradient's length. The
others are plain SGD with s = {STEP:g} / L, L being that of the first run; embeddings keep the scale
that they had at first, as F must not change. Each of them has one cause of error less.

{terms}

Theorem 3.1 as printed, for the first run's c, k and T: {printed}.
To take its steps of {printed.step:.2g} one would need T >= 4 c L^2 = {rounds:,.0f} rounds.

The constants, the largest that was seen at rounds {", ".join(map(str, size.kept))} (in brackets: at
which), and for L also between these:

{measured_}

L and L_1 are in all directions, by power iteration; b_2 is the largest singular value of a
Jacobian; variances are from {size.batches} batches, Jacobians of one party in {FEW}; gradients
are of all rounds up to {size.closely}, then of every {size.every}th. F_* is taken as 0. Two
assumptions are not met: the networks have ReLUs, so that no finite L is true everywhere, and a
party's batches come from shuffled epochs, where the proof has them independent."""


def printed_bound(run: Followed, size: Size) -> Convergence:
    return bounds.printed_convergence_bound(
        run.constants, gap=run.loss[0], sampled=run.sampled, local_steps=run.local_steps,
        rounds=size.rounds, batch=BATCH,
    )  # fmt: skip


def generalisation_text(
    found: Sequence[Bounded], some: Sequence[Option], at: Composed, errors: dict[str, float]
) -> str:
    n, m, draws = len(at.ids), harmonic(at), len(found[0].option.draws.errors)
    rows = []
    for each in found:
        sds = each.option.draws.noise, each.option.prior
        rows.append(
            [each.name, *(" / ".join(f"{sd:g}" for sd in one) for one in sds),
             *map(short, each.bound), short(each.bound.total),
             "vacuous" if each.bound.vacuous else "says something", f"{each.new:.3f}"]
        )  # fmt: skip
    told = table(
        ["", "sd of the noise", "sd of the prior", "training error", "new parties", "few points",
         "bound", "", "measured at new parties"],
        rows,
    )  # fmt: skip
    future = table(
        ["points of a party", *(f"parties for a bound below {below:g}" for below in BELOW)],
        [
            [f"{times * m:,.0f}", *("none" if k is None else f"{k:.1e}" for k in
             (needed(some, times * m, below) for below in BELOW))]
            for times in TIMES
        ],
    )  # fmt: skip
    best = found[-1].option
    vacuous = sum(each.bound.vacuous for each in found)
    return f"""## Generalisation

The error at a new party, with probability {1 - DELTA:g}, after the acceptance run: {n} parties with
{m:.0f} points (harmonic mean). **{vacuous} of {len(found)} bounds are vacuous.** Without noise the
models err on {errors["new"]:.1%} of the test points at new parties, on {errors["seen"]:.1%} at seen
ones. With the noise that the theorem has on all weights (of embedding / hyper-network / models):

{told}

The training error is that of {draws} draws and what Hoeffding adds; the mean over draws in the last
term is an estimate. The scale of the embeddings comes from the data, so it is counted as a part of
the embedding's weights. In the last row the networks' divergence is {best.kl_networks:,.0f} nats
against {n} parties, that of a party's model {best.kl_model:,.0f} against {m:.0f} points. What would
do, with the errors and the norms of this run and the best sds each time (at most 10^10 parties):

{future}"""


def harmonic(at: Composed) -> float:
    return float(len(at.ids) / at.sizes.double().reciprocal().sum())


def checks(
    runs: Sequence[Followed], found: Sequence[Bounded], errors: tuple[float, float]
) -> list[tuple[str, str, bool]]:
    plain = [
        (
            f"{run.name}: step below 1 / L, and squared gradient below its bound",
            f"s L = {run.step * run.constants.smoothness:.2f}; {run.squared:.3g}, "
            f"{run.bound.total:.3g}",
            run.bound.valid and run.squared <= run.bound.total,
        )
        for run in runs[1:]
    ]
    folded, engine = errors
    return [
        *plain,
        (
            "error at new parties, with the noise, below its bound",
            "; ".join(f"{each.new:.2f}, {each.bound.total:.3g}" for each in found),
            all(each.new <= each.bound.total for each in found),
        ),
        (
            "networks that hold the scale make the run's models: same error at new parties",
            f"{folded:.4f}, {engine:.4f}",
            abs(folded - engine) < 2e-3,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few parties and rounds: a look")
    parser.add_argument("--out", type=Path, help="where to write: beside this file")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)  # small products: more threads wait for each other
    size, began = QUICK if args.quick else WHOLE, time.process_time()
    out = args.out or (FOLDER / "quick" if args.quick else FOLDER)
    out.mkdir(parents=True, exist_ok=True)

    at = problem(size)
    journey = follow(at.algorithm, at, size, SAMPLED)
    runs = [watched("PeFLL", at, journey, size, SAMPLED, None)]
    for run in plain_runs(at, size, runs[0].constants.smoothness):
        runs.append(run)
        print(run.name, run.bound, f"; measured {run.squared:.3g}", file=sys.stderr, flush=True)

    learnt = Learnt.of(at, journey)
    tried = list(draw(learnt, NOISES[:: size.noises], size.tries, seed=1))
    some, found = options(learnt, tried, printed=False), generalisation(learnt, tried, size)
    new = replace(at, ids=tuple(range(at.fed.training, at.fed.parties)))
    folded = wrong(new, learnt.models(learnt.eta, new), "test")
    held = checks(runs, found, (folded, journey.errors["new"]))
    seconds = round(time.process_time() - began)
    page = "\n\n".join(
        [
            f"PeFLL's theorems and actual runs: MNIST-10k, {len(at.ids)} parties of two labels and "
            f"{len(new.ids)} new ones, softmax regression ({at.model.p} weights), networks of "
            f"{len(learnt.eta)} weights. Everything is measured; {seconds} seconds of one core.",
            convergence_text(runs, size),
            generalisation_text(found, some, at, journey.errors),
            gates(held),
        ]
    )
    document = {
        "versions": {"torch": torch.__version__},
        "size": size._asdict(),
        "seconds": seconds,
        "convergence": [
            {**run._asdict(), "constants": run.constants._asdict(), "bound": run.bound._asdict()}
            for run in runs
        ],
        "printed": printed_bound(runs[0], size)._asdict(),
        "generalisation": [
            {
                "name": each.name,
                "noise": each.option.draws.noise._asdict(),
                "prior": each.option.prior._asdict(),
                "kl of networks": each.option.kl_networks,
                "kl of a model": each.option.kl_model,
                **each.bound._asdict(),
                "bound": each.bound.total,
                "measured at new parties": each.new,
            }
            for each in found
        ],
        "without noise": journey.errors,
        "parties needed": {
            f"{times * harmonic(at):.0f} points": {
                str(below): needed(some, times * harmonic(at), below) for below in BELOW
            }
            for times in TIMES
        },
        "checks": held,
    }
    (out / "bounds.json").write_text(json.dumps(document, indent=1) + "\n")
    (out / "bounds.md").write_text(page + "\n")
    figure = plot(some, len(at.ids), harmonic(at), journey.errors["new"])
    figure.savefig(out / "bounds.png", dpi=150)
    print(page)
    missed = [check[0] for check in held if not check[2]]
    sys.exit(f"missed: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
