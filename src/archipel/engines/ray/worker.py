# SPDX-License-Identifier: Apache-2.0
"""A worker of the Ray engine: an actor that runs shares of a round, any of them.

A share that mixes with others is stopped in the middle of its algorithm. So it runs in a thread of
its own, which waits there until the main process has brought the others as far.
"""

from __future__ import annotations

import mmap
import os
import platform
import queue
import threading
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.engines.local.device import CPU, check_device, on_device
from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import Json, answer_of, keep_memory
from archipel.engines.local.share import Job, Share
from archipel.engines.ray import parcels
from archipel.engines.ray.parcels import Arrays, Parcel
from archipel.rng import Ints

Control = tuple[Json, dict[str, Any]]  # the answer, and what is brought back
WAITS: Json = {"waits": True}


class Hosted:
    """A share at this worker, with a memory of its own."""

    def __init__(self, job: Job, mixed: int, index: int) -> None:
        self.job, self.index = job, index
        self.memory = Memory(job, mixed)
        self.share = Share(job, self.memory, index, self._call)
        self.first: Json = {}
        self._said: queue.Queue[Any] = queue.Queue()
        self._heard: queue.Queue[bool] = queue.Queue()
        self._wants: tuple[Tensor, Ints, Ints] | None = None  # a board, my parties, others

    def do(self, message: Json, *sent: Parcel) -> Control:
        """Handle a message to its end."""
        self.take(message, *sent)
        return self._done(message)

    def take(self, message: Json, *sent: Parcel) -> None:
        """Put what came with a message where the share reads it."""
        self.break_off()
        if parcels.begins(self.job, message):
            self.first = message
            self.memory.forget()
        for parcel in sent:
            parcels.unload(self.job, self.memory, message, self.first, parcel)

    def _done(self, message: Json) -> Control:
        torch.set_num_threads(1)
        answer = answer_of(self.share, message)
        answer["memory"] = memory_used()
        if "error" in answer:
            return answer, {}
        return answer, parcels.load(self.job, self.memory, message, self.first, self.index)

    # -- shares that mix -------------------------------------------------------------------------

    def begin(self, message: Json, *sent: Parcel) -> tuple[Any, Any]:
        """Handle a message up to the first exchange: what is on the board then, or the answer."""
        self.take(message, *sent)
        self._said, self._heard = queue.Queue(), queue.Queue()
        line = (message, self._said)
        threading.Thread(target=self._run, args=line, daemon=True).start()
        return self._next()

    def go_on(self, whose: list[Ints], boards: list[Any]) -> tuple[Any, Any]:
        """Go on with what the others wrote: of those parties alone that are wanted here."""
        assert self._wants is not None
        board, ids, wanted = self._wants
        for theirs, reference in zip(whose, boards, strict=True):
            at = np.flatnonzero(np.isin(theirs, wanted) & ~np.isin(theirs, ids))
            if len(at):
                board[theirs[at]] = parcels.mapped(fetched(reference))[at]
        self._heard.put(True)
        return self._next()

    def break_off(self) -> None:
        """Forget a share that waits for others, which are gone."""
        if self._wants is not None:
            self._wants = None
            self._heard.put(False)

    def _next(self) -> tuple[Any, Any]:
        said, rows = self._said.get()
        if said is not WAITS:
            self._wants = None
        return said, rows

    def _run(self, message: Json, said: queue.Queue[Any]) -> None:
        try:
            said.put((self._done(message), None))
        except EOFError:
            return

    def _call(self, board: Tensor, ids: Ints, wanted: Ints) -> None:
        """Wait until what the others wrote is on the board."""
        self._wants, heard = (board, ids, wanted), self._heard
        self._said.put((WAITS, board[ids].numpy()))
        if not heard.get():
            raise EOFError("nobody waits for this share any more")


class Worker:
    """What Ray makes an actor of: jobs by their number, and their shares by index."""

    def __init__(self, device: str) -> None:
        torch.set_num_threads(1)
        keep_memory()
        self._device = device
        self._jobs: dict[int, tuple[Job, int]] = {}
        self._wrong: dict[int, str] = {}  # why a job is not among them
        self._hosted: dict[tuple[int, int], Hosted] = {}

    def about(self) -> dict[str, str]:
        return about()

    def process(self) -> int:
        """Its number, on its machine."""
        return os.getpid()

    def load(self, key: int, packed: tuple[bytes, Arrays]) -> None:
        """Take a job; its data stays in the object store, which the machine's workers share."""
        try:
            job, mixed = parcels.unpacked(*packed)
            if self._device != CPU:
                check_device(self._device)
                model, right = on_device(job.model, job.data, self._device)
                job = replace(job, model=model, way=right[job.plan.way])
        except Exception as error:
            said = f"{type(error).__name__}: {error}".rstrip(".")
            self._wrong[key] = f"machine {platform.node()} cannot take the work: {said}."
            return
        self._jobs[key] = job, mixed

    def forget(self, key: int) -> None:
        self._jobs.pop(key, None)
        for each in [each for each in self._hosted if each[0] == key]:
            self._hosted.pop(each).break_off()

    def do(self, key: int, index: int, message: Json, *sent: Parcel) -> Control:
        if key in self._wrong:
            return {"error": self._wrong[key], "kind": "RunFailed"}, {}
        return self._share(key, index).do(message, *sent)

    def begin(self, key: int, index: int, message: Json, *sent: Parcel) -> tuple[Any, Any]:
        if key in self._wrong:
            return self.do(key, index, message), None
        return self._share(key, index).begin(message, *sent)

    def go_on(self, key: int, index: int, whose: list[Ints], boards: list[Any]) -> tuple[Any, Any]:
        """`boards` are references to what each share wrote, `whose` the parties of each."""
        return self._share(key, index).go_on(whose, boards)

    def _share(self, key: int, index: int) -> Hosted:
        if (key, index) not in self._hosted:
            self._hosted[key, index] = Hosted(*self._jobs[key], index)
        return self._hosted[key, index]


def about() -> dict[str, str]:
    """What the last bits depend on, and the machine that this is."""
    found = {name: version(name) for name in ("archipel", "torch", "numpy")}
    return found | {"node": platform.node()}


def fetched(reference: Any) -> Any:
    """What a reference stands for, from this machine's object store."""
    import ray

    return ray.get(reference)


def memory_used() -> int:
    """Bytes of memory that this process has; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0
