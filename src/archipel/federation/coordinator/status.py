# SPDX-License-Identifier: Apache-2.0
"""How a federation is doing: for `coordinator status`, and for Prometheus.

The coordinator that is up writes what it sees to `status.json` every second; whoever reads it asks
first whether that process is alive, so that a status is never an old one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from archipel.errors import ArchipelError, RunFailed
from archipel.federation.certificates import host_and_port
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.store.files import write
from archipel.store.folder import Folder
from archipel.store.registry import STATES, Registry, Submission

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from archipel.federation.coordinator.coordinator import Coordinator
    from archipel.federation.coordinator.peer_study import PeerStudy
    from archipel.federation.coordinator.server_study import ServerStudy
    from archipel.runs.run import Run

_LAST = 5  # misses that are shown


def status_of(coordinator: Coordinator) -> dict[str, Any]:
    """What the coordinator sees now."""
    from archipel.scorecard.at_sites import spending, spent_at_most

    now = time.monotonic()
    studies = {}
    for digest, server_study in list(coordinator.server_studies.items()):
        run = server_study.run
        misses = [
            {"round": t + 1, "site": run.data.name(k), "cause": str(cause)}
            for t, cohort in enumerate(list(run.participation))
            for k, cause in cohort.missing.items()
        ]
        studies[digest] = {
            "round": run.done,
            "rounds": run.rounds,
            "metric": run.metric,
            "value": run.metrics.get(run.metric) if run.history else None,
            "bytes_up": run.spent.up,
            "bytes_down": run.spent.down,
            "seconds": run.seconds,
            "epsilon": spent_at_most(run),
            "privacy": "" if run.promise is None else spending(run),
            "sites": server_study.presence(),
            "waiting": waiting(server_study),
            "stalled": int(bool(waiting(server_study))),
            "sites_present": server_study.sites.present,
            "misses": len(misses),
            "missing": misses[-_LAST:],
            "contributions": _contributions(run),
        }
    return {
        "sites": {site: now - seen for site, seen in list(coordinator.seen.items())},
        "versions": dict(coordinator.enrolment.versions),
        "studies": studies,
        "letters": dict(coordinator.letters),
        "refused": coordinator.refused,
    }


def _contributions(run: Run) -> dict[str, dict[str, float]]:
    """By site, where nobody waits for anybody: uploads that counted, and how late they were."""
    from archipel.runs.contributions import contributions, has_own_pace

    if not has_own_pace(run.algorithm, ()):
        return {}
    found = contributions(list(run.participation), run.data.training)
    return {run.data.name(k): each._asdict() for k, each in enumerate(found)}


def waiting(server_study: ServerStudy | PeerStudy) -> str:
    """What a study that stands still waits for; empty while it goes on, and when it is over."""
    from archipel.exchange.boxes import is_peer

    run, sites = server_study.run, server_study.sites
    if run.state != "running" or run.done >= run.rounds:
        return ""
    here, needed = sites.present, max(1, sites.needed)
    if here < needed and not is_peer(run.algorithm):  # peers work without being seen here
        return f"{here} of the {needed} sites that a round needs are here"
    return sites.waiting


async def keep_status(coordinator: Coordinator) -> None:
    """Write the status down every second."""
    while True:
        content = json.dumps(status_of(coordinator)).encode()
        await asyncio.to_thread(write, coordinator.home.path / "status.json", content)
        await asyncio.sleep(1.0)


def read_status(home: CoordinatorFolder) -> dict[str, Any] | None:
    """What the coordinator that is up saw last; None where none is."""
    path = home.path / "status.json"
    if not home.is_up or not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def overview(home: CoordinatorFolder) -> dict[str, Any]:
    """Every study of the registry, with what the coordinator sees of it."""
    now = read_status(home)
    with home.registry() as registry:
        studies = [_overview(home, registry, each, now) for each in registry.studies()]
    return {
        "name": home.name,
        "address": home.address,
        "up": home.is_up,
        "studies": studies,
    }


def _overview(
    home: CoordinatorFolder, registry: Registry, study: Submission, now: dict[str, Any] | None
) -> dict[str, Any]:
    seen = {}
    if now is not None and study.state == "running":
        seen = now["studies"].get(study.hash, {})
    path = home.run_of(study.hash)
    return {
        "name": study.name,
        "hash": study.hash,
        "state": _state(home, study, now is not None),
        "note": _note(home, study, seen),
        "stalled": study.state == "running" and (now is None or bool(seen.get("waiting"))),
        "waiting": seen.get("waiting", ""),
        "privacy": seen.get("privacy", ""),
        "result": _result(home, study),
        "path": str(path) if Folder.exists(path) else None,
        "decisions": _decisions(registry, study.hash),
        "sites": seen.get("sites", {}),
        "missing": seen.get("missing", []),
        "contributions": seen.get("contributions", {}),
    }


def _result(home: CoordinatorFolder, study: Submission) -> dict[str, Any] | None:
    """The metric of a study that is done, as its journal has it."""
    if study.state != "done" or not Folder.exists(home.run_of(study.hash)):
        return None
    folder = Folder.open(home.run_of(study.hash), home.shared)
    summary = folder.row("summary")["summary"] or {}
    return {"metric": summary.get("metric"), "value": summary.get("value")}


def _decisions(registry: Registry, study: str) -> dict[str, str]:
    """What each site said last; a site that was revoked says nothing any more."""
    revoked = {site.name for site in registry.sites() if site.revoked is not None}
    said = {d.site: d.decision for d in registry.decisions(study)}
    return said | {d.site: "revoked" for d in registry.history(study) if d.site in revoked}


def _state(home: CoordinatorFolder, study: Submission, up: bool) -> str:
    if up or study.state != "running":
        return study.state
    if home.roster_of(study.hash).exists():  # peers have what they need
        return "goes on between peers, who tell how far once the coordinator is up"
    return "waits for the coordinator to be up"


def _note(home: CoordinatorFolder, study: Submission, seen: dict[str, Any]) -> str:
    """How far a study is, as the coordinator sees it or as its journal says."""
    if not seen:
        path = home.run_of(study.hash)
        if study.state in ("open", "done") or not Folder.exists(path):
            return study.note
        row = Folder.open(path, home.shared).row("done", "rounds")
        reached = f"round {row['done']} of {row['rounds']}"
        return reached if study.state == "running" else f"{study.note}, {reached}"
    value = "" if seen["value"] is None else f", {seen['metric']} {seen['value']:.3f}"
    return f"round {seen['round']} of {seen['rounds']}{value}"


# -- Prometheus ------------------------------------------------------------------------------------


class Metrics:
    """The status in Prometheus' words, when it asks: one of its client's collectors."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        now = status_of(self._coordinator)
        sites = GaugeMetricFamily("archipel_sites", "Sites that asked in the last 50 seconds")
        sites.add_metric([], sum(ago < 50 for ago in now["sites"].values()))
        yield sites
        letters = CounterMetricFamily("archipel_letters", "Letters of sites", labels=["kind"])
        for kind, count in now["letters"].items():
            letters.add_metric([kind], count)
        yield letters
        refused = CounterMetricFamily("archipel_refused", "Letters that were refused")
        refused.add_metric([], now["refused"])
        yield refused
        studies = GaugeMetricFamily("archipel_studies", "Studies, by state", labels=["state"])
        with suppress(RunFailed):  # the database is away
            states = Counter(study.state for study in self._coordinator.registry.studies())
            for state in STATES:
                studies.add_metric([state], states[state])
        yield studies
        for name, about in _GAUGES.items():
            family = GaugeMetricFamily(f"archipel_study_{name}", about, labels=["study"])
            for digest, study in now["studies"].items():
                if study[name] is not None:
                    family.add_metric([digest[:12]], float(study[name]))
            yield family


_GAUGES = {
    "round": "Rounds done",
    "rounds": "Rounds of the study",
    "value": "The study's metric, at the last evaluation",
    "stalled": "1 while the study waits for sites, else 0",
    "sites_present": "Sites of the study that are there",
    "misses": "Times that a sampled site was missing",
    "bytes_up": "Bytes of uploads",
    "bytes_down": "Bytes sent to sites",
    "seconds": "Seconds of the study's rounds",
    "epsilon": "Privacy that was spent at most, as sites plan it",
}


@contextmanager
def serve_metrics(coordinator: Coordinator, address: str | None) -> Iterator[None]:
    """Answer Prometheus at host:port, if there is one."""
    if address is None:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server

    host, port = host_and_port("--metrics", address, "such as 127.0.0.1:9090")
    registry = CollectorRegistry()
    registry.register(Metrics(coordinator))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ArchipelError(
            f"--metrics {address}: cannot listen there ({error.strerror})."
        ) from None
    try:
        yield
    finally:
        server.shutdown()
