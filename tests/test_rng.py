"""Keyed randomness: a function of the key alone, and random enough."""

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from archipel import rng


def test_known_values_never_change():
    """A run of last year must repeat: these numbers are part of the file format of results."""
    assert rng.key(0, 1, "batches") == 14549620364422157228
    assert rng.keys(7, np.arange(2)).tolist() == [236966933211079599, 1772951811831149054]
    assert rng.shuffles(rng.keys(7, np.arange(2)), np.array([4, 3])).tolist() == [
        1,
        3,
        2,
        0,
        2,
        1,
        0,
    ]


def test_keys_do_not_depend_on_the_process():
    code = "from archipel import rng; print(rng.key(3, 'x', 5))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, env={"PYTHONHASHSEED": str(seed)}
        ).stdout
        for seed in (0, 1)
    }
    assert len(seen) == 1


def test_parts_are_not_confused():
    assert len({rng.key(1, 23), rng.key(12, 3), rng.key("1", 23), rng.key(123)}) == 4


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 2**32))
def test_shuffles_are_permutations(sizes, base):
    sizes = np.array(sizes)
    shuffled = rng.shuffles(rng.keys(base, np.arange(len(sizes))), sizes)
    parts = np.split(shuffled, np.cumsum(sizes)[:-1])

    assert all(sorted(part) == list(range(n)) for part, n in zip(parts, sizes, strict=True))


def test_a_shuffle_does_not_depend_on_the_others():
    keys = rng.keys(5, np.arange(3))
    together = rng.shuffles(keys, np.array([9, 5, 9]))
    alone = rng.shuffles(keys[2:], np.array([9]))

    assert together[14:].tolist() == alone.tolist()


def test_shuffles_are_uniform():
    """Every value in every place about equally often: chi-square with 16 degrees of freedom."""
    shuffled = rng.shuffles(rng.keys(1, np.arange(20_000)), np.full(20_000, 5)).reshape(-1, 5)
    counts = np.stack([np.bincount(shuffled[:, place], minlength=5) for place in range(5)])

    assert ((counts - 4000) ** 2 / 4000).sum() < 39  # p = 0.001


def test_uniform_is_uniform():
    draws = rng.uniform(rng.keys(2, np.arange(100_000)))

    assert draws.min() >= 0 and draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.005
    assert np.abs(np.histogram(draws, 10)[0] - 10_000).max() < 500
