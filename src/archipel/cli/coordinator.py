# SPDX-License-Identifier: Apache-2.0
"""`archipel coordinator`: the federation's operator invites sites, submits studies, runs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from archipel.cli import options as o
from archipel.cli.lasting import stopping, timed, with_time
from archipel.cli.logs import AnchorFile, say, show_anchors, show_audit, show_evidence
from archipel.cli.overview import HOME, Study, Where, coordinator_at, sites, status
from archipel.errors import ArchipelError

app = typer.Typer(
    help="The coordinator of a federation between institutions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def init(
    name: Annotated[str, typer.Option(help="What the federation is called.")],
    address: Annotated[str, typer.Option(help="host:port, as sites will reach it.")],
    home: Where = HOME,
    database: Annotated[
        str | None, typer.Option(help="PostgreSQL's URL; SQLite in the folder without one.")
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Found a federation: make its keys and its database.

    \b
    Example:
      archipel coordinator init --name cardio --address fl.hospital.org:8443
    """
    from archipel.federation.certificates import fingerprint
    from archipel.federation.coordinator.folder import CoordinatorFolder
    from archipel.store.database import PASSWORD, has_password

    made = CoordinatorFolder.create(home, name, address, database)
    words = fingerprint(made.authority.pem)
    if as_json:
        o.print_json({"home": str(home), "name": name, "address": address, "fingerprint": words})
        return
    say(f"Federation {name} is founded in {home}; sites reach it at {address}.")
    if database is not None and has_password(database):
        say(
            "The password was not written down: give it to every command in PGPASSWORD, in "
            f"~/.pgpass or in {PASSWORD}."
        )
    say(f"Its fingerprint, to read to sites by telephone: {words}")
    say("Next: archipel coordinator invite SITE, and archipel coordinator up.")


@app.command()
def invite(
    site: Annotated[str, typer.Argument(help="The site's name: a-z, 0-9 and '-'.")],
    days: Annotated[float, typer.Option(min=0.01, max=90, help="Until the token expires.")] = 7,
    out: Annotated[
        Path | None, typer.Option(help="Write the token to this file, for its owner alone.")
    ] = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Make a token with which one site can join, once.

    \b
    Examples:
      archipel coordinator invite cleveland --out cleveland.token
      archipel coordinator invite cleveland
    """
    from datetime import timedelta

    from archipel.federation.certificates import write_secret

    if out is not None and not out.absolute().parent.is_dir():
        raise ArchipelError(f"--out '{out}': there is no such folder; make it, or name another.")
    invitation = coordinator_at(home).invite(site, timedelta(days=days))
    token = invitation.token()
    if out is not None:
        write_secret(out, f"{token}\n".encode())
    if as_json:
        until = invitation.expires.isoformat(timespec="seconds")
        kept = {"token": token} if out is None else {"file": str(out)}
        o.print_json({"site": site, **kept, "expires": until})
        return
    print(token if out is None else f"The token is in {out}, which its owner alone can read.")
    until = f"{invitation.expires:%Y-%m-%d %H:%M} UTC"
    print(
        f"Send this to {site} over a channel that you trust. It works once, until {until}; there: "
        "archipel site join TOKEN",
        file=sys.stderr,
    )


@app.command()
def submit(
    study: Annotated[Path, typer.Argument(help="A study file.")],
    sites: Annotated[
        list[str] | None,
        typer.Option("--for", help="A site that the study is for; all sites without."),
    ] = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Ask sites for their approval of a study.

    \b
    Sites see the file's bytes; where the study names a file of edges, these are written into it.
    With --for, no other site learns that there is such a study. Submitted again with --for, it
    is for these sites as well, also for one that only wants the model of a study that is done.

    \b
    Examples:
      archipel coordinator submit heart.toml
      archipel coordinator submit heart.toml --for cleveland --for va
    """
    from archipel.federation.approval import brought

    try:
        text = study.read_bytes()
    except OSError as error:
        raise ArchipelError(f"'{study}': cannot be read ({error.strerror}).") from None
    text = brought(text, study.parent)
    digest = coordinator_at(home).submit(text, sites or [])
    if as_json:
        o.print_json({"study": digest, "for": sites})
        return
    who = f"{', '.join(sites)} see" if sites else "Sites see"
    say(f"Submitted, hash {digest}. {who} it with: archipel site studies")


@app.command()
def start(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Have a study run with the sites that approved it; with one that was stopped, go on.

    \b
    Example:
      archipel coordinator start heart
    """
    where = coordinator_at(home)
    found = where.start(study)
    if as_json:
        o.print_json({"study": found.hash, "name": found.name, "up": where.is_up})
        return
    then = "" if where.is_up else " It begins when the coordinator is up."
    say(f"Study {found.name} is started.{then}")


@app.command()
def stop(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Leave a study where it is; `start` goes on from its last round.

    \b
    Example:
      archipel coordinator stop heart
    """
    found = coordinator_at(home).stop(study)
    if as_json:
        o.print_json({"study": found.hash, "name": found.name})
        return
    say(f"Study {found.name} is stopped; 'archipel coordinator start {found.name}' goes on.")


@app.command()
def revoke(
    site: Annotated[str, typer.Argument(help="The site.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")],
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Shut a site out, from its next letter on.

    \b
    Example:
      archipel coordinator revoke cleveland --reason "laptop was stolen"
    """
    coordinator_at(home).revoke(site, reason)
    if as_json:
        o.print_json({"site": site, "reason": reason})
        return
    say(f"Site {site} is out.")


app.command()(sites)
app.command()(status)


@app.command()
def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Check hashes and signatures.")] = False,
    anchor: AnchorFile = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Show what the coordinator did, from its audit log.

    \b
    Examples:
      archipel coordinator audit --verify
      archipel coordinator audit --verify --anchor ulm-kept.json
    """
    show_audit(coordinator_at(home).audit, verify, as_json, "coordinator", anchor)


@app.command()
def anchors(
    site: Annotated[str | None, typer.Argument(help="A site; all of them without.")] = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Show the latest anchors of sites' audit logs, for them to compare with.

    \b
    Example:
      archipel coordinator anchors cleveland --json
    """
    show_anchors(coordinator_at(home).anchors, site, as_json)


@app.command()
def evidence(
    study: Study,
    verify: Annotated[bool, typer.Option("--verify", help="Check the signatures.")] = False,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Show what sites signed of what they sent in a study: uploads, scores, sums, questions.

    \b
    With --json: the signed text, the signature and the public key, for anybody to check. The
    site's own audit log has the same digest.

    \b
    Example:
      archipel coordinator evidence heart --verify
    """
    show_evidence(coordinator_at(home), study, verify, as_json)


@app.command()
def up(
    home: Where = HOME,
    listen: Annotated[
        str | None, typer.Option(help="host:port to listen at; all interfaces without.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="host:port for Prometheus, such as 127.0.0.1:9090.")
    ] = None,
    silence: Annotated[
        float, typer.Option(min=1, help="Seconds without progress until a site counts as lost.")
    ] = 60.0,
) -> None:
    """Be the coordinator: answer sites, and run every study that was started.

    \b
    Example:
      archipel coordinator up --metrics 127.0.0.1:9090
    """
    import asyncio

    from archipel.federation.coordinator.coordinator import Coordinator
    from archipel.federation.coordinator.status import keep_status, serve_metrics

    where = coordinator_at(home)

    def tell(text: str) -> None:
        """Above the picture, where there is one."""
        if view.quiet:
            timed(text)
        else:
            view.console.print(with_time(text), markup=False, highlight=False)

    async def main() -> None:
        stop = stopping()
        coordinator = Coordinator(where, say=tell, silence=silence)
        try:
            with serve_metrics(coordinator, metrics):
                port = await coordinator.up(listen)
                tell(f"up at {where.address}, port {port}")
                keeping = asyncio.create_task(keep_status(coordinator))
                await coordinator.serve(stop, view)
                keeping.cancel()
        finally:
            await coordinator.down()
        tell("down")

    from archipel.report.live import LiveView

    with where.occupied(), LiveView() as view:
        asyncio.run(main())


@app.command()
def rescale(
    study: Study,
    without: Annotated[
        list[str] | None, typer.Option(help="A site whose sums were wrong; may be repeated.")
    ] = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Have the scale of a study's features made anew, before its first round is done.

    \b
    Example:
      archipel coordinator rescale heart --without cleveland
    """
    from archipel.federation.coordinator import rescale as scales

    found = scales.rescale(coordinator_at(home), study, without or [])
    if as_json:
        o.print_json({"study": found.hash, "name": found.name, "without": without or []})
        return
    but = f" without those of {', '.join(without)}" if without else ""
    say(
        f"Study {found.name}: sites are asked for their sums again{but} once it is started; "
        f"'archipel coordinator start {found.name}'."
    )
