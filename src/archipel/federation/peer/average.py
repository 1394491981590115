# SPDX-License-Identifier: Apache-2.0
"""A party's part in a private mean, and all parties of one as processes of this machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from archipel.aggregation import averaging
from archipel.aggregation.averaging import PUBLISHED, Numbers
from archipel.errors import ArchipelError, RunFailed
from archipel.federation.numbers import Card, NumbersFile
from archipel.federation.peer import port
from archipel.federation.peer.mesh import PATIENCE, Mesh
from archipel.federation.roster import check_address
from archipel.privacy.sources import System

_LOG = "averages.jsonl"  # of a party's folder: what it has published


@dataclass(frozen=True)
class Average:
    """What came of a private mean."""

    estimate: Numbers
    parties: tuple[str, ...]  # that are in it


def card(home: Path, name: str, address: str) -> Card:
    """What others need to know of this party; its key is made where there is none."""
    check_address(address)
    if not (home / "port.pem").exists():
        home.mkdir(parents=True, exist_ok=True)
        port.make(home, name)
    return Card(name, address, port.certificate(home))


def published(home: Path) -> list[dict[str, Any]]:
    """What this party has published so far."""
    path = home / _LOG
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def take_part(
    file: NumbersFile,
    me: str,
    home: Path,
    wait: float,
    patience: float = PATIENCE,
    say: Callable[[str], None] = lambda _: None,
) -> Average:
    """Take part with this party's own numbers; the same question is answered once."""
    names, question = [each.name for each in file.peers], file.question
    if me not in names:
        raise ArchipelError(f"--me {me}: is not among the [[peers]]: {', '.join(names) or 'none'}.")
    others = sorted(file.values.keys() - {me})
    if me not in file.values or others:
        whose = f"those of {others[0]} are another's, leave them out" if others else "give them"
        raise ArchipelError(f"values: this file has {me}'s own numbers alone; {whose}.")
    if not (home / "port.pem").exists():
        raise ArchipelError(
            f"--home {home}: has no key; make it with 'archipel average --me {me} --card HOST:PORT "
            f"--home {home}'."
        )
    if file.peers[names.index(me)].certificate != port.certificate(home):
        raise ArchipelError(f"--home {home}: its key is not that of {me} in [[peers]].")
    for entry in published(home):
        if entry["session"] == file.session:
            raise ArchipelError(
                f"average.run = {file.run}: {me} has answered this on {entry['when']}, and again "
                f"costs another epsilon; give run = {file.run + 1} in everybody's file."
            )
    mine, x = names.index(me), question.scaled(file.values[me], me)
    plan = question.plan(len(names))

    def before(number: int) -> None:
        if number == PUBLISHED:  # what leaves now counts, whatever becomes of the run
            entry = {
                "session": file.session, "names": question.names, "epsilon": question.epsilon,
                "delta": question.delta, "when": datetime.now(UTC).isoformat(timespec="seconds"),
            }  # fmt: skip
            with (home / _LOG).open("a") as log:
                log.write(json.dumps(entry) + "\n")
                log.flush()
                os.fsync(log.fileno())

    box = averaging.member(question, plan, mine, x, os.urandom(32), System())
    found = await Mesh(home, file.session, file.peers, mine).run(box, wait, patience, before, say)
    return Average(averaging.estimate(question, plan, found), tuple(names[j] for j in found.there))


async def rehearse(file: NumbersFile, out: Path, patience: float = PATIENCE) -> Average:
    """Every party of the file a process of its own on this machine, with real TLS."""
    names = sorted(file.values)
    cards = [card(out / name, name, f"localhost:{_free_port()}") for name in names]
    processes = []
    for name in names:
        given = {
            "me": name, "home": str(out / name), "values": file.values[name], "peers": cards,
            "question": asdict(file.question), "run": file.run, "patience": patience,
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "archipel.federation.peer.average",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(given).encode())
        process.stdin.close()
        processes.append(process)
    try:
        told = [(await process.communicate())[0] for process in processes]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    if any(process.returncode for process in processes):
        raise RunFailed("a party ended before the mean was there: see what it says above.")
    first, *rest = (json.loads(each) for each in told)
    if any(each != first for each in rest):
        raise RunFailed("the parties have different means.")
    return Average(np.array(first["estimate"]), tuple(first["parties"]))


def _free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


async def _party(given: dict[str, Any]) -> None:
    """What one process does in a rehearsal."""
    asked: dict[str, Any] = given["question"]
    question: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in asked.items()}
    file = NumbersFile(
        averaging.Question(**question),
        {given["me"]: tuple(given["values"])},
        tuple(Card(*each) for each in given["peers"]),
        given["run"],
    )
    found = await take_part(file, given["me"], Path(given["home"]), 60.0, given["patience"])
    print(json.dumps({"estimate": found.estimate.tolist(), "parties": found.parties}))


if __name__ == "__main__":
    try:
        asyncio.run(_party(json.load(sys.stdin)))
    except ArchipelError as error:
        sys.exit(f"archipel: {error}")
