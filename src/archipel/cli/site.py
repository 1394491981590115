# SPDX-License-Identifier: Apache-2.0
"""`archipel site`: a data manager joins, binds data, reads studies, decides, and takes part."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.coordinator import say, show, show_audit, stopping, table, timed
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

    from archipel.federation.site import Site

app = typer.Typer(
    help="A site: an institution that takes part with data of its own.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
data = typer.Typer(help="This site's own data.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")

T = TypeVar("T")
Where = Annotated[Path, typer.Option("--home", help="The site's folder.")]
Study = Annotated[str, typer.Argument(help="A study's name, or the beginning of its hash.")]
_HOME = Path("site")
_PATIENCE = 10.0  # seconds that a command waits for the coordinator


def _site(path: Path) -> Site:
    from archipel.federation.site import Site

    return Site(path)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The one loop of a command's conversations: gRPC complains of loops that were closed."""
    import asyncio
    import atexit

    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def _run(work: Coroutine[Any, Any, T]) -> T:
    return _loop().run_until_complete(work)


def _asking(site: Site, ask: Callable[[Any], Awaitable[Any]]) -> bool:
    """Talk to the coordinator; whether it answered."""
    import asyncio

    from archipel.engines.network.transport import Cut

    async def main() -> None:
        link = site.link()
        try:
            await asyncio.wait_for(ask(link), _PATIENCE)
        finally:
            await link.close()

    try:
        _run(main())
    except (Cut, TimeoutError):
        return False
    return True


@app.command()
def join(
    token: Annotated[str, typer.Argument(help="The token that the coordinator sent, or a file.")],
    home: Where = _HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether it is right.")] = False,
    as_json: o.Json = False,
) -> None:
    """Join a federation: make this site's keys here, and have them certified.

    \b
    Example:
      archipel site join archipel-eNp1...
    """
    join_with(token, home, yes, as_json)


def join_with(token: str, home: Path, yes: bool, as_json: bool, listens: str = "") -> None:
    """Join once somebody has compared the fingerprint; a peer listens somewhere."""
    from archipel.federation.authority import Invitation, fingerprint
    from archipel.federation.site import Site

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
    _run(Site.join(home, invitation, listens))
    if as_json:
        about = {"federation": invitation.federation, "address": invitation.address}
        o.print_json({"home": str(home), "site": invitation.site, **about, "fingerprint": words})
        return
    say(f"Joined; keys and log are in {home}. Next: archipel site studies")


def _token(given: str) -> str:
    """The token, or what is in the file that was named."""
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
def studies(home: Where = _HOME, as_json: o.Json = False) -> None:
    """List the studies, and what this site decided.

    \b
    Example:
      archipel site studies
    """
    site = _site(home)
    states: dict[str, str] = {}

    async def ask(link: Any) -> None:
        states.update(await site.studies(link))
        for each in states:
            await site.fetch(link, each)

    answered = _asking(site, ask)
    rows = []
    for each in site.shelf.known():
        found = site.shelf.decision(each)
        rows.append(
            {
                "study": site.shelf.read(each).name,
                "hash": each,
                "state": states.get(each) or _reached(site, each),
                "decision": "none yet" if found is None else found.decision,
                "told": found is None or found.told,
                "refused": "" if found is None else found.refused,
            }
        )
    if as_json:
        o.print_json({"coordinator": answered, "studies": rows})
        return
    if not answered:
        say(f"The coordinator at {site.address} does not answer; this is what is known here.")
    shown = table("study", "hash", "state", "this site")
    for row in rows:
        told = "" if row["told"] else ", not told yet"
        said = f"{row['decision']}{told}" + (f", refused: {row['refused']}" * bool(row["refused"]))
        cells = (row["study"], str(row["hash"])[:12], row["state"], said)
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("No study yet.")


def _reached(site: Site, study: str) -> str:
    """The state of a study while the coordinator is silent: between peers it may well go on."""
    from archipel.federation import diary

    done = diary.reached(site.shelf.folder(study))
    if done is None:
        return "unknown"
    return f"between peers, this one at round {done} of {site.shelf.read(study).study.rounds}"


def _known(site: Site, name: str) -> tuple[str, list[str]]:
    """The hash of a study, fetched if it can be, and who approved it."""
    members: list[str] = []

    async def ask(link: Any) -> None:
        states = await site.studies(link)
        for each in states:
            await site.fetch(link, each)
        members.extend((await site.fetch(link, site.shelf.find(name)))[1])

    _asking(site, ask)
    return site.shelf.find(name), members


@data.command("add")
def add(
    schema: Annotated[str, typer.Option(help="The study whose columns the table has.")],
    csv: Annotated[Path, typer.Option(help="The table: .csv or .parquet.")],
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Bind a table of this site to what a study asks for; it is checked and stays where it is.

    \b
    Example:
      archipel site data add --schema heart --csv patients.csv
    """
    from archipel.federation import binding

    site = _site(home)
    study, _ = _known(site, schema)
    described = site.shelf.read(study)
    report = binding.bind(site.home / "data", described, csv)
    site.audit.append("bound", study=study, file=str(csv.absolute()), rows=report.used)
    if as_json:
        o.print_json(report._asdict())
        return
    say(f"{csv}: {report.rows} rows, {report.used} of them used")
    for name, count in report.missing.items():
        say(f"  {name}: empty in {count} rows")
    if report.classes:
        counts = ", ".join(f"{name} in {count} rows" for name, count in report.classes.items())
        say(f"  {described.data.target}: {counts}")
    if report.ignored:
        say(f"  not read, for the study does not name them: {', '.join(report.ignored)}")
    say(f"Bound to the columns of {described.name}. Next: archipel site review {described.name}")


@app.command()
def review(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Say what taking part would mean: purpose, members, what leaves the building, privacy.

    \b
    Example:
      archipel site review heart
    """
    from archipel.federation import binding

    site = _site(home)
    digest, members = _known(site, study)
    described = site.shelf.read(digest)
    text = site.review(site.shelf.text(digest), binding.schema_of(described).empty(), members)
    if as_json:
        o.print_json({"study": digest, "name": described.name, "members": members, "text": text})
        return
    print(text)
    say("")
    say(f"To agree to exactly this: archipel site approve {digest[:12]}")


@app.command()
def approve(
    study: Study,
    home: Where = _HOME,
    counts: Annotated[
        bool, typer.Option(help="Tell how many training and test points this site has.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Agree to take part in exactly this study; a changed one needs approval again.

    \b
    Examples:
      archipel site approve heart
      archipel site approve heart --counts
    """
    from archipel.exchange import is_peer
    from archipel.federation import binding

    site = _site(home)
    digest, _ = _known(site, study)
    described = site.shelf.read(digest)
    records = binding.records(site.home / "data", described)
    site.decide(site.shelf.text(digest), "approved", binding.facts(records, counts))
    said = f"Study {described.name} is approved, hash {digest}."
    verb = "peer" if is_peer(described.algorithm_object) else "site"
    _tell(site, said, f"It runs while 'archipel {verb} up' does.", as_json)


@app.command()
def reject(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Say no to a study.

    \b
    Example:
      archipel site reject heart
    """
    site = _site(home)
    digest, _ = _known(site, study)
    site.decide(site.shelf.text(digest), "rejected")
    _tell(site, f"Study {site.shelf.read(digest).name} is rejected.", "", as_json)


def _tell(site: Site, decided: str, then: str, as_json: bool) -> None:
    """Say what was decided, and have the coordinator know."""
    say(decided, err=as_json)
    told = _asking(site, site.tell)
    if as_json:
        known = {each: site.shelf.decision(each) for each in site.shelf.known()}
        decisions = {each: found.decision for each, found in known.items() if found is not None}
        o.print_json({"decisions": decisions, "told": told})
        return
    if told:
        say("The coordinator knows.")
    else:
        say("The coordinator does not answer; 'archipel site up' tells it when it does.")
    if then:
        say(then)


@app.command()
def pause(home: Where = _HOME, as_json: o.Json = False) -> None:
    """Send nothing any more, until `resume`; works at once, whoever answers.

    \b
    Example:
      archipel site pause
    """
    _site(home).pause()
    if as_json:
        o.print_json({"paused": True})
        return
    say("Paused: nothing leaves. 'archipel site resume' goes on.")


@app.command()
def resume(home: Where = _HOME, as_json: o.Json = False) -> None:
    """End a pause.

    \b
    Example:
      archipel site resume
    """
    _site(home).resume()
    if as_json:
        o.print_json({"paused": False})
        return
    say("Resumed: what is approved goes on while 'archipel site up' runs.")


@app.command()
def leave(
    study: Annotated[str | None, typer.Argument(help="A study; all of them without.")] = None,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Take back the approval of a study, or of all; works at once, whoever answers.

    \b
    Example:
      archipel site leave heart
    """
    site = _site(home)
    left = site.shelf.approved() if study is None else [site.shelf.find(study)]
    site.leave(left)
    names = ", ".join(site.shelf.read(each).name for each in left)
    said = f"Left: {names}. Nothing of this site leaves for it any more."
    if not left:
        said = "Nothing was approved, so there is nothing to leave."
    _tell(site, said, "", as_json)


@app.command()
def budget(home: Where = _HOME, as_json: o.Json = False) -> None:
    """Show what left this site so far, study by study, and the privacy that was promised.

    \b
    Example:
      archipel site budget
    """
    site = _site(home)
    sent = site.sent()
    rows = [
        {
            "study": site.shelf.read(each).name,
            "hash": each,
            "rounds": len(sent[each].rounds) if each in sent else 0,
            "of": site.shelf.read(each).study.rounds,
            "bytes": sent[each].bytes if each in sent else 0,
            "epsilon": None,
        }
        for each in site.shelf.known()
        if each in sent or site.shelf.has_approved(each)
    ]
    if as_json:
        o.print_json({"studies": rows})
        return
    shown = table("study", "hash", "rounds", "bytes sent", "privacy")
    for row in rows:
        cells = (
            row["study"], str(row["hash"])[:12], f"{row['rounds']} of {row['of']}",
            f"{row['bytes']:,}", "no noise, no bound is claimed",
        )  # fmt: skip
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("Nothing was approved, and nothing left.")


@app.command()
def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Check hashes and signatures.")] = False,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Show what this site did and sent, from its audit log.

    \b
    Example:
      archipel site audit --verify
    """
    show_audit(_site(home).audit, verify, as_json)


@app.command()
def up(home: Where = _HOME) -> None:
    """Take part in every study that was approved, until stopped.

    \b
    Example:
      archipel site up
    """
    import asyncio

    from archipel.federation import duty

    site = _site(home)

    async def main() -> None:
        with site.at_work():  # says so before anything else is said
            timed(f"{site.name} is up" + (", and paused" if site.paused else ""))
        await duty.up(site, stopping(), timed)
        timed("down")

    asyncio.run(main())


@app.command()
def personalise(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Get the model of a finished study, this site's own where the algorithm makes one.

    \b
    Example:
      archipel site personalise heart
    """
    from archipel.federation import duty

    site = _site(home)
    digest, _ = _known(site, study)

    async def main() -> dict[str, float]:
        link = site.link()
        try:
            points = await duty.data_of(site, link, digest)
        finally:
            await link.close()
        return await site.personalise(digest, points)

    scores = _run(main())
    path = site.shelf.folder(digest) / "model.safetensors"
    if as_json:
        o.print_json({"model": str(path), "metrics": scores})
        return
    say(f"The model is in {path}.")
    said = ", ".join(f"{name} {value:.3f}" for name, value in scores.items())
    say(f"On this site's test points: {said or 'there are none'}")
