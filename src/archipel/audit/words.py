# SPDX-License-Identifier: Apache-2.0
"""An audit in words: the sentence first, then what each number means."""

from __future__ import annotations

from archipel.audit.findings import Audit, Finding, Learnt
from archipel.report.tables import Cell, Column, Table
from archipel.scorecard.words import NOTHING, duration

FAMILIES = {
    "membership": "Was this record used?",
    "active": "Was it, if somebody raises its loss and looks on?",
    "inversion": "What do the records look like?",
    "property": "What do a party's records have in common?",
    "differencing": "What do two sums tell together?",
    "imprint": "What does a model get that was made to read records?",
}


def sentence(audit: Audit) -> str:
    """What the audit found, in a sentence or two."""
    broken = [
        (learnt, finding)
        for learnt in audit.learnt
        for finding in learnt.findings
        if finding.within is False
    ]
    if broken:
        learnt, finding = broken[0]
        return (
            f"{finding.name} did better for {_lower(learnt)} than ε = {audit.epsilon:.3g} allows "
            f"({percent(finding.score)} where {percent(finding.ceiling)} is the most): something "
            "is wrong with the promise, and the study should not run as it is."
        )
    worst = audit.worst
    if worst is None:
        return (
            "No attack that was tried did better than guessing, as far as "
            f"{audit.records:,} records can tell."
        )
    learnt, finding = worst
    return f"{learnt.adversary.title} {_could(finding)}."


def _could(finding: Finding) -> str:
    """What somebody could do by this attack."""
    score, chance = percent(finding.score), percent(finding.chance)
    if finding.family in ("membership", "active"):
        return (
            f"could tell of {score} of the records that were used that they were, accusing 1 % of "
            f"those that were not ({finding.name}; by guessing {chance})"
        )
    if finding.family == "property":
        return (
            f"could tell a property of a party's records from its upload: a party that has it "
            f"ranks above one that has not {score} of the time ({finding.name}; by guessing "
            f"{chance})"
        )
    if finding.family in ("inversion", "imprint") and "made again" not in finding.measure:
        what = finding.measure.partition(",")[0]
        return f"could tell {score} {what} ({finding.name}; by guessing {chance})"
    if finding.family in ("inversion", "imprint"):
        return (
            f"could make {score} of the records behind an upload again ({finding.name}; {chance} "
            "are as near by chance)"
        )
    return f"could learn, of {score} {finding.measure.removeprefix('of ')} ({finding.name})"


def bound(audit: Audit) -> str:
    """What holds for attacks that were not tried."""
    if audit.epsilon is None:
        return "Nothing is promised, so nothing bounds what a better attack would find."
    return (
        f"The study's ε = {audit.epsilon:.3g} bounds what any attack finds, also one that was not "
        "tried here, for those against whom its promise holds."
    )


def _lower(learnt: Learnt) -> str:
    title = learnt.adversary.title
    return title[0].lower() + title[1:]


def percent(value: float | None) -> str:
    """A share, with as many digits as it needs.

    >>> percent(0.034), percent(0.0004), percent(1.0), percent(None)
    ('3.4 %', '0.04 %', '100 %', '–')
    """
    if value is None:
        return NOTHING
    shown = 100 * value
    digits = 0 if shown >= 9.95 or shown == 0 else 1 if shown >= 0.95 else 2
    return f"{shown:.{digits}f} %"


def interval(finding: Finding) -> str:
    """Its 95 % interval."""
    if finding.interval is None:
        return NOTHING
    low, high = finding.interval
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def verdict(finding: Finding) -> str:
    """What it means, in a few words."""
    if finding.score is None:
        return finding.said
    if finding.within is False:
        return f"MORE THAN ε ALLOWS; {finding.said}"
    better = "better than guessing" if finding.alarming else "no better than guessing"
    return f"{better}; {finding.said}" if finding.said else better


def meta(audit: Audit) -> str:
    """What was done, in a line."""
    how = "quick audit" if audit.quick else "audit"
    worlds = f"{audit.worlds} worlds of {audit.records:,} records · " if audit.worlds else ""
    return f"{how} · {worlds}{duration(audit.seconds)} · study {audit.hash[:12]}"


def table(audit: Audit) -> Table:
    """For the terminal."""
    columns = [
        Column("", "who"), Column("attack", "attack", left=True), Column("score", "score"),
        Column("95 %", "interval"), Column("guessing", "chance"), Column("ceiling", "ceiling"),
    ]  # fmt: skip
    sections, notes = [], []
    for learnt in audit.learnt:
        rows: list[list[Cell]] = []
        for finding in learnt.findings:
            if finding.score is None:
                continue
            cells = (
                finding.name, percent(finding.score), interval(finding), percent(finding.chance),
                percent(finding.ceiling),
            )  # fmt: skip
            name = learnt.adversary.who.replace("_", " ") if not rows else ""
            rows.append([Cell(name), *(Cell(each, strong=finding.alarming) for each in cells)])
        if rows:
            sections.append(rows)
        elif not learnt.adversary.there:
            notes.append(f"{learnt.adversary.title}: {learnt.adversary.sees}")
        else:
            notes.append(f"{learnt.adversary.title}: no attack applies.")
    return Table(f"Audit of {audit.study}", columns, sections, notes)
