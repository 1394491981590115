# SPDX-License-Identifier: Apache-2.0
"""`archipel site review | approve | reject`: what a study means, and what the site says to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from archipel.cli import options as o
from archipel.cli.folder import (
    HOME,
    Study,
    Where,
    asking,
    fetched,
    known,
    rows_of,
    site_at,
)
from archipel.cli.logs import say
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from archipel.federation.site.site import Site


def review(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Say what taking part would mean: settings, what leaves, what could be read, the policy.

    \b
    Example:
      archipel site review heart
    """
    site = site_at(home)
    digest, members = known(site, study)
    described, text = site.site_studies.read(digest), _review(site, digest, members)
    site.site_studies.review(digest, text)
    if as_json:
        o.print_json({"study": digest, "name": described.name, "members": members, "text": text})
        return
    _print(text)
    say("")
    say(f"To agree to exactly this: archipel site approve {digest[:12]}")


def _review(site: Site, digest: str, members: list[str]) -> str:
    """What approving means, with the rows of the table that is bound, if one is."""
    from archipel.federation.site import binding
    from archipel.federation.site.looking import review_at

    described = site.site_studies.read(digest)
    empty = binding.schema_of(described).empty()
    text = site.site_studies.text(digest)
    return review_at(site, text, empty, members, rows_of(site, digest))


def _print(text: str) -> None:
    for line in text.split("\n"):
        say(line)


def approve(
    study: Study,
    home: Where = HOME,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; only with a hash of 12 digits or more.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Agree to take part in exactly the study that was reviewed here; a changed one is another.

    \b
    What is approved is shown, and asked for, again. Of two studies with one name neither is meant.

    \b
    Examples:
      archipel site approve heart
      archipel site approve 3f9a01c27be4 --yes
    """
    from archipel.exchange.boxes import is_peer
    from archipel.federation import approval
    from archipel.federation.site import binding, ledger
    from archipel.federation.site.looking import exposure_at
    from archipel.federation.site.reserved import deciding, reserve

    if yes and not (approval.looks_like_hash(study) and len(study) >= 12):
        raise ArchipelError(
            f"study = '{study}': --yes takes a hash alone, 12 digits of it or more, as 'archipel "
            "site review' shows it."
        )
    site = site_at(home)
    fetched(site)
    digest = _reviewed(site, study)
    described = site.site_studies.read(digest)
    records, policy = binding.records(site.home / "data", described), site.policy
    rows = rows_of(site, digest)
    policy.refuse(exposure_at(site, digest, records.schema.empty(), rows))
    if not yes:
        _print(_review(site, digest, known(site, digest)[1]))
        typer.confirm(f"Take part in exactly this study, hash {digest[:12]}?", abort=True, err=True)
    with deciding(site):
        policy.refuse(found := exposure_at(site, digest, records.schema.empty(), rows))
        if found.planned is not None:
            reserve(site, digest, ledger.table_of(site, described), found.planned)
        facts = binding.facts(records, policy.tells_counts)
        site.decide(site.site_studies.text(digest), "approved", facts)
    command = "archipel peer up" if is_peer(described.algorithm_object) else "archipel site up"
    said = f"Study {described.name} is approved, hash {digest}."
    tell(site, said, f"It runs while '{command}' does.", as_json)


def _reviewed(site: Site, study: str) -> str:
    """The study that is meant and was reviewed here; others of its name are said."""
    from archipel.federation import approval

    site_studies = site.site_studies
    named = [each for each in site_studies.known() if site_studies.name(each) == study]
    before = [each for each in named if site_studies.reviewed(each)]
    if not approval.looks_like_hash(study) and len(named) > 1 and before:
        for each in named:
            if each != before[-1]:
                say(f"Another study is called {study}, hash {each[:12]}; it differs:", err=True)
                for line in approval.difference(
                    site_studies.text(before[-1]), site_studies.text(each)
                ):
                    say(f"  {line}", err=True)
    digest = site_studies.find(study)
    if not site_studies.reviewed(digest):
        raise ArchipelError(
            f"study '{study}': was not reviewed here; read 'archipel site review {digest[:12]}' "
            "first."
        )
    return digest


def reject(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Say no to a study.

    \b
    Example:
      archipel site reject heart
    """
    site = site_at(home)
    digest, _ = known(site, study)
    site.decide(site.site_studies.text(digest), "rejected")
    name = site.site_studies.name(digest) or digest[:12]
    tell(site, f"Study {name} is rejected, hash {digest}.", "", as_json)


def tell(site: Site, decided: str, then: str, as_json: bool) -> None:
    """Say what was decided, and have the coordinator know."""
    say(decided, err=as_json)
    told = asking(site, site.tell)
    if as_json:
        known = {each: site.site_studies.decision(each) for each in site.site_studies.known()}
        decisions = {each: found.decision for each, found in known.items() if found is not None}
        o.print_json({"decisions": decisions, "told": told})
        return
    if told:
        say("The coordinator knows.")
    else:
        say("The coordinator does not answer; 'archipel site up' tells it when it does.")
    if then:
        say(then)
