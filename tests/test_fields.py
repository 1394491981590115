"""Values of a study meet the annotations of what they are given to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, Optional

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archipel.algorithms import ALGORITHMS
from archipel.errors import ArchipelError
from archipel.study import fields
from archipel.training.optimisers import SGD, Adam, Optimiser
from archipel.training.schedules import Cosine, Decay, Inverse, Rate

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


class Colour(StrEnum):
    red = "red"


@dataclass(frozen=True)
class Thing:
    rate: Rate
    steps: int | None = 3
    size: int | float | None = None
    way: Literal["up", "down"] = "up"
    widths: tuple[int, ...] = (1, 2)
    table: Mapping[str, float] = field(default_factory=dict)
    optimiser: Optimiser = SGD()
    flag: bool = False
    made: int = field(default=7, init=False)


HINTS = [
    *fields.hints(Thing).values(), Any, Optional[int], Annotated[float, "unit"], list[list[int]],  # noqa: UP045
    Colour, Sequence[str], torch.Tensor | float,
]  # fmt: skip


def test_hints_are_what_a_call_takes():
    def function(a, b: int = 1, *rest, c: "str" = "x", **more):
        pass

    class Net:
        def __init__(self, width: int = 3):
            pass

    assert fields.hints(function) == {"a": Any, "b": int, "c": str}
    assert fields.hints(Net) == {"width": int}
    assert "made" not in fields.hints(Thing)


@given(st.sampled_from(HINTS), JSON)
def test_any_value_is_read_or_refused_in_one_sentence(hint, value):
    try:
        fields.read("algorithm", "x", hint, value)
    except ArchipelError as error:
        assert str(error).startswith("algorithm.x")
        assert "give" in str(error) or "say which" in str(error) or "unknown" in str(error)


@given(
    rate=st.floats(0, 10)
    | st.builds(Decay, st.floats(0, 1), st.floats(0, 1), st.integers(1, 9))
    | st.builds(Inverse, st.floats(0, 1), st.floats(1, 9))
    | st.builds(Cosine, st.floats(0, 1), st.integers(1, 99)),
    optimiser=st.builds(SGD, st.floats(0, 1), st.booleans())
    | st.builds(Adam, st.floats(0, 1), st.floats(0, 1)),
    steps=st.none() | st.integers(1, 99),
    size=st.none() | st.integers(1, 99) | st.floats(0.1, 0.9),
    widths=st.lists(st.integers(1, 9)).map(tuple),
)
def test_what_is_written_is_read_as_it_was(**values):
    thing = Thing(**values)
    written = fields.write(thing)

    assert written.pop("name") == "thing"
    written.pop("made")
    assert fields.build("algorithm", Thing, written) == thing


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_are_written_and_read(algorithm):
    made = ALGORITHMS[algorithm]()
    written = {k: v for k, v in fields.write(made).items() if k != "name"}

    assert fields.build("algorithm", type(made), written) == made


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("adam", Adam()),
        ({"name": "adam", "beta1": 0.5}, Adam(beta1=0.5)),
        ({"name": "sgd", "nesterov": True}, SGD(nesterov=True)),
    ],
)
def test_objects_by_name(value, wanted):
    assert fields.read("algorithm", "optimiser", Optimiser, value) == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "algorithm.rate is missing: give a number or a table with name"),
        ({"rate": 1, "stops": 1}, "unknown key of algorithm 'stops': did you mean 'steps'?"),
        ({"rate": True}, "algorithm.rate = true: give a number"),
        ({"rate": 1, "steps": 1.0}, 'algorithm.steps = 1.0: give a whole number or "none".'),
        ({"rate": 1, "way": "left"}, 'algorithm.way = "left": give "up" or "down".'),
        ({"rate": 1, "widths": [1, "a"]}, 'algorithm.widths = [1, "a"]: give a list.'),
        ({"rate": 1, "flag": 1}, "algorithm.flag = 1: give true or false."),
        ({"rate": {"name": "decay"}}, "algorithm.rate.start is missing: give a number."),
        ({"rate": {"name": "decy"}}, "unknown algorithm.rate 'decy': did you mean 'decay'?"),
        ({"rate": {"start": 1}}, 'algorithm.rate = {"start": 1}: say which, name = "decay".'),
        ({"rate": 1, "optimiser": [1]}, "algorithm.optimiser = [1]: give a table with name"),
        ({"rate": "x" * 999}, "xxx ... xxx"),
    ],
)
def test_sentences(given, said):
    with pytest.raises(ArchipelError) as caught:
        fields.build("algorithm", Thing, given)

    assert said in str(caught.value) and len(str(caught.value)) < 400


def test_what_a_user_s_class_refuses_is_one_sentence():
    @dataclass
    class Strict:
        lr: float = 0.1

        def __post_init__(self):
            raise ValueError("lr is odd.\nReally")

    with pytest.raises(ArchipelError, match=r"^algorithm: Strict cannot be made with .*lr is odd"):
        fields.build("algorithm", Strict, {"lr": 0.3})


def test_a_schema_for_editors():
    schema = fields.schema(Thing)

    assert schema["steps"] == {"anyOf": [{"type": "integer"}, {"const": "none"}]}
    assert schema["way"] == {"enum": ["up", "down"]}
    assert {"enum": ["sgd", "adam"]} in schema["optimiser"]["anyOf"]
