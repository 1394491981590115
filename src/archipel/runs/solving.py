# SPDX-License-Identifier: Apache-2.0
"""Models that are linear in the features, solved rather than trained.

Numbers: ridge regression, its penalty chosen by leaving each point out once. Other losses that are
convex (classes, Cox): L-BFGS to convergence, with the penalty of scikit-learn's logistic
regression, |weights|² / 2 over the sum of losses. Neither depends on a learning rate, and both stay
finite where a party has fewer points than features, or one class only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from archipel.core import Vector
from archipel.engines.plan import threads
from archipel.models.model import Model

Floats = npt.NDArray[np.float64]

PENALTIES = tuple(float(10**k) for k in range(-3, 5))  # of ridge, times |weights|²
_CONVEX = ("cross_entropy", "binary_cross_entropy", "cox")
_INTERCEPT = 1e-6  # its penalty beside the weights': a class that a party lacks stays finite
_WORK = 3e8  # points times weights, of which each step is a pass


def solvable(model: Model, points: int) -> bool:
    """Whether the model is linear with a loss that can be solved, and small enough to do so."""
    layers = [m for m in model.module.modules() if not isinstance(m, nn.Sequential | nn.Flatten)]
    return (
        len(layers) == 1
        and isinstance(layers[0], nn.Linear)
        and model.loss_function.name in ("squared_error", *_CONVEX)
        and points * model.p <= _WORK
    )


def solve(model: Model, x: Tensor, y: Tensor) -> Vector:
    """The weights that minimise the penalised loss on points `[n, *shape]`, as a vector `[p]`.

    >>> model = Model(nn.Linear(1, 1), "squared_error")
    >>> x = torch.arange(50.0)[:, None]
    >>> [round(float(value), 2) for value in solve(model, x, 2 * x[:, 0] + 1)]
    [2.0, 1.0]
    """
    from scipy.optimize import minimize  # takes long to import

    if model.loss_function.name == "squared_error" and model.spec.size == x[0].numel() + 1:
        return _ridge(model, x, y)
    (k, d), intercept = model.spec.shapes[0], len(model.spec.shapes) > 1
    x, y = x.flatten(1).double(), y.double() if y.is_floating_point() else y
    loss, each = model.loss_function, torch.full((len(x),), 1 / len(x), dtype=torch.float64)
    penalty = torch.full((model.p,), (2.0 if k == 2 else 1.0) / len(x), dtype=torch.float64)
    penalty[k * d :] *= _INTERCEPT  # and of two outputs, one says it all

    def value(w: Floats) -> tuple[float, Floats]:
        at = torch.from_numpy(w)
        outputs = x @ at[: k * d].view(k, d).T + (at[k * d :] if intercept else 0.0)
        slope = loss.output_grad(outputs, y, each)
        grad = [(slope.T @ x).flatten(), *([slope.sum(dim=0)] if intercept else [])]
        total = loss(outputs, y, each) + (penalty * at.square()).sum() / 2
        return float(total), (torch.cat(grad) + penalty * at).numpy()

    limits = {"maxiter": 1000, "gtol": 1e-6, "ftol": 1e-10}
    with threads(1):  # small work, of which threads take more than they give
        found = minimize(value, np.zeros(model.p), jac=True, method="L-BFGS-B", options=limits)
    return torch.from_numpy(found.x).to(model.dtype)


def _ridge(model: Model, x: Tensor, y: Tensor) -> Vector:
    from sklearn.linear_model import RidgeCV

    if len(x) < 3:  # nothing to leave out: the mean
        intercept, weights = float(y.double().mean()), np.zeros(x[0].numel())
    else:
        fitted = RidgeCV(PENALTIES).fit(x.flatten(1).double().numpy(), y.double().numpy())
        intercept, weights = float(fitted.intercept_), fitted.coef_
    parts = [
        torch.from_numpy(np.atleast_1d(weights if len(shape) == 2 else intercept)).flatten()
        for shape in model.spec.shapes
    ]
    return torch.cat(parts).to(model.dtype)
