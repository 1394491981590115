# SPDX-License-Identifier: Apache-2.0
"""`archipel privacy`: what a study's promise costs, before anything is run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from archipel.cli import options as o
from archipel.cli.ledger import ledger

if TYPE_CHECKING:
    from archipel.privacy.promise import Kept

app = typer.Typer(
    help="What is promised of privacy, and what was spent of it.", no_args_is_help=True
)
StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY.toml", help="A study file.", show_default=False)
]

app.command()(ledger)


@app.command()
def plan(study: StudyFile, sets: o.Set = None, as_json: o.Json = False) -> None:
    """Show what a study's [privacy] costs: the noise for its epsilon, or the epsilon of its noise.

    \b
    Nothing is trained. The noise is the least with which every party keeps the budget in all
    rounds; the curve is that of the party that spends the most.

    \b
    Examples:
      archipel privacy plan heart.toml
      archipel privacy plan heart.toml --set privacy.epsilon=2 --set study.rounds=50
    """
    from archipel.errors import ArchipelError
    from archipel.runs.simulation import build

    read = o.study_of_flags(str(study), sets=sets)
    if read.promise is None:
        raise ArchipelError(
            f"'{study}': promises nothing; say whom it protects, such as [privacy] unit = "
            '"record", epsilon = 4.0.'
        )
    data = read.federation()
    engine, loop = build(read.algorithm_object, data, read.build_model(data), read.options())
    assert engine.kept is not None
    told = planned(engine.kept, loop.runs[0].rounds)
    if as_json:
        o.print_json(told)
        return
    _show(told, read.promise.clip_in_words)


def planned(kept: Kept, rounds: int) -> dict[str, Any]:
    """What a promise costs, as plain values."""
    from archipel.privacy.meaning import found_in, in_words

    counted = dict.fromkeys(kept.uses, kept.rounds)
    spent = kept.spent(counted)
    worst = max(spent, key=lambda k: spent[k])
    promise = kept.promise
    found = found_in(kept.releases(worst, kept.rounds), neighbours=kept.neighbours)
    noise = sorted(set(kept.noise.values()))
    return {
        "unit": promise.unit,
        "trust": "nobody" if promise.unit == "record" else promise.trust,
        "epsilon": spent[worst],
        "delta": promise.delta,
        "clip": promise.clip,
        "noise": {"least": noise[0], "most": noise[-1]},
        "rounds": rounds,
        "counted": kept.rounds,
        "sampling": kept.sampling(worst),
        "correlated": kept.correlated(worst),
        "neighbours": kept.neighbours,
        "accountant": "pld",
        "found": found,
        "meaning": in_words(spent[worst], promise.delta, promise.unit, found),
        "curve": [{"rounds": t, "epsilon": epsilon} for t, epsilon in kept.curve(worst, rounds)],
    }


def _show(told: dict[str, Any], clip: str) -> None:
    low, high = told["noise"]["least"], told["noise"]["most"]
    noise = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}, by the size of a party"
    rows = {
        "promised to": f"every {told['unit']}, and nobody is trusted"
        if told["trust"] == "nobody"
        else f"every {told['unit']}, where the server is trusted",
        "epsilon, delta": f"{told['epsilon']:.4g}, {told['delta']:g}",
        "noise": f"{noise} times {clip}, "
        + (f"correlated ({kind})" if (kind := told["correlated"]) else "independent"),
        "rounds": f"{told['rounds']}, of which {told['counted']} count for a party at most",
        "samples": told["sampling"],
        "neighbours": told["neighbours"].replace("_", " "),
    }
    about = Table(box=None, show_header=False, pad_edge=False)
    for row in rows.items():
        about.add_row(*row)
    curve = Table(box=None, pad_edge=False)
    curve.add_column("rounds", justify="right")
    curve.add_column("epsilon", justify="right")
    most = max(each["epsilon"] for each in told["curve"]) or 1.0
    for each in told["curve"]:
        bar = "▇" * max(1, round(30 * each["epsilon"] / most))
        curve.add_row(str(each["rounds"]), f"{each['epsilon']:.3g}", bar)
    console = Console()
    console.print(about)
    console.print()
    console.print(curve)
    console.print(f"\n{told['meaning']}", highlight=False, markup=False, soft_wrap=True)
