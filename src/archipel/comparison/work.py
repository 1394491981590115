# SPDX-License-Identifier: Apache-2.0
"""Do a comparison: choose settings, run every algorithm with every seed, train the baselines once.

Each run is an ordinary recorded one in the comparison's folder. `comparison.json` holds the design,
what was chosen and the baselines as soon as they are known, so that an interrupted comparison goes
on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Unpack

from archipel.comparison.design import Design, Entry, Settings, chosen, design, fields_of
from archipel.comparison.levels import Levels, worker
from archipel.comparison.results import Comparison, Result, dumps, quantiles
from archipel.comparison.tuning import Choice, at_edge, choose
from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines.local.engine import Pools
from archipel.errors import ArchipelError
from archipel.exchange.boxes import has_personal, is_peer
from archipel.metrics import PRIMARY
from archipel.models import default_model
from archipel.plain import plain
from archipel.runs.run import Run
from archipel.runs.simulation import Options, Watch, Where, build, cluster_of, simulate
from archipel.store.files import write
from archipel.store.folder import Folder, reserve, runs_in
from archipel.study.file import Study, changed
from archipel.study.sections import About

FILE = "comparison.json"
VERSION = 2


class Stopped(ArchipelError):
    """Whoever looked on asked to stop."""

    exit_code = 130


def compare(
    algorithms: Sequence[str | Algorithm | Study],
    data: str | Mapping[str, Any] | None = None,
    model: str | Mapping[str, Any] | None = None,
    *,
    partition: str | None = None,
    parties: int | None = None,
    rounds: int | None = None,
    sample: float | int | None = None,
    seed: int | None = None,
    seeds: int | Sequence[int] = 3,
    grid: Mapping[str, Sequence[Any]] | None = None,
    study: Study | None = None,
    algorithm: Mapping[str, Any] | None = None,
    sections: Mapping[str, Mapping[str, Any]] | None = None,
    baselines: bool = True,
    out: str | Path | None = "runs",
    name: str | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    workers: int | None = None,
    **where: Unpack[Where],
) -> Comparison:
    """Run every algorithm with every seed on the same splits; return the table.

    An algorithm is a name or a file, with settings or without (`"fedprox:mu=0.1"`, `"mine.py"`), an
    object (`ar.FedProx(mu=0.1)`), or a whole study. `study` is what names start from, `sections`
    are further parts of it (`{"simulate": {"dropouts": 0.1}}`), `algorithm` fields of all
    algorithms that have them. `grid` chooses settings, `{"lr": [0.01, 0.1]}`, per algorithm and
    seed on validation points; of fields of [wire], `{"wire.up": [[], ["float16"]]}`, every value is
    a row. `seed` is the first of so many `seeds`. With `resume`, an earlier comparison of this very
    design under `out` goes on, or is returned when it was done. `out=None` keeps everything in
    memory. With `engine="ray"` all of them have one Ray, here or at `ray_address`.
    """
    flags: dict[str, Any] = {
        **fields_of("data", data),
        **fields_of("model", model),
        "data.partition": partition,
        "data.parties": parties,
        "study.rounds": rounds,
        "round.sample": sample,
        "study.seed": seed,
    }
    changes = {path: value for path, value in flags.items() if value is not None}
    for section, table in (sections or {}).items():
        changes |= {f"{section}.{field}": value for field, value in table.items()}
    algorithms = [algorithms] if isinstance(algorithms, str) else algorithms
    named = not all(isinstance(each, Study) for each in algorithms)
    if algorithms and not named and (changes or algorithm):
        field = next(iter([*changes, *(f"algorithm.{each}" for each in algorithm or {})]))
        raise ArchipelError(
            f"{field}: the studies that are compared say so themselves; leave it out."
        )
    base = study
    if named and (changes or study is not None):
        tables = {} if study is None else study.given()
        base = Study.parse(changed(tables, changes), None if study is None else study.base)
    plan = design(algorithms, base, algorithm or {}, seeds, grid or {}, baselines)
    check(plan, workers)
    folder = None
    if out is not None:
        folder = _begun(Path(out), plan) if resume else None
        folder = folder or reserve(Path(out), name or _name(plan))
    return _Work(plan, folder, watch, workers, where).go()


def resume_comparison(
    path: str | Path,
    watch: Watch | None = None,
    workers: int | None = None,
    **where: Unpack[Where],
) -> Comparison:
    """Go on with the comparison in this folder; one that is done is returned as it is."""
    folder = Path(path)
    stored = _read(folder)
    if stored["state"] == "done":
        return Comparison.of_json(stored["results"], folder.absolute())
    return _Work(Design.of_json(stored["design"]), folder, watch, workers, where).go()


def find_comparison(name: str, out: Path) -> Path | None:
    """The comparison that a name means: a folder, a name in `out`, or the "last" thing there."""
    folders = [Path(name), out / name]
    if name == "last" and runs_in(out):
        folders.append(Folder.find(name, out).path.parent)
    return next((folder for folder in folders if (folder / FILE).is_file()), None)


def check(plan: Design, workers: int | None = None) -> None:
    """Find out what an engine would refuse before the first run begins."""
    seed = plan.seeds[0]
    data = chosen(plan.entries[0].study, {}, seed).federation()
    for entry in plan.entries:
        study = chosen(entry.study, {}, seed)
        model = study.build_model(data)
        engine, _ = build(study.algorithm_object, data, model, _options(study, workers, {}))
        engine.close()


class _Work:
    """A comparison under way."""

    def __init__(
        self,
        plan: Design,
        folder: Path | None,
        watch: Watch | None,
        workers: int | None,
        where: Where,
    ) -> None:
        self.plan, self.folder, self.watch, self.workers = plan, folder, watch, workers
        self.stored: dict[str, Any] = {
            "version": VERSION,
            "state": "running",
            "hash": plan.hash,
            "design": plan.to_json(),
            "chosen": {},
            "baselines": {},
            "results": None,
            "where": where,
        }
        if folder is not None and (folder / FILE).exists():
            self.stored = _read(folder)
        else:
            self.save()
        self.where: Where = where or self.stored.get("where", {})

    def save(self, **changes: Any) -> None:
        self.stored |= changes
        if self.folder is not None:
            write(self.folder / FILE, dumps(self.stored))

    def say(self, text: str) -> None:
        if self.watch is not None:
            self.watch.say(text)

    def go(self) -> Comparison:
        """Run what is missing; return the table."""
        if self.stored["state"] == "done":
            return Comparison.of_json(self.stored["results"], self.folder)
        with cluster_of(_options(None, self.workers, self.where), self.say) as cluster:
            return self._go(None if cluster is None else cluster.pool)

    def _go(self, pools: Pools | None) -> Comparison:
        plan = self.plan
        levels = Levels(plan, self.stored["baselines"], self.workers, pools)
        results: dict[tuple[str, int], Result] = {}
        facts: dict[str, Any] = {}
        metric = ""
        for seed in plan.seeds:
            study = chosen(plan.entries[0].study, {}, seed)
            self.say(f"seed {seed}: loading data")
            data = study.federation()
            metric = study.study.metric or PRIMARY[data.task]
            facts = facts or _facts(plan, study, data)
            for entry in plan.entries:
                count = f"run {len(results) + 1} of {len(plan.seeds) * len(plan.entries)}"
                where = f"{entry.label}, seed {seed} ({count})"
                results[entry.label, seed] = self._cell(entry, seed, data, where)
            if plan.baselines:
                self.say(f"seed {seed}: training every party alone, to compare with")
                if levels.local(seed, data, self._local_work(seed)):
                    self.save()
            del data
        if plan.baselines:
            self.say("training on all data in one place, to compare with")
            if levels.central({seed: self._local_work(seed) for seed in plan.seeds}):
                self.save()
        done = Comparison(
            "comparison" if self.folder is None else self.folder.name,
            None if self.folder is None else self.folder.absolute(),
            facts,
            metric,
            plan.entries[0].study.study.target,
            plan.seeds,
            plan.grid,
            levels.words if plan.baselines else None,
            tuple(results[entry.label, seed] for entry in plan.entries for seed in plan.seeds),
            levels.results() if plan.baselines else (),
        )
        self._finish(done)
        return done

    def _local_work(self, seed: int) -> Settings:
        """The settings of the algorithm whose work the baselines do."""
        entry = worker(self.plan.entries)
        if entry is None:
            return {}
        known = self.stored["chosen"].get(entry.label, {}).get(str(seed))
        return dict(known["settings"] if known else self.plan.settings(entry)[0])

    # -- one cell --------------------------------------------------------------------------------

    def _cell(self, entry: Entry, seed: int, data: Federation, where: str) -> Result:
        """One run, from where it is; a run that fails is a row's gap, not the comparison's end."""
        name = f"{entry.folder}-seed{seed}"
        algorithm = entry.study.algorithm_object
        start = Result(
            entry.label,
            seed,
            None if self.folder is None else name,
            wire=entry.study.wire.model_dump(exclude_defaults=True),
            own_models=is_peer(algorithm) or has_personal(algorithm),
            served=has_personal(algorithm),
        )
        try:
            choice = self._choose(entry, seed, data, where)
            settings = {} if choice is None else choice.settings
            edges = {} if choice is None else at_edge(choice)
            study = chosen(entry.study, settings, seed)
            if study.name == About().name:
                study = study.with_set({"study.name": entry.label[:80]})
            resolved = study.resolved()["algorithm"]
            start = replace(
                start,
                algorithm=resolved.pop("name"),
                settings=resolved,
                chosen=settings,
                edges=edges,
                tried=None if choice is None else len(choice.tried),
            )
            self.say(where)
            run = simulate(
                study.algorithm_object,
                data,
                study.build_model(data),
                out=None if self.folder is None else self.folder / name,
                study=study,
                watch=self.watch,
                **_options(study, self.workers, self.where),
            )
        except ArchipelError as error:
            if error.exit_code == ArchipelError.exit_code:  # bad input: nothing here would run
                raise
            return replace(start, failed=str(error))
        if run.state == "stopped":
            again = "" if self.folder is None else f": archipel resume {self.folder.name} goes on"
            raise Stopped(f"stopped in {entry.label}, seed {seed}{again}.")
        return _of_run(start, run)

    def _choose(self, entry: Entry, seed: int, data: Federation, where: str) -> Choice | None:
        """What the grid chooses, from the file where it was chosen before."""
        settings = self.plan.settings(entry)
        if len(settings) < 2:
            return Choice(settings[0], settings, [None]) if settings[0] else None
        known = self.stored["chosen"].setdefault(entry.label, {})
        if str(seed) not in known:
            self.say(f"choosing {', '.join(settings[0])} for {where}")
            study = chosen(entry.study, {}, seed)
            known[str(seed)] = choose(study, settings, data, self.workers, self.where)._asdict()
            self.save()
        return Choice(**known[str(seed)])

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self, done: Comparison) -> None:
        """Write tables and pictures, then the results: a comparison that says done has all."""
        if self.folder is None:
            return
        for form, suffix in (("md", "md"), ("csv", "csv"), ("latex", "tex")):
            write(self.folder / f"table.{suffix}", done.table(form).encode())
        from archipel.report.style import styled

        pictures = {
            "plot": done.plot,
            **({"bytes": done.plot_bytes} if done.wires else {}),
            **({"privacy": done.plot_privacy} if done.private else {}),
        }
        for name, draw in pictures.items():
            figure = draw()
            for suffix in ("png", "svg"):
                content = BytesIO()
                with styled():
                    figure.savefig(content, format=suffix, dpi=150)
                write(self.folder / f"{name}.{suffix}", content.getvalue())
        self.save(state="done", results=done.to_json())


def _of_run(start: Result, run: Run) -> Result:
    values, joining = run.parties.get(run.metric), run.joining
    curve = zip(*run.curve(), strict=True) if run.metric in run.metrics else ()
    return replace(
        start,
        history=plain(run.history),
        curve=plain(list(curve)),
        spread=[] if values is None else quantiles(values[: run.data.training]),
        bytes={"up": run.spent.up, "down": run.spent.down},
        epsilon=None if run.kept is None else plain(run.scorecard.privacy.epsilon),
        gradients=run.spent.gradients,
        seconds=run.seconds,
        notes=run.notes[:20],
        joining=None
        if joining is None
        else plain({**joining._asdict(), "bytes": joining.up + joining.down}),
    )


def _facts(plan: Design, study: Study, data: Federation) -> dict[str, Any]:
    """What the title says; None where the entries differ."""
    rounds = {each.study.study.rounds for each in plan.entries}
    sample = {each.study.round.sample for each in plan.entries}
    return {
        "data": data.about.name,
        "partition": study.data.partition,
        "parties": data.parties,
        "new_parties": data.parties - data.training,
        "model": study.model.name or default_model(data.task, data.shape),
        "rounds": rounds.pop() if len(rounds) == 1 else None,
        "sample": sample.pop() if len(sample) == 1 else None,
    }


def _options(study: Study | None, workers: int | None, where: Where) -> Options:
    options: Options = {**({} if study is None else study.options()), **where}
    if workers is not None:
        options["workers"] = workers
    return options


def _name(plan: Design) -> str:
    study = plan.entries[0].study
    if study.name != About().name and all(each.study.name == study.name for each in plan.entries):
        return f"compare-{study.name}"
    data = study.data.name or study.data.file or study.data.folder or "data"
    return f"compare-{Path(data.partition('.py')[0]).stem}"


def _read(folder: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads((folder / FILE).read_bytes())
    except OSError as error:
        raise ArchipelError(f"'{folder}' is no comparison: {FILE} ({error.strerror}).") from None
    except (ValueError, RecursionError):
        raise ArchipelError(f"'{folder / FILE}' is not JSON: put it back from a copy.") from None
    if not isinstance(stored, dict):
        raise ArchipelError(f"'{folder / FILE}' is no object: put it back from a copy.")
    if stored.get("version") != VERSION:
        raise ArchipelError(
            f"'{folder / FILE}' has version {stored.get('version')}, this is version {VERSION}: "
            "open it with the Archipel that wrote it."
        )
    return stored


def _begun(out: Path, plan: Design) -> Path | None:
    """The last comparison of this very design; what cannot be read is another one."""
    files = sorted(out.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    for path in reversed(files):
        try:
            if _read(path.parent)["hash"] == plan.hash:
                return path.parent
        except ArchipelError:
            continue
    return None
