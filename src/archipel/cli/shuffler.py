# SPDX-License-Identifier: Apache-2.0
"""`archipel shuffler`: who takes reports in and gives them back in no order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli import options as o
from archipel.cli.folder import site_at
from archipel.cli.lasting import stopping, timed
from archipel.cli.logs import say

app = typer.Typer(
    help='A shuffler: hides which report of a study with [wire] sum = "shuffled" is whose. '
    "Somebody runs it whom sites trust not to work with the coordinator.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Where = Annotated[Path, typer.Option("--home", help="The shuffler's folder.")]
_HOME = Path("shuffler")


@app.command()
def init(
    address: Annotated[str, typer.Argument(help="HOST:PORT at which the coordinator reaches it.")],
    least: Annotated[
        int, typer.Option(help="Reports that hide each other; fewer are never shuffled.")
    ] = 100,
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Make a shuffler's keys and certificate, and print what a study names it by.

    \b
    Example:
      archipel shuffler init mix.example.org:8444 --least 500
    """
    from archipel.federation.shuffler import ShufflerFolder

    made = ShufflerFolder.create(home, address, least)
    named = f"shuffled:least={least}:shuffler={made.place.text()}"
    if as_json:
        o.print_json({"wire": {"sum": named}})
        return
    say("[wire]")
    say(f'sum = "{named}"')


@app.command()
def admit(
    name: Annotated[str, typer.Argument(help="A site's name.")],
    key: Annotated[
        str, typer.Argument(help="Its public key, as 'archipel shuffler key' shows it.")
    ],
    home: Where = _HOME,
    as_json: o.Json = False,
) -> None:
    """Admit a site, whose reports count from now on.

    \b
    Have the site's operator tell the key; what a coordinator tells could be keys of its own.

    \b
    Example:
      archipel shuffler admit ulm 5f0c...
    """
    from archipel.federation.shuffler import ShufflerFolder

    folder = ShufflerFolder(home)
    folder.admit(name, key)
    if as_json:
        o.print_json({"admitted": name, "members": len(folder.members)})
        return
    say(f"{name} is admitted, one of {len(folder.members)}")


@app.command()
def key(
    site: Annotated[Path, typer.Option(help="The site's folder.")] = Path("site"),
    as_json: o.Json = False,
) -> None:
    """Show the public key of a site, to tell a shuffler's operator.

    \b
    Example:
      archipel shuffler key --site site
    """
    found = site_at(site)
    public = found.identity.public.hex()
    if as_json:
        o.print_json({"site": found.name, "key": public})
        return
    say(public)


@app.command()
def status(home: Where = _HOME, as_json: o.Json = False) -> None:
    """Show a shuffler's address, its members and how few reports it shuffles.

    \b
    Example:
      archipel shuffler status
    """
    from archipel.federation.shuffler import ShufflerFolder

    folder = ShufflerFolder(home)
    told = {
        "shuffler": folder.place.text(),
        "least": folder.least,
        "members": {name: public.hex() for name, public in folder.members.items()},
    }
    if as_json:
        o.print_json(told)
        return
    say(f"shuffler  {told['shuffler']}")
    say(f"least     {told['least']} reports")
    for name, public in folder.members.items():
        say(f"member    {name}  {public.hex()}")


@app.command()
def up(home: Where = _HOME) -> None:
    """Shuffle batches of reports, until stopped.

    \b
    Example:
      archipel shuffler up
    """
    import asyncio

    from archipel.federation.shuffler import ShufflerFolder, serve

    folder = ShufflerFolder(home)
    place = folder.place

    async def main() -> None:
        stop = stopping()
        at_work = asyncio.create_task(
            serve(folder, lambda: timed(f"listening on port {place.port}"), timed)
        )
        asked = asyncio.create_task(stop.wait())
        await asyncio.wait({at_work, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if at_work.done():
            at_work.result()  # why it ended
        at_work.cancel()
        timed("down")

    asyncio.run(main())
