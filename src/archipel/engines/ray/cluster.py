# SPDX-License-Identifier: Apache-2.0
"""A Ray of one's own on this machine, or the cluster at an address: begun, used, and ended.

Ray moves pickled code and lets whoever reaches it run any. So it belongs to one owner, whose
machines it joins; it is never what connects institutions. One's own listens on the loopback address
alone, and asks for a token that nobody else knows.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from archipel.data.federation import Federation
from archipel.engines.local.device import BLOCK, CPU
from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import Pool, cores
from archipel.engines.local.share import Job
from archipel.engines.plan import Plan, ways
from archipel.engines.ray.crew import Crew, Say, last_line
from archipel.engines.ray.pool import RayPool
from archipel.errors import ArchipelError
from archipel.models.model import Model

AUTO = "auto"  # the address of the cluster that this machine belongs to

_STORE = 512 << 20  # bytes of the object store, besides what is known to be put there
_PATIENCE = 10.0  # seconds for an answer from an address
_TOKEN = secrets.token_hex(32)  # of this process: Ray reads it once
_TOKEN_FILE = Path.home() / ".ray" / "auth_token"
_AUTHENTICATION = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


@dataclass(frozen=True)
class Ray:
    """A cluster that is there, and its workers."""

    crew: Crew
    needs: tuple[float, float, str]  # processors and graphics cards of a worker, its device
    count: int  # workers that it has room for

    def plan(self, model: Model, data: Federation, workers: int) -> Plan | None:
        """How to compute on the workers' device; None on processors, where it is timed."""
        if self.needs[2] == CPU:
            return None
        way: Any = "vmapped" if "vmapped" in ways(model, data, "vmapped") else "one"
        return Plan(way, BLOCK, workers)

    def pool(self, job: Job, memory: Memory) -> Pool:
        """The workers of an engine."""
        return RayPool(self.crew, job, memory)


_connected: Ray | None = None  # by this process


@contextmanager
def connected(
    address: str | None = None,
    *,
    cpus: float = 1.0,
    gpus: float | None = None,
    device: str = CPU,
    workers: int | None = None,
    puts: int = 0,
    say: Say = lambda _: None,
) -> Iterator[Ray]:
    """Start a Ray here, or join the cluster at an address; end or leave it afterwards.

    A worker has so many processors and graphics cards, also parts of one; `puts` is how many bytes
    a run will put there. A process that is connected already uses that, and leaves it as it is.
    """
    global _connected
    gpus = (0.0 if device == CPU else 1.0) if gpus is None else gpus
    _check(cpus, gpus, device)
    needs = (cpus, gpus, device)
    if _connected is not None and _connected.needs == needs:
        _connected.crew.say = say
        yield _connected
        return
    before = _connected
    with ExitStack() as stack:
        ray = stack.enter_context(_running(address, workers, puts, say))
        has = ray.cluster_resources()
        rooms = [has.get("CPU", 0) / cpus, *([has.get("GPU", 0) / gpus] if gpus else [])]
        if min(rooms) < 1:
            raise ArchipelError(
                f"ray_cpus = {cpus:g}, ray_gpus = {gpus:g}: the Ray cluster has "
                f"{has.get('CPU', 0):g} processors and {has.get('GPU', 0):g} graphics cards; ask "
                "for less, or add machines."
            )
        crew = Crew(ray, cpus, gpus, device, say)
        stack.callback(crew.close)
        _connected = Ray(crew, needs, int(min(rooms)))
        try:
            yield _connected
        finally:
            _connected = before


@contextmanager
def _running(address: str | None, workers: int | None, puts: int, say: Say) -> Iterator[Any]:
    """Ray, begun for as long as this lasts, unless it was before."""
    with ExitStack() as stack:
        stack.enter_context(_environment(address is None))
        ray = _imported(address is None)
        if ray.is_initialized():
            yield ray
            return
        say("Ray starts" if address is None else f"joining the Ray cluster at {address}")
        if address is not None:
            _check_address(address)
        stack.enter_context(quiet())
        how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        if address is None:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            how |= {
                "num_cpus": max(cores(), workers or 1),
                "object_store_memory": min(_STORE + puts, memory // 3),
                "include_dashboard": False,
                "_temp_dir": stack.enter_context(folder_of_ray()),
            }
        stack.callback(ray.shutdown)
        _begin(ray, address, how)
        yield ray


def _imported(own: bool) -> Any:
    if find_spec("ray") is None:
        raise ArchipelError("engine = 'ray': Ray is not installed; pip install 'archipel[ray]'.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = not own  # one's own is on the loopback address
    for name in ("ray", "ray._private", "ray._private.authentication"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return ray


@contextmanager
def _environment(own: bool) -> Iterator[None]:
    """What Ray and its processes read when they begin; as it was, afterwards."""
    wanted = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if own:
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if not {*_AUTHENTICATION} & {*os.environ} and not _TOKEN_FILE.exists():
            wanted["RAY_AUTH_TOKEN"] = _TOKEN
            if "ray" not in sys.modules:  # later it would be too late
                wanted["RAY_AUTH_MODE"] = "token"
    before = {name: os.environ.get(name) for name in (*wanted, *_AUTHENTICATION)}
    os.environ.update({**wanted, **os.environ})
    try:
        yield
    finally:
        for name, was in before.items():
            os.environ.pop(name, None)
            if was is not None:
                os.environ[name] = was


@contextmanager
def folder_of_ray() -> Iterator[str]:
    """Where Ray's sockets and logs are; those of processes that were killed are taken away.

    A socket's path has a hundred characters, at most.
    """
    place = Path(tempfile.gettempdir())
    if len(str(place)) > 13 and Path("/tmp").is_dir():
        place = Path("/tmp")
    for left in place.glob("archipel-ray-*-*"):
        process = left.name.split("-")[2]
        if process.isdecimal() and not _runs(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    folder = tempfile.mkdtemp(prefix=f"archipel-ray-{os.getpid()}-", dir=place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


@contextmanager
def quiet() -> Iterator[None]:
    """Have what Ray's own code writes on standard output go nowhere; prints still go there."""
    try:
        kept = os.dup(1)
    except OSError:  # there is none
        yield
        return
    before = sys.stdout
    ours = _number(before) == 1
    if ours:
        before.flush()
        again = os.fdopen(os.dup(kept), "w", buffering=1, encoding=before.encoding)
        sys.stdout = again
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        yield
    finally:
        if ours:
            again.close()
            sys.stdout = before
        os.dup2(kept, 1)
        os.close(kept)


def _number(stream: Any) -> int:
    try:
        return int(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return -1


def _check(cpus: float, gpus: float, device: str) -> None:
    for name, value in (("ray_cpus", cpus), ("ray_gpus", gpus)):
        if not 0 <= value < inf or (name == "ray_cpus" and value == 0):
            raise ArchipelError(f"{name} = {value:g}: give a number above 0, such as 1 or 0.5.")
        if value > 1 and value != int(value):
            raise ArchipelError(f"{name} = {value:g}: give a part of one, or a whole number.")
    if device != CPU and not gpus:
        raise ArchipelError(f"ray_gpus = 0: device = '{device}' needs one, or a part of one.")


def _check_address(address: str) -> None:
    """Refuse an address where no Ray answers, before Ray tries for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise ArchipelError(
            f"ray_address = '{address}': give HOST:PORT of the cluster's head (6379 unless it was "
            "started with another), or 'auto' on a machine of the cluster."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except OSError as error:
        raise ArchipelError(
            f"ray_address = '{address}': nothing answers there ({error}); start a cluster with "
            "'ray start --head', or leave the address out for a Ray on this machine."
        ) from None
    if os.environ.get("RAY_USE_TLS", "0") in ("0", ""):
        import grpc

        with grpc.insecure_channel(address) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
            except grpc.FutureTimeoutError:
                raise ArchipelError(
                    f"ray_address = '{address}': what answers there is no Ray cluster; give the "
                    "address that 'ray start --head' printed."
                ) from None


def _begin(ray: Any, address: str | None, how: dict[str, Any]) -> None:
    """`ray.init`, with its errors in a sentence."""
    where = "engine = 'ray'" if address is None else f"ray_address = '{address}'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init("local" if address is None else address, **how)
    except Exception as error:
        said = str(error)
        if "ersion mismatch" in said:
            told = ", ".join(
                part.strip() for part in said.splitlines() if part.strip()[:4] in ("Ray:", "Pyth")
            )
            raise ArchipelError(
                f"{where}: the cluster has other versions than this process ({told}, in this "
                "order): install the same Ray and Python on both."
            ) from error
        if isinstance(error, ConnectionError) and address == AUTO:
            raise ArchipelError(
                f"{where}: this machine belongs to no Ray cluster; start one with 'ray start "
                "--head', or leave the address out for a Ray of the run's own."
            ) from error
        raise ArchipelError(f"{where}: {last_line(error)}.") from error
