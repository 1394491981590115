# SPDX-License-Identifier: Apache-2.0
"""A verifiable mean between parties that are each elsewhere: nobody keeps the bulletin, all do.

Every party is one generator, `member`, as in a private mean without proofs
(`aggregation/averaging.py`): what it yields is told to all others, and what they told goes back in.
In each phase parties tell all others the same (`agreement.py`), so that all honest ones hear the
same, whoever lies, falls silent or tells one this and another that. They write it down in one
order, name by name, and the next phase begins: announcements need no signature, since all know when
they come, and every later entry signs their hash. So each party has the same file, and nobody could
change it, or leave anything out of it, for the others.

    hello     32 random bytes of each: this run is no other, and no old word fits into it
    join .. correct     as in `party.py`; who told two things in a phase is accused in the next
    seal      each signs the hash of all that is written

Whoever verifies the file needs as many seals as make sure that one is of an honest party: an honest
party seals what all other honest ones have. Before anybody publishes, all proofs of ranges are
checked; where one is wrong, the bulletin is sealed there, and names who is to be left out.

What is assumed: that what an honest party tells arrives while the others wait for it; `faulty` of
them may do anything. One that is cut off from all honest parties as it publishes, though colluders
hear it, has its terms opened by its neighbours as if it had said nothing (`party.py`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, replace
from hashlib import sha256
from math import floor
from typing import Any

from archipel.errors import BelowQuorum
from archipel.verifiable.agreement import Heard, Said, Twice, tell_all
from archipel.verifiable.bits import proof_bytes
from archipel.verifiable.bulletin import Board, read_line
from archipel.verifiable.following import PHASES, SEAL, Run
from archipel.verifiable.group import POINT, SCALAR
from archipel.verifiable.party import Party
from archipel.verifiable.protocol import answers
from archipel.verifiable.terms import Terms
from archipel.verifiable.verification import wrong_values

Member = Generator[bytes, Said, Board]
_AFTER = dict(zip(PHASES, (*PHASES[1:], SEAL), strict=True))
_NONCE = 32
_ENTRY = 1024  # bytes of an entry besides points and numbers, at most


def member(
    party: Party,
    terms: Terms,
    board: Board,
    dropouts: float = 0.0,
    before: Callable[[str], None] = lambda _: None,
    opens: bool = True,
) -> Member:
    """One party's part, with the bulletin that it writes.

    Parties have numbers in the order of their names. `terms` are as all agreed on them; the nonce
    becomes one of this run alone. `before` is called with the name of each phase before anything
    of it leaves. Where somebody between the parties could keep back what one has published, nobody
    `opens` its terms: then all publish, or there is no mean.
    """
    circle = _Circle(party, terms, faulty(terms, dropouts))
    greeting = secrets.token_bytes(_NONCE)
    heard = yield from circle.tell(terms.nonce.encode(), greeting, terms.parties)
    if heard.told.get(party.name) != greeting:
        raise BelowQuorum("somebody else tells things with this party's key: make a new one.")
    nonces = [heard.told[name] for name in sorted(heard.told) if len(heard.told[name]) == _NONCE]
    nonce = sha256(b"".join([terms.nonce.encode(), *nonces])).hexdigest()
    board.announce("run", terms=replace(terms, nonce=nonce).written(), keeper="")
    run = Run.begin(board.entries[-1], board.lines[-1], {})
    phase = "join"
    accused: list[tuple[str, str, Twice]] = []
    while True:
        if phase == "correct" and run.missing and not opens:
            raise BelowQuorum(
                f"{', '.join(sorted(run.missing))} did not publish, and no mean is without: run it "
                "again, which costs another epsilon."
            )
        before(phase)
        said = [party.accuse(run, *each) for each in accused] + answers(party, run)
        heard = yield from circle.tell(
            run.occasion, b"".join(each.line for each in said), tuple(run.speakers)
        )
        accused = [(name, phase, both) for name, both in sorted(heard.twice.items())]
        _write(run, board, heard)
        if phase == SEAL:
            _announce(run, board, "end")
            return board
        phase = SEAL if phase == "commit" and wrong_values(run) else _AFTER[phase]
        _announce(run, board, "phase", phase=phase)


def faulty(terms: Terms, dropouts: float) -> int:
    """How many parties may lie or vanish."""
    n = len(terms.parties)
    staying = floor(terms.honest * n + 1e-9) - floor(dropouts * n + 1e-9)
    return min(n - staying, n - 2)


def steps(terms: Terms, dropouts: float) -> int:
    """How often each party tells all others something."""
    return (len(PHASES) + 2) * (faulty(terms, dropouts) + 1)


def longest(terms: Terms) -> int:
    """Bytes of what a party says in a phase, at most."""
    n, d = len(terms.parties), terms.size
    commit = POINT * (d * n + 3) + d * (POINT + SCALAR) + proof_bytes(terms.value_bits)
    publish = (POINT + 2 * SCALAR) * d + proof_bytes(terms.noise_bits)
    correct = n * (2 * SCALAR * d)
    return (2 * n + 2) * _ENTRY + 4 * max(commit, publish, correct) // 3  # in base64


@dataclass(frozen=True)
class _Circle:
    """All parties, as one of them tells them something."""

    party: Party
    terms: Terms
    faulty: int

    def tell(
        self, about: bytes, mine: bytes, speakers: Collection[str]
    ) -> Generator[bytes, Said, Heard]:
        keys = {name: bytes.fromhex(key) for name, key in self.terms.parties.items()}
        return tell_all(
            self.party.identity, self.party.name, keys, about, mine,
            speakers=speakers, faulty=self.faulty, longest=longest(self.terms),
        )  # fmt: skip


def _write(run: Run, board: Board, heard: Heard) -> None:
    """Write down what was said, name by name; what its author did not sign for here is nothing."""
    for name in sorted(heard.told):
        for line in heard.told[name].splitlines(keepends=True)[: 2 * len(run.terms.parties) + 2]:
            said = read_line(line)
            if said is None or said.by != name:
                continue
            fault = run.refused(said)
            if fault is None or not fault.of_the_log:
                board.add(said)
                run.take(board.entries[-1], board.lines[-1])


def _announce(run: Run, board: Board, what: str, **body: Any) -> None:
    board.announce(what, **body)
    run.take(board.entries[-1], board.lines[-1])
