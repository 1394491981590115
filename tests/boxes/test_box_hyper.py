"""pFedHN and PeFLL: a hyper-network at the server, box by box, with plain autograd."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import archipel as ar
from archipel import rng
from archipel.algorithms.pefll import Scale
from archipel.engines.party import blueprint
from archipel.training.schedules import Decay
from boxes.small import SEED, logistic, network, run, same

ROUNDS, SAMPLE = 3, 3


def first_state(algorithm, P):
    """The server's, before the first round: what it draws is no part of a box."""
    return algorithm.init(P.model.w, blueprint(P.model, P.data, SEED))[0]


def h(eta, v, widths):
    """A hyper-network: dense layers with ReLU between them, W and b of each in turn."""
    at = 0
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        W = eta[at : at + inputs * outputs].view(outputs, inputs)
        b = eta[at + inputs * outputs : at + inputs * outputs + outputs]
        at += inputs * outputs + outputs
        v = W @ (v if i == 0 else torch.relu(v)) + b
    assert at == len(eta)
    return v


def pulled(output, inputs, d):
    """(d output / d input)^T d, for each input."""
    return torch.autograd.grad(output, inputs, d)


def clipped(g, at):
    return g * min(1.0, at / float(g.norm()))


def local(P, k, batches, theta, lr, K, momentum, decay):
    """theta after K local steps of SGD."""
    theta, u = theta.detach().numpy(), 0
    for _ in range(K):
        u = momentum * u + P.grad(k, theta, next(batches)) + decay * theta
        theta = theta - lr * u
    return torch.from_numpy(theta)


class PFedHNBox:
    """Shamsian et al. 2021, Algorithm 1, for several parties a round."""

    def __init__(self, P, a):
        self.P, self.a = P, a
        self.widths = (a.size, a.hidden, a.hidden, a.hidden, P.model.p)  # three hidden layers
        self.phi = first_state(a, P).phi

    def descriptor(self, k, t):
        """The first one, drawn when a party first takes part."""
        return torch.from_numpy(rng.generator(SEED, t, k, "normal", 1).standard_normal(self.a.size))

    def exchange(self, k, v, batches):
        """theta_i = h(v_i; phi), K local steps, and the gradients of phi and v_i."""
        a = self.a
        phi, v = self.phi.clone().requires_grad_(), v.clone().requires_grad_()
        theta = h(phi, v, self.widths)
        tilde = local(self.P, k, batches, theta, a.lr, a.local_steps, 0.9, 5e-5)
        return theta.detach(), pulled(theta, (phi, v), theta.detach() - tilde)

    def train(self, cohorts):
        a, u, self.v = self.a, 0, {}
        for t, S in enumerate(cohorts):
            thetas, found = [], []
            for k in map(int, S):
                v = self.v[k] if k in self.v else self.descriptor(k, t)
                theta, (g_phi, g_v) = self.exchange(k, v, self.P.batches(k, t, a.batch_size))
                self.v[k] = v - a.descriptor_lr * g_v
                thetas.append(theta)
                found.append(g_phi)
            g = clipped(torch.stack(found).mean(dim=0), a.clip_at) + 1e-3 * self.phi
            u = 0.9 * u + g
            self.phi = self.phi - a.server_lr.at(t) * u
        self.theta = torch.stack(thetas).mean(dim=0)

    def model(self, k, t):
        """h(v_i; phi); a new party first learns v_i, with phi as it is."""
        a, v = self.a, self.v.get(k)
        if v is None:
            v, b = torch.zeros(a.size, dtype=torch.float64), self.P.batches(k, t, a.batch_size)
            for _ in range(a.new_steps):
                v = v - a.descriptor_lr * self.exchange(k, v, b)[1][1]
        return h(self.phi, v, self.widths)


@pytest.mark.parametrize(
    ("problem", "clip_at"), [(logistic(), 50.0), (network(), 0.3)], ids=["softmax", "clipped"]
)
def test_pfedhn_is_its_box(problem, clip_at):
    sizes = {"size": 5, "hidden": 6, "local_steps": 4, "batch_size": 3, "new_steps": 3}
    rates = {"lr": 0.1, "server_lr": Decay(0.05, 0.5), "descriptor_lr": 0.2}
    algorithm = ar.PFedHN(**rates, **sizes, clip_at=clip_at)

    done = run(algorithm, problem, ROUNDS, SAMPLE)
    box = PFedHNBox(problem, algorithm)
    box.train(done.cohorts)

    same(done.w, box.theta)
    same(done.shared[1], box.phi)
    same(done.models, [box.model(k, ROUNDS) for k in range(problem.data.parties)])


def one_hot(y, classes):
    return torch.eye(classes, dtype=torch.float64)[torch.as_tensor(y)]


def embedding_of_labels(eta, x, y, size, classes):
    """v = mean of a linear map of the label."""
    return sum(eta.view(size, classes) @ label for label in one_hot(y, classes)) / len(y)


def embedding_of_examples(eta, x, y, size, classes, width=100):
    """v = mean phi(x, y): a perceptron, the label in its first and last layers."""
    d = x.shape[1]
    shapes = (size, classes), (width, classes), (width, d), (width,), (width, width), (width,)
    parts, at = [], 0
    for shape in (*shapes, (size, width), (size,)):
        count = int(np.prod(shape))
        parts.append(eta[at : at + count].view(shape))
        at += count
    assert at == len(eta)
    direct, first, W1, b1, W2, b2, W3, b3 = parts
    v = 0
    for point, label in zip(torch.as_tensor(x), one_hot(y, classes), strict=True):
        a = torch.relu(W1 @ point + b1 + first @ label)
        v = v + direct @ label + W3 @ torch.relu(W2 @ a + b2) + b3
    return v / len(y)


EMBEDDINGS = {"labels": embedding_of_labels, "examples": embedding_of_examples}


class PeFLLBox:
    """Scott, Zakerinia & Lampert 2024, Algorithm 1, with the departures that the module names.

    Embeddings reach h as (v - mean) / sd over parties, cut at 10: of the first round, then a
    twentieth new. Both are of embeddings cut at 10 sd, without those 100 times as long as usual.
    """

    def __init__(self, P, a):
        self.P, self.a = P, a
        self.widths = (a.size, a.hidden, a.hidden, a.hidden, P.model.p)
        start = first_state(a, P)
        self.eta_v, self.eta_h, self.mean_h = start.eta_v, start.eta_h, start.eta_h

    def embedding(self, eta_v, k, batch=None):
        x, y = self.P.points(k)
        x, y = (x, y) if batch is None else (x[batch], y[batch])
        return EMBEDDINGS[self.a.embedding](eta_v, x, y, self.a.size, self.P.data.classes)

    def rescale(self, v, t):
        usual = v.norm(dim=1).median()
        v = torch.stack([v_i for v_i in v if v_i.norm() <= 100 * usual])
        if t == 0:
            self.mean, self.variance = v.mean(dim=0), ((v - v.mean(dim=0)) ** 2).mean(dim=0)
            return
        v = self.mean + self.sd * ((v - self.mean) / self.sd).clamp(-10, 10)
        self.mean = 0.95 * self.mean + 0.05 * v.mean(dim=0)
        self.variance = 0.95 * self.variance + 0.05 * ((v - self.mean) ** 2).mean(dim=0)

    @property
    def sd(self):
        return (self.variance + 1e-3 * (self.mean**2).mean() + 1e-12).sqrt()

    def model_of(self, eta_h, v):
        return h(eta_h, ((v - self.mean) / self.sd).clamp(-10, 10), self.widths)

    def train(self, cohorts):
        P, a = self.P, self.a
        m_h = v_h = m_v = v_v = 0.0  # Adam's
        for t, S in enumerate(cohorts):
            eta_v = self.eta_v.clone().requires_grad_()
            eta_h = self.eta_h.clone().requires_grad_()
            batches = {k: P.batches(k, t, a.batch_size) for k in S}
            v = [self.embedding(eta_v, k, next(batches[k])) for k in S]
            self.rescale(torch.stack(v).detach(), t)
            thetas, g_h, g_v = [], [], []
            for k, v_i in zip(S, v, strict=True):
                sent = v_i.detach().requires_grad_()
                theta = self.model_of(eta_h, sent)
                new = local(P, k, batches[k], theta, a.lr, a.local_steps, 0.0, 0.04)
                on_h, dv = pulled(theta, (eta_h, sent), theta.detach() - new)
                g_h.append(on_h)
                g_v.append(pulled(v_i, (eta_v,), dv)[0])
                thetas.append(theta.detach())
            g_h = sum(g_h) / len(S) + 2 * a.weight_decay * self.eta_h
            g_v = sum(g_v) / len(S) + 2 * a.weight_decay * self.eta_v
            both = clipped(torch.cat([g_h, g_v]), a.clip_at)
            g_h, g_v = both[: len(g_h)], both[len(g_h) :]
            m_h, v_h = 0.9 * m_h + 0.1 * g_h, 0.999 * v_h + 0.001 * g_h**2
            m_v, v_v = 0.9 * m_v + 0.1 * g_v, 0.999 * v_v + 0.001 * g_v**2
            one, two = 1 - 0.9 ** (t + 1), 1 - 0.999 ** (t + 1)
            step_h = m_h / one / ((v_h / two).sqrt() + 1e-8)
            step_v = m_v / one / ((v_v / two).sqrt() + 1e-8)
            self.eta_h = self.eta_h - a.server_lr.at(t) * step_h
            self.eta_v = self.eta_v - a.server_lr.at(t) * a.embedding_lr * step_v
            share = max(
                a.averaging, 1 / (t + 1)
            )  # the mean of the first rounds, then a running one
            self.mean_h = (1 - share) * self.mean_h + share * self.eta_h
        self.theta = torch.stack(thetas).mean(dim=0)

    def model(self, k):
        """From all of a party's training points, whether it trained or not."""
        return self.model_of(self.mean_h, self.embedding(self.eta_v, k))


def far():
    """The network's federation with a party that is far from all others."""
    P, x = network(), network().data.x.clone()
    x[P.data.offsets[1] : P.data.offsets[2]] *= 1e4
    return P._replace(data=replace(P.data, x=x))


@pytest.mark.parametrize(
    ("problem", "embedding", "clip_at", "decay"),
    [
        (network(), "labels", 50.0, 0.0),
        (network(), "examples", 50.0, 0.0),
        (network(), "examples", 0.2, 0.03),
        (far(), "examples", 50.0, 0.0),
    ],
    ids=["labels", "examples", "clipped", "far"],
)
def test_pefll_is_its_box(problem, embedding, clip_at, decay):
    sizes = {"size": 5, "hidden": 6, "local_steps": 4, "batch_size": 3}
    rates = {"lr": 0.1, "server_lr": Decay(0.01, 0.5), "embedding_lr": 0.4, "averaging": 0.4}
    own = {"optimiser": ar.SGD(weight_decay=0.04), "weight_decay": decay, "clip_at": clip_at}
    algorithm = ar.PeFLL(**rates, **sizes, **own, embedding=embedding)

    done = run(algorithm, problem, ROUNDS, SAMPLE)
    box = PeFLLBox(problem, algorithm)
    box.train(done.cohorts)

    # Adam divides by sqrt(v) + 1e-8: where a gradient is near that, its rounding counts
    same(done.w, box.theta, 1e-9)
    same(done.shared[1], box.eta_v, 1e-9)
    same(done.shared[2], box.eta_h, 1e-9)
    same(done.models, [box.model(k) for k in range(problem.data.parties)], 1e-9)


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e-3])
def test_pefll_leaves_a_far_party_out_also_beside_a_single_other(unit):
    v = unit * torch.tensor([[1.0, 1.0], [1e4, -1e4]]).double()
    none = torch.zeros(2).double()

    found = Scale(none, none).renewed(v, torch.zeros(1).double())

    same(found.mean, [unit, unit])
    same(found.variance, [0.0, 0.0])
