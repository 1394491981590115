# SPDX-License-Identifier: Apache-2.0
"""The sections of a study file: every key, its kind, its default, and what it is for.

One file, since it is one table of keys that is read from top to bottom.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
)

from archipel.data.kinds import KINDS

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
    evaluate_sample: Annotated[
        int | None,
        Field(ge=30, description="score at so many parties, with 95 % intervals; at all"),
    ] = None
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

        name: Annotated[
            str | None, Field(description="archipel list data, or mine.py:load, mine.py:Mine")
        ] = None
        file: Annotated[str | None, Field(description="a table, with by and target")] = None
        folder: Annotated[
            str | None,
            Field(description="a table per party, shards, or where a dataset's files are"),
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
    separation: Annotated[
        int | None,
        Field(ge=1, description="rounds from one in which a party is asked to the next; 1"),
    ] = None
    rule: Annotated[
        str | list[str] | None,
        Field(description='for the mean of uploads, "krum:2", ["nnm:0.2", "median"], mine.py:Mine'),
    ] = None


class Wire(Section):
    """[wire]"""

    up: Annotated[
        list[str],
        Field(max_length=50, description="steps of an upload: archipel list wire, mine.py:Mine:1"),
    ] = []
    down: Annotated[
        list[str], Field(max_length=50, description="the same of what parties are sent")
    ] = []
    sum: Annotated[
        str,
        Field(
            description="how uploads are added up: plain, as they arrive; secure, gopa, shuffled: "
            "unseen by the server; mine.py:Mine"
        ),
    ] = PLAIN


class Privacy(Section):
    """[privacy]"""

    server_sees: Annotated[
        Literal["uploads", "sums"],
        Field(description='"sums" refuses an algorithm that looks at single uploads'),
    ] = "uploads"
    unit: Annotated[
        Literal["record", "party"] | None,
        Field(description="whom (epsilon, delta) is promised to: every record, or every party"),
    ] = None
    epsilon: Annotated[
        Number | None, Field(description="the budget; the noise is found for it")
    ] = None
    noise: Annotated[
        Number | None, Field(description="in place of epsilon: deviation of the noise over clip")
    ] = None
    delta: Annotated[Number | None, Field(description="below 1 / records; 1e-5")] = None
    clip: Annotated[
        Number | Literal["adaptive"] | None,
        Field(description='norm of a record\'s gradient, or of an upload, or "adaptive"; 1.0'),
    ] = None
    trust: Annotated[
        Literal["server", "sum", "shuffler", "nobody"] | None,
        Field(description="by party: whom noise need not hide uploads from; server"),
    ] = None
    honest: Annotated[
        int | None,
        Field(description='trust = "sum": parties of every sum whose noise is counted on'),
    ] = None
    bits: Annotated[
        int | None, Field(description='trust = "sum": of the integers that are added up; 32')
    ] = None
    shares: Annotated[
        Literal["gaussian", "skellam"] | None,
        Field(description='trust = "sum": the integer noise of each party; gaussian'),
    ] = None
    correlated: Annotated[
        str | None,
        Field(description='noise over rounds: "banded", "banded:8" or "tree"; independent'),
    ] = None
    mechanism: Annotated[
        Literal["gaussian", "laplace"] | None,
        Field(description="by record: noise on gradients clipped in L2, or in L1; gaussian"),
    ] = None
    neighbours: Annotated[
        Literal["add_or_remove", "replace"] | None,
        Field(description="by record: what two tables differ in; add_or_remove"),
    ] = None
    wakes: Annotated[
        int | None,
        Field(description="where parties wake one by one: how often each may; as many as rounds"),
    ] = None
    spent: Annotated[
        Literal["rest", "propagate"] | None,
        Field(description="what it does then: rest, or go on with what it released; rest"),
    ] = None
    clip_start: Annotated[
        Number | None, Field(description="where an adaptive clip begins; 1.0")
    ] = None
    clip_quantile: Annotated[
        Number | None, Field(description="share of uploads that it leaves whole; 0.5")
    ] = None
    clip_rate: Annotated[Number | None, Field(description="how fast it moves; 0.2")] = None


class Attackers(Open):
    """[adversary]"""

    parties: Annotated[
        Number | list[str] | None,
        Field(description="that attack the model in a simulation: a share, a number, or names"),
    ] = None
    attack: Annotated[
        str | None, Field(description="archipel list attacks, or mine.py:Mine; its fields beside")
    ] = None
    first: Annotated[int, Field(ge=1, description="round in which they begin")] = 1
    last: Annotated[int | None, Field(ge=1, description="round after which they stop; none")] = None


class Graph(Section):
    """[topology]"""

    name: Annotated[str | None, Field(description='for peers: "ring", "torus:4x8", ...')] = None
    file: Annotated[
        str | None,
        Field(description="in place of a name: a table of edges, two parties each and a weight"),
    ] = None
    weights: Annotated[
        Literal["metropolis", "max_degree", "given"] | None,
        Field(description='of the mixing matrix; "given" are the file\'s; "metropolis"'),
    ] = None
    asynchronous: Annotated[
        bool, Field(description="between peers: each at its own pace, averaging pair by pair")
    ] = False
    pause: Annotated[
        Number | None,
        Field(description="between peers: seconds between two turns of one, on average; 0.05"),
    ] = None
    learned: Annotated[
        bool | None,
        Field(description="the algorithm learns the graph, which is only where it begins; false"),
    ] = None


Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]


class Device(Section):
    """[simulate.devices.NAME]"""

    share: Annotated[Number, Field(description="of the parties; shares are put in proportion")]
    gflops: Annotated[
        Number | None, Field(description="billions of FLOPs per second of training, the median")
    ] = None
    seconds: Annotated[
        Number | None, Field(description="in place of gflops: of one example, the median")
    ] = None
    spread: Annotated[
        Number | None, Field(description="standard deviation over parties of log(speed); 0")
    ] = None
    jitter: Annotated[
        Number | None, Field(description="the same of one party from round to round; 0")
    ] = None
    setup: Annotated[
        Number | None, Field(description="seconds to wake up, connect and load, the median; 0")
    ] = None
    down: Annotated[
        Number | None, Field(description="Mbit/s, the median; downloads take no time")
    ] = None
    up: Annotated[Number | None, Field(description="Mbit/s, the median; uploads take no time")] = (
        None
    )
    link_spread: Annotated[
        Number | None, Field(description="standard deviation over parties of log(Mbit/s); 0")
    ] = None
    watts: Annotated[Pair | None, Field(description="low and high, while it trains; [0, 0]")] = None
    idle: Annotated[
        Pair | None, Field(description="mean minutes that it is idle, and is not; always")
    ] = None
    plugged: Annotated[Pair | None, Field(description="the same of being plugged in")] = None
    wifi: Annotated[Pair | None, Field(description="the same of Wi-Fi")] = None
    swing: Annotated[
        Number | None, Field(description="plugged in so much more often at night than by day; 1")
    ] = None


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
    devices: Annotated[
        str | dict[str, Device] | None,
        Field(description='"phones", or a table of classes: share, gflops, ..., on a clock'),
    ] = None
    trace: Annotated[
        str | None, Field(description='when devices are there: a file of FedScale\'s, or "phones"')
    ] = None
    clock: Annotated[
        bool | None, Field(description="whether rounds take simulated time; with devices they do")
    ] = None
    time_zones: Annotated[
        list[Number] | None,
        Field(max_length=100, description="of devices, hours ahead of UTC; [-5, 1, 8]"),
    ] = None
    patience: Annotated[
        Number | None,
        Field(ge=0, description="seconds until a round begins with fewer than it asks; 600"),
    ] = None
    pace: Annotated[
        bool | None, Field(description="ask as many as lately were needed for the sample to arrive")
    ] = None
    protocols: Annotated[
        bool | None,
        Field(description="whether wire.sum runs its protocol; else the same integers are added"),
    ] = None


SECTIONS: dict[str, type[Section]] = {
    "study": About,
    "data": Data,
    "model": Network,
    "algorithm": Method,
    "round": Round,
    "wire": Wire,
    "privacy": Privacy,
    "adversary": Attackers,
    "topology": Graph,
    "simulate": Simulated,
}


def keys(section: str) -> list[str]:
    """The keys of a section that do not depend on what its `name` names."""
    return list(SECTIONS[section].model_fields)
