# SPDX-License-Identifier: Apache-2.0
"""What PeFLL's two theorems say about a run, term by term, and the constants to put into them.

Scott, Zakerinia, Lampert, ICLR 2024, https://arxiv.org/abs/2306.05515. Both statements are taken as
printed in C. Lampert's slides "Federated Learning", 21 September 2023, Theorems 3.1 and 4.2; the
paper's appendix (assumptions, step sizes, proofs) was not at hand. Which function is which:

- `printed_convergence_bound`: Theorem 3.1 as printed.
- `convergence_bound`: re-derived, for any step sizes; with the steps s = 2 sqrt(c / T) it implies
  Theorem 3.1, so those are the steps that the printed one is taken to speak of.
- `generalisation_bound`: Theorem 4.2 with Kullback-Leibler divergences where it has the norms of
  zero-mean Gaussians; with `gaussian_kl(w, sd)` it is the printed one. Re-derived: its logarithm is
  larger for fewer than five parties, and the models' loss is taken with their noise.
- `best_prior`, `best_posterior`, `drawn_error`: not in the paper.

Assumptions and proofs: docs/explanation/pefll-bounds.md. A measured constant is the largest that
was seen where the run went, so as a rule below the true one (variances have the error of their
sample besides): a convergence bound computed from measured constants is an estimate from below.

One file, as the theorems, what they are checked for and the constants that go into them are read
side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, sqrt
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from archipel.errors import ArchipelError

_FEWEST = 5  # parties from which on sup_p E exp(2 n (mean - p)^2) <= sqrt(n)
_LONGEST = 1 + 1e-9  # s L: a step of 1 / L, rounded, is not too long


# -- convergence -----------------------------------------------------------------------------------


class Constants(NamedTuple):
    """What the convergence bounds need to know of a problem: bounds on norms, none of them squared.

    Without a hyper-network the model itself is what is learnt: leave out the last three.
    """

    smoothness: float  # L, Lipschitz constant of the objective's gradient
    dissimilarity: float  # gamma_G, of parties' gradients about their mean, root mean square
    noise: float  # sigma_1, of one step's gradient as it reaches what is learnt
    local_smoothness: float  # L_1, of a party's loss as a function of its model
    local_gradient: float  # b_1, largest gradient of a party's loss; of a step's, root mean square
    hyper_gradient: float = 1.0  # b_2, largest singular value of the networks' Jacobian
    jacobian_noise: float = 0.0  # sigma_2, of that Jacobian from one example
    model_noise: float = 0.0  # sigma_3, of the model made from one example


class Convergence(NamedTuple):
    """Terms whose sum bounds the mean over rounds of E|grad F|^2."""

    start: float  # from F at the start
    noise: float  # from mini-batches
    dissimilarity: float  # from the sampling of parties
    drift: float  # from several local steps
    jacobian: float  # from descriptors of a batch: the direction is another
    model: float  # from descriptors of a batch: the model is another
    step: float  # s, how far a round goes along the gradient
    valid: bool  # s <= 1 / L; otherwise the bound says nothing

    @property
    def terms(self) -> dict[str, float]:
        """The six terms by name."""
        return dict(zip(self._fields[:6], self[:6], strict=True))

    @property
    def total(self) -> float:
        return sum(self.terms.values())

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(self.terms, key=self.terms.__getitem__)

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {value:.3g}" for name, value in self.terms.items())
        void = "" if self.valid else f"; void, the step {self.step:.3g} is above 1 / smoothness"
        return f"mean squared gradient at most {self.total:.3g} = {parts}{void}"


def printed_convergence_bound(
    constants: Constants,
    *,
    gap: float,  # F(eta_0) - F_*
    sampled: int,  # c
    local_steps: int,  # k
    rounds: int,  # T
    batch: int = 1,  # b, examples in a descriptor
) -> Convergence:
    """Theorem 3.1 as printed, for the steps s = 2 sqrt(c / T), that is lr = s / k at the parties.

    >>> simple = Constants(1.0, 0.5, 0.0, 1.0, 0.1)
    >>> found = printed_convergence_bound(simple, gap=2, sampled=4, local_steps=1, rounds=10_000)
    >>> f"{found.total:.4f}, mostly {found.dominant}: {found.start:.4f}"
    '0.0159, mostly start: 0.0100'
    """
    _check_convergence(constants, gap, sampled, local_steps, rounds, batch)
    L, gamma, sigma_1, L_1, b_1, b_2, sigma_2, sigma_3 = constants
    c, k, T, b = sampled, local_steps, rounds, batch
    s = 2 * sqrt(c / T)
    return Convergence(
        start=gap / sqrt(c * T),
        noise=6 * L * sigma_1**2 / (k * sqrt(c * T)),
        dissimilarity=4 * L * gamma**2 / sqrt(c * T),
        drift=224 * c * L_1**2 * b_1**2 * b_2**2 / T,
        jacobian=8 * b_1**2 * sigma_2**2 / b,
        model=14 * L_1**2 * b_2**2 * sigma_3**2 / b,
        step=s,
        valid=s * L <= _LONGEST,
    )


def convergence_bound(
    constants: Constants,
    *,
    gap: float,  # F(eta_0) - F_*
    parties: int,  # n
    sampled: int,  # c, without replacement
    local_steps: int,  # k
    rounds: int,  # T
    lr: float,  # beta, at the parties
    server_lr: float = 1.0,
    batch: int = 1,  # b, examples in a descriptor
) -> Convergence:
    """Re-derived for plain SGD at parties and server, s = server_lr lr k <= 1 / L.

    2 gap / (s T) + 2 L s V + (1 + L s) D^2, where
    V = sigma_1^2 / (c k) + gamma_G^2 (n - c) / (c (n - 1)) and
    D^2 = 3 (L_1^2 b_1^2 b_2^2 lr^2 (k - 1) (2 k - 1) / 6 + b_1^2 sigma_2^2 / b
             + L_1^2 b_2^2 sigma_3^2 / b).

    Momentum, Adam and clipping are not covered.
    """
    _check_convergence(constants, gap, sampled, local_steps, rounds, batch)
    _check_whole(parties=parties)
    if sampled > parties:
        raise ArchipelError(f"sampled is {sampled} of {parties} parties: give at most {parties}.")
    _check_positive(lr=lr, server_lr=server_lr)
    L, gamma, sigma_1, L_1, b_1, b_2, sigma_2, sigma_3 = constants
    n, c, k, T, b = parties, sampled, local_steps, rounds, batch
    s = server_lr * lr * k
    left_out = (n - c) / (n - 1) if n > 1 else 0.0
    bias = 3 * (1 + L * s)
    return Convergence(
        start=2 * gap / (s * T),
        noise=2 * L * s * sigma_1**2 / (c * k),
        dissimilarity=2 * L * s * gamma**2 * left_out / c,
        drift=bias * (L_1 * b_1 * b_2 * lr) ** 2 * (k - 1) * (2 * k - 1) / 6,
        jacobian=bias * b_1**2 * sigma_2**2 / b,
        model=bias * L_1**2 * b_2**2 * sigma_3**2 / b,
        step=s,
        valid=s * L <= _LONGEST,
    )


def _check_convergence(
    constants: Constants, gap: float, sampled: int, local_steps: int, rounds: int, batch: int
) -> None:
    for name, value in {**constants._asdict(), "gap": gap}.items():
        if not 0 <= value < float("inf"):
            raise ArchipelError(f"{name} is {value}: give a finite number, at least 0.")
    _check_whole(sampled=sampled, local_steps=local_steps, rounds=rounds, batch=batch)


def _check_whole(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ArchipelError(f"{name} is {value}: give a whole number from 1.")


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise ArchipelError(f"{name} is {value}: give a finite number above 0.")


# -- generalisation --------------------------------------------------------------------------------


class Generalisation(NamedTuple):
    """Terms whose sum bounds, with probability 1 - delta, the expected loss at a new party."""

    training_error: float  # mean over parties of the mean over their training points
    new_parties: float  # for having seen only n parties
    few_points: float  # for having seen only m_i points of each

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing: a loss in [0, 1] is at most 1 anyway."""
        return self.total >= 1

    def __str__(self) -> str:
        parts = " + ".join(f"{name} {value:.3g}" for name, value in self._asdict().items())
        says = "; vacuous, a loss is at most 1 anyway" if self.vacuous else ""
        return f"expected loss at a new party at most {self.total:.3g} = {parts}{says}"


def gaussian_kl(
    weights: Tensor,
    prior_sd: float,
    posterior_sd: float | None = None,  # the prior's, as in the paper
    prior: Tensor | float = 0.0,  # the prior's mean; may be the initial weights, never the data's
) -> Tensor:
    """KL(N(weights, posterior_sd^2) | N(prior, prior_sd^2)), `[..., p] -> [...]`.

    With the defaults |weights|^2 / (2 alpha), the paper's, where alpha = prior_sd^2.

    >>> gaussian_kl(torch.tensor([3.0, 4.0]), prior_sd=5.0)
    tensor(0.5000, dtype=torch.float64)
    """
    posterior_sd = prior_sd if posterior_sd is None else posterior_sd
    _check_positive(prior_sd=prior_sd, posterior_sd=posterior_sd)
    ratio = (posterior_sd / prior_sd) ** 2
    squared: Tensor = ((weights.double() - prior) / prior_sd).square().sum(dim=-1)
    return 0.5 * (squared + weights.shape[-1] * (ratio - 1 - log(ratio)))


def generalisation_bound(
    *,
    training_error: float | Tensor,
    sizes: Tensor | Sequence[int],
    kl_networks: float | Tensor,
    kl_models: float | Tensor,
    delta: float = 0.05,
) -> Generalisation:
    """Theorem 4.2: bound the expected loss, in [0, 1], of the models made for new parties.

    `sizes` are the training points m_i of the n parties. `kl_networks` is KL(Q_h | P_h) +
    KL(Q_v | P_v) of hyper-network and embedding network, `kl_models` every party's
    KL(Q_theta_i | P_theta), `[n]`, or `[draws, n]` for draws of the networks from Q; a number is
    the sum over parties. `training_error`, a number or `[draws]`, is of networks and models drawn
    from their posteriors; a mean over draws is an estimate: see `drawn_error`.

    >>> bound = generalisation_bound(
    ...     training_error=0.1, sizes=[5, 9], kl_networks=1, kl_models=torch.tensor([3.0, 1.0])
    ... )
    >>> bound.vacuous
    True
    """
    _check_delta(delta)
    points = torch.as_tensor(sizes, dtype=torch.float64).reshape(-1)
    error = torch.as_tensor(training_error, dtype=torch.float64)
    networks, models = float(kl_networks), torch.as_tensor(kl_models, dtype=torch.float64)
    n = len(points)
    if n == 0 or not bool((points >= 1).all()):
        raise ArchipelError(f"sizes are {points.tolist()}: give every party's points, at least 1.")
    _check_losses("training_error", error)
    if models.dim() > 2 or (models.dim() > 0 and (models.shape[-1] != n or len(models) == 0)):
        raise ArchipelError(
            f"kl_models has the shape {list(models.shape)} for {n} parties: give one divergence a "
            f"party, [{n}] or [draws, {n}], or a number, their sum."
        )
    models = models.sum(dim=-1) if models.dim() else models
    if not (networks >= 0 and bool((models >= 0).all())):
        raise ArchipelError(
            "kl_networks or kl_models is below 0: give divergences, see `gaussian_kl`."
        )
    m = float(n / points.reciprocal().sum())  # harmonic mean
    moment = sqrt(n) if n >= _FEWEST else 2 * sqrt(n)
    return Generalisation(
        training_error=float(error.mean()),
        new_parties=sqrt((networks + log(2 * moment / delta)) / (2 * n)),
        few_points=float(((models + log(8 * m * n / delta) + 1) / (2 * m * n)).sqrt().mean()),
    )


def drawn_error(errors: Tensor, delta: float) -> float:
    """Bound the mean of losses in [0, 1] from independent draws `[r]`, with probability 1 - delta.

    By Hoeffding. With it as the training error, the deltas of both bounds add up.
    """
    _check_delta(delta)
    _check_losses("errors", errors)
    return min(1.0, float(errors.double().mean()) + sqrt(log(1 / delta) / (2 * errors.numel())))


def best_posterior(
    bound: Callable[[float], Generalisation], sds: Sequence[float]
) -> tuple[float, Generalisation]:
    """Return the posterior's sd with the smallest bound, and that bound, with no loss in delta.

    A PAC-Bayes bound holds for all posteriors at once, so that the data may choose among them.
    """
    _check_some(sds)
    return min(((sd, bound(sd)) for sd in sds), key=lambda found: found[1].total)


def best_prior(
    bound: Callable[[float, float], Generalisation], sds: Sequence[float], delta: float = 0.05
) -> tuple[float, Generalisation]:
    """Return the prior's sd with the smallest bound, and that bound, given as bound(sd, delta).

    A prior is chosen before the data is seen: to choose among J, each has delta / J.
    """
    _check_some(sds)
    return best_posterior(lambda sd: bound(sd, delta / len(sds)), sds)


def _check_some(sds: Sequence[float]) -> None:
    if len(sds) == 0:
        raise ArchipelError("sds is empty: give at least one standard deviation to choose from.")


def _check_losses(name: str, losses: Tensor) -> None:
    if losses.numel() == 0:
        raise ArchipelError(f"{name} is empty: give at least one loss.")
    if not bool(((losses >= 0) & (losses <= 1)).all()):
        raise ArchipelError(f"{name} is {losses.tolist()}: give losses between 0 and 1.")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ArchipelError(f"delta is {delta}: give a probability between 0 and 1.")


# -- measured constants: the largest seen, the true ones may be larger -----------------------------


def smoothness(points: Tensor, gradients: Tensor) -> float:
    """L along a path: largest |g(w') - g(w)| / |w' - w| of neighbours, `[t, ..., p]` twice.

    The gradients must be of one function, not of changing mini-batches; dimensions between are
    parties.
    """
    if len(points) < 2:
        raise ArchipelError(f"points are {len(points)}: give at least 2, with their gradients.")
    return gain(points.diff(dim=0), gradients.diff(dim=0))


def sharpness(
    gradient: Callable[[Tensor], Tensor],
    w: Tensor,
    steps: int = 20,
    distance: float = 1e-3,
    generator: torch.Generator | None = None,
) -> float:
    """L at a point `[p]`, in all directions: power iteration on differences of the gradient.

    Needs two gradients a step. `distance` is that of the difference: too small a one drowns in
    rounding (in single precision 1e-3 of the weights' scale is about right).
    """
    direction = torch.randn(w.shape, generator=generator, dtype=w.dtype).to(w.device)
    largest = 0.0
    for _ in range(steps):
        direction = direction / torch.linalg.vector_norm(direction)
        ahead, behind = gradient(w + distance * direction), gradient(w - distance * direction)
        direction = (ahead - behind) / (2 * distance)
        length = float(torch.linalg.vector_norm(direction))
        if length == 0.0:
            break
        largest = max(largest, length)
    return largest


def dissimilarity(gradients: Tensor) -> float:
    """gamma_G of parties' gradients `[..., n, p]` at the same point; the largest over points."""
    about = gradients.double() - gradients.double().mean(dim=-2, keepdim=True)
    return float(about.square().sum(dim=-1).mean(dim=-1).max().sqrt())


def noise(gradients: Tensor) -> float:
    """sigma_1 from gradients of r >= 2 batches `[..., r, p]` at the same point; the largest."""
    r = gradients.shape[-2]
    if r < 2:
        raise ArchipelError(f"gradients are of {r} batch: give those of at least 2 batches.")
    about = gradients.double() - gradients.double().mean(dim=-2, keepdim=True)
    return float((about.square().sum(dim=(-2, -1)) / (r - 1)).max().sqrt())


def largest_norm(gradients: Tensor) -> float:
    """b_1 from gradients `[..., p]`."""
    return float(torch.linalg.vector_norm(gradients.double(), dim=-1).max())


def gain(inputs: Tensor, outputs: Tensor) -> float:
    """Largest |output| / |input| of vectors `[..., p]`, `[..., q]`; of zero inputs none.

    b_2 from the differences that parties send in PeFLL and the gradients made of them.
    """
    length = torch.linalg.vector_norm(inputs.double(), dim=-1)
    ratio = torch.linalg.vector_norm(outputs.double(), dim=-1) / length
    return float(torch.where(length > 0, ratio, 0.0).max())


def batch_noise(values: Tensor, whole: Tensor, batch: int) -> float:
    """sigma_3 from models `[..., r, q]` of r descriptors and the one of all points `[..., q]`.

    sigma_2 from the products of the Jacobians' transposes with one vector of length 1.
    """
    squared = (values.double() - whole.double().unsqueeze(-2)).square().sum(dim=-1)
    return float((batch * squared.mean(dim=-1)).max().sqrt())


def measure(
    path: Tensor,
    party_gradient: Callable[[Tensor], Tensor],
    batch_gradient: Callable[[Tensor], Tensor] | None = None,
) -> Constants:
    """Measure the constants of a run without hyper-network on its path `[t, p]`, t >= 2.

    `party_gradient(w)` gives all parties' gradients `[n, p]` at one point, of all their points;
    `batch_gradient(w)` those of r batches each, `[n, r, p]`.
    """
    gradients = torch.stack([party_gradient(w) for w in path])
    batches = None if batch_gradient is None else torch.stack([batch_gradient(w) for w in path])
    local_gradient = largest_norm(gradients)
    if batches is not None:  # a step's gradient has its noise
        squared = batches.double().square().sum(dim=-1).mean(dim=-1)
        local_gradient = max(local_gradient, float(squared.max().sqrt()))
    return Constants(
        smoothness=smoothness(path, gradients.mean(dim=1)),
        dissimilarity=dissimilarity(gradients),
        noise=0.0 if batches is None else noise(batches),
        local_smoothness=smoothness(path.unsqueeze(1).expand_as(gradients), gradients),
        local_gradient=local_gradient,
    )
