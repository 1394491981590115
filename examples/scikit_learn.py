# SPDX-License-Identifier: Apache-2.0
"""Four real hospitals through scikit-learn: cross-validation, a hospital never seen, a search.

Run it with `python examples/scikit_learn.py`; it takes some seconds and needs no network.
"""

import numpy as np
from sklearn.model_selection import (
    GridSearchCV,
    LeaveOneGroupOut,
    StratifiedKFold,
    cross_val_score,
)

from archipel.algorithms import FedAvg, Scaffold
from archipel.data import load
from archipel.estimators import FederatedClassifier

data = load("heart_disease", standardise=False)
X, y = data.x.numpy(), data.y.numpy()
hospital = np.repeat(data.names, np.diff(data.offsets))  # of each patient
folds = StratifiedKFold(3, shuffle=True, random_state=0)

model = FederatedClassifier(rounds=20, random_state=0)
auc = {"scoring": "roc_auc"}

together = cross_val_score(model, X, y, cv=folds, params={"parties": hospital}, **auc)
one_place = cross_val_score(model, X, y, cv=folds, **auc)
print("AUC on patients held back, three folds")
print(f"  four hospitals together  {together.mean():.3f}")
print(f"  all data in one place    {one_place.mean():.3f}")

elsewhere = cross_val_score(
    model, X, y, cv=LeaveOneGroupOut(), groups=hospital, params={"parties": hospital}, **auc
)
print("AUC at a hospital that took no part")
for name, value in zip(np.unique(hospital), elsewhere, strict=True):
    print(f"  {name:<24} {value:.3f}")

choices = {"algorithm": [FedAvg(lr=0.02), Scaffold(lr=0.02)], "model": ["logistic", "mlp"]}
search = GridSearchCV(model, choices, cv=folds, **auc).fit(X, y, parties=hospital)
print(f"Best of a search on the same folds, AUC {search.best_score_:.3f}")
for field, value in search.best_params_.items():
    print(f"  {field} = {value!r}")
