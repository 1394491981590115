# SPDX-License-Identifier: Apache-2.0
"""The same study on a cluster that is described: blocks over cores, states over the network.

What a core does and what is constant in a round was measured here; the rest is assumed, and said.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from archipel.errors import ArchipelError, unknown
from archipel.exchange.boxes import is_peer
from archipel.exchange.varying import size_of
from archipel.forecast.ahead import Ahead
from archipel.forecast.figure import Figure, Floats, Law, added, within
from archipel.forecast.measuring import Measured

CALLS = (0.001, 0.01, 0.05)  # seconds that a round's calls to all workers take: low, likely, high
START = (10.0, 20.0, 40.0)  # seconds until workers with torch are up on every node
BESIDE = 330e6  # bytes of memory of what runs on a node beside workers
_WORKER = 175e6  # the same of a worker with torch that shares no page with others, at least
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Cluster:
    """Machines that are alike, and what joins them."""

    nodes: int
    cores: int  # of each
    memory: float | None = None  # bytes of each
    bandwidth: float = 1.25e9  # bytes a second of each one's link: 10 Gbit

    def __post_init__(self) -> None:
        for name in ("nodes", "cores"):
            if not 1 <= getattr(self, name) <= 1_000_000:
                raise ArchipelError(
                    f"{name} = {getattr(self, name)}: give a whole number from 1 to 1,000,000."
                )

    @classmethod
    def of(cls, nodes: int, cores: int, memory: str | None, bandwidth: str | None) -> Cluster:
        """A cluster in the words of the command line, "64GB" and "10Gbit"."""
        given: dict[str, Any] = {"nodes": nodes, "cores": cores}
        if memory is not None:
            given["memory"] = amount("memory", memory, "B", "64GB")
        if bandwidth is not None:
            given["bandwidth"] = amount("bandwidth", bandwidth, "bit", "10Gbit") / 8
        return cls(**given)

    @classmethod
    def read(cls, path: Path) -> Cluster:
        """A cluster in a file: nodes = 4, cores = 16, memory = "64GB", bandwidth = "10Gbit"."""
        try:
            told = tomllib.loads(path.read_bytes().decode())
        except OSError as error:
            raise ArchipelError(
                f"--cluster {path}: cannot be read ({error.strerror}); name a file with nodes and "
                "cores."
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ArchipelError(f"--cluster {path}: is no TOML ({error}).") from None
        kinds = {"nodes": int, "cores": int, "memory": str, "bandwidth": str}
        for name, value in told.items():
            if name not in kinds:
                raise unknown("key of a cluster", name, kinds)
            if type(value) is not kinds[name]:
                like = {"memory": '"64GB"', "bandwidth": '"10Gbit"'}.get(name, "4")
                raise ArchipelError(f"--cluster {path}: {name} = {value!r}: write {name} = {like}.")
        for name in ("nodes", "cores"):
            if name not in told:
                raise ArchipelError(f"--cluster {path}: {name} is missing: add {name} = 4.")
        return cls.of(told["nodes"], told["cores"], told.get("memory"), told.get("bandwidth"))

    @property
    def workers(self) -> int:
        return self.nodes * self.cores

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def amount(name: str, text: str, unit: str, like: str) -> float:
    """A number with its unit.

    >>> amount("memory", "64GB", "B", "64GB"), amount("memory", "2 GiB", "B", "64GB")
    (64000000000.0, 2147483648.0)
    """
    match = re.fullmatch(rf"\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?){unit}(?:/s)?\s*", text)
    if match is None or float(match[1]) == 0:
        raise ArchipelError(f'{name} = "{text}": give a number with its unit, "{like}".')
    prefix = match[2].replace("K", "k")
    factor = 1024.0 ** list(_UNITS).index(prefix) if match[3] else _UNITS[prefix]
    return float(match[1]) * factor


def on_cluster(
    cluster: Cluster,
    measured: Measured,
    ahead: Ahead,
    time_law: Law,
    here: Mapping[str, Figure],
) -> dict[str, Figure]:
    """The figures that are others on a cluster."""
    rounds = ahead.scale * ahead.drawn
    work = np.maximum(ahead.everybody / cluster.workers, ahead.blocks)
    value, low, high = (each * ahead.scale for each in time_law.over(work))
    calls = [each * rounds for each in CALLS]
    carried = _carried(cluster, measured, ahead) * ahead.scale
    seconds = carried / cluster.bandwidth
    found = {
        "time.rounds": Figure(
            value + calls[1] + seconds, low + calls[0] + 0.5 * seconds,
            high + calls[2] + 2 * seconds, "s", "what a core does here, blocks over all cores",
        )
    }  # fmt: skip
    evaluated = here["time.evaluations"]
    share = measured.workers / max(measured.workers, cluster.workers)
    found["time.evaluations"] = Figure(
        evaluated.value * share, evaluated.low * share, evaluated.high, "s",
        "as here, on all cores at the best and no quicker at the worst",
    )  # fmt: skip
    found["time.start"] = Figure(
        START[1] + here["time.start"].value, START[0] + here["time.start"].low,
        START[2] + here["time.start"].high + _data(measured) * cluster.nodes / cluster.bandwidth,
        "s", "as here, workers on every node, and the data to each once",
    )  # fmt: skip
    rest = ("time.checkpoints", "time.baselines", "time.end")
    same = [here[name] for name in rest if name in here]
    found["time.total"] = added([*found.values(), *same], "its parts; the others as here")
    found["network.bytes"] = within(carried, 0.5, "B", "between the driver and the nodes")
    if (held := measured.laps.held) is not None:
        each = max(_WORKER, held.workers / measured.workers if held.workers else held.driver)
        node = each * cluster.cores + _data(measured) + BESIDE
        basis = "a worker here times the cores of a node, the data once, what runs beside"
        found["memory.node"] = Figure(
            node, 0.7 * node, 1.3 * node + here["memory.growth"].high, "B", basis
        )
    return found


def _data(measured: Measured) -> float:
    """Bytes of all points."""
    data, form = measured.run.data, measured.run.data.form
    return float(int(data.offsets[-1]) * (form.x[:1].nbytes + form.y[:1].nbytes))


def _carried(cluster: Cluster, measured: Measured, ahead: Ahead) -> float:
    """Bytes over the driver's link in all rounds that were drawn."""
    anatomy = measured.run.anatomy
    present: Floats = ahead.present.astype(np.float64)
    if is_peer(measured.run.algorithm):
        return float(present.sum()) * size_of(anatomy.own) * 2
    asks = frozenset[str]().union(*(message.asks for message in anatomy.messages))
    up = sum(size_of(message.upload) for message in anatomy.messages)
    down = size_of(anatomy.sent) + sum(size_of(message.reply) for message in anatomy.messages)
    rows = present if "stack" in asks else np.minimum(present, cluster.nodes)
    kept = 2 * size_of(anatomy.own) * present
    return float((rows * up + np.minimum(present, cluster.nodes) * down + kept).sum())


def assumptions(cluster: Cluster) -> tuple[str, ...]:
    """What the cluster's figures rest on."""
    return (
        "a core of the cluster is as quick as one here, and a node's cores do not slow each other",
        f"a round's calls to {cluster.workers:,} workers take {1000 * CALLS[0]:g} to "
        f"{1000 * CALLS[2]:g} ms, and {START[0]:g} to {START[2]:g} s pass until they are up",
        f"every node is sent the shared state once a round and returns one sum of each message, "
        f"over links of {8 * cluster.bandwidth / 1e9:g} Gbit/s; own states travel both ways",
        "baselines, checkpoints and the end take as long as here",
    )
