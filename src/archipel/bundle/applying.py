# SPDX-License-Identifier: Apache-2.0
"""A bundle's model, applied to tables and arrays that nobody trained on."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor, nn

from archipel import metrics, models
from archipel.bundle import files
from archipel.bundle.manifest import Manifest, NetworkPart
from archipel.data import looks, tables
from archipel.data.dialect import UNSAID, Written
from archipel.data.features import Points
from archipel.data.looks import is_number
from archipel.errors import ArchipelError, clean
from archipel.models.losses import LOSSES, default_loss, weighted
from archipel.models.model import Model
from archipel.study import plugins
from archipel.study.loading import made

if TYPE_CHECKING:
    import pandas as pd

_TOGETHER = 8 << 20  # bytes of points that pass the model at a time


class Predictions(NamedTuple):
    """What a model says, a row each."""

    values: npt.NDArray[Any]  # [n] classes by name, numbers, or log-risks
    probabilities: npt.NDArray[np.float64] | None  # [n, classes], for classes


class Bundle:
    """A model with all that is needed to apply it; see `load_bundle`."""

    def __init__(self, about: Manifest, module: nn.Module, card: str, study: str, digest: str):
        self.about, self.module, self.card, self.study = about, module, card, study
        self.digest = digest  # of all files: whoever made the bundle can tell it
        self.features = about.to_features()

    @property
    def columns(self) -> list[str]:
        """The columns that a table must have; none where the model takes arrays."""
        schema = self.features.schema
        return [] if schema is None else [column.name for column in schema.features]

    @property
    def targets(self) -> list[str]:
        """The columns that it predicts, where they have names."""
        return [column.name for column in self.about.features.targets or ()]

    @property
    def classes(self) -> list[Any]:
        """The classes in the order of their probabilities; none for numbers and risks."""
        return self.about.labels

    def __repr__(self) -> str:
        about = self.about
        return clean(f"Bundle '{about.study.name}': {about.task}, {about.model}")

    # -- reading -----------------------------------------------------------------------------------

    def read(self, table: Any, outcomes: bool = False, written: Written = UNSAID) -> Points:
        """Read a file, a table of pandas or an array into points, with `outcomes` targets, too."""
        if self.about.task == "text":
            raise ArchipelError(
                "the bundle's model continues text: give `bundle.module` int64 characters [n, T]."
            )
        path = Path(table) if isinstance(table, str | Path) else None
        if path is not None and not path.is_file():
            raise ArchipelError(
                f"'{path}': no such file; give a .csv, .csv.gz, .parquet or .npy file."
            )
        if path is not None and path.suffix == ".npy":
            table = _array_in(path)
        elif self.features.schema is not None and (path is not None or hasattr(table, "columns")):
            if outcomes and not self.targets:
                raise ArchipelError("the bundle names no target column: leave --score out.")
            return self.features.read(table if path is None else path, outcomes, written)
        elif path is not None:
            table = self._flat(path, written)
        if outcomes:
            raise ArchipelError("an array has no target column to score: leave --score out.")
        return Points(self._points(table), None, [])

    def _points(self, array: Any) -> Tensor:
        """Numbers `[n, *shape]`, or flat, as the model sees them."""
        shape = tuple(self.about.network.shape)
        try:
            x = torch.as_tensor(np.asarray(array, dtype=np.float64))
        except (ValueError, TypeError):
            raise ArchipelError("the array holds no numbers; give numbers only.") from None
        if x.shape[1:] != shape and tuple(x.shape[1:]) != (prod(shape),):
            raise ArchipelError(
                f"the array has shape {list(x.shape)}; the model takes [n, "
                f"{', '.join(map(str, shape))}]{_named(self.features.schema)}."
            )
        x = x.reshape(-1, *shape)
        gaps = ~x.isfinite() if self.about.features.missing != "mean" else x.isinf()
        if bool(gaps.any()):
            row = int(gaps.flatten(1).any(dim=1).nonzero()[0]) + 1
            raise ArchipelError(f"row {row} of the array has no finite number; fill it in.")
        return self.features.apply(x).float()

    def _flat(self, path: Path, written: Written) -> npt.NDArray[np.float64]:
        """A table without names that matter: as many columns as a point has numbers."""
        source = tables.opened(path, written)
        wanted, there = prod(self.about.network.shape), source.header
        if len(there) != wanted:
            raise ArchipelError(
                f"'{path}': has {len(there)} columns; the model takes {wanted}, one for each "
                f"number of a point of shape {self.about.network.shape}, or a .npy file of points."
            )
        if all(map(is_number, there)) and there != [str(i) for i in range(wanted)]:
            raise ArchipelError(f"'{path}': its first row is no header; name columns, 0, 1, 2, ...")
        frame = source.columns(dict.fromkeys(there, ()))
        return np.stack([looks.numbers(frame[name]) for name in there], axis=1)

    # -- applying ----------------------------------------------------------------------------------

    def predict(self, table: str | Path | pd.DataFrame | npt.ArrayLike) -> Predictions:
        """Predict every row of a table (a file, or of pandas) or of an array of raw features."""
        return self.told(self.outputs(self.read(table).x))

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs for points as it sees them; `told` says what they mean."""
        return outputs(self.module, x)

    def told(self, out: Tensor) -> Predictions:
        """What outputs mean."""
        out, unit = out.double(), self.features.target
        if self.about.task != "classification":
            if out.numel() != len(out):
                raise ArchipelError(f"the model gives {list(out.shape)} outputs, not one a row.")
            out = out if unit is None else unit.undo(out)
            return Predictions(out.reshape(-1).numpy(), None)
        if out.dim() == 1 or out.shape[-1] == 1:
            chance = out.reshape(-1).sigmoid()
            chances = torch.stack([1 - chance, chance], dim=-1)
        else:
            chances = out.softmax(dim=-1)
        labels = np.array(self.classes, dtype=object)
        if chances.shape != (len(out), len(labels)):
            raise ArchipelError(
                f"the model gives {list(out.shape)} outputs for {len(labels)} classes."
            )
        return Predictions(labels[chances.argmax(dim=-1).numpy()], chances.numpy())

    def score(self, out: Tensor, y: Tensor) -> dict[str, float]:
        """Metrics of outputs against targets; without the loss where that is the user's own."""
        known = LOSSES.get(self.about.network.loss or "")
        unit, loss = self.features.target, known or default_loss(self.about.task)
        y = y if unit is None else unit.apply(y)
        y = y.float() if y.is_floating_point() else y
        about, weights = self.about, self.about.network.class_weights
        if weights is not None:
            loss = weighted(loss, weights, about.task, about.classes)
        measured = [*(about.metrics or about.reported)]  # but for own ones, whose code is not here
        chosen = metrics.choose([name for name in measured if name in metrics.METRICS] or None)
        found = metrics.pool(about.task, out, y, loss, chosen, unit)
        return found if known else {k: v for k, v in found.items() if k != "loss"}


def outputs(module: nn.Module, x: Tensor) -> Tensor:
    """A module's outputs in evaluation mode, some points at a time."""
    size = max(1, min(512, _TOGETHER // max(1, 4 * x[:1].numel())))
    module.eval()
    with torch.no_grad():
        parts = [module(part) for part in x.split(size)] if len(x) else [module(x)]
    return torch.cat(parts)


def load_bundle(folder: str | Path, trust_code: bool = False) -> Bundle:
    """Open a bundle that `archipel export RUN --bundle` wrote.

    A model whose network is a Python file of its own is not run unless `trust_code` says so.
    """
    folder = Path(folder)
    content, digest = files.load(folder)
    try:
        about = Manifest.read(content[files.ABOUT])
        tensors = _tensors(content[files.MODEL])
        module = _module(about.network, tensors, folder, set(content), trust_code)
        card, study = (_shown(content[name].decode()) for name in (files.CARD, files.STUDY))
    except UnicodeDecodeError:
        raise ArchipelError(f"bundle '{folder}': its card or study is not UTF-8.") from None
    except ArchipelError as error:
        raise type(error)(f"bundle '{folder}': {error}") from None
    return Bundle(about, module, card, study, digest)


def _shown(text: str) -> str:
    """Text whose lines a terminal may show."""
    return "\n".join(map(clean, text.split("\n")))


def _tensors(content: bytes) -> dict[str, Tensor]:
    """Weights by name; the format has no code in it, and no tensor is larger than its bytes."""
    try:
        tensors = safetensors.torch.load(content)
    except Exception as error:  # of the library, which has no one kind for what it refuses
        raise ArchipelError(f"model.safetensors cannot be read ({type(error).__name__}).") from None
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ArchipelError(f"model.safetensors: '{name}' is not finite.")
    return tensors


def _module(
    network: NetworkPart, tensors: dict[str, Tensor], folder: Path, names: set[str], trust: bool
) -> nn.Module:
    """Build the network around its weights; a reference network takes no memory before they fit."""
    name, shape = network.name, tuple(network.shape)
    try:
        if ".py" in name:
            _check_code(name, names, trust)
            built = made(name, network.options, shape, network.outputs, folder)
        elif name in models.MODELS:
            _check_options(network, tensors)
            with torch.device("meta"):
                built = models.build(name, shape, network.outputs, **network.options)
        else:
            built = made(name, network.options, shape, network.outputs, folder)
        module = built.module if isinstance(built, Model) else built
        _check_fit(module, tensors)
        module.load_state_dict(tensors, assign=True)
    except ArchipelError:
        raise
    except Exception as error:
        raise ArchipelError(
            f"the model '{name}' cannot be built: {plugins.reason(error)}."
        ) from error
    return module.eval()


def _check_options(network: NetworkPart, tensors: dict[str, Tensor]) -> None:
    """Refuse more layers than there are weights for: each costs memory, also an empty one."""
    for option, value in network.options.items():
        layers = len(value) if isinstance(value, list) else value if option == "layers" else 0
        if not isinstance(layers, int) or layers > len(tensors):
            raise ArchipelError(f"bundle.json: network.options.{option} does not fit the weights.")


def _check_code(name: str, names: set[str], trust: bool) -> None:
    file = f"{name.rpartition('.py')[0]}.py"
    if not file.startswith(f"{files.CODE}/") or file not in names:
        raise ArchipelError(f"network.name = '{name}' is no Python file of the bundle.")
    if not trust:
        raise ArchipelError(
            f"its model is a Python file, {file}, which is not run unasked: read it, and if you "
            "trust it say --trust-code (in Python, trust_code=True)."
        )


def _check_fit(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    wanted = {name: (t.shape, t.dtype) for name, t in module.state_dict().items()}
    found = {name: (t.shape, t.dtype) for name, t in tensors.items()}
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise ArchipelError(f"the weights are not those of its network: '{name}' differs.")


def _array_in(path: Path) -> npt.NDArray[Any]:
    try:
        found: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise ArchipelError(f"'{path}': is no .npy file of plain numbers; save it anew.") from None
    return found


def _named(schema: Any) -> str:
    return "" if schema is None else f" with {', '.join(schema.columns)}"
