# SPDX-License-Identifier: Apache-2.0
"""`archipel site`: a data manager joins, binds data, reads studies, decides, and takes part."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.coordinator import stopping, timed
from archipel.cli.logs import AnchorFile, say, show, show_anchors, show_audit, table
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
policy = typer.Typer(
    help="This site's own rules, which hold whatever a study or a coordinator says.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(policy, name="policy")

T = TypeVar("T")
Where = Annotated[Path, typer.Option("--home", help="The site's folder.")]
Study = Annotated[str, typer.Argument(help="A study's name, or the beginning of its hash.")]
_HOME = Path("site")
_PATIENCE = 10.0  # seconds that a command waits for the coordinator


def _site(path: Path) -> Site:
    from archipel.federation.site import Site

    return Site(path)


@cache
def _runner() -> asyncio.Runner:
    """Of all of a command's conversations: gRPC complains of loops that were closed.

    What is still under way when the command ends is cancelled, not dropped.
    """
    import asyncio
    import atexit

    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def _run(work: Coroutine[Any, Any, T]) -> T:
    return _runner().run(work)


def _asking(site: Site, ask: Callable[[Any], Awaitable[Any]]) -> bool:
    """Talk to the coordinator; whether it answered. Why not is said beside."""
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
    except (Cut, TimeoutError) as error:
        say(str(error) or f"no connection: no answer within {_PATIENCE:.0f} s.", err=True)
        return False
    return True


@app.command()
def join(
    token: Annotated[
        str, typer.Argument(help="A file with the token; - for standard input; or the token.")
    ],
    home: Where = _HOME,
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
    from archipel.federation.authority import Invitation, fingerprint
    from archipel.federation.site import Site

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
    _run(Site.join(home, invitation, listens))
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
                "study": site.shelf.name(each) or "(no name that can be read)",
                "hash": each,
                "state": states.get(each) or _reached(site, each),
                "readable": _readable(site, each),
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
        said = said if row["readable"] is True else f"cannot be read here: {row['readable']}"
        cells = (row["study"], str(row["hash"])[:12], row["state"], said)
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("No study yet.")


def _readable(site: Site, study: str) -> bool | str:
    """Whether this Archipel can take part in a study, or why not."""
    try:
        site.shelf.read(study)
    except ArchipelError as error:
        return str(error)
    return True


def _reached(site: Site, study: str) -> str:
    """The state of a study while the coordinator is silent: between peers it may well go on."""
    from archipel.federation import diary

    done = diary.reached(site.shelf.folder(study))
    if done is None:
        return "unknown"
    return f"between peers, this one at round {done} of {site.shelf.read(study).study.rounds}"


def _fetched(site: Site) -> None:
    """Have every study that the coordinator tells of here, if it answers."""

    async def ask(link: Any) -> None:
        for each in await site.studies(link):
            await site.fetch(link, each)

    _asking(site, ask)


def _known(site: Site, name: str) -> tuple[str, list[str]]:
    """The hash of a study that was fetched, if it could be, and who approved it."""
    members: list[str] = []
    _fetched(site)
    found = site.shelf.find(name)

    async def ask(link: Any) -> None:
        members.extend((await site.fetch(link, found))[1])

    _asking(site, ask)
    return found, members


@data.command("add")
def add(
    study: Study,
    file: Annotated[
        Path, typer.Argument(metavar="TABLE", help="This site's table: .csv, .csv.gz or .parquet.")
    ],
    sep: Annotated[
        str | None, typer.Option(help="What separates its cells, ; or tab; found out without.")
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="Its decimal mark, . or ,; found out without.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Its encoding, such as cp1252; found out without.")
    ] = None,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Bind a table of this site to what a study asks for; it is checked and stays where it is.

    What is in it is shown here and told nobody.

    \b
    Examples:
      archipel site data add heart patients.csv
      archipel site data add heart patients.csv --sep ";" --decimal ,
    """
    from archipel.cli.tables import show_report
    from archipel.data.dialect import Written
    from archipel.federation import binding

    site = _site(home)
    digest, _ = _known(site, study)
    described = site.shelf.read(digest)
    written = Written.of(sep, decimal, encoding)
    report = binding.bind(
        site.home / "data", described, file, written,
        show=lambda report: show_report(file, described, report, as_json),
    )  # fmt: skip
    site.audit.append("bound", study=digest, file=str(file.absolute()), rows=report.used)
    said = f"Bound to the columns of {described.name}. Next: archipel site review {described.name}"
    say(said, err=as_json)


@data.command("show")
def show_data(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Show what is in the table that is bound to a study; it is told nobody.

    \b
    Example:
      archipel site data show heart
    """
    from archipel.cli.tables import show_report
    from archipel.federation import binding

    site = _site(home)
    described = site.shelf.read(site.shelf.find(study))
    found = binding.find(site.home / "data", described)
    report = binding.report(site.home / "data", described)
    show_report(found.file, described, report, as_json)


@data.command("list")
def list_data(home: Where = _HOME, as_json: o.Json = False) -> None:
    """List this site's tables, and the studies that they are bound to.

    \b
    Example:
      archipel site data list
    """
    from archipel.cli.tables import show_bound
    from archipel.federation import binding

    site = _site(home)
    studies = {each: site.shelf.read(each) for each in site.shelf.known()}
    show_bound(binding.bound(site.home / "data"), studies, as_json)


@policy.command("show")
def show_policy(home: Where = _HOME, as_json: o.Json = False) -> None:
    """Show every rule, its value and what it is for.

    \b
    Example:
      archipel site policy show
    """
    from dataclasses import asdict

    from archipel.federation.policy import Policy, about

    found, careful = asdict(_site(home).policy), asdict(Policy())
    if as_json:
        o.print_json(found)
        return
    shown = table("rule", "value", "what it is")
    for key, words in about().items():
        value, usual = (_rule(each[key]) for each in (found, careful))
        note = words if value == usual else f"{words} (careful: {usual})"
        shown.add_row(*(Text(clean(cell)) for cell in (key, value, note)))
    show(shown)


def _rule(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) or "any" if isinstance(value, tuple) else f"{value:g}"


@policy.command("set")
def set_policy(
    changes: Annotated[list[str], typer.Argument(help="KEY=VALUE, such as least_rows=50.")],
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Change rules; they hold at once, also in studies under way.

    \b
    Example:
      archipel site policy set counts=true least_sites=2
    """
    from dataclasses import asdict

    site = _site(home)
    changed = site.policy.changed(changes)
    changed.write(site.home)
    site.audit.append("policy", rules=", ".join(changes))
    if as_json:
        o.print_json(asdict(changed))
        return
    say(f"Set: {', '.join(changes)}. It holds from now on.")


@policy.command("check")
def check_policy(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Hold a study against this site's rules; exits with 1 where one is not met.

    \b
    Example:
      archipel site policy check heart
    """
    from archipel.federation import binding

    site = _site(home)
    digest, _ = _known(site, study)
    described = site.shelf.read(digest)
    empty = binding.schema_of(described).empty()
    rules = site.policy.judge(site.exposure(described, empty, _rows(site, digest)))
    met = all(rule.met for rule in rules)
    if as_json:
        o.print_json({"study": digest, "met": met, "rules": [rule._asdict() for rule in rules]})
    else:
        for rule in rules:
            say(f"{'met    ' if rule.met else 'NOT MET'}  {rule.key}: {rule.said}")
    if not met:
        raise typer.Exit(1)


@app.command()
def review(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """Say what taking part would mean: settings, what leaves, what could be read, the policy.

    \b
    Example:
      archipel site review heart
    """
    site = _site(home)
    digest, members = _known(site, study)
    described, text = site.shelf.read(digest), _review(site, digest, members)
    site.shelf.review(digest, text)
    if as_json:
        o.print_json({"study": digest, "name": described.name, "members": members, "text": text})
        return
    _print(text)
    say("")
    say(f"To agree to exactly this: archipel site approve {digest[:12]}")


def _review(site: Site, digest: str, members: list[str]) -> str:
    """What approving means, with the rows of the table that is bound, if one is."""
    from archipel.federation import binding

    described = site.shelf.read(digest)
    empty = binding.schema_of(described).empty()
    return site.review(site.shelf.text(digest), empty, members, _rows(site, digest))


def _rows(site: Site, digest: str) -> Any:
    """Training and test rows of the table that is bound for a study; None before one is."""
    from archipel.federation import binding
    from archipel.federation.site import Rows

    try:
        records = binding.records(site.home / "data", site.shelf.read(digest))
    except ArchipelError:
        return None
    test = int(records.is_test.sum())
    return Rows(len(records.x) - test, test)


def _print(text: str) -> None:
    for line in text.split("\n"):
        say(line)


@app.command()
def approve(
    study: Study,
    home: Where = _HOME,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; only with a hash of 12 digits or more.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Agree to take part in exactly the study that was reviewed here; a changed one is another.

    \b
    What is approved is shown, and asked for, again. Of two studies with one name neither is meant.

    \b
    Examples:
      archipel site approve heart
      archipel site approve 3f9a01c27be4 --yes
    """
    from archipel.exchange import is_peer
    from archipel.federation import approval, binding

    if yes and not (approval.looks_like_hash(study) and len(study) >= 12):
        raise ArchipelError(
            f"study = '{study}': --yes takes a hash alone, 12 digits of it or more, as 'archipel "
            "site review' shows it."
        )
    site = _site(home)
    _fetched(site)
    digest = _reviewed(site, study)
    described = site.shelf.read(digest)
    records, policy = binding.records(site.home / "data", described), site.policy
    rows = _rows(site, digest)
    policy.refuse(site.exposure(described, records.schema.empty(), rows))
    if not yes:
        _print(_review(site, digest, _known(site, digest)[1]))
        typer.confirm(f"Take part in exactly this study, hash {digest[:12]}?", abort=True, err=True)
    site.decide(site.shelf.text(digest), "approved", binding.facts(records, policy.counts))
    command = "archipel peer up" if is_peer(described.algorithm_object) else "archipel site up"
    said = f"Study {described.name} is approved, hash {digest}."
    _tell(site, said, f"It runs while '{command}' does.", as_json)


def _reviewed(site: Site, study: str) -> str:
    """The study that is meant and was reviewed here; others of its name are said."""
    from archipel.federation import approval

    shelf = site.shelf
    named = [each for each in shelf.known() if shelf.name(each) == study]
    before = [each for each in named if shelf.reviewed(each)]
    if not approval.looks_like_hash(study) and len(named) > 1 and before:
        for each in named:
            if each != before[-1]:
                say(f"Another study is called {study}, hash {each[:12]}; it differs:", err=True)
                for line in approval.difference(shelf.text(before[-1]), shelf.text(each)):
                    say(f"  {line}", err=True)
    digest = shelf.find(study)
    if not shelf.reviewed(digest):
        raise ArchipelError(
            f"study '{study}': was not reviewed here; read 'archipel site review {digest[:12]}' "
            "first."
        )
    return digest


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
    name = site.shelf.name(digest) or digest[:12]
    _tell(site, f"Study {name} is rejected, hash {digest}.", "", as_json)


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
    names = ", ".join(f"{site.shelf.name(each)} ({each[:12]})" for each in left)
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
            "study": site.shelf.name(each),
            "hash": each,
            "rounds": len(sent[each].rounds) if each in sent else 0,
            "of": site.shelf.read(each).study.rounds if _readable(site, each) is True else None,
            "bytes": sent[each].bytes if each in sent else 0,
            "epsilon": None,
            "lacks": site.lacks(each, sent),
        }
        for each in site.shelf.known()
        if each in sent or site.shelf.has_approved(each) or site.lacks(each, sent)
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
    for row in rows:
        if row["lacks"]:
            say(
                f"{row['study']}: this site worked in it, and the audit log names nothing that "
                "left: the log lacks entries; compare it with 'archipel site audit --verify "
                "--anchor FILE'."
            )


@app.command()
def audit(
    verify: Annotated[bool, typer.Option("--verify", help="Check hashes and signatures.")] = False,
    anchor: AnchorFile = None,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Show what this site did and sent, from its audit log.

    \b
    Examples:
      archipel site audit --verify
      archipel site audit --verify --anchor coordinator-kept.json
    """
    site = _site(home)
    show_audit(site.audit, verify, as_json, site.name, anchor)


@app.command()
def anchors(home: Where = _HOME, as_json: o.Json = False) -> None:
    """Show the latest anchor of the coordinator's audit log, for its operator to compare with.

    \b
    Example:
      archipel site anchors --json
    """
    show_anchors(_site(home).home / "anchors.json", None, as_json)


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
