# SPDX-License-Identifier: Apache-2.0
"""`archipel peer`: a site that other peers ask, for studies without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli import options as o
from archipel.cli.coordinator import stopping, timed
from archipel.cli.site import join_with

app = typer.Typer(
    help="A peer: a site that learns with others directly, in studies without a server. "
    "Studies are reviewed, approved, paused and left with 'archipel site'.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Where = Annotated[Path, typer.Option("--home", help="The site's folder.")]
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
    silence: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a silent peer is gone round.")
    ] = 60.0,
) -> None:
    """Take part in every approved study without a server, and answer other peers, until stopped.

    \b
    A study goes on without the coordinator, and without peers that are away; one that comes back
    catches up.

    \b
    Example:
      archipel peer up
    """
    import asyncio

    from archipel.federation import peer

    site = peer.PeerSite(home, silence, stays=True)

    async def main() -> None:
        with site.at_work():  # says so before anything else is said
            timed(f"{site.name} is up" + (", and paused" if site.paused else ""))
        await peer.up(site, stopping(), timed, listen)
        timed("down")

    asyncio.run(main())
