# SPDX-License-Identifier: Apache-2.0
"""`archipel average`: a private mean of plain numbers, simulated or between peers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from archipel.cli import options as o
from archipel.cli.logs import say
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archipel.aggregation.averaging import Numbers, Question
    from archipel.federation.numbers import NumbersFile
    from archipel.verifiable.verification import Verdict

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
    peers: Annotated[
        bool, typer.Option("--peers", help="Rehearse: every party a process, with real TLS.")
    ] = False,
    me: Annotated[
        str | None, typer.Option(help="Take part as this one of the file's [[peers]].")
    ] = None,
    home: Annotated[Path, typer.Option(help="The folder with this party's key.")] = Path("average"),
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
    Every party adds noise that cancels with its neighbours', and a little of its own (GOPA). There
    is no coordinator. With [values] of all parties in the file, or --parties, it is a simulation.

    \b
    Examples:
      archipel average numbers.toml --epsilon 1
      archipel average numbers.toml --epsilon 1 --parties 1000
      archipel average numbers.toml --verifiable --bulletin bulletin.jsonl
      archipel average numbers.toml --peers
      archipel average --me bonn --card bonn.example.org:9001
      archipel average numbers.toml --me bonn
      archipel average numbers.toml --me bonn --verifiable --bulletin bulletin.jsonl
    """
    if card is not None:
        _print_card(home, me, card, as_json)
        return
    if file is None:
        raise ArchipelError("NUMBERS.toml: is missing; give the file that says what is averaged.")
    from archipel.federation.numbers import NumbersFile

    read = NumbersFile.read(file, epsilon)
    if [me is not None, peers, parties is not None].count(True) > 1:
        raise ArchipelError("--me, --peers, --parties: give one of them, or none.")
    if verifiable and whole:
        raise ArchipelError("--verifiable: has every message; leave out --whole.")
    if bulletin is not None and not verifiable:
        raise ArchipelError(f"--bulletin {bulletin}: is written with --verifiable; say both.")
    if me is not None:
        told = (
            _proving(read, me, home, bulletin, wait, patience)
            if verifiable
            else _taking_part(read, me, home, wait, patience)
        )
    elif peers:
        told = _rehearsed(read, patience, verifiable, bulletin)
    elif verifiable:
        told = _verifiable(read, parties, bulletin, seed)
    else:
        told = _simulated(read, parties, whole, seed)
    if as_json:
        o.print_json(told)
        return
    _show(told)


def _print_card(home: Path, me: str | None, address: str, as_json: bool) -> None:
    from archipel.federation.peer import average as peer

    if me is None:
        raise ArchipelError("--card: give --me as well, the name of this party.")
    made = peer.card(home, me, address)
    if as_json:
        o.print_json(made._asdict())
    else:
        typer.echo(made.text(), nl=False)  # as a file has it: lines stay lines


def _aside(text: str) -> None:
    say(text, err=True)


def _taking_part(
    file: NumbersFile, me: str, home: Path, wait: float, patience: float
) -> dict[str, Any]:
    import asyncio

    from archipel.federation.peer import average as peer

    found = asyncio.run(peer.take_part(file, me, home, wait, patience, _aside))
    told = _told(file.question, found.estimate, found.parties, len(file.peers), "peers")
    return told | _published(home)


def _proving(
    file: NumbersFile, me: str, home: Path, bulletin: Path | None, wait: float, patience: float
) -> dict[str, Any]:
    import asyncio

    from archipel.federation.peer import average as peer

    path = bulletin if bulletin is not None else home / peer.BULLETIN
    verdict = asyncio.run(peer.prove(file, me, home, path, wait, patience, _aside))
    peer.proved(verdict)
    told = _proved(file.question, verdict, len(file.peers), "proving peers", path)
    return told | _published(home)


def _published(home: Path) -> dict[str, Any]:
    from archipel.federation.peer import average as peer

    spent = [each["epsilon"] for each in peer.published(home)]
    return {"published": {"times": len(spent), "epsilon": sum(spent)}}


def _rehearsed(
    file: NumbersFile, patience: float, verifiable: bool, bulletin: Path | None
) -> dict[str, Any]:
    import asyncio
    from tempfile import TemporaryDirectory

    from archipel.federation.peer import average as peer

    _assure_values(file)
    if bulletin is not None and bulletin.exists():
        raise ArchipelError(f"--bulletin {bulletin}: is there; name a file that is not.")
    with TemporaryDirectory() as folder:
        found = asyncio.run(peer.rehearse(file, Path(folder), patience, verifiable))
        exact = _exact(file.question, [file.values[each] for each in found.parties])
        if not verifiable:
            there, asked = found.parties, len(file.values)
            told = _told(file.question, found.estimate, there, asked, "processes")
            return told | {"exact": exact}
        from archipel.store.files import write
        from archipel.verifiable import verify

        kept = Path(folder) / min(file.values) / peer.BULLETIN
        verdict = verify(kept)
        if bulletin is not None:
            write(bulletin, kept.read_bytes())
    told = _proved(file.question, verdict, len(file.values), "proving processes", bulletin)
    return told | {"exact": exact}


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
    told = _proved(question, verdict, len(names), "verifiable", bulletin)
    return told | {"exact": _exact(question, values)}


def _proved(
    question: Question, verdict: Verdict, asked: int, how: str, bulletin: Path | None
) -> dict[str, Any]:
    """What came of a mean with proofs, as plain values."""
    outcome = verdict.outcomes[-1]
    assert outcome.mean is not None
    told = _told(question, outcome.mean, outcome.counted, asked, how)
    deviation = dict(zip(question.names, outcome.deviation, strict=True))
    told |= {"deviation": deviation, "form": "modular"}
    told |= {"neighbours": outcome.neighbours, "failure": outcome.alone, "spent": outcome.epsilon}
    told |= {"faults": [fault._asdict() for fault in verdict.told]}
    if bulletin is not None:
        told |= {"bulletin": str(bulletin), "head": verdict.head}
    return told


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
    told = _told(question, estimate, tuple(names), len(names), "simulation")
    values = np.array(question.low) + question.unit * x
    return told | {"exact": _exact(question, values)}


def _assure_values(file: NumbersFile) -> None:
    if len(file.values) < 2:
        raise ArchipelError(
            "values: give the numbers of two parties or more to simulate, --parties to draw some, "
            "or --me to take part."
        )


def _exact(question: Question, values: Any) -> dict[str, float]:
    import numpy as np

    return dict(zip(question.names, np.mean(np.array(values), axis=0).tolist(), strict=True))


def _told(
    question: Question,
    estimate: Sequence[float] | Numbers,
    there: tuple[str, ...],
    asked: int,
    how: str,
) -> dict[str, Any]:
    """What came of it, as plain values."""
    from archipel.privacy import gopa

    plan, names, n = question.plan(asked), question.names, len(there)
    aside = question.epsilon, question.delta, n, question.moved
    deviation = question.deviation(plan, n)

    def by_name(values: Any) -> dict[str, float]:
        return dict(zip(names, [float(each) for each in values], strict=True))

    return {
        "how": how,
        "estimate": by_name(estimate),
        "deviation": by_name(deviation),
        "deviation_by_a_trusted_curator": by_name(question.unit * gopa.curator_error(*aside)),
        "deviation_by_everybody_alone": by_name(question.unit * gopa.local_error(*aside)),
        "parties": n,
        "vanished": asked - n,
        "protected": "party" if question.contribution is None else "person",
        "epsilon": question.epsilon,
        "delta": question.delta,
        "honest": question.honest,
        "dropouts": question.dropouts,
        "form": plan.form,
        "neighbours": plan.neighbours,
        "failure": plan.failure,
        "revealed": _revealed(question, plan.neighbours, plan.form, asked),
    }


def _revealed(question: Question, neighbours: int, form: str, parties: int) -> str:
    """What every party has shown of its numbers, in a sentence."""
    share = f"{1 - question.honest:.0%}"
    hidden = "which are uniform by themselves" if form == "modular" else "hidden by pairwise noise"
    return (
        f"every party showed {len(question.names)} number(s), {hidden}: with all others' they tell "
        f"the noisy sum, and no more, as long as at most {share} of the {parties} collude"
    )


def _show(told: dict[str, Any]) -> None:
    how = {
        "simulation": "simulated",
        "verifiable": "simulated, with all proofs",
        "peers": "between peers",
        "processes": "between processes of this machine",
        "proving peers": "between peers, with all proofs",
        "proving processes": "between processes of this machine, with all proofs",
    }[told["how"]]
    say(f"Mean of {told['parties']} parties, {how}")
    for name, value in told["estimate"].items():
        exact = f"; exactly {told['exact'][name]:.6g}" if "exact" in told else ""
        say(f"  {name}: {value:.6g} ± {told['deviation'][name]:.3g}{exact}")
    first = next(iter(told["estimate"]))
    say(
        f"  ± is one deviation of the noise; a trusted curator has "
        f"{told['deviation_by_a_trusted_curator'][first]:.3g} of {first}, everybody alone "
        f"{told['deviation_by_everybody_alone'][first]:.3g}"
    )
    promised = f"epsilon {told['epsilon']:g}, delta {told['delta']:g}"
    say(f"Promised: {promised}, to every {told['protected']}")
    say(f"Revealed: {told['revealed']}")
    if told["vanished"]:
        say(f"Vanished: {told['vanished']} parties, whose numbers are not in the mean")
    for fault in told.get("faults", []):
        say(f"Left out: {fault['party']}: {fault['kind']}: {fault['detail']}")
    if "bulletin" in told:
        say(f"Written: {told['bulletin']}, whose last line has the hash {told['head']}")
    if "published" in told:
        spent = told["published"]
        say(f"This party has published {spent['times']} times, epsilon {spent['epsilon']:g} in all")
