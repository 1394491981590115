# SPDX-License-Identifier: Apache-2.0
"""`archipel rehearse`: a whole federation on one machine, with real processes and real TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from archipel.cli import options as o
from archipel.cli.watching import watching

Sites = Annotated[int, typer.Option(help="how many sites: parties of the study's data")]
Where = Annotated[Path, typer.Option(help="folder for the folders of all rehearsals")]


def rehearse(
    study: Annotated[Path, typer.Argument(help="a study file")],
    sites: Sites = 4,
    peers: Annotated[
        bool, typer.Option("--peers", help="for a study without a server: sites are peers")
    ] = False,
    sets: o.Set = None,
    out: Where = Path("rehearsals"),
    as_json: o.Json = False,
) -> None:
    """Run a study between a coordinator and sites that are processes of their own.

    \b
    Everything is as between institutions: invitations, certificates, approval of the study's exact
    bytes, mutual TLS, audit logs. Each site has one party of the study's data.

    \b
    Examples:
      archipel rehearse heart.toml
      archipel rehearse heart.toml --sites 3
      archipel rehearse heart.toml --set wire.sum=secure
      archipel rehearse gossip.toml --peers
    """
    import asyncio

    from archipel.federation.rehearsal import rehearse as play
    from archipel.store.folder import reserve
    from archipel.study.file import Study

    changes = o.changes_of(sets)
    path = reserve(out, Study.read_changed(study, changes).name)
    try:
        with watching() as watch:
            run = asyncio.run(
                play(study, sites, path, watch, watch.say, peers=peers, changes=changes)
            )
    finally:
        if not any(path.iterdir()):
            path.rmdir()
    if as_json:
        o.print_json(run.to_json())
        return
    console = Console()
    console.print(run.scorecard.table())
    console.print(
        f"{escape(str(path))} keeps a folder for the coordinator and one for each site, with its "
        "keys, its state and its audit log.",
        highlight=False,
        soft_wrap=True,
    )
