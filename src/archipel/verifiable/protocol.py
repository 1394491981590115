# SPDX-License-Identifier: Apache-2.0
"""A verifiable mean among parties that are all here: the protocol with its real cryptography.

The keeper announces a phase, parties answer, and all go by the bulletin. Between institutions the
same `Party` answers, and there is no keeper (`peers.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from archipel.errors import ArchipelError
from archipel.federation.certificates import Identity
from archipel.verifiable.bulletin import Board, Entry, Fault, chained
from archipel.verifiable.following import PHASES, Earlier, Run
from archipel.verifiable.party import Party
from archipel.verifiable.terms import Terms, agreed
from archipel.verifiable.verification import Verdict, checked, log_faults, remember, runs_of

Absent = Mapping[str, str]  # a party that drops out, and the phase that it misses first


def run(
    values: Mapping[str, float | Sequence[float]],
    bulletin: str | Path | None = None,
    dropping: Absent | None = None,
    **terms: Any,
) -> Verdict:
    """The mean of what parties have, and what anybody can check of it.

    `values` has a number or a list of numbers for each party; `terms` are those of `agreed`: names,
    low, high, contribution, bits, whole, one_hot, epsilon, delta, honest, dropouts, neighbours,
    data. `dropping` says who drops out, and at which phase.

    >>> verdict = run({"a": 0.25, "b": 0.5, "c": 0.75}, epsilon=8.0, honest=1.0)
    >>> verdict.right, len(verdict.outcomes[0].counted)
    (True, 3)
    """
    parties = [Party(name, each if isinstance(each, Sequence) else (each,))
               for name, each in values.items()]  # fmt: skip
    size = {len(party.values) for party in parties}
    if len(size) != 1:
        raise ArchipelError(f"values of {sorted(size)} numbers: every party has as many.")
    count = size.pop()
    terms = {"names": [f"value {i + 1}" for i in range(count)] if count > 1 else ["value"], **terms}
    board = Board(Identity.create(), Path(bulletin) if bulletin is not None else None)
    data = str(terms.get("data", ""))
    roster = {party.name: party.identity.public.hex() for party in parties}
    try:
        if data and any(each.terms.data == data for each in runs_on(board)):
            raise ArchipelError(
                f"data = {data!r}: '{bulletin}' has a run on it, and these parties do not have "
                "what they committed to there; call it another name, or use `among` with the same "
                "parties."
            )
        among(parties, board, agreed(roster, secrets.token_hex(16), **terms), dropping or {})
    finally:
        board.close()
    return checked(board.entries, board.lines)


def among(parties: Sequence[Party], board: Board, terms: Terms, dropping: Absent) -> Run:
    """One run on a board, which may have others already.

    All parties go by the bulletin as it was when the phase began. One that is not as it was written
    is refused, and stays as it is.
    """
    earlier: Earlier = {}
    remember(earlier, runs_on(board))
    keeper = "" if board.keeper is None else board.keeper.public.hex()
    board.announce("run", terms=terms.written(), keeper=keeper)
    run = Run.begin(board.entries[-1], board.lines[-1], earlier)
    there = list(parties)
    for phase in PHASES:
        if phase != "join":
            board.announce("phase", phase=phase)
            run.take(board.entries[-1], board.lines[-1])
        there = [party for party in there if dropping.get(party.name) != phase]
        for said in [said for party in there for said in answers(party, run)]:
            board.add(said)
            run.take(board.entries[-1], board.lines[-1])
    board.announce("end")
    run.take(board.entries[-1], board.lines[-1])
    return run


def runs_on(board: Board) -> list[Run]:
    """The runs that a board has, each whole; a board on which no other can follow is refused."""
    broken = chained(board.entries, board.lines)
    faults: list[Fault] = [] if broken is None else [broken]
    runs = [] if faults else runs_of(board.entries, board.lines, faults)
    faults += [fault for run in runs for fault in log_faults(run)]
    if faults:
        fault = faults[0]
        raise ArchipelError(
            f"'{board.path or 'the bulletin'}': {fault.kind}: {fault.detail}; nothing was added to "
            "it: get an unchanged copy, or name a new file."
        )
    return runs


def answers(party: Party, run: Run) -> list[Entry]:
    """What a party says in this phase, if it is in."""
    match run.phase:
        case "join":
            return [party.join(run)]
        case "commit" if party.name in run.joined:
            return [party.commit(run)]
        case "reveal" if party.name in run.committed:
            return [*party.disputes(run), party.reveal(run)]
        case "publish" if party.name in run.active:
            return [party.publish(run)]
        case "correct" if party.name in run.published:
            return party.corrections(run)
        case "seal" if party.name in run.joined:
            return [party.seal(run)]
    return []
