# SPDX-License-Identifier: Apache-2.0
"""What a site agrees to: a study in words, and what leaves the building, before anything runs."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from archipel import models
from archipel.data.federation import Federation
from archipel.errors import ArchipelError, clean, unknown
from archipel.exchange import Anatomy, Message
from archipel.federation.binding import needs_scale, schema_of
from archipel.model import Model
from archipel.sections import read_tables
from archipel.study import Study
from archipel.tree import leaves, nbytes

_MOST = 256 << 10  # bytes of a study
_DOTS = 100  # in a line of it: a key of n parts takes a reader of TOML n^2 memory
_WEIGHTS = 1 << 29  # of a model: 2 GiB
_PURPOSE = 1000  # characters of a purpose that are shown


def hash_of(text: bytes) -> str:
    """Names the exact bytes of a study file: what is approved."""
    return sha256(text).hexdigest()


def read(text: bytes) -> Study:
    """The study that came over the wire, which names no code of its own; data is elsewhere."""
    if len(text) > _MOST or any(line.count(b".") > _DOTS for line in text.split(b"\n")):
        raise ArchipelError(
            f"the study has {len(text)} bytes, or a line with more than {_DOTS} dots: give at most "
            f"{_MOST} bytes, and shorter lines."
        )
    try:
        tables = read_tables(text.decode())
    except UnicodeDecodeError:
        raise ArchipelError("the study is not text in UTF-8.") from None
    for section in ("algorithm", "model", "data"):  # before anything is looked up by its name
        name = tables.get(section, {}).get("name")
        if name is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,80}", str(name)):
            raise ArchipelError(
                f"{section}.name = {str(name)[:80]!r}: a study between institutions names no code "
                "of its own; install it as a package at every site and name it."
            )
    return Study.parse(tables, elsewhere=True)


def model_of(study: Study, data: Federation) -> Model:
    """The study's model, unless it is larger than a site builds for somebody else."""
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


def find(studies: Mapping[str, str], text: str) -> str:
    """The hash of a study: the last one of that name, or the one that begins so.

    `studies` are names by hash, in the order in which they came.
    """
    named = [digest for digest, name in studies.items() if name == text]
    hashed = [digest for digest in studies if len(text) >= 4 and digest.startswith(text)]
    if not named and len(hashed) != 1:
        raise unknown("study", text, studies.values())
    return (named or hashed)[-1]


def statement(site: str, study: str, decision: str, facts: Mapping[str, Any]) -> bytes:
    """What a site signs when it decides: all that goes with the decision, in one spelling."""
    said = {"site": site, "study": study, "decision": decision, "facts": dict(facts)}
    return b"archipel decision\n" + json.dumps(said, sort_keys=True, allow_nan=False).encode()


def leaving(anatomy: Anatomy, study: Study, mixed: Sequence[Tensor] = ()) -> list[str]:
    """What a site sends, a line each; `mixed` is what a peer's round mixes."""
    rows = []
    if needs_scale(study):
        columns = len(schema_of(study).columns)
        rows.append(
            f"once, before the first round: of each of {columns} features the count, the sum and "
            "the sum of squares over your training rows; the coordinator sees them site by site"
        )
    for number, message in enumerate(anatomy.messages, 1):
        which = f"upload {number}" if len(anatomy.messages) > 1 else "upload"
        rows.append(f"{which}, every round: {_form(message)}")
    rows += [
        f"to each neighbour on the graph {study.topology.name}, every round: {x.numel()} numbers, "
        f"{_bytes(nbytes(x))}; neighbours see them as they are, the coordinator never"
        for x in mixed
    ]
    rows.append("with each upload how many gradients it took, which grows with your points")
    asks = {ask for message in anatomy.messages for ask in message.asks}
    if "mean by examples" in asks:
        rows.append("your number of training points, every round")
    rows.append(
        "the model's metrics on your test points, when the study evaluates; how many they are, if "
        "you agree"
    )
    for number, message in enumerate(anatomy.personal, 1):
        rows.append(f"question {number} for a model of your own: {_form(message)}")
    rows.append("once: shape and classes of your data, and if you agree how many points you have")
    return rows


def _form(message: Message) -> str:
    shapes = [" x ".join(map(str, leaf.shape)) or "1" for leaf in leaves(message.upload)]
    seen = "individually" if "stack" in message.asks else "as a mean over sites"
    return f"{' and '.join(shapes)} numbers, {_bytes(nbytes(message.upload))}, used {seen}"


def review(
    study: Study,
    digest: str,
    anatomy: Anatomy,
    members: Sequence[str],
    before: bytes | None = None,
    text: bytes = b"",
    mixed: Sequence[Tensor] = (),
) -> str:
    """The study in words that a data manager can decide by."""
    about, policy = study.study, study.round
    lines = [
        f"Study     {clean(about.name)}",
        f"Purpose   {_shown(about.purpose) or '(none given)'}",
        f"Members   {clean(', '.join(members)) or '(nobody yet)'}",
        f"Method    {study.algorithm.name}, {about.rounds} rounds",
        f"Hash      {digest}",
        "",
        "What leaves the building",
    ]
    lines += [f"  {line}" for line in leaving(anatomy, study, mixed)]
    each = " to each neighbour" if mixed else ""
    sums = 3 * 8 * len(schema_of(study).columns) if needs_scale(study) else 0
    total = sums + (anatomy.bytes_up + nbytes(tuple(mixed))) * about.rounds
    lines.append(
        f"  in all at most {_bytes(total)}"
        f"{each} of numbers computed from your data, over {about.rounds} rounds; never a record as "
        "it stands"
    )
    if not mixed:
        lines.append(
            "  the coordinator receives your uploads one by one; the algorithm "
            + ("uses only their mean over sites" if anatomy.sums_only else "looks at each of them")
        )
    lines += [
        "",
        "Privacy",
        "  asked: no noise is added in this study, so no bound on what uploads reveal is claimed;",
        "  with few points or small batches, records can be computed from them",
        "  left: no budget is kept at this site yet, for no study counts against one",
        "",
        f"Taking part  {_share(policy.sample)} a round, quorum {_share(policy.quorum)}, "
        + (f"deadline {policy.deadline:g} s" if policy.deadline else "no deadline"),
    ]
    if before is not None:
        old, new = before.decode().splitlines(), text.decode().splitlines()
        changes = [
            line
            for line in difflib.unified_diff(old, new, "approved", "asked", lineterm="", n=0)
            if not line.startswith(("@@", "---", "+++"))
        ]
        lines += ["", "Changed since you last approved", *(f"  {clean(line)}" for line in changes)]
    return "\n".join(lines)


def _share(count: float) -> str:
    """So many sites, or a share of them."""
    if isinstance(count, int):
        return f"{count} site{'' if count == 1 else 's'}"
    return "all sites" if count == 1 else f"{count:.0%} of the sites"


def _shown(purpose: str) -> str:
    """On one line, and no longer than a screen: the rest of the review is not pushed out of it."""
    if len(purpose) <= _PURPOSE:
        return clean(purpose)
    return f"{clean(purpose[:_PURPOSE])} ... ({len(purpose) - _PURPOSE} characters more)"


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"
