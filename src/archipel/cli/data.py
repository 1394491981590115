# SPDX-License-Identifier: Apache-2.0
"""`archipel data`: whose data it is, and what becomes of every column of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from archipel.cli import options as o
from archipel.cli.listing import lines
from archipel.cli.logs import say, show, table
from archipel.errors import ArchipelError, clean

if TYPE_CHECKING:
    from archipel.data.account import Account, Entry
    from archipel.data.federation import Federation

_PARTIES = 30  # listed one by one


def data(
    what: Annotated[
        str, typer.Argument(metavar="DATA|STUDY.toml", help="A dataset, a table, or a study's.")
    ],
    partition: o.Partition = None,
    parties: o.Parties = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who has which targets.")] = None,
    as_json: o.Json = False,
) -> None:
    """Show what a federation's data is: parties, sizes, targets, and of a table every column.

    \b
    Examples:
      archipel data heart_disease
      archipel data mnist --partition dirichlet:0.3 --parties 20 --plot labels.png
      archipel data patients.csv --set data.by=hospital --set data.target=died
    """
    from archipel.study.loading import account_of

    is_study = what.endswith(".toml")
    study = o.study_of_flags(
        what if is_study else None,
        data=None if is_study else what,
        partition=partition,
        parties=parties,
        seed=seed,
        sets=sets,
    )
    try:
        fed = study.federation()
    except ArchipelError as error:
        if study.data.schema is None and (found := account_of(study.data, study.base)) is not None:
            _refused(found, str(error), as_json)
        raise
    found = account_of(study.data, study.base)
    if plot is not None:
        with o.writing(plot):
            fed.plot(plot)
    if as_json:
        told = {} if found is None else _told(found) | {"target": _target(fed)}
        o.print_json(_facts(fed) | told | {"plot": None if plot is None else str(plot)})
        return
    print(lines(fed.summary()))
    if found is not None:
        print()
        _show_columns(found)
        _show_target(fed, found)
        _show_parties(fed)
    if plot is not None:
        print(clean(f"drawn: {plot}"))


def _refused(found: Account, why: str, as_json: bool) -> None:
    """Show what is in a table that cannot be used as it is."""
    if as_json:
        o.print_json({"refused": why} | _told(found))
    else:
        _show_columns(found)


def _show_columns(found: Account) -> None:
    shown = table("column", "kind", "empty", "values, or least / median / most", "becomes")
    for each in found.columns:
        style = "red" if each.refused else "" if each.features else "dim"
        cells = [each.name, each.kind, str(each.missing or ""), _content(each), _becomes(each)]
        shown.add_row(*(Text(clean(cell), style) for cell in cells))
    shown.columns[2].justify = "right"
    show(shown)


def _content(column: Entry) -> str:
    if column.kind == "category":
        from archipel.data.account import some

        return some(column.values)
    return " / ".join(q if isinstance(q, str) else f"{q:.6g}" for q in column.range)


def _becomes(column: Entry) -> str:
    return f"REFUSED: {column.becomes}" if column.refused else column.becomes


def _show_target(fed: Federation, found: Account) -> None:
    """What is predicted, and how it falls."""
    how = "guessed; data.task says it" if found.guessed else "as said"
    print()
    say(f"{fed.task} ({how}), {fed.x.shape[1]} features")
    for name, counts in _target(fed).items():
        total = sum(counts.values()) if fed.classes else len(fed.y)
        form = "{0} in {1} rows ({2:.1%})" if fed.classes else "{0} {1:.6g}"
        shown = [form.format(value, count, count / total) for value, count in counts.items()]
        say(f"{name}: {', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}")
    for note in found.notes:
        if note not in fed.about.note:  # which is shown above
            say(note)


def _target(fed: Federation) -> dict[str, dict[str, float]]:
    """Of each target its classes and their rows, or what is known of its numbers."""
    schema = fed.features.schema
    assert schema is not None  # of a table
    if fed.classes:
        counts = fed.y.bincount(minlength=fed.classes).tolist()
        values = map(str, schema.targets[0].values)
        return {schema.targets[0].name: dict(zip(values, counts, strict=True))}
    columns = fed.y.double().reshape(len(fed.y), -1).T
    return {
        column.name: {
            "least": float(y.min()),
            "median": float(y.quantile(0.5)),
            "most": float(y.max()),
            "mean": float(y.mean()),
        }
        for column, y in zip(schema.targets, columns, strict=True)
    }


def _show_parties(fed: Federation) -> None:
    if fed.parties > _PARTIES:
        return
    shown = table("party", "training rows", "test rows")
    for k, (n, m) in enumerate(zip(fed.n.tolist(), fed.n_test.tolist(), strict=True)):
        new = " (new)" if k >= fed.training else ""
        shown.add_row(Text(clean(fed.name(k) + new)), str(n), str(m))
    for column in shown.columns[1:]:
        column.justify = "right"
    print()
    show(shown)


def _told(found: Account) -> dict[str, Any]:
    """What is said of a table, for a program."""
    return {
        "rows": found.rows,
        "columns": [each._asdict() for each in found.columns],
        "task": found.task,
        "task_guessed": found.guessed,
        "notes": list(found.notes),
    }


def _facts(fed: Federation) -> dict[str, Any]:
    return {
        "name": fed.about.name,
        "parties": fed.parties,
        "training_parties": fed.training,
        "training_points": int(fed.n.sum()),
        "test_points": int(fed.n_test.sum()),
        "task": fed.task,
        "classes": fed.classes,
        "shape": list(fed.shape),
        "roster": [
            {"party": fed.name(k), "training_points": n, "test_points": m}
            for k, (n, m) in enumerate(zip(fed.n.tolist(), fed.n_test.tolist(), strict=True))
        ],
        "source": fed.about.source,
        "licence": fed.about.licence,
        "cite": fed.about.citation,
    }
