# SPDX-License-Identifier: Apache-2.0
"""Find the smallest wire that loses little: wires are tried on validation points, cheapest first.

All are measured against the same study without them: the same split, seeds and validation points.
The first whose mean loss over seeds is within the limit is the smallest, and the search ends there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple

from archipel.comparison.design import seeds_from
from archipel.comparison.results import Stat
from archipel.comparison.tuning import FRACTION, held_out, score
from archipel.comparison.work import Stopped
from archipel.errors import ArchipelError, RunFailed
from archipel.metrics import larger_is_better
from archipel.report.tables import Cell, Column, Table
from archipel.runs.run import Run
from archipel.runs.simulation import Watch, simulate
from archipel.scorecard.words import NOTHING, metric_name, number, plural, size
from archipel.study import wiring
from archipel.study.file import Study
from archipel.study.template import literal

Up = tuple[str, ...]  # what `wire.up` says

CANDIDATES: tuple[Up, ...] = (
    ("float16",),
    # few bits a number
    ("rotate", "quantise:8"),
    ("rotate", "quantise:4"),
    ("rotate", "quantise:2"),
    ("rotate", "quantise:1"),
    ("quantise:8", "entropy"),
    ("quantise:4", "entropy"),
    ("quantise:2", "entropy"),
    ("sign",),
    # few numbers
    ("subsample:0.25",),
    ("rotate", "subsample:0.25", "quantise:4"),
    ("rotate", "subsample:0.25", "quantise:2"),
    ("rotate", "subsample:0.0625", "quantise:4"),
    ("rotate", "subsample:0.0625", "quantise:2"),
    ("rotate", "subsample:0.0625", "quantise:2", "entropy"),
    ("random_k:0.25:common=true",),  # linear: also where a sum hides single uploads
    ("random_k:0.0625:common=true",),
    # the largest numbers, the others later
    ("top_k:0.25", "float16"),
    ("top_k:0.1", "float16"),
    ("top_k:0.03", "float16"),
    ("top_k:0.01", "float16"),
    ("top_k:0.01", "float16", "entropy"),
    ("top_k:0.01", "quantise:4"),
    # matrices of low rank
    ("power_sgd:4",),
    ("power_sgd:2",),
    ("power_sgd:1",),
    ("power_sgd:2", "quantise:8"),
    # updates that have few numbers from the start
    ("random_mask:0.25",),
    ("random_mask:0.0625",),
    ("random_mask:0.25", "rotate", "quantise:4"),
)
FAR = 5  # times the limit behind the reference, and more than
SHARE = 0.1  # of its score: such a wire is given up, at half of the rounds or after a seed

Verdict = Literal["reference", "chosen", "too much", "given up", "not tried", "left out"]


class Trial(NamedTuple):
    """A wire and how it did."""

    up: Up
    verdict: Verdict
    bytes: float | None = None  # that a party sends in a round
    scores: Stat = Stat(())  # of each seed, on validation points
    losses: Stat = Stat(())  # against the reference
    why: str = ""

    @property
    def error(self) -> float | None:
        """The standard error of the mean loss; None for one seed."""
        sd = self.losses.sd
        return None if sd is None else sd / math.sqrt(len(self.losses.values))

    def to_json(self) -> dict[str, Any]:
        losses = {**self.losses.to_json(), "standard_error": self.error}
        return {
            **self._asdict(),
            "up": list(self.up),
            "scores": self.scores.to_json(),
            "losses": losses,
        }


@dataclass(frozen=True)
class Search:
    """What came of it; the reference is the first trial, others by their bytes."""

    study: str
    metric: str
    limit: float  # the largest loss
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]

    @property
    def chosen(self) -> Trial | None:
        return next((each for each in self.trials if each.verdict == "chosen"), None)

    @property
    def lines(self) -> str:
        """What to put into the study."""
        return "" if self.chosen is None else f"[wire]\nup = {literal(list(self.chosen.up))}"

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "metric": self.metric,
            "limit": self.limit,
            "seeds": list(self.seeds),
            "chosen": None if self.chosen is None else list(self.chosen.up),
            "trials": [each.to_json() for each in self.trials],
        }

    def __rich__(self) -> Table:
        """The wires that were tried; below, why others were not."""
        whole, name = self.trials[0].bytes or math.nan, metric_name(self.metric)
        columns = [
            Column("wire.up", "up", left=True),
            Column("", "verdict", left=True),
            Column("bytes up", "bytes"),
            Column("times fewer", "ratio"),
            Column("loss ± standard error", "loss"),
            Column(name, "score"),
        ]
        rows = [
            [
                Cell(_words(each.up)),
                Cell(each.verdict),
                Cell(size(each.bytes or 0.0), each.bytes),
                Cell(f"{whole / each.bytes:.1f}" if each.bytes else NOTHING),
                Cell(_loss(each)),
                Cell(NOTHING if each.scores.mean is None else number(each.scores.mean)),
            ]
            for each in self.trials
            if each.verdict not in ("not tried", "left out")
        ]
        title = f"{self.study}: {name}, a loss of {self.limit:g} at most"
        sections = [rows[:1], rows[1:]] if rows[1:] else [rows]
        return Table(title, columns, sections, self._notes())

    def _notes(self) -> list[str]:
        lines = [
            f"Scores are of {FRACTION:.0%} of the training points, mean over "
            f"{plural(len(self.seeds), 'seed')}; test points had no say. Bytes are those of a "
            "party in a round."
        ]
        error = 0.0 if self.chosen is None else self.chosen.error
        if error is None or error > self.limit:
            lines.append("The loss is known less exactly than the limit: more seeds tell more.")
        told: dict[tuple[str, str], list[str]] = {}
        for each in self.trials:
            told.setdefault((each.verdict, each.why), []).append(_words(each.up))
        lines += [f"{what}, {'; '.join(ups)}: {why}" for (what, why), ups in told.items() if why]
        more = [each.bytes or 0.0 for each in self.trials if each.verdict == "not tried"]
        if more:
            between = f"{size(min(more))} to {size(max(more))}"
            lines.append(
                f"not tried, for they send no less: {plural(len(more), 'wire')}, {between}."
            )
        return lines


def fewer_bytes(
    study: Study,
    limit: float = 0.01,
    seeds: int | Sequence[int] = 3,
    watch: Watch | None = None,
    workers: int | None = None,
    candidates: Sequence[Up] | None = None,
) -> Search:
    """Find the smallest of the wires whose mean loss is within the limit.

    Steps of the study that no candidate has, such as `clip`, are there for another reason: they
    stay in front of every wire, the reference's too.
    """
    if not 0 <= limit < math.inf:
        raise ArchipelError(f"loss = {limit}: give a number from 0.")
    candidates = CANDIDATES if candidates is None else candidates
    ours = {wiring.name_of(text) for up in candidates for text in up}
    stay = tuple(text for text in study.wire.up if wiring.name_of(text) not in ours)
    numbers = seeds_from(seeds, study.study.seed)
    say: Callable[[str], None] = (lambda text: None) if watch is None else watch.say
    benches = []
    for seed in numbers:
        say(f"{_words(stay)}, seed {seed}")
        benches.append(_Bench(study.with_set({"study.seed": seed}), stay, limit, watch, workers))
    first = benches[0]
    scores = Stat(tuple(each.score for each in benches))
    reference = Trial(stay, "reference", fmean(each.bytes for each in benches), scores)
    left_out, waiting = [], []
    for up in ((*stay, *each) for each in candidates):
        say(f"how much {_words(up)} sends")
        try:
            sent = first.sent(up)
        except ArchipelError as error:
            left_out.append(Trial(up, "left out", why=str(error)))
            continue
        if sent < first.bytes:
            waiting.append(Trial(up, "not tried", sent))
        else:
            left_out.append(Trial(up, "left out", sent, why=f"it sends no less, {size(sent)}."))
    trials: list[Trial] = []
    for trial in sorted(waiting, key=lambda each: each.bytes or 0.0):
        found = any(each.verdict == "chosen" for each in trials)
        trials.append(trial if found else _tried(trial, benches, limit, say))
    return Search(study.name, first.metric, limit, numbers, (reference, *trials, *left_out))


def _tried(
    trial: Trial, benches: Sequence[_Bench], limit: float, say: Callable[[str], None]
) -> Trial:
    """Run a wire with one seed after another, until it is far behind."""
    scores, losses, sent = [], [], []
    for bench in benches:
        say(f"{_words(trial.up)}, seed {bench.seed}")
        run, why = bench.attempt(trial.up)
        if run is None:
            return trial._replace(verdict="given up", why=why)
        value = score(run)
        assert value is not None, "where it is not finite, the wire is given up"
        scores.append(value)
        losses.append(bench.loss(value, bench.score))
        sent.append(_sent(run))
    within = fmean(losses) <= limit + 1e-9  # 0.79 - 0.78 is a little over 0.01
    verdict: Verdict = "chosen" if within else "too much"
    return Trial(trial.up, verdict, fmean(sent), Stat(tuple(scores)), Stat(tuple(losses)))


class _Bench:
    """One seed: its validation points, and how the study does on them without a candidate."""

    def __init__(
        self, study: Study, stay: Up, limit: float, watch: Watch | None, workers: int | None
    ) -> None:
        self.seed, self._limit = study.study.seed, limit
        self._study, self._watch, self._workers = study, watch, workers
        self._data, self._model = held_out(study, study.federation())
        self._algorithm = study.algorithm_object
        self._at: dict[int, float] = {}  # the reference's score by round
        run = self._whole(self.run(stay, self._note))
        self.metric, self.bytes = run.metric, _sent(run)
        self.score = self._at.get(run.rounds, math.nan)
        if not math.isfinite(self.score):
            raise RunFailed(
                f"seed {self.seed}: the study itself gives no finite score on validation points; "
                "try a smaller algorithm.lr."
            )

    def run(
        self,
        up: Up,
        on_round: Callable[[Run], bool | None] | None = None,
        rounds: int | None = None,
    ) -> Run:
        """The study with this wire on the validation points."""
        study = self._study.with_set({"wire.up": list(up)})
        options = study.options()
        options["rounds"] = rounds or options["rounds"]
        options["evaluate_every"] = math.ceil(options["rounds"] / 2)
        if self._workers is not None:
            options["workers"] = self._workers
        return simulate(
            self._algorithm,
            self._data,
            self._model,
            on_round=on_round,
            watch=self._watch,
            **options,
        )

    def sent(self, up: Up) -> float:
        """What a party sends in a round with this wire; an error where the study forbids it."""
        return _sent(self._whole(self.run(up, rounds=1)))

    def attempt(self, up: Up) -> tuple[Run | None, str]:
        """The run, and why it was given up if so."""
        behind: list[str] = []

        def far(run: Run) -> bool:
            value, whole = score(run), self._at.get(run.done, self.score)
            if value is None:
                behind.append("its numbers are not finite.")
            elif self.loss(value, whole) > max(FAR * self._limit, SHARE * abs(whole)):
                loss = number(self.loss(value, whole))
                behind.append(f"behind by {loss} after round {run.done} of {run.rounds}.")
            return bool(behind)

        try:
            run = self.run(up, far)
        except RunFailed as error:
            return None, f"seed {self.seed}: {error}"
        if behind:
            return None, f"seed {self.seed}: {behind[0]}"
        return self._whole(run), ""

    def _whole(self, run: Run) -> Run:
        if run.state == "stopped":
            raise Stopped(f"stopped with seed {self.seed}: nothing was chosen.")
        return run

    def loss(self, value: float, whole: float) -> float:
        """How much worse a score is than the reference's."""
        return whole - value if larger_is_better(self.metric) else value - whole

    def _note(self, run: Run) -> None:
        value = score(run)
        self._at |= {} if value is None else {run.done: value}


def _sent(run: Run) -> float:
    """Bytes that a party sent in a round, on average over all that arrived."""
    return run.spent.up / max(1, sum(len(each.present) for each in run.participation))


def _words(up: Up) -> str:
    return ", ".join(up) or "no steps"


def _loss(trial: Trial) -> str:
    mean, error = trial.losses.mean, trial.error
    if mean is None:
        return NOTHING
    return f"{mean:.4f}" + ("" if error is None else f" ± {error:.4f}")
