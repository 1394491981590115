# SPDX-License-Identifier: Apache-2.0
"""A run's folder: journal, or where that is, study, last checkpoint, model, report.

It appears whole, by a rename. While a process works on it, it holds the folder's lock, which the
system lets go of however the process ends. Tensors are read and written by torch, and journals by
SQLAlchemy, which only those who do so wait for.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from archipel.errors import ArchipelError, RunFailed, unknown
from archipel.store import glance
from archipel.store.files import UMASK, sync, write

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.store.journal import Journal

JOURNAL, MODEL = "journal.db", "model.safetensors"
WORTH = "worth.json"  # what each party was worth, where that was measured
OWN = "own"  # what parties keep, where it is much
ELSEWHERE = "journal.json"  # in place of a journal: which database has it, and by what name
_TRIES = 10  # to take a lock, twenty a second
_HELD: set[int] = set()  # locks of this process


def _let_go() -> None:
    """A forked worker holds no lock: it may outlive the process whose run it is."""
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


class Folder:
    """A run on the disk; `with folder.locked():` to work on it."""

    def __init__(self, path: Path, database: str | None = None) -> None:
        self.path, self._database = path, database
        self._lock: int | None = None

    @cached_property
    def journal(self) -> Journal:
        """The journal: in the folder, or in a database whose address may hold a password now."""
        from archipel.store.journal import Journal

        note = self.path / ELSEWHERE
        if not note.exists():
            return Journal(self.path / JOURNAL)
        try:
            about = json.loads(note.read_text())
            database, run = str(about["database"]), str(about["run"])
        except (OSError, ValueError, KeyError, TypeError):
            database, run = "", ""
        if not database.startswith("postgresql"):
            raise RunFailed(
                f"'{note}' names no PostgreSQL database and run: put it back from a copy, or start "
                "the run anew."
            )
        return Journal(self._database or database, run)

    def row(self, *columns: str) -> dict[str, Any]:
        """Some of what the journal says of the run as a whole."""
        if (self.path / ELSEWHERE).exists():
            try:
                row = self.journal.row()
            finally:
                self.journal.close()
            return {column: row[column] for column in columns}
        return glance.row_of(self.path / JOURNAL, *columns)

    # -- making and finding ------------------------------------------------------------------------

    @staticmethod
    def exists(path: Path) -> bool:
        return any((path / name).is_file() for name in (JOURNAL, ELSEWHERE))

    @classmethod
    def create(
        cls,
        path: Path,
        row: Mapping[str, Any],
        roster: Iterable[Mapping[str, Any]],
        files: Mapping[str, bytes],
        database: str | None = None,
        columns: Sequence[tuple[int, str, Tensor]] = (),
    ) -> Self:
        """Make the folder with a first entry in its journal; refuse one that is there.

        The journal lies in a PostgreSQL database if its address is given, else in the folder.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            side = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise ArchipelError(
                f"out = '{path}': cannot be made ({error.strerror}); name another folder."
            ) from None
        try:
            for name, content in files.items():
                (side / name).parent.mkdir(parents=True, exist_ok=True)
                write(side / name, content)
            journal = _begun(side, path.name, database)
            journal.begin(row, roster, columns)
            journal.close()
            side.chmod(0o777 & ~UMASK)
            try:
                side.rename(path)  # fails where something is in the way
            except OSError:
                journal.forget()
                journal.close()
                raise
        except OSError as error:
            shutil.rmtree(side)
            raise ArchipelError(
                f"out = '{path}': there is something already ({error.strerror}); name another."
            ) from None
        except BaseException:
            shutil.rmtree(side)
            raise
        sync(path.parent)
        return cls(path, database)

    @classmethod
    def open(cls, path: Path, database: str | None = None) -> Self:
        """Open a run; `database` is the address of its database with the password, if any."""
        if not cls.exists(path):
            raise ArchipelError(f"'{path}' is no run: it has no {JOURNAL}.")
        return cls(path, database)

    @classmethod
    def find(cls, name: str, out: Path) -> Self:
        """Open a run by path, by name in `out`, by a part of its name, or the "last" one."""
        if cls.exists(Path(name)):
            return cls(Path(name).resolve())
        known = {str(path.relative_to(out)): path for path in runs_in(out)}
        if not known:
            raise ArchipelError(f"no run in '{out}': start one with 'archipel run', or say --out.")
        if name == "last":
            return cls(max(known.values(), key=_last_written))
        if name in known:
            return cls(known[name])
        similar = [each for each in known if name in each]
        if len(similar) == 1:
            return cls(known[similar[0]])
        if similar:
            raise ArchipelError(f"run '{name}' could be {', '.join(sorted(similar))}: say which.")
        raise unknown(f"run in '{out}'", name, known)

    # -- one process at a time -----------------------------------------------------------------

    def __enter__(self) -> Self:
        """Take the lock."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        for attempt in range(_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if attempt + 1 < _TRIES:  # somebody may only be looking
                    time.sleep(0.05)
                    continue
                holder = os.read(handle, 20).decode().strip() or "another"
                os.close(handle)
                raise ArchipelError(
                    f"run '{self.path.name}' is at work in process {holder}: wait for it, or stop "
                    "it."
                ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._lock = handle
        _HELD.add(handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            _HELD.discard(self._lock)
            os.close(self._lock)
            self._lock = None
        self.journal.close()

    @property
    def at_work(self) -> bool:
        """Whether a process holds the lock."""
        try:
            handle = os.open(self.path / "lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    # -- tensors -----------------------------------------------------------------------------------

    def save_checkpoint(self, done: int, tensors: Mapping[str, Tensor]) -> None:
        """Write the state after so many rounds, beside the one that the journal still names."""
        from safetensors.torch import save

        write(self._checkpoint(done), save(dict(tensors)))

    def load_checkpoint(self, done: int) -> dict[str, Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self._checkpoint(done)
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ArchipelError(
                f"the checkpoint '{path}' cannot be read ({error}): put it back from a copy, or "
                "start the run anew."
            ) from None

    def forget_checkpoints(self, but: int | None = None) -> None:
        """Delete the checkpoints of earlier rounds, and what a killed process left half-written."""
        keep = None if but is None else self._checkpoint(but)
        for path in self.path.iterdir():
            if path != keep and re.match(r"\.?(checkpoint-\d+|model)\.safetensors", path.name):
                if path.name == MODEL:
                    continue
                path.unlink()

    def save_model(self, named: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        """Write the model as named tensors."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().contiguous() for name, tensor in named.items()}
        write(self.path / MODEL, save(tensors, dict(facts)))

    def _checkpoint(self, done: int) -> Path:
        return self.path / f"checkpoint-{done:06d}.safetensors"


def _begun(path: Path, name: str, database: str | None) -> Journal:
    """A new journal, in a folder or in a database that the folder names."""
    from archipel.store.journal import Journal

    if database is None or database.startswith("sqlite"):
        return Journal(path / JOURNAL, name)
    from archipel.store.database import to_keep

    run = f"{name}-{secrets.token_hex(4)}"  # no other run's, also after a folder was deleted
    journal = Journal(database, run)
    about = {"database": to_keep(database), "run": run}
    write(path / ELSEWHERE, json.dumps(about, indent=1).encode())
    return journal


def _last_written(path: Path) -> float:
    journal = path / JOURNAL
    return (journal if journal.exists() else path).stat().st_mtime


def runs_in(out: Path) -> list[Path]:
    """The folders of runs in a folder, and in the comparisons there, by name."""
    if not out.is_dir():
        return []
    return sorted(
        path.parent
        for name in (JOURNAL, ELSEWHERE)
        for pattern in (f"*/{name}", f"*/*/{name}")
        for path in out.glob(pattern)
        if not any(part.startswith(".") for part in path.relative_to(out).parts)
    )


def reserve(out: Path, name: str) -> Path:
    """Make the first of the empty folders name-001, name-002, ... that is not there."""
    name = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = {path.name for path in out.iterdir()}
        number = 1
        while True:
            path = out / f"{name}-{number:03d}"
            if path.name not in taken:
                try:
                    path.mkdir()
                except FileExistsError:  # another process was quicker
                    taken.add(path.name)
                else:
                    return path
            number += 1
    except OSError as error:
        raise ArchipelError(
            f"out = '{out}': cannot be written to ({error.strerror}); name another folder."
        ) from None
