# SPDX-License-Identifier: Apache-2.0
"""The journal of a run: one transaction per checkpoint, so that it never tells half a story.

A row of `runs` says how far the run has come; rounds, evaluations and events up to that round are
committed with it. What a process did after its last commit never happened. It is an SQLite file of
the run's own, or lies with other runs' in a PostgreSQL database.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from archipel.errors import RunFailed
from archipel.store.files import now
from archipel.store.glance import VERSION, check, exact

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

METADATA = sa.MetaData()

ROSTER_COLUMNS = -1  # in place of a round: sizes of very many parties, a column each
TRAINING, TEST = "training points", "test points"


class _Json(sa.types.TypeDecorator[Any]):
    """JSON with numbers that are not finite, as {"float": "nan"}: PostgreSQL takes no NaN."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, _: sa.Dialect) -> Any:
        return _strict(value)

    def process_result_value(self, value: Any, _: sa.Dialect) -> Any:
        return exact(value)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _run() -> sa.Column[str]:
    return sa.Column("run", sa.String, primary_key=True)


RUNS = sa.Table(
    "runs",
    METADATA,
    _run(),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("description", _Json, nullable=False),  # the resolved study
    sa.Column("hash", sa.String, nullable=False),  # of the description
    sa.Column("plan", _Json),  # how it is computed
    sa.Column("environment", _Json, nullable=False),
    sa.Column("state", sa.String, nullable=False),  # running, done, stopped, failed
    sa.Column("started", sa.String, nullable=False),
    sa.Column("ended", sa.String),
    sa.Column("done", sa.Integer, nullable=False),  # rounds; also the checkpoint's
    sa.Column("rounds", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
    sa.Column("baselines", _Json),
    sa.Column("summary", _Json),  # what `archipel runs` lists
    sa.Column("scorecard", _Json),
)
ROSTER = sa.Table(
    "roster",
    METADATA,
    _run(),
    sa.Column("party", sa.Integer, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("training_points", sa.BigInteger, nullable=False),  # -1: not told
    sa.Column("test_points", sa.BigInteger, nullable=False),  # -1: not told
    sa.Column("trains", sa.Boolean, nullable=False),  # False: a new party
)
ROUNDS = sa.Table(
    "rounds",
    METADATA,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("sampled", sa.JSON, nullable=False),  # parties; "0-41, 43-99" where they are many
    sa.Column("missing", sa.JSON, nullable=False),  # party -> cause; "": its upload was in vain
    sa.Column(
        "late", _Json, nullable=False
    ),  # party -> share of its work; "stale" -> party -> steps
    sa.Column("counted", sa.Boolean, nullable=False),
    sa.Column("waited", sa.Integer, nullable=False),
    sa.Column("blocked", sa.JSON, nullable=False),  # who was missing while it was waited for
    sa.Column("gradients", sa.BigInteger, nullable=False),
    sa.Column("bytes_up", sa.BigInteger, nullable=False),
    sa.Column("bytes_down", sa.BigInteger, nullable=False),
)
EVALUATIONS = sa.Table(
    "evaluations",
    METADATA,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("entry", _Json, nullable=False),  # as in Run.history
)
PARTY_METRICS = sa.Table(
    "party_metrics",
    METADATA,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),  # 0 with a baseline's name before the metric
    sa.Column("metric", sa.String, primary_key=True),
    sa.Column("values", sa.LargeBinary, nullable=False),  # little-endian float64, a party each
)
EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("run", sa.String, nullable=False, index=True),
    sa.Column("time", sa.String, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("text", sa.String, nullable=False),
)


SIMULATED = sa.MetaData()  # of journals in a file alone: no simulation writes to a database
CLOCK = sa.Table(
    "clock",
    SIMULATED,
    _run(),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("timing", _Json, nullable=False),  # when it was, by the simulated clock
)


class Event(NamedTuple):
    """Something that happened, in words."""

    time: str
    round: int
    kind: str  # started, resumed, note, stopped, failed, done
    text: str


class Journal:
    """One run's part of a database; without a name, the only run there is.

    The database is an SQLite file, or the address of a PostgreSQL database.
    """

    def __init__(self, where: Path | str, run: str | None = None) -> None:
        self._name, self._alone = run, isinstance(where, Path)
        if isinstance(where, Path):
            url = sa.URL.create("sqlite", database=str(where))
            self._engine = sa.create_engine(url, connect_args={"timeout": 60})
        else:
            from archipel.store.database import engine_of  # brings alembic, which few need

            self._engine = engine_of(where, leads=False)

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
        if not self._alone:
            from archipel.store.database import told

            with told(self._engine), self._engine.begin() as connection:
                yield connection
            return
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.DatabaseError as error:
            raise RunFailed(
                f"the journal {self._engine.url.database} cannot be used ({error.orig}): put it "
                "back from a copy, or start the run anew."
            ) from None

    # -- writing ---------------------------------------------------------------------------------

    def begin(
        self,
        row: Mapping[str, Any],
        roster: Iterable[Mapping[str, Any]],
        columns: Sequence[tuple[int, str, Tensor]] = (),
    ) -> None:
        """Enter a run that has done nothing yet; `columns` stand for a roster of very many."""
        with self._transaction() as connection:
            self._make_tables(connection)
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
            self._insert(connection, PARTY_METRICS, _by_party(columns))

    def _make_tables(self, connection: sa.Connection) -> None:
        if self._alone:
            METADATA.create_all(connection)
            SIMULATED.create_all(connection)
        else:
            from archipel.store.database import take_turn, upgrade
            from archipel.store.tables import TABLES

            take_turn(connection)
            upgrade(connection, TABLES)

    def forget(self) -> None:
        """Take the run out of the database."""
        with self._transaction() as connection:
            for table in METADATA.sorted_tables:
                connection.execute(sa.delete(table).where(table.c.run == self.run))

    def commit(
        self,
        row: Mapping[str, Any],
        rounds: Sequence[Mapping[str, Any]] = (),
        entries: Sequence[Mapping[str, Any]] = (),
        party_metrics: Sequence[tuple[int, str, Tensor]] = (),
        events: Sequence[Event] = (),
        keep_last: bool = False,
        joined: Iterable[Mapping[str, Any]] = (),
        clock: Iterable[Mapping[str, Any]] = (),
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
                _by_party(party_metrics),
            ),
            (EVENTS, [event._asdict() for event in events]),
            (CLOCK, clock),
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
            query = sa.select(RUNS).where(RUNS.c.run == self.run)
            found = connection.execute(query).one_or_none()
        if found is None:
            raise RunFailed(
                f"run '{self.run}' is not in the database {self._engine.url.database}: put it back "
                "from a copy, or start the run anew."
            )
        row = dict(found._mapping)
        check(self.run, row["version"])
        return row

    def parties(self) -> int:
        """How many the roster has, those that left among them."""
        query = sa.select(sa.func.count()).select_from(ROSTER).where(ROSTER.c.run == self.run)
        with self._transaction() as connection:
            return int(connection.scalar(query) or 0)

    def roster(self) -> list[dict[str, Any]]:
        """The parties, by number."""
        rows = self._all(ROSTER, ROSTER.c.party)
        return rows or _rows(self.party_arrays(ROSTER_COLUMNS), self.row())

    def rounds(self) -> list[dict[str, Any]]:
        return self._all(ROUNDS, ROUNDS.c.round)

    def clock(self) -> dict[int, dict[str, Any]]:
        """What the simulated clock said of each round; nothing where there was none."""
        with self._transaction() as connection:
            if not self._alone or not sa.inspect(connection).has_table(CLOCK.name):
                return {}  # of a journal that is older
        return {row["round"]: row["timing"] for row in self._all(CLOCK, CLOCK.c.round)}

    def entries(self) -> list[dict[str, Any]]:
        """The history: one entry per evaluated round."""
        return [row["entry"] for row in self._all(EVALUATIONS, EVALUATIONS.c.round)]

    def party_metrics(self, t: int) -> dict[str, Tensor]:
        """Every party's metrics after round t; of the baselines for 0."""
        import torch

        return {name: torch.from_numpy(each) for name, each in self.party_arrays(t).items()}

    def party_arrays(self, t: int) -> dict[str, NDArray[np.float64]]:
        """The same without torch."""
        import numpy as np  # not to list runs

        where = (PARTY_METRICS.c.run == self.run) & (PARTY_METRICS.c.round == t)
        with self._transaction() as connection:
            rows = connection.execute(sa.select(PARTY_METRICS).where(where)).all()
        found = {row.metric: np.frombuffer(row._mapping["values"], "<f8") for row in rows}
        return {name: values.astype(np.float64) for name, values in found.items()}

    def events(self) -> list[Event]:
        return [
            Event(row["time"], row["round"], row["kind"], row["text"])
            for row in self._all(EVENTS, EVENTS.c.id)
        ]

    def _all(self, table: sa.Table, order: sa.Column[Any]) -> list[dict[str, Any]]:
        query = sa.select(table).where(table.c.run == self.run).order_by(order)
        with self._transaction() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]


def _by_party(values: Iterable[tuple[int, str, Tensor]]) -> list[dict[str, Any]]:
    return [{"round": t, "metric": name, "values": _bytes(each)} for t, name, each in values]


def _rows(columns: Mapping[str, NDArray[np.float64]], row: Mapping[str, Any]) -> list[Any]:
    """A roster of very many, from its columns."""
    if TRAINING not in columns:
        return []
    trains = row["summary"].get("training", len(columns[TRAINING]))
    return [
        {"party": k, "name": str(k), "training_points": int(n), "test_points": int(m)}
        | {"trains": k < trains}
        for k, (n, m) in enumerate(zip(columns[TRAINING], columns[TEST], strict=True))
    ]


def _bytes(values: Tensor) -> bytes:
    return values.double().numpy().astype("<f8").tobytes()
