"""A private mean between peers: every party the same sum of integers, whoever vanishes."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from archipel.aggregation import averaging
from archipel.aggregation.averaging import Question, estimate, member, simulated, together
from archipel.aggregation.gopa import NoiseTerms
from archipel.errors import ArchipelError, BelowQuorum
from archipel.privacy.analytic import mu_of
from archipel.privacy.sources import Simulated

ONE = Question(("deaths",), (0.0,), (50.0,), epsilon=1.0, honest=1.0, dropouts=0.5)


def members(question, values, seed=0):
    plan, keys = question.plan(len(values)), np.random.default_rng(seed)
    return plan, {
        j: member(question, plan, j, x, keys.bytes(32), Simulated(seed, 0, [j], "average"))
        for j, x in enumerate(values)
    }


def words_of(question, plan, values, there, seed=0):
    """The sum of values and noise of those who are there, as integers."""
    terms = NoiseTerms(plan.form, plan.independent, plan.pairwise)
    rows = [
        terms.steps(torch.from_numpy(values[j]))
        + terms.noise(Simulated(seed, 0, [j], "average"), values.shape[1])
        for j in there
    ]
    return np.sum(rows, axis=0, dtype=np.uint64)


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 24), st.sampled_from(["modular", "gaussian"]), st.integers(1, 3), st.data())
def test_all_who_stay_have_the_same_integers_whoever_vanishes(n, form, size, data):
    question = Question(
        tuple("abc"[:size]), (0.0,) * size, (1.0,) * size, 1.0, 1e-3, 1.0, 0.5, form=form
    )
    gone = data.draw(st.sets(st.integers(0, n - 1), max_size=n // 2))
    stays = {j: data.draw(st.integers(0, 2), label=f"{j} stays") for j in gone}
    values = np.random.default_rng(n).random((n, size))
    plan, boxes = members(question, values)
    found, _ = together(boxes, stays)
    there = tuple(j for j in range(n) if j not in gone)

    assert {each.there for each in found.values()} == {there}
    expected = words_of(question, plan, values, there).tolist()
    assert all(each.words.tolist() == expected for each in found.values())


def test_the_whole_protocol_and_the_quick_simulation_are_the_same():
    values = np.random.default_rng(1).random((30, 1))
    plan, boxes = members(ONE, values)
    whole = estimate(ONE, plan, together(boxes)[0][3])
    quick = simulated(ONE, plan, values, Simulated(0, 0, range(30), "average"))

    assert quick.tolist() == [whole.tolist()]


@pytest.mark.parametrize("stays", [3, 4])
def test_who_vanishes_after_it_published_is_in_the_mean(stays):
    values = np.random.default_rng(2).random((6, 1))
    plan, boxes = members(ONE, values)
    found, _ = together(boxes, {1: stays})

    assert found[0].there == (0, 1, 2, 3, 4, 5)
    assert found[0].words.tolist() == words_of(ONE, plan, values, range(6)).tolist()


def test_who_vanishes_while_it_publishes_is_in_for_all_or_for_none():
    """Party 1 reaches party 0 alone with what it publishes: the others hear of it from there."""
    values = np.random.default_rng(3).random((5, 1))
    plan, boxes = members(ONE, values)
    talks = {j: averaging.Talk(box) for j, box in boxes.items()}
    for step in range(averaging.STEPS):
        said = {j: talk.said for j, talk in talks.items()}
        for j in list(talks):
            others = {i: each for i, each in said.items() if i != j}
            if step == 2 and j not in (0, 1):
                others.pop(1)
            talks[j].send(others)
        if step == 2:
            del talks[1]
    sums = [talk.said for talk in talks.values()]

    assert {each.there for each in sums} == {(0, 1, 2, 3, 4)}
    assert len({each.words.tobytes() for each in sums}) == 1
    assert sums[0].words.tolist() == words_of(ONE, plan, values, range(5)).tolist()


def test_a_correction_that_is_missing_spoils_the_run_and_not_the_mean():
    values = np.random.default_rng(4).random((6, 1))
    _, boxes = members(ONE, values)
    with pytest.raises(BelowQuorum, match="party 2 vanished after it had published"):
        together(boxes, {4: 2, 2: 4})


def test_too_few_stop_before_they_publish():
    strict = Question(("deaths",), (0.0,), (50.0,), epsilon=1.0, honest=1.0)
    _, boxes = members(strict, np.full((5, 1), 0.5))
    with pytest.raises(BelowQuorum, match=r"4 of 5 parties are there, and dropouts = 0\.0 has 5"):
        together(boxes, {3: 1})


def test_what_has_another_form_was_not_told():
    """A party that tells nonsense is as one that vanished; an honest run goes on."""

    def babbling():
        while True:
            yield b"nonsense"

    values = np.random.default_rng(5).random((6, 1))
    plan, boxes = members(ONE, values)
    talks = {j: averaging.Talk(babbling() if j == 2 else box) for j, box in boxes.items()}
    while not talks[0].ended:
        said = {j: talk.said for j, talk in talks.items()}
        for j, talk in talks.items():
            talk.send({i: each for i, each in said.items() if i != j})

    assert talks[0].said.there == (0, 1, 3, 4, 5)
    assert talks[0].said.words.tolist() == words_of(ONE, plan, values, (0, 1, 3, 4, 5)).tolist()


def test_nobody_tells_a_key_of_one_who_published():
    values = np.random.default_rng(6).random((6, 1))
    _, boxes = members(ONE, values)
    _, transcript = together(boxes, {4: 2})

    for j, said in transcript[-1].items():
        keys = np.frombuffer(said[1:], np.uint8).reshape(6, 32).any(axis=1)
        assert keys.tolist() == [False, False, False, False, True, False], j


def test_the_mean_has_the_deviation_that_is_promised():
    """1000 repetitions with 1000 parties: chi-squared, and within 5 % of a trusted curator."""
    question = Question(("share",), (0.0,), (1.0,), epsilon=1.0, honest=1.0)
    plan, values = question.plan(1000), np.random.default_rng(7).random((1000, 1))
    found = simulated(question, plan, values, Simulated(0, 0, range(1000), "average"), 1000)
    ratio = ((found - values.mean()) ** 2).sum() / question.deviation(plan, 1000) ** 2

    assert chi2.ppf(5e-5, 1000) < ratio < chi2.isf(5e-5, 1000)
    assert question.deviation(plan, 1000) < 1.05 / (1000 * mu_of(1.0, 1e-5))


def test_a_persons_contribution_needs_less_noise_than_a_whole_party():
    party = Question(("a", "b"), (0.0, 0.0), (100.0, 10.0), 1.0, honest=1.0)
    person = Question(("a", "b"), (0.0, 0.0), (100.0, 10.0), 1.0, honest=1.0, contribution=(1, 20))
    deviations = [each.deviation(each.plan(10), 10) for each in (party, person)]

    assert (deviations[0] / deviations[1]).tolist() == pytest.approx([100.0, 1.0])
    assert deviations[1][0] == pytest.approx(sqrt(2) / (10 * mu_of(1.0, 1e-5)), rel=1e-6)
    values = np.random.default_rng(8).random((10, 2)) * [100, 10]
    x = np.stack([person.scaled(row, "bonn") for row in values])
    assert person.mean(x.sum(axis=0), 10) == pytest.approx(values.mean(axis=0))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"names": ()}, "name one number or more"),
        ({"names": ("a", "a"), "low": (0.0,) * 2, "high": (1.0,) * 2}, "a name of its own"),
        ({"low": (0.0, 1.0)}, "give one for all numbers, or one for each of deaths"),
        ({"low": (50.0,)}, "low before high"),
        ({"high": (float("inf"),)}, "give a range"),
        ({"contribution": (0.0,)}, "how far one person moves a number"),
    ],
)
def test_questions_that_are_none_are_refused(change, says):
    with pytest.raises(ArchipelError, match=says):
        Question(**{"names": ("deaths",), "low": (0.0,), "high": (50.0,), "epsilon": 1.0, **change})


@pytest.mark.parametrize("value", [-1.0, 51.0, float("nan")])
def test_numbers_beyond_their_range_are_refused_without_telling_them(value):
    with pytest.raises(ArchipelError, match="deaths is not in its range of 0 to 50") as no:
        ONE.scaled([value], "bonn")
    assert str(value) not in str(no.value)
