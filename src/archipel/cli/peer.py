# SPDX-License-Identifier: Apache-2.0
"""`archipel peer`: a site that other peers ask, for studies without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.folder import site_at
from archipel.cli.lasting import stopping, timed
from archipel.cli.logs import say, show, table
from archipel.cli.site import join_with
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.federation.peer.members import Members
    from archipel.federation.site.site import Site

app = typer.Typer(
    help="A peer: a site that learns with others directly, in studies without a server. "
    "Studies are reviewed, approved, paused and left with 'archipel site'.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Where = Annotated[Path, typer.Option("--home", help="The site's folder.")]
Study = Annotated[str, typer.Argument(help="A study's name, or the beginning of its hash.")]
_HOME = Path("site")


@app.command()
def join(
    token: Annotated[
        str, typer.Argument(help="A file with the token; - for standard input; or the token.")
    ],
    address: Annotated[str, typer.Option(help="HOST:PORT at which other peers reach this one.")],
    home: Where = _HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether it is right.")] = False,
    as_json: o.Json = False,
) -> None:
    """Join a federation as a site that other peers ask as well.

    \b
    Example:
      archipel peer join archipel-eNp1... --address ulm.example.org:8444
    """
    from archipel.federation.roster import check_address

    join_with(token, home, yes, as_json, check_address(address))


@app.command()
def up(
    home: Where = _HOME,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on; the joined port everywhere.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="HOST:PORT at which other peers reach this one now; they find out."),
    ] = None,
    silence: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a silent peer is gone round.")
    ] = 60.0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Take no new peer's key before 'trust' confirms it.")
    ] = False,
) -> None:
    """Take part in every approved study without a server, and answer other peers, until stopped.

    \b
    A study goes on without the coordinator, and without peers that are away; one that comes back
    catches up.

    \b
    Examples:
      archipel peer up
      archipel peer up --address ulm.example.net:8444
    """
    import asyncio

    from archipel.federation.peer import peer

    site = peer.PeerSite(home, silence, stays=True, confirm=confirm)

    async def main() -> None:
        with site.at_work():  # says so before anything else is said
            if address is not None:
                site.moves(address)
            timed(f"{site.name} is up" + (", and paused" if site.paused else ""))
        await peer.up(site, stopping(), timed, listen)
        timed("down")

    asyncio.run(main())


def _site(home: Path) -> tuple[Site, Members]:
    """The peer of a folder, and whom it knows."""
    from archipel.federation.peer.members import Members

    site = site_at(home)
    site.assure_listens()
    return site, Members(site, confirm=False)


@app.command()
def fingerprint(home: Where = _HOME, as_json: o.Json = False) -> None:
    """Show this peer's own key in twelve words, to read to other peers by telephone.

    \b
    Example:
      archipel peer fingerprint
    """
    from archipel.federation import roster

    site, _ = _site(home)
    words = roster.fingerprint(site.identity.public.hex())
    if as_json:
        o.print_json({"peer": site.name, "fingerprint": words})
        return
    say(f"{site.name}: {words}")


@app.command()
def roster(study: Study, home: Where = _HOME, as_json: o.Json = False) -> None:
    """List the members of a study: where they last were, their keys, and since when they are known.

    \b
    Example:
      archipel peer roster ring
    """
    from archipel.federation.peer.finding import Book
    from archipel.federation.roster import fingerprint

    site, members = _site(home)
    digest = site.site_studies.find(study)
    found = members.known(digest)
    if found is None:
        raise ArchipelError(
            f"study = '{study}': has no roster here yet; it comes while 'archipel peer up' runs, "
            "once the study has started."
        )
    book = Book(site.site_studies.folder(digest) / "addresses.json")
    rows = [
        {
            "peer": each.name,
            "address": site.listens if each.name == site.name else book.address(each),
            "fingerprint": fingerprint(each.identity),
            "known": members.standing(each, digest),
        }
        for each in found.peers
    ]
    if as_json:
        o.print_json({"study": digest, "accepted": digest in members.begun(), "peers": rows})
        return
    shown = table("peer", "address", "fingerprint", "known")
    for row in rows:
        shown.add_row(*(Text(clean(cell)) for cell in row.values()))
    show(shown)


@app.command()
def trust(
    name: Annotated[str, typer.Argument(help="The peer.")],
    anew: Annotated[
        bool, typer.Option("--anew", help="It has joined anew: forget the key that it had.")
    ] = False,
    home: Where = _HOME,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether it is right.")] = False,
    as_json: o.Json = False,
) -> None:
    """Confirm a peer's key after a telephone call.

    \b
    Examples:
      archipel peer trust bonn
      archipel peer trust bonn --anew
    """
    from archipel.federation.roster import fingerprint

    _, members = _site(home)
    identity = members.offered(name, anew)
    words = None if identity is None else fingerprint(identity)
    if words is not None:
        say(f"Fingerprint  {words}", err=as_json)
        if not yes and not typer.confirm(f"Has {name} read you the same words?", err=as_json):
            raise ArchipelError(f"peer = '{name}': not trusted; the words must be the same.")
    members.trust(name, identity)
    if as_json:
        o.print_json({"peer": name, "fingerprint": words})
        return
    say(
        f"The old key of {name} is forgotten; the next roster's is taken."
        if words is None
        else f"{name} has this key from now on."
    )
