# SPDX-License-Identifier: Apache-2.0
"""The journal of a run: one transaction per checkpoint, so that it never tells half a story.

A row of `runs` says how far the run has come; rounds, evaluations and events up to that round are
committed with it. What a process did after its last commit never happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
import torch
from torch import Tensor

from archipel.errors import ArchipelError, RunFailed

VERSION = 2  # of what is in the tables; 1 wrote "all" where everybody was sampled

_METADATA = sa.MetaData()


def _run() -> sa.Column[str]:
    return sa.Column("run", sa.String, primary_key=True)


RUNS = sa.Table(
    "runs",
    _METADATA,
    _run(),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("description", sa.JSON, nullable=False),  # the resolved study
    sa.Column("hash", sa.String, nullable=False),  # of the description
    sa.Column("plan", sa.JSON),  # how it is computed
    sa.Column("environment", sa.JSON, nullable=False),
    sa.Column("state", sa.String, nullable=False),  # running, done, stopped, failed
    sa.Column("started", sa.String, nullable=False),
    sa.Column("ended", sa.String),
    sa.Column("done", sa.Integer, nullable=False),  # rounds; also the checkpoint's
    sa.Column("rounds", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("baselines", sa.JSON),
    sa.Column("summary", sa.JSON),  # what `archipel runs` lists
    sa.Column("scorecard", sa.JSON),
)
ROSTER = sa.Table(
    "roster",
    _METADATA,
    _run(),
    sa.Column("party", sa.Integer, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("training_points", sa.Integer, nullable=False),
    sa.Column("test_points", sa.Integer, nullable=False),
    sa.Column("trains", sa.Boolean, nullable=False),  # False: a new party
)
ROUNDS = sa.Table(
    "rounds",
    _METADATA,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("sampled", sa.JSON, nullable=False),  # parties; "0-41, 43-99" where they are many
    sa.Column("missing", sa.JSON, nullable=False),  # party -> cause
    sa.Column("late", sa.JSON, nullable=False),  # party -> share of its work that it did
    sa.Column("counted", sa.Boolean, nullable=False),
    sa.Column("waited", sa.Integer, nullable=False),
    sa.Column("blocked", sa.JSON, nullable=False),  # who was missing while it was waited for
    sa.Column("gradients", sa.Integer, nullable=False),
    sa.Column("bytes_up", sa.Integer, nullable=False),
    sa.Column("bytes_down", sa.Integer, nullable=False),
)
EVALUATIONS = sa.Table(
    "evaluations",
    _METADATA,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("entry", sa.JSON, nullable=False),  # as in Run.history
)
PARTY_METRICS = sa.Table(
    "party_metrics",
    _METADATA,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),  # 0 with a baseline's name before the metric
    sa.Column("metric", sa.String, primary_key=True),
    sa.Column("values", sa.LargeBinary, nullable=False),  # little-endian float64, a party each
)
EVENTS = sa.Table(
    "events",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run", sa.String, nullable=False),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("text", sa.String, nullable=False),
)


class Event(NamedTuple):
    """Something that happened, in words."""

    time: str
    round: int
    kind: str  # started, resumed, note, stopped, failed, done
    text: str


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Journal:
    """One run's part of a database; without a name, the only run there is."""

    def __init__(self, path: Path, run: str | None = None) -> None:
        self._name = run
        url = sa.URL.create("sqlite", database=str(path))
        self._engine = sa.create_engine(url, connect_args={"timeout": 60})

    @property
    def run(self) -> str:
        if self._name is None:
            with self._transaction() as connection:
                self._name = connection.execute(sa.select(RUNS.c.run)).scalar()
        if self._name is None:
            raise RunFailed(f"the journal {self._engine.url.database} knows no run.")
        return self._name

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DatabaseError as error:
            raise RunFailed(
                f"the journal {self._engine.url.database} cannot be used ({error.orig}): put it "
                "back from a copy, or start the run anew."
            ) from None

    # -- writing ---------------------------------------------------------------------------------

    def begin(self, row: Mapping[str, Any], roster: Iterable[Mapping[str, Any]]) -> None:
        """Enter a run that has done nothing yet."""
        with self._transaction() as connection:
            _METADATA.create_all(connection)
            connection.execute(
                RUNS.insert(),
                {
                    "run": self.run,
                    "version": VERSION,
                    "state": "running",
                    "started": now(),
                    "done": 0,
                    "seconds": 0.0,
                    **row,
                },
            )
            self._insert(connection, ROSTER, roster)

    def commit(
        self,
        row: Mapping[str, Any],
        rounds: Sequence[Mapping[str, Any]] = (),
        entries: Sequence[Mapping[str, Any]] = (),
        party_metrics: Sequence[tuple[int, str, Tensor]] = (),
        events: Sequence[Event] = (),
        keep_last: bool = False,
        joined: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        """Write all of it or nothing; `keep_last` forgets parties' metrics of earlier rounds.

        Parties that `joined` come after those that the roster has.
        """
        groups: list[tuple[sa.Table, Iterable[Mapping[str, Any]]]] = [
            (ROSTER, joined),
            (ROUNDS, rounds),
            (EVALUATIONS, [{"round": each["round"], "entry": each} for each in entries]),
            (
                PARTY_METRICS,
                [
                    {"round": t, "metric": name, "values": _bytes(values)}
                    for t, name, values in party_metrics
                ],
            ),
            (EVENTS, [event._asdict() for event in events]),
        ]
        with self._transaction() as connection:
            if row:
                connection.execute(sa.update(RUNS).where(RUNS.c.run == self.run).values(**row))
            if keep_last and any(t > 0 for t, _, _ in party_metrics):
                earlier = (PARTY_METRICS.c.run == self.run) & (PARTY_METRICS.c.round > 0)
                connection.execute(sa.delete(PARTY_METRICS).where(earlier))
            for table, rows in groups:
                self._insert(connection, table, rows)

    def _insert(
        self, connection: sa.Connection, table: sa.Table, rows: Iterable[Mapping[str, Any]]
    ) -> None:
        whole = [{"run": self.run, **row} for row in rows]
        if whole:
            connection.execute(table.insert(), whole)

    # -- reading ---------------------------------------------------------------------------------

    def row(self) -> dict[str, Any]:
        """The run's row of `runs`."""
        with self._transaction() as connection:
            row = dict(
                connection.execute(sa.select(RUNS).where(RUNS.c.run == self.run)).one()._mapping
            )
        if row["version"] > VERSION:
            raise ArchipelError(
                f"the journal of run '{self.run}' has version {row['version']}, this is version "
                f"{VERSION}: open it with the Archipel that wrote it."
            )
        return row

    def parties(self) -> int:
        """How many the roster has, those that left among them."""
        query = sa.select(sa.func.count()).select_from(ROSTER).where(ROSTER.c.run == self.run)
        with self._transaction() as connection:
            return int(connection.scalar(query) or 0)

    def rounds(self) -> list[dict[str, Any]]:
        return self._all(ROUNDS, ROUNDS.c.round)

    def entries(self) -> list[dict[str, Any]]:
        """The history: one entry per evaluated round."""
        return [row["entry"] for row in self._all(EVALUATIONS, EVALUATIONS.c.round)]

    def party_metrics(self, t: int) -> dict[str, Tensor]:
        """Every party's metrics after round t; of the baselines for 0."""
        where = (PARTY_METRICS.c.run == self.run) & (PARTY_METRICS.c.round == t)
        with self._transaction() as connection:
            rows = connection.execute(sa.select(PARTY_METRICS).where(where)).all()
        return {row.metric: _tensor(row._mapping["values"]) for row in rows}

    def events(self) -> list[Event]:
        return [
            Event(row["time"], row["round"], row["kind"], row["text"])
            for row in self._all(EVENTS, EVENTS.c.id)
        ]

    def _all(self, table: sa.Table, order: sa.Column[Any]) -> list[dict[str, Any]]:
        query = sa.select(table).where(table.c.run == self.run).order_by(order)
        with self._transaction() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]


def _bytes(values: Tensor) -> bytes:
    return values.double().numpy().astype("<f8").tobytes()


def _tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, "<f8").astype(np.float64))
