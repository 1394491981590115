# SPDX-License-Identifier: Apache-2.0
"""What a bundle is made of: a run's model, or one that a party has for itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from archipel import metrics, models
from archipel.bundle import files
from archipel.bundle.applying import outputs
from archipel.bundle.card import card
from archipel.bundle.manifest import FORMAT, Manifest
from archipel.core import Vector
from archipel.data.federation import Federation
from archipel.data.rows import ranges
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes, has_personal, is_peer
from archipel.exchange.statistics import keep_own
from archipel.models.losses import LOSSES, Weighted
from archipel.models.model import Model
from archipel.plain import plain
from archipel.runs.record import features_of
from archipel.runs.run import Run
from archipel.runs.simulation import build
from archipel.store.folder import Folder
from archipel.study import plugins
from archipel.study.file import Study

AVERAGED = "averaged over the parties of each round, as the model is"
_BEFORE = "all test points of training parties, by the run: its data is not here any more"
_LACKS = {  # whether all parties' model was asked for
    True: "a run of an earlier version does not tell how the model reads it, as a bundle must",
    False: "a party's own model is made of its points",
}


@dataclass(frozen=True)
class Source:
    """All that a bundle is made of, whoever makes it."""

    study: Study
    text: bytes  # of the study: what was approved, or every field of it
    hash: str  # of the study
    data: Federation  # whose points may be elsewhere
    model: Model
    w: Vector
    buffers: Tensor | None
    whose: str  # "the model that 4 parties trained together"
    trained: str  # parties and points, as far as they are known
    rounds: int
    measured: str  # on what the metrics were
    metrics: dict[str, float] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)  # by the run
    party: str | None = None
    statistics: str = ""  # which ones of BatchNorm
    together: str = "Parties trained on one machine, in a simulation."  # who saw what


def write(source: Source, folder: Path, again: bool = False) -> list[str]:
    """Write a bundle; return the names of its files."""
    content = contents(source)
    files.save(folder, content, again)
    return [*content, files.SUMS]


def contents(source: Source) -> dict[str, bytes]:
    """A bundle's files but for their digests."""
    module = source.model.to_module(source.w, source.buffers)
    state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    code, name = _code(source)
    about = _manifest(source, name)
    said = about.model_dump(exclude_unset=True)  # so that earlier versions read what they know
    return {
        files.ABOUT: json.dumps(said, indent=1, allow_nan=False).encode(),
        files.MODEL: safetensors.torch.save(state),
        files.CARD: card(about, source).encode(),
        files.STUDY: source.text,
        **code,
    }


def _manifest(source: Source, name: str) -> Manifest:
    study, data = source.study, source.data
    minimised = source.model.loss_function
    weights = [*minimised.classes] if isinstance(minimised, Weighted) else None
    loss = (minimised.loss if isinstance(minimised, Weighted) else minimised).name
    described = {
        "format": FORMAT,
        "archipel": version("archipel"),
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "task": data.task,
        "classes": data.classes,
        "network": {
            "name": name,
            "options": study.model.given,
            "shape": list(data.shape),
            "outputs": data.classes or 1,
            "loss": loss if loss in LOSSES else None,
            "class_weights": weights,
        },
        "features": features_of(data).to_json(),
        "study": {
            "name": study.name,
            "purpose": study.purpose,
            "hash": source.hash,
            "algorithm": repr(study.algorithm_object),
            "rounds": source.rounds,
        },
        "model": source.whose,
        "party": source.party,
        "statistics": source.statistics,
        "metrics": plain(source.metrics),
        "measured": source.measured,
        "reported": plain(source.reported),
    }
    return Manifest.read(json.dumps(described).encode())


def _code(source: Source) -> tuple[dict[str, bytes], str]:
    """The Python files of the study's own model, and the name that it has with them."""
    study, data = source.study, source.data
    name = study.model.name or models.default_model(data.task, data.shape)
    paths = plugins.files_of("model", name, study.base)
    if not paths:
        return {}, name
    top = paths[0].resolve().parent
    named = {f"{files.CODE}/{p.resolve().relative_to(top).as_posix()}": p for p in paths}
    wanted = name.rpartition(".py:")[2] if ".py:" in name else ""
    inside = f"{files.CODE}/{paths[0].name}" + (f":{wanted}" if wanted else "")
    return {where: path.read_bytes() for where, path in named.items()}, inside


# -- a run on this machine -------------------------------------------------------------------------


def of_run(run: Run, party: str | None = None) -> Source:
    """The model that a run's parties share, or the one that a party uses."""
    if not isinstance(run.study, Study) or run.folder is None:
        raise ArchipelError(
            f"run '{run.name}' was made from objects in Python: a bundle needs a study, which "
            "names the model; 'archipel export' gives its weights."
        )
    if not run.history:
        raise ArchipelError(f"run '{run.name}' has no round to show for: resume it.")
    if run.data.about.gone and (party is not None or not _tells(run)):
        raise ArchipelError(
            f"run '{run.name}': its data changed or is gone, and {_LACKS[party is None]}; put it "
            "back, or take 'archipel export' for the weights."
        )
    data, shared = (
        run.data,
        "the mean of the peers' models"
        if is_peer(run.algorithm)
        else (f"the model that {run.data.training} parties share"),
    )
    source = Source(
        run.study, run.study.toml().encode(), run.study.hash, data, run.task_model, run.vector,
        run.buffers, shared, _trained(data), run.done, "", reported=run.metrics,
        statistics=AVERAGED if len(run.task_model.running) else "",
    )  # fmt: skip
    chosen = slice(0, data.training)
    if party is not None:
        k = data.index(party)
        source, chosen = _of_party(run, source, k), slice(k, k + 1)
    elif keep_own(Boxes(run.algorithm), run.task_model):
        raise ArchipelError(
            f"run '{run.name}': every party keeps its own statistics of BatchNorm, so there is no "
            f"one model whose score was reported; say --party, such as {data.name(0)}."
        )
    if data.about.gone:
        return replace(source, measured=_BEFORE)
    found, points = _scores(source, chosen)
    where = f"{data.training} parties" if party is None else party
    return replace(source, metrics=found, measured=f"all {points} test points of {where}")


def _tells(run: Run) -> bool:
    """Whether the run's journal tells how rows became points."""
    assert run.folder is not None
    return "features" in Folder(run.folder).row("description")["description"].get("record", {})


def _of_party(run: Run, source: Source, k: int) -> Source:
    """The model that a party uses: its own, or the shared one with its own statistics."""
    name, algorithm, data = run.data.name(k), type(run.algorithm).__name__, run.data
    own = is_peer(run.algorithm) or has_personal(run.algorithm)
    if Boxes(run.algorithm).has_predict:
        raise ArchipelError(
            f"--party {name}: {algorithm} predicts by a party's own rows, which no bundle carries; "
            "leave --party out."
        )
    keeps = keep_own(Boxes(run.algorithm), run.task_model)
    if not own and not keeps:
        raise ArchipelError(
            f"--party {name}: {algorithm} has one model for all parties; leave --party out."
        )
    if int(data.n[k]) == 0:
        raise ArchipelError(f"--party {name}: has no training point, so no model of its own.")
    options: Any = {**source.study.options(), "plan": run.plan, "workers": 1}
    engine, _ = build(run.algorithm, data, run.task_model, options)
    assert run.folder is not None
    folder = Folder(run.folder)
    engine.restore(folder.load_checkpoint(folder.journal.row()["done"]))
    folder.journal.close()
    w, buffers = engine.own_model(k)
    return replace(
        source,
        w=w,
        buffers=buffers,
        whose=f"{name}'s own model" if own else source.whose,
        party=name,
        statistics=f"{name}'s own" if len(run.task_model.running) else "",
        reported={metric: float(values[k]) for metric, values in run.parties.items()},
    )


def _trained(data: Federation) -> str:
    (training, new), virtual = data.real, int(data.virtual.sum())
    copies = f" and {virtual} virtual copies of them" if virtual else ""
    return (
        f"{training} parties{copies}, {int(data.n[: data.training].sum())} training points and "
        f"{int(data.n_test[: data.training].sum())} test points"
        + (f"; {new} new parties took no part in training" if new else "")
    )


def _scores(source: Source, parties: slice) -> tuple[dict[str, float], int]:
    """Metrics of the model as the bundle has it, on the test points of these parties."""
    data, model = source.data.as_trained(), source.model
    starts, stops = data.test_from[parties].numpy(), data.offsets[1:][parties].numpy()
    rows = torch.from_numpy(ranges(starts, stops))
    if len(rows) == 0:
        return {}, 0
    out = outputs(model.to_module(source.w, source.buffers), data.x[rows])
    found = metrics.pool(
        data.task, out, data.y[rows], model.loss_function, model.metrics, data.features.target
    )
    return found, len(rows)
