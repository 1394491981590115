# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 below quorum, 4 privacy budget spent, 130 stopped.
Modules here import the rest of Archipel inside their commands, so that --help is quick.
"""

from __future__ import annotations

import os
import sys

import typer

from archipel.cli import coordinator, later, peer, privacy, shuffler, site
from archipel.cli.audit import audit
from archipel.cli.average import average
from archipel.cli.compare import compare
from archipel.cli.data import data
from archipel.cli.demo import demo
from archipel.cli.listing import list_, show
from archipel.cli.new import new
from archipel.cli.plan import plan
from archipel.cli.predict import predict
from archipel.cli.rehearse import rehearse
from archipel.cli.run import resume, run
from archipel.cli.runs import export, report, runs
from archipel.cli.tune_bytes import tune_bytes
from archipel.cli.verify import verify
from archipel.cli.worth import worth
from archipel.errors import ArchipelError, one_line

app = typer.Typer(
    name="archipel",
    help="Federated and decentralised learning: each party's data stays where it is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(demo)
app.command()(new)
app.command()(run)
app.command()(plan)
app.command()(compare)
app.command("tune-bytes")(tune_bytes)
app.command("list")(list_)
app.command()(show)
app.command()(data)
app.command()(runs)
app.command()(report)
app.command()(audit)
app.command()(worth)
app.command()(resume)
app.command()(export)
app.command()(predict)
app.command()(rehearse)
app.command()(average)
app.command()(verify)
app.add_typer(privacy.app, name="privacy")
app.add_typer(coordinator.app, name="coordinator")
app.add_typer(site.app, name="site")
app.add_typer(peer.app, name="peer")
app.add_typer(shuffler.app, name="shuffler")
later.add_to(app)


def main() -> None:
    """Run the command line; bad input is one sentence on standard error."""
    try:
        app()
    except ArchipelError as error:
        print(f"archipel: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("archipel: stopped.", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("ARCHIPEL_DEBUG"):
            raise
        from archipel.study.plugins import reason

        said = f"archipel: failed: {reason(error)} (ARCHIPEL_DEBUG=1 shows where)."
        print(one_line(said), file=sys.stderr)
        sys.exit(1)
