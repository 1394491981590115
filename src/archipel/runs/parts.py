# SPDX-License-Identifier: Apache-2.0
"""The parts of a run, made from names or taken as they are: federation, model, topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn

from archipel import data as datasets
from archipel import models
from archipel.data.federation import Federation
from archipel.data.rows import ranges
from archipel.errors import ArchipelError
from archipel.graphs import Described, Topology
from archipel.graphs import topology as topology_of
from archipel.models.losses import Loss, balanced, weighted
from archipel.models.losses import loss as loss_of
from archipel.models.model import Model, Statistics

ClassWeights = Sequence[float] | Literal["balanced"]


def federation(
    data: str | Federation, partition: str | None = None, parties: int | None = None, seed: int = 0
) -> Federation:
    """Return the federation itself, or load the dataset of that name."""
    if isinstance(data, Federation):
        if partition is not None:
            return data.repartition(partition, parties or data.training, seed)
        if parties is not None:
            raise ArchipelError(
                f"parties = {parties}: this federation has {data.parties}; say partition='iid' as "
                "well to deal its points out anew."
            )
        return data
    return datasets.load(data, partition=partition, parties=parties, seed=seed)


def build_model(
    model: str | nn.Module | Model | None,
    fed: Federation,
    loss: str | Loss | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    statistics: Statistics | None = None,
    class_weights: ClassWeights | None = None,
) -> Model:
    """Return the model itself, a module with the task's loss, or a reference network by name."""
    if isinstance(model, Model):
        given = {"loss": loss, "statistics": statistics, "class_weights": class_weights}
        for name, value in given.items():
            if value is not None:
                raise ArchipelError(
                    f"{name} = {value!r}: the model has its own already; leave it out."
                )
        return model
    if model is None:
        model = models.default_model(fed.task, fed.shape)
    usual = models.default_loss(fed.task, model if isinstance(model, str) else None)
    if isinstance(model, str):
        model = models.build(model, fed.shape, fed.classes or 1, seed, **(options or {}))
        if fed.form.x.is_floating_point():
            model = model.to(fed.form.x.dtype)
    minimised = loss_of(usual if loss is None else loss)
    if class_weights is not None:
        minimised = weighted(minimised, _weights(class_weights, fed), fed.task, fed.classes)
    return Model(model, minimised, statistics or "averaged")


def _weights(given: ClassWeights, fed: Federation) -> Sequence[float]:
    """A weight for each class: as given, or of the training points of all training parties."""
    if not isinstance(given, str):
        return given
    if given != "balanced":
        raise ArchipelError(f'class_weights = "{given}": say "balanced", or give numbers.')
    if fed.task != "classification":
        return [1.0]
    if fed.about.elsewhere:
        raise ArchipelError(
            'class_weights = "balanced": how many points each class has is known to the sites '
            "alone, and they do not tell; agree on numbers and give them, [1.0, 5.0]."
        )
    rows = ranges(fed.offsets[: fed.training].numpy(), fed.test_from[: fed.training].numpy())
    return balanced(fed.y[torch.from_numpy(rows)].bincount(minlength=fed.classes).tolist())


def build_topology(
    topology: str | Topology | Described | None, fed: Federation, seed: int
) -> Topology | None:
    """Return the topology itself, or the one of that name over the training parties."""
    if topology is None or isinstance(topology, Topology):
        return topology
    names = [fed.name(k) for k in range(fed.training)]
    if isinstance(topology, Described):
        return topology.over(names, seed)
    if not isinstance(topology, str):
        raise ArchipelError(f"topology = {topology!r}: give a name such as 'ring'.")
    return topology_of(topology, fed.training, seed, names)


def check_learned(learned: bool, algorithm: object, graph: str | None = None) -> None:
    """Whether the algorithm learns the graph, where it is said to, and is said to where it does."""
    learns = getattr(algorithm, "learns_graph", False)
    if learns and graph is not None and not learned:
        raise ArchipelError(
            f"topology of {type(algorithm).__name__}, {graph}: it learns a graph; say "
            "topology.learned = true to begin with this one, or algorithm.learned = false to keep "
            "it."
        )
    if learned and not learns:
        raise ArchipelError(
            f"topology.learned = true: {type(algorithm).__name__} takes the graph as it is; leave "
            "it out, or take an algorithm that learns who is like whom."
        )
