# SPDX-License-Identifier: Apache-2.0
"""The sections of a study file: every key, its kind, its default, and what it is for."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from archipel import fields
from archipel.errors import ArchipelError, unknown

Number = StrictInt | StrictFloat


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
    rounds: Annotated[int, Field(ge=1, le=10_000_000)] = 100
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluate_every: Annotated[int, Field(ge=1, description="rounds")] = 1
    metric: Annotated[str | None, Field(description="by which the run is judged; the task's")] = (
        None
    )
    target: Annotated[Number | None, Field(description="of that metric")] = None


class Data(Open):
    """[data]"""

    name: Annotated[str | None, Field(description="archipel list data, or mine.py:load")] = None
    file: Annotated[str | None, Field(description="a table, with by and target")] = None
    folder: Annotated[
        str | None, Field(description="a table per party, or where a dataset's files are")
    ] = None
    by: Annotated[str | None, Field(description="column that says whose row it is")] = None
    target: Annotated[str | list[str] | None, Field(description="column to predict")] = None
    drop: Annotated[list[str], Field(description="columns to leave out")] = []
    missing: Annotated[
        str, Field(description="error, drop or a filling: see Federation.from_frame")
    ] = "error"
    test: Annotated[float | None, Field(ge=0, lt=1, description="share of each party's points")] = (
        None
    )
    partition: Annotated[
        str | None, Field(description='how to deal points out, "dirichlet:0.3"')
    ] = None
    parties: Annotated[int | None, Field(ge=1, le=100_000_000)] = None
    new: Annotated[
        Number, Field(ge=0, description="parties (number or share) kept for evaluation only")
    ] = 0


class Network(Open):
    """[model]"""

    name: Annotated[str | None, Field(description="archipel list models, or mine.py:net")] = None
    loss: str | None = None


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


class Wire(Section):
    """[wire]"""

    steps: Annotated[list[str], Field(max_length=0, description="none in this version")] = []


class Privacy(Section):
    """[privacy]"""

    server_sees: Annotated[
        Literal["uploads", "sums"],
        Field(description='"sums" refuses an algorithm that looks at single uploads'),
    ] = "uploads"


class Graph(Section):
    """[topology]"""

    name: Annotated[str | None, Field(description='for peers: "ring", "torus:4x8", ...')] = None


class Simulated(Section):
    """[simulate]"""

    dropouts: Annotated[float, Field(description="chance that a sampled party does not answer")] = (
        0.0
    )
    stragglers: Annotated[
        float, Field(description="share of a round's parties that do not finish")
    ] = 0.0
    availability: Annotated[float | str, Field(description='chance to be there, or "day:24"')] = 1.0
    away: Annotated[
        dict[str, str], Field(description='party = rounds, such as cleveland = "11-20"')
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


def sentence(error: ValidationError) -> ArchipelError:
    """The first thing that pydantic found wrong with a study, in our words."""
    first = error.errors(include_url=False)[0]
    section, field = (str(part) for part in first["loc"][:2])
    if first["type"] == "extra_forbidden":
        return unknown(f"key of [{section}]", field, keys(section))
    if (section, field) == ("wire", "steps") and first["type"] == "too_long":
        return ArchipelError(
            f"wire.steps = {json.dumps(first['input'])}: this version has no wire steps; leave "
            "[wire] out."
        )
    reason = first["msg"][:1].lower() + first["msg"][1:]
    value = first["input"]
    shown = str(value) if isinstance(value, float) else json.dumps(value, default=str)
    wanted = fields.wanted(SECTIONS[section].model_fields[field].annotation)
    wanted = wanted.removesuffix(' or "none"').replace("a whole number, a number", "a number")
    return ArchipelError(f"{section}.{field} = {shown[:80]}: {reason}; give {wanted}.")
