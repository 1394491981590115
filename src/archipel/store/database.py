# SPDX-License-Identifier: Apache-2.0
"""A database that is SQLite or PostgreSQL: its engine, its tables' version, and who leads it.

The one that leads has the lease, which ends with its process however that ends. Alembic takes as
long to load as all the rest, so only who makes tables waits for it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from archipel.errors import ArchipelError, DatabaseAway
from archipel.store.files import now

MIGRATIONS = Path(__file__).with_name("migrations")
VERSION_TABLE = "archipel_version"
PASSWORD = "ARCHIPEL_DATABASE_PASSWORD"  # where PostgreSQL's own PGPASSWORD is not wanted
PATIENCE = 60  # seconds that a writer waits for its turn
_TRIES = 10  # to take the lease, twenty a second: a killed process may not be quite gone
_LEASE, _TURN = "1095910216, 1", "1095910216, 2"  # PostgreSQL's advisory locks
_SECRETS = ("password", "sslpassword")  # in the query of an address
_ALEMBIC = threading.Lock()  # it keeps what it does in globals


def engine_of(address: str, leads: bool) -> sa.Engine:
    """Of a database that may not be there yet if the coordinator asks."""
    try:
        url = sa.make_url(address)
    except sa.exc.ArgumentError:  # what was written may hold a password
        raise ArchipelError(
            "database: this is no address of a database; write sqlite:///path or "
            "postgresql+psycopg://user@host/name."
        ) from None
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return _sqlite(url, leads)
    where = _without_password(url)
    if url.drivername not in ("postgresql", "postgresql+psycopg"):
        raise ArchipelError(
            f"database = '{where}': Archipel knows SQLite and PostgreSQL; write sqlite:///path or "
            "postgresql+psycopg://user@host/name."
        )
    if url.password is None and (password := os.environ.get(PASSWORD)):
        url = url.set(password=password)
    try:
        return sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            connect_args={} if "connect_timeout" in url.query else {"connect_timeout": 10},
        )
    except ImportError:
        raise ArchipelError(
            f"database = '{where}': psycopg is not installed; install it with "
            "pip install 'archipel[postgres]'."
        ) from None


def _sqlite(url: sa.URL, leads: bool) -> sa.Engine:
    name = url.database or ""
    if name in ("", ":memory:") or name.startswith("file:"):
        raise ArchipelError(
            f"database = '{url}': the registry needs a file; write sqlite:///path, or "
            "sqlite:////path for a path from the root."
        )
    path = Path(name).resolve()
    if not leads and not path.is_file():
        raise ArchipelError(
            f"database = '{path}': there is no such file; start the coordinator once, which makes "
            "it, or name another."
        )
    engine = sa.create_engine(url.set(database=str(path)), connect_args={"timeout": PATIENCE})

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin below, not where sqlite3 thinks
        if leads:
            connection.execute("PRAGMA journal_mode = WAL")  # stays with the file
        # foreign keys stay off: operations look before they write, and migrations replace tables

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    return engine


def is_sqlite(engine: sa.Engine) -> bool:
    return engine.dialect.name == "sqlite"


def shown(engine: sa.Engine) -> str:
    return str(engine.url.database) if is_sqlite(engine) else _without_password(engine.url)


def _without_password(url: sa.URL) -> str:
    return url.difference_update_query(_SECRETS).render_as_string()


def to_keep(address: str) -> str:
    """An address without its passwords, to be written down."""
    url = sa.make_url(address).difference_update_query(_SECRETS)
    parts = (url.drivername, url.username, None, url.host, url.port, url.database, url.query)
    return sa.URL.create(*parts).render_as_string()


def has_password(address: str) -> bool:
    url = sa.make_url(address)
    return url.password is not None or any(name in url.query for name in _SECRETS)


@contextmanager
def told(engine: sa.Engine) -> Iterator[None]:
    """Say in a sentence what is wrong with a database."""
    try:
        yield
    except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
        cause = str(getattr(error, "orig", error)).strip().splitlines()
        raise DatabaseAway(
            f"database = '{shown(engine)}': cannot be used ({cause[0] if cause else error}); see "
            "that it is there and that this user may write to it, then try again."
        ) from error


def take_turn(connection: sa.Connection) -> None:
    """Wait until no other writer is at work; until the end of a PostgreSQL transaction."""
    connection.execute(sa.text(f"SET LOCAL lock_timeout = '{PATIENCE}s'"))
    connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({_TURN})"))


def version(connection: sa.Connection, tables: Set[str]) -> tuple[str | None, str]:
    """That a database has and that it should have; refuse one that is not ours to change."""
    known = sorted(path.stem[1:] for path in (MIGRATIONS / "versions").glob("v*.py"))
    tells, has, needs = sa.inspect(connection), None, known[-1]
    if tells.has_table(VERSION_TABLE):
        has = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
    where = shown(connection.engine)
    if has is not None and has not in known:
        raise ArchipelError(
            f"database = '{where}': was written by a newer Archipel (its tables have version "
            f"{has}, this one knows {needs}); install that one, or name another database."
        )
    others = set(tells.get_table_names()) & tables
    if has is None and others:
        raise ArchipelError(
            f"database = '{where}': belongs to another program, whose table is called "
            f"'{min(others)}'; give the coordinator a database of its own."
        )
    return has, needs


def upgrade(connection: sa.Connection, tables: Set[str]) -> None:
    """Bring the tables up to this version."""
    with _ALEMBIC:
        has, needs = version(connection, tables)
        if has != needs:
            from alembic import command
            from alembic.config import Config

            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def as_text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")


# -- the lease -------------------------------------------------------------------------------------

_HELD: set[int] = set()  # files and sockets that are a lease of this process


def _let_go() -> None:
    """A forked worker holds no lease: it may outlive the coordinator."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in _HELD:
        os.dup2(nothing, handle, inheritable=False)  # and not closed: the number stays taken
    os.close(nothing)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


def _taken(engine: sa.Engine, process: str, host: str, since: str) -> ArchipelError:
    return ArchipelError(
        f"database = '{shown(engine)}': has a coordinator, process {process} on {host} since "
        f"{since}; stop that one, or name another database."
    )


def _given_back(engine: sa.Engine) -> ArchipelError:
    return ArchipelError(
        f"database = '{shown(engine)}': the registry was closed and its lease given back; open it "
        "again to write."
    )


class File:
    """The lease of an SQLite database: a lock on the file beside it."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        path = Path(f"{engine.url.database}.lock")
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ArchipelError(
                f"database = '{shown(engine)}': '{path.name}' beside it cannot be written "
                f"({error.strerror}); make the folder, or name another database."
            ) from None
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if attempt + 1 < _TRIES:
                    time.sleep(0.05)
                    continue
                words = os.pread(self._handle, 400, 0).decode(errors="replace").split()
                os.close(self._handle)
                process, since, host = words if len(words) == 3 else ("unknown",) * 3
                raise _taken(engine, process, host, since) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"{os.getpid()} {now()} {socket.gethostname()}\n".encode(), 0)
        _HELD.add(self._handle)

    def assure(self) -> None:
        """Nothing takes it away before it is given back."""
        if self._handle < 0:
            raise _given_back(self._engine)

    def release(self) -> None:
        if self._handle >= 0:
            _HELD.discard(self._handle)
            os.close(self._handle)
        self._handle = -1


class Session:
    """The lease of a PostgreSQL database: an advisory lock of a connection kept for that."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._one_at_a_time = threading.Lock()
        self._released = False
        self._take()

    def _take(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        handle: int = connection.connection.driver_connection.fileno()  # type: ignore[union-attr]
        connection.detach()
        for setting, value in {
            "application_name": f"archipel {os.getpid()} {socket.gethostname()}"[:63],
            "idle_session_timeout": "0",
            "tcp_keepalives_idle": "20",  # seconds: a machine that is gone does not keep the lease
            "tcp_keepalives_interval": "10",
            "tcp_keepalives_count": "3",
        }.items():
            query = "SELECT set_config(name, :value, false) FROM pg_settings WHERE name = :name"
            connection.execute(sa.text(query), {"name": setting, "value": value})
        for attempt in range(_TRIES):
            if connection.scalar(sa.text(f"SELECT pg_try_advisory_lock({_LEASE})")):
                break
            if attempt + 1 < _TRIES:
                time.sleep(0.05)
                continue
            holder = connection.execute(sa.text(_HOLDER)).one_or_none()
            connection.close()
            words = holder.application_name.split() if holder else []
            _, process, host = words if len(words) == 3 else ("unknown",) * 3
            since = as_text(holder.backend_start) if holder else "unknown"
            raise _taken(self._engine, process, host, since)
        self._connection, self._socket = connection, handle
        _HELD.add(self._socket)

    def assure(self) -> None:
        """Take the lease again where the connection was lost; refuse if another has it now."""
        with self._one_at_a_time:
            if self._released:
                raise _given_back(self._engine)
            try:
                self._connection.execute(sa.text("SELECT 1"))
            except sa.exc.SQLAlchemyError:
                self._drop()
                self._take()

    def release(self) -> None:
        with self._one_at_a_time:
            self._released = True
            self._drop()

    def _drop(self) -> None:
        _HELD.discard(self._socket)
        self._socket = -1
        self._connection.close()


_HOLDER = f"""
SELECT application_name, backend_start FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND (classid, objid, objsubid) = ({_LEASE}, 2)
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


Lease = File | Session
