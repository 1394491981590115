# SPDX-License-Identifier: Apache-2.0
"""A federation on disk: a folder of shards that are memory-mapped, and a manifest; never a pickle.

A shard has the points of parties that follow each other, x-00000.npy and y-00000.npy; where each
party's begin is in offsets.npy and test_from.npy. manifest.json has the size and the hash of every
file. The folder appears whole, by a rename, and is written some parties at a time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from archipel.data.about import About
from archipel.data.features import Features
from archipel.data.rows import Ints
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from archipel.data.federation import Federation

MANIFEST = "manifest.json"
FORMAT = "archipel federation 2"
SIZE = 256 << 20  # bytes of the points in a shard, at most; a party's points are never cut
_META = ("training", "task", "classes", "about", "columns", "features")


# -- writing ---------------------------------------------------------------------------------------


def write(fed: Federation, folder: Path, size: int = SIZE, again: bool = False) -> None:
    """Write beside `folder`, then rename, so that a reader sees all of it or nothing.

    Without `again` nothing may be there; with it a federation may, which is replaced.
    """
    if folder.exists():
        if not again:
            raise ArchipelError(f"'{folder}' is there already; name another folder.")
        if not is_federation(folder):
            raise ArchipelError(
                f"folder '{folder}' exists and holds no federation; choose another name."
            )
    side = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        side.mkdir(parents=True)
        _fill(side, fed, size)
        if folder.exists():
            folder.rename(old)
        side.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise ArchipelError(
            f"'{folder}' cannot be written ({error.strerror or error}): make room, or name another "
            "folder."
        ) from error
    finally:
        shutil.rmtree(side, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def is_federation(folder: Path) -> bool:
    """Whether a folder holds a federation, of this version or an earlier one."""
    return any((folder / name).is_file() for name in (MANIFEST, "meta.json"))


def _fill(side: Path, fed: Federation, size: int) -> None:
    form = fed.form
    point = sum(t[:1].numel() * t.element_size() for t in (form.x, form.y))
    files: dict[str, dict[str, Any]] = {}
    ends: list[int] = []  # parties
    for number, (first, last) in enumerate(_runs(fed.offsets.numpy(), max(1, point), size)):
        held = fed.held(np.arange(first, last))
        start = int(held.starts[0])
        rows = slice(start, start + int(fed.offsets[last] - fed.offsets[first]))
        for which, tensor in (("x", held.x[rows]), ("y", held.y[rows])):
            files[_shard(which, number)] = _save(side, _shard(which, number), tensor.numpy())
        ends.append(last)
    arrays: dict[str, Any] = {"offsets": fed.offsets.numpy(), "test_from": fed.test_from.numpy()}
    if fed.names is not None:
        arrays["names"] = np.asarray(fed.names, dtype=np.str_)
    if fed.origin is not None:
        arrays["origin"] = fed.origin.numpy()
    for name, array in arrays.items():
        files[f"{name}.npy"] = _save(side, f"{name}.npy", array)
    told = {
        "format": FORMAT,
        "parties": fed.parties,
        "points": fed.points,
        **{
            name: {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape[1:])}
            for name, t in (("x", form.x), ("y", form.y))
        },
        "training": fed.training,
        "task": fed.task,
        "classes": fed.classes,
        "about": asdict(fed.about),
        "columns": None if fed.columns is None else list(fed.columns),
        "features": fed.features.to_json(),
        "shards": ends,
        "files": files,
    }
    with (side / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(told, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(side)


def _shard(which: str, number: int) -> str:
    return f"{which}-{number:05d}.npy"


def _runs(offsets: Ints, point: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut parties into runs of at most so many bytes of points, or of one party."""
    first, parties = 0, len(offsets) - 1
    while first < parties:
        last = int(np.searchsorted(offsets, offsets[first] + size // point, side="right")) - 1
        last = min(max(last, first + 1), parties)
        yield first, last
        first = last


class _Hashing:
    """A file that knows the hash of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.found = file, blake2b(digest_size=32)

    def write(self, part: Any) -> int:
        self.found.update(part)
        return self._file.write(part)


def _save(side: Path, name: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    with (side / name).open("wb") as file:
        hashing = _Hashing(file)
        np.lib.format.write_array(cast("IO[bytes]", hashing), array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "blake2b": hashing.found.hexdigest()}


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- reading ---------------------------------------------------------------------------------------


def open_folder(folder: Path, check: bool = False) -> Federation:
    """The federation of a folder: mapped as a whole where it has one shard, else a population."""
    from archipel.data.federation import Federation
    from archipel.data.population import Facts, Population

    if not (folder / MANIFEST).is_file() and is_federation(folder):
        return _of_version_1(folder)
    shards = Shards(folder)
    if check:
        shards.check()
    meta = shards.manifest
    arrays = {
        name: shards.map(f"{name}.npy")
        for name in ("offsets", "test_from", "names", "origin")
        if f"{name}.npy" in meta["files"]
    }
    for name, count in (("offsets", 1), ("test_from", 0)):
        if name not in arrays or arrays[name].shape != (meta["parties"] + count,):
            raise ArchipelError(f"'{folder / MANIFEST}' does not fit {name}.npy; write it again.")
    t = {k: torch.from_numpy(np.array(a)) for k, a in arrays.items() if k != "names"}
    facts = Facts(
        meta["training"],
        meta["task"],
        meta["classes"],
        cast("Any", arrays.get("names")),
        About(**{**meta["about"], "counts": ()}),  # they are for data elsewhere
        meta["columns"],
        Features.of_json(meta["features"], tuple(meta["x"]["shape"])),
        t.get("origin"),
    )
    if len(meta["shards"]) == 1:
        x, y = (torch.from_numpy(shards.map(_shard(which, 0))) for which in ("x", "y"))
        at: dict[str, Any] = {"offsets": t["offsets"], "test_from": t["test_from"]}
        return Federation(x=x, y=y, **at, **facts._asdict(), scan=False)
    shards.ends = t["offsets"].numpy()[np.array(meta["shards"], np.int64)]
    shards.offsets = t["offsets"].numpy()
    return Population(shards, t["offsets"], t["test_from"], facts)


class Shards:
    """The files of a folder, mapped one by one when they are needed."""

    ends: Ints  # the first row after each shard
    offsets: Ints

    def __init__(self, folder: Path) -> None:
        """Read the manifest, and look at the sizes of all files."""
        self.folder, self.manifest = folder, _manifest(folder)
        self._mapped: dict[str, npt.NDArray[Any]] = {}
        for name, told in self.manifest["files"].items():
            try:
                size = (folder / name).stat().st_size
            except OSError:
                raise ArchipelError(
                    f"'{folder / name}' is missing; put it back, or write the shards again."
                ) from None
            if size != told["bytes"]:
                raise ArchipelError(
                    f"'{folder / name}' has {size:,} bytes where {told['bytes']:,} were written; "
                    "put it back, or write the shards again."
                )

    def __reduce__(self) -> Any:
        """Where it goes, it is opened there: nothing but a path travels."""
        return _opened, (str(self.folder),)

    def check(self) -> None:
        """Look at every byte."""
        for name, told in self.manifest["files"].items():
            found = blake2b(digest_size=32)
            with (self.folder / name).open("rb") as file:
                while part := file.read(1 << 24):
                    found.update(part)
            if found.hexdigest() != told["blake2b"]:
                raise ArchipelError(
                    f"'{self.folder / name}' is not what was written: its hash differs; put it "
                    "back, or write the shards again."
                )

    def map(self, name: str) -> npt.NDArray[Any]:
        """A file's array, mapped for this process alone: torch has no read-only tensors."""
        if name not in self._mapped:
            path, kind = self.folder / name, name.partition("-")[0]
            array = _mapped(path)
            wanted = self.manifest.get(kind) if kind in ("x", "y") else None
            if wanted and (str(array.dtype), list(array.shape[1:])) != (
                wanted["dtype"],
                wanted["shape"],
            ):
                raise ArchipelError(
                    f"'{path}' holds other arrays than {MANIFEST} says; write the shards again."
                )
            self._mapped[name] = array
        return self._mapped[name]

    def take(self, parties: Ints, sizes: Ints) -> tuple[Tensor, Tensor]:
        """Copy the rows of these parties out of the shards that have them."""
        starts = self.offsets[parties]
        number = np.searchsorted(self.ends, starts, side="right")
        number = np.where(sizes > 0, number, 0)
        at = np.cumsum(sizes) - sizes
        out = []
        for which in ("x", "y"):
            form = self.manifest[which]
            made = np.empty((int(sizes.sum()), *form["shape"]), form["dtype"])
            for shard in np.unique(number[sizes > 0]).tolist():
                rows = self.map(_shard(which, shard))
                before = int(self.ends[shard - 1]) if shard else 0
                mine = np.flatnonzero((number == shard) & (sizes > 0))
                for start, size, to in zip(
                    (starts[mine] - before).tolist(), sizes[mine].tolist(), at[mine].tolist(),
                    strict=True,
                ):  # fmt: skip
                    made[to : to + size] = rows[start : start + size]
            out.append(torch.from_numpy(made))
        return out[0], out[1]

    @property
    def print(self) -> str:
        """The manifest has every file's hash."""
        return blake2b((self.folder / MANIFEST).read_bytes(), digest_size=16).hexdigest()


def _opened(folder: str) -> Shards:
    fed = open_folder(Path(folder))
    return cast("Shards", fed.source)  # type: ignore[attr-defined]


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ArchipelError(
            f"folder '{folder}' holds no federation; make one with 'archipel data shard'."
        ) from None
    except (ValueError, OSError):
        raise ArchipelError(f"'{path}' is not JSON; write the shards again.") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ArchipelError(f"'{path}' is not of format '{FORMAT}'; write the shards again.")
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        count = len(meta["shards"])
        named = {_shard(which, number) for which in ("x", "y") for number in range(count)}
        named |= {"offsets.npy", "test_from.npy"}
        whole = count >= 1 and named <= meta["files"].keys()
        whole = whole and meta["files"].keys() <= named | {"names.npy", "origin.npy"}
        whole = whole and meta["shards"] == sorted({*map(int, meta["shards"])})
        whole = whole and meta["shards"][-1] == meta["parties"] and meta["shards"][0] > 0
        whole = whole and all(
            np.dtype(meta[which]["dtype"]).kind in "if"
            and all(isinstance(side, int) and side >= 0 for side in meta[which]["shape"])
            for which in ("x", "y")
        )
        whole = whole and all(
            isinstance(told["bytes"], int) and isinstance(told["blake2b"], str)
            for told in meta["files"].values()
        )
        if whole and all(key in meta for key in _META) and isinstance(meta["training"], int):
            return meta
    raise ArchipelError(f"'{path}' does not say all of a federation; write the shards again.")


def _mapped(path: Path) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise ArchipelError(f"'{path}' is missing; put it back, or write it again.") from None
    except (ValueError, OSError, EOFError, SyntaxError):
        empty = _load_empty(path)
        if empty is None:
            raise ArchipelError(f"'{path}' is not a plain array file; write it again.") from None
        array = empty
    return array


def _load_empty(path: Path) -> npt.NDArray[Any] | None:
    """Return an array without elements, which cannot be memory-mapped, or None."""
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError):
        return None
    return array if array.size == 0 else None


def _of_version_1(folder: Path) -> Federation:
    """A folder of earlier versions: one file an array, and no hash."""
    from archipel.data.federation import Federation

    path = folder / "meta.json"
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ArchipelError(f"'{path}' is not JSON; save it again.") from None
    needed = ("training", "task", "classes", "about", "columns")
    whole = isinstance(meta, dict) and all(key in meta for key in needed)
    if not whole or meta.get("format") != "archipel federation 1":
        raise ArchipelError(f"'{path}' is of another format; save the federation again.")
    arrays = {each.stem: _mapped(each) for each in sorted(folder.glob("*.npy"))}
    for name in ("x", "y", "offsets", "test_from"):
        if name not in arrays:
            raise ArchipelError(f"folder '{folder}' lacks {name}.npy; save it again.")
    t: dict[str, Any] = {k: torch.from_numpy(a) for k, a in arrays.items() if k != "names"}
    told = meta.get("features")
    return Federation(
        **t,
        names=cast("Any", arrays.get("names")),
        training=meta["training"],
        task=meta["task"],
        classes=meta["classes"],
        about=About(**{**meta["about"], "counts": ()}),
        columns=meta["columns"],
        features=Features.of_json(told, tuple(t["x"].shape[1:])) if told else Features(),
        scan=False,
    )
