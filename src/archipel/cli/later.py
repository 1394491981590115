# SPDX-License-Identifier: Apache-2.0
"""Verbs whose engines come in a later version: they say so, and what does the nearest today."""

from __future__ import annotations

from collections.abc import Callable

import typer

from archipel.errors import ArchipelError

LATER = {
    "ui": ("The web page.", "archipel report RUN writes a page"),
}


def add_to(app: typer.Typer) -> None:
    """Give the app a command for each."""
    for name, (about, instead) in LATER.items():
        app.command(
            name,
            help=f"{about} Comes in a later version.",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            hidden=True,
        )(_command(name, instead))


def _command(name: str, instead: str) -> Callable[[], None]:
    def command() -> None:
        raise ArchipelError(f"'archipel {name}' comes in a later version; for now {instead}.")

    return command
