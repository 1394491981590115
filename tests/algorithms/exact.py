"""Parties with quadratic losses f_i(x) = x' H_i x / 2 - b_i' x, whose solutions are known."""

from typing import NamedTuple

import torch
from torch import Tensor

from archipel.training.descent import descend, work_of
from archipel.tree import tree_map


class Parties:
    """A stack of n parties as an algorithm's `me`; every batch is all of a party's data."""

    def __init__(self, parties, dims, seed=0, low=0.2, high=1.0, alike=False, dtype=torch.float64):
        """Curvatures from low to high, both present; `alike` gives all parties the same H."""
        random = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=random, dtype=torch.float64)

        kinds = 1 if alike else parties
        rotation = torch.linalg.qr(normal(kinds, dims, dims)).Q
        curvature = low + (high - low) * torch.rand(kinds, dims, generator=random).double()
        curvature[:, 0] = high
        if dims > 1:
            curvature[:, -1] = low
        self.H = (rotation * curvature[:, None] @ rotation.mT).to(dtype).expand(parties, -1, -1)
        self.b = (self.H @ normal(parties, dims, 1).to(dtype))[..., 0]
        self.start = normal(dims).to(dtype)
        self.n, self.round = torch.ones(parties, 1, dtype=dtype), 0

    def batch(self, size, going=None):
        return None

    def grad(self, w, batch=None):
        return (self.H @ w.expand_as(self.b)[..., None])[..., 0] - self.b

    def loss(self, w, batch=None):
        w = w.expand_as(self.b)
        return ((self.grad(w) - self.b) * w).sum(dim=-1, keepdim=True) / 2

    def steps(self, work):
        task = work_of(work)
        return (task.local_steps or task.local_epochs) * torch.ones_like(self.n)

    def descend(self, w, work, shift=None, pull=0.0, towards=None):
        return descend(self, w, work, shift, pull, towards)

    def alone(self):
        """Every party's own optimum, `[n, d]`."""
        return torch.linalg.solve(self.H, self.b)

    def common(self):
        """The minimiser of the mean loss, `[d]`."""
        return torch.linalg.solve(self.H.mean(dim=0), self.b.mean(dim=0))

    def mean_regularised(self, lam):
        """Minimisers of sum_i f_i(x_i) + lam/2 ||x_i - xbar||^2: a block linear system."""
        n, d = self.b.shape
        centring = torch.kron(torch.eye(n).to(self.b) - 1 / n, torch.eye(d).to(self.b))
        system = torch.block_diag(*self.H) + lam * centring
        return torch.linalg.solve(system, self.b.flatten()).view(n, d)

    def proximal(self, w, lam):
        """Minimisers of f_i(x) + lam/2 ||x - w||^2, `[n, d]`."""
        eye = lam * torch.eye(self.b.shape[1]).to(self.b)
        return torch.linalg.solve(self.H + eye, self.b + lam * w)


class Sent(NamedTuple):
    """Uploads of all parties."""

    rows: Tensor

    @property
    def sampled(self):
        return len(self.rows)

    @property
    def parties(self):
        return len(self.rows)

    def mean(self, by_examples=False):
        return self.rows.mean(dim=0)


def rounds(algorithm, me):
    """Run rounds with all parties for ever: the shared state and the own models after each."""
    shared, own = algorithm.init(me.start)
    own = tree_map(lambda leaf: leaf.expand(len(me.n), *leaf.shape), own)
    me.round = 0
    while True:
        upload, own = algorithm.party(me, shared, own)
        shared = algorithm.server(shared, Sent(upload))
        me.round += 1
        yield shared, algorithm.personal(me, shared, own)


def run(algorithm, me, count):
    """The shared state and the own models after so many rounds."""
    for _, state in zip(range(count), rounds(algorithm, me), strict=False):
        last = state
    return last


def rounds_until(algorithm, me, models, tolerance):
    """Rounds until own models are this near to `models`, relative to where they started."""
    far = (me.start - models).norm()
    reached = (
        count
        for count, (_, own) in enumerate(rounds(algorithm, me), start=1)
        if (own - models).norm() <= tolerance * far
    )
    return next(reached)
