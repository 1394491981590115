# SPDX-License-Identifier: Apache-2.0
"""`archipel coordinator`: the federation's operator invites sites, submits studies, runs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.logs import (
    AnchorFile,
    say,
    show,
    show_anchors,
    show_audit,
    show_evidence,
    table,
)
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.federation.coordinator.folder import CoordinatorFolder

app = typer.Typer(
    help="The coordinator of a federation between institutions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Where = Annotated[Path, typer.Option("--home", help="The coordinator's folder.")]
Study = Annotated[str, typer.Argument(help="A study's name, or the beginning of its hash.")]
_HOME = Path("coordinator")


def _home(path: Path) -> CoordinatorFolder:
    from archipel.federation.coordinator.folder import CoordinatorFolder

    return CoordinatorFolder(path)


@app.command()
def init(
    name: Annotated[str, typer.Option(help="What the federation is called.")],
    address: Annotated[str, typer.Option(help="host:port, as sites will reach it.")],
    home: Where = _HOME,
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
    home: Where = _HOME,
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
    invitation = _home(home).invite(site, timedelta(days=days))
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
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Ask sites for their approval of a study.

    \b
    With --for, no other site learns that there is such a study. Submitted again with --for, it
    is for these sites as well, also for one that only wants the model of a study that is done.

    \b
    Examples:
      archipel coordinator submit heart.toml
      archipel coordinator submit heart.toml --for cleveland --for va
    """
    try:
        text = study.read_bytes()
    except OSError as error:
        raise ArchipelError(f"'{study}': cannot be read ({error.strerror}).") from None
    digest = _home(home).submit(text, sites or [])
    if as_json:
        o.print_json({"study": digest, "for": sites})
        return
    who = f"{', '.join(sites)} see" if sites else "Sites see"
    say(f"Submitted, hash {digest}. {who} it with: archipel site studies")


@app.command()
def start(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Have a study run with the sites that approved it; with one that was stopped, go on.

    \b
    Example:
      archipel coordinator start heart
    """
    where = _home(home)
    found = where.start(study)
    if as_json:
        o.print_json({"study": found.hash, "name": found.name, "up": where.is_up})
        return
    then = "" if where.is_up else " It begins when the coordinator is up."
    say(f"Study {found.name} is started.{then}")


@app.command()
def stop(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Leave a study where it is; `start` goes on from its last round.

    \b
    Example:
      archipel coordinator stop heart
    """
    found = _home(home).stop(study)
    if as_json:
        o.print_json({"study": found.hash, "name": found.name})
        return
    say(f"Study {found.name} is stopped; 'archipel coordinator start {found.name}' goes on.")


@app.command()
def revoke(
    site: Annotated[str, typer.Argument(help="The site.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")],
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Shut a site out, from its next letter on.

    \b
    Example:
      archipel coordinator revoke cleveland --reason "laptop was stolen"
    """
    _home(home).revoke(site, reason)
    if as_json:
        o.print_json({"site": site, "reason": reason})
        return
    say(f"Site {site} is out.")


@app.command()
def sites(home: Where = _HOME, as_json: o.Json = False) -> None:
    """List the sites, and who is there now.

    \b
    Example:
      archipel coordinator sites
    """
    from archipel.federation.coordinator.status import read_status

    where = _home(home)
    now = read_status(where)
    seen, versions = ({}, {}) if now is None else (now["sites"], now["versions"])
    with where.registry() as registry:
        members, invited = registry.sites(), registry.invitations()
    names = {each.name for each in members}
    rows: list[dict[str, Any]] = [
        {
            "site": each.name,
            "state": f"revoked: {each.reason}" if each.revoked else _presence(now, each.name),
            "joined": each.joined,
            "certificate": each.until,
            "seen": seen.get(each.name),
            "version": versions.get(each.name),
        }
        for each in members
    ]
    none = dict.fromkeys(("joined", "certificate", "seen", "version"))
    rows += [
        {"site": each.site, "state": "invited", **none}
        for each in invited
        if each.used is None and each.withdrawn is None and each.site not in names
    ]
    if as_json:
        o.print_json({"sites": rows})
        return
    shown = table("site", "state", "joined (UTC)", "certificate until", "runs")
    for row in rows:
        times = [str(row[name] or "")[:16].replace("T", " ") for name in ("joined", "certificate")]
        cells = (row["site"], row["state"], *times, row["version"] or "")
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("No site yet: archipel coordinator invite SITE.")


def _presence(now: dict[str, Any] | None, site: str) -> str:
    if now is None:
        return "unknown: the coordinator is not up"
    ago = now["sites"].get(site)
    if ago is None:
        return "not seen since the coordinator is up"
    return "here" if ago < 50 else f"away for {ago / 60:.0f} min"


@app.command()
def status(
    home: Where = _HOME,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 3 if a study stands still.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Show whether the coordinator is up, and every study: its round, who works, who is missing.

    \b
    With --check the exit code is 3 where a study that was started waits for sites or for the
    coordinator to be up; it is 0 otherwise.

    \b
    Examples:
      archipel coordinator status
      archipel coordinator status --check --json
    """
    from archipel.federation.coordinator.status import overview

    found = overview(_home(home))
    if as_json:
        o.print_json(found)
    else:
        _show_status(found)
    if check and any(study["stalled"] for study in found["studies"]):
        raise typer.Exit(3)


def _show_status(found: dict[str, Any]) -> None:
    say(f"{found['name']} at {found['address']}: {'up' if found['up'] else 'not up'}")
    for study in found["studies"]:
        say("")
        note = f", {study['note']}" if study["note"] else ""
        say(f"{study['name']} ({study['hash'][:12]}): {study['state']}{note}")
        if study["waiting"]:
            say(f"  stalled    {study['waiting']}")
        if study["result"] is not None:
            value = study["result"]["value"]
            known = "" if value is None else f"{study['result']['metric']} {value:.3f}, "
            say(f"  result     {known}in {study['path']}")
        approvals = ", ".join(f"{site} {said}" for site, said in study["decisions"].items())
        say(f"  decisions  {approvals or 'none yet'}")
        for site, doing in study["sites"].items():
            say(f"  {site:<20} {doing}")
        for missed in study["missing"]:
            say(f"  round {missed['round']}: without {missed['site']} ({missed['cause']})")


@app.command()
def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Check hashes and signatures.")] = False,
    anchor: AnchorFile = None,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Show what the coordinator did, from its audit log.

    \b
    Examples:
      archipel coordinator audit --verify
      archipel coordinator audit --verify --anchor ulm-kept.json
    """
    show_audit(_home(home).audit, verify, as_json, "coordinator", anchor)


@app.command()
def anchors(
    site: Annotated[str | None, typer.Argument(help="A site; all of them without.")] = None,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Show the latest anchors of sites' audit logs, for them to compare with.

    \b
    Example:
      archipel coordinator anchors cleveland --json
    """
    show_anchors(_home(home).anchors, site, as_json)


@app.command()
def evidence(
    study: Study,
    verify: Annotated[bool, typer.Option("--verify", help="Check the signatures.")] = False,
    home: Where = _HOME,
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
    show_evidence(_home(home), study, verify, as_json)


@app.command()
def up(
    home: Where = _HOME,
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

    where = _home(home)

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


def timed(text: str) -> None:
    """A line with its time, on standard output."""
    say(with_time(text))


def with_time(text: str) -> str:
    from datetime import UTC, datetime

    return clean(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {text}")


def stopping() -> Any:
    """An event that Ctrl-C and SIGTERM set; that they did is said at once."""
    import asyncio
    import signal

    stop = asyncio.Event()

    def ask() -> None:
        if not stop.is_set():
            timed("stopping")
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ask)
    return stop


@app.command()
def rescale(
    study: Study,
    without: Annotated[
        list[str] | None, typer.Option(help="A site whose sums were wrong; may be repeated.")
    ] = None,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Have the scale of a study's features made anew, before its first round is done.

    \b
    Example:
      archipel coordinator rescale heart --without cleveland
    """
    from archipel.federation.coordinator import rescale as scales

    found = scales.rescale(_home(home), study, without or [])
    if as_json:
        o.print_json({"study": found.hash, "name": found.name, "without": without or []})
        return
    but = f" without those of {', '.join(without)}" if without else ""
    say(
        f"Study {found.name}: sites are asked for their sums again{but} once it is started; "
        f"'archipel coordinator start {found.name}'."
    )
