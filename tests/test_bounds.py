# SPDX-License-Identifier: Apache-2.0
"""The bounds hold where everything is known, are no looser than proved, and their lemmas are so."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, inf, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from archipel import bounds
from archipel.bounds import (
    Constants,
    Generalisation,
    best_posterior,
    best_prior,
    convergence_bound,
    drawn_error,
    gaussian_kl,
    generalisation_bound,
    measure,
    printed_convergence_bound,
)
from archipel.errors import ArchipelError

SEEDS = st.integers(0, 10_000)
SMALL = st.floats(0, 3)
CONSTANTS = st.builds(Constants, st.floats(0.1, 3), *[SMALL] * 7)


# -- convergence -----------------------------------------------------------------------------------


@dataclass
class Quadratics:
    """Party i has the loss (theta - a_i)' H_i (theta - a_i) / 2 at the model theta = A_i eta.

    A descriptor made of a batch puts another matrix in A_i's place: A_i plus or minus E_i.
    """

    H: Tensor  # [n, q, q]
    a: Tensor  # [n, q]
    A: Tensor  # [n, q, p]
    E: Tensor  # [n, q, p]
    sd: float  # of each coordinate of a step's gradient

    @classmethod
    def draw(cls, seed: int, n: int, q: int, p: int, blur: float, sd: float) -> Quadratics:
        rng = torch.Generator().manual_seed(seed)
        roots = torch.randn(n, q, q, generator=rng, dtype=torch.float64)
        a = torch.randn(n, q, generator=rng, dtype=torch.float64)
        A = torch.randn(n, q, p, generator=rng, dtype=torch.float64) / sqrt(p)
        E = blur * torch.randn(n, q, p, generator=rng, dtype=torch.float64)
        return cls(roots @ roots.mT / q, a, A, E, sd)

    def local(self, theta: Tensor) -> Tensor:
        """Gradients of all parties' losses at their models `[..., n, q]`."""
        return torch.einsum("nij,...nj->...ni", self.H, theta - self.a)

    def gradients(self, eta: Tensor) -> Tensor:
        """Gradients of all parties' losses `[..., p] -> [..., n, p]`, with whole descriptors."""
        theta = torch.einsum("nqp,...p->...nq", self.A, eta)
        return torch.einsum("nqp,...nq->...np", self.A, self.local(theta))

    def loss(self, eta: Tensor) -> float:
        about = torch.einsum("nqp,...p->...nq", self.A, eta) - self.a
        return float(torch.einsum("ni,nij,nj->n", about, self.H, about).mean() / 2)

    @property
    def curvature(self) -> Tensor:
        return torch.einsum("nqp,nqr,nrs->ps", self.A, self.H, self.A) / len(self.A)

    def gap(self, eta: Tensor) -> float:
        """F(eta) - F_*, by solving for the minimum."""
        slope = self.gradients(torch.zeros_like(eta)).mean(dim=0)
        return self.loss(eta) - self.loss(-torch.linalg.pinv(self.curvature) @ slope)


def run(
    q: Quadratics, eta: Tensor, c: int, k: int, T: int, lr: float, server_lr: float, repeats: int
) -> tuple[float, Constants]:
    """Mean squared gradient over rounds and repeats, and the constants that the proof needs."""
    rng = torch.Generator().manual_seed(1)
    n, width, p = q.A.shape
    eta = eta.expand(repeats, p)
    squared, gamma, b_1, model_noise = 0.0, 0.0, 0.0, 0.0
    for _ in range(T):
        gradients = q.gradients(eta)
        squared += float(gradients.mean(dim=1).square().sum(dim=-1).mean()) / T
        gamma = max(gamma, bounds.dissimilarity(gradients))
        sign = torch.randint(0, 2, (repeats, n, 1, 1), generator=rng).double() * 2 - 1
        J = q.A + sign * q.E  # [repeats, n, q, p]
        start = torch.einsum("rnqp,rp->rnq", J, eta)
        whole = torch.einsum("nqp,rp->rnq", q.A, eta)
        model_noise = max(model_noise, bounds.largest_norm(start - whole))
        theta = start
        for _ in range(k):
            gradient = q.local(theta)
            b_1 = max(b_1, sqrt(bounds.largest_norm(gradient) ** 2 + width * q.sd**2))
            draw = torch.randn(theta.shape, generator=rng, dtype=torch.float64)
            theta = theta - lr * (gradient + q.sd * draw)
        step = torch.einsum("rnqp,rnq->rnp", J, start - theta)
        chosen = torch.rand(repeats, n, generator=rng).argsort(dim=1)[:, :c]
        eta = eta - server_lr * step.gather(1, chosen[..., None].expand(-1, -1, p)).mean(dim=1)
    largest = max(float(torch.linalg.matrix_norm(q.A + e, 2).max()) for e in (q.E, -q.E, 0 * q.E))
    return squared, Constants(
        smoothness=float(torch.linalg.matrix_norm(q.curvature, 2)),
        dissimilarity=gamma,
        noise=largest * q.sd * sqrt(width),
        local_smoothness=float(torch.linalg.matrix_norm(q.H, 2).max()),
        local_gradient=b_1,
        hyper_gradient=largest,
        jacobian_noise=float(torch.linalg.matrix_norm(q.E, 2).max()),
        model_noise=model_noise,
    )


@settings(max_examples=25, deadline=None)
@example(seed=9999, n=4, c=1, k=5, fraction=1.0, blur=0.0, sd=0.0)  # s L is 1 and a rounding error
@given(
    SEEDS,
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([1, 2, 5]),
    st.floats(0.05, 1),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 1.0]),
)
def test_bound_holds_for_runs_on_quadratics(seed, n, c, k, fraction, blur, sd):
    q = Quadratics.draw(seed, n, 3, 4, blur, sd)
    eta = torch.full((4,), 0.5, dtype=torch.float64)
    step = fraction / float(torch.linalg.matrix_norm(q.curvature, 2))
    sizes = {"lr": step / k / 2, "server_lr": 2.0}

    squared, constants = run(q, eta, min(c, n), k, 30, **sizes, repeats=60)

    found = convergence_bound(
        constants, gap=q.gap(eta), parties=n, sampled=min(c, n), local_steps=k, rounds=30, **sizes
    )
    assert found.valid
    assert squared <= 1.05 * found.total  # squared is a mean of 60 repeats


def test_bound_is_an_equality_for_one_newton_step_a_round():
    q = Quadratics.draw(0, 1, 1, 1, blur=0.0, sd=0.0)
    eta = torch.ones(1, dtype=torch.float64)
    lr = 1 / float(q.curvature)

    squared, constants = run(q, eta, 1, 1, 10, lr, 1.0, repeats=1)

    found = convergence_bound(
        constants, gap=q.gap(eta), parties=1, sampled=1, local_steps=1, rounds=10, lr=lr
    )
    assert found.valid
    assert found.total == pytest.approx(squared) == found.start


@pytest.mark.parametrize(
    ("cause", "c", "k", "blur", "sd"),
    [
        ({"noise"}, 2, 1, 0.0, 1.0),
        ({"dissimilarity"}, 1, 1, 0.0, 0.0),
        ({"drift"}, 2, 5, 0.0, 0.0),
        ({"jacobian", "model"}, 2, 1, 0.3, 0.0),
    ],
)
def test_no_term_can_be_left_out(cause, c, k, blur, sd):
    """After many rounds what is left of the gradient is what the one term is for."""
    one = torch.ones(2, 1, 1, dtype=torch.float64)
    H, a = one * torch.tensor([1.0, 3.0])[:, None, None], one[:, 0] * torch.tensor([[0.0], [2.0]])
    q = Quadratics(H, a, A=one, E=blur * one, sd=sd)
    eta, lr, rounds = torch.full((1,), 1.5, dtype=torch.float64), 0.3 / k, 4000

    squared, constants = run(q, eta, c, k, rounds, lr, 1.0, repeats=10)

    found = convergence_bound(
        constants,
        gap=q.gap(eta),
        parties=2,
        sampled=c,
        local_steps=k,
        rounds=rounds,
        lr=lr,
        batch=1,
    )
    others = sum(value for name, value in found.terms.items() if name not in cause)
    assert others < squared <= found.total


@given(CONSTANTS, SMALL, st.integers(1, 20), st.integers(1, 9), st.integers(1, 9))
def test_the_printed_theorem_follows_from_ours(constants, gap, c, k, b):
    rounds = int(4 * c * constants.smoothness**2) + 1
    shared = {"gap": gap, "sampled": c, "local_steps": k, "rounds": rounds, "batch": b}

    printed = printed_convergence_bound(constants, **shared)
    ours = convergence_bound(constants, parties=20, lr=printed.step / k, **shared)

    assert printed.valid
    assert ours.valid
    for name, value in ours.terms.items():
        assert value <= printed.terms[name] * (1 + 1e-9) + 1e-300, name
    assert ours.start == pytest.approx(printed.start)


@given(CONSTANTS, SMALL, st.integers(1, 20), st.integers(1, 9), st.integers(1, 500))
def test_printed_bound_is_the_slides_formula(constants, gap, c, k, T):
    L, gamma, sigma_1, L_1, b_1, b_2, sigma_2, sigma_3 = constants
    b = 32

    found = printed_convergence_bound(
        constants, gap=gap, sampled=c, local_steps=k, rounds=T, batch=b
    )

    assert found.total == pytest.approx(
        gap / sqrt(c * T)
        + L * (6 * sigma_1**2 + 4 * k * gamma**2) / (k * sqrt(c * T))
        + 224 * c * (L_1 * b_1 * b_2) ** 2 / T
        + 8 * (b_1 * sigma_2) ** 2 / b
        + 14 * (L_1 * b_2 * sigma_3) ** 2 / b
    )
    assert found.terms[found.dominant] == max(found[:6])


@given(CONSTANTS, SMALL, st.integers(1, 8), st.integers(1, 9), st.floats(0.01, 2))
def test_bound_is_the_documentation_s_formula(constants, gap, c, k, lr):
    L, gamma, sigma_1, L_1, b_1, b_2, sigma_2, sigma_3 = constants
    n, T, b, s = 8, 50, 32, 0.7 * lr * k
    V = sigma_1**2 / (c * k) + gamma**2 * (1 / c - 1 / n) * n / (n - 1)
    drift = (L_1 * b_1 * b_2 * lr) ** 2 * sum(j**2 for j in range(k)) / k
    D2 = 3 * (drift + (b_1 * sigma_2) ** 2 / b + (L_1 * b_2 * sigma_3) ** 2 / b)

    found = convergence_bound(
        constants,
        gap=gap,
        parties=n,
        sampled=c,
        local_steps=k,
        rounds=T,
        lr=lr,
        server_lr=0.7,
        batch=b,
    )

    assert found.total == pytest.approx(2 * gap / (s * T) + 2 * L * s * V + (1 + L * s) * D2)


def test_terms_vanish_where_their_cause_does():
    constants = Constants(1, 1, 1, 1, 1, 1, 1, 1)
    shared = {"gap": 1.0, "parties": 5, "rounds": 10, "lr": 0.1}

    assert convergence_bound(constants, sampled=5, local_steps=3, **shared).dissimilarity == 0
    assert convergence_bound(constants, sampled=2, local_steps=3, **shared).dissimilarity > 0
    assert convergence_bound(constants, sampled=2, local_steps=1, **shared).drift == 0
    assert convergence_bound(constants, sampled=2, local_steps=2, **shared).drift > 0


def test_a_step_too_long_is_void():
    found = printed_convergence_bound(
        Constants(10, 0, 0, 1, 1), gap=1, sampled=1, local_steps=1, rounds=100
    )

    assert not found.valid
    assert "void, the step 0.2 is above 1 / smoothness" in str(found)


# -- generalisation --------------------------------------------------------------------------------


def toy(parties: int, points: int, draws: int, seed: int):
    """Training error, risk and bound of networks of one weight each, learnt from drawn parties.

    A party's labels are 1 with a probability drawn evenly from [0, 1]; its descriptor is eta_v
    times (mean label - 1/2), its model theta = eta_h times that; it predicts 1 where theta plus
    noise is above 0. The mean label k / m of m is then as likely for every k, and the next label is
    1 with probability (k + 1) / (m + 2): risks are sums over k. Means over noisy weights are
    by Gauss and Hermite. Of a grid of weights those with the smallest training error are taken.
    """
    rng = torch.Generator().manual_seed(seed)
    label = torch.rand(draws, parties, 1, generator=rng, dtype=torch.float64)
    ones = (torch.rand(draws, parties, points, generator=rng) < label).sum(dim=-1)
    k = torch.arange(points + 1, dtype=torch.float64)
    nodes, masses = (torch.from_numpy(array) for array in np.polynomial.hermite_e.hermegauss(15))
    mass = (masses[:, None] * masses).reshape(-1) / masses.sum() ** 2
    weights = torch.linspace(-2, 2, 9, dtype=torch.float64)
    grid = torch.cartesian_prod(weights, weights)  # eta_h, eta_v
    noisy = grid[:, None] + torch.cartesian_prod(nodes, nodes)  # sd 1, as the prior's: [g, r, 2]
    theta = noisy.prod(dim=-1)[..., None] * (k / points - 0.5)  # [g, r, k]
    one = torch.special.ndtr(theta)

    def error(frequency: Tensor) -> Tensor:
        return frequency * (1 - one) + (1 - frequency) * one

    counts = torch.stack([(ones == value).sum(dim=1) for value in range(points + 1)], dim=-1)
    share = counts.double() / parties
    training = torch.einsum("dk,grk,r->dg", share, error(k / points), mass)
    risk = torch.einsum("grk,r->g", error((k + 1) / (points + 2)), mass) / (points + 1)
    best = training.argmin(dim=1)
    kl_models = torch.einsum(
        "dk,drk->dr", counts.double(), gaussian_kl(theta[..., None], 1.0)[best]
    )
    return training.gather(1, best[:, None])[:, 0], risk[best], grid[best], kl_models, mass


@pytest.mark.parametrize(("parties", "points"), [(60, 10), (300, 20)])
def test_bound_holds_where_the_risk_is_known(parties, points):
    delta, draws = 0.1, 200
    training, risk, eta, kl_models, mass = toy(parties, points, draws, seed=parties)

    found = [
        generalisation_bound(
            training_error=training[i],
            sizes=[points] * parties,
            kl_networks=gaussian_kl(eta[i], 1.0),
            kl_models=(kl_models[i] * mass).sum(),  # E sqrt <= sqrt E
            delta=delta,
        )
        for i in range(draws)
    ]

    exceeded = sum(float(r) > bound.total for r, bound in zip(risk, found, strict=True))
    assert exceeded <= delta * draws + 3 * sqrt(delta * (1 - delta) * draws)
    assert (risk > training).double().mean() > 0.6  # there is something to be bounded
    assert not any(bound.vacuous for bound in found)


@settings(max_examples=40)
@given(st.integers(1, 80), st.floats(0.001, 0.5))
def test_moment_of_the_mean_of_parties(n, p):
    """The lemma of the first root: E exp(2 n (mean - p)^2) <= sqrt n from 5 parties on."""
    moment = sum(
        comb(n, k) * p**k * (1 - p) ** (n - k) * np.exp(2 * n * (k / n - p) ** 2)
        for k in range(n + 1)
    )

    assert moment <= (1 if n >= 5 else 2) * sqrt(n)


@pytest.mark.parametrize("n", range(5, 2000, 133))
def test_moment_of_the_mean_of_many_parties(n):
    k, p = torch.arange(n + 1).double(), torch.linspace(0.01, 0.5, 50).double()[:, None]
    count = torch.lgamma(torch.tensor(n + 1.0).double()) - (k + 1).lgamma() - (n - k + 1).lgamma()
    log_mass = count + k * p.log() + (n - k) * (1 - p).log()

    assert float((log_mass + 2 * n * (k / n - p) ** 2).exp().sum(dim=-1).max()) <= sqrt(n)


@given(st.floats(1, 5000), st.floats(0, 1))
def test_best_whole_number_costs_one(N, share):
    """The lemma of the second root: the best of floor(4 N) values for lambda."""
    A = log(8 * N) + share * max(0.0, 2 * N - 1 - log(8 * N))
    bound = sqrt((A + 1) / (2 * N))

    chosen = int(sqrt(8 * N * (A + 1)))

    if bound <= 1:
        assert 1 <= chosen <= 4 * N
        assert A / chosen + chosen / (8 * N) <= bound * (1 + 1e-12)


SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=30)
KL = st.floats(0, 100)
DELTA = st.floats(1e-6, 0.5)


@given(st.floats(0, 1), SIZES, KL, KL, DELTA)
def test_bound_falls_with_parties_points_and_delta(error, sizes, networks, each, delta):
    def bound(sizes, delta=delta):
        return generalisation_bound(
            training_error=error,
            sizes=sizes,
            kl_networks=networks,
            kl_models=each * len(sizes),
            delta=delta,
        )

    now = bound(sizes)

    assert bound([*sizes, *sizes]).new_parties < now.new_parties
    assert bound([*sizes, *sizes]).few_points < now.few_points
    assert bound([m + 1 for m in sizes]).few_points < now.few_points
    assert bound(sizes, delta / 2).total > now.total
    assert now.total > error
    assert now.vacuous == (now.total >= 1)


def test_bound_goes_to_the_training_error():
    def bound(n, m):
        return generalisation_bound(
            training_error=0.1, sizes=torch.full((n,), m), kl_networks=50.0, kl_models=2.0 * n
        )

    assert bound(10**7, 10**9).total == pytest.approx(0.1, abs=2e-3)
    assert bound(10**7, 2).few_points == pytest.approx(sqrt(2 / 4), rel=1e-3)  # parties alone: no


@given(SIZES, KL, KL, DELTA)
def test_printed_generalisation_bound_is_the_slides_formula(sizes, networks, models, delta):
    sizes = sizes + [1] * 4  # from five parties on
    n, m = len(sizes), len(sizes) / sum(1 / size for size in sizes)

    found = generalisation_bound(
        training_error=0.0, sizes=sizes, kl_networks=networks, kl_models=models, delta=delta
    )

    assert found.total == pytest.approx(
        sqrt((networks + log(2 * sqrt(n) / delta)) / (2 * n))
        + sqrt((models + log(8 * m * n / delta) + 1) / (2 * m * n))
    )


def test_roots_are_averaged_over_draws():
    shared = {"sizes": [10] * 8, "kl_networks": 1.0}

    two = generalisation_bound(
        training_error=torch.tensor([0.1, 0.3]),
        kl_models=torch.tensor([[0.0] * 8, [2.5] * 8]),
        **shared,
    )
    one, other, middle = (
        generalisation_bound(training_error=0.2, kl_models=kl, **shared) for kl in (0.0, 20.0, 10.0)
    )

    assert two.few_points == pytest.approx((one.few_points + other.few_points) / 2)
    assert two.few_points < middle.few_points
    assert two.training_error == pytest.approx(0.2)


@given(SEEDS, st.integers(1, 5), st.floats(0.2, 3), st.floats(0.2, 3))
def test_divergence_is_that_of_torch(seed, p, prior_sd, posterior_sd):
    rng = torch.Generator().manual_seed(seed)
    w, prior = torch.randn(2, 3, p, generator=rng, dtype=torch.float64)
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(w, posterior_sd), torch.distributions.Normal(prior, prior_sd)
    )

    found = gaussian_kl(w, prior_sd, posterior_sd, prior)

    torch.testing.assert_close(found, kl.sum(dim=-1))
    torch.testing.assert_close(gaussian_kl(w, prior_sd), w.square().sum(-1) / (2 * prior_sd**2))


def test_best_sds():
    weights, asked = torch.ones(20), []

    def bound(prior_sd, posterior_sd, delta):
        asked.append(delta)
        return generalisation_bound(
            training_error=min(0.5, 0.3 * posterior_sd),  # noise costs
            sizes=[100] * 50,
            kl_networks=gaussian_kl(weights, prior_sd, posterior_sd),
            kl_models=0.0,
            delta=delta,
        )

    sds = [0.01, 0.3, 1.0, 100.0]
    sd, posterior = best_posterior(lambda sd: bound(1.0, sd, 0.05), sds)
    _, prior = best_prior(lambda sd, delta: bound(sd, sd, delta), sds, delta=0.04)

    assert sd == 0.3
    assert posterior.total == min(bound(1.0, sd, 0.05).total for sd in sds)
    assert prior.total == min(bound(sd, sd, 0.01).total for sd in sds)
    assert set(asked) == {0.05, 0.01}  # a choice of posterior is free, one of prior is paid for


def test_drawn_error_is_rarely_exceeded():
    rng = torch.Generator().manual_seed(0)
    draws = (torch.rand(2000, 30, generator=rng) < 0.3).double()

    low = sum(drawn_error(row, delta=0.1) < 0.3 for row in draws)

    assert 0 < low <= 0.1 * 2000


def test_vacuous_is_said():
    assert str(Generalisation(0.2, 0.9, 0.1)).endswith("vacuous, a loss is at most 1 anyway")
    assert "vacuous" not in str(Generalisation(0.2, 0.3, 0.1))


# -- measured constants ----------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_measured_smoothness_is_at_most_the_true_one(seed, p):
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(p, p, generator=rng, dtype=torch.float64)
    H = root @ root.mT + 0.1 * torch.eye(p, dtype=torch.float64)
    true = float(torch.linalg.matrix_norm(H, 2))
    path = torch.randn(8, p, generator=rng, dtype=torch.float64)

    along = bounds.smoothness(path, path @ H)
    at = bounds.sharpness(lambda w: w @ H, path[0], steps=200, generator=rng)

    assert along <= true * (1 + 1e-9)
    assert 0.98 * true <= at <= true * (1 + 1e-6)


def test_measured_variances():
    rng = torch.Generator().manual_seed(0)
    gradients = 2.0 * torch.randn(20_000, 3, generator=rng) + 5.0

    assert bounds.noise(torch.tensor([[0.0, 0.0], [6.0, 8.0]])) == pytest.approx(sqrt(50))
    assert bounds.noise(gradients) == pytest.approx(2 * sqrt(3), rel=0.02)
    assert bounds.batch_noise(gradients, torch.full((3,), 5.0), batch=4) == pytest.approx(
        4 * sqrt(3), rel=0.02
    )
    assert bounds.dissimilarity(torch.tensor([[0.0, 0.0], [6.0, 8.0]])) == pytest.approx(5)
    assert bounds.largest_norm(torch.tensor([[3.0, 4.0], [1.0, 0.0]])) == 5


def test_gain_is_at_most_the_largest_singular_value():
    rng = torch.Generator().manual_seed(0)
    J = torch.randn(5, 3, generator=rng)
    sent = torch.randn(50, 5, generator=rng)

    found = bounds.gain(sent, sent @ J)

    assert 0.7 < found / float(torch.linalg.matrix_norm(J, 2)) <= 1
    assert bounds.gain(torch.zeros(2, 3), torch.ones(2, 3)) == 0


def test_constants_of_a_run():
    q = Quadratics.draw(3, 4, 3, 3, blur=0.0, sd=0.0)
    q.A = torch.eye(3, dtype=torch.float64).expand(4, 3, 3)
    path = [torch.zeros(3, dtype=torch.float64)]
    for _ in range(40):
        path.append(path[-1] - 0.2 * q.gradients(path[-1]).mean(dim=0))
    path = torch.stack(path)
    rng = torch.Generator().manual_seed(0)

    plain = measure(path, q.gradients)
    noisy = measure(
        path, q.gradients, lambda w: q.gradients(w)[:, None] + torch.randn(4, 6, 3, generator=rng)
    )

    assert 0 < plain.smoothness <= float(torch.linalg.matrix_norm(q.H.mean(dim=0), 2)) * (1 + 1e-9)
    assert plain.local_smoothness <= float(torch.linalg.matrix_norm(q.H, 2).max()) * (1 + 1e-9)
    assert plain.local_smoothness >= plain.smoothness
    assert plain.noise == 0 < noisy.noise
    assert noisy.local_gradient > plain.local_gradient
    found = convergence_bound(
        plain, gap=q.gap(path[0]), parties=4, sampled=4, local_steps=1, rounds=40, lr=0.2
    )
    assert found.valid
    assert q.gradients(path[:-1]).mean(dim=1).square().sum(dim=-1).mean() <= found.total


# -- bad input -------------------------------------------------------------------------------------

GOOD = {"training_error": 0.1, "sizes": [5], "kl_networks": 1.0, "kl_models": 1.0, "delta": 0.05}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delta", 0.0),
        ("delta", 1.0),
        ("training_error", 1.2),
        ("training_error", float("nan")),
        ("sizes", []),
        ("sizes", [3, 0]),
        ("kl_networks", -1.0),
        ("kl_models", float("nan")),
        ("kl_models", []),
        ("kl_models", [1.0, 2.0]),  # of two parties, or the sums of two draws
        ("kl_models", torch.ones(0, 1)),
        ("training_error", []),
    ],
)
def test_bad_input_of_the_generalisation_bound(field, value):
    with pytest.raises(ArchipelError, match=field):
        generalisation_bound(**{**GOOD, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gap", -1.0),
        ("parties", 8.5),
        ("sampled", 0),
        ("sampled", 9),
        ("local_steps", 1.5),
        ("local_steps", True),
        ("rounds", 0),
        ("lr", 0.0),
        ("lr", inf),
    ],
)
def test_bad_input_of_the_convergence_bound(field, value):
    good = {"gap": 1, "parties": 8, "sampled": 2, "local_steps": 1, "rounds": 5, "lr": 0.1}
    with pytest.raises(ArchipelError, match=field):
        convergence_bound(Constants(1, 1, 1, 1, 1), **{**good, field: value})


def test_bad_constants():
    with pytest.raises(ArchipelError, match="dissimilarity is -1"):
        printed_convergence_bound(
            Constants(1, -1, 1, 1, 1), gap=1, sampled=1, local_steps=1, rounds=1
        )
    with pytest.raises(ArchipelError, match="at least 2 batches"):
        bounds.noise(torch.ones(1, 3))
    with pytest.raises(ArchipelError, match="prior_sd is 0"):
        gaussian_kl(torch.ones(3), 0.0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: drawn_error(torch.ones(0), 0.1), "errors is empty"),
        (lambda: drawn_error(torch.tensor([0.5, 1.5]), 0.1), "losses between 0 and 1"),
        (lambda: drawn_error(torch.tensor([float("nan")]), 0.1), "losses between 0 and 1"),
        (lambda: best_posterior(lambda sd: Generalisation(0, 0, 0), []), "sds is empty"),
        (lambda: best_prior(lambda sd, delta: Generalisation(0, 0, 0), []), "sds is empty"),
        (lambda: bounds.smoothness(torch.ones(1, 3), torch.ones(1, 3)), "give at least 2"),
        (lambda: measure(torch.ones(1, 3), lambda w: torch.ones(2, 3)), "give at least 2"),
    ],
)
def test_nothing_to_measure_is_told_in_a_sentence(call, says):
    with pytest.raises(ArchipelError, match=says):
        call()


def test_divergences_of_parties_are_summed():
    shared = {"training_error": 0.1, "sizes": [5, 9, 4], "kl_networks": 1.0}
    each = generalisation_bound(kl_models=torch.tensor([1.0, 2.0, 4.0]), **shared)

    assert each == generalisation_bound(kl_models=7.0, **shared)
