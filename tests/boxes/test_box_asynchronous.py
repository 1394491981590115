"""FedBuff and FedAsync, box by box: parties begin from older versions of the model.

Each box follows its paper's pseudo-code, one upload after another; comments give its lines.
"""

import pytest

import archipel as ar
from archipel.algorithms import FedAsync, FedBuff
from boxes.small import SEED, cases, logistic, same
from boxes.test_box_averaging import client_update

# server step by server step: whose uploads came, and the version that each began from
BUFFERED = [([0, 3, 1], [0, 0, 0]), ([2, 0], [0, 1]), ([4, 5, 3], [0, 2, 1]), ([1, 2], [1, 3])]
SINGLE = [([2], [0]), ([0], [0]), ([2], [1]), ([5], [0]), ([1], [0]), ([0], [2]), ([4], [0])]


def engine_of(algorithm, P):
    return ar.LocalEngine(algorithm, P.data, P.model, seed=SEED, plan=P.plan)


def learnt(algorithm, P, steps):
    """The model after these server steps."""
    with engine_of(algorithm, P) as engine:
        for t, (parties, versions) in enumerate(steps):
            later = [v for _, began in steps[t + 1 :] for v in began if v <= t]
            engine.step(t, parties, versions, held=set(later))
        return engine.vector().numpy()


def fedbuff(P, steps, eta_l, eta_g, B, a, by_examples):
    """Nguyen et al. 2022, Algorithm 1, with s(tau) as in its experiments."""
    w = [P.start]
    for t, (parties, versions) in enumerate(steps):
        delta, weight = 0, 0  # line 1
        for k, version in zip(parties, versions, strict=True):
            y_Q = client_update(P, k, version, w[version], eta_l, 1, B)  # Algorithm 2
            s = 1 / (1 + t - version) ** a
            n_k = P.n(k) if by_examples else 1
            delta, weight = delta + n_k * s * (w[version] - y_Q), weight + n_k  # line 6
        w.append(w[t] - eta_g * delta / weight)  # lines 10, 11
    return w[-1]


@cases
@pytest.mark.parametrize("by_examples", [False, True])
def test_fedbuff_is_its_box(problem, B, by_examples):
    algorithm = FedBuff(
        lr=0.2, batch_size=B, server_lr=0.7, buffer=3, discount=0.7, by_examples=by_examples
    )

    w = learnt(algorithm, problem, BUFFERED)

    same(w, fedbuff(problem, BUFFERED, 0.2, 0.7, B, 0.7, by_examples))


def test_fedbuff_weighs_by_the_root_unless_told():
    w = learnt(FedBuff(lr=0.2), logistic(), BUFFERED)

    same(w, fedbuff(logistic(), BUFFERED, 0.2, 1.0, 10, 0.5, False))


def test_fedbuff_has_fields_that_can_work():
    FedBuff(buffer=1, discount=0.0).init(logistic().model.w)

    for name, wrong in {"buffer": 0, "discount": -0.1}.items():
        with pytest.raises(ar.ArchipelError, match=f"{name} = {wrong}: give a"):
            FedBuff(**{name: wrong}).init(logistic().model.w)


def fedasync(P, steps, gamma, rho, B, alpha, s):
    """Xie et al. 2020, Algorithm 1, where t counts the steps before the one that is made."""
    x = [P.start]
    for t, (parties, versions) in enumerate(steps):
        mixed = []
        for k, tau in zip(parties, versions, strict=True):
            x_new, b = x[tau], P.batches(k, tau, B)
            for _ in range(P.steps(k, B)):
                x_new = x_new - gamma * (P.grad(k, x_new, next(b)) + rho * (x_new - x[tau]))
            alpha_t = alpha * s(t - tau)
            mixed.append((1 - alpha_t) * x[t] + alpha_t * x_new)
        x.append(sum(mixed) / len(mixed))  # of one, in the paper
    return x[-1]


KINDS = {
    "constant": lambda late: 1,
    "polynomial": lambda late: (late + 1) ** -0.7,
    "hinge": lambda late: 1 if late <= 2 else 1 / (0.7 * (late - 2) + 1),
}


@cases
@pytest.mark.parametrize("kind", KINDS)
def test_fedasync_is_its_box(problem, B, kind):
    algorithm = FedAsync(
        lr=0.2, rho=0.3, batch_size=B, alpha=0.8, staleness=kind, discount=0.7, patience=2
    )

    x = learnt(algorithm, problem, SINGLE)

    same(x, fedasync(problem, SINGLE, 0.2, 0.3, B, 0.8, KINDS[kind]))


def test_fedasync_of_several_uploads_takes_their_mean():
    algorithm = FedAsync(lr=0.2, rho=0.3, alpha=0.8, discount=0.7, buffer=3)

    x = learnt(algorithm, logistic(), BUFFERED)

    same(x, fedasync(logistic(), BUFFERED, 0.2, 0.3, 10, 0.8, KINDS["polynomial"]))


def test_fedasync_has_fields_that_can_work():
    FedAsync(buffer=1, discount=0.0, patience=0, rho=0.0).init(logistic().model.w)

    for name, wrong in {"buffer": 0, "discount": -0.1, "patience": -1, "rho": -0.1}.items():
        with pytest.raises(ar.ArchipelError, match=f"{name} = {wrong}: give a"):
            FedAsync(**{name: wrong}).init(logistic().model.w)
    with pytest.raises(ar.ArchipelError, match=r"staleness 'hing'.*did you mean 'hinge'"):
        learnt(FedAsync(staleness="hing"), logistic(), SINGLE)
