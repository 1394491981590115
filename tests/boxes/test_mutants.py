"""Boxes see what they are for: an algorithm with a single slip of the pen is not its box."""

import pytest

from archipel.algorithms import ALGORITHMS
from boxes import (
    test_averaging,
    test_decentralised,
    test_drawn_to_the_mean,
    test_heads,
    test_hyper,
    test_personal,
)
from boxes.mutants import calls, mutants, survives

FILES = (test_averaging, test_decentralised, test_drawn_to_the_mean, test_heads, test_hyper,
         test_personal)  # fmt: skip


EQUIVALENT = {  # no mistakes: x / ±1 is x * ±1, and only in a sweep do numbers of steps differ
    ("party", "k < steps", "k <= steps"),
    ("server", "(1 - b2) * delta ** 2 * sign(v - delta ** 2)",
     "(1 - b2) * delta ** 2 / sign(v - delta ** 2)"),
}  # fmt: skip


def boxes_of(name):
    """The tests of an algorithm, by their names."""
    tests = [vars(file)[test] for file in FILES for test in vars(file)
             if test.startswith(f"test_{name}_")]  # fmt: skip
    return [call for test in tests for call in calls(test)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_box(name):
    assert boxes_of(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_slip_of_the_pen_is_seen(name):
    algorithm, tests = ALGORITHMS[name], boxes_of(name)
    found = [mutant for mutant in mutants(algorithm) if mutant[:3] not in EQUIVALENT]

    alive = [mutant[:3] for mutant in found if survives(mutant, algorithm, tests)]

    print(f"{name}: {len(found) - len(alive)} of {len(found)} mutants caught")
    assert found or name == "alone"  # which is a single call
    assert alive == []
