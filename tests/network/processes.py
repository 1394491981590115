# SPDX-License-Identifier: Apache-2.0
"""A coordinator and its sites as real processes, `archipel ... up`, killed and started again.

Every site has a table of its own and reaches the coordinator over a line of its own (`faults.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.torch
import tomli_w
import torch

from archipel.data.shadow import Facts
from archipel.engines.network.in_process import Played, play
from archipel.engines.plan import threads
from archipel.federation import approval, audit
from archipel.federation.certificates import Invitation
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.site import binding
from archipel.federation.site.policy import Policy
from archipel.federation.site.site import Site
from archipel.store.folder import Folder
from archipel.store.registry import Registry
from archipel.study.file import Study
from archipel.tree import leaves
from network.faults import Line

FEATURES = 20
STUDY = {
    "study": {"name": "drill", "purpose": "To see what breaks.", "rounds": 20, "evaluate_every": 5},
    "data": {
        "target": "y",
        "schema": {**{f"x{j}": "number" for j in range(FEATURES)}, "y": [0, 1]},
    },
    "algorithm": {"name": "fedavg", "lr": 0.05},
}


class Process:
    """`archipel` with some arguments; what it says goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log, self.environment = log, {"OMP_NUM_THREADS": "1"}
        self.before: list[str] = []  # a command that runs it, such as `ip netns exec NAME`
        self.module = "archipel"  # or one that does the same and ends another way
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*with_us, *self.before, sys.executable, "-m", self.module, *self._arguments]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self.environment},
            )  # fmt: skip

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """Kill -9."""
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def wait(self) -> int:
        """Wait for its end; return its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def check(self) -> None:
        """It has not ended by itself."""
        if self._process is not None and (self._process.returncode or 0) >= 0:
            assert self._process.returncode is None, self.log.read_text()

    @property
    def memory(self) -> int:
        """Bytes that are its own."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        (kilobytes,) = [line.split()[1] for line in lines if line.startswith("RssAnon")]
        return int(kilobytes) << 10


class Drill:
    """A federation whose processes and lines fail; `async with Drill(...) as drill`."""

    def __init__(
        self,
        folder: Path,
        sites: int,
        changes: dict[str, Any],
        rows: int = 150,
        silence: float = 20.0,
        address: str = "127.0.0.1",
    ) -> None:
        """`changes` are made in `STUDY`; every site has about so many rows."""
        self.folder, self.sites = folder, sites
        _write_tables(folder / "tables", sites, rows)
        study = Study.parse({**STUDY, "data": {**STUDY["data"], "folder": "tables"}}, folder)
        self.study = study.with_set(changes)  # with all data at one place
        port = _free_port()
        self.home = CoordinatorFolder.create(folder / "coordinator", "drill", f"{address}:{port}")
        self.lines = [Line(port, address) for _ in range(sites)]
        told = ["--home", str(self.home.path), "--listen", f"{address}:{port}"]
        self.coordinator = Process(
            folder / "coordinator.log", "coordinator", "up", *told, "--silence", str(silence)
        )
        self.processes = [
            Process(folder / f"site-{k}.log", "site", "up", "--home", str(self.path(k)))
            for k in range(sites)
        ]
        self.hash, self._text, self._begins = "", b"", 0

    async def __aenter__(self) -> Self:
        for line in self.lines:
            await line.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in [self.coordinator, *self.processes]:
            if process.running:
                await process.kill()
        for line in self.lines:
            await line.stop()

    def path(self, k: int) -> Path:
        """Site k's folder."""
        return self.folder / f"site-{k}"

    def table(self, k: int) -> Path:
        return self.folder / "tables" / f"site-{k}.csv"

    # -- before anything fails ---------------------------------------------------------------------

    def submit(self) -> None:
        """Ask the sites for their approval of the study, which has no data with it."""
        tables = self.study.given()
        del tables["data"]["folder"]
        self._text = tomli_w.dumps(tables).encode()
        self.hash = self.home.submit(self._text)

    def approve(self, k: int) -> Site:
        """Bind a site's table and approve the study there; the coordinator is not told."""
        site, study = Site(self.path(k)), approval.read(self._text)
        binding.bind(site.home / "data", study, self.table(k))
        records = binding.records(site.home / "data", study)
        test = int(records.is_test.sum())
        facts = Facts.of(records.schema.empty(), counts=False)
        site.decide(self._text, "approved", replace(facts, n=len(records.x) - test, n_test=test))
        return site

    async def enrol(self, untold: Sequence[int] = ()) -> None:
        """Have all sites join and approve; of those who are `untold` the coordinator knows not.

        From then on they know the coordinator by their line.
        """
        self.submit()
        coordinator = Coordinator(self.home)
        await coordinator.up(self.home.address)
        for k in range(self.sites):
            await Site.join(self.path(k), Invitation.read(self.home.invite(f"site-{k}").token()))
            Policy.open().write(self.path(k))
            site = self.approve(k)
            if k not in untold:
                link = site.link()
                await site.tell(link)
                await link.close()
            self.reach(k, f"127.0.0.1:{self.lines[k].port}")
        await coordinator.down()

    def reach(self, k: int, address: str) -> None:
        """Have a site know the coordinator by another address."""
        path = self.path(k) / "site.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "address": address}))

    async def start(self) -> None:
        """Start the coordinator and all sites; when they have found each other, the study."""
        await self.restart()
        await self.until_up()
        for process in self.processes:
            await process.start()
        await self.begin()

    async def begin(self) -> None:
        """Start the study, with the sites that run."""
        for process in self.processes:
            while process.running and "connected to" not in process.log.read_text():
                self.check()
                await asyncio.sleep(0.02)
        self.home.start(self.hash)

    async def restart(self) -> None:
        """Start the coordinator; kill -9 the one there was."""
        if self.coordinator.running:
            await self.coordinator.kill()
        self._begins = self.home.audit.head.number
        await self.coordinator.start()

    # -- what can be seen from outside -------------------------------------------------------------

    @property
    def run(self) -> Path:
        return self.home.path / "runs" / self.hash[:16]

    def files(self) -> set[str]:
        """What is in the run's folder now: which checkpoints, and whether the journal commits."""
        with suppress(FileNotFoundError):
            return set(os.listdir(self.run))
        return set()

    @property
    def done(self) -> int:
        """Rounds that have a checkpoint."""
        return _checkpoint(self.files())

    async def until(self, seen: Callable[[set[str]], bool]) -> None:
        """Wait until the run's folder looks so."""
        while not seen(self.files()):
            self.check()
            await asyncio.sleep(0.003)

    async def until_round(self, rounds: int) -> None:
        """Wait until so many rounds have a checkpoint."""
        await self.until(lambda files: _checkpoint(files) >= rounds)

    async def until_begun(self) -> None:
        """Wait until the coordinator that was started last is at its study, or at its end."""
        while not any(
            entry.what in ("started", "resumed") and entry.number > self._begins
            for entry in self.home.audit.entries()
        ):
            with Registry.read(self.home.database) as registry:
                if registry.study(self.hash).state == "done":
                    return
            self.check()
            await asyncio.sleep(0.05)

    async def until_up(self) -> None:
        """Wait until the coordinator that was started last answers."""
        while not any(
            entry.what == "up" and entry.number > self._begins
            for entry in self.home.audit.entries()
        ):
            self.check()
            await asyncio.sleep(0.05)

    async def until_approved(self, sites: int) -> None:
        while True:
            with Registry.read(self.home.database) as registry:
                if len(registry.decisions(self.hash)) >= sites:
                    return
            await asyncio.sleep(0.05)

    async def finished(self) -> None:
        """Wait until every site has heard that the study is done."""
        while not all(self.entries(k, "done") for k in range(self.sites)):
            self.check()
            await asyncio.sleep(0.1)

    def check(self) -> None:
        """Nobody has ended who was not killed."""
        for process in [self.coordinator, *self.processes]:
            process.check()

    def entries(self, k: int, what: str) -> list[Any]:
        """What a site's audit log says of something."""
        log = Site(self.path(k)).audit
        return [entry.detail for entry in log.entries() if entry.what == what]

    async def until_sent(self, k: int, t: int, messages: int) -> None:
        """Wait until a site has signed so many uploads of round t, from 1, in whatever attempt."""
        while self.sent(k).count(t) < messages:
            self.check()
            await asyncio.sleep(0.003)

    def sent(self, k: int) -> list[int]:
        """The rounds, from 1, for which a site has signed an upload."""
        return [each["round"] for each in self.entries(k, "sent") if each["kind"] == "upload"]

    # -- what came of it ---------------------------------------------------------------------------

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The journal's rounds."""
        with Folder.open(self.run) as folder:
            return list(folder.journal.rounds())

    def history(self) -> list[Any]:
        """The journal's evaluations."""
        with Folder.open(self.run) as folder:
            return list(folder.journal.entries())

    def vector(self) -> torch.Tensor:
        """The shared model at the end."""
        with Folder.open(self.run) as folder:
            return folder.load_checkpoint(int(folder.journal.row()["done"]))["shared.0"]

    def own(self, k: int) -> list[torch.Tensor]:
        """The state that a site keeps to itself, at the end."""
        path = self.path(k) / "studies" / self.hash / "state.safetensors"
        kept = safetensors.torch.load_file(path)
        names = sorted(name for name in kept if name.removeprefix("own.").isdigit())
        return [kept[name] for name in names]

    @cached_property
    def played(self) -> Played:
        """The rounds of the journal with those who took part, in one process and without faults."""
        data, everybody = self.study.federation(), set(range(self.sites))
        cohorts = [sorted(everybody - set(map(int, row["missing"]))) for row in self.rows]
        model = self.study.build_model(data)
        with threads(1):
            return asyncio.run(play(self.study.algorithm_object, data, model, cohorts))

    def difference(self) -> float:
        """How far all that was learnt is from what these rounds give without faults."""
        played = self.played
        pairs = [(self.vector(), played.engine.vector())]
        for k, party_state in enumerate(played.party_states):
            pairs += zip(self.own(k), leaves(party_state.own.state), strict=True)
        return max(float((one - other).abs().max()) for one, other in pairs)

    def audited(self) -> int:
        """Check all audit logs; return how many entries they have."""
        logs = [self.home.audit, *(Site(self.path(k)).audit for k in range(self.sites))]
        return sum(audit.check(log.path, log.identity.public, log.head) for log in logs)


def _checkpoint(files: set[str]) -> int:
    """After how many rounds the last checkpoint there was written."""
    return max((int(name[11:17]) for name in files if name.startswith("checkpoint-")), default=0)


def _write_tables(folder: Path, sites: int, rows: int) -> None:
    """Tables of unlike sizes whose features predict y, differently from site to site."""
    folder.mkdir()
    draws = np.random.default_rng(0)
    names = [*(f"x{j}" for j in range(FEATURES)), "y"]
    for k in range(sites):
        x = draws.normal(draws.normal(0, 0.5, FEATURES), 1, (rows + 10 * k, FEATURES))
        y = x @ draws.normal(1, 1, FEATURES) + draws.normal(0, 1, len(x)) > 0
        table = np.column_stack([x, y])
        np.savetxt(
            folder / f"site-{k}.csv", table, delimiter=",", header=",".join(names), comments="",
            fmt=["%.17g"] * FEATURES + ["%d"],
        )  # fmt: skip


def _free_port() -> int:
    """A port below those that the system gives to whoever asks for any."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
