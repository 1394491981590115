# SPDX-License-Identifier: Apache-2.0
"""`archipel site keys`: whom a site knows by which key, to compare by telephone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.folder import HOME, Where, site_at
from archipel.cli.logs import say, show, table
from archipel.errors import ArchipelError, clean, unknown

if TYPE_CHECKING:
    from archipel.federation.confirmed import Confirmed
    from archipel.federation.peer.known_keys import KnownKeys
    from archipel.federation.site.site import Site

Forget = Annotated[
    str | None,
    typer.Option(metavar="SITE", help="It has joined anew: take the next key that it comes with."),
]


Trust = Annotated[
    tuple[str, str],
    typer.Option(
        metavar='SITE "WORDS"',
        help="Its operator has read you these words: it has this key, and no other.",
    ),
]


def keys(
    forget: Forget = None,
    trust: Trust = ("", ""),
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """List this site's own key and those that it knows other sites by, in twelve words each.

    \b
    A key can be confirmed before the two sites have met. With 'archipel site policy set
    confirmed=true', this site adds up with none that is not confirmed.

    \b
    Examples:
      archipel site keys
      archipel site keys --trust bonn "oasis lizard circle cider iris moon bottle ..."
      archipel site keys --forget bonn
    """
    from archipel.federation.confirmed import Confirmed
    from archipel.federation.peer.known_keys import KnownKeys
    from archipel.federation.roster import fingerprint

    site = site_at(home)
    known, confirmed = KnownKeys(site.home / "peers.json"), Confirmed(site.home)
    if forget is not None:
        names = [*known.known(), *confirmed.all()]
        if forget not in names:
            raise unknown("site", forget, names)
        known.forget(forget)
        confirmed.forget(forget)
        site.audit.append("forgotten", peer=forget)
    if any(trust):
        _trust(site, known, confirmed, *trust)
    pinned, met = confirmed.all(), known.known()
    own = fingerprint(site.identity.public.hex())
    rows = [{"site": site.name, "fingerprint": own, "known": "this site", "confirmed": ""}]
    for name in sorted({*met, *pinned}):
        key = fingerprint(met[name].identity) if name in met else pinned[name].fingerprint
        since = f"known since {met[name].since}" if name in met else "not met yet"
        sure = name in pinned and pinned[name].fingerprint == key
        at = f"confirmed {pinned[name].since}" if sure else "not confirmed"
        rows.append({"site": name, "fingerprint": key, "known": since, "confirmed": at})
    if as_json:
        o.print_json({"keys": rows})
        return
    shown = table("site", "fingerprint", "known", "confirmed")
    for row in rows:
        shown.add_row(*(Text(clean(cell)) for cell in row.values()))
    show(shown)
    if len(rows) == 1:
        say("No other site is known here yet: keys are kept when sites first add up together.")


def _trust(site: Site, known: KnownKeys, confirmed: Confirmed, name: str, words: str) -> None:
    """Write down that a name has the key with these words."""
    from archipel.federation.confirmed import read_words
    from archipel.federation.roster import fingerprint

    words, met = read_words(words), known.known()
    if name == site.name:
        raise ArchipelError(f"--trust {name}: is this site; name the other one.")
    if name in met and fingerprint(met[name].identity) != words:
        raise ArchipelError(
            f"--trust {name}: this site knows {name} by another key since {met[name].since}, so "
            "somebody may have stood for it: tell the other sites, and say 'archipel site keys "
            f"--forget {name}' before you confirm these words."
        )
    if name in (before := confirmed.all()) and before[name].fingerprint != words:
        raise ArchipelError(
            f"--trust {name}: other words were confirmed on {before[name].since}; say 'archipel "
            f"site keys --forget {name}' first if it has joined anew."
        )
    confirmed.confirm(name, words)
    site.audit.append("trusted", peer=name, fingerprint=words)
