# SPDX-License-Identifier: Apache-2.0
"""What is compared: algorithms with their settings, seeds, a grid, all on the same data."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self

from archipel.algorithms import ALGORITHMS
from archipel.core import Algorithm
from archipel.errors import ArchipelError, unknown
from archipel.exchange.boxes import is_peer
from archipel.study import fields, plugins
from archipel.study.file import Study
from archipel.study.sections import About

Settings = dict[str, Any]

_ROWS = (
    "wire.",
    "round.rule",
    "privacy.",
    "adversary.",
)  # of a grid, each value a row
_LISTS = ("wire.up", "wire.down")


class Entry(NamedTuple):
    """One row of the table to be."""

    label: str
    study: Study
    fixed: tuple[str, ...] = ()  # fields its spec gives: the grid leaves them alone

    @property
    def names(self) -> tuple[str, ...]:
        """What a grid may call it: the whole label, or the algorithm in it."""
        return self.label, self.label.partition(" ")[0], self.study.algorithm.name

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.-]+", "-", self.label).strip("-.") or "run"


@dataclass(frozen=True)
class Design:
    """A comparison before it is run; the same design gives the same numbers."""

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    grid: dict[str, list[Any]]
    baselines: bool

    def settings(self, entry: Entry) -> list[Settings]:
        """What the grid tries for an entry: the cross product of the fields it has open."""
        known = fields.hints(type(entry.study.algorithm_object))
        every = {name: values for name, values in self.grid.items() if "." not in name}
        own = {
            field: values
            for algorithm, field, values in _owned(self.grid)
            if algorithm in entry.names
        }
        open_ = {
            name: values
            for name, values in {**every, **own}.items()
            if name in known and name not in entry.fixed
        }
        return [
            dict(zip(open_, values, strict=True)) for values in itertools.product(*open_.values())
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "base": str(self.entries[0].study.base),
            "entries": [
                {
                    "label": entry.label,
                    "study": entry.study.given(),
                    "fixed": list(entry.fixed),
                    "hash": entry.study.hash,
                }
                for entry in self.entries
            ],
            "seeds": list(self.seeds),
            "grid": self.grid,
            "baselines": self.baselines,
        }

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a design back; refuse one whose own files have changed since."""
        entries = []
        for each in content["entries"]:
            study = Study.parse(each["study"], Path(content["base"]))
            if study.hash != each["hash"]:
                raise ArchipelError(
                    f"'{each['label']}' is another algorithm now ({', '.join(study.sources())} "
                    "differ): put the file back, or start the comparison anew."
                )
            entries.append(Entry(each["label"], study, tuple(each["fixed"])))
        return cls(
            tuple(entries), tuple(content["seeds"]), dict(content["grid"]), content["baselines"]
        )

    @property
    def hash(self) -> str:
        content = {name: part for name, part in self.to_json().items() if name != "base"}
        return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def design(
    algorithms: Sequence[str | Algorithm | Study],
    base: Study | None,
    shared: Mapping[str, Any],
    seeds: int | Sequence[int],
    grid: Mapping[str, Sequence[Any]],
    baselines: bool,
) -> Design:
    """Check everything that can be said before anything runs.

    `shared` are fields of every algorithm that has them; one that nobody has is an error. Fields of
    [wire] and [privacy] in the grid are rows, those of algorithms are chosen.
    """
    if not algorithms:
        raise ArchipelError("algorithms = []: name at least one, such as 'fedavg'.")
    entries: list[Entry] = []
    for each in algorithms:
        if isinstance(each, Study):
            entries.append(Entry(_study_label(each, algorithms), each))
        elif base is None:
            raise ArchipelError("data is missing: give a dataset, such as 'heart_disease'.")
        else:
            spec = read_spec(each) if isinstance(each, str) else _spec_of(each)
            entries.append(_entry(*spec, base, shared))
    rows = {name: _values(name, each) for name, each in grid.items() if name.startswith(_ROWS)}
    grid = {name: values for name, values in grid.items() if name not in rows}
    entries = [row for each in entries for row in _in_rows(each, rows)]
    made = [each.study.algorithm_object for each in entries]
    known = {name: hint for each in made for name, hint in fields.hints(type(each)).items()}
    for name in (*shared, *(name for name in grid if "." not in name)):
        if name not in known:
            raise unknown("field of the algorithms", name, known)
    _check_owned(entries, grid)
    if any(map(is_peer, made)):  # a topology is for them alone
        entries = [_without_topology(each) for each in entries]
    _check_alike(entries)
    plan = Design(
        tuple(entries),
        seeds_from(seeds, entries[0].study.study.seed),
        {name: _values(name, values) for name, values in grid.items()},
        baselines,
    )
    for entry in entries:
        for settings in plan.settings(entry):
            chosen(entry.study, settings)
    return plan


def _in_rows(entry: Entry, rows: Mapping[str, Sequence[Any]]) -> list[Entry]:
    """A row for every value: how much a better score is worth is for its reader to say."""
    found = []
    for values in itertools.product(*rows.values()):
        row = dict(zip(rows, values, strict=True))
        for name, value in row.items():
            if name in _LISTS and not isinstance(value, list):
                raise ArchipelError(
                    f"grid {name} = {fields.shown(value)}: every value is a list of steps in "
                    f"quotes; write '{name}=[],[\"float16\"]'."
                )
        study = entry.study.with_set(row)
        label = _label(entry.label, {name.partition(".")[2]: row[name] for name in row})
        found.append(entry._replace(label=label, study=study))
    return found


def _owned(grid: Mapping[str, Sequence[Any]]) -> list[tuple[str, str, Sequence[Any]]]:
    """Parts of a grid that are one algorithm's, as in `ditto.lam`: its name, field, values."""
    return [(*name.rpartition(".")[::2], values) for name, values in grid.items() if "." in name]


def _check_owned(entries: Sequence[Entry], grid: Mapping[str, Sequence[Any]]) -> None:
    for algorithm, field, _ in _owned(grid):
        meant = [each for each in entries if algorithm in each.names]
        if not meant:
            raise unknown("algorithm in the grid", algorithm, [each.names[1] for each in entries])
        known = fields.hints(type(meant[0].study.algorithm_object))
        if field not in known:
            raise unknown(f"field of {algorithm} in the grid", field, known)
        if all(field in each.fixed for each in meant):
            raise ArchipelError(
                f"grid {algorithm}.{field}: '{meant[0].label}' says what it is; leave it out here "
                "or there."
            )


def _entry(name: str, own: Settings, base: Study, shared: Mapping[str, Any]) -> Entry:
    """An algorithm on the base study, with the shared fields that it has."""
    placed = _placed(name, base.base)
    kind = plugins.find("algorithm", placed, base.base)
    has, given = fields.hints(kind), {**base.algorithm.given, **shared}
    table = {"name": placed, **{k: v for k, v in given.items() if k in has}, **own}
    tables = {**base.given(), "algorithm": table}
    if hasattr(kind, "learns_graph") and not base.topology.learned:
        free = {name: part for name, part in tables.items() if name != "topology"}
        study = Study.parse(free, base.base)
        if getattr(study.algorithm_object, "learns_graph", False):  # the graph is for others
            return Entry(_label(name, own), study, tuple(own))
    return Entry(_label(name, own), Study.parse(tables, base.base), tuple(own))


def _spec_of(algorithm: Algorithm) -> tuple[str, Settings]:
    """Name and settings of an object made in Python."""
    names = {cls: name for name, cls in ALGORITHMS.items()}
    kind = type(algorithm)
    if kind not in names:
        raise ArchipelError(
            f"algorithm {kind.__name__}: only a file can be run again later; give its path, "
            f"'mine.py:{kind.__name__}'."
        )
    return names[kind], {
        each.name: fields.write(getattr(algorithm, each.name))
        for each in dataclasses.fields(kind)  # type: ignore[arg-type]
        if getattr(algorithm, each.name) != each.default
    }


def chosen(study: Study, settings: Mapping[str, Any], seed: int | None = None) -> Study:
    """The study with fields of its algorithm set, and a seed."""
    changes = {f"algorithm.{name}": value for name, value in settings.items()}
    return study.with_set(changes if seed is None else {**changes, "study.seed": seed})


def read_spec(spec: str) -> tuple[str, Settings]:
    """Return an algorithm's name and settings.

    >>> read_spec("fedprox:mu=0.1,lr=0.05")
    ('fedprox', {'mu': 0.1, 'lr': 0.05})
    >>> read_spec("mine.py:Mine")
    ('mine.py:Mine', {})
    """
    found = re.fullmatch(r"(.*?)(?::(\w+\s*=.*))?", spec.strip(), re.DOTALL)
    assert found is not None
    name, text = found.groups()
    settings: Settings = {}
    for part in _commas(text) if text else []:
        field, equals, value = part.partition("=")
        if not equals or not field.strip() or not value.strip():
            raise ArchipelError(f"'{spec}': write settings as name:field=value,field=value.")
        settings[field.strip()] = value_of(value.strip())
    return name, settings


def value_of(text: str) -> Any:
    """A value as a study file would read it; what is no TOML is a text.

    >>> value_of("0.1"), value_of("[1, 2]"), value_of("ring")
    (0.1, [1, 2], 'ring')
    """
    try:
        found = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def read_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each field, from `lr=0.01,0.1`, of one algorithm's, or of [wire].

    >>> read_grid(["lr=0.01,0.1", "ditto.lam=0.1,1", 'wire.up=[],["float16"]'])
    {'lr': [0.01, 0.1], 'ditto.lam': [0.1, 1], 'wire.up': [[], ['float16']]}
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise ArchipelError(f"--grid {text}: write field=value,value, such as lr=0.01,0.1.")
        name = field.strip().removeprefix("algorithm.")
        grid[name] = [value_of(value.strip()) for value in _commas(values)]
    return grid


def _commas(text: str) -> list[str]:
    """Cut at the commas that are in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for c in text:
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        depth += 0 if quote else (c in "[{") - (c in "]}")
        if c == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _placed(name: str, base: Path) -> str:
    """A file named here, as the study's folder names it."""
    path = plugins.file_of(name)
    if path is None or path.is_absolute() or base.resolve() == Path.cwd().resolve():
        return name
    tail = name.partition(".py")[2]
    return os.path.relpath(path.resolve(), base.resolve()) + tail


def _label(name: str, settings: Settings) -> str:
    if plugins.file_of(name) is not None:
        name = name.partition(".py:")[2] or Path(name).stem
    return " ".join([name, *(f"{k}={_short(v)}" for k, v in settings.items())])


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(str(part) for part in value.values())
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


def _study_label(study: Study, algorithms: Sequence[str | Algorithm | Study]) -> str:
    named = [each.name for each in algorithms if isinstance(each, Study)]
    if study.name != About().name and named.count(study.name) == 1:
        return study.name
    return _label(study.algorithm.name, study.algorithm.given)


def _without_topology(entry: Entry) -> Entry:
    study = entry.study
    if is_peer(study.algorithm_object) or not (study.topology.name or study.topology.file):
        return entry
    tables = {name: part for name, part in study.given().items() if name != "topology"}
    return entry._replace(study=Study.parse(tables, study.base))


def _check_alike(entries: Sequence[Entry]) -> None:
    first = entries[0]
    places: dict[str, str] = {}
    for entry in entries:
        study, other = entry.study, first.study
        for part, same in (
            ("[data]", study.data == other.data),
            ("[model]", study.model == other.model),
            ("study.seed", study.study.seed == other.study.seed),
            ("study.metric", study.study.metric == other.study.metric),
            ("study.target", study.study.target == other.study.target),
            ("folder", study.base == other.base),
        ):
            if not same:
                raise ArchipelError(
                    f"'{entry.label}' and '{first.label}' differ in {part}: compare on the same "
                    "data with the same model."
                )
        if places.setdefault(entry.folder, entry.label) != entry.label or (
            sum(each.label == entry.label for each in entries) > 1
        ):
            raise ArchipelError(
                f"'{entry.label}' is there twice: give one another setting, or each study a "
                "study.name of its own."
            )


def seeds_from(seeds: int | Sequence[int], first: int) -> tuple[int, ...]:
    found = tuple(range(first, first + seeds)) if isinstance(seeds, int) else tuple(seeds)
    if not found or len(set(found)) < len(found) or min(found) < 0:
        raise ArchipelError(f"seeds = {seeds}: give a number of seeds from 1, or different ones.")
    return found


def _values(name: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str) or not len(values):
        raise ArchipelError(f"grid {name} = {values!r}: give a list of values to try.")
    return [value for at, value in enumerate(values) if value not in values[:at]]


def fields_of(section: str, value: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """What a name, or fields, say of a section of a study."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {f"{section}.name": value}
    if not isinstance(value, Mapping):
        raise ArchipelError(
            f"{section} = {value!r}: give a name, a file (mine.py:make), or the fields of "
            f"[{section}], so that the comparison can be repeated."
        )
    return {f"{section}.{field}": each for field, each in value.items()}
