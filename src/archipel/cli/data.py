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
_ROSTER = 10_000  # listed for a program


def data(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA|STUDY.toml | shard DATA|STUDY.toml DIR",
            help="A dataset, a table, a folder, or a study's; with shard, where to write it.",
        ),
    ],
    partition: o.Partition = None,
    parties: o.Parties = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    plot: Annotated[Path | None, typer.Option(help="Draw who has which targets.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Look at every byte of a folder of shards.")
    ] = False,
    shard_mb: Annotated[
        int, typer.Option(min=1, help="Megabytes of points in a shard, at most.")
    ] = 256,
    as_json: o.Json = False,
) -> None:
    """Show what a federation's data is: parties, sizes, targets, and of a table every column.

    `shard` writes it to a new folder of memory-mapped shards, some parties at a time, from which
    `data.folder` reads it.

    \b
    Examples:
      archipel data heart_disease
      archipel data mnist --partition dirichlet:0.3 --parties 20 --plot labels.png
      archipel data patients.csv --set data.by=hospital --set data.target=died
      archipel data shard crowd crowd-shards --parties 1000000
      archipel data crowd-shards --check
    """
    from archipel.study.loading import account_of, is_written

    source, to = _asked(what)
    is_study = source.endswith(".toml")
    study = o.study_of_flags(
        source if is_study else None,
        data=None if is_study else source,
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
    if to is not None:
        _shard(fed, to, shard_mb << 20, as_json)
        return
    if check:
        if not is_written(study.data, study.base):
            raise ArchipelError(f"--check: '{source}' is no folder of shards; leave it out.")
        type(fed).open(study.base / str(study.data.folder), scan=False, check=True)
    found = account_of(study.data, study.base)
    if plot is not None:
        with o.writing(plot):
            fed.plot(plot)
    if as_json:
        told = {} if found is None else _told(found) | {"target": _target(fed)}
        told |= {"plot": None if plot is None else str(plot)} | ({"checked": True} if check else {})
        o.print_json(_facts(fed) | told)
        return
    print(lines(fed.summary()))
    if check:
        print("every byte is as it was written")
    if found is not None:
        print()
        _show_columns(found)
        _show_target(fed, found)
        _show_parties(fed)
    if plot is not None:
        print(clean(f"drawn: {plot}"))


def _asked(what: list[str]) -> tuple[str, Path | None]:
    """Whose data it is, and where it is to be written."""
    if what[0] == "shard":
        if len(what) != 3:
            raise ArchipelError("shard: name the data and a new folder, 'shard DATA DIR'.")
        return what[1], Path(what[2])
    if len(what) != 1:
        raise ArchipelError(f"'{what[1]}': name one dataset, table, folder or study.")
    return what[0], None


def _shard(fed: Federation, to: Path, size: int, as_json: bool) -> None:
    from archipel.data import shards

    shards.write(fed, to, size)
    count = len(shards.Shards(to).manifest["shards"])
    if as_json:
        o.print_json({"folder": str(to), "shards": count, **_facts(fed)})
        return
    print(clean(f"{fed!r}"))
    print(clean(f"written: {to}, {count} shard{'' if count == 1 else 's'}"))


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
            for k, (n, m) in enumerate(
                zip(fed.n[:_ROSTER].tolist(), fed.n_test[:_ROSTER].tolist(), strict=True)
            )
        ],
        "source": fed.about.source,
        "licence": fed.about.licence,
        "cite": fed.about.citation,
    }
