# SPDX-License-Identifier: Apache-2.0
"""`archipel site data`: a site binds its own table to what a study asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archipel.cli import options as o
from archipel.cli.folder import (
    HOME,
    Study,
    Where,
    known,
    site_at,
)
from archipel.cli.logs import say
from archipel.cli.tables import show_bound, show_report

if TYPE_CHECKING:
    pass

app = typer.Typer(help="This site's own data.", no_args_is_help=True, rich_markup_mode=None)


@app.command("add")
def add(
    study: Study,
    file: Annotated[
        Path, typer.Argument(metavar="TABLE", help="This site's table: .csv, .csv.gz or .parquet.")
    ],
    sep: o.Sep = None,
    decimal: o.Decimal = None,
    encoding: o.Encoding = None,
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Bind a table of this site to what a study asks for; it is checked and stays where it is.

    What is in it is shown here and told nobody.

    \b
    Examples:
      archipel site data add heart patients.csv
      archipel site data add heart patients.csv --sep ";" --decimal ,
    """
    from archipel.data.dialect import Written
    from archipel.federation.site import binding

    site = site_at(home)
    digest, _ = known(site, study)
    described = site.site_studies.read(digest)
    written = Written.of(sep, decimal, encoding)
    report = binding.bind(
        site.home / "data", described, file, written,
        show=lambda report: show_report(file, described, report, as_json),
    )  # fmt: skip
    site.audit.append("bound", study=digest, file=str(file.absolute()), rows=report.used)
    said = f"Bound to the columns of {described.name}. Next: archipel site review {described.name}"
    say(said, err=as_json)


@app.command("show")
def show_data(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Show what is in the table that is bound to a study; it is told nobody.

    \b
    Example:
      archipel site data show heart
    """
    from archipel.federation.site import binding

    site = site_at(home)
    described = site.site_studies.read(site.site_studies.find(study))
    found = binding.find(site.home / "data", described)
    report = binding.report(site.home / "data", described)
    show_report(found.file, described, report, as_json)


@app.command("list")
def list_data(home: Where = HOME, as_json: o.Json = False) -> None:
    """List this site's tables, and the studies that they are bound to.

    \b
    Example:
      archipel site data list
    """
    from archipel.federation.site import binding

    site = site_at(home)
    studies = {each: site.site_studies.read(each) for each in site.site_studies.known()}
    show_bound(binding.bound(site.home / "data"), studies, as_json)
