"""The estimators pass scikit-learn's checks, and train as the simulation they wrap."""

import pickle
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from archipel.algorithms import ALGORITHMS, DSGD, FedAvg, Scaffold
from archipel.data import Federation
from archipel.errors import ArchipelError
from archipel.estimators import FederatedClassifier, FederatedRegressor
from archipel.runs.simulation import simulate

FULL = FedAvg(lr=0.3, local_steps=1, batch_size=None)  # one step on all of a party's rows

EXPECTED_FAILURES: dict[str, str] = {}  # check -> why it cannot hold; none so far


@parametrize_with_checks(
    [FederatedClassifier(rounds=25), FederatedRegressor(rounds=25)],  # enough, and sooner done
    expected_failed_checks=lambda _: EXPECTED_FAILURES,
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def rows(n=60, d=4, classes=3, seed=0):
    """Rows with labels and four unequal parties."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=(d, classes)) + 0.3 * rng.normal(size=(n, classes))).argmax(axis=1)
    return X, y, np.array(["north", "south", "east", "west"])[np.minimum(np.arange(n) % 7, 3)]


OWN = """
from dataclasses import dataclass
from archipel.core import Rate

@dataclass(frozen=True)
class Mine:
    "FedSGD, by hand."
    lr: {kind} = 0.1
    def init(self, w):
        return w, None
    def party(self, me, w, _):
        return -me.grad(w), None
    def server(self, w, uploads):
        return w + 0.1 * uploads.mean()
"""


@pytest.mark.parametrize("kind", ["Rate", "float"])
def test_an_algorithm_may_be_a_file_as_in_a_study(tmp_path, kind):
    X, y, sites = rows()
    path = tmp_path / "mine.py"
    path.write_text(OWN.format(kind=kind))
    fitted = FederatedClassifier(f"{path}:Mine", rounds=3, workers=1).fit(X, y, parties=sites)

    rate = fitted.run_.algorithm.lr
    assert (rate.start, rate.rounds) == (0.3, 3) if kind == "Rate" else rate == 0.1
    with pytest.raises(ArchipelError, match="cannot be read"):
        FederatedClassifier(str(tmp_path / "no.py"), rounds=3).fit(X, y, parties=sites)


# -- what it computes --------------------------------------------------------------------------


def test_one_party_with_full_batches_is_plain_training():
    X, y, _ = rows()
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    before = [w.clone() for w in module.parameters()]
    fitted = FederatedClassifier(FULL, module, rounds=20, standardise=False).fit(X, y)

    assert all(map(torch.equal, module.parameters(), before))  # the parameter stays as it was
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(torch.tensor(X)), torch.tensor(y)).backward()
        optimiser.step()
    expected = module(torch.tensor(X)).detach().numpy()
    np.testing.assert_allclose(fitted.decision_function(X), expected, atol=1e-10)


def test_one_full_step_a_round_is_the_same_however_rows_are_spread_and_ordered():
    X, y, parties = rows()
    model = FederatedClassifier(FULL, rounds=20, random_state=0)
    expected = model.fit(X, y).decision_function(X)
    shuffled = np.random.default_rng(1).permutation(len(X))

    for order in (slice(None), shuffled):
        got = clone(model).fit(X[order], y[order], parties=parties[order])
        np.testing.assert_allclose(got.decision_function(X), expected, atol=1e-10)


def test_order_between_parties_is_of_no_account_even_with_mini_batches():
    X, y, parties = rows()
    grouped = np.argsort(parties, kind="stable")  # order within a party as before
    model = FederatedClassifier(rounds=5, random_state=0)
    expected = model.fit(X, y, parties=parties).decision_function(X)

    got = model.fit(X[grouped], y[grouped], parties=parties[grouped]).decision_function(X)

    np.testing.assert_allclose(got, expected, atol=1e-10)


def test_it_is_the_simulation():
    X, y, parties = rows()
    algorithm = Scaffold(lr=0.1)
    model = FederatedClassifier(algorithm, rounds=7, sample=2, standardise=False, random_state=3)
    names, owner = np.unique(parties, return_inverse=True)
    data = Federation.from_rows(X, y, owner, test=0.0, names=names)
    run = simulate(algorithm, data, "logistic", rounds=7, sample=2, seed=3, workers=1)

    fitted = model.fit(X, y, parties=parties)

    torch.testing.assert_close(fitted.run_.vector, run.vector)
    assert fitted.n_iter_ == 7
    assert [len(cohort.sampled) for cohort in fitted.run_.participation] == [2] * 7
    assert list(fitted.run_.data.names) == ["east", "north", "south", "west"]


def test_random_state():
    X, y, parties = rows()

    def outputs(random_state):
        model = FederatedClassifier(rounds=3, sample=0.5, random_state=random_state)
        return model.fit(X, y, parties=parties).decision_function(X)

    np.testing.assert_array_equal(outputs(0), outputs(0))
    np.testing.assert_array_equal(*(outputs(np.random.RandomState(0)) for _ in range(2)))
    assert not np.allclose(outputs(0), outputs(1))


# -- standardisation ---------------------------------------------------------------------------


def test_standardising_needs_only_what_each_party_sums():
    X, y, parties = rows()
    X = 100 + 7 * X
    merged = StandardScaler()
    for party in np.unique(parties):
        merged.partial_fit(X[parties == party])

    scaler = FederatedClassifier(rounds=1).fit(X, y, parties=parties).scaler_

    np.testing.assert_allclose(scaler.mean_, merged.mean_)
    np.testing.assert_allclose(scaler.var_, merged.var_)


def test_units_are_of_no_account():
    X, _, parties = rows()
    target = X[:, 0] + 0.1 * X[:, 1] ** 2
    model = FederatedRegressor(model="mlp", rounds=5, random_state=0)
    expected = model.fit(X, target, parties=parties).predict(X)

    model.fit(1000 * X - 5, 60 * target + 7, parties=parties)

    np.testing.assert_allclose(model.predict(1000 * X - 5), 60 * expected + 7, rtol=1e-6)


def test_without_standardising_nothing_is_scaled():
    X, _, _ = rows()
    target = X[::-1, 0]  # not contiguous
    model = FederatedRegressor(FULL, nn.Linear(4, 1), rounds=100, standardise=False)

    model.fit(X[::-1], target)

    assert model.scaler_ is None and model.target_scaler_ is None
    np.testing.assert_allclose(model.module_.weight.detach(), [[1, 0, 0, 0]], atol=1e-3)
    with pytest.raises(ArchipelError, match="lower lr"):
        model.fit(1e3 * X, target)


# -- how well it learns ------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [None, "scaffold", "fedopt"])
def test_accuracy_on_real_data(algorithm):
    X, y = load_breast_cancer(return_X_y=True)
    model = FederatedClassifier(algorithm, rounds=30, random_state=0)
    hospital = np.arange(len(X)) % 5

    assert cross_val_score(model, X, y, cv=3, params={"parties": hospital}).mean() > 0.95


def test_regression_on_real_data():
    X, y = load_diabetes(return_X_y=True)
    model = FederatedRegressor(random_state=0)

    assert cross_val_score(model, X, y, cv=3).mean() > 0.45
    parties = np.arange(len(X)) % 30
    assert cross_val_score(model, X, y, cv=3, params={"parties": parties}).mean() > 0.45


def test_peers():
    X, y = load_iris(return_X_y=True)
    model = FederatedClassifier(DSGD(lr=0.3), topology="ring", rounds=100, random_state=0)

    assert model.fit(X, y, parties=np.arange(150) % 6).score(X, y) > 0.9


# -- models and labels -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "mlp",
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        lambda features, outputs: nn.Sequential(nn.Dropout(0.1), nn.Linear(features, outputs)),
    ],
    ids=["name", "module", "function"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_models(model, dtype):
    X, y, parties = rows()
    estimator = FederatedClassifier(model=model, rounds=20, random_state=0)

    first = estimator.fit(X.astype(dtype), y, parties=parties).predict_proba(X)
    again = clone(estimator).fit(X.astype(dtype), y, parties=parties).predict_proba(X)

    assert first.dtype == dtype and estimator.score(X, y) > 0.7
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("loss", [None, "binary_cross_entropy"])
def test_two_classes(loss):
    X, y, parties = rows(classes=2)
    y = np.array(["no", "yes"])[y]

    model = FederatedClassifier(loss=loss, random_state=0).fit(X, y, parties=parties)

    logit, probability = model.decision_function(X), model.predict_proba(X)
    assert list(model.classes_) == ["no", "yes"] and model.score(X, y) > 0.9
    assert model.module_(torch.zeros(1, 4).double()).shape[1] == (1 if loss else 2)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-logit)))
    np.testing.assert_array_equal(model.predict(X) == "yes", logit > 0)


def test_outputs_to_spare():
    X, y, _ = rows()
    model = FederatedClassifier(model=nn.Linear(4, 9), rounds=20).fit(X, 10 * y)

    assert model.predict_proba(X).shape == (60, 3) and model.score(X, 10 * y) > 0.7


@pytest.mark.parametrize("loss", ["huber", "absolute_error"])
def test_other_losses(loss):
    X, _, parties = rows()
    model = FederatedRegressor(loss=loss, random_state=0).fit(X, X.sum(axis=1), parties=parties)

    assert model.score(X, X.sum(axis=1)) > 0.95


# -- in scikit-learn ---------------------------------------------------------------------------


def test_pipeline_and_search():
    X, y, parties = rows()
    pipeline = make_pipeline(PolynomialFeatures(2), FederatedClassifier(rounds=5, random_state=0))
    grid = {"federatedclassifier__algorithm": [FedAvg(lr=1e-4), FedAvg(lr=0.1)]}
    search = GridSearchCV(pipeline, grid, cv=GroupKFold(2))

    search.fit(X, y, groups=parties, federatedclassifier__parties=parties)  # new parties score it

    assert search.best_params_["federatedclassifier__algorithm"].lr == 0.1
    assert search.best_estimator_[-1].run_.data.parties == 4


def test_metadata_routing():
    X, y, parties = rows()
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedClassifier(rounds=2).set_fit_request(parties=True)
        search = GridSearchCV(make_pipeline(StandardScaler(), model), {}, cv=2)
        search.fit(X, y, parties=parties)

    assert search.best_estimator_[-1].run_.data.parties == 4


def test_tables():
    X, y, parties = rows()
    table = pd.DataFrame(X, columns=["age", "bmi", "pulse", "dose"])
    label = pd.Series(y).map({0: "a", 1: "b", 2: "c"})
    model = FederatedClassifier(rounds=2, random_state=0)
    expected = model.fit(X, y, parties=parties).predict_proba(X)

    for kind in ("category", "string", object):
        model.fit(table, label, parties=pd.Series(parties, dtype=kind))
        np.testing.assert_array_equal(model.predict_proba(table), expected)
        assert list(model.feature_names_in_) == list(model.run_.data.columns) == list(table)


def test_a_pickle_keeps_the_model_and_leaves_the_rows():
    X, y, parties = rows()
    model = FederatedClassifier(rounds=2).fit(X, y, parties=parties)

    stored = pickle.dumps(model)

    assert X[0].tobytes() not in stored and model.run_.data.x[0].numpy().tobytes() not in stored
    restored = pickle.loads(stored)
    assert not hasattr(restored, "run_") and model.run_.data.parties == 4
    np.testing.assert_array_equal(restored.predict_proba(X), model.predict_proba(X))


# -- what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("nobody", [None, float("nan"), pd.NA, pd.NaT])
def test_every_row_has_a_party(nobody):
    X, y, parties = rows()
    parties = parties.astype(object)
    parties[5] = nobody

    with pytest.raises(ArchipelError, match="in row 5: name the party of every row"):
        FederatedClassifier().fit(X, y, parties=parties)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"algorithm": "fedavgg"}, "did you mean 'fedavg'"),
        *[
            ({"algorithm": name}, "its parties use models of their own")
            for name, kind in ALGORITHMS.items()
            if hasattr(kind, "personal")
        ],
        ({"model": "mpl"}, "did you mean 'mlp'"),
        ({"model": 3}, "model = 3: give a name"),
        ({"model": lambda features, outputs: None}, "model = None: give a name"),
        ({"loss": "crossentropy"}, "did you mean 'cross_entropy'"),
        ({"sample": 9}, "only 4 parties"),
        ({"topology": "ring"}, "has a server"),
        ({"rounds": 0}, "rounds = 0"),
        ({"model": nn.Linear(5, 3)}, "cannot read points of shape"),
    ],
)
def test_wrong_parameters_are_told_by_fit(wrong, sentence):
    X, y, parties = rows()

    with pytest.raises(ArchipelError, match=sentence):
        FederatedClassifier(**wrong).fit(X, y, parties=parties)


def test_one_label_a_row():
    X, y, parties = rows()

    with pytest.raises(ArchipelError, match=r"shape \(59,\) for 60 rows"):
        FederatedRegressor().fit(X, y, parties=parties[1:])


def test_example(capsys):
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "scikit_learn.py"))

    assert "four hospitals together" in capsys.readouterr().out
