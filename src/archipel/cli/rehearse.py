# SPDX-License-Identifier: Apache-2.0
"""`archipel rehearse`: a whole federation on one machine, with real processes and real TLS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from archipel.cli import options as o
from archipel.cli.watching import watching
from archipel.errors import ArchipelError

Sites = Annotated[int, typer.Option(help="how many sites: parties of the study's data")]
Slow = Annotated[
    list[str] | None,
    typer.Option("--slow", help="SITE=SECONDS: a site, by number from 0, that takes longer"),
]
Where = Annotated[Path, typer.Option(help="folder for the folders of all rehearsals")]


def rehearse(
    study: Annotated[Path, typer.Argument(help="a study file")],
    sites: Sites = 4,
    peers: Annotated[
        bool, typer.Option("--peers", help="for a study without a server: sites are peers")
    ] = False,
    sets: o.Set = None,
    slow: Slow = None,
    out: Where = Path("rehearsals"),
    as_json: o.Json = False,
) -> None:
    """Run a study between a coordinator and sites that are processes of their own.

    \b
    Everything is as between institutions: invitations, certificates, approval of the study's exact
    bytes, mutual TLS, audit logs. Each site has one party of the study's data. Sites with --slow
    need so many seconds more in every round that they are in.

    \b
    Examples:
      archipel rehearse heart.toml
      archipel rehearse heart.toml --sites 3
      archipel rehearse heart.toml --set wire.sum=secure
      archipel rehearse heart.toml --set algorithm.name=fedbuff --slow 3=5
      archipel rehearse gossip.toml --peers
    """
    import asyncio

    from archipel.federation.rehearsal import rehearse as play
    from archipel.runs.contributions import contributions, has_own_pace
    from archipel.store.folder import reserve
    from archipel.study.file import Study

    changes, slower = o.changes_of(sets), _paces(slow or [], sites)
    path = reserve(out, Study.read_changed(study, changes).name)
    try:
        with watching() as watch:
            run = asyncio.run(
                play(
                    study,
                    sites,
                    path,
                    watch,
                    watch.say,
                    peers=peers,
                    changes=changes,
                    slow=slower,
                )
            )
    finally:
        if not any(path.iterdir()):
            path.rmdir()
    if as_json:
        o.print_json(run.to_json())
        return
    console = Console()
    console.print(run.scorecard.table())
    if has_own_pace(run.algorithm, run.participation):
        found = contributions(run.participation, run.data.training)
        for k, each in enumerate(found):
            console.print(f"{escape(run.data.name(k))}: {each}", highlight=False)
    console.print(
        f"{escape(str(path))} keeps a folder for the coordinator and one for each site, with its "
        "keys, its state and its audit log.",
        highlight=False,
        soft_wrap=True,
    )


def _paces(slow: Sequence[str], sites: int) -> dict[int, float]:
    """Seconds that sites take longer, by number."""
    found = {}
    for each in slow:
        number, _, seconds = each.partition("=")
        try:
            found[int(number)] = float(seconds)
        except ValueError:
            found[-1] = 0.0
        if not all(0 <= k < sites and 0 <= value < math.inf for k, value in found.items()):
            raise ArchipelError(
                f"--slow {each}: give a site's number from 0 to {sites - 1}, and seconds, such "
                f"as {sites - 1}=5."
            )
    return found
