# SPDX-License-Identifier: Apache-2.0
"""The audit of a study: every attack for every adversary that has what it needs.

Attacks of several adversaries that have the same are run once. What took long is kept in the
audit's folder, a file per world, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from archipel.attacks import ATTACKS
from archipel.audit import adversaries as them
from archipel.audit import worlds as drawn
from archipel.audit.acting import active
from archipel.audit.differences import differences
from archipel.audit.findings import Audit, Finding, Learnt
from archipel.audit.inversion import inversion
from archipel.audit.membership import by_round, membership, run_worlds
from archipel.audit.sending import imprint
from archipel.audit.subject import Subject
from archipel.audit.traits import property_of
from archipel.audit.words import sentence
from archipel.audit.work import FULL, QUICK, Promised, Say, Work
from archipel.audit.worlds import candidates
from archipel.errors import unknown
from archipel.exchange.boxes import is_peer
from archipel.runs.run import Run
from archipel.scorecard.card import Promise
from archipel.scorecard.measure import privacy
from archipel.study.file import Study
from archipel.study.plugins import find, names


def audit(
    study: Study,
    *,
    attacks: Sequence[str] = (),
    quick: bool = False,
    folder: Path | None = None,
    say: Say = lambda text: None,
) -> Audit:
    """Attack a study and say how well that went; `folder` keeps what was done so far."""
    began = time.perf_counter()
    chosen = choose(attacks)
    subject = Subject.of(study)
    say("the first round, as it passes the server's place")
    first = subject.run(frozenset({0}), study.study.seed, until=1)
    size = QUICK if quick else FULL
    about = candidates(subject, size.records)
    work, run = Work(subject, size, quick, folder, say, first, about), first[0]
    family = {name: make.family for name, make in chosen.items()}
    promise, guarantee = None, privacy(run).guarantee
    if "membership" in family.values() and not drawn.check(subject):
        last = run_worlds(work)
        if last is not None:
            promise, guarantee = _promised(last), privacy(last).guarantee
    if promise is None:
        promise = _promised(run)
    by_round(work)
    everybody = them.adversaries(run.anatomy, is_peer(subject.algorithm), study.promise)
    learnt = [
        Learnt(who, _findings(work, who, chosen, promise) if who.there else ()) for who in everybody
    ]
    found = Audit(
        study.name, study.hash, quick, len(work.worlds), len(work.about.rows),
        time.perf_counter() - began, None if promise is None else promise[0],
        None if promise is None else promise[1], guarantee, learnt, work.curves, work.by_round,
        work.pictures, work.notes, subject.data.columns or (),
    )  # fmt: skip
    return replace(found, sentence=sentence(found))


def choose(wanted: Sequence[str]) -> dict[str, Any]:
    """Attacks by name or by family; all without any."""
    order = [*ATTACKS, *(name for name in names("attack") if name not in ATTACKS)]
    known: dict[str, Any] = {name: find("attack", name) for name in order}
    chosen = {
        name: make for name, make in known.items() if not wanted or {name, make.family} & {*wanted}
    }
    families = {make.family for make in known.values()}
    for name in wanted:
        if name not in {*known, *families}:
            if name.endswith(".py") or ".py:" in name:
                chosen[name] = find("attack", name)
                continue
            raise unknown("attack", name, {*known, *families})
    return chosen


def folder_of(study: Study, quick: bool, run: Path | None = None) -> Path:
    """Where an audit of this very study is kept: in its run's folder, or under audits/."""
    told = sha256(f"{study.hash} {quick}".encode()).hexdigest()[:8]
    return Path("audits") / f"{study.name}-{told}" if run is None else run / f"audit-{told}"


# -- what the study promises -----------------------------------------------------------------------


def _promised(run: Run) -> Promised:
    """(ε, δ) of all rounds, as planned or as spent."""
    promise: Promise | None = privacy(run).promise
    if promise is None:
        return None
    planned = promise.epsilon if promise.planned is None else max(promise.planned, promise.epsilon)
    return planned, promise.delta


# -- all of them -----------------------------------------------------------------------------------


def _findings(
    work: Work,
    who: them.Adversary,
    chosen: Mapping[str, Any],
    promise: Promised,
) -> list[Finding]:
    kinds: dict[str, Callable[..., Finding]] = {
        "membership": membership,
        "active": active,
        "inversion": inversion,
        "property": property_of,
        "differencing": differences,
        "imprint": imprint,
    }
    return [
        kinds[make.family](work, name, make, who, promise)
        for name, make in chosen.items()
        if make.family in kinds and make.needs & who.has
    ]
