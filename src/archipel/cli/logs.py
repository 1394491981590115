# SPDX-License-Identifier: Apache-2.0
"""What commands of institutions print: lines, tables, audit logs, anchors and evidence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from archipel.cli import options as o
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.federation.coordinator.folder import CoordinatorFolder

AnchorFile = Annotated[
    Path | None,
    typer.Option("--anchor", help="A file with anchors that the other side kept; with --verify."),
]


def say(text: str, err: bool = False) -> None:
    """A line on standard output, or the other one, at once, also in a pipe."""
    print(clean(text), file=sys.stderr if err else sys.stdout, flush=True)


def table(*headings: str) -> Table:
    made = Table(box=None, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    return made


def show(made: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 160).print(made)


def show_audit(log: Any, verify: bool, as_json: bool, name: str, kept: Path | None = None) -> None:
    """An audit log, or whether it is whole, also against an anchor that somebody else kept."""
    from archipel.federation.anchors import anchor_in
    from archipel.federation.audit import check

    if kept is not None and not verify:
        raise ArchipelError(f"--anchor {kept}: is compared with the log by --verify; say both.")
    if verify:
        last = log.head
        anchor = last if kept is None else anchor_in(kept, name, log.identity.public)
        count = check(log.path, log.identity.public, anchor)
        if count == 0:
            raise ArchipelError(
                f"'{log.path}': has no entry, though the first is written when a folder is made: "
                "the log was emptied."
            )
        if as_json:
            o.print_json({"entries": count, "whole": True, "last": last.hash})
            return
        say(f"{count} entries, every hash and signature is right; the last is {last.hash}.")
        if kept is not None:
            say(f"Entry {anchor.number} is as it was kept elsewhere: nothing up to it was cut.")
        return
    entries = list(log.entries())
    if as_json:
        o.print_json({"entries": [entry._asdict() for entry in entries]})
        return
    for entry in entries:
        detail = "  ".join(f"{name}={value}" for name, value in sorted(entry.detail.items()))
        say(f"{entry.number:>6}  {entry.time[:19].replace('T', ' ')}  {entry.what:<12} {detail}")


def show_anchors(path: Path, name: str | None, as_json: bool) -> None:
    """Anchors that were kept of others' logs, of one or of all."""
    from archipel.errors import unknown
    from archipel.federation.anchors import Anchors

    kept = Anchors(path).kept
    if name is not None and name not in kept:
        raise unknown("log", name, kept)
    found = {each: kept[each] for each in sorted(kept) if name in (None, each)}
    if as_json:
        o.print_json({"anchors": {each: anchor._asdict() for each, anchor in found.items()}})
        return
    for each, anchor in found.items():
        say(f"{each}: entry {anchor.number}, {anchor.hash}, told {anchor.time}")
    if not found:
        say("None yet: they come with the rounds of a study.")


def show_evidence(home: CoordinatorFolder, study: str, verify: bool, as_json: bool) -> None:
    """What sites signed in a study, or whether they did."""
    from archipel.federation.coordinator.evidence import Evidence

    digest, keys = home.keys(study)
    found = Evidence(home.evidence)
    if verify:
        count = found.check(digest, keys)
        if as_json:
            o.print_json({"study": digest, "entries": count, "right": True})
            return
        say(f"{count} letters, each is signed by its site.")
        return
    items = [item for _, item in found.items(digest) if item is not None]
    if as_json:
        more = [{"kind": i.kind, "round": i.round, "digest": i.digest} for i in items]
        rows = [item._asdict() | each for item, each in zip(items, more, strict=True)]
        o.print_json({"study": digest, "evidence": rows})
        return
    shown = table("time (UTC)", "site", "letter", "round", "digest")
    for item in items:
        t = "" if item.round is None else str(item.round + (item.kind == "upload"))
        cells = (item.time[:19].replace("T", " "), item.site, item.kind, t, item.digest)
        shown.add_row(*(Text(clean(cell)) for cell in cells))
    show(shown) if items else say("Nothing was signed for this study yet.")
