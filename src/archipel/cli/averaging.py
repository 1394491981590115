# SPDX-License-Identifier: Apache-2.0
"""`archipel average` between institutions: peers, sites, and a rehearsal by processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from archipel.cli import options as o
from archipel.cli.averaged import exact, proved, told_of
from archipel.cli.logs import say
from archipel.errors import ArchipelError, clean
from archipel.federation import averages

if TYPE_CHECKING:
    from collections.abc import Callable

    from archipel.federation.numbers import NumbersFile
    from archipel.federation.site.averages import Asked


def print_card(home: Path, me: str | None, address: str, as_json: bool) -> None:
    """What the others need of a peer."""
    from archipel.federation.peer import average as peer

    if me is None:
        raise ArchipelError("--card: give --me as well, the name of this party.")
    made = peer.card(home, me, address)
    if as_json:
        o.print_json(made._asdict())
    else:
        typer.echo(made.text(), nl=False)  # as a file has it: lines stay lines


def print_seat(home: Path, as_json: bool) -> None:
    """What the others need of a site."""
    from archipel.cli.folder import site_at
    from archipel.federation.site.relayed import seat

    made = seat(site_at(home))
    if as_json:
        o.print_json(made._asdict())
    else:
        typer.echo(made.text(), nl=False)


def _aside(text: str) -> None:
    say(text, err=True)


# -- peers -----------------------------------------------------------------------------------------


def taking_part(
    file: NumbersFile,
    me: str,
    home: Path,
    wait: float,
    patience: float,
    *,
    bulletin: Path | None,
    verifiable: bool,
    table: Path | None,
    yes: bool,
) -> dict[str, Any]:
    """One of the file's peers; in a site's folder it is the site that takes part."""
    from archipel.federation.peer import average as peer

    charge = _charging(file, me, home, table, yes, verifiable)
    if verifiable:
        path = bulletin if bulletin is not None else home / averages.BULLETIN
        verdict = asyncio.run(peer.prove(file, me, home, path, wait, patience, _aside, charge))
        averages.proved(verdict)
        told = proved(file.question, verdict, len(file.peers), "proving peers", path)
    else:
        found = asyncio.run(peer.take_part(file, me, home, wait, patience, _aside, charge))
        told = told_of(file.question, found.estimate, found.parties, len(file.peers), "peers")
    spent = [each["epsilon"] for each in peer.published(home)]
    return told | {"published": {"times": len(spent), "epsilon": sum(spent)}}


def _charging(
    file: NumbersFile, me: str, home: Path, table: Path | None, yes: bool, verifiable: bool
) -> Callable[[], None]:
    """What is called before anything counts: a site's ledger is charged, and its rules hold."""
    if not (home / "site.json").exists():
        if table is not None:
            raise ArchipelError(f"--table {table}: --home {home} is no site's, and has no ledger.")
        return lambda: None
    from archipel.federation.site.averages import Asked, account_named
    from archipel.federation.site.site import Site

    identities = {each.name: each.identity for each in file.peers}
    terms = averages.terms_of(file, identities) if verifiable else None
    this = Asked(Site(home), file, tuple(identities), account_named(table), "", terms)
    if this.site.name != me:
        raise ArchipelError(f"--me {me}: --home {home} is the folder of site {this.site.name}.")
    consent(this, yes)
    return this.charge


def rehearsed(
    file: NumbersFile, patience: float, verifiable: bool, bulletin: Path | None
) -> dict[str, Any]:
    """Every party of the file a process of this machine."""
    from tempfile import TemporaryDirectory

    from archipel.federation.peer import average as peer
    from archipel.store.files import write
    from archipel.verifiable import verify

    if bulletin is not None:
        averages.assure_new(bulletin)
    asked = len(file.values)
    with TemporaryDirectory() as folder:
        found = asyncio.run(peer.rehearse(file, Path(folder), patience, verifiable))
        if not verifiable:
            told = told_of(file.question, found.estimate, found.parties, asked, "processes")
        else:
            kept = Path(folder) / min(file.values) / averages.BULLETIN
            verdict = verify(kept)
            if bulletin is not None:
                write(bulletin, kept.read_bytes())
            told = proved(file.question, verdict, asked, "proving processes", bulletin)
    return told | {"exact": exact(file.question, [file.values[each] for each in found.parties])}


# -- sites -----------------------------------------------------------------------------------------


def through_coordinator(
    file: NumbersFile,
    home: Path,
    wait: float,
    patience: float,
    *,
    bulletin: Path | None,
    verifiable: bool,
    table: Path | None,
    yes: bool,
) -> dict[str, Any]:
    """One of the file's sites, through its coordinator."""
    from archipel.cli.folder import site_at
    from archipel.federation.site import relayed
    from archipel.federation.site.averages import account_named

    this = relayed.asked(site_at(home), file, account_named(table), verifiable)
    path = bulletin if bulletin is not None else home / averages.BULLETIN
    if verifiable:
        averages.assure_new(path)
    consent(this, yes)
    if verifiable:
        verdict = asyncio.run(relayed.prove(this, path, wait, patience, _aside))
        averages.proved(verdict)
        told = proved(file.question, verdict, len(file.sites), "proving sites", path)
    else:
        found = asyncio.run(relayed.take_part(this, wait, patience, _aside))
        told = told_of(file.question, found.estimate, found.parties, len(file.sites), "sites")
    return told | {"session": file.session, "charged": this.table}


def consent(this: Asked, yes: bool) -> None:
    """Show what would leave, hold it against the site's policy, and have it agreed to."""
    for line in this.review():
        _aside(clean(line))
    this.refuse()
    if not yes:
        typer.confirm("Take part in exactly this?", abort=True, err=True)
    this.approve()
