# SPDX-License-Identifier: Apache-2.0
"""`archipel privacy ledger`: what a site spent of its privacy, round by round."""

from __future__ import annotations

from rich.text import Text

from archipel.cli import options as o
from archipel.cli.folder import HOME, Where, site_at
from archipel.cli.logs import say, show, table
from archipel.errors import clean


def ledger(home: Where = HOME, as_json: o.Json = False) -> None:
    """Show what this site spent, round by round, from its audit log; every line is checked.

    \b
    Example:
      archipel privacy ledger --home site
    """
    from archipel.federation.site.ledger import entries
    from archipel.federation.site.statement import spent_by, tables
    from archipel.privacy.release import written

    site = site_at(home)
    found, studies, accounts = entries(site), spent_by(site), tables(site)
    if as_json:
        rows = [
            {**each._asdict(), "releases": [written(release) for release in each.releases]}
            for each in found
        ]
        o.print_json(
            {
                "entries": rows,
                "studies": {name: each._asdict() for name, each in studies.items()},
                "tables": [each._asdict() for each in accounts],
            }
        )
        return
    shown = table("entry", "time (UTC)", "study", "round", "table", "for every", "released")
    for each in found:
        released = ", ".join(_words(written(release)) for release in each.releases)
        name = site.site_studies.name(each.study) or each.study[:12]
        cells = (
            str(each.number), each.time[:19].replace("T", " "), name,
            f"{each.round} of {each.of}", each.table[:12], each.unit, released or "nothing",
        )  # fmt: skip
        shown.add_row(*(Text(clean(cell)) for cell in cells))
    show(shown) if found else say("Nothing was spent yet.")
    for line in accounts:
        say(line.text)


def _words(release: dict[str, object]) -> str:
    """A release in a cell."""
    times = release.pop("times")
    said = " ".join(
        str(value) if isinstance(value, str) else f"{key} {value:.4g}"
        for key, value in release.items()
    )
    return f"{times} x {said}"
