# SPDX-License-Identifier: Apache-2.0
"""What a site agrees to: the exact bytes of a study, named by their hash, and what they mean.

Only who reads all of a study waits for what it takes to compute with one.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from archipel.errors import ArchipelError, clean, unknown

if TYPE_CHECKING:
    from archipel.data.federation import Federation
    from archipel.models.model import Model
    from archipel.study.file import Study

_MOST = 256 << 10  # bytes of a study
_DOTS = 100  # in a line of it: a key of n parts takes a reader of TOML n^2 memory
_TEXT = re.compile(rb"""\s*[A-Za-z0-9_-]+\s*=\s*"[^"'\\]*"\s*""")  # a key of one part, and its text
_WEIGHTS = 1 << 29  # of a model: 2 GiB
_HASH = re.compile("[0-9a-f]{4,64}")  # and beginnings of one


def hash_of(text: bytes) -> str:
    """Names the exact bytes of a study file: what is approved."""
    return sha256(text).hexdigest()


def looks_like_hash(name: str) -> bool:
    """Whether it could be a study's hash or the beginning of one, which no name may.

    >>> looks_like_hash("beef"), looks_like_hash("heart")
    (True, False)
    """
    return _HASH.fullmatch(name) is not None


def _is_short(text: bytes) -> bool:
    """Whether a reader of TOML gets by with little memory."""
    return len(text) <= _MOST and all(
        line.count(b".") <= _DOTS or _TEXT.fullmatch(line) for line in text.split(b"\n")
    )


def brought(text: bytes, base: Path, parties: Sequence[str] | None = None) -> bytes:
    """A study's bytes as institutions get them: the edges of its graph's file are in them.

    The file is found from the folder `base`. Its edges are between `parties` by their numbers, or
    between sites by their names as the file has them.
    """
    from archipel.graphs.file import numbered, written
    from archipel.graphs.file import read as read_edges
    from archipel.study.reading import read_tables

    try:
        tables = read_tables(text.decode())
    except UnicodeDecodeError:  # `read` says it
        return text
    graph = dict(tables.get("topology", {}))
    file = graph.pop("file", None)
    if not isinstance(file, str) or "name" in graph:
        return text
    try:
        edges = read_edges(base / file)
        if parties is not None:
            edges = numbered(file, edges, parties)
        graph["name"] = written(file, edges)
    except ArchipelError as error:
        raise ArchipelError(f"topology.file: {error}") from None
    return tomli_w.dumps({**tables, "topology": graph}).encode()


def read(text: bytes) -> Study:
    """The study that came over the wire, which names no code of its own; data is elsewhere."""
    from archipel.exchange.boxes import is_peer
    from archipel.metrics import METRICS
    from archipel.study.file import Study
    from archipel.study.reading import read_tables

    if not _is_short(text):
        raise ArchipelError(
            f"the study has {len(text)} bytes, or a line with more than {_DOTS} dots: give at most "
            f"{_MOST} bytes, and shorter lines."
        )
    try:
        tables = read_tables(text.decode())
    except UnicodeDecodeError:
        raise ArchipelError("the study is not text in UTF-8.") from None
    for key, name in _named(tables):  # before anything is looked up by its name
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", str(name)):
            raise ArchipelError(
                f"{key} = {str(name)[:80]!r}: a study between institutions names no code "
                "of its own; install it as a package at every site and name it."
            )
    about = tables.get("study", {})
    for name in (about.get("metric"), *_listed(about.get("metrics"))):
        if name is not None and name not in METRICS:
            raise ArchipelError(
                f"study.metrics: {str(name)[:80]!r}: a study between institutions has no metrics "
                f"but Archipel's own; take some of {', '.join(METRICS)}."
            )
    study = Study.parse(tables, elsewhere=True)
    for key in ("virtual", "folds"):
        if getattr(study.data, key):
            raise ArchipelError(
                f"data.{key} = {getattr(study.data, key)}: copies of parties are made where all "
                "data is, in a simulation; between sites leave it out."
            )
    if study.topology.file is not None:
        raise ArchipelError(
            f"topology.file = {study.topology.file!r}: a study that came from elsewhere brings no "
            "file; 'archipel coordinator submit' writes its edges into the study: submit it again."
        )
    if study.adversary_object is not None:
        raise ArchipelError(
            f'adversary.attack = "{study.adversary.attack}": adversaries are simulated, and no '
            "site agrees to be one; between sites leave [adversary] out."
        )
    served = ("sample", "over_select", "quorum", "on_missing")
    for key in served if is_peer(study.algorithm_object) else ():
        if (value := getattr(study.round, key)) != type(study.round).model_fields[key].default:
            raise ArchipelError(
                f"round.{key} = {value!r}: between peers nobody draws who is in a round or counts "
                "who was; each goes on with those that answer. Leave it out."
            )
    if looks_like_hash(study.name):
        raise ArchipelError(
            f'study.name = "{study.name}": could be meant as a hash; give a name with another '
            "letter than 0-9 and a-f."
        )
    return study


_ON_WIRE = ("up", "down", "sum")


def _named(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where a study names code, and the name: of a wire's steps without their values."""
    for section in ("algorithm", "model", "data"):
        yield f"{section}.name", tables.get(section, {}).get("name")
    yield "adversary.attack", tables.get("adversary", {}).get("attack")
    wire = tables.get("wire", {})
    rule = tables.get("round", {}).get("rule")
    for key, said in (*((f"wire.{key}", wire.get(key)) for key in _ON_WIRE), ("round.rule", rule)):
        yield from ((key, str(text).partition(":")[0]) for text in _listed(said))


def _listed(value: Any) -> list[Any]:
    """Values of a key that takes several, or one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def name_of(text: bytes) -> str:
    """The name that a study gives itself, also where this Archipel cannot read the rest."""
    if not _is_short(text):
        return ""
    try:
        name = tomllib.loads(text.decode())["study"]["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return clean(name)[:80] if isinstance(name, str) else ""


def folded(name: str) -> str:
    """The same for names that differ in blanks, in capitals or in forms of the same letters."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def model_of(study: Study, data: Federation) -> Model:
    """The study's model, unless it is larger than a site builds for somebody else."""
    import torch

    from archipel import models

    name, shape = study.model.name or models.default_model(data.task, data.shape), data.shape
    if name in models.MODELS:
        with torch.device("meta"):  # counts without memory
            module = models.build(name, shape, data.classes or 1, **study.model.given)
        size = sum(weight.numel() for weight in module.parameters())
        if size > _WEIGHTS:
            raise ArchipelError(
                f"model.name = '{name}': has {size} weights with these options, and a study "
                f"between institutions at most {_WEIGHTS}; make it smaller."
            )
    return study.build_model(data)


def assure_kept(study: Study) -> None:
    """Refuse a promise of privacy that no site could keep, as far as the study tells."""
    if study.promise is None or study.data.schema is None:
        return
    from archipel.engines.network.fitting import keepable
    from archipel.study.checks import schema_of

    empty, about = schema_of(study.data).empty(), study.study
    keepable(
        study.promise, study.algorithm_object, empty, model_of(study, empty), seed=about.seed,
        rounds=about.rounds, wire=study.wire_object,
    )  # fmt: skip


def find(studies: Mapping[str, str], text: str) -> str:
    """The hash of the one study that is meant: by its name, or by the beginning of its hash.

    `studies` are names by hash. What looks like a hash means a hash and never a name; a name that
    several studies have means none of them.
    """
    if looks_like_hash(text):
        found = [digest for digest in studies if digest.startswith(text)]
        if not found:
            raise ArchipelError(
                f"study '{text}': no study here has a hash that begins so; 'studies' lists them."
            )
    else:
        found = [digest for digest, name in studies.items() if name == text]
        if not found:
            raise unknown("study", text, [name for name in studies.values() if name])
    if len(found) > 1:
        raise ArchipelError(
            f"study '{text}': {len(found)} studies are called so; say which by the beginning of "
            f"its hash, {' or '.join(digest[:12] for digest in found[-4:])}."
        )
    return found[0]


def difference(before: bytes, after: bytes) -> list[str]:
    """The lines that two studies do not share, as text that no terminal obeys."""
    old, new = (text.decode(errors="replace").splitlines() for text in (before, after))
    return [
        clean(line)
        for line in difflib.unified_diff(old, new, lineterm="", n=0)
        if not line.startswith(("@@", "---", "+++"))
    ]


def statement(site: str, study: str, decision: str, facts: Mapping[str, Any]) -> bytes:
    """What a site signs when it decides: all that goes with the decision, in one spelling."""
    said = {"site": site, "study": study, "decision": decision, "facts": dict(facts)}
    return b"archipel decision\n" + json.dumps(said, sort_keys=True, allow_nan=False).encode()
