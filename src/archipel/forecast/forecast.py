# SPDX-License-Identifier: Apache-2.0
"""What a study will take, as it is told and kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archipel.forecast.figure import Figure
from archipel.plain import plain

VERSION = 1


@dataclass(frozen=True)
class Forecast:
    """What a study will take: figures by name, and what is to be said of them."""

    study: str
    hash: str  # of the resolved study
    made: str  # when
    rounds: int
    parties: int
    engine: str
    how: Mapping[str, Any]  # workers, way, block, device, baselines
    machine: Mapping[str, str]
    measured: Mapping[str, Any]  # rounds, evaluations, seconds
    figures: Mapping[str, Figure]
    warnings: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    cluster: Mapping[str, Any] | None = None  # as it was described
    on_cluster: Mapping[str, Figure] = field(default_factory=dict)
    graph: Mapping[str, Any] | None = None  # edges, gap, share within clusters; None with a server

    def to_json(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("figures", "on_cluster"):
            told[name] = {key: figure.to_json() for key, figure in told[name].items()}
        made: dict[str, Any] = plain({"version": VERSION, **told})
        return made

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Forecast:
        known = {name: told[name] for name in cls.__dataclass_fields__ if name != "graph"}
        known["graph"] = told.get("graph")
        for name in ("figures", "on_cluster"):
            known[name] = {key: Figure.of_json(each) for key, each in known[name].items()}
        for name in ("warnings", "assumptions"):
            known[name] = tuple(known[name])
        return cls(**known)
