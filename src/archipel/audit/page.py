# SPDX-License-Identifier: Apache-2.0
"""audit.html: one file that a privacy officer reads, the sentence first."""

from __future__ import annotations

import base64
from hashlib import sha256
from pathlib import Path
from typing import Any

from markupsafe import Markup

from archipel.audit import figures, words
from archipel.audit.findings import Audit, Learnt, excess
from archipel.report.figures import encode
from archipel.report.html import environment, source
from archipel.report.svg import inline
from archipel.store import files


def write(audit: Audit, path: Path) -> Path:
    """Write the page and return where it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, render(audit).encode())
    return path


def render(audit: Audit) -> str:
    """Return the page as HTML."""
    script = source("theme.js")
    drawn = figures.figures(audit)
    alternatives = {
        "roc": "True positives of each attack by its false positives, on logarithmic axes.",
        "rounds": "How well members are told from others, from what is seen in each round.",
    }
    pictures = {name: inline(each, name, alternatives[name]) for name, each in drawn.items()}
    made = {
        name: base64.b64encode(encode(each, "png", background="white")).decode()
        for name, each in figures.records(audit).items()
    }
    page = environment().get_template("audit.html")
    return page.render(
        audit=audit,
        meta=words.meta(audit),
        bound=words.bound(audit),
        tiles=_tiles(audit),
        figures=pictures,
        records=made,
        adversaries=[_adversary(each) for each in audit.learnt],
        worst={each.attack: min(each.distance) for each in audit.pictures},
        script=Markup(script),
        script_hash=base64.b64encode(sha256(script.encode()).digest()).decode(),
    )


def _tiles(audit: Audit) -> list[tuple[str, str, str, str]]:
    """The best of each family: its name, a number, a note and a colour."""
    tiles = []
    for family, question in words.FAMILIES.items():
        found = [
            (learnt, finding)
            for learnt in audit.learnt
            for finding in learnt.findings
            if finding.family == family and finding.score is not None
        ]
        if not found:
            continue
        learnt, best = max(found, key=lambda each: excess(each[1]))
        note = f"{best.name}, by {_small(learnt.adversary.title)}; {best.measure}"
        colour = "orange" if best.alarming else "green"
        tiles.append((question, words.percent(best.score), note, colour))
    return tiles


def _small(title: str) -> str:
    return title[0].lower() + title[1:]


def _adversary(learnt: Learnt) -> dict[str, Any]:
    """An adversary's section: what it sees, and a row for each attack."""
    who = learnt.adversary
    return {
        "who": who.who,
        "title": who.title,
        "sees": who.sees,
        "there": who.there,
        "bounded": who.bounded,
        "rows": [
            (
                each.name,
                words.percent(each.score),
                words.interval(each),
                words.percent(each.chance),
                words.percent(each.ceiling),
                words.verdict(each),
                each.alarming or each.within is False,
            )
            for each in learnt.findings
            if each.score is not None
        ],
        "others": [(each.name, each.said) for each in learnt.findings if each.score is None],
    }
