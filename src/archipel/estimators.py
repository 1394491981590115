# SPDX-License-Identifier: Apache-2.0
"""Federated learning behind scikit-learn's interface: fit, predict, score.

Whatever takes an estimator takes these: `Pipeline`, `GridSearchCV`, `cross_val_score`, `clone`.
"""

from __future__ import annotations

import copy
import numbers
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from archipel import models
from archipel.core import Algorithm
from archipel.data.build import as_tensor
from archipel.data.federation import Federation
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError
from archipel.exchange.boxes import has_personal
from archipel.graphs import Topology
from archipel.models import losses
from archipel.models.losses import Loss
from archipel.models.model import Model
from archipel.rng import Ints
from archipel.runs.simulation import Options, Run, simulate
from archipel.study import fields, plugins
from archipel.training.schedules import Cosine

Array = npt.NDArray[Any]
_FLOATS = (np.float64, np.float32)  # types of X that stay; others become the first
_CHUNK = 8192  # rows predicted at a time
_NOBODY = ("None", "nan", "NaT", "<NA>")  # how a missing label prints


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: all hyper-parameters, and training."""

    def __init__(
        self,
        algorithm: str | Algorithm | None = None,
        model: str | nn.Module | Callable[[int, int], nn.Module] | None = None,
        rounds: int = 100,
        sample: float | int = 1.0,
        loss: str | Loss | Callable[[Tensor, Tensor], Tensor] | None = None,
        topology: str | Topology | None = None,
        standardise: bool = True,
        random_state: int | np.random.RandomState | None = None,
        workers: int | None = 1,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.sample = sample
        self.loss = loss
        self.topology = topology
        self.standardise = standardise
        self.random_state = random_state
        self.workers = workers

    def _train(self, X: Array, y: Array, parties: Any, task: str, classes: int, lr: float) -> Self:
        """Give the rows to their parties and run the rounds."""
        names, owner = _parties(parties, len(X))
        self.scaler_ = StandardScaler().fit(X) if self.standardise else None
        data = Federation.from_rows(
            self._scaled(X),
            y,
            owner,
            test=np.zeros(len(X), np.bool_),
            names=names,
            task=task,
            classes=classes,
            columns=getattr(self, "feature_names_in_", None),
        )
        seed = _seed(self.random_state)
        options: Options = {
            "rounds": self.rounds,
            "sample": self.sample,
            "seed": seed,
            "evaluate_every": self.rounds,  # there is nothing to test on
        }
        if self.topology is not None:
            options["topology"] = self.topology
        if self.workers == 1:  # finding the best plan would take longer than most fits
            options["plan"] = Plan("stacked", 16, 1)
        elif self.workers is not None:
            options["workers"] = self.workers
        algorithm = self._algorithm(lr)
        if has_personal(algorithm):
            raise ArchipelError(
                f"algorithm = {type(algorithm).__name__}: its parties use models of their own and "
                "an estimator has one for all; take simulate or compare, or one such as fedavg."
            )
        model = self._model(data, seed)
        self.run_: Run = simulate(algorithm, data, model, **options)
        self.module_ = self.run_.model.eval()
        self.n_iter_ = len(self.run_.participation)
        return self

    def _algorithm(self, lr: float) -> Algorithm:
        """The algorithm itself, or the one of that name with lr falling from here to 0."""
        name = "fedavg" if self.algorithm is None else self.algorithm
        if not isinstance(name, str):
            return name
        kind: Any = plugins.find("algorithm", name)
        rate, known = Cosine(lr, self.rounds), fields.hints(kind)
        rated = "lr" in known and fields.holds(known["lr"], rate)
        given = {"lr": fields.write(rate)} if rated else {}
        algorithm: Algorithm = fields.build("algorithm", kind, given)
        return algorithm

    def _model(self, data: Federation, seed: int) -> Model:
        """A copy of the module, or a new one drawn from the seed, in the type of the data."""
        named = self.model if isinstance(self.model, str) else None
        usual = models.default_loss(data.task, named)
        loss = usual if self.loss is None else losses.loss(self.loss)
        outputs = 1 if loss.name == "binary_cross_entropy" else data.classes or 1
        model = models.default_model(data.task, data.shape) if self.model is None else self.model
        module: Any = model
        if isinstance(model, str):
            module = models.build(model, data.shape, outputs, seed)
        elif callable(model) and not isinstance(model, nn.Module):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = model(data.shape[0], outputs)
        if not isinstance(module, nn.Module):
            raise ArchipelError(
                f"model = {module!r}: give a name such as 'mlp', a torch module, or a function of "
                "the numbers of features and outputs that returns one."
            )
        return Model(copy.deepcopy(module).to(data.x.dtype), loss)

    def _scaled(self, X: Array) -> Array:
        return X if self.scaler_ is None else self.scaler_.transform(X)

    def _outputs(self, X: Any) -> Tensor:
        """The model's outputs `[n, k]`."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=_FLOATS, order="C", reset=False)
        x = as_tensor(self._scaled(X)).to(next(self.module_.parameters()).dtype)
        with torch.no_grad():
            outputs = torch.cat([self.module_(part) for part in x.split(_CHUNK)])
        return outputs.reshape(len(x), -1)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in super().__getstate__().items() if key != "run_"}


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that parties train together, each on its own rows.

    - `algorithm`: an algorithm, or its name (None: FedAvg) to have it with a learning rate that
      falls from 0.3 to 0 over the rounds; or a file with one, "mine.py:Mine", which has such a rate
      where its `lr` takes one. Not one that gives parties models of their own.
    - `model`: a name of `archipel.models`, a torch module, or a function that makes one of
      (number of features, number of outputs). None is logistic regression. It computes in the type
      of X, float32 or float64, and gives one output per class (one in all for the loss
      "binary_cross_entropy").
    - `rounds`; `sample`, the rate (0 to 1) or number of parties that take part in each.
    - `loss`: a name, a `Loss`, or a function of (outputs, targets). None is cross-entropy.
    - `topology`: who talks to whom, for algorithms without a server such as "dsgd"; the model is
      then the mean of theirs.
    - `standardise`: give every feature mean 0 and variance 1 over all parties' rows. This takes one
      exchange before the first round in which each party, sampled later or not, tells its number of
      rows and each feature's sum and sum of squares; the server sees no more than the totals if
      they are summed securely. Without it, scale the features yourself: the learning rate expects
      numbers around 1.
    - `random_state`: a whole number makes the fit repeatable.
    - `workers`: processes; None is all cores. With more than one, the quickest way to compute is
      found by timing when a kind of model is first used.

    Fitting sets `classes_`, `n_features_in_`, `feature_names_in_` (of a table), `n_iter_` (rounds),
    `scaler_`, `module_` (the torch module that was learnt) and `run_` (the `Run`). A copy and a
    pickle have all but `run_`, which holds the parties' rows.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> hospital = ["north", "south", "east"] * 50
    >>> FederatedClassifier(random_state=0).fit(X, y, parties=hospital).score(X, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train on rows X `[n, d]` with labels y; `parties` names the party of each row.

        Without `parties`, all rows belong to one party, which is ordinary central training.
        """
        X, y = validate_data(self, X, y, dtype=_FLOATS, order="C")
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        return self._train(X, labels, parties, "classification", len(self.classes_), lr=0.3)

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        best = self._logits(X).argmax(dim=1).numpy()
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities `[n, classes]`: the softmax of the model's outputs."""
        return np.asarray(self._logits(X).softmax(dim=1))

    def decision_function(self, X: Any) -> Array:
        """Return the model's outputs `[n, classes]`; the log-odds `[n]` of the second of two."""
        logits = self._logits(X)
        two = logits.shape[1] == 2
        return np.asarray(logits[:, 1] - logits[:, 0] if two else logits)

    def _logits(self, X: Any) -> Tensor:
        outputs = self._outputs(X)
        if outputs.shape[1] == 1 and len(self.classes_) == 2:  # the logit of the second class
            return torch.cat([torch.zeros_like(outputs), outputs], dim=1)
        return outputs[:, : len(self.classes_)]  # a module may have outputs to spare


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor that parties train together, each on its own rows.

    Hyper-parameters and attributes are those of `FederatedClassifier`, with these differences:

    - `algorithm`: the learning rate of a named one starts at 0.2 or 1 / (features + 1), whichever
      is less: larger steps can make least squares diverge, standardised or not.
    - `model`: has one output. None is linear regression.
    - `loss`: None is the squared error; see `archipel.models.losses` for others.
    - `standardise`: also the target (`target_scaler_`), which is what the loss is then measured on;
      predictions are in the target's own unit.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> clinic = [i % 4 for i in range(len(X))]
    >>> FederatedRegressor(rounds=20, random_state=0).fit(X, y, parties=clinic).score(X, y) > 0.45
    True
    """

    def fit(self, X: Any, y: Any, parties: Any = None) -> Self:
        """Train on rows X `[n, d]` with targets y `[n]`; `parties` names the party of each row.

        Without `parties`, all rows belong to one party, which is ordinary central training.
        """
        X, y = validate_data(self, X, y, dtype=_FLOATS, order="C", y_numeric=True)
        column = np.array(y, np.float64).reshape(-1, 1)
        self.target_scaler_ = StandardScaler().fit(column) if self.standardise else None
        if self.target_scaler_ is not None:
            column = self.target_scaler_.transform(column)
        lr = min(0.2, 1 / (X.shape[1] + 1))
        return self._train(X, column[:, 0], parties, "regression", 0, lr)

    def predict(self, X: Any) -> Array:
        """Return the predicted target of each row."""
        column = self._outputs(X).numpy()
        if self.target_scaler_ is not None:
            column = self.target_scaler_.inverse_transform(column)
        return np.asarray(column[:, 0])


def _seed(random_state: Any) -> int:
    generator = check_random_state(random_state)
    whole = isinstance(random_state, numbers.Integral)
    return int(random_state if whole else generator.randint(2**31))


def _parties(parties: Any, rows: int) -> tuple[list[str], Ints]:
    """Return the names of the parties, sorted, and the number of each row's party."""
    if parties is None:
        return ["all"], np.zeros(rows, np.int64)
    labels = np.asarray(parties)
    if labels.shape != (rows,):
        raise ArchipelError(
            f"parties has shape {labels.shape} for {rows} rows of X: give one label a row."
        )
    values, owner = np.unique(
        labels.astype(str) if labels.dtype.kind == "O" else labels, return_inverse=True
    )
    names = [str(value) for value in values]
    for name in _NOBODY:
        if name in names:
            row = int(np.argmax(owner == names.index(name)))
            raise ArchipelError(
                f"parties is {name} in row {row}: name the party of every row, or drop such rows."
            )
    return names, owner.astype(np.int64)
