"""Coordinate descent on a graph with a penalty on every model, and from a warm start."""

import torch
from test_without_rounds import N, P, confidence, degrees, learned, problem

from archipel.algorithms.coordinate import Coordinate
from archipel.graphs import topology


def test_the_penalty_is_a_part_of_every_party_s_loss():
    data, _, hessian, target = problem()
    smooth, l2, mu = float(torch.linalg.eigvalsh(hessian).max()), 4.0, 0.7
    algorithm = Coordinate(mu=mu, smoothness=smooth, confident=20, l2=l2, warm_rounds=3)
    own, _ = learned(algorithm, "ring", 400)
    weight = mu * degrees("ring") * confidence()
    W = torch.from_numpy(topology("ring", N).affinity().toarray())
    whole = torch.kron(torch.diag(W.sum(1)) - W, torch.eye(P, dtype=torch.float64))
    ridge = (l2 / data.n.double())[:, None, None] * torch.eye(P, dtype=torch.float64)
    whole = whole + torch.block_diag(*(weight[:, None, None] * (hessian + ridge)))
    expected = torch.linalg.solve(whole, (weight[:, None] * target).flatten()).view(N, P)

    torch.testing.assert_close(own, expected, rtol=0, atol=1e-8)


def test_a_warm_start_is_what_everybody_learns_alone():
    data, _, hessian, target = problem()
    smooth = float(torch.linalg.eigvalsh(hessian).max())
    own, _ = learned(Coordinate(smoothness=smooth, l2=4.0, warm_rounds=400), "ring", 400)
    ridge = (4.0 / data.n.double())[:, None, None] * torch.eye(P, dtype=torch.float64)
    alone = torch.linalg.solve(hessian + ridge, target)

    torch.testing.assert_close(own, alone, rtol=0, atol=1e-8)
