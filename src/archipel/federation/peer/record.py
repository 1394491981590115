# SPDX-License-Identifier: Apache-2.0
"""A peer's part in a study on its disk: its state, and what became of its rounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archipel.plain import plain
from archipel.store.files import write

if TYPE_CHECKING:
    from torch import Tensor

    from archipel.engines.network.peers import Report


class Files:
    """A peer's part in a study on its disk: a file for each name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        from safetensors.torch import save

        copies = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        write(self._folder / f"{name}.safetensors", save(copies))

    def kept(self) -> dict[str, dict[str, Tensor]]:
        from safetensors.torch import load

        found = self._folder.glob("[!.]*.safetensors")
        return {path.stem: load(path.read_bytes()) for path in found}

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            (self._folder / f"{name}.safetensors").unlink(missing_ok=True)


class Log:
    """What became of a peer's rounds, a line each, and how many lines the coordinator knows."""

    def __init__(self, path: Path) -> None:
        self._path, self._cursor = path, path.with_name("told")
        *self._lines, cut = (path.read_text() if path.exists() else "").split("\n")
        if cut:  # the process was killed while it wrote
            write(path, "".join(f"{line}\n" for line in self._lines).encode())
        told = self._cursor.read_text() if self._cursor.exists() else ""
        self._told = min(int(told) if told.isdigit() else 0, len(self._lines))
        self._moved = asyncio.Event()

    def add(self, report: Report) -> None:
        line = json.dumps(plain(report._asdict()))
        with self._path.open("a") as file:
            file.write(line + "\n")
        self._lines.append(line)
        self._moved.set()

    async def untold(self) -> dict[str, Any]:
        """The first line that the coordinator does not know."""
        while self._told >= len(self._lines):
            self._moved.clear()
            await self._moved.wait()
        found: dict[str, Any] = json.loads(self._lines[self._told])
        return found

    def told(self) -> None:
        self._told += 1
        self._cursor.write_text(str(self._told))
        self._moved.set()

    async def all_told(self) -> None:
        while self._told < len(self._lines):
            self._moved.clear()
            await self._moved.wait()


def reached(folder: Path) -> int | None:
    """The last round that a peer wrote down in a study's folder, also while nobody answers."""
    path = folder / "rounds.jsonl"
    if not path.exists():
        return None
    whole = path.read_text().split("\n")[:-1]  # the last line may be under way
    return int(json.loads(whole[-1])["round"]) if whole else None
