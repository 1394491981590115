# SPDX-License-Identifier: Apache-2.0
"""The study: one short TOML file that says what is run, checked before anything starts.

The same file is simulated here, rehearsed with real processes, and approved by hospitals. Fields of
`[algorithm]` are those of the algorithm's dataclass; options of a dataset or a model stand beside
its name. Every error is one sentence with the field, the value and a remedy.
"""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from archipel import data as datasets
from archipel import fields, models, plugins
from archipel.core import Algorithm
from archipel.data import frames
from archipel.data.federation import Federation
from archipel.engines.checks import check_algorithm_fields
from archipel.errors import ArchipelError, unknown
from archipel.graphs import TOPOLOGIES
from archipel.losses import LOSSES
from archipel.model import Model
from archipel.participation import Participation, absences
from archipel.parts import build_model
from archipel.run import Run
from archipel.sections import (
    SECTIONS,
    About,
    Data,
    Graph,
    Method,
    Network,
    Privacy,
    Round,
    Simulated,
    Wire,
    keys,
    sentence,
)
from archipel.simulate import Options, Watch, simulate
from archipel.store.folder import Folder, reserve, runs_in


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
    wire: Wire = Wire()
    privacy: Privacy = Privacy()
    topology: Graph = Graph()
    simulate: Simulated = Simulated()

    _base: Path = PrivateAttr(default_factory=Path.cwd)

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
    def parse(cls, content: str | Mapping[str, Any], base: Path | None = None) -> Self:
        """Check a study given as text or as tables."""
        if isinstance(content, str):
            try:
                content = tomllib.loads(content)
            except (tomllib.TOMLDecodeError, RecursionError) as error:
                raise ArchipelError(f"not TOML: {error}.") from None
        for name, section in content.items():
            if name not in SECTIONS:
                raise unknown("section", f"[{name}]", [f"[{each}]" for each in SECTIONS])
            if not isinstance(section, Mapping):
                raise ArchipelError(f"{name} = {section!r}: write a section, [{name}].")
        try:
            study = cls.model_validate(dict(content))
        except ValidationError as error:
            raise sentence(error) from None
        study._base = base or Path.cwd()
        study._check()
        return study

    @classmethod
    def of(cls, algorithm: str = "fedavg", base: Path | None = None, **sections: Any) -> Self:
        """Make a study of an algorithm's name and sections, `data={"name": "mnist"}`."""
        method = {"name": algorithm, **sections.pop("algorithm", {})}
        return cls.parse({"algorithm": method, **sections}, base)

    def with_set(self, changes: Mapping[str, Any]) -> Self:
        """Return the study with some fields changed, `{"algorithm.lr": 0.05}`."""
        return type(self).parse(changed(self.given(), changes), self._base)

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
        cls = plugins.find("algorithm", self.algorithm.name, self._base)
        made = fields.build("algorithm", cls, self.algorithm.given)
        check_algorithm_fields(made)
        return made  # type: ignore[no-any-return]

    def federation(self) -> Federation:
        """Load the data."""
        data, seed = self.data, self.study.seed
        common: dict[str, Any] = {"seed": seed} | ({} if data.test is None else {"test": data.test})
        table: dict[str, Any] = {"drop": data.drop, "missing": data.missing, **common}
        if data.file is not None:
            fed = Federation.from_frame(
                frames.read_table(self._base / data.file),
                target=data.target or "",
                by=data.by,
                partition=data.partition if data.by is None else None,
                parties=data.parties or 10,
                about=datasets.About(Path(data.file).stem),
                **table,
            )
            if data.by is None:
                return fed.with_new(data.new, seed) if data.new else fed
        elif data.name is None:
            fed = Federation.from_folder(
                self._base / str(data.folder), target=data.target or "y", **table
            )
        elif data.name in datasets.DATASETS:
            fed = datasets.load(
                data.name,
                partition=data.partition,
                parties=data.parties,
                seed=seed,
                folder=None if data.folder is None else self._base / data.folder,
                test_fraction=data.test,
                **data.given,
            )
            return fed.with_new(data.new, seed) if data.new else fed
        else:
            make = plugins.find("data", data.name, self._base)
            given = {**data.given} | ({"seed": seed} if "seed" in fields.hints(make) else {})
            fed = fields.build("data", make, given)
            if not isinstance(fed, Federation):
                raise ArchipelError(
                    f"data.name = '{data.name}': returns a {type(fed).__name__}; return a "
                    "Federation."
                )
        if data.partition is not None:
            fed = fed.repartition(data.partition, data.parties or fed.training, seed)
        return fed.with_new(data.new, seed) if data.new else fed

    def build_model(self, data: Federation) -> Model:
        """Build the network for the data."""
        name, seed = self.model.name, self.study.seed
        if name is not None and name not in models.MODELS:
            make = plugins.find("model", name, self._base)
            known = fields.hints(make)
            given = {"shape": list(data.shape), "outputs": data.classes or 1, **self.model.given}
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                net = fields.build("model", make, {k: v for k, v in given.items() if k in known})
            return build_model(net, data, self.model.loss, seed)
        return build_model(name, data, self.model.loss, seed, self.model.given)

    def options(self) -> Options:
        """What `simulate` is told."""
        about, policy, simulated = self.study, self.round, self.simulate
        options: dict[str, Any] = {
            "rounds": about.rounds,
            "seed": about.seed,
            "evaluate_every": about.evaluate_every,
            "metric": about.metric,
            "target": about.target,
            "topology": self.topology.name,
            "server_sees": self.privacy.server_sees,
            **policy.model_dump(),
            **simulated.model_dump(),
        }
        return {name: value for name, value in options.items() if value is not None}  # type: ignore[return-value]

    def given(self) -> dict[str, Any]:
        """The tables as they were given, without defaults."""
        return self.model_dump(exclude_unset=True, exclude_none=True)

    def resolved(self) -> dict[str, Any]:
        """The tables with every default, and the print of each file they name."""
        tables = self.model_dump(exclude_none=True)
        algorithm = self.algorithm_object
        tables["algorithm"] = {
            "name": self.algorithm.name,
            **{
                name: fields.write(getattr(algorithm, name))
                for name in fields.hints(type(algorithm))
            },
        }
        prints = {name: sha256(content).hexdigest() for name, content in self.sources().items()}
        return {**tables, "sources": prints} if prints else tables

    def toml(self) -> str:
        """The resolved study as a file."""
        tables = {name: table for name, table in self.resolved().items() if name != "sources"}
        return tomli_w.dumps(tables)

    @property
    def hash(self) -> str:
        """Stands for all that the result depends on but the machine."""
        return sha256(json.dumps(self.resolved(), sort_keys=True).encode()).hexdigest()

    def sources(self) -> dict[str, bytes]:
        """The files of the user's own that the study names."""
        kinds: list[tuple[plugins.Kind, str | None]] = [
            ("algorithm", self.algorithm.name),
            ("model", self.model.name),
            ("data", self.data.name),
        ]
        files = [plugins.file_of(name, self._base) for _, name in kinds if name is not None]
        found = {path.name: path.read_bytes() for path in files if path is not None}
        if self.data.file is not None:
            found[self.data.file] = (self._base / self.data.file).read_bytes()
        return found

    def files(self) -> dict[str, bytes]:
        """What a run's folder keeps of the study: the resolved file, and the code it names."""
        code = {name: text for name, text in self.sources().items() if name.endswith(".py")}
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
    ) -> Run:
        """Run the study in a new folder under `out`; with `resume` go on with an unfinished one.

        Where a run of this very study is done already, `resume` returns it. `out=None` keeps the
        run in memory.
        """
        if out is None:
            return self.run_in(None, baselines, watch, workers, checkpoint_seconds)
        path = self._begun(Path(out)) if resume else None
        if path is not None:
            return self.run_in(path, baselines, watch, workers, checkpoint_seconds)
        path = reserve(Path(out), self.name)
        try:
            return self.run_in(path, baselines, watch, workers, checkpoint_seconds)
        finally:
            if not Folder.exists(path):
                path.rmdir()

    def run_in(
        self,
        path: Path | None,
        baselines: bool = True,
        watch: Watch | None = None,
        workers: int | None = None,
        checkpoint_seconds: float = 1.0,
    ) -> Run:
        """Run the study in this folder, from where it is."""
        options = self.options()
        if workers is not None:
            options["workers"] = workers
        data = self.federation()
        return simulate(
            self.algorithm_object,
            data,
            self.build_model(data),
            out=path,
            study=self,
            baselines=baselines,
            watch=watch,
            checkpoint_seconds=checkpoint_seconds,
            **options,
        )

    def _begun(self, out: Path) -> Path | None:
        """The last run of this very study."""
        digest = self.hash
        found = [path for path in runs_in(out) if Folder(path).journal.row()["hash"] == digest]
        return max(found, key=lambda path: path.stat().st_mtime) if found else None

    # -- checks ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """What can be said without loading data."""
        data = self.data
        self._check_named("data", data.name, data.given, ("seed", "partition", "parties"))
        if data.name is None and data.file is None and data.folder is None:
            raise ArchipelError('data.name is missing: give one, such as "heart_disease".')
        if data.file is not None and (data.name is not None or data.folder is not None):
            raise ArchipelError(f'data.file = "{data.file}": leave data.name and data.folder out.')
        if data.file is not None and data.target is None:
            raise ArchipelError("data.target is missing: name the column to predict.")
        if data.file is not None and data.by is None and data.partition is None:
            raise ArchipelError(
                "data.by is missing: name the column that says whose row it is, or deal the rows "
                "out with data.partition."
            )
        for field, path in (("file", data.file), ("folder", data.folder)):
            if path is not None and not (self._base / path).exists():
                raise ArchipelError(f'data.{field} = "{path}": not found in {self._base}.')
        for field in ("by", "target", "drop"):
            if getattr(data, field) and data.name is not None:
                raise ArchipelError(f"data.{field}: '{data.name}' has its own; leave it out.")
        self._check_named("model", self.model.name, self.model.given, ("shape", "outputs"))
        if self.model.loss is not None and self.model.loss not in LOSSES:
            raise unknown("model.loss", self.model.loss, LOSSES)
        if (
            self.topology.name is not None
            and self.topology.name.partition(":")[0] not in TOPOLOGIES
        ):
            raise unknown("topology.name", self.topology.name, TOPOLOGIES)
        if self.study.metric is not None and self.study.metric not in _METRICS:
            raise unknown("study.metric", self.study.metric, _METRICS)
        for party, rounds in self.simulate.away.items():
            try:
                absences(rounds)
            except ArchipelError as error:
                raise ArchipelError(f"simulate.away.{party}: {error}") from None
        Participation(**self.round.model_dump(), **{**self.simulate.model_dump(), "away": {}})
        _ = self.algorithm_object

    def _check_named(
        self, section: plugins.Kind, name: str | None, given: dict[str, Any], own: tuple[str, ...]
    ) -> None:
        """Options beside a name: those of what it names, and of their kinds."""
        if name is None:
            if given:
                raise unknown(f"key of [{section}]", next(iter(given)), keys(section))
            return
        make = plugins.find(section, name, self._base)
        known = {k: hint for k, hint in fields.hints(make).items() if k not in own}
        known.pop("dtype", None)
        for key, value in given.items():
            if key not in known:
                raise unknown(f"key of [{section}]", key, [*known, *keys(section)])
            fields.read(section, key, known[key], value)


_METRICS = ("accuracy", "auc", "rmse", "mae", "r2", "c_index", "loss")


def changed(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of a study with fields set, `{"algorithm.lr": 0.05}`."""
    result = copy.deepcopy(dict(tables))
    for path, value in changes.items():
        section, *parents, field = path.split(".") if "." in path else (path, "")
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
