# SPDX-License-Identifier: Apache-2.0
"""Whether two runs are the same run: what a run was asked to do, in full, and its print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.data.population import Population
from archipel.errors import ArchipelError
from archipel.graphs import Topology
from archipel.models.losses import Loss
from archipel.models.model import Model
from archipel.runs.recording import ENGINE
from archipel.runs.run import Description
from archipel.store.folder import Folder
from archipel.wire.wire import Wire


def describe(
    algorithm: Algorithm,
    fed: Federation,
    model: Model,
    options: Mapping[str, Any],
    study: Description | None,
) -> dict[str, Any]:
    """All that a run's result depends on: its study, or a print of the objects it was given."""
    if study is not None:
        return {"study": study.resolved()}
    data = blake2b(digest_size=16)
    for tensor in (fed.offsets, fed.test_from):
        data.update(np.ascontiguousarray(tensor.numpy()).data)
    if isinstance(fed, Population):
        data.update(fed.source.print.encode())
    else:
        for tensor in (fed.x, fed.y):
            data.update(np.ascontiguousarray(tensor.numpy()).data)
    names = None if fed.names is None else list(map(str, fed.names))
    data.update(repr((fed.training, fed.task, fed.classes, names)).encode())
    if (target := fed.features.target) is not None:  # what is trained on is not y
        data.update(repr([float(part) for part in target]).encode())
    net = blake2b(str(model.module).encode(), digest_size=16)
    net.update(model.w.numpy().tobytes())
    net.update(model.buffers.numpy().tobytes())
    chosen = {
        name: _plain(value)
        for name, value in sorted(options.items())
        if name not in ("workers", "plan", "device", *ENGINE)
    }
    if (trace := Path(str(options.get("trace") or ""))).is_file():
        chosen["trace"] = sha256(trace.read_bytes()).hexdigest()
    return {
        "objects": {
            "algorithm": repr(algorithm),
            "data": f"{fed.about.name} {data.hexdigest()}",
            "model": f"{type(model.module).__name__} {net.hexdigest()}",
            "loss": model.loss_function.name,
            "statistics": model.statistics,
            "options": chosen,
        }
    }


def outline(fed: Federation) -> dict[str, Any]:
    """What a report needs to know of the data once it is gone; the roster has the rest."""
    form = fed.form
    return {
        "name": fed.about.name,
        "shape": "x".join(map(str, fed.shape)),
        "classes": fed.classes,
        "task": fed.task,
        "dtype": str(form.y.dtype if form.x.dtype == torch.int64 else form.x.dtype)[6:],
    }


def _plain(value: Any) -> Any:
    """An option as it reads in every process."""
    if isinstance(value, Topology):
        edges = sha256(repr(value.edges(0, np.array([], np.int64))).encode()).hexdigest()[:16]
        return f"{value.name} over {value.n}, {edges}"
    if isinstance(value, Loss):
        return value.name
    if isinstance(value, Wire):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value):  # of a wire
        return repr(value)
    if callable(value):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__name__)}"
    return value if isinstance(value, int | float | str) else repr(value)


def digest(description: Mapping[str, Any]) -> str:
    (content,) = description.values()
    text = json.dumps(content, sort_keys=True)
    schema = description.get("study", {}).get("data", {}).get("schema")
    if schema:  # whose columns have an order
        text += json.dumps(list(schema))
    return sha256(text.encode()).hexdigest()


def check_same(folder: Folder, description: Mapping[str, Any]) -> None:
    """Refuse to go on with another study than the one that began."""
    row = folder.journal.row()
    if row["hash"] == digest(description):
        return
    before = {name: row["description"].get(name) for name in description}
    changed = _differences(before, description)
    raise ArchipelError(
        f"out = '{folder.path}': the run there is another one ({', '.join(changed[:5])} differ); "
        "put them back, or name another folder."
    )


def _differences(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return [
            found
            for key in sorted({*before, *after})
            for found in _differences(before.get(key), after.get(key), f"{path}.{key}")
        ]
    name = path.removeprefix(".").removeprefix("study.").removeprefix("objects.")
    return [] if before == after else [name]
