"""Boxes see what they are for: an algorithm with a single slip of the pen is not its box."""

import pytest

from archipel.algorithms import ALGORITHMS
from boxes import (
    test_box_asynchronous,
    test_box_averaging,
    test_box_decentralised,
    test_box_drawn_to_the_mean,
    test_box_graphs_learned,
    test_box_heads,
    test_box_hyper,
    test_box_personal,
    test_box_without_rounds,
)
from boxes.mutants import calls, mutants, survives

FILES = (
    test_box_asynchronous,
    test_box_averaging,
    test_box_decentralised,
    test_box_drawn_to_the_mean,
    test_box_graphs_learned,
    test_box_heads,
    test_box_hyper,
    test_box_personal,
    test_box_without_rounds,
)


WEIGHT = "(tau - rho * (1 - rho ** tau) / (1 - rho))"
MINE, THEIRS = "mine[2] + lam_of_me", "mine[3] + their_lam"  # add up to 0 from the first meeting on
EQUIVALENT = {  # no mistakes
    ("party", f"({MINE}) / rho + theta", "theta"),
    ("party", f"({MINE}) / rho", f"({MINE}) * rho"),
    ("party", f"({MINE}) / rho", MINE),
    ("party", f"({THEIRS}) / rho + mine[1]", "mine[1]"),
    ("party", f"({THEIRS}) / rho", f"({THEIRS}) * rho"),
    ("party", f"({THEIRS}) / rho", THEIRS),
    ("party", "k < steps", "k <= steps"),  # only in a sweep do L2GD's numbers of steps differ
    ("server", "(1 - b2) * delta ** 2 * sign(v - delta ** 2)",
     "(1 - b2) * delta ** 2 / sign(v - delta ** 2)"),  # a sign is its own inverse
    ("_weight", f"{WEIGHT} / (1 - rho)", f"{WEIGHT} * (1 - rho)"),  # what all |a_i| share cancels
    ("_weight", f"{WEIGHT} / (1 - rho)", WEIGHT[1:-1]),
    ("_weight", "1 - rho", "1 + rho"),
    ("_weight", "1 - rho", "1"),
    ("_weight", "1", "2"),
    ("join", "0", "1"),  # Dada's two forms of a root, of which either is right
    ("join", "1", "2"),  # others that are asked, where nobody answers
    ("join", "w < self.least * torch.minimum(d_k, d_l)",
     "w <= self.least * torch.minimum(d_k, d_l)"),
    ("_steps", "t < self.alone", "t <= self.alone"),  # a round of the graph, without a step
    ("_towards", "gamma * self.beta * vertex.sign().to(alpha.dtype)",
     "gamma * self.beta / vertex.sign().to(alpha.dtype)"),
    ("party", "-(j + 1) * g.gather(-1, j).sign()", "-(j + 1) / g.gather(-1, j).sign()"),
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
    found = list(mutants(algorithm))

    alive = {mutant[:3] for mutant in found if survives(mutant, algorithm, tests)}

    print(f"{name}: {len(found) - len(alive)} of {len(found)} mutants caught")
    assert found or name in ("alone", "walk")  # which are a single call
    assert alive <= EQUIVALENT
