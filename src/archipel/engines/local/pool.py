# SPDX-License-Identifier: Apache-2.0
"""Forked worker processes: they inherit the model, the data and the shared memory as they are.

Control messages are JSON lines over a pipe; tensors stay in shared memory. A worker ends when its
pipe closes, so it never outlives the process that made it, however that one ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from archipel.errors import ArchipelError, RunFailed

Json = dict[str, Any]
# has the others' rows on a board of peers, where mine are: of these parties, if not of all
Call = Callable[[Any, Any, Any], None]  # the board, whose rows are mine, whose are wanted


class Worker(Protocol):
    """What runs a share of the work, here or in a process of its own."""

    @property
    def at(self) -> str:
        """What it is at, such as a round and its parties; for who reads of an error."""

    def handle(self, message: Json) -> Json: ...


class Pool(Protocol):
    """Workers, here or elsewhere, that each do a share of the work.

    When `run` begins, what the main process wrote into `Memory.sent` is before every worker; when
    it returns, what they wrote into `returned` and `kept` is before the main process. Forked
    workers share that memory, so there is nothing to do; others have it scattered and gathered.
    """

    def __len__(self) -> int:
        """How many workers there are."""

    def run(self, messages: list[Json]) -> list[Json]:
        """Give each worker a message and wait for every answer."""

    def close(self) -> None:
        """End every worker; what it was doing is lost."""

    @property
    def closed(self) -> bool: ...

    @property
    def said(self) -> str:
        """How workers that are elsewhere are doing, in words."""


class ForkedPool:
    """`make(index, call)` builds each worker; `call` asks the main process something meanwhile.

    With one worker nothing is forked: it runs here, where a debugger can follow it.
    """

    def __init__(self, workers: int, make: Callable[[int, Call], Worker]) -> None:
        self._pipes: list[Connection] = []
        self._pids: list[int] = []
        self._here: Worker | None = None
        if workers == 1 or not hasattr(os, "fork"):
            self._here = make(0, lambda *_: None)
            return
        give_back()
        for index in range(workers):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                for pipe in (*self._pipes, ours):
                    pipe.close()
                _serve(index, theirs, make)
            theirs.close()
            self._pipes.append(ours)
            self._pids.append(pid)

    def __len__(self) -> int:
        return 1 if self._here is not None else len(self._pids)

    def run(self, messages: list[Json]) -> list[Json]:
        """Give each worker a message and wait for every answer.

        A worker that calls waits until all that are still at work have called: a barrier. Whatever
        goes wrong ends the workers, since the others may be in the middle of something.
        """
        if self._here is not None:
            return [self._here.handle(message) for message in messages]
        answers: dict[int, Json] = {}
        try:
            for index, message in enumerate(messages):
                self._send(index, message)
            while len(answers) < len(self._pipes):
                waiting = []
                for index in range(len(self._pipes)):
                    if index not in answers:
                        answer = self._receive(index)
                        raise_error(answer)
                        if "waits" in answer:
                            waiting.append(index)
                        else:
                            answers[index] = answer
                for index in waiting:
                    self._send(index, {})
        except BaseException:
            self.close()
            raise
        return [answers[index] for index in range(len(messages))]

    def close(self) -> None:
        """End every worker; what it was doing is lost."""
        for pipe in self._pipes:
            pipe.close()
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        self._pipes, self._pids, self._here = [], [], None

    @property
    def closed(self) -> bool:
        return self._here is None and not self._pids

    @property
    def said(self) -> str:
        return ""

    def _send(self, index: int, message: Json) -> None:
        try:
            self._pipes[index].send_bytes(json.dumps(message).encode())
        except OSError:
            raise self._ended(index) from None

    def _receive(self, index: int) -> Json:
        try:
            answer: Json = json.loads(self._pipes[index].recv_bytes())
        except (EOFError, OSError):
            raise self._ended(index) from None
        return answer

    def _ended(self, index: int) -> RunFailed:
        return RunFailed(
            f"worker {index} of {len(self._pids)} ended unexpectedly, most likely for want of "
            "memory: use fewer workers or a smaller block."
        )


def _serve(index: int, pipe: Connection, make: Callable[..., Worker]) -> None:
    """The life of a forked worker; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    keep_memory()

    def call(*_: object) -> None:
        pipe.send_bytes(b'{"waits": true}')
        pipe.recv_bytes()

    try:
        worker = make(index, call)
        while True:
            message = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(answer_of(worker, message)).encode())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        os._exit(0)


def give_back() -> None:
    """Have malloc return what is free: arrays of all parties that were needed for a moment."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return


def keep_memory() -> None:
    """Have malloc keep what it got: taking large tensors from the system again costs a pass."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    m_trim_threshold, m_mmap_max = -1, -4
    mallopt(m_trim_threshold, ctypes.c_int(2**31 - 1))
    mallopt(m_mmap_max, 0)


def answer_of(worker: Worker, message: Json) -> Json:
    """What a worker answers, or what went wrong, in one sentence."""
    try:
        return worker.handle(message)
    except ArchipelError as error:
        return {"error": str(error), "kind": type(error).__name__}
    except (EOFError, BrokenPipeError):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        said = f"{worker.at}{type(error).__name__}: {error} ({where})"
        return {"error": said, "kind": "RunFailed", "traceback": traceback.format_exc()}


def raise_error(answer: Json) -> None:
    """Raise what went wrong at a worker, if anything did."""
    if "error" in answer:
        kinds = {kind.__name__: kind for kind in (ArchipelError, RunFailed)}
        cause = RuntimeError(answer["traceback"]) if "traceback" in answer else None
        raise kinds.get(answer["kind"], ArchipelError)(answer["error"]) from cause


def shares(costs: list[float], workers: int) -> list[list[int]]:
    """Deal items to workers, the largest first, each to the one with the least so far.

    >>> shares([5.0, 4.0, 3.0, 3.0], 2)
    [[0, 3], [1, 2]]
    """
    order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
    if workers == 1:
        return [order]
    load = [0.0] * workers
    dealt: list[list[int]] = [[] for _ in range(workers)]
    for item in order:
        least = load.index(min(load))
        dealt[least].append(item)
        load[least] += costs[item]
    return dealt


def cores() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each_block(items: list[int], size: int) -> Iterator[list[int]]:
    """Cut a list into blocks."""
    for at in range(0, len(items), size):
        yield items[at : at + size]
