# SPDX-License-Identifier: Apache-2.0
"""The command line: one module per verb."""

from __future__ import annotations

import sys

import typer

from archipel.cli.demo import demo
from archipel.errors import ArchipelError

app = typer.Typer(
    name="archipel",
    help="Federated and decentralised learning: each party's data stays where it is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)


@app.callback()
def _verbs() -> None:
    """Keep `archipel demo` a verb while it is the only one."""


def main() -> None:
    """Run the command line; bad input is one sentence on standard error and exit code 2."""
    try:
        app()
    except ArchipelError as error:
        print(f"archipel: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("archipel: stopped.", file=sys.stderr)
        sys.exit(130)
