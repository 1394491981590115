# SPDX-License-Identifier: Apache-2.0
"""Small reference networks, by name. Any other `torch.nn.Module` serves as well."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

import torch
from torch import nn

from archipel.errors import ArchipelError, unknown
from archipel.models import losses
from archipel.models.cnn import cnn, lenet
from archipel.models.ensemble import linear_score, stumps
from archipel.models.linear import cox, linear, logistic
from archipel.models.losses import Loss
from archipel.models.lstm import char_lstm
from archipel.models.mlp import mlp, two_nn

MODELS: dict[str, Callable[..., nn.Module]] = {  # (shape of an example, outputs, options)
    "2nn": two_nn,
    "char_lstm": char_lstm,
    "cnn": cnn,
    "cox": cox,
    "lenet": lenet,
    "linear": linear,
    "linear_score": linear_score,
    "logistic": logistic,
    "mlp": mlp,
    "stumps": stumps,
}

_LOSSES = {"stumps": "adaboost", "linear_score": "binary_cross_entropy"}  # of one output


def build(
    name: str, shape: tuple[int, ...], outputs: int, seed: int = 0, **options: object
) -> nn.Module:
    """Return the model for examples of that shape, its weights drawn from the seed alone.

    >>> sum(w.numel() for w in build("2nn", (1, 28, 28), 10).parameters())
    199210
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    builder = MODELS[name]
    known = {field: p.default for field, p in signature(builder).parameters.items()}
    for field in ("shape", "outputs"):
        known.pop(field)
    for field, value in options.items():
        if field not in known:
            if not known:
                raise ArchipelError(f"the model '{name}' has no options: remove '{field}'.")
            raise unknown(f"option of the model '{name}'", field, known)
        if isinstance(known[field], float):
            _check_number(name, field, value)
        else:
            _check(name, field, value, several=not isinstance(known[field], int))
    _check(name, "shape", shape, several=True)
    _check(name, "outputs", outputs, several=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return builder(tuple(shape), outputs, **options)


def default_model(task: str, shape: tuple[int, ...]) -> str:
    """Return the name of the model a task is solved with unless the study names another."""
    images = len(shape) in (2, 3) and min(shape[-2:]) >= 4
    names = {
        "classification": "cnn" if images else "logistic",
        "regression": "linear",
        "survival": "cox",
        "text": "char_lstm",
    }
    if task not in names:
        raise unknown("task", task, names)
    return names[task]


def default_loss(task: str, model: str | None = None) -> Loss:
    """Return the loss a task, or one of these models, is trained with unless told otherwise."""
    return losses.default_loss(task) if model not in _LOSSES else losses.loss(_LOSSES[model])


def _check(name: str, field: str, value: object, several: bool) -> None:
    """Refuse what is not a whole number from 1 on, or a list of them."""
    numbers = value if several and isinstance(value, list | tuple) else [value]
    if (several and numbers is not value) or not all(type(n) is int and n >= 1 for n in numbers):
        wanted = "a list of whole numbers from 1 on" if several else "a whole number from 1 on"
        raise ArchipelError(f"{field} of the model '{name}' is {value!r}: give {wanted}.")


def _check_number(name: str, field: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ArchipelError(f"{field} of the model '{name}' is {value!r}: give a number.")
