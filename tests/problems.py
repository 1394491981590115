"""Small random federations and models for properties over shapes."""

import numpy as np
import torch
from torch import nn

import archipel as ar


def regression(parties: int, dims: int, seed: int, equal: bool = False) -> ar.Federation:
    """Linear data with a different truth at every party, in double precision."""
    random = np.random.default_rng(seed)
    sizes = [4] * parties if equal else random.integers(1, 9, parties)
    xs = [random.standard_normal((n, dims)) for n in sizes]
    ys = [x @ random.standard_normal(dims) for x in xs]
    return ar.Federation.from_arrays(
        [torch.from_numpy(x) for x in xs], [torch.from_numpy(y) for y in ys], test=0.0
    )


def classification(
    parties: int, dims: int, classes: int, seed: int, dtype: torch.dtype = torch.float64
) -> ar.Federation:
    """Random features and labels, parties of unequal size."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 11, parties)
    xs = [torch.from_numpy(random.standard_normal((n, dims))).to(dtype) for n in sizes]
    ys = [torch.from_numpy(random.integers(0, classes, n)) for n in sizes]
    ys[0][0] = classes - 1
    return ar.Federation.from_arrays(xs, ys, test=0.0)


def linear(dims: int) -> ar.Model:
    """A linear model without bias, from zero."""
    module = nn.Linear(dims, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    return ar.Model(module, "squared_error")


def network(dims: int, classes: int, seed: int = 0, hidden: int = 5) -> ar.Model:
    """A small two-layer network in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(dims, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return ar.Model(module.double())


def learn(algorithm, data, model, rounds=3, plan=None, ids=None, **options):
    """The model after some rounds with everybody (or `ids`)."""
    plan = plan or ar.Plan("one", 4, 1)
    with ar.LocalEngine(algorithm, data, model, plan=plan, **options) as engine:
        for t in range(rounds):
            engine.round(t, range(data.training) if ids is None else ids)
        return engine.vector().clone()
