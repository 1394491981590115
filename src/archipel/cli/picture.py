# SPDX-License-Identifier: Apache-2.0
"""`archipel privacy picture`: what each model of trust costs, on one question."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from archipel.cli import options as o
from archipel.errors import ArchipelError


def picture(
    out: Annotated[Path, typer.Option(help="The file, .png or .svg.")] = Path("trust.png"),
    parties: Annotated[int, typer.Option(min=10, help="Parties, one number each.")] = 1000,
    delta: Annotated[float, typer.Option(help="δ, the same for all.")] = 1e-5,
    honest: Annotated[
        float, typer.Option(help="The share of parties that do not collude, where it matters.")
    ] = 1.0,
    repetitions: Annotated[int, typer.Option(min=2, help="Of every point.")] = 100,
    as_json: o.Json = False,
) -> None:
    """Draw the error of a private mean against epsilon, for every model of trust.

    \b
    Lines are formulas, and points are measured: every protocol's own arithmetic, with noise of a
    seed. The table is that at epsilon = 1.

    \b
    Examples:
      archipel privacy picture
      archipel privacy picture --parties 200 --repetitions 20 --out small.svg
    """
    from archipel.privacy.checks import check_delta, check_delta_among
    from archipel.report.figures import encode
    from archipel.report.trust import trust
    from archipel.scorecard.trust import lines
    from archipel.store import files

    form = out.suffix[1:].lower()
    if form not in ("png", "svg"):
        raise ArchipelError(f"--out {out}: give a name that ends in .png or .svg.")
    if not 0 < honest <= 1:
        raise ArchipelError(f"--honest {honest}: give a share above 0 and up to 1.")
    check_delta_among("--delta", check_delta(delta), parties, "the picture", "parties")
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK | os.X_OK):
        raise ArchipelError(
            f"--out {out}: cannot be written; name a file in a folder that is there."
        )
    found = list(lines(parties, delta, repetitions, honest))
    files.write(out, encode(trust(found, parties, delta, repetitions), form, background="white"))
    rows = [_told(line) for line in found]
    if as_json:
        asked = {"parties": parties, "delta": delta, "honest": honest, "repetitions": repetitions}
        o.print_json({**asked, "models": rows, "picture": str(out)})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "trusts", "error at ε = 1", "measured"):
        table.add_column(heading)
    for row in rows:
        (one,) = (point for point in row["points"] if point["epsilon"] == 1.0)
        table.add_row(
            row["model"], row["trusts"], f"{one['formula']:.4f}", f"{one['measured']:.4f}"
        )
    Console().print(table)
    print(f"\n{out}")


def _told(line: Any) -> dict[str, Any]:
    formula = dict(zip(line.epsilons, line.errors, strict=True))
    return {
        "model": line.model.name,
        "trusts": line.model.trusts,
        "points": [
            {
                "epsilon": point.epsilon,
                "formula": formula[point.epsilon],
                "measured": point.error,
                "interval": [point.low, point.high],
            }
            for point in line.points
        ],
    }
