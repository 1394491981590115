# SPDX-License-Identifier: Apache-2.0
"""The candidates of the speed benchmark, each in its own process.

Run one alone: `python benchmarks/candidates.py pfl@1 W1 --rounds 3`; without arguments, list them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import install
from processes import cpu_seconds, machine_cpu_seconds

HERE = Path(__file__).resolve().parent
CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Candidate:
    """A command that speaks the protocol of pace.py; `family` groups its thread counts."""

    name: str
    family: str
    command: tuple[str, ...]
    restless: bool = False  # uses the processor while it waits, so it is timed apart

    def missing(self) -> str | None:
        """Return why it cannot run, or None."""
        return install.failure(self.family) if self.family in install.PEERS else None


def _here(name: str, family: str, *command: str) -> Candidate:
    return Candidate(name, family, (sys.executable, *command))


def _peer(family: str, threads: int | None = None) -> Candidate:
    name = family if threads is None else f"{family}@{threads}"
    script = str(HERE / "peers" / f"peer_{family}.py")
    extra = () if threads is None else ("--threads", str(threads))
    command = (str(install.python(family)), script, *extra)
    return Candidate(
        name, family, command, restless=family == "flwr"
    )  # Ray's daemons: 7% of a core


REFERENCES = str(HERE / "references.py")
THREADS = sorted({1, CORES})
OURS = _here("archipel", "archipel", str(HERE / "ours.py"))
CANDIDATES = {
    c.name: c
    for c in (
        OURS,
        *(_here(f"loop@{n}", "loop", REFERENCES, "loop", "--threads", str(n)) for n in THREADS),
        _here("limit", "limit", REFERENCES, "limit", "--threads", str(CORES)),
        *(_peer("pfl", n) for n in THREADS),
        *(_peer("fedlab", n) for n in THREADS),
        _peer("fedjax"),
        _peer("flwr"),
    )
}


def start(candidate: Candidate, arguments: Sequence[str], stderr: Any, **pipes: Any) -> Any:
    """Start a candidate's process, in its own session so that it can be ended as a whole."""
    command = list(candidate.command)
    at = 3 if candidate.family in ("loop", "limit") else 2  # after the script and its kind
    command[at:at] = arguments[:1]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    return subprocess.Popen(
        [*command, *arguments[1:]], env=environment, stderr=stderr, text=True, **pipes
    )


class Failed(Exception):
    """A candidate ended or did not answer; the text says why."""


class Running:
    """A candidate that is warm and waits for bursts."""

    def __init__(self, candidate: Candidate, workload: str) -> None:
        self.candidate = candidate
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = start(
            candidate,
            [workload, "--serve"],
            stderr=self._log,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.ready = self._answer()

    def burst(self, seconds: float, rounds: int, start: int) -> tuple[list[float], float]:
        """Return seconds of each round, and how many cores others kept busy meanwhile."""
        own, machine = cpu_seconds(self.process.pid), machine_cpu_seconds()
        self.process.stdin.write(
            json.dumps({"seconds": seconds, "rounds": rounds, "start": start}) + "\n"
        )
        self.process.stdin.flush()
        times: list[float] = self._answer()["seconds"]
        others = machine_cpu_seconds() - machine - (cpu_seconds(self.process.pid) - own)
        return times, max(0.0, others / sum(times))

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.process.wait()
        self._log.seek(0)
        lines = [s.strip() for s in self._log.read().splitlines() if s.strip()]
        raise Failed(f"ended with status {self.process.returncode}: {' '.join(lines[-1:])[:300]}")

    def close(self) -> None:
        """Ask it to end; end it if it does not."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


def main() -> int:
    if len(sys.argv) < 3:
        for c in CANDIDATES.values():
            print(f"{c.name:10s} {c.missing() or 'available'}")
        return 0
    from networks import save_weights
    from workloads import WORKLOADS

    candidate = CANDIDATES[sys.argv[1]]
    if reason := candidate.missing():
        print(json.dumps({"candidate": candidate.name, "error": reason}))
        return 1
    save_weights(WORKLOADS[sys.argv[2]])
    return int(start(candidate, sys.argv[2:], stderr=None).wait())


if __name__ == "__main__":
    sys.exit(main())
