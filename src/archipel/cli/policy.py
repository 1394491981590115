# SPDX-License-Identifier: Apache-2.0
"""`archipel site policy`: a site's own rules, seen, changed and held against a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.folder import (
    HOME,
    Study,
    Where,
    known,
    rows_of,
    site_at,
)
from archipel.cli.logs import say, show, table
from archipel.errors import clean

if TYPE_CHECKING:
    pass

app = typer.Typer(
    help="This site's own rules, which hold whatever a study or a coordinator says.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("show")
def show_policy(home: Where = HOME, as_json: o.Json = False) -> None:
    """Show every rule, its value and what it is for.

    \b
    Example:
      archipel site policy show
    """
    from dataclasses import asdict

    from archipel.federation.site.policy import Policy, about

    found, careful = asdict(site_at(home).policy), asdict(Policy())
    if as_json:
        o.print_json(found)
        return
    shown = table("rule", "value", "what it is")
    for key, words in about().items():
        value, usual = (_rule(each[key]) for each in (found, careful))
        note = words if value == usual else f"{words} (careful: {usual})"
        shown.add_row(*(Text(clean(cell)) for cell in (key, value, note)))
    show(shown)


def _rule(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return ", ".join(value) or "any" if isinstance(value, tuple) else f"{value:g}"


@app.command("set")
def set_policy(
    changes: Annotated[list[str], typer.Argument(help="KEY=VALUE, such as least_rows=50.")],
    home: Where = HOME,
    as_json: o.Json = False,
) -> None:
    """Change rules; they hold at once, also in studies under way.

    \b
    Example:
      archipel site policy set counts=true least_sites=2
    """
    from dataclasses import asdict

    site = site_at(home)
    changed = site.policy.changed(changes)
    changed.write(site.home)
    site.audit.append("policy", rules=", ".join(changes))
    if as_json:
        o.print_json(asdict(changed))
        return
    say(f"Set: {', '.join(changes)}. It holds from now on.")


@app.command("check")
def check_policy(study: Study, home: Where = HOME, as_json: o.Json = False) -> None:
    """Hold a study against this site's rules; exits with 1 where one is not met.

    \b
    Example:
      archipel site policy check heart
    """
    from archipel.federation.site import binding
    from archipel.federation.site.looking import exposure_at

    site = site_at(home)
    digest, _ = known(site, study)
    described = site.site_studies.read(digest)
    empty = binding.schema_of(described).empty()
    rules = site.policy.judge(exposure_at(site, digest, empty, rows_of(site, digest)))
    met = all(rule.met for rule in rules)
    if as_json:
        o.print_json({"study": digest, "met": met, "rules": [rule._asdict() for rule in rules]})
    else:
        for rule in rules:
            say(f"{'met    ' if rule.met else 'NOT MET'}  {rule.key}: {rule.said}")
    if not met:
        raise typer.Exit(1)
