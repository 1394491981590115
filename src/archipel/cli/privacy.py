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
from archipel.cli.picture import picture

if TYPE_CHECKING:
    from archipel.privacy.promise import Kept

app = typer.Typer(
    help="What is promised of privacy, and what was spent of it.", no_args_is_help=True
)
StudyFile = Annotated[
    Path, typer.Argument(metavar="STUDY.toml", help="A study file.", show_default=False)
]

app.command()(ledger)
app.command()(picture)


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
    from archipel.engines.local.engine import LocalEngine
    from archipel.engines.utility import bounded
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
    if engine.kept.wakes and isinstance(engine, LocalEngine):
        told["utility"] = bounded(engine, loop.runs[0].rounds)
    if as_json:
        o.print_json(told)
        return
    _show(told, read.promise.clip_in_words)


def planned(kept: Kept, rounds: int) -> dict[str, Any]:
    """What a promise costs, as plain values."""
    from archipel.privacy.meaning import found_in, in_words
    from archipel.scorecard.at_sites import NOT_COVERED

    counted = dict.fromkeys(kept.uses, kept.rounds)
    spent = kept.spent(counted)
    worst = max(spent, key=lambda k: spent[k])
    promise = kept.promise
    found = found_in(kept.releases(worst, kept.rounds), neighbours=kept.neighbours)
    noise = sorted(set(kept.noise.values()))
    most = kept.rounds if kept.wakes else rounds
    return {
        "unit": promise.unit,
        "trust": "nobody" if promise.unit == "record" else promise.trust,
        "epsilon": spent[worst],
        "delta": promise.delta,
        "clip": promise.clip,
        "mechanism": promise.mechanism,
        "wakes": kept.wakes,
        "composition": _composed(kept, worst),
        "noise": {"least": noise[0], "most": noise[-1]},
        "rounds": rounds,
        "counted": kept.rounds,
        "sampling": kept.sampling(worst),
        "correlated": kept.correlated(worst),
        "neighbours": kept.neighbours,
        "accountant": "pld",
        "found": found,
        "not_covered": NOT_COVERED,
        "meaning": in_words(spent[worst], promise.delta, promise.unit, found),
        **({} if kept.counted is None else {"shares": _shares(kept, worst)}),
        "curve": [{"rounds": t, "epsilon": epsilon} for t, epsilon in kept.curve(worst, most)],
    }


def _composed(kept: Kept, k: int) -> dict[str, float] | None:
    """What closed forms say beside the accountant; None where they say nothing."""
    from archipel.privacy.composition import composed

    found = composed(kept.releases(k, kept.rounds), kept.promise.delta, kept.neighbours)
    return None if found is None else {**found._asdict(), "least": found.least}


def _shares(kept: Kept, k: int) -> dict[str, Any]:
    """How noise is shared out, and what the promise costs with all parties' noise in the sum."""
    from archipel.privacy.accounting import epsilon
    from archipel.privacy.release import Release

    noise = kept.noise[k]
    shares = [use.share for use in kept.uses[k] if use.share is not None]
    codes = [share.encoding(noise) for share in shares]
    most = max(shares[0].parties - 1, shares[0].counted)
    full = [Release(share.mechanism(noise, most), None, kept.rounds) for share in shares]
    return {
        "kind": kept.promise.shares,
        "honest": kept.counted,
        "parties": shares[0].parties,
        "epsilon_of_all": epsilon(full, kept.promise.delta, neighbours=kept.neighbours),
        "bits": kept.promise.bits,
        "deviation": [share.variance(noise) ** 0.5 / code.scale
                      for share, code in zip(shares, codes, strict=True)],
        "longer": max(code.longer for code in codes),
        "wraps": max(code.wraps(share.variance(noise))
                     for share, code in zip(shares, codes, strict=True)),
    }  # fmt: skip


_PROMISED = {
    "server": "every {unit}, where the server is trusted",
    "sum": "every {unit}, where sums alone are seen, the server's included",
    "shuffler": "every {unit}, where the shuffler does not work with the server",
    "nobody": "every {unit}, and nobody is trusted",
}


def _show(told: dict[str, Any], clip: str) -> None:
    low, high = told["noise"]["least"], told["noise"]["most"]
    noise = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}, by the size of a party"
    rows = {
        "promised to": _PROMISED[told["trust"]].format(unit=told["unit"]),
        "epsilon, delta": f"{told['epsilon']:.4g}, {told['delta']:g}",
        "noise": f"{noise} times {clip}",
        **({"correlated": f"over rounds, {kind}"} if (kind := told["correlated"]) else {}),
        "rounds": f"{told['rounds']}, of which {told['counted']} count for a party at most",
        "samples": told["sampling"]
        + "; between institutions all know who is asked, and none is counted"
        * ("fixed size" in told["sampling"]),
        "neighbours": told["neighbours"].replace("_", " "),
    }
    if told["mechanism"] == "laplace":
        rows["noise"] = f"Laplace, {rows['noise']}"
    if told["wakes"]:
        rows["rounds"] = f"{told['rounds']}, and {told['counted']} wake-ups that a party pays for"
    if found := told["composition"]:
        rows["composition"] = (
            f"ε is {found['sum']:.4g} by the sum, {min(found['optimal'], found['kairouz']):.4g} by "
            f"Kairouz's theorem, {found['pld']:.4g} by loss distributions: the least counts"
        )
    if found := told.get("utility"):
        rows["utility"] = (
            f"Q - Q* is {found['start'] + found['noise']:.3g} at most on average, "
            f"{found['noise']:.3g} of it for noise, if no gradient is longer than the clip"
        )
        if found["gained"] > 1.01:
            rows["allocation"] = (
                "with more of the budget for later wake-ups, noise would cost "
                f"{found['gained']:.3g} times less"
            )
        if found["best"]:
            rows["fewer wake-ups"] = f"the bound is least with {found['best']} of them"
    if shares := told.get("shares"):
        rows["honest"] = (
            f"{shares['honest']} parties of every sum, at least; with the noise of all "
            f"{shares['parties']} but one ε is {shares['epsilon_of_all']:.3g}"
        )
        rows["integers"] = (
            f"{shares['bits']} bits; rounding makes uploads {shares['longer'] - 1:.2g} longer, a "
            f"number wraps with a chance of {shares['wraps']:.1g} at most"
        )
    about = Table(box=None, show_header=False, pad_edge=False)
    for row in rows.items():
        about.add_row(*row)
    curve = Table(box=None, pad_edge=False)
    curve.add_column("wake-ups" if told["wakes"] else "rounds", justify="right")
    curve.add_column("epsilon", justify="right")
    most = max(each["epsilon"] for each in told["curve"]) or 1.0
    for each in told["curve"]:
        bar = "▇" * max(1, round(30 * each["epsilon"] / most))
        curve.add_row(str(each["rounds"]), f"{each['epsilon']:.3g}", bar)
    console = Console()
    console.print(about)
    console.print()
    console.print(curve)
    said = f"\n{told['meaning']} Not covered: {told['not_covered']}."
    console.print(said, highlight=False, markup=False, soft_wrap=True)
