# SPDX-License-Identifier: Apache-2.0
"""`archipel site`: a data manager joins, binds data, reads studies, decides, and takes part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from archipel.cli import binding, deciding, keys, policy
from archipel.cli import options as o
from archipel.cli.folder import (
    HOME,
    Study,
    Where,
    asking,
    known,
    readable,
    run,
    site_at,
)
from archipel.cli.lasting import stopping, timed
from archipel.cli.logs import AnchorFile, say, show, show_anchors, show_audit, table
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.federation.site.site import Site
    from archipel.federation.site.statement import OfStudy, OfTable

app = typer.Typer(
    help="A site: an institution that takes part with data of its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(binding.app, name="data")
app.add_typer(policy.app, name="policy")


@app.command()
def join(
    token: Annotated[
        str, typer.Argument(help="A file with the token; - for standard input; or the token.")
    ],
    home: Where = HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether it is right.")] = False,
    as_json: o.Json = False,
) -> None:
    """Join a federation: make this site's keys here, and have them certified.

    \b
    A token on the command line can be seen by others on this machine while the command runs.

    \b
    Example:
      archipel site join cleveland.token
    """
    join_with(token, home, yes, as_json)


def join_with(token: str, home: Path, yes: bool, as_json: bool, listens: str = "") -> None:
    """Join once somebody has compared the fingerprint; a peer listens somewhere."""
    from archipel.federation.certificates import Invitation, fingerprint
    from archipel.federation.site.site import Site

    if token == "-" and not yes:
        raise ArchipelError(
            "token = '-': standard input cannot bring the token and the answer as well; compare "
            "the words and say --yes, or give the token as a file."
        )
    invitation = Invitation.read(_token(token))
    words = fingerprint(invitation.authority)
    for line in (
        f"Federation   {invitation.federation}, at {invitation.address}",
        f"You join as  {invitation.site}",
        f"Fingerprint  {words}",
        "Compare the twelve words with the coordinator's operator by telephone.",
    ):
        say(line, err=as_json)
    if not yes and not typer.confirm("Are they the same?", err=as_json):
        raise ArchipelError("not joined: the words must be the same; ask for another token.")
    run(Site.join(home, invitation, listens))
    if as_json:
        about = {"federation": invitation.federation, "address": invitation.address}
        o.print_json({"home": str(home), "site": invitation.site, **about, "fingerprint": words})
        return
    say(f"Joined; keys and log are in {home}. Next: archipel site studies")


def _token(given: str) -> str:
    """The token, or what is in the file that was named, or comes on standard input."""
    if given == "-":
        return sys.stdin.read()
    if given.lstrip().startswith("archipel-") and len(given) > 255:
        return given
    try:
        return Path(given).read_text()
    except (OSError, ValueError):
        raise ArchipelError(
            f"token = '{given[:80]}': neither a whole token, which begins with archipel- and has "
            "some hundred letters, nor a file that can be read."
        ) from None


@app.command()
def studies(home: Where = HOME, as_json: o.Json = False) -> None:
    """List the studies, and what this site decided.

    \b
    Example:
      archipel site studies
    """
    site = site_at(home)
    states: dict[str, str] = {}

    async def ask(link: Any) -> None:
        states.update(await site.studies(link))
        for each in states:
            await site.fetch(link, each)

    answered = asking(site, ask)
    spent, rows = _spent(site)[0], []
    for each in site.site_studies.known():
        found = site.site_studies.decision(each)
        rows.append(
            {
                "study": site.site_studies.name(each) or "(no name that can be read)",
                "hash": each,
                "state": states.get(each) or _reached(site, each),
                "readable": readable(site, each),
                "decision": "none yet" if found is None else found.decision,
                "told": found is None or found.told,
                "refused": "" if found is None else found.refused,
                "privacy": spent[each]._asdict() if each in spent else None,
            }
        )
    if as_json:
        o.print_json({"coordinator": answered, "studies": rows})
        return
    if not answered:
        say(f"The coordinator at {site.address} does not answer; this is what is known here.")
    shown = table("study", "hash", "state", "this site", *(["privacy"] if spent else []))
    for row in rows:
        told = "" if row["told"] else ", not told yet"
        said = f"{row['decision']}{told}" + (f", refused: {row['refused']}" * bool(row["refused"]))
        said = said if row["readable"] is True else f"cannot be read here: {row['readable']}"
        cells = [row["study"], str(row["hash"])[:12], row["state"], said]
        if spent:
            mine = spent.get(str(row["hash"]))
            cells.append("" if mine is None else _spent_of(mine._asdict()))
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("No study yet.")


def _reached(site: Site, study: str) -> str:
    """The state of a study while the coordinator is silent: between peers it may well go on."""
    from archipel.federation.peer import record as diary

    done = diary.reached(site.site_studies.folder(study))
    if done is None:
        return "unknown"
    return f"between peers, this one at round {done} of {site.site_studies.gist(study).rounds}"


app.command()(deciding.review)
app.command()(deciding.approve)
app.command()(deciding.reject)
app.command()(keys.keys)


@app.command()
def pause(home: Where = HOME, as_json: o.Json = False) -> None:
    """Send nothing any more, until `resume`; works at once, whoever answers.

    \b
    Example:
      archipel site pause
    """
    site_at(home).pause()
    if as_json:
        o.print_json({"paused": True})
        return
    say("Paused: nothing leaves. 'archipel site resume' goes on.")


@app.command()
def resume(home: Where = HOME, as_json: o.Json = False) -> None:
    """End a pause.

    \b
    Example:
      archipel site resume
    """
    site_at(home).resume()
    if as_json:
        o.print_json({"paused": False})
        return
    say("Resumed: what is approved goes on while 'archipel site up' runs.")


@app.command()
def leave(
    study: Annotated[str | None, typer.Argument(help="A study; all of them without.")] = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Take back the approval of a study, or of all; works at once, whoever answers.

    \b
    Example:
      archipel site leave heart
    """
    site = site_at(home)
    left = site.site_studies.approved() if study is None else [site.site_studies.find(study)]
    site.leave(left)
    names = ", ".join(f"{site.site_studies.name(each)} ({each[:12]})" for each in left)
    said = f"Left: {names}. Nothing of this site leaves for it any more."
    if not left:
        said = "Nothing was approved, so there is nothing to leave."
    deciding.tell(site, said, "", as_json)


@app.command()
def budget(home: Where = HOME, as_json: o.Json = False) -> None:
    """Show what left this site so far, study by study, and the privacy that was promised.

    \b
    Example:
      archipel site budget
    """
    from archipel.federation.site.sent import lacks, sent_by

    site = site_at(home)
    sent = sent_by(site)
    spent, left = _spent(site)
    rows = [
        {
            "study": site.site_studies.name(each),
            "hash": each,
            "rounds": len(sent[each].rounds) if each in sent else 0,
            "of": site.site_studies.gist(each).rounds if readable(site, each) is True else None,
            "bytes": sent[each].bytes if each in sent else 0,
            "epsilon": spent[each].epsilon if each in spent else None,
            "planned": spent[each].planned if each in spent else None,
            "delta": spent[each].delta if each in spent else None,
            "lacks": lacks(site, each, sent),
        }
        for each in site.site_studies.known()
        if each in sent or site.site_studies.has_approved(each) or lacks(site, each, sent)
    ]
    if as_json:
        o.print_json({"studies": rows, "tables": [each._asdict() for each in left]})
        return
    shown = table("study", "hash", "rounds", "bytes sent", "privacy")
    for row in rows:
        cells = (
            row["study"], str(row["hash"])[:12], f"{row['rounds']} of {row['of']}",
            f"{row['bytes']:,}", _privacy(row),
        )  # fmt: skip
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("Nothing was approved, and nothing left.")
    for each in left:
        if each.is_counted:
            say(each.text)
    for row in rows:
        if row["lacks"]:
            say(
                f"{row['study']}: this site worked in it, and the audit log names nothing that "
                "left: the log lacks entries; compare it with 'archipel site audit --verify "
                "--anchor FILE'."
            )


def _spent(site: Site) -> tuple[dict[str, OfStudy], list[OfTable]]:
    """What was spent by study and by table; nothing is loaded to count with where nothing was."""
    if not any(site.audit.entries("spent", "unbounded", "reserved")):
        return {}, []
    from archipel.federation.site.statement import spent_by, tables

    return spent_by(site), tables(site)


def _privacy(row: dict[str, Any]) -> str:
    if row["epsilon"] is None:
        return "no noise, no bound is claimed" if row["bytes"] else "nothing spent"
    return _spent_of(row)


def _spent_of(row: dict[str, Any]) -> str:
    """What a study spent here, as this site's ledger has it."""
    return f"ε = {row['epsilon']:.3g} of {row['planned']:.3g} spent, δ = {row['delta']:g}"


@app.command()
def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Check hashes and signatures.")] = False,
    anchor: AnchorFile = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Show what this site did and sent, from its audit log.

    \b
    Examples:
      archipel site audit --verify
      archipel site audit --verify --anchor coordinator-kept.json
    """
    site = site_at(home)
    show_audit(site.audit, verify, as_json, site.name, anchor)


@app.command()
def anchors(home: Where = HOME, as_json: o.Json = False) -> None:
    """Show the latest anchor of the coordinator's audit log, for its operator to compare with.

    \b
    Example:
      archipel site anchors --json
    """
    show_anchors(site_at(home).home / "anchors.json", None, as_json)


@app.command()
def up(home: Where = HOME) -> None:
    """Take part in every study that was approved, until stopped.

    \b
    Example:
      archipel site up
    """
    import asyncio

    from archipel.federation.site import service as service

    site = site_at(home)

    async def main() -> None:
        with site.at_work():  # says so before anything else is said
            timed(f"{site.name} is up" + (", and paused" if site.paused else ""))
        await service.up(site, stopping(), timed)
        timed("down")

    asyncio.run(main())


@app.command()
def personalise(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Get the model of a finished study, this site's own where the algorithm makes one.

    \b
    Example:
      archipel site personalise heart
    """
    from archipel.federation.site import personal, service

    site = site_at(home)
    digest, _ = known(site, study)

    async def main() -> dict[str, float]:
        link = site.link()
        try:
            points = await service.data_of(site, link, digest)
        finally:
            await link.close()
        return await personal.personalise(site, digest, points)

    scores = run(main())
    path = site.site_studies.folder(digest) / "model.safetensors"
    bundle = path.with_name("bundle")
    if as_json:
        told = str(bundle) if bundle.is_dir() else None
        o.print_json({"model": str(path), "bundle": told, "metrics": scores})
        return
    say(f"The model is in {path}.")
    if bundle.is_dir():
        say(f"Apply it to a table: archipel predict {bundle} TABLE.csv")
    said = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
    say(f"On this site's test points: {said or 'there are none'}")
