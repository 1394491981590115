# SPDX-License-Identifier: Apache-2.0
"""A run that is over, as its folder tells it: without its data, an engine, or torch.

It reports and exports as a run with all its parts does; what those would be asked for is in its
`Record` and its scorecard. A picture of the data is drawn where that is given, which takes torch.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from archipel.devices.timing import Timing
from archipel.engines.engine import Cause
from archipel.rng import Ints
from archipel.runs.participation import Cohort
from archipel.runs.record import Record
from archipel.runs.run import Joining, Run, Spent
from archipel.runs.some import WHO, OfSome
from archipel.scorecard.card import Scorecard
from archipel.store.folder import MODEL, Folder

if TYPE_CHECKING:
    from archipel.data.federation import Federation

MAKING = "making "  # before the name of what a party's own model cost it
GONE = "Its data changed since, or is gone."
GIVEN = "Its data was given in Python, and is not here."
Floats = npt.NDArray[np.float64]


def read(folder: Folder, data: Callable[[], Federation | None]) -> Past | None:
    """The run of a folder; None where it is not over, or its journal does not tell enough.

    `data` gives what it learnt from where that can be read, and is asked for nothing else.
    """
    journal = folder.journal
    row = journal.row()
    record = Record.of_json(row["description"].get("record"))
    over = row["state"] in ("done", "stopped") and row["scorecard"] is not None
    if record is None or not over:
        return None
    try:
        card = Scorecard.of_json(row["scorecard"])
    except (KeyError, TypeError):  # of another version
        return None
    plan = ", ".join(f"{name}={value!r}" for name, value in row["plan"].items())
    study = Text(folder.path, row)
    past = Past(
        algorithm=cast("Any", record.algorithm),
        data=data() or cast("Any", Parties.of(record, study, journal.roster())),
        task_model=cast("Any", None),
        seed=record.seed,
        plan=cast("Any", f"Plan({plan})"),
        anatomy=cast("Any", None),
        rounds=row["rounds"],
        metric=record.metric,
        target=record.wanted,
        vector=cast("Any", np.zeros(0)),
    )
    past.record, past.card = record, card
    past.study = study if study.told else None
    past.approved = study.approved
    restore(folder, past, row)
    return past


class Past(Run):
    """What a run did and learnt."""

    card: Scorecard

    @property
    def scorecard(self) -> Scorecard:
        return self.card

    @property
    def warnings(self) -> list[str]:
        return list(self.card.efficacy.warnings)

    @property
    def joining(self) -> Joining | None:
        if self.record.peer or not self.history:
            return None
        new = np.asarray(self.data.n) > 0
        new &= np.arange(self.data.parties) >= self.data.training
        spent = {"gradients": 0.0, "seconds": 0.0}
        if self.record.personal:
            if not self.making or not new.any():
                return None
            spent = {name: float(values[new].mean()) for name, values in self.making.items()}
        messages, up, down = self.record.joining
        return Joining(messages, up, down, parties=int(new.sum()), **spent)

    @property
    def model_file(self) -> bytes | None:
        """The model's tensors as safetensors, without notes; None where none was written."""
        assert self.folder is not None
        path = self.folder / MODEL
        return without_notes(path.read_bytes()) if path.is_file() else None


def without_notes(content: bytes) -> bytes:
    """A file of safetensors with its tensors alone: their bytes stay where they begin."""
    size = int.from_bytes(content[:8], "little")
    head = {
        name: each
        for name, each in json.loads(content[8 : 8 + size]).items()
        if name != "__metadata__"
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


@dataclass(frozen=True)
class Parties:
    """Who took part, in numbers: what a report asks of a federation."""

    about: Any
    task: str
    classes: int
    shape: tuple[int, ...]
    names: list[str] | None
    training: int
    n: Ints
    n_test: Ints
    origin: Ints | None

    @classmethod
    def of(cls, record: Record, study: Text, roster: list[dict[str, Any]]) -> Parties:
        n = np.array([each["training_points"] for each in roster], np.int64)
        n_test = np.array([each["test_points"] for each in roster], np.int64)
        between, counts = study.approved is not None, list[tuple[int, int] | None]()
        if between:
            told = zip(n.tolist(), n_test.tolist(), strict=True)
            counts = [each if each[0] >= 1 else None for each in told]
            n, n_test = np.maximum(n, 1), np.maximum(n_test, 0)
        about = SimpleNamespace(
            name=record.data,
            source=record.source,
            licence=record.licence,
            citation=record.citation,
            note="Every site's data is at the site." if between else GONE if study.told else GIVEN,
            elsewhere=between,
            counts=tuple(counts),
            gone=not between,
        )
        return cls(
            about, record.task, record.classes, tuple(record.shape),
            [each["name"] for each in roster] if record.named else None,
            sum(each["trains"] for each in roster), n, n_test,
            None if record.origin is None else np.array(record.origin, np.int64),
        )  # fmt: skip

    @property
    def parties(self) -> int:
        return len(self.n)

    @cached_property
    def virtual(self) -> npt.NDArray[np.bool_]:
        if self.origin is None:
            return np.zeros(self.parties, bool)
        return np.asarray(self.origin < 0)

    @cached_property
    def stands(self) -> npt.NDArray[np.bool_]:
        if self.origin is None:
            return np.ones(self.parties, bool)
        return np.asarray(self.origin == np.arange(self.parties))

    @cached_property
    def tested(self) -> Ints:
        if self.origin is None:
            return self.n_test
        found, real = np.zeros_like(self.n_test), ~self.virtual
        np.add.at(found, self.origin[real], self.n_test[real])
        return found

    @property
    def folded(self) -> bool:
        return not bool((self.stands | self.virtual).all())

    @property
    def real(self) -> tuple[int, int]:
        return int(self.stands[: self.training].sum()), int(self.stands[self.training :].sum())

    def name(self, k: int) -> str:
        return str(k) if self.names is None else self.names[k]


class Text:
    """The study of a run, as its folder has it."""

    scaled = summed = 0

    def __init__(self, folder: Path, row: Mapping[str, Any]) -> None:
        self._folder, self.hash = folder, str(row["hash"])
        self.base = Path(row["environment"]["folder"])
        text = row["description"].get("text")
        self.approved = None if text is None else str(text).encode()
        self._tables = row["description"].get("study") if text is None else tomllib.loads(text)
        self.told = self._tables is not None
        about = (self._tables or {}).get("study", {})
        self.name, self.purpose = str(about.get("name") or ""), str(about.get("purpose") or "")

    def resolved(self) -> dict[str, Any]:
        return dict(self._tables or {})

    def toml(self) -> str:
        return (self._folder / "study.toml").read_text(encoding="utf-8")

    def files(self) -> dict[str, bytes]:
        code = sorted(path for path in (self._folder / "code").rglob("*") if path.is_file())
        found = {str(path.relative_to(self._folder)): path.read_bytes() for path in code}
        return {"study.toml": self.toml().encode(), **found}


# -- what the journal tells, also to whoever goes on with the run ----------------------------------


def restore(folder: Folder, run: Run, row: Mapping[str, Any]) -> None:
    """Put what happened into a run; numbers of parties are arrays, with NaN for who came later."""
    journal = folder.journal
    run.folder, run.state, run.seconds = folder.path, row["state"], row["seconds"]
    run.environment, run.memory = row["environment"], row["summary"].get("memory")
    run.uploaded |= {int(k): n for k, n in row["summary"].get("uploaded", {}).items()}
    run.history, run.events = journal.entries(), journal.events()
    rounds = journal.rounds()
    able = np.flatnonzero(np.asarray(run.data.n)[: run.data.training] > 0)
    known = {"all": able}  # of version 1
    clock = {t: Timing.of_json(told) for t, told in journal.clock().items()}
    run.participation = [
        cohort_of_json(each, known)._replace(timing=clock.get(each["round"])) for each in rounds
    ]
    run.spent = Spent(
        *(sum(each[name] for each in rounds) for name in ("gradients", "bytes_up", "bytes_down"))
    )
    run.notes = [event.text for event in run.events if event.kind == "note"]
    count, of_parties, who = run.data.parties, dict[str, Any](), None
    if run.history:
        of_parties = journal.party_arrays(run.history[-1]["round"])
        who = of_parties.pop(WHO, None)
        of_parties = of_parties if who is not None else _padded(of_parties, count)
    parties = {name: v for name, v in of_parties.items() if not name.startswith(MAKING)}
    making = _after(MAKING, of_parties)
    if who is not None:
        ids = who.astype(np.int64)
        run.parties, run.making = OfSome(ids, count, parties), OfSome(ids, count, making)
    else:
        run.parties, run.making = parties, making
    levels = _padded(journal.party_arrays(0), count)
    for name, level in (row["baselines"] or {}).items():
        scores = Levels(_after(f"{name} ", levels), level["pooled"], level["new"])
        run.baselines[name] = cast("Any", scores)
    run.elsewhere = _after("elsewhere ", levels)


@dataclass(frozen=True)
class Levels:
    """What a run is compared with: an evaluation in arrays."""

    parties: dict[str, Any]
    pooled: dict[str, float]
    new: dict[str, float]


def _after(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _padded(found: Mapping[str, Floats], count: int) -> dict[str, Floats]:
    return {
        name: np.pad(values, (0, max(0, count - len(values))), constant_values=np.nan)
        for name, values in found.items()
    }


def cohort_of_json(row: Mapping[str, Any], known: dict[str, Ints]) -> Cohort:
    """Who took part in a round; `known` are those read already: many rounds share them."""
    sampled = _sampled_of_json(row["sampled"], known)
    absent = [int(k) for k in row["missing"]]
    present = sampled[~np.isin(sampled, absent)] if absent else sampled
    missing = _causes_of_json(row["missing"])
    effort: Any = np.broadcast_to(1.0, present.shape)
    if row["late"]:
        effort = np.array([row["late"].get(str(k), 1.0) for k in present.tolist()], np.float64)
    blocked = _causes_of_json(row["blocked"])
    stale = {int(k): int(steps) for k, steps in row["late"].get("stale", {}).items()}
    told = (row["counted"], row["waited"], blocked)
    return Cohort(sampled, present, effort, missing, *told, stale=stale)


def _causes_of_json(causes: Mapping[str, str]) -> dict[int, Cause]:
    """Who was missing; parties of which nothing is said took no part, and are not among them."""
    read = {text: Cause.read(text) for text in set(causes.values())}  # a million say the same
    return {int(k): read[text] for k, text in causes.items() if text}


def _sampled_of_json(sampled: list[int] | str, known: dict[str, Ints]) -> Ints:
    if not isinstance(sampled, str):
        return np.array(sampled, np.int64)
    if sampled not in known:
        spans = [span.split("-") for span in sampled.split(", ")]
        known[sampled] = np.concatenate(
            [np.arange(int(first), int(last) + 1) for first, last in spans]
        )
    return known[sampled]
