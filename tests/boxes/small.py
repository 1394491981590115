"""Small federations with their gradients written out in NumPy, and the engine's runs of them.

The boxes of the papers run on the former, one party at a time. What both share is the data, the
first model, who takes part, and which points a mini-batch has: draws, which no paper fixes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import root
from torch import nn

import archipel as ar
from archipel import rng
from archipel.engines.batches import Batches
from archipel.graphs import topology
from archipel.tree import leaves

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SEED, ROUNDS, SAMPLE = 3, 4, 4
SIZES = (4, 11, 6, 9, 1, 7, 5)  # training points; the last party never trains
DIMS, CLASSES, HIDDEN = 3, 3, 4


class Problem(NamedTuple):
    """Parties k = 0, 1, ... with points (x, y), and the gradient of their mean loss."""

    data: ar.Federation
    model: ar.Model
    plan: ar.Plan
    formula: Callable[[Floats, Floats, Any], Floats]  # w, x, y -> gradient

    @property
    def parties(self) -> int:
        """N: those that train."""
        return self.data.training

    @property
    def start(self) -> Floats:
        return self.model.w.numpy().copy()

    def n(self, k: int) -> int:
        return len(self.points(k)[0])

    def points(self, k: int) -> tuple[Floats, Any]:
        x, y, _, _ = self.data.party(int(k))
        return x.numpy(), y.numpy()

    def grad(self, k: int, w: Floats, batch: Ints | None = None) -> Floats:
        """Of the mean loss over a batch of party k; over all its training points without one."""
        x, y = self.points(k)
        return self.formula(w, x, y) if batch is None else self.formula(w, x[batch], y[batch])

    def batches(self, k: int, t: int, size: int | None) -> Iterator[Ints]:
        """The mini-batches that party k draws in round t, in turn: places in its points."""
        n, keys = np.array([self.n(k)]), rng.keys(rng.key(SEED, t, "batches"), np.array([int(k)]))
        stream = Batches(np.array([0]), n, keys, torch.float64)
        while True:
            drawn = stream.draw(size)
            yield drawn.rows[0, 0, : drawn.lengths[0, 0]].numpy()

    def steps(self, k: int, size: int | None, epochs: int = 1) -> int:
        """E n_k / B, the last batch of a pass short."""
        return epochs if size is None else epochs * -(-self.n(k) // size)

    def proximal(self, k: int, centre: Floats, lam: float) -> Floats:
        """argmin f_k(x) + lam/2 ||x - centre||^2, to rounding."""
        slope = lambda x: self.grad(k, x) + lam * (x - centre)  # noqa: E731
        found = np.asarray(root(slope, centre, tol=1e-14).x)
        assert np.abs(slope(found)).max() < 1e-11
        return found

    def weights(self, cohort: Sequence[int] | Ints) -> Floats:
        """n_k / n, n the points of these parties."""
        n = np.array([self.n(k) for k in cohort])
        return n / n.sum()


def _targets(kind: str, x: Floats, random: np.random.Generator) -> Any:
    if kind == "least squares":
        return x @ random.standard_normal(DIMS) + 0.3 * random.standard_normal(len(x))
    return (x @ random.standard_normal((DIMS, CLASSES))).argmax(axis=1)


def _federation(kind: str) -> ar.Federation:
    random = np.random.default_rng(len(kind))
    sizes = [max(n, 2) for n in SIZES] if kind == "normalised" else SIZES  # a batch has a variance
    xs = [random.standard_normal((n + 3, DIMS)) for n in sizes]
    ys = [_targets(kind, x, random) for x in xs]
    test = [
        (torch.tensor(x[n:]), torch.tensor(y[n:])) for n, x, y in zip(sizes, xs, ys, strict=True)
    ]
    return ar.Federation.from_arrays(
        [torch.tensor(x[:n]) for n, x in zip(sizes, xs, strict=True)],
        [torch.tensor(y[:n]) for n, y in zip(sizes, ys, strict=True)],
        test=test,
        new=1,
        classes=None if kind == "least squares" else CLASSES,
    )


def _softmax_minus_labels(z: Floats, y: Ints) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True) - np.eye(CLASSES)[y])


def squares(w: Floats, x: Floats, y: Floats) -> Floats:
    """Of mean (x'w - y)^2 / 2."""
    return np.asarray(x.T @ (x @ w - y) / len(x))


def softmax(w: Floats, x: Floats, y: Ints) -> Floats:
    """Of mean -log softmax(Wx + b)_y."""
    W, b = w[: CLASSES * DIMS].reshape(CLASSES, DIMS), w[CLASSES * DIMS :]
    r = _softmax_minus_labels(x @ W.T + b, y) / len(x)
    return np.concatenate([(r.T @ x).ravel(), r.sum(axis=0)])


def split(w: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """W1 [h, d], b1, W2 [k, h], b2 of the small network."""
    ends = np.cumsum([HIDDEN * DIMS, HIDDEN, CLASSES * HIDDEN])
    W1, b1, W2, b2 = np.split(w, ends)
    return W1.reshape(HIDDEN, DIMS), b1, W2.reshape(CLASSES, HIDDEN), b2


BODY = np.arange(HIDDEN * DIMS + HIDDEN + CLASSES * HIDDEN + CLASSES) < HIDDEN * (DIMS + 1)


def backward(w: Floats, x: Floats, y: Ints) -> Floats:
    """Of mean -log softmax(W2 tanh(W1 x + b1) + b2)_y."""
    W1, b1, W2, b2 = split(w)
    h = np.tanh(x @ W1.T + b1)
    r = _softmax_minus_labels(h @ W2.T + b2, y) / len(x)
    s = (r @ W2) * (1 - h**2)
    return np.concatenate([(s.T @ x).ravel(), s.sum(axis=0), (r.T @ h).ravel(), r.sum(axis=0)])


def _model(module: nn.Module, loss: str) -> ar.Model:
    random = torch.Generator().manual_seed(1)
    module = module.double()
    for tensor in module.parameters():
        tensor.data = torch.randn(tensor.shape, generator=random, dtype=torch.float64) / 2
    return ar.Model(module, loss)


@cache
def least_squares() -> Problem:
    model = _model(nn.Linear(DIMS, 1, bias=False), "squared_error")
    return Problem(_federation("least squares"), model, ar.Plan("stacked", 3, 1), squares)


@cache
def logistic() -> Problem:
    model = _model(nn.Linear(DIMS, CLASSES), "cross_entropy")
    return Problem(_federation("logistic"), model, ar.Plan("one", 2, 1), softmax)


@cache
def network() -> Problem:
    layers = nn.Linear(DIMS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    model = _model(nn.Sequential(*layers), "cross_entropy")
    return Problem(_federation("network"), model, ar.Plan("vmapped", 4, 1), backward)


def through_batchnorm(w: Floats, x: Floats, y: Ints) -> Floats:
    """Of mean -log softmax(W2 tanh(g (z - mean) / sd + s) + b2)_y, z = W1 x + b1, by autograd."""
    vector = torch.from_numpy(w).requires_grad_()
    d, h, k = DIMS, HIDDEN, CLASSES
    W1, b1, g, s, W2, b2 = vector.split([h * d, h, h, h, k * h, k])
    z = torch.from_numpy(x) @ W1.view(h, d).T + b1
    z = g * (z - z.mean(dim=0)) / (z.var(dim=0, correction=0) + 1e-5).sqrt() + s
    logs = (torch.tanh(z) @ W2.view(k, h).T + b2).log_softmax(dim=1)
    loss = -logs[torch.arange(len(y)), torch.from_numpy(y)].mean()
    return torch.autograd.grad(loss, vector)[0].numpy()


@cache
def normalised() -> Problem:
    layers = nn.Linear(DIMS, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    model = _model(nn.Sequential(*layers), "cross_entropy")
    return Problem(_federation("normalised"), model, ar.Plan("one", 2, 1), through_batchnorm)


cases = pytest.mark.parametrize(  # every way to compute; full batches and small ones
    ("problem", "B"),
    [(least_squares(), None), (logistic(), 3), (network(), 4)],
    ids=["squares", "softmax", "network"],
)
convex = pytest.mark.parametrize(
    "problem", [least_squares(), logistic()], ids=["squares", "softmax"]
)


class Done(NamedTuple):
    """What the engine made of it."""

    cohorts: list[Ints]  # who took part, round by round
    efforts: list[Floats]  # and how far each got: 1, or less for a straggler
    w: Floats  # the model: shared, or the mean of the peers'
    shared: list[Floats]  # the server's state
    own: list[Floats]  # the parties' states, a row each
    models: Floats  # [K, p] the model that each party uses, also one that never trained
    losses: list[Floats]  # [K] of these, on training and test points; where asked for

    @property
    def trained(self) -> list[int]:
        """Who ever took part."""
        return sorted({int(k) for S in self.cohorts for k in S})

    @property
    def untrained(self) -> list[int]:
        return sorted(set(range(len(self.models))) - set(self.trained))


def run(
    algorithm: Any,
    problem: Problem,
    rounds: int = ROUNDS,
    sample: int = SAMPLE,
    graph: str | None = None,
    losses: bool = False,
    **who: Any,
) -> Done:
    """`ar.simulate`, and then its rounds once more for the states, which it keeps to itself."""
    data, model, alike = problem.data, problem.model, {"seed": SEED, "plan": problem.plan}
    if graph is not None:
        alike["topology"] = topology(graph, problem.parties, SEED)
    counts = {"rounds": rounds, "sample": sample, "evaluate_every": rounds}
    simulated = ar.simulate(algorithm, data, model, **counts, **alike, **who)
    with ar.LocalEngine(algorithm, data, model, **alike) as engine:
        for t, cohort in enumerate(simulated.participation):
            engine.round(t, cohort.present, cohort.effort)
        assert torch.equal(engine.vector(), simulated.vector)
        everybody = np.arange(data.parties)
        shared = [] if engine.peer else [leaf.numpy() for leaf in leaves(engine.shared)]
        return Done(
            [cohort.present for cohort in simulated.participation],
            [np.asarray(cohort.effort) for cohort in simulated.participation],
            simulated.vector.numpy(),
            shared,
            [leaf.numpy() for leaf in leaves(engine.own_states(everybody))],
            _used(engine) if engine.has_own else np.empty((0, model.p)),
            [_losses(engine, split) for split in ("train", "test")] if losses else [],
        )


def _used(engine: ar.LocalEngine) -> Floats:
    return np.stack([engine.own_model(k)[0].numpy() for k in range(engine.data.parties)])


def _losses(engine: ar.LocalEngine, split: Literal["train", "test"]) -> Floats:
    return engine.evaluate(split=split, own=True).parties["loss"].numpy()


def same(found: Any, expected: Any, within: float = 1e-12) -> None:
    """Both hold numbers of order one, in double precision."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=within)
