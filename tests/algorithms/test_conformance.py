"""Every algorithm passes the checks that a plugin's must pass too."""

import pytest

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.conformance import check_algorithm

VARIANTS = [
    *[make() for make in ALGORITHMS.values()],
    ar.FedAvg(local_steps=4, batch_size=2),
    ar.FedAvg(local_epochs=2, batch_size=0.5, lr=ar.Decay(0.1, 0.9)),
    ar.FedAvg(optimiser=ar.SGD(momentum=0.9), batch_size=4),
    ar.FedAvg(optimiser=ar.Adam(), lr=0.01, batch_size=4),
    ar.FedAvg(batch_size=None, local_steps=2),
    ar.FedSGD(batch_size=3),
    ar.FedProx(mu=0.5, batch_size=3),
    ar.Scaffold(option=1, batch_size=3),
    *[ar.FedOpt(server_optimiser=name) for name in ("sgd", "momentum", "adagrad", "yogi")],
    ar.DSGD(overlap=True, batch_size=3),
]


@pytest.mark.parametrize("algorithm", VARIANTS, ids=repr)
def test_conformance(algorithm):
    check_algorithm(algorithm)
