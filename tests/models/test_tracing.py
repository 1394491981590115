"""A model is traced in one thread while others compute: neither notices."""

from concurrent.futures import ThreadPoolExecutor

import torch

from archipel.models import stacked
from problems import network


def test_who_computes_meanwhile_is_not_traced():
    """torch.fx has every module of the process ask the tracer, whichever thread calls it."""
    model = network(4, 3)
    x = torch.arange(20.0, dtype=torch.float64).view(5, 4) / 10
    module = model.to_module(model.w, None)
    expected = module(x)

    def traced():
        return [
            len(stacked.trace(network(4, 3).to_module(model.w, None), model)) for _ in range(40)
        ]

    def computed():
        return all(torch.equal(module(x), expected) for _ in range(2000))

    with ThreadPoolExecutor(4) as pool:
        tracing, computing = [[pool.submit(work) for _ in range(2)] for work in (traced, computed)]
        layers = {count for future in tracing for count in future.result()}
        assert all(future.result() for future in computing)

    assert len(layers) == 1
    assert torch.equal(module(x), expected)
