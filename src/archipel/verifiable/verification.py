# SPDX-License-Identifier: Apache-2.0
"""What anybody can check of a bulletin, offline: all proofs at once, and who lied if one is wrong.

Every signature, hash and form is checked first (`following.py`). Then each party's claims become
equations, and all equations of all parties one sum of multiples (`equations.py`). If that is not
the identity, halving finds the claims that are wrong; each has the party's name and what it is
about. Where the file itself is not as it was written, nobody is charged: a line that was changed,
left out or put in makes wrong what honest parties say after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from archipel.errors import ArchipelError
from archipel.privacy.accounting import Release, epsilon
from archipel.verifiable import bits
from archipel.verifiable.bulletin import CHANGED, CUT, START, Entry, Fault, chained, read
from archipel.verifiable.commitments import opened
from archipel.verifiable.equations import Equation, wrong
from archipel.verifiable.following import Earlier, Run, same_data
from archipel.verifiable.group import BASE, BLINDING, ORDER
from archipel.verifiable.party import noise_rows, opposite, value_rows
from archipel.verifiable.transcript import Transcript


class Claim(NamedTuple):
    """Something that a party proves."""

    fault: Fault  # what is said of it if the proof is wrong
    equations: Sequence[Equation]


@dataclass(frozen=True)
class Outcome:
    """What a run's entries show."""

    data: str
    names: tuple[str, ...]  # of each party's numbers
    keeper: str  # Ed25519 public key, in hexadecimal
    parties: int  # that were asked
    counted: tuple[str, ...]  # whose values are in the mean
    dropped: tuple[str, ...]
    mean: tuple[float, ...] | None  # None if it does not follow from the entries
    deviation: tuple[float, ...]
    epsilon: float
    delta: float
    honest: float
    protected: str  # "person", or "party" with all its people
    faults: tuple[Fault, ...]
    neighbours: int  # that each party picked
    release: Release | None  # of the sum, as accountants see it
    alone: float  # part of delta for a graph that leaves honest parties alone
    sealed: tuple[str, ...] = ()  # who signed all of it, where there is no keeper


@dataclass(frozen=True)
class Verdict:
    """What a bulletin shows."""

    outcomes: tuple[Outcome, ...]
    faults: tuple[Fault, ...]  # of the file itself
    entries: int
    head: str  # hash of the last line

    @property
    def told(self) -> list[Fault]:
        """All faults: of the file, and of every run."""
        return [*self.faults, *(fault for each in self.outcomes for fault in each.faults)]

    @property
    def right(self) -> bool:
        return not self.told

    @property
    def together(self) -> dict[str, float]:
        """ε of all runs on the same data, at the largest delta, where there are several."""
        found = {}
        for data in dict.fromkeys(each.data for each in self.outcomes):
            runs = [each for each in self.outcomes if each.data == data]
            releases = [each.release for each in runs if each.release is not None]
            left = max(each.delta for each in runs) - sum(each.alone for each in runs)
            if len(runs) > 1:
                right = len(releases) == len(runs) and left > 0
                found[data] = epsilon(releases, left) if right else inf
        return found


def verify(bulletin: str | Path, head: str | None = None) -> Verdict:
    """Check a whole bulletin; `head` is the hash of a line that somebody kept."""
    path = Path(bulletin)
    entries, lines, faults = [], [], []
    try:
        for said, line in read(path):
            entries.append(said)
            lines.append(line)
    except ArchipelError as error:
        if not path.is_file():
            raise
        faults.append(Fault("", CHANGED, _said(error)))
    return checked(entries, lines, faults, head)


def checked(
    entries: Sequence[Entry],
    lines: Sequence[bytes],
    faults: Sequence[Fault] = (),
    head: str | None = None,
) -> Verdict:
    """Check the entries of a bulletin, with what reading it showed."""
    found = list(faults)
    broken = chained(entries, lines)
    if broken is not None:
        found.append(broken)
    hashes = [sha256(line).hexdigest() for line in lines]
    if head is not None and head not in hashes:
        kept = f"no line has the hash {head[:16]}...: the log was cut or written anew"
        found.append(Fault("", CUT, kept))
    runs = [] if found else runs_of(entries, lines, found)
    if not runs and not found:
        found.append(Fault("", CUT, "there is no run"))
    outcomes = tuple(outcome(run) for run in runs)
    return Verdict(outcomes, tuple(found), len(lines), hashes[-1] if hashes else START)


def runs_of(entries: Sequence[Entry], lines: Sequence[bytes], faults: list[Fault]) -> list[Run]:
    """All runs, each followed to its end."""
    runs: list[Run] = []
    earlier: Earlier = {}
    for said, line in zip(entries, lines, strict=True):
        if said.what == "run":
            remember(earlier, runs[-1:])
            try:
                runs.append(Run.begin(said, line, earlier))
                _same_scale(runs)
            except ArchipelError as error:
                faults.append(Fault("", "malformed", _said(error)))
                break
        elif runs:
            runs[-1].take(said, line)
        else:
            faults.append(Fault("", CUT, "it does not begin with a run"))
            break
    return runs


def _said(error: ArchipelError) -> str:
    """An error's sentence as a part of another."""
    return str(error).rstrip(".")


def _same_scale(runs: Sequence[Run]) -> None:
    """A fault of the keeper's where runs on the same data cannot be compared."""
    last = runs[-1]
    for run in runs[:-1]:
        if run.terms.data == last.terms.data != "" and same_data(run.terms) != same_data(
            last.terms
        ):
            detail = f"data {last.terms.data!r} is on another scale than in an earlier run"
            last.faults.append(Fault("", "changed data", detail))
            return


def remember(earlier: Earlier, runs: Sequence[Run]) -> None:
    """Keep the last commitments of every party to the same data, where it has a name."""
    for run in runs:
        if not run.terms.data:
            continue
        known = earlier.setdefault(same_data(run.terms), {})
        for name, said in run.committed.items():
            known[name] = said.values


def log_faults(run: Run) -> list[Fault]:
    """What is wrong with a run's lines themselves, whoever wrote them."""
    faults = [each for each in run.faults if each.of_the_log]
    if not run.ended:
        faults.append(Fault("", CUT, f"the run ends in phase {run.phase!r}"))
    elif len(run.sealed) < run.seals:
        few = f"{len(run.sealed)} parties sealed it, and {run.seals} must, so that one is honest"
        faults.append(Fault("", CUT, few))
    return faults


def wrong_values(run: Run) -> list[Fault]:
    """Whose values are not proved to be in range: to be seen before anybody publishes."""
    claims = [_value_claim(run, name) for name in run.committed]
    return [claims[i].fault for i in wrong([claim.equations for claim in claims])]


def outcome(run: Run) -> Outcome:
    """What one run shows."""
    faults = log_faults(run)
    if not faults:
        claims = [claim for name in run.committed for claim in claims_of(run, name)]
        faults = [*run.faults]
        faults += [claims[i].fault for i in wrong([claim.equations for claim in claims])]
        faults += _uncancelled(run)
    terms, counted = run.terms, tuple(run.published)
    sums = None
    if run.ended and not any(each.party in {*counted, ""} for each in faults):
        sums = _sums(run)
    return Outcome(
        terms.data,
        tuple(terms.names),
        run.keeper.hex(),
        len(terms.parties),
        counted,
        tuple(name for name in terms.parties if name not in run.published),
        tuple(terms.mean(sums, len(counted))) if sums is not None and counted else None,
        tuple(terms.deviation(len(counted))) if counted else (),
        terms.spent(len(counted)),
        terms.delta,
        terms.honest,
        terms.protected,
        tuple(dict.fromkeys(faults)),
        terms.neighbours,
        terms.release(len(counted)),
        terms.alone(len(counted)),
        tuple(sorted(run.sealed)),
    )


def claims_of(run: Run, name: str) -> list[Claim]:
    """All that a party proves in a run."""
    found = [_value_claim(run, name)]
    if name in run.published:
        found += [_noise_claim(run, name), _sum_claim(run, name)]
    found += [
        Claim(
            Fault(name, "wrong correction", f"its term with {said.other} is another"),
            [
                opened(point, value, blinding)
                for point, value, blinding in zip(
                    run.pair(name, said.other), said.values, said.openings, strict=True
                )
            ],
        )
        for (by, _), said in run.corrected.items()
        if by == name
    ]
    return found


def _value_claim(run: Run, name: str) -> Claim:
    """That its values are in range, or those of an earlier run."""
    said, terms = run.committed[name], run.terms
    before = run.earlier.get(name)
    changed = Fault(name, "changed data", "its values are not those of an earlier run")
    if before is not None:
        if tuple(before) == said.values:
            return Claim(changed, [])
        if not said.same:
            return Claim(changed, [NEVER])
        transcript = Transcript("same", run.session, name)
        pairs = zip(said.same, said.values, before, strict=True)
        return Claim(changed, [zero.equation(transcript, now - old) for zero, now, old in pairs])
    outside = Fault(name, "out of range", "its values are not proved to be in their ranges")
    if said.range is None:
        return Claim(outside, [NEVER])
    point, proof = said.range
    rows = value_rows(terms, said.values)
    transcript = Transcript("range", run.session, name)
    return Claim(outside, bits.equations(transcript, point, rows, terms.value_bits, proof))


def _noise_claim(run: Run, name: str) -> Claim:
    """That its noise is what the coins make of its bits."""
    said = run.published[name]
    rows = noise_rows(run, name, said.noise)
    transcript = Transcript("noise", run.session, name)
    bound = run.committed[name].noise
    return Claim(
        Fault(name, "wrong noise", "not what the coins make of the bits that it committed to"),
        bits.equations(transcript, bound, rows, run.terms.noise_bits, said.proof),
    )


def _sum_claim(run: Run, name: str) -> Claim:
    """That its published value is the sum of what it committed to."""
    said, multiplier = run.published[name], run.terms.multiplier
    pairs = [run.pair(name, other) for other in run.neighbours(name) if other in run.active]
    equations = [
        Equation(
            [multiplier, 1, *[1] * len(pairs), -value, -blinding],
            [committed, noise, *(pair[i] for pair in pairs), BASE, BLINDING],
        )
        for i, (committed, noise, value, blinding) in enumerate(
            zip(run.committed[name].values, said.noise, said.values, said.openings, strict=True)
        )
    ]
    return Claim(Fault(name, "wrong sum", "not the sum of what it committed to"), equations)


NEVER = Equation([1], [BASE])


def _uncancelled(run: Run) -> list[Fault]:
    """Neighbours whose terms do not cancel, though nobody disputed it; terms left uncorrected."""
    faults = []
    for name in sorted(run.active):
        for other in run.neighbours(name):
            if name < other and other in run.active and not opposite(run, name, other):
                detail = f"{name} and {other} committed to terms that do not cancel, one of them"
                kind = "pairwise terms do not cancel"
                faults += [Fault(name, kind, detail), Fault(other, kind, detail)]
    for name in run.published:
        for other in run.missing_neighbours(name):
            if (name, other) not in run.corrected and run.ended:
                detail = f"its term with {other}, who never published, is still in its value"
                faults.append(Fault(name, "no correction", detail))
    return faults


def _sums(run: Run) -> list[int]:
    """Of all published values, without the terms of those who never published."""
    sums = [0] * run.terms.size
    for said in run.published.values():
        sums = [(a + b) % ORDER for a, b in zip(sums, said.values, strict=True)]
    for correction in run.corrected.values():
        sums = [(a - b) % ORDER for a, b in zip(sums, correction.values, strict=True)]
    return sums


def in_plain(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON has it."""

    def told(faults: Sequence[Fault]) -> list[dict[str, str]]:
        return [fault._asdict() for fault in faults]

    def by_name(names: Sequence[str], values: Sequence[float]) -> dict[str, float]:
        return dict(zip(names, values, strict=False))

    return {
        "right": verdict.right,
        "entries": verdict.entries,
        "head": verdict.head,
        "faults": told(verdict.faults),
        "together": verdict.together,
        "runs": [
            {
                "data": each.data,
                "keeper": each.keeper,
                "parties": each.parties,
                "counted": len(each.counted),
                "dropped": list(each.dropped),
                "sealed": list(each.sealed),
                "mean": by_name(each.names, each.mean) if each.mean is not None else None,
                "deviation": by_name(each.names, each.deviation),
                "epsilon": each.epsilon,
                "delta": each.delta,
                "honest": each.honest,
                "protected": each.protected,
                "faults": told(each.faults),
            }
            for each in verdict.outcomes
        ],
    }
