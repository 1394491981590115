# SPDX-License-Identifier: Apache-2.0
"""What a run was, in plain values: journaled when it begins, so that it can be told ever after
without its data, its code and torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archipel.data.features import Features
    from archipel.data.federation import Federation
    from archipel.runs.run import Run


@dataclass(frozen=True)
class Record:
    """Algorithm, model and data of a run, as far as its report tells of them."""

    algorithm: str  # the name of its class
    paper: str
    does: str
    settings: dict[str, str]  # by name, as Python writes them
    given: list[str]  # those of them that are not as they usually are
    peer: bool  # has no server
    personal: bool  # parties use models of their own
    joining: list[int]  # messages of a new party, and bytes up and down
    layers: list[str]
    parameters: int
    loss: str
    data: str  # its name, where it comes from, on what terms
    source: str
    licence: str
    citation: str
    task: str
    classes: int
    shape: list[int]
    named: bool  # whether parties have names of their own
    floating: bool  # whether features are numbers with fractions
    scaling: bool  # whether features were put on a scale, and the target
    target: bool
    features: dict[str, Any]  # how a row becomes a point: what a bundle tells
    class_weights: list[float] | None  # in the loss
    origin: list[int] | None  # of each party, where some are copies or folds of others
    seed: int
    metric: str
    wanted: float | None  # of that metric
    attacked: str = ""  # who attacks the model, and how; in words

    @classmethod
    def of(cls, run: Run) -> Record:
        """Write down what a run with all its parts is."""
        from torch import nn

        from archipel.exchange.boxes import has_personal, is_peer
        from archipel.models.losses import Weighted
        from archipel.tree import leaves, nbytes

        given: Any = run.algorithm
        kind, module, fed = type(given), run.task_model.module, run.data
        paper = (getattr(sys.modules.get(kind.__module__), "__doc__", None) or "").split("\n\n")[0]
        does = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        weighted = run.task_model.loss_function
        sent, asked = run.anatomy.sent, run.anatomy.personal
        return cls(
            algorithm=kind.__name__,
            paper=" ".join(paper.split()),
            does="" if does.startswith(f"{kind.__name__}(") else does,  # a dataclass without words
            settings={f.name: repr(getattr(given, f.name)) for f in fields(given)},
            given=[f.name for f in fields(given) if getattr(given, f.name) != f.default],
            peer=is_peer(given),
            personal=has_personal(given),
            joining=[
                bool(leaves(sent)) + 2 * len(asked),
                sum(nbytes(message.upload) for message in asked),
                nbytes(sent) + sum(nbytes(message.reply) for message in asked),
            ],
            layers=[
                type(layer).__name__
                for layer in (module.children() if isinstance(module, nn.Sequential) else [module])
            ],
            parameters=run.task_model.p,
            loss=run.task_model.loss_function.name,
            data=fed.about.name,
            source=fed.about.source,
            licence=fed.about.licence,
            citation=fed.about.citation,
            task=fed.task,
            classes=fed.classes,
            shape=list(fed.shape),
            named=fed.names is not None,
            floating=fed.form.x.is_floating_point(),
            scaling=fed.features.scaling is not None,
            target=fed.features.target is not None,
            features=features_of(fed).to_json(),
            class_weights=list(weighted.classes) if isinstance(weighted, Weighted) else None,
            origin=None if fed.origin is None else fed.origin.tolist(),
            seed=run.seed,
            metric=run.metric,
            wanted=run.target,
            attacked=""
            if run.adversary is None
            else run.adversary.in_words(run.data, run.seed, run.rounds, run.topology),
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, told: Mapping[str, Any] | None) -> Record | None:
        """None where a journal has none, or not all of it."""
        names = {each.name for each in fields(cls)}
        needed = {each.name for each in fields(cls) if each.default is MISSING}
        if told is None or not told.keys() >= needed:
            return None
        return cls(**{name: told[name] for name in names & told.keys()})


def features_of(data: Federation) -> Features:
    """How rows became points; columns of numbers where they have names and no more is known."""
    from archipel.data.schema import Column, Schema

    features = data.features
    if features.schema is None and data.columns is not None:
        return replace(features, schema=Schema(tuple(map(Column, data.columns)), ()))
    return features
