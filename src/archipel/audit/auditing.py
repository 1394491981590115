# SPDX-License-Identifier: Apache-2.0
"""The audit of a study: every attack for every adversary that has what it needs.

Attacks of several adversaries that have the same are run once. What took long is kept in the
audit's folder, a file per world, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel.attacks.case import Has
from archipel.audit import adversaries as them
from archipel.audit import worlds as drawn
from archipel.audit.findings import Audit, Finding, Learnt, Picture
from archipel.audit.judging import Curve, clopper_pearson, judge, match
from archipel.audit.letters import Opened, is_mean, opened
from archipel.audit.recorder import Recorder
from archipel.audit.subject import Subject
from archipel.audit.worlds import Candidates, World, candidates, run_world
from archipel.exchange.boxes import is_peer
from archipel.privacy.meaning import FALSE_ALARMS, found_at_most
from archipel.runs.run import Run
from archipel.scorecard.card import Promise
from archipel.scorecard.measure import privacy
from archipel.store import files
from archipel.study.file import Study
from archipel.study.plugins import find, names

Say = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much is done: worlds, seconds for them, records, uploads that are opened."""

    worlds: int
    seconds: float
    records: int
    uploads: int


FULL = Size(worlds=64, seconds=420.0, records=4000, uploads=4)
QUICK = Size(worlds=16, seconds=25.0, records=1000, uploads=2)
LEAST = 4  # worlds, however long they take


@dataclass
class _Work:
    """What attacks are run on, made when it is needed."""

    subject: Subject
    size: Size
    quick: bool
    folder: Path | None
    say: Say
    first: tuple[Run, Recorder] = field(init=False)
    about: Candidates = field(init=False)
    worlds: list[World] = field(default_factory=list)
    results: dict[Any, Any] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    by_round: dict[str, list[tuple[int, float, float, float]]] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
    work = _Work(subject, QUICK if quick else FULL, quick, folder, say)
    say("the first round, as it passes the server's place")
    work.first = subject.run(frozenset({0}), study.study.seed, until=1)
    run = work.first[0]
    work.about = candidates(subject, work.size.records)
    family = {name: make.family for name, make in chosen.items()}
    promise, guarantee = None, privacy(run).guarantee
    if "membership" in family.values() and not drawn.check(subject):
        last = _run_worlds(work)
        if last is not None:
            promise, guarantee = _promised(last), privacy(last).guarantee
    if promise is None:
        promise = _promised(run)
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
    from archipel.audit.words import sentence

    return replace(found, sentence=sentence(found))


def choose(wanted: Sequence[str]) -> dict[str, Any]:
    """Attacks by name or by family; all without any."""
    known: dict[str, Any] = {name: find("attack", name) for name in names("attack")}
    chosen = {
        name: make for name, make in known.items() if not wanted or {name, make.family} & {*wanted}
    }
    families = {make.family for make in known.values()}
    for name in wanted:
        if name not in {*known, *families}:
            if name.endswith(".py") or ".py:" in name:
                chosen[name] = find("attack", name)
                continue
            from archipel.errors import unknown

            raise unknown("attack", name, {*known, *families})
    return chosen


def folder_of(study: Study, out: Path, quick: bool) -> Path:
    """Where an audit of this very study is kept."""
    told = sha256(f"{study.hash} {quick}".encode()).hexdigest()[:8]
    return out / f"{study.name}-audit-{told}"


# -- what the study promises -----------------------------------------------------------------------


def _promised(run: Run) -> tuple[float, float] | None:
    """(ε, δ) of all rounds, as planned or as spent."""
    promise: Promise | None = privacy(run).promise
    if promise is None:
        return None
    planned = promise.epsilon if promise.planned is None else max(promise.planned, promise.epsilon)
    return planned, promise.delta


# -- membership ------------------------------------------------------------------------------------


def _run_worlds(work: _Work) -> Run | None:
    """As many worlds as there is time for; those in the folder are read."""
    began, last = time.perf_counter(), None
    for number in range(work.size.worlds):
        path = None if work.folder is None else work.folder / "worlds" / f"{number:03d}.npz"
        if path is not None and path.is_file():
            with np.load(path, allow_pickle=False) as kept:
                work.worlds.append(World.of(dict(kept)))
            continue
        if len(work.worlds) >= LEAST and time.perf_counter() - began > work.size.seconds:
            work.notes.append(
                f"{len(work.worlds)} of {work.size.worlds} worlds were run: time was up; the same "
                "command again runs more."
            )
            break
        work.say(f"world {number + 1} of {work.size.worlds}")
        world, last = run_world(work.subject, work.about, number)
        work.worlds.append(world)
        if path is not None:
            _keep(path, world)
    return last


def _keep(path: Path, world: World) -> None:
    from io import BytesIO

    path.parent.mkdir(parents=True, exist_ok=True)
    stream = BytesIO()
    np.savez_compressed(stream, **dict(world.arrays()))  # type: ignore[arg-type]
    files.write(path, stream.getvalue())


def _membership(
    work: _Work, name: str, attack: Any, who: them.Adversary, promise: tuple[float, float] | None
) -> Finding:
    measure = "of the records that were used, found at 1 % false alarms"
    if why := drawn.check(work.subject):
        return Finding(name, "membership", measure, None, said=f"not measured: {why}.")
    has = frozenset(who.has & {"final", "models", "mean", "single"})
    if attack.needs == frozenset({"final"}):
        has = frozenset({"final"})
    key = (name, has)
    if key not in work.results:
        work.say(f"{name} on {len(work.worlds)} worlds, as {who.title.lower()} has them")
        work.results[key] = _scores(work, attack, has)
    scores, member = work.results[key]
    epsilon, delta = promise if promise is not None and who.bounded else (None, 0.0)
    found = judge(scores, member, len(work.about.rows), epsilon, delta)
    level = "final model" if has == {"final"} else "uploads" if "single" in has else "sums"
    work.curves[f"{name}, from the {level}"] = found.curve
    details = {
        "auc": found.area, "auc_interval": found.area_interval, "epsilon_at_least": found.epsilon,
        "false_positives": FALSE_ALARMS, "tpr_at_0.1_percent": found.curve.at(0.001),
    }  # fmt: skip
    ceiling = None if epsilon is None else found_at_most(epsilon, delta, FALSE_ALARMS)
    return Finding(
        name, "membership", measure, found.found, found.interval, FALSE_ALARMS, ceiling,
        found.within, f"area under the curve {found.area:.3f}", details,
    )  # fmt: skip


def _scores(work: _Work, attack: Any, has: frozenset[Has]) -> tuple[Tensor, Tensor]:
    """Every world attacked in turn, the others being the adversary's own: `[S, N]` each."""
    shadows = [world.shadow(has) for world in work.worlds]
    rows = [
        attack().scores(shadows[s].signals, [*shadows[:s], *shadows[s + 1 :]])
        for s in range(len(shadows))
    ]
    return torch.stack(rows), torch.stack([world.used for world in work.worlds])


# -- inversion -------------------------------------------------------------------------------------


def _inversion(
    work: _Work, name: str, attack: Any, who: them.Adversary, promise: tuple[float, float] | None
) -> Finding:
    measure = "of the records behind an upload, made again"
    recorder = work.first[1]
    single = "single" in who.has
    if not single and "mean" not in who.has and not is_mean(recorder):
        said = "the models of two rounds do not tell the mean of the uploads"
        return Finding(name, "inversion", measure, None, said=f"does not apply: {said}.")
    key = (name, single)
    if key not in work.results:
        letters = opened(work.subject, recorder, single, work.size.uploads, work.quick)
        work.results[key] = _invert(work, name, attack(), letters, single)
    finding: Finding = work.results[key]
    if finding.score is None or finding.chance is None or promise is None or not who.bounded:
        return finding
    epsilon, delta = promise
    count = finding.details["others"]
    most = clopper_pearson(finding.chance * count, count)[1]
    ceiling = found_at_most(epsilon, delta, min(max(most, 1e-9), 1 - 1e-9))
    within = finding.interval is None or finding.interval[0] <= ceiling
    return replace(finding, ceiling=ceiling, within=within)


def _invert(
    work: _Work, name: str, attack: Any, letters: Sequence[Opened], single: bool
) -> Finding:
    measure = "of the records behind an upload, made again"
    nothing = Finding(name, "inversion", measure, None)
    if not letters:
        return replace(nothing, said="does not apply: no message has the form of a gradient.")
    data = work.subject.data
    if not data.x.is_floating_point():
        return replace(nothing, said="does not apply: records are text, whose symbols are found.")
    scale = work.subject.ranges.sd.flatten()
    if len(data.shape) > 1:  # pixels that hardly ever change are no larger than others
        scale = scale.square().mean().sqrt().expand_as(scale)
    span = float(work.subject.ranges.high.max() - work.subject.ranges.low.min())
    found, total, near, others = 0, 0, 0, 0
    peaks: list[float] = []
    far: list[float] = []
    for each in letters:
        if why := attack.applies(each.letter):
            return replace(nothing, said=f"does not apply: {why}.")
        work.say(f"{name} on an upload of {each.who}, {each.letter.records} records")
        made = attack.records(each.letter)
        matched = match(each.x, made.x, scale, span)
        rest = _others(data.x, each, len(each.x))
        by_chance = match(rest, made.x, scale, span)
        found, total = found + matched.found, total + len(each.x)
        near, others = near + by_chance.found, others + len(rest)
        peaks += matched.peak.tolist()
        far += matched.distance.tolist()
        if single:
            _picture(work, name, each, made.x[matched.nearest], matched)
    peaks.sort(reverse=True)
    chance = near / max(1, others)
    details = {
        "records": total, "others": others, "psnr_best": peaks[0],
        "psnr_median": peaks[len(peaks) // 2], "uploads": len(letters),
        "records_per_upload": [each.letter.records for each in letters],
    }  # fmt: skip
    nearest = f"{peaks[0]:.0f} dB" if len(data.shape) > 1 else f"{min(far):.2g} standard deviations"
    said = f"the nearest pair at {nearest}; {total} records behind {len(letters)} upload"
    return Finding(
        name, "inversion", measure, found / total, clopper_pearson(found, total), chance,
        said=said + "s" * (len(letters) != 1), details=details,
    )  # fmt: skip


def _others(x: Tensor, each: Opened, least: int) -> Tensor:
    """Records that were not behind an upload, to see how many are near by chance."""
    random = torch.Generator().manual_seed(0)
    some = x[torch.randperm(len(x), generator=random)[: max(200, 2 * least)]]
    same = (some.flatten(1)[:, None] == each.x.flatten(1)[None]).all(dim=2).any(dim=1)
    return some[~same] if bool((~same).any()) else some


def _picture(work: _Work, name: str, each: Opened, made: Tensor, matched: Any) -> None:
    """Keep the best of what was made of an upload, for the page."""
    best = np.argsort(matched.distance)[:4]
    told = any(picture.attack == name for picture in work.pictures)
    if not told:
        at = torch.from_numpy(best.copy())
        work.pictures.append(
            Picture(name, each.x[at], made[at], matched.peak[best].tolist(),
                    matched.distance[best].tolist())
        )  # fmt: skip


# -- all of them -----------------------------------------------------------------------------------


def _findings(
    work: _Work,
    who: them.Adversary,
    chosen: Mapping[str, Any],
    promise: tuple[float, float] | None,
) -> list[Finding]:
    kinds: dict[str, Callable[..., Finding]] = {
        "membership": _membership,
        "inversion": _inversion,
    }
    return [
        kinds[make.family](work, name, make, who, promise)
        for name, make in chosen.items()
        if make.family in kinds and make.needs & who.has
    ]
