# SPDX-License-Identifier: Apache-2.0
"""What can be said before a run starts: one sentence on an algorithm, a sweep or a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import isgeneratorfunction
from typing import Any

from torch import Tensor

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.errors import ArchipelError, unknown
from archipel.exchange.boxes import Boxes
from archipel.graphs import Topology
from archipel.models.model import Model
from archipel.training.descent import work_of
from archipel.wire.wire import Wire


def check_algorithm_fields(algorithm: Any) -> None:
    """Say in one sentence what keeps an object from being an algorithm."""
    name = algorithm.__name__ if isinstance(algorithm, type) else type(algorithm).__name__
    if isinstance(algorithm, type):
        raise ArchipelError(f"algorithm = {name}: give an instance, {name}().")
    if not is_dataclass(algorithm):
        raise ArchipelError(f"algorithm = {algorithm!r}: give a dataclass, such as FedAvg(lr=0.1).")
    for method in ("init", "party"):
        if not callable(getattr(algorithm, method, None)):
            raise ArchipelError(
                f"{name} has no method {method}: see archipel.core for the two kinds."
            )
    if hasattr(algorithm, "lr"):
        work_of(algorithm)
    mu = getattr(algorithm, "mu", 0.0)
    if isinstance(mu, float | int) and mu < 0:
        raise ArchipelError(f"mu = {mu}: give a number from 0.")


def check_sweep(
    algorithm: Algorithm, sweep: Mapping[str, Sequence[float]] | None
) -> tuple[Mapping[str, Sequence[float]], int | None]:
    if not sweep:
        return {}, None
    names = [field.name for field in fields(algorithm)]  # type: ignore[arg-type]
    for name, values in sweep.items():
        if name not in names:
            raise unknown(f"field of {type(algorithm).__name__}", name, names)
        numbers = [isinstance(value, float | int) for value in values]
        if not isinstance(getattr(algorithm, name), float) or not values or not all(numbers):
            raise ArchipelError(
                f"sweep of {name} = {values!r}: only fields that are decimal numbers, such as lr, "
                "run side by side; give at least one number, or start a run per value."
            )
    counts = {len(values) for values in sweep.values()}
    if len(counts) != 1:
        raise ArchipelError(
            f"the swept fields {', '.join(sweep)} have different numbers of values: "
            "give each the same number."
        )
    return sweep, counts.pop()


def check_stepping(algorithm: Any, wire: Wire) -> None:
    """Refuse what parties that do not wait for each other cannot do."""
    name = type(algorithm).__name__
    if not hasattr(algorithm, "server"):
        raise ArchipelError(f"{name} is asynchronous and has no server: give it a method server.")
    if isgeneratorfunction(algorithm.party):
        raise ArchipelError(
            f"{name} is asynchronous and its parties wait for a reply (yield): send one message, "
            "or leave asynchronous out."
        )
    if wire.sum is not None and wire.up:
        raise ArchipelError(
            f"wire.up, {wire.up[0]!r}: {name} adds up uploads of parties that began in several "
            "rounds, each with its own draws, and a sum of them cannot be undone; leave the step "
            'out, or say wire.sum = "plain".'
        )


def check_fit(model: Model, data: Federation) -> None:
    """Say in one sentence when model and data do not belong together."""
    data = data.form
    if data.x.is_floating_point() and data.x.dtype != model.dtype:
        raise ArchipelError(
            f"the data is {data.x.dtype} but the model {model.dtype}: "
            "convert one of them, for example with module.double()."
        )
    try:
        outputs = model.predict(model.w, data.x[:2], model.buffers)
    except ArchipelError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArchipelError(
            f"the model {type(model.module).__name__} cannot read points of shape "
            f"{tuple(data.shape)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ArchipelError(
            f"the model {type(model.module).__name__} returns a {type(outputs).__name__}: "
            "return one tensor of outputs."
        )
    model.loss_function.check(outputs, data.y[:2], data.classes or None)


def check_clock(
    boxes: Boxes,
    topology: Topology | None,
    sweep: Mapping[str, Sequence[float]] | None,
    wire: Wire,
) -> None:
    """Refuse what does not go together with turns that follow each other."""
    if boxes.clock == "rounds":
        return
    name = boxes.name
    if not boxes.peer:
        raise ArchipelError(
            f'{name} has clock = "{boxes.clock}" and a server: a clock is for algorithms without.'
        )
    if boxes.clock == "wakes" and not hasattr(boxes.algorithm, "told"):
        raise ArchipelError(
            f"{name} has no method told: add told(own), what others hold of a party that wakes."
        )
    if topology is None and not boxes.learns_graph:
        raise ArchipelError(
            f"{name} talks to its neighbours: name a topology, such as "
            "topology.name = \"ring\" in a study, or topology='ring' in Python."
        )
    if sweep:
        raise ArchipelError(
            f"sweep of {', '.join(sweep)}: parties of {name} have their turns one by one, and the "
            "settings of a sweep run side by side; start a run per value."
        )
    check_bare(boxes, wire)


def check_bare(boxes: Boxes, wire: Wire) -> None:
    """Refuse a wire where there are no rounds: nothing of it would be passed."""
    given = wire.up or wire.down or wire.rule is not None or wire.sum is not None
    if boxes.clock != "rounds" and given:
        raise ArchipelError(
            f"the wire of {boxes.name}: what its parties tell each other is said as it is; leave "
            "out [wire] and [round] rule, or take choco for messages that pass steps."
        )
