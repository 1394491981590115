"""A stack of parties computes what each computes alone, and fused steps equal plain ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.engines.party import LocalParty
from archipel.engines.plan import ways
from archipel.training.descent import descend
from problems import classification, network

few = settings(max_examples=25, deadline=None)
OPTIMISERS = [ar.SGD(), ar.SGD(momentum=0.9), ar.Adam()]


def stack(data, model, way, ids, seed=0, t=0, lead=None, **options):
    lead = (len(ids),) if lead is None else lead
    return LocalParty(data, model, way, np.array(ids), seed, t, lead, **options)


@few
@given(
    parties=st.integers(1, 6),
    seed=st.integers(0, 999),
    size=st.sampled_from([None, 1, 3, 50, 0.3]),
    steps=st.sampled_from([None, 1, 5]),
    way=st.sampled_from(["one", "vmapped", "stacked"]),
    optimiser=st.sampled_from(OPTIMISERS),
    shifted=st.booleans(),
    pull=st.sampled_from([0.0, 0.7]),
    towards=st.booleans(),
    block=st.sampled_from([1, 2, 100]),
    slow=st.booleans(),
)
def test_fused_descent_equals_plain_steps(
    parties, seed, size, steps, way, optimiser, shifted, pull, towards, block, slow
):
    data, model = classification(parties, 4, 3, seed), network(4, 3, seed)
    work = ar.FedAvg(0.1, 2, steps, size, optimiser)
    effort = np.linspace(0, 0.9, parties) if slow else None
    random = torch.Generator().manual_seed(seed)
    shift = torch.randn(parties, model.p, generator=random, dtype=torch.float64)
    centre = torch.randn(model.p, generator=random, dtype=torch.float64)
    arguments = {
        "shift": shift if shifted else None,
        "pull": pull,
        "towards": centre if towards else None,
    }
    way = ways(model, data, way)[way]
    ids = list(range(parties))
    fused = stack(data, model, way, ids, seed, block=block, effort=effort)
    plain = stack(data, model, model.one, ids, seed, effort=effort)

    got = fused.descend(model.w, work, **arguments)
    expected = descend(plain, model.w, work, **arguments)

    torch.testing.assert_close(got.w, expected.w, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(got.travel, expected.travel)
    assert torch.equal(got.steps, expected.steps)


@few
@given(parties=st.integers(2, 6), seed=st.integers(0, 999), size=st.sampled_from([2, 0.4]))
def test_a_partys_batches_do_not_depend_on_the_others(parties, seed, size):
    data, model = classification(parties, 3, 3, seed), network(3, 3)
    everyone = stack(data, model, model.one, list(range(parties)), seed, t=4)
    alone = [stack(data, model, model.one, [k], seed, t=4, lead=()) for k in range(parties)]
    for _ in range(7):
        together = everyone.batch(size)
        for k, me in enumerate(alone):
            mine = me.batch(size)
            length = int((mine.weights > 0).sum())
            assert torch.equal(together.rows[k, :length], mine.rows[0, :length])
            torch.testing.assert_close(together.weights[k, :length], mine.weights[0, :length])


@few
@given(n=st.integers(1, 20), size=st.integers(1, 25), seed=st.integers(0, 99))
def test_an_epoch_takes_every_point_once(n, size, seed):
    x = torch.arange(n, dtype=torch.float64)[:, None]
    data = ar.Federation.from_arrays([x], [torch.zeros(n).long()], test=0.0, classes=2)
    me = stack(data, network(1, 2), network(1, 2).one, [0], seed)
    epochs = []
    for _ in range(3):
        taken = []
        for _ in range(-(-n // size)):
            batch = me.batch(size)
            taken += batch.rows[0][batch.weights[0] > 0].tolist()
            assert float(batch.weights.sum()) == pytest.approx(1.0)
        epochs.append(taken)

    assert all(sorted(taken) == list(range(n)) for taken in epochs)
    if n > 6:
        assert epochs[0] != epochs[1]


def test_descent_and_batch_draw_from_one_stream():
    data, model = classification(3, 3, 3, 0), network(3, 3)
    work = ar.FedAvg(0.1, local_steps=2, batch_size=2)
    a, b = (stack(data, model, model.one, [0, 1, 2]) for _ in range(2))
    a.descend(model.w, work)
    b.batch(2), b.batch(2)

    assert torch.equal(a.batch(2).rows, b.batch(2).rows)


def test_noise_is_the_partys_own():
    data, model = classification(4, 3, 3, 0), network(3, 3)
    together = stack(data, model, model.one, [0, 1, 2, 3]).normal(model.w)
    alone = stack(data, model, model.one, [2], lead=()).normal(model.w)
    later = stack(data, model, model.one, [2], t=1, lead=()).normal(model.w)

    assert torch.equal(together[2], alone)
    assert not torch.equal(alone, later)
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("size", [0, -3, 1.5, "ten"])
def test_bad_batch_size(size):
    data, model = classification(2, 3, 3, 0), network(3, 3)
    with pytest.raises(ar.ArchipelError, match="batch_size"):
        stack(data, model, model.one, [0, 1]).batch(size)
