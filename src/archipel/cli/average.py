# SPDX-License-Identifier: Apache-2.0
"""`archipel average`: a private mean of plain numbers, simulated or between peers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archipel.cli import options as o
from archipel.cli.averaged import exact, proved, show, told_of, trusted
from archipel.errors import ArchipelError, unknown

if TYPE_CHECKING:
    from archipel.aggregation.averaging import Numbers
    from archipel.federation.numbers import NumbersFile

_TRUST = {  # as in [privacy] of a study; reports are also called by what is done to them
    "sum": "sum", "server": "server", "shuffler": "shuffler", "nobody": "nobody",
    "shuffled": "shuffler",
}  # fmt: skip

File = Annotated[
    Path | None,
    typer.Argument(metavar="NUMBERS.toml", help="What is averaged.", show_default=False),
]


def average(
    file: File = None,
    epsilon: Annotated[
        float | None, typer.Option(help="What is promised, in place of the file's own.")
    ] = None,
    parties: Annotated[
        int | None, typer.Option(min=2, help="Simulate so many, whose numbers are drawn.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Simulate every message, not the sum alone.")
    ] = False,
    trust: Annotated[
        str,
        typer.Option(help="Simulate who is trusted: sum (GOPA), server, shuffler or nobody."),
    ] = "sum",
    peers: Annotated[
        bool, typer.Option("--peers", help="Rehearse: every party a process, with real TLS.")
    ] = False,
    me: Annotated[
        str | None, typer.Option(help="Take part as this one of the file's [[peers]].")
    ] = None,
    home: Annotated[Path, typer.Option(help="The folder with this party's key.")] = Path("average"),
    site: Annotated[
        Path | None,
        typer.Option(help="Take part as the site of this folder, through its coordinator."),
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="The table that a site's numbers come from: it is charged.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to it without being asked.")] = False,
    card: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Print what the others need of --me.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=1.0, help="Seconds that the others are waited for at first.")
    ] = 600.0,
    patience: Annotated[
        float, typer.Option(min=1.0, help="Seconds that one is waited for later on.")
    ] = 60.0,
    verifiable: Annotated[
        bool, typer.Option("--verifiable", help="With proofs that anybody can verify.")
    ] = False,
    bulletin: Annotated[
        Path | None, typer.Option(help="With --verifiable: the file for all that is said.")
    ] = None,
    seed: Annotated[int, typer.Option(help="All randomness of a simulation.")] = 0,
    as_json: o.Json = False,
) -> None:
    """Find the mean of numbers that nobody shows to anybody, with a promise of privacy.

    \b
    Every party adds noise that cancels with its neighbours', and a little of its own (GOPA). With
    [values] of all parties in the file, or --parties, it is a simulation. Peers (--me) talk to each
    other; sites (--site) talk through their coordinator, and their policy and ledger hold.

    \b
    Examples:
      archipel average numbers.toml --epsilon 1
      archipel average numbers.toml --epsilon 1 --parties 1000
      archipel average numbers.toml --epsilon 1 --parties 1000 --trust shuffler
      archipel average numbers.toml --verifiable --bulletin bulletin.jsonl
      archipel average numbers.toml --peers
      archipel average --me bonn --card bonn.example.org:9001
      archipel average numbers.toml --me bonn
      archipel average numbers.toml --me bonn --verifiable --bulletin bulletin.jsonl
      archipel average --site bonn
      archipel average numbers.toml --site bonn --table admissions.csv
    """
    if file is None and (card is not None or site is not None):
        from archipel.cli import averaging

        if site is not None:
            averaging.print_seat(site, as_json)
        else:
            averaging.print_card(home, me, str(card), as_json)
        return
    if file is None:
        raise ArchipelError("NUMBERS.toml: is missing; give the file that says what is averaged.")
    from archipel.federation.numbers import NumbersFile

    read = NumbersFile.read(file, epsilon)
    if [me is not None, peers, parties is not None, site is not None].count(True) > 1:
        raise ArchipelError("--me, --site, --peers, --parties: give one of them, or none.")
    if verifiable and whole:
        raise ArchipelError("--verifiable: has every message; leave out --whole.")
    if bulletin is not None and not verifiable:
        raise ArchipelError(f"--bulletin {bulletin}: is written with --verifiable; say both.")
    if table is not None and me is None and site is None:
        raise ArchipelError(f"--table {table}: is charged in a site's ledger; give --site.")
    trust = _TRUST.get(trust, trust)
    if trust not in _TRUST.values():
        raise unknown("--trust", trust, sorted({*_TRUST.values()}))
    real = me is not None or site is not None or peers
    if trust != "sum" and (real or verifiable or whole):
        raise ArchipelError(
            f"--trust {trust}: is simulated, to compare; leave out --me, --site, --peers, --whole "
            "and --verifiable."
        )
    if real:
        given = {"bulletin": bulletin, "verifiable": verifiable, "table": table, "yes": yes}
        told = _between(read, me, site, home, wait, patience, given)
    elif verifiable:
        told = _verifiable(read, parties, bulletin, seed)
    elif trust == "sum":
        told = _simulated(read, parties, whole, seed)
    else:
        told = _trusting(read, parties, trust, seed)
    if as_json:
        o.print_json(told)
        return
    show(told)


def _between(
    file: NumbersFile,
    me: str | None,
    site: Path | None,
    home: Path,
    wait: float,
    patience: float,
    given: dict[str, Any],
) -> dict[str, Any]:
    """Institutions, or processes that stand for them."""
    from archipel.cli import averaging

    if site is not None:
        return averaging.through_coordinator(file, site, wait, patience, **given)
    if me is not None:
        return averaging.taking_part(file, me, home, wait, patience, **given)
    _assure_values(file)
    return averaging.rehearsed(file, patience, given["verifiable"], given["bulletin"])


def _numbers(file: NumbersFile, parties: int | None, seed: int) -> tuple[list[str], Numbers]:
    """Who is simulated, with numbers in units."""
    import numpy as np

    from archipel.rng import generator

    question = file.question
    if parties is None:
        _assure_values(file)
        names = sorted(file.values)
        return names, np.stack([question.scaled(file.values[name], name) for name in names])
    low, high = np.array(question.low), np.array(question.high)
    drawn = generator(seed, "numbers").random((parties, len(low)))
    return [f"party {k}" for k in range(parties)], drawn * (high - low) / question.unit


def _verifiable(
    file: NumbersFile, parties: int | None, bulletin: Path | None, seed: int
) -> dict[str, Any]:
    from archipel.verifiable import run

    question = file.question
    names, x = _numbers(file, parties, seed)
    question.plan(len(names))  # what cannot be promised is refused before anything is written
    values = question.low + question.unit * x
    verdict = run(
        {name: row.tolist() for name, row in zip(names, values, strict=True)},
        bulletin, names=question.names, low=question.low, high=question.high,
        contribution=question.contribution, epsilon=question.epsilon, delta=question.delta,
        honest=question.honest, dropouts=question.dropouts, neighbours=question.neighbours,
    )  # fmt: skip
    assert verdict.right, verdict.told  # whoever is simulated keeps to the protocol
    told = proved(question, verdict, len(names), "verifiable", bulletin)
    return told | {"exact": exact(question, values)}


def _simulated(file: NumbersFile, parties: int | None, whole: bool, seed: int) -> dict[str, Any]:
    import numpy as np

    from archipel.aggregation import averaging
    from archipel.privacy.sources import Simulated
    from archipel.rng import generator

    question = file.question
    names, x = _numbers(file, parties, seed)
    plan = question.plan(len(names))
    if whole:
        keys = generator(seed, "keys")
        members = {
            j: averaging.member(
                question, plan, j, row, keys.bytes(32), Simulated(seed, 0, [j], "average")
            )
            for j, row in enumerate(x)
        }
        estimate = averaging.estimate(question, plan, averaging.together(members)[0][0])
    else:
        source = Simulated(seed, 0, range(len(names)), "average")
        estimate = averaging.simulated(question, plan, x, source)[0]
    told = told_of(question, estimate, tuple(names), len(names), "simulation")
    values = np.array(question.low) + question.unit * x
    return told | {"exact": exact(question, values)}


def _trusting(file: NumbersFile, parties: int | None, trust: str, seed: int) -> dict[str, Any]:
    from typing import cast

    from archipel.aggregation import trusting

    question = file.question
    names, x = _numbers(file, parties, seed)
    values = question.low + question.unit * x
    found = trusting.mean(cast("trusting.Trusted", trust), question, values, seed)
    return trusted(question, found, trust, len(names)) | {"exact": exact(question, values)}


def _assure_values(file: NumbersFile) -> None:
    if len(file.values) < 2:
        raise ArchipelError(
            "values: give the numbers of two parties or more to simulate, --parties to draw some, "
            "or --me to take part."
        )
