# SPDX-License-Identifier: Apache-2.0
"""What sections of a study say together, and what they say that cannot be."""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from archipel.data.dialect import Written
from archipel.data.frames import Said as TableSaid
from archipel.data.outcome import TASKS
from archipel.data.schema import TEST, Schema
from archipel.data.shards import is_federation
from archipel.devices.build import devices_of
from archipel.devices.trace import BUNDLED
from archipel.errors import ArchipelError, unknown
from archipel.graphs import TOPOLOGIES
from archipel.graphs.file import read as read_edges
from archipel.models.losses import LOSSES
from archipel.privacy.promise import Privacy as Promised
from archipel.runs.participation import Participation, absences
from archipel.study import fields
from archipel.study.sections import Data, Graph, Network, Privacy, Round, Simulated


def promise_of(section: Privacy) -> Promised | None:
    """What [privacy] promises; None where it names no unit."""
    given = section.model_dump(exclude_none=True, exclude={"server_sees"})
    if "unit" not in given:
        for field, value in given.items():
            raise ArchipelError(
                f"privacy.{field} = {fields.shown(value)}: say whom it protects, "
                'privacy.unit = "record" or "party".'
            )
        return None
    if given["unit"] == "record" and "trust" in given:
        raise ArchipelError(
            f'privacy.trust = "{given["trust"]}": with privacy.unit = "record" noise is added at '
            "every party, and nobody is trusted; leave it out."
        )
    return Promised(**given)


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
    if data.folder is not None and data.name is None and is_federation(base / data.folder):
        _check_shards(data)
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


def _check_shards(data: Data) -> None:
    """A folder of shards says itself what tables are asked for."""
    for field in ("by", "target", "drop", "task", "columns", "empty", "time", "schema", "test"):
        if getattr(data, field):
            raise ArchipelError(
                f'data.{field}: the shards in "{data.folder}" have their own; leave it out.'
            )


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
    if graph.pause is not None and not 0 <= graph.pause < inf:
        raise ArchipelError(f"topology.pause = {graph.pause}: give seconds, 0 or more.")


def check_graph(graph: Graph, base: Path, elsewhere: bool) -> None:
    """Where the graph is from, and what is said of it; its file may be elsewhere."""
    if graph.file is not None and graph.name is not None:
        raise ArchipelError(
            f'topology.file = "{graph.file}": topology.name = "{graph.name}" is a graph already; '
            "leave one of the two out."
        )
    if graph.name is None and graph.file is None and graph.weights:
        raise ArchipelError(
            'topology.weights: there is no graph; name one, topology.name = "ring", or a file of '
            "edges, topology.file."
        )
    if graph.file is not None and not elsewhere:
        try:
            read_edges(base / graph.file)
        except ArchipelError as error:
            raise ArchipelError(f"topology.file: {error}") from None


def check_policy(policy: Round, simulated: Simulated, base: Path, elsewhere: bool) -> None:
    """Who takes part, and on what devices; a trace may be elsewhere."""
    for party, rounds in simulated.away.items():
        try:
            absences(rounds)
        except ArchipelError as error:
            raise ArchipelError(f"simulate.away.{party}: {error}") from None
    said = simulated.model_dump() | trace_of(simulated, base)
    Participation.of({**policy.model_dump(), **said, "away": {}})
    if not (elsewhere and simulated.trace):
        devices_of(said, 0)


def trace_of(simulated: Simulated, base: Path) -> dict[str, Any]:
    """The path of its trace, where it names a file."""
    if simulated.trace is None or simulated.trace in BUNDLED:
        return {}
    return {"trace": str(base / simulated.trace)}
