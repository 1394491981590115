# SPDX-License-Identifier: Apache-2.0
"""How a federation is doing, as its operator sees it: who is there, and every study's round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.logs import say, show, table
from archipel.errors import clean

if TYPE_CHECKING:
    from archipel.federation.coordinator.folder import CoordinatorFolder

Where = Annotated[Path, typer.Option("--home", help="The coordinator's folder.")]
Study = Annotated[str, typer.Argument(help="A study's name, or the beginning of its hash.")]
HOME = Path("coordinator")


def coordinator_at(path: Path) -> CoordinatorFolder:
    from archipel.federation.coordinator.folder import CoordinatorFolder

    return CoordinatorFolder(path)


def sites(home: Where = HOME, as_json: o.Json = False) -> None:
    """List the sites, and who is there now.

    \b
    Example:
      archipel coordinator sites
    """
    from archipel.federation.coordinator.status import read_status

    where = coordinator_at(home)
    now = read_status(where)
    seen, versions = ({}, {}) if now is None else (now["sites"], now["versions"])
    with where.registry() as registry:
        members, invited = registry.sites(), registry.invitations()
    names = {each.name for each in members}
    rows: list[dict[str, Any]] = [
        {
            "site": each.name,
            "state": f"revoked: {each.reason}" if each.revoked else _presence(now, each.name),
            "joined": each.joined,
            "certificate": each.until,
            "seen": seen.get(each.name),
            "version": versions.get(each.name),
        }
        for each in members
    ]
    none = dict.fromkeys(("joined", "certificate", "seen", "version"))
    rows += [
        {"site": each.site, "state": "invited", **none}
        for each in invited
        if each.used is None and each.withdrawn is None and each.site not in names
    ]
    if as_json:
        o.print_json({"sites": rows})
        return
    shown = table("site", "state", "joined (UTC)", "certificate until", "runs")
    for row in rows:
        times = [str(row[name] or "")[:16].replace("T", " ") for name in ("joined", "certificate")]
        cells = (row["site"], row["state"], *times, row["version"] or "")
        shown.add_row(*(Text(clean(str(cell))) for cell in cells))
    show(shown) if rows else say("No site yet: archipel coordinator invite SITE.")


def _presence(now: dict[str, Any] | None, site: str) -> str:
    if now is None:
        return "unknown: the coordinator is not up"
    ago = now["sites"].get(site)
    if ago is None:
        return "not seen since the coordinator is up"
    return "here" if ago < 50 else f"away for {ago / 60:.0f} min"


def status(
    home: Where = HOME,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 3 if a study stands still.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Show whether the coordinator is up, and every study: its round, who works, who is missing.

    \b
    With --check the exit code is 3 where a study that was started waits for sites or for the
    coordinator to be up; it is 0 otherwise.

    \b
    Examples:
      archipel coordinator status
      archipel coordinator status --check --json
    """
    from archipel.federation.coordinator.status import overview

    found = overview(coordinator_at(home))
    if as_json:
        o.print_json(found)
    else:
        _show_status(found)
    if check and any(study["stalled"] for study in found["studies"]):
        raise typer.Exit(3)


def _show_status(found: dict[str, Any]) -> None:
    say(f"{found['name']} at {found['address']}: {'up' if found['up'] else 'not up'}")
    for study in found["studies"]:
        say("")
        note = f", {study['note']}" if study["note"] else ""
        say(f"{study['name']} ({study['hash'][:12]}): {study['state']}{note}")
        if study["waiting"]:
            say(f"  stalled    {study['waiting']}")
        if study["privacy"]:
            say(f"  privacy    {study['privacy']}")
        if study["result"] is not None:
            value = study["result"]["value"]
            known = "" if value is None else f"{study['result']['metric']} {value:.3f}, "
            say(f"  result     {known}in {study['path']}")
        approvals = ", ".join(f"{site} {said}" for site, said in study["decisions"].items())
        say(f"  decisions  {approvals or 'none yet'}")
        for site, doing in study["sites"].items():
            say(f"  {site:<20} {doing}{_contributed(study['contributions'].get(site))}")
        for missed in study["missing"]:
            say(f"  round {missed['round']}: without {missed['site']} ({missed['cause']})")


def _contributed(told: dict[str, Any] | None) -> str:
    """What a site has contributed, where nobody waits for anybody."""
    from archipel.runs.contributions import Contribution

    return "" if told is None else f"; {Contribution(**told)}"
