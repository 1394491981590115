# SPDX-License-Identifier: Apache-2.0
"""A whole federation on one machine: a coordinator, and every site a process of its own.

Nothing is left out: invitations, certificates, approval of the study's bytes, mutual TLS on a port,
rounds, the audit logs. Sites differ from real ones in two things: each takes one party of the data
that the study names, and approves without anyone reading. Where the study describes tables, each
site binds its own and they find the scale together, as between institutions.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from archipel.aggregation.shuffled import ShuffledSum
from archipel.aggregation.summation import check_parties
from archipel.data import frames
from archipel.data.dialect import Written
from archipel.data.federation import Federation
from archipel.data.shadow import Facts
from archipel.errors import ArchipelError, RunFailed
from archipel.exchange.boxes import is_peer
from archipel.federation.approval import brought
from archipel.federation.certificates import Invitation
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.peer.peer import PeerSite
from archipel.federation.shuffler import ShufflerFolder
from archipel.federation.site import binding
from archipel.federation.site.policy import SPENT, Overspent, Policy
from archipel.federation.site.service import data_of
from archipel.federation.site.site import Site
from archipel.runs.buffering import check_buffer
from archipel.runs.participation import Participation
from archipel.runs.run import Run
from archipel.runs.simulation import Watch
from archipel.study import checks
from archipel.study.file import Study


def party_of(study: Study, k: int, sites: int) -> Federation:
    """The data of site k: one party of the study's data."""
    fed = study.federation()
    if sites > fed.training:
        raise ArchipelError(
            f"--sites {sites}: the study's data has {fed.training} parties; take as many at most."
        )
    return fed.select(np.array([k]))


async def rehearse(
    path: Path,
    sites: int,
    out: Path,
    watch: Watch | None = None,
    say: Callable[[str], None] = lambda _: None,
    silence: float = 60.0,
    peers: bool = False,
    changes: Mapping[str, Any] | None = None,
    slow: Mapping[int, float] | None = None,
) -> Run:
    """Run the study with real processes and real TLS, in folders under `out`.

    `changes` are fields of the study that have other values than in the file. A study whose
    reports nobody shuffles has a shuffler of its own, which admits all sites. `slow` sites take so
    many seconds longer in every round.
    """
    study = Study.read_changed(path, changes or {})
    how, who = study.wire_object.sum, Participation.of(study.options())
    check_buffer(study.algorithm_object, who, how, sites)
    if how is not None:
        check_parties(how, who.count(sites))
    mix = _shuffler(study, out)
    if mix is not None:
        named = f"{study.wire.sum}:shuffler={mix.place.text()}"
        changes = {**(changes or {}), "wire.sum": named}
        study = Study.read_changed(path, changes)
    if peers != is_peer(study.algorithm_object):
        kind, hint = ("a", "leave --peers out") if peers else ("no", "say --peers")
        raise ArchipelError(f"{study.algorithm.name} has {kind} server: {hint}.")
    fed = study.federation()
    party_of(study, 0, sites)
    parties = [fed.name(k) for k in range(sites)]
    text = brought(study.toml().encode(), study.base, parties)
    names = [_site_name(party) for party in parties]
    if names != sorted(set(names)):  # sites are numbered by name, as parties are in a simulation
        names = [f"site-{k:0{len(str(sites - 1))}}" for k in range(sites)]
    tables = _tables(study, fed.names or [], out)
    port = _free_port()
    home = CoordinatorFolder.create(out / "coordinator", study.name, f"localhost:{port}")
    coordinator = Coordinator(home, say=say, silence=silence)
    await coordinator.up(f"localhost:{port}")
    processes: list[asyncio.subprocess.Process] = []
    shuffling: asyncio.subprocess.Process | None = None
    try:
        digest = home.submit(text)
        if mix is not None:
            shuffling = await _shuffling(mix, say)
        processes += [await _start() for _ in names]
        for k, name in enumerate(names):
            given = {
                "home": str(out / name),
                "token": home.invite(name).token(),
                "study": str(path.resolve()),
                "changes": dict(changes or {}),
                "hash": digest,
                "party": k,
                "sites": sites,
                "table": str(tables[k]) if tables else "",
                "written": checks.written_of(study.data) if study.data.folder else [],
                "silence": silence,
                "slow": (slow or {}).get(k, 0.0),
                "listens": f"localhost:{_free_port()}" if peers else "",
            }
            _tell(processes[k], given)
            say(f"{name} joins")
        await _approved(coordinator, digest, processes, names)
        if mix is not None:
            for decision in coordinator.registry.decisions(digest):
                mix.admit(decision.site, decision.identity.hex())
        run: Run = await coordinator.run(digest, watch)
        codes = await asyncio.gather(*(process.wait() for process in processes))
        if any(codes):
            raise RunFailed(f"a site ended with exit code {max(codes)}: see its audit log.")
        return run
    finally:
        for process in [*processes, *([] if shuffling is None else [shuffling])]:
            if process.returncode is None:
                process.kill()
        await coordinator.down()


def _shuffler(study: Study, out: Path) -> ShufflerFolder | None:
    """A shuffler for reports that need one."""
    how = study.wire_object.sum
    if not isinstance(how, ShuffledSum) or how.shuffler:
        return None
    return ShufflerFolder.create(out / "shuffler", f"localhost:{_free_port()}", how.least)


async def _shuffling(mix: ShufflerFolder, say: Callable[[str], None]) -> asyncio.subprocess.Process:
    """The shuffler in a process of its own, once it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "archipel", "shuffler", "up", "--home", str(mix.path),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    if b"listening" not in await process.stdout.readline():
        raise RunFailed("the shuffler of the rehearsal did not start.")
    say("the shuffler listens")
    return process


async def _approved(
    coordinator: Coordinator,
    digest: str,
    processes: Sequence[asyncio.subprocess.Process],
    names: Sequence[str],
) -> None:
    """Wait until every site has approved."""
    waiting = asyncio.create_task(coordinator.approved(digest, len(names)))
    ended = {
        asyncio.create_task(each.wait()): name for each, name in zip(processes, names, strict=True)
    }
    await asyncio.wait([waiting, *ended], return_when=asyncio.FIRST_COMPLETED)
    gone = [name for task, name in ended.items() if task.done()]
    approved = waiting.done()
    for task in (waiting, *ended):
        task.cancel()
    if not approved:
        raise RunFailed(f"site {gone[0]} ended before it approved the study.")


async def _start() -> asyncio.subprocess.Process:
    """Start a site that waits to be told who it is."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "archipel.federation.rehearsal", stdin=asyncio.subprocess.PIPE
    )


def _tell(process: asyncio.subprocess.Process, given: dict[str, Any]) -> None:
    """Tell a site what it needs to know on its standard input, where nobody else reads."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(given).encode())
    process.stdin.close()


async def _site(given: dict[str, Any]) -> None:
    """What one site does in a rehearsal."""
    home = Path(given["home"])
    if not (home / "site.json").exists():
        await Site.join(home, Invitation.read(given["token"]), given["listens"])
        Policy.open().write(home)  # no data of a rehearsal needs protection
    site = PeerSite(home, given["silence"]) if given["listens"] else Site(home)
    site.pace = partial(asyncio.sleep, given["slow"])
    digest, link = given["hash"], site.link()
    async with AsyncExitStack() as stack:
        stack.enter_context(site.at_work())
        if isinstance(site, PeerSite):
            await stack.enter_async_context(site.listening(given["listens"]))
        text, _ = await site.fetch(link, digest)
        if given["table"]:
            written = Written(*given["written"])
            binding.bind(
                home / "data", site.site_studies.read(digest), Path(given["table"]), written
            )
            facts = binding.facts(
                binding.records(home / "data", site.site_studies.read(digest)), True
            )
        else:
            described = Study.read_changed(given["study"], given["changes"])
            data = party_of(described, given["party"], given["sites"])
            facts = Facts.of(data)
        if not site.site_studies.has_approved(digest):
            site.decide(text, "approved", facts)
        await site.tell(link)
        if given["table"]:
            data = await data_of(site, link, digest)
        try:
            await site.attend(link, digest, data)
        except Overspent:
            await site.away(link, digest, SPENT, patience=given["silence"])
            raise
    await link.close()


def _tables(study: Study, names: Sequence[str], out: Path) -> list[Path]:
    """Every site's own table where the study describes them; none where it does not."""
    data = study.data
    if data.schema is None:
        return []
    if data.folder is not None:
        return frames.party_files(study.base / data.folder)
    if data.by is None:
        raise ArchipelError(
            "data.partition: a rehearsal of tables has a table per site; give data.by or "
            "data.folder."
        )
    table = frames.read_table(study.base / str(data.file), checks.written_of(data)).frame
    whose = frames.comparable(table[data.by]).astype(str)
    paths = []
    for name in names:
        paths.append(out / "tables" / f"{_site_name(name)}.csv")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        table[whose == name].to_csv(paths[-1], index=False)
    return paths


def _site_name(name: str) -> str:
    """A party's name as the name of a site."""
    plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower())
    return plain.strip("-")[:40] or "site"


def _free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    try:
        asyncio.run(_site(json.load(sys.stdin)))
    except ArchipelError as error:
        sys.exit(f"archipel: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
