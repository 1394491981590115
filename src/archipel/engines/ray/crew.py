# SPDX-License-Identifier: Apache-2.0
"""The workers of a Ray connection: who is there, who was lost, who is to come.

They outlast an engine: the next one has its job loaded by those that are there. As many are asked
for as an engine has shares; those that no machine has room for come when one has, so machines may
join and leave.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from archipel.engines.ray.worker import Worker, about
from archipel.errors import ArchipelError, RunFailed

Say = Callable[[str], None]

_PATIENCE = 60.0  # seconds until the first worker is there


@dataclass
class Seat:
    """A worker, perhaps not there yet: Ray starts it when a machine has room."""

    handle: Any
    about: Any  # reference to what it says of itself, which is there when the worker is
    ready: bool = False
    used: int = 0  # bytes of memory, when it last answered
    jobs: set[int] = field(default_factory=set)  # those that it has


class Crew:
    """Workers with so many processors and graphics cards each."""

    def __init__(self, ray: Any, cpus: float, gpus: float, device: str, say: Say) -> None:
        self.ray, self.say = ray, say
        self._each = {"CPU": cpus, "GPU": gpus}
        how = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0}
        self._actor = ray.remote(**how, scheduling_strategy="SPREAD")(Worker)
        self._device = device
        self._seats: list[Seat] = []
        self._jobs = 0
        self.lost = (
            ray.exceptions.RayActorError,
            ray.exceptions.ObjectLostError,
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.NodeDiedError,
            ray.exceptions.OutOfMemoryError,
        )

    @property
    def there(self) -> list[Seat]:
        """Workers that are there."""
        return [seat for seat in self._seats if seat.ready]

    def job(self) -> int:
        """A number for a job that is to be loaded."""
        self._jobs += 1
        return self._jobs

    def gather(self, wanted: int) -> None:
        """Ask for so many workers, and wait for those that there is room for."""
        room = min(wanted, len(self.there) + self._room())
        self.fill(wanted)
        self._wait(max(1, room), wanted)

    def fill(self, wanted: int) -> None:
        """Ask for workers until there are so many, here or to come."""
        while len(self._seats) < wanted:
            handle = self._actor.remote(self._device)
            self._seats.append(Seat(handle, handle.about.remote()))

    def look(self) -> list[Seat]:
        """See who has come; who is there, of whom there is at least one."""
        self._look()
        if not self.there:
            self._wait(1, 1)
        return self.there

    def dismiss(self, seat: Seat) -> None:
        """Let a worker go that was lost, or is in the middle of something."""
        if seat in self._seats:
            self._seats.remove(seat)
            self.ray.kill(seat.handle)

    def close(self) -> None:
        for seat in [*self._seats]:
            self.dismiss(seat)

    def _look(self) -> None:
        new = {seat.about: seat for seat in self._seats if not seat.ready}
        if not new:
            return
        come, _ = self.ray.wait([*new], num_returns=len(new), timeout=0, fetch_local=False)
        for reference in come:
            seat = new[reference]
            try:
                told = self.ray.get(reference)
            except self.ray.exceptions.RayError as error:
                self.dismiss(seat)
                raise RunFailed(f"a Ray worker could not start: {last_line(error)}.") from error
            _check_versions(told)
            seat.ready = True

    def _wait(self, enough: int, wanted: int) -> None:
        """Wait until so many are there; after a while, with one."""
        began = time.monotonic()
        while True:
            self._look()
            count, waited = len(self.there), time.monotonic() - began
            if count >= enough or (count and waited > _PATIENCE / 2):
                return
            self.say(f"Ray: {count} of {wanted} workers are there")
            if waited > _PATIENCE:
                raise RunFailed(
                    f"no Ray worker has come within {_PATIENCE:.0f} seconds: 'ray status' says who "
                    "has the cluster's processors; free some, or ask for less with ray_cpus and "
                    "ray_gpus."
                )
            coming = [seat.about for seat in self._seats if not seat.ready]
            self.ray.wait(coming, timeout=0.5, fetch_local=False)

    def _room(self) -> int:
        """Workers that the cluster has room for now."""
        free = self.ray.available_resources()
        return min(int(free.get(name, 0) / each) for name, each in self._each.items() if each)


def _check_versions(told: dict[str, str]) -> None:
    """Refuse a worker that would compute otherwise."""
    for name, here in about().items():
        if name != "node" and told[name] != here:
            raise ArchipelError(
                f"machine {told['node']} of the Ray cluster has {name} {told[name]} and this one "
                f"{here}: install the same on both."
            )


def last_line(error: BaseException) -> str:
    """The last line of what Ray says, which has the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
