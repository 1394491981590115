# SPDX-License-Identifier: Apache-2.0
"""The sections of a study file: every key, its kind, its default, and what it is for."""

from __future__ import annotations

import math
import os
import re
import tomllib
import warnings
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    ValidationError,
    WithJsonSchema,
)

from archipel.data.dialect import Written
from archipel.data.frames import Said as TableSaid
from archipel.data.kinds import KINDS
from archipel.data.outcome import TASKS
from archipel.data.schema import TEST, Schema
from archipel.errors import ArchipelError, unknown
from archipel.graphs import TOPOLOGIES
from archipel.models.losses import LOSSES
from archipel.runs.participation import Participation, absences
from archipel.study import fields

Number = StrictInt | StrictFloat
_MISSING = {"type": "number", "minimum": 0, "maximum": 1}
_DESCRIBED: list[Any] = [  # of a column: its values, or numbers with limits
    {"type": "array", "minItems": 2},
    {
        "type": "object",
        "required": ["kind"],
        "properties": {
            "kind": {"enum": ["number", "date"]},
            "unit": {"type": "string"},
            "min": {"type": "number"},
            "max": {"type": "number"},
            "missing": _MISSING,
        },
        "additionalProperties": False,
    },
    {
        "type": "object",
        "required": ["values"],
        "properties": {"values": {"type": "array", "minItems": 2}, "missing": _MISSING},
        "additionalProperties": False,
    },
]
Kind = Annotated[  # checked by archipel.data.column
    Any, WithJsonSchema({"anyOf": [{"enum": ["number", "date"]}, *_DESCRIBED]})
]
Said = Annotated[  # checked by archipel.data.kinds
    Any, WithJsonSchema({"anyOf": [{"enum": list(KINDS)}, *_DESCRIBED]})
]
PLAIN = "plain"  # how uploads are added up, unless a study says otherwise
Rounds = Annotated[str, BeforeValidator(lambda given: str(given) if type(given) is int else given)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Open(Section):
    """A section whose further keys belong to what its `name` names."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    @property
    def given(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class About(Section):
    """[study]"""

    name: Annotated[
        str, Field(min_length=1, max_length=80, description="names the run's folder")
    ] = "study"
    purpose: Annotated[str, Field(description="why, for those who are asked to take part")] = ""
    rounds: Annotated[int, Field(ge=1, le=10_000_000, description="how many")] = 100
    seed: Annotated[int, Field(ge=0, lt=2**63, description="of all that a simulation draws")] = 0
    evaluate_every: Annotated[int, Field(ge=1, description="rounds")] = 1
    metric: Annotated[
        str | None, Field(description="by which the run is judged, or mine.py:score; the task's")
    ] = None
    metrics: Annotated[
        list[str] | None,
        Field(max_length=50, description="what is measured, or mine.py:score; the task's usual"),
    ] = None
    target: Annotated[Number | None, Field(description="of that metric")] = None


with warnings.catch_warnings():  # pydantic has a method `schema`, which nobody calls any more
    warnings.simplefilter("ignore")

    class Data(Open):
        """[data]"""

        name: Annotated[str | None, Field(description="archipel list data, or mine.py:load")] = None
        file: Annotated[str | None, Field(description="a table, with by and target")] = None
        folder: Annotated[
            str | None, Field(description="a table per party, or where a dataset's files are")
        ] = None
        by: Annotated[str | None, Field(description="column that says whose row it is")] = None
        target: Annotated[str | list[str] | None, Field(description="column to predict")] = None
        schema: Annotated[
            dict[str, Kind] | None,
            Field(description='columns of every table: "number", a list of values, or with limits'),
        ] = None  # type: ignore[assignment]
        task: Annotated[
            str | None, Field(description="classification, regression or survival; the target's")
        ] = None
        columns: Annotated[
            dict[str, Said],
            Field(description='what a column is: "number", "category", "date" (days) or "skip"'),
        ] = {}
        drop: Annotated[list[str], Field(description="columns to leave out")] = []
        missing: Annotated[
            str, Field(description="empty cells of a table: error, drop (the row) or mean")
        ] = "error"
        empty: Annotated[
            list[str], Field(description='words that mean an empty cell, such as "unknown"')
        ] = []
        sep: Annotated[
            str | None, Field(description='between cells of a text table, ";" or "tab"; found out')
        ] = None
        decimal: Annotated[
            str | None, Field(description='of its numbers, "." or ","; found out')
        ] = None
        encoding: Annotated[
            str | None, Field(description="of its text, such as cp1252; found out")
        ] = None
        test: Annotated[
            Number | str | None,
            Field(description='share of each party\'s rows, a column, or "after:2016-01-31"'),
        ] = None
        time: Annotated[
            str | None, Field(description="column for after:; the only one with dates")
        ] = None
        partition: Annotated[
            str | None, Field(description='how to deal points out, "dirichlet:0.3"')
        ] = None
        parties: Annotated[
            int | None, Field(ge=1, le=100_000_000, description="how many to deal points out to")
        ] = None
        new: Annotated[
            Number | Literal["partial", "none"],
            Field(description="parties (number or share) kept for evaluation only"),
        ] = 0
        virtual: Annotated[
            int,
            Field(ge=0, le=1000, description="of images: turned copies of each party, to train"),
        ] = 0
        folds: Annotated[
            int | None,
            Field(ge=2, le=1000, description="of new parties' points, so that each is tested once"),
        ] = None
        standardise: Annotated[
            bool | None,
            Field(
                description="features, and numbers to predict in training, to mean 0, variance 1; "
                "tables are, unless false"
            ),
        ] = None


class Network(Open):
    """[model]"""

    name: Annotated[str | None, Field(description="archipel list models, or mine.py:net")] = None
    loss: Annotated[str | None, Field(description="the task's")] = None
    class_weights: Annotated[
        list[Number] | Literal["balanced"] | None,
        Field(description='in the loss, [1.0, 5.0], or "balanced" by training points; all alike'),
    ] = None
    statistics: Annotated[
        Literal["averaged", "own"] | None,
        Field(description="BatchNorm's: averaged, as the model is, or each party's own; averaged"),
    ] = None


class Method(Open):
    """[algorithm]"""

    name: Annotated[str, Field(description="archipel list algorithms, or mine.py:Mine")] = "fedavg"


class Round(Section):
    """[round]"""

    sample: Annotated[Number, Field(description="rate 0..1, or so many parties")] = 1.0
    over_select: Annotated[
        float, Field(description="ask this share more; the first to finish count")
    ] = 0.0
    quorum: Annotated[Number, Field(description="uploads a round needs: a number, or a share")] = 1
    deadline: Annotated[float | None, Field(description="seconds")] = None
    on_missing: Annotated[
        Literal["continue", "wait", "abort"], Field(description="below the quorum")
    ] = "continue"
    late_joiners: Annotated[
        bool, Field(description="between institutions: sites may join after the first round")
    ] = True


class Wire(Section):
    """[wire]"""

    up: Annotated[
        list[str],
        Field(max_length=50, description="steps of an upload: archipel list wire, mine.py:Mine:1"),
    ] = []
    down: Annotated[
        list[str], Field(max_length=50, description="the same of what parties are sent")
    ] = []
    rule: Annotated[
        str | None, Field(description="what the server takes of the uploads, mine.py:Mine; all")
    ] = None
    sum: Annotated[
        str, Field(description='how uploads are added up: "plain", as they arrive, or mine.py:Mine')
    ] = PLAIN


class Privacy(Section):
    """[privacy]"""

    server_sees: Annotated[
        Literal["uploads", "sums"],
        Field(description='"sums" refuses an algorithm that looks at single uploads'),
    ] = "uploads"


class Graph(Section):
    """[topology]"""

    name: Annotated[str | None, Field(description='for peers: "ring", "torus:4x8", ...')] = None
    asynchronous: Annotated[
        bool, Field(description="between peers: each at its own pace, averaging pair by pair")
    ] = False


class Simulated(Section):
    """[simulate]"""

    dropouts: Annotated[float, Field(description="chance that a sampled party does not answer")] = (
        0.0
    )
    lost: Annotated[
        float | None, Field(description="chance that it is lost between two messages of a round")
    ] = None
    stragglers: Annotated[
        float, Field(description="share of a round's parties that do not finish")
    ] = 0.0
    availability: Annotated[float | str, Field(description='chance to be there, or "day:24"')] = 1.0
    away: Annotated[
        dict[str, Rounds], Field(description='party = rounds, such as cleveland = "11-20"')
    ] = {}
    speed: Annotated[
        float | None, Field(description="examples a party works through per second")
    ] = None
    speed_spread: Annotated[
        float, Field(description="standard deviation over parties of log(speed)")
    ] = 0.0


SECTIONS: dict[str, type[Section]] = {
    "study": About,
    "data": Data,
    "model": Network,
    "algorithm": Method,
    "round": Round,
    "wire": Wire,
    "privacy": Privacy,
    "topology": Graph,
    "simulate": Simulated,
}


def keys(section: str) -> list[str]:
    """The keys of a section that do not depend on what its `name` names."""
    return list(SECTIONS[section].model_fields)


# -- what a section says that cannot be ------------------------------------------------------------


def written_of(data: Data) -> Written:
    """What [data] says of how text tables are written."""
    return Written.of(data.sep, data.decimal, data.encoding)


def schema_of(data: Data) -> Schema:
    """What [data] says of every party's table."""
    if data.schema is None:
        raise ArchipelError("data.schema is missing: describe the columns of every table.")
    schema = Schema.of(data.schema, data.target, data.missing, data.empty)
    for field in ("name", "drop", "columns"):
        if given := getattr(data, field):
            raise ArchipelError(
                f"data.{field} = {fields.shown(given)}: data.schema says which columns are used; "
                "leave one of the two out."
            )
    if data.by in schema.named:
        raise ArchipelError(f'data.by = "{data.by}": take it out of data.schema, or name another.')
    if data.task not in (None, schema.task):
        raise ArchipelError(
            f'data.task = "{data.task}": data.schema makes it a {schema.task}; leave one out.'
        )
    if isinstance(data.test, str):
        raise ArchipelError(
            f'data.test = "{data.test}": every site draws its test rows itself, so that no study '
            "can single out rows by choosing them; give a share, such as 0.2."
        )
    standardise = data.standardise is not False
    return replace(schema, written=written_of(data), standardise=standardise)


def share_of(data: Data) -> float | None:
    """The share of rows to test on, where one is given."""
    return None if isinstance(data.test, str) else data.test


def said_of(data: Data) -> TableSaid:
    """What [data] says of a table, of which it does not describe every column."""
    return TableSaid(
        data.target or "y",
        data.by,
        TEST if data.test is None else data.test,
        data.time,
        data.drop,
        data.missing,
        data.empty,
        data.task,
        data.columns,
    )


def check_data(data: Data, base: Path, takes: Set[str]) -> None:
    """Where the data comes from; `takes` is what the thing takes that its name names."""
    if data.task is not None and data.task not in TASKS:
        raise unknown("data.task", data.task, TASKS)
    if data.schema is not None and data.file is None and data.folder is None:
        raise ArchipelError(
            "data.schema describes tables that are elsewhere: to simulate, name data.folder with "
            "a table per party, or data.file and data.by."
        )
    if data.name is None and data.file is None and data.folder is None:
        raise ArchipelError('data.name is missing: give one, such as "heart_disease".')
    if data.file is not None:
        if data.name is not None or data.folder is not None:
            raise ArchipelError(f'data.file = "{data.file}": leave data.name and data.folder out.')
        if data.target is None:
            raise ArchipelError("data.target is missing: name the column to predict.")
        if data.by is None and data.partition is None:
            raise ArchipelError(
                "data.by is missing: name the column that says whose row it is, or deal the rows "
                "out with data.partition."
            )
        if not os.path.isfile(base / data.file):  # noqa: PTH113, takes names that no path may have
            raise ArchipelError(f'data.file = "{data.file}": no such file in {base}.')
    if data.folder is not None and not os.path.isdir(base / data.folder):  # noqa: PTH112
        raise ArchipelError(f'data.folder = "{data.folder}": no such folder in {base}.')
    if data.parties is not None and data.partition is None and "parties" not in takes:
        raise ArchipelError(
            f"data.parties = {data.parties}: the data has parties of its own; say "
            'data.partition = "iid" as well, or leave it out.'
        )
    if isinstance(data.new, str) and "new" not in takes:
        raise ArchipelError(f'data.new = "{data.new}": give a number or a share of the parties.')
    written_of(data)
    if data.name is not None:
        written = {"sep", "decimal", "encoding"} - takes
        own = {"by", "target", "drop", "task", "columns", "empty", "time"} - takes
        for field in (*sorted(own), *sorted(written)):
            if getattr(data, field):
                raise ArchipelError(f"data.{field}: '{data.name}' has its own; leave it out.")
        if data.test is not None and not takes & {"test", "test_fraction"}:
            raise ArchipelError(f"data.test: '{data.name}' has its own test points; leave it out.")


def check_test(data: Data) -> None:
    """Whether `data.test` can be: a share, or the text of a column or a time."""
    test = data.test
    if isinstance(test, str) and (data.name is not None or not test.strip()):
        raise ArchipelError(f'data.test = "{test}": give a share, such as 0.2.')
    if isinstance(test, int | float) and not 0 <= test < 1:
        raise ArchipelError(f"data.test = {test}: give a number from 0 below 1.")


def check_names(network: Network, graph: Graph) -> None:
    """Loss and topology by name."""
    if network.loss is not None and network.loss not in LOSSES:
        raise unknown("model.loss", network.loss, LOSSES)
    if graph.name is not None and graph.name.partition(":")[0] not in TOPOLOGIES:
        raise unknown("topology.name", graph.name, TOPOLOGIES)


def check_policy(policy: Round, simulated: Simulated) -> None:
    """Who takes part."""
    for party, rounds in simulated.away.items():
        try:
            absences(rounds)
        except ArchipelError as error:
            raise ArchipelError(f"simulate.away.{party}: {error}") from None
    Participation.of({**policy.model_dump(), **simulated.model_dump(), "away": {}})


# -- reading, and what a reader is told ------------------------------------------------------------


def read_tables(content: str | Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a study, each with a name that is known."""
    if isinstance(content, str):
        content = _loaded(content)
    for name, section in content.items():
        if name not in SECTIONS:
            raise unknown("section", f"[{name}]", [f"[{each}]" for each in SECTIONS])
        if not isinstance(section, Mapping):
            raise ArchipelError(f"{name} = {fields.shown(section)}: write a section, [{name}].")
        _check_size(section, name)
    return {name: _as_now(name, section) for name, section in content.items()}


def _as_now(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    """A section as this version has it: [wire] had a list that was always empty."""
    if name == "wire" and section.get("steps") == []:
        return {key: value for key, value in section.items() if key != "steps"}
    return section


def _loaded(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(text, str(error)) from None
    except RecursionError:
        raise ArchipelError("not TOML that can be read: lists are nested too deep.") from None
    except ValueError:  # Python reads no whole number of thousands of digits
        raise ArchipelError("not TOML that can be read: a number has too many digits.") from None


def split_key(path: str) -> list[str]:
    """The parts of a dotted key, quoted where a dot belongs to a name.

    >>> split_key('simulate.away."St. Mary"')
    ['simulate', 'away', 'St. Mary']
    """
    try:
        inside: Any = tomllib.loads(f"{path} = 0")
    except tomllib.TOMLDecodeError:
        return path.split(".")
    parts = []
    while isinstance(inside, dict):
        ((key, inside),) = inside.items()
        parts.append(key)
    return parts


def _not_toml(text: str, said: str) -> ArchipelError:
    """The sentence for a file that is no TOML, with the line in question."""
    reason, _, place = said.rpartition(" (at ")
    lines = text.rstrip().split("\n")
    found = re.match(r"line (\d+)", place)
    number = min(int(found[1]), len(lines)) if found else len(lines)
    line = lines[number - 1].strip()
    reason = reason[:1].lower() + reason[1:]
    return ArchipelError(f"line {number}, {fields.shown(line)}: not TOML, {reason}.")


def _check_size(value: Any, path: str) -> None:
    """Refuse numbers that are computed with in too few bits: whole ones in 64, others in 32."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            _check_size(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            _check_size(each, path)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ArchipelError(f"{path} = {fields.shown(value)}: give a number of at most 64 bits.")
    elif isinstance(value, float) and 3e38 < abs(value) < math.inf:
        raise ArchipelError(f"{path} = {value}: give a number below 3e38.")


def sentence(error: ValidationError) -> ArchipelError:
    """The first thing that pydantic found wrong with a study, in our words."""
    first = error.errors(include_url=False)[0]
    section, field, *inside = (str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown(f"key of [{section}]", field, keys(section))
    hint = SECTIONS[section].model_fields[field].annotation
    if inside and get_origin(hint) in (dict, list):
        field, hint = f"{field}.{inside[0]}", get_args(hint)[-1]
    wanted = re.sub("a whole number(,| or) a number", "a number", fields.wanted(hint, none=False))
    limits = "".join(
        f" {word} {first['ctx'][limit]}"
        for limit, word in _LIMITS.items()
        if limit in first.get("ctx", {})
    )
    value = fields.shown(first["input"])
    return ArchipelError(f"{section}.{field} = {value}: give {wanted}{limits}.")


_LIMITS = {  # pydantic's names
    "ge": "from",
    "le": "up to",
    "lt": "below",
    "min_length": "with a length from",
    "max_length": "with a length up to",
}
