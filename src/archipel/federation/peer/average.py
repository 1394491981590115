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
from archipel.aggregation.averaging import PUBLISHED
from archipel.engines.network.transport import SMALL
from archipel.errors import ArchipelError, RunFailed
from archipel.federation.averages import (
    BULLETIN,
    PATIENCE,
    Average,
    Say,
    assure_new,
    keep,
    proved,
    terms_of,
)
from archipel.federation.certificates import Identity, write_secret
from archipel.federation.numbers import Card, NumbersFile
from archipel.federation.peer import port
from archipel.federation.peer.mesh import Mesh
from archipel.federation.roster import check_address
from archipel.privacy.sources import System
from archipel.verifiable import peers
from archipel.verifiable.bulletin import Board
from archipel.verifiable.party import Party
from archipel.verifiable.verification import Verdict, checked

_LOG = "averages.jsonl"  # of a party's folder: what it has published
_KEY = "identity.key"  # with which it signs what it says


def card(home: Path, name: str, address: str) -> Card:
    """What others need to know of this party; its key is made where there is none."""
    check_address(address)
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "port.pem").exists():
        port.make(home, name)
    if not (home / _KEY).exists():
        write_secret(home / _KEY, Identity.create().pem)
    return Card(name, address, port.certificate(home), _identity(home).public.hex())


def _identity(home: Path) -> Identity:
    return Identity.read((home / _KEY).read_bytes())


def published(home: Path) -> list[dict[str, Any]]:
    """What this party has published so far."""
    path = home / _LOG
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Part:
    """One party of a file, with its own numbers and its own keys."""

    file: NumbersFile
    me: str
    home: Path
    wait: float
    patience: float = PATIENCE
    say: Say = lambda _: None
    charge: Callable[[], None] = lambda: None  # what a site's ledger is told

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.file.peers]

    @property
    def mine(self) -> int:
        """Its number among the parties."""
        return self.names.index(self.me)

    def assure(self) -> None:
        """Refuse what cannot be, and a question that was answered."""
        file, me, home = self.file, self.me, self.home
        if me not in self.names:
            known = ", ".join(self.names) or "none"
            raise ArchipelError(f"--me {me}: is not among the [[peers]]: {known}.")
        others = sorted(file.values.keys() - {me})
        if me not in file.values or others:
            whose = f"those of {others[0]} are another's, leave them out" if others else "give them"
            raise ArchipelError(f"values: this file has {me}'s own numbers alone; {whose}.")
        if not (home / "port.pem").exists():
            raise ArchipelError(
                f"--home {home}: has no key; make it with 'archipel average --me {me} --card "
                f"HOST:PORT --home {home}'."
            )
        if file.peers[self.mine].certificate != port.certificate(home):
            raise ArchipelError(f"--home {home}: its key is not that of {me} in [[peers]].")
        for entry in published(home):
            if entry["session"] == file.session:
                raise ArchipelError(
                    f"average.run = {file.run}: {me} has answered this on {entry['when']}, and "
                    f"again costs another epsilon; give run = {file.run + 1} in everybody's file."
                )

    def publishes(self) -> None:
        """Write down that what leaves now counts, whatever becomes of the run."""
        self.charge()
        question = self.file.question
        entry = {
            "session": self.file.session, "names": question.names, "epsilon": question.epsilon,
            "delta": question.delta, "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        with (self.home / _LOG).open("a") as log:
            log.write(json.dumps(entry) + "\n")
            log.flush()
            os.fsync(log.fileno())


async def take_part(
    file: NumbersFile,
    me: str,
    home: Path,
    wait: float,
    patience: float = PATIENCE,
    say: Say = lambda _: None,
    charge: Callable[[], None] = lambda: None,
) -> Average:
    """Take part with this party's own numbers; the same question is answered once."""
    part, question = Part(file, me, home, wait, patience, say, charge), file.question
    part.assure()
    x, plan = question.scaled(file.values[me], me), question.plan(len(file.peers))

    def before(number: int) -> None:
        if number == PUBLISHED:
            part.publishes()

    box = averaging.member(question, plan, part.mine, x, os.urandom(32), System())
    mesh = Mesh(home, file.session, file.peers, part.mine)
    found = await mesh.run(box, wait, patience, before, say)
    return Average(
        averaging.estimate(question, plan, found), tuple(part.names[j] for j in found.there)
    )


async def prove(
    file: NumbersFile,
    me: str,
    home: Path,
    bulletin: Path,
    wait: float,
    patience: float = PATIENCE,
    say: Say = lambda _: None,
    charge: Callable[[], None] = lambda: None,
) -> Verdict:
    """Take part with proofs, and write the bulletin that all parties have; return what it shows."""
    part, question = Part(file, me, home, wait, patience, say, charge), file.question
    part.assure()
    assure_new(bulletin)
    question.scaled(file.values[me], me)  # a number beyond its range is refused before the others
    terms = terms_of(file, {each.name: each.identity for each in file.peers})
    if not (home / _KEY).exists() or _identity(home).public.hex() != terms.parties[me]:
        raise ArchipelError(f"--home {home}: its identity is not that of {me} in [[peers]].")
    box = peers.member(
        Party(me, file.values[me], _identity(home)), terms, board := Board(None),
        question.dropouts, lambda phase: part.publishes() if phase == "publish" else None,
    )  # fmt: skip
    most = SMALL + 4 * len(terms.parties) * peers.longest(terms)
    steps = peers.steps(terms, question.dropouts)
    session = f"{file.session} with proofs"
    try:
        await Mesh(home, session, file.peers, part.mine, steps, most).run(
            box, wait, patience, say=say
        )
    finally:
        keep(board, bulletin)  # also of a run that came to nothing
    return checked(board.entries, board.lines)


async def rehearse(
    file: NumbersFile, out: Path, patience: float = PATIENCE, verifiable: bool = False
) -> Average:
    """Every party of the file a process of its own on this machine, with real TLS.

    With proofs, each has its bulletin in its folder.
    """
    names = sorted(file.values)
    cards = [card(out / name, name, f"localhost:{_free_port()}") for name in names]
    processes = []
    for name in names:
        given = {
            "me": name, "home": str(out / name), "values": file.values[name], "peers": cards,
            "question": asdict(file.question), "run": file.run, "patience": patience,
            "verifiable": verifiable,
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
    if verifiable and len({(out / name / BULLETIN).read_bytes() for name in names}) > 1:
        raise RunFailed("the parties have different bulletins.")
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
    me, home, patience = given["me"], Path(given["home"]), given["patience"]
    if given["verifiable"]:
        found = proved(await prove(file, me, home, home / BULLETIN, 60.0, patience))
    else:
        found = await take_part(file, me, home, 60.0, patience)
    print(json.dumps({"estimate": found.estimate.tolist(), "parties": found.parties}))


if __name__ == "__main__":
    try:
        asyncio.run(_party(json.load(sys.stdin)))
    except ArchipelError as error:
        sys.exit(f"archipel: {error}")
