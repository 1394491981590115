# SPDX-License-Identifier: Apache-2.0
"""The study: one short TOML file that says what is run, checked before anything starts.

The same file is simulated here, rehearsed with real processes, and approved by hospitals. Fields of
`[algorithm]` are those of the algorithm's dataclass; options of a dataset or a model stand beside
its name. Every error is one sentence with the field, the value and a remedy.

One file, since a study is one object that users hold: read, asked, run; what is of a section alone
stands beside it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import file_digest
from pathlib import Path
from typing import Any, Self, Unpack

import tomli_w
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from archipel import metrics
from archipel.adversaries.adversary import Adversary
from archipel.algorithms.fedavg import FedAvg
from archipel.core import Algorithm
from archipel.data import frames
from archipel.data.federation import Federation
from archipel.data.shards import MANIFEST
from archipel.engines.checks import check_algorithm_fields, check_fit
from archipel.errors import ArchipelError, unknown
from archipel.exchange.boxes import clock_of, has_personal, is_peer
from archipel.graphs import Described
from archipel.models import default_model
from archipel.models.model import Model
from archipel.privacy.promise import Privacy as Promised
from archipel.runs import identity
from archipel.runs.parts import check_learned
from archipel.runs.run import Run
from archipel.runs.simulation import Options, Watch, Where, simulate
from archipel.store.folder import Folder, reserve, runs_in
from archipel.study import fields, plugins, wiring
from archipel.study.attackers import adversary_of, written_attack
from archipel.study.checks import (
    check_data,
    check_graph,
    check_names,
    check_policy,
    check_test,
    promise_of,
    schema_of,
    trace_of,
)
from archipel.study.loading import federation_of, is_written, model_of
from archipel.study.reading import read_tables, sentence, split_key
from archipel.study.sections import (
    SECTIONS,
    About,
    Attackers,
    Data,
    Graph,
    Method,
    Network,
    Privacy,
    Round,
    Simulated,
    keys,
)
from archipel.study.sections import Wire as WireSection
from archipel.training.schedules import STARTS, Rate, Schedule, for_tables
from archipel.wire.wire import Wire


class Study(BaseModel):
    """What is run; made by `Study.read`, `Study.parse` or `Study.of`.

    >>> study = Study.of("scaffold", data={"name": "heart_disease"}, algorithm={"lr": 0.03})
    >>> study.algorithm_object.lr
    0.03
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    study: About = About()
    data: Data = Data()
    model: Network = Network()
    algorithm: Method = Method()
    round: Round = Round()
    wire: WireSection = WireSection()
    privacy: Privacy = Privacy()
    adversary: Attackers = Attackers()
    topology: Graph = Graph()
    simulate: Simulated = Simulated()

    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _elsewhere: bool = PrivateAttr(default=False)  # its paths are those of other machines
    _prints: dict[str, str] | None = PrivateAttr(default=None)  # of its files when it ran
    _linear_task: str | None = PrivateAttr(default=None)  # of the data, once loaded; "" for others

    # -- reading -----------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a study file; paths in it are relative to its folder."""
        path = Path(path)
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            raise ArchipelError(
                f"study '{path}': cannot be read ({error.strerror}); 'archipel new' writes one."
            ) from None
        except UnicodeDecodeError:
            raise ArchipelError(f"study '{path}': is not text in UTF-8.") from None
        try:
            return cls.parse(text, path.resolve().parent)
        except ArchipelError as error:
            raise type(error)(f"{path.name}: {error}") from error

    @classmethod
    def read_changed(cls, path: str | Path, changes: Mapping[str, Any]) -> Self:
        """The same with fields set, `{"algorithm.lr": 0.05}`."""
        read = cls.read(path)
        return cls.parse(changed(read.given(), changes), read.base) if changes else read

    @classmethod
    def parse(
        cls, content: str | Mapping[str, Any], base: Path | None = None, elsewhere: bool = False
    ) -> Self:
        """Check a study given as text or as tables; with `elsewhere`, its data need not be here."""
        try:
            study = cls.model_validate(read_tables(content))
            study._base, study._elsewhere = base or Path.cwd(), elsewhere
            study._check(elsewhere)
        except (ValidationError, ArchipelError) as error:
            found = sentence(error) if isinstance(error, ValidationError) else error
            raise type(found)(str(found)) from error
        return study

    @classmethod
    def recorded(cls, content: Mapping[str, Any], base: Path, prints: dict[str, str]) -> Self:
        """A study that ran, with the prints that its files had; its data need not be here."""
        study = cls.parse(content, base, elsewhere=True)
        study._prints = prints
        return study

    @classmethod
    def of(cls, algorithm: str = "fedavg", /, base: Path | None = None, **sections: Any) -> Self:
        """Make a study of an algorithm's name and sections, `data={"name": "mnist"}`."""
        method = {"name": algorithm, **sections.pop("algorithm", {})}
        return cls.parse({"algorithm": method, **sections}, base)

    def with_set(self, changes: Mapping[str, Any]) -> Self:
        """Return the study with some fields changed, `{"algorithm.lr": 0.05}`."""
        return type(self).parse(changed(self.given(), changes), self._base, self._elsewhere)

    # -- what it says ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def purpose(self) -> str:
        return self.study.purpose

    @property
    def base(self) -> Path:
        """The folder that paths are relative to."""
        return self._base

    @property
    def algorithm_object(self) -> Algorithm:
        """The algorithm with its fields."""
        made = self._as_given()
        if "lr" not in self.algorithm.given and _trains_by_epochs(made):
            task = self._task_of_tables()
            lr = made.lr if task is None else for_tables(task, self.study.rounds)
            made = dataclasses.replace(made, lr=lr)
        return made  # type: ignore[no-any-return]

    def _as_given(self) -> Any:
        """The algorithm with its fields, of which the data have no say."""
        cls = plugins.find("algorithm", self.algorithm.name, self._base)
        made = fields.build("algorithm", cls, self.algorithm.given)
        check_algorithm_fields(made)
        return made

    @property
    def wire_object(self) -> Wire:
        """What stands between parties and the server."""
        return self._between.made()

    @property
    def _between(self) -> wiring.Between:
        return wiring.Between(self.wire, self.round, self._base, self._liars)

    @property
    def _liars(self) -> int | float | None:
        """How many parties [adversary] has, or which share of them."""
        parties = self.adversary.parties
        return len(parties) if isinstance(parties, list) else parties

    @property
    def adversary_object(self) -> Adversary | None:
        """Who attacks the model, and how; None where nobody does."""
        return adversary_of(self.adversary, self._base)

    @property
    def promise(self) -> Promised | None:
        """What [privacy] promises; None where it names no unit."""
        return promise_of(self.privacy)

    def _task_of_tables(self) -> str | None:
        """What a linear model is to learn of tables on one scale; None for all other studies."""
        data, network = self.data, self.model.name
        if data.name is not None or data.standardise is False:
            return None
        if network is not None and network not in _LINEAR:
            return None
        if data.schema is not None:
            return schema_of(data).task
        if self._linear_task is None and not self._elsewhere:
            with suppress(ArchipelError):  # which is said when the data are asked for
                self.federation()
        return self._linear_task or None

    def federation(self) -> Federation:
        """Load the data."""
        with _said_of("data"):
            options = self._options("data")
            found = federation_of(self.data, self._base, self.study.seed, options)
        network = self.model.name or default_model(found.task, found.shape)
        self._linear_task = found.task if network in _LINEAR and found.task in STARTS else ""
        return found

    def build_model(self, data: Federation) -> Model:
        """Build the network for the data."""
        with _said_of("model"):
            options = self._options("model")
            model = model_of(self.model, data, self._base, self.study.seed, options)
        return model.judged_by(self.chosen)

    @property
    def chosen(self) -> metrics.Chosen:
        """What is measured, own metrics as their functions."""
        about = self.study
        with _said_of("study"):
            listed = None if about.metrics is None else [*map(self._metric, about.metrics)]
            judged = None if about.metric is None else self._metric(about.metric)
            return metrics.choose(listed, judged)

    def _metric(self, name: str) -> str | metrics.Own:
        if name in metrics.METRICS:
            return name
        if plugins.file_of(name) is None and name not in plugins.names("metric"):
            raise unknown("study.metric", name, plugins.names("metric"))
        return plugins.find("metric", name, self._base)

    def options(self) -> Options:
        """What `simulate` is told."""
        about, policy, simulated = self.study, self.round, self.simulate
        options: dict[str, Any] = {
            "rounds": about.rounds,
            "seed": about.seed,
            "evaluate_every": about.evaluate_every,
            "evaluate_sample": about.evaluate_sample,
            "metric": about.metric and metrics.name_of(self._metric(about.metric)),
            "target": about.target,
            "topology": self._topology(),
            "server_sees": self.privacy.server_sees,
            "privacy": self.promise,
            "adversary": self.adversary_object,
            "wire": self.wire_object if self._between.parts else None,
            **policy.model_dump(exclude={"rule"}),
            **simulated.model_dump(),
            **trace_of(simulated, self._base),
        }
        return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]

    def _topology(self) -> str | Described | None:
        said = self.topology
        if said.file is None and not said.learned and said.weights is None:
            return said.name
        if said.file is None and said.name is None:
            return None
        file = None if said.file is None else self._base / said.file
        return Described(said.name, file, said.weights or "metropolis", bool(said.learned))

    def policy(self) -> Options:
        """The same without what only a simulation does: between institutions it is real."""
        simulated = self.simulate.model_dump()
        simulated["adversary"] = None
        return {k: v for k, v in self.options().items() if k not in simulated}  # type: ignore[return-value]

    def given(self) -> dict[str, Any]:
        """The tables as they were given, without defaults."""
        return self.model_dump(exclude_unset=True, exclude_none=True)

    def resolved(self) -> dict[str, Any]:
        """The tables with every default, and the print of each file they name."""
        tables = self.model_dump(exclude_none=True)
        algorithm = self.algorithm_object
        tables["algorithm"] = {"name": self.algorithm.name} | {
            name: fields.write(value)
            for name, hint in fields.hints(type(algorithm)).items()
            if fields.holds(hint, value := getattr(algorithm, name))
        }
        if self.adversary == Attackers():  # as before there were any: its hash stays
            del tables["adversary"]
        else:
            tables["adversary"] |= written_attack(self.adversary, self._base)
        tables["wire"], rule = self._between.written()
        tables["round"] |= rule
        if self.wire == WireSection():  # as before there were any: its hash stays
            tables["wire"] = {"steps": []}
        prints = self._prints
        if prints is None:
            prints = {name: _print(path) for name, path in self.sources().items()}
        return {**tables, "sources": prints} if prints else tables

    def toml(self) -> str:
        """The resolved study as a file."""
        tables = {name: table for name, table in self.resolved().items() if name != "sources"}
        tables["wire"], _ = self._between.written()
        return tomli_w.dumps(_in_order(tables))

    @property
    def scaled(self) -> int:
        """Columns of the parties' tables that are put on one scale, made of sums of theirs."""
        data = self.data
        if data.schema is None or (data.standardise is False and data.missing != "mean"):
            return 0
        schema = schema_of(data)
        return int((~schema.plain).sum()) + schema.scales_target

    @property
    def summed(self) -> int:
        """Columns in what a party sends for that scale, zeros for those that have none."""
        return len(schema_of(self.data).summed) if self.scaled else 0

    @property
    def hash(self) -> str:
        """Stands for all that the result depends on but the machine."""
        return identity.digest({"study": self.resolved()})

    def sources(self) -> dict[str, Path]:
        """The files of the user's own that the study names."""
        data = self.data
        if self._elsewhere:
            return {}
        named: list[tuple[plugins.Kind, str | None]] = [
            ("algorithm", self.algorithm.name),
            ("model", self.model.name),
            ("data", data.name),
            *(("metric", name) for name in (*(self.study.metrics or ()), self.study.metric)),
            ("adversary", self.adversary.attack),
            *((part.kind, part.name) for part in self._between.parts),
        ]
        paths = [
            path
            for kind, name in named
            if name is not None
            for path in plugins.files_of(kind, name, self._base)
        ]
        if data.file is not None:
            paths.append(self._base / data.file)
        elif is_written(data, self._base):
            paths.append(self._base / str(data.folder) / MANIFEST)  # it has the files' hashes
        elif data.folder is not None and data.name is None:
            paths += frames.party_files(self._base / data.folder)
        if self.topology.file is not None:
            paths.append(self._base / self.topology.file)
        paths += map(Path, trace_of(self.simulate, self._base).values())
        return {os.path.relpath(path, self._base): path for path in paths}

    def files(self) -> dict[str, bytes]:
        """What a run's folder keeps of the study: the resolved file, and the code it names."""
        code = {
            f"code/{name}": path.read_bytes()
            for name, path in self.sources().items()
            if name.endswith(".py") and not name.startswith("..")
        }
        return {"study.toml": self.toml().encode(), **code}

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON schema for editors, with the fields of every algorithm by its name."""
        schema = cls.model_json_schema()
        method = schema["$defs"]["Method"]
        names = plugins.names("algorithm")
        method["properties"]["name"]["examples"] = names
        method["allOf"] = [
            {
                "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
                "then": {
                    "properties": {"name": {}, **fields.schema(plugins.find("algorithm", name))},
                    "additionalProperties": False,
                },
            }
            for name in names
        ]
        return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}

    # -- running -----------------------------------------------------------------------------------

    def run(
        self,
        out: str | Path | None = "runs",
        *,
        resume: bool = False,
        baselines: bool = True,
        watch: Watch | None = None,
        workers: int | None = None,
        checkpoint_seconds: float = 1.0,
        device: str = "cpu",
        **where: Unpack[Where],
    ) -> Run:
        """Run the study in a new folder under `out`; with `resume` go on with an unfinished one.

        Where a run of this very study is done already, `resume` returns it. `out=None` keeps the
        run in memory. `engine="ray"` has it computed on a Ray, here or at `ray_address`.
        """
        how = (baselines, watch, workers, checkpoint_seconds, device)
        if out is None:
            return self.run_in(None, *how, **where)
        path = self._begun(Path(out)) if resume else None
        if path is not None:
            return self.run_in(path, *how, **where)
        parts = self.parts()
        is_new = not Path(out).exists()
        path = reserve(Path(out), self.name)
        try:
            return self.run_in(path, *how, parts, **where)
        finally:
            if not Folder.exists(path):
                path.rmdir()
                if is_new:
                    with suppress(OSError):  # somebody else has a run in it by now
                        Path(out).rmdir()

    def parts(self) -> tuple[Algorithm, Federation, Model]:
        """Make what the study names: algorithm, data and model."""
        data = self.federation()
        model = self.build_model(data)
        self._check_metric(data, model)
        return self.algorithm_object, data, model

    def run_in(
        self,
        path: Path | None,
        baselines: bool = True,
        watch: Watch | None = None,
        workers: int | None = None,
        checkpoint_seconds: float = 1.0,
        device: str = "cpu",
        parts: tuple[Algorithm, Federation, Model] | None = None,
        **where: Unpack[Where],
    ) -> Run:
        """Run the study in this folder, from where it is."""
        self.refuse_asynchronous()
        options: Options = {**self.options(), **where}
        options["device"] = device
        if workers is not None:
            options["workers"] = workers
        return simulate(
            *(parts or self.parts()),
            out=path,
            study=self,
            baselines=baselines,
            watch=watch,
            checkpoint_seconds=checkpoint_seconds,
            **options,
        )

    def refuse_asynchronous(self) -> None:
        """Refuse what no simulation does."""
        if self.topology.asynchronous:
            raise ArchipelError(
                "topology.asynchronous = true: a simulation has its rounds in common; leave it "
                "out, or run the study between processes with 'archipel rehearse --peers'."
            )

    def _begun(self, out: Path) -> Path | None:
        """The last run of this very study."""
        digest, found = self.hash, []
        for path in runs_in(out):
            journal = Folder(path).journal
            with suppress(ArchipelError):  # another run's journal may be broken
                found += [path] if journal.row()["hash"] == digest else []
            journal.close()
        return max(found, key=lambda path: path.stat().st_mtime) if found else None

    # -- checks ------------------------------------------------------------------------------------

    def _check(self, elsewhere: bool) -> None:
        """What can be said without loading data."""
        self._options("algorithm")
        self._check_rate()
        check_test(self.data)
        if self.data.schema is not None:
            schema_of(self.data)
        if not elsewhere:
            self._options("data")
            check_data(self.data, self._base, self._takes("data").keys())
        self._options("model")
        check_names(self.model, self.topology)
        check_graph(self.topology, self._base, elsewhere)
        _ = self.wire_object, self.promise, self.adversary_object
        _ = self.chosen
        if self.topology.asynchronous and not is_peer(self.algorithm_object):
            raise ArchipelError(
                f"topology.asynchronous = true: {self.algorithm.name} has a server, whose rounds "
                "sites have in common; leave it out, or take an algorithm such as dsgd."
            )
        if self.topology.asynchronous and (clock := clock_of(self.algorithm_object)) != "rounds":
            raise ArchipelError(
                f"topology.asynchronous = true: {self.algorithm.name} has clock = '{clock}', whose "
                "peers have their turns at their own pace anyway; leave it out."
            )
        graph = self.topology.name or self.topology.file
        check_learned(bool(self.topology.learned), self._as_given(), graph)
        check_policy(self.round, self.simulate, self._base, elsewhere)

    def _check_metric(self, data: Federation, model: Model) -> None:
        """Whether the task has the metric, before anything is trained."""
        if self.study.metric is None and self.study.metrics is None:
            return
        check_fit(model, data)
        data = data.form
        outputs = model.predict(model.w, data.x[:2], model.buffers)
        with _said_of("study"):
            metrics.pool(data.task, outputs, data.y[:2], model.loss_function, model.metrics)

    def _check_rate(self) -> None:
        """A learning rate that changes has a value in the first rounds and in the last."""
        lr = getattr(self._as_given(), "lr", None)
        if not isinstance(lr, Schedule):
            return
        for t in (0, 1, self.study.rounds - 1):
            try:
                found = lr.at(t)
            except ArithmeticError:
                found = math.nan
            if not 0 <= found < math.inf:
                raise ArchipelError(
                    f"algorithm.lr = {fields.shown(fields.write(lr))}: is no number from 0 in "
                    f"round {t + 1}; change its fields."
                )

    def _takes(self, section: plugins.Kind) -> dict[str, Any]:
        """What the thing that a section names takes, and the kind of each."""
        name = getattr(self, section).name
        return {} if name is None else fields.hints(plugins.find(section, name, self._base))

    def _options(self, section: plugins.Kind) -> dict[str, Any]:
        """The options beside a name: those of what it names, and of their kinds."""
        known = {k: v for k, v in self._takes(section).items() if k not in _NOT_OPTIONS[section]}
        options = {}
        for key, value in getattr(self, section).given.items():
            if key not in known:
                raise unknown(f"key of [{section}]", key, {*known, *keys(section)})
            options[key] = fields.read(section, key, known[key], value)
        return options


def _trains_by_epochs(algorithm: Any) -> bool:
    """Whether parties train one model as in FedAvg, at its rate, which may change by the round.

    Where they go on to models of their own, also after the last round, a rate that fell has no use.
    """
    known = fields.hints(type(algorithm))
    as_fedavg = "local_epochs" in known and known.get("lr") == Rate and algorithm.lr == FedAvg.lr
    return as_fedavg and not has_personal(algorithm)


def _print(path: Path) -> str:
    """The hash of a file's bytes, which are read once as long as the file is the same."""
    there = path.stat()
    return _print_of(path, there.st_mtime_ns, there.st_size)


@lru_cache(1 << 12)
def _print_of(path: Path, _changed: int, _size: int) -> str:
    with path.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()


def _in_order(tables: dict[str, Any]) -> dict[str, Any]:
    """The same study, of which a file keeps the order of columns: TOML has tables come last."""
    data = tables.get("data", {})
    schema = data.get("schema") or {}
    if not any(isinstance(kind, Mapping) for kind in schema.values()):
        return tables
    long = {
        name: kind
        if isinstance(kind, Mapping)
        else {"kind": kind}
        if isinstance(kind, str)
        else {"values": kind}
        for name, kind in schema.items()
    }
    return {**tables, "data": {**data, "schema": long}}


_LINEAR = ("linear", "logistic", "cox")
_NOT_OPTIONS = {  # given by other keys, or by the data
    "data": ("seed", "test_fraction", "dtype"),
    "model": ("shape", "outputs"),
    "algorithm": (),
}


@contextmanager
def _said_of(section: str) -> Iterator[None]:
    """Have every error be one line that names the section."""
    try:
        yield
    except ArchipelError as error:
        said = str(error) if section in str(error) else f"[{section}] {error}"
        raise type(error)(said) from error
    except Exception as error:
        raise ArchipelError(f"[{section}] {plugins.reason(error)}.") from error


def changed(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a study with fields set, `{"algorithm.lr": 0.05}`."""
    result = copy.deepcopy(dict(tables))
    for path, value in changes.items():
        section, *parents, field = split_key(path) if "." in path else (path, "")
        if not field:
            raise ArchipelError(f"'{path}': write section.field=value, algorithm.lr=0.05.")
        if section not in SECTIONS:
            raise unknown("section", section, SECTIONS)
        table = result.setdefault(section, {})
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise ArchipelError(f"{path}: {parent} is a value, not a table.")
        table[field] = value
    return result
