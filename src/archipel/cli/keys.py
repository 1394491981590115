# SPDX-License-Identifier: Apache-2.0
"""`archipel site keys`: whom a site knows by which key, to compare by telephone."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.folder import HOME, Where, site_at
from archipel.cli.logs import say, show, table
from archipel.errors import clean, unknown

Forget = Annotated[
    str | None,
    typer.Option(metavar="SITE", help="It has joined anew: take the next key that it comes with."),
]


def keys(forget: Forget = None, home: Where = HOME, as_json: o.Json = False) -> None:
    """List this site's own key and those that it knows other sites by, in twelve words each.

    \b
    Examples:
      archipel site keys
      archipel site keys --forget bonn
    """
    from archipel.federation.peer.known_keys import KnownKeys
    from archipel.federation.roster import fingerprint

    site = site_at(home)
    known = KnownKeys(site.home / "peers.json")
    if forget is not None:
        if forget not in known.known():
            raise unknown("site", forget, known.known())
        known.forget(forget)
        site.audit.append("forgotten", peer=forget)
    rows = [{"site": site.name, "fingerprint": site.identity.public.hex(), "known": "this site"}]
    rows += [
        {"site": name, "fingerprint": each.identity, "known": f"known since {each.since}"}
        for name, each in sorted(known.known().items())
    ]
    for row in rows:
        row["fingerprint"] = fingerprint(row["fingerprint"])
    if as_json:
        o.print_json({"keys": rows})
        return
    shown = table("site", "fingerprint", "known")
    for row in rows:
        shown.add_row(*(Text(clean(cell)) for cell in row.values()))
    show(shown)
    if len(rows) == 1:
        say("No other site is known here yet: keys are kept when sites first add up together.")
