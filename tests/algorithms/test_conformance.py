"""Every algorithm passes the checks that a plugin's must pass too."""

from dataclasses import dataclass, replace

import pytest

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.conformance import check_algorithm, check_own_models
from archipel.engines.local import engine as local
from problems import classification, network

FEW = {"local_steps": 5, "tune_steps": 3}  # more of the same show nothing more, and take minutes


def small(make):
    """An algorithm with its defaults, but few steps."""
    default = make()
    given = {name: getattr(default, name, None) for name in FEW}
    fewer = {name: FEW[name] for name, value in given.items() if value and value > FEW[name]}
    return replace(default, **fewer)


VARIANTS = [
    *[small(make) for make in ALGORITHMS.values()],
    ar.FedAvg(local_steps=4, batch_size=2),
    ar.FedAvg(local_epochs=2, batch_size=0.5, lr=ar.Decay(0.1, 0.9)),
    ar.FedAvg(optimiser=ar.SGD(momentum=0.9), batch_size=4),
    ar.FedAvg(optimiser=ar.Adam(), lr=0.01, batch_size=4),
    ar.FedAvg(batch_size=None, local_steps=2),
    ar.FedSGD(batch_size=3),
    ar.FedProx(mu=0.5, batch_size=3),
    ar.Scaffold(option=1, batch_size=3),
    *[
        pytest.param(ar.FedOpt(server_optimiser=name), marks=pytest.mark.slow)
        for name in ("sgd", "momentum", "adagrad")
    ],
    ar.FedOpt(server_optimiser="yogi"),
    ar.DSGD(overlap=True, batch_size=3),
]


@pytest.mark.parametrize("algorithm", VARIANTS, ids=repr)
def test_conformance(algorithm):
    check_algorithm(algorithm)


# -- algorithms that are wrong about own models ---------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """FedAvg in little, with something that a party keeps."""

    lr: float = 0.1

    def init(self, w):
        return w, w.clone()

    def party(self, me, w, own):
        return me.descend(w, self).w - w, own

    def server(self, w, uploads):
        return w + uploads.mean()


class Remembers(Plain):
    asked = 0

    def party(self, me, w, own):
        return me.descend(w, self).w - (1 + Remembers.asked) * w, own

    def personal(self, me, w, own):
        Remembers.asked += 1
        return w * 0


class Counts(Plain):
    made = 0

    def personal(self, me, w, own):
        Counts.made += 1
        return w * (1 + Counts.made)


class LooksAside(Plain):
    def personal(self, me, w, own):
        return w + me.n.mean()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(Remembers, "states differ"), (Counts, "own models"), (LooksAside, "own models, Plan")],
)
def test_own_models_that_depend_on_more_than_they_may(wrong, says, monkeypatch):
    found = {Counts: "gives another result each time", LooksAside: "mixes parties"}.get(wrong, "")
    with pytest.raises(AssertionError, match=found):
        check_algorithm(wrong())

    monkeypatch.setattr(local, "probe_once", lambda *_: None)  # the check itself sees it, too
    with pytest.raises(AssertionError, match=says):
        check_own_models(wrong())


# -- servers that look at single uploads ----------------------------------------------------------


@dataclass(frozen=True)
class Median(Plain):
    """The natural code: over uploads, which are rows."""

    server_lr: float = 0.7

    def server(self, w, uploads):
        return w + self.server_lr * uploads.stack().median(dim=0).values


class Trimmed(Plain):
    def server(self, w, uploads):
        rows, _ = uploads.stack().sort(dim=0)
        return w + rows[1:-1].mean(dim=0)


@pytest.mark.parametrize("algorithm", [Median(), Trimmed()], ids=repr)
def test_a_server_sees_one_row_per_party_also_in_a_sweep(algorithm):
    check_algorithm(algorithm)


class Twisted(Plain):
    def server(self, w, uploads):
        return w + uploads.stack().t().mean(dim=0)[: len(w)]


class Broken(Plain):
    def party(self, me, w, own):
        return w @ w.new_zeros(3, 3), own


@pytest.mark.parametrize("wrong", [Twisted, Broken])
def test_what_is_wrong_is_said_with_check_and_reason(wrong):
    with pytest.raises(AssertionError, match=r"check_parties_apart: \S.*") as error:
        check_algorithm(wrong())
    assert "\n" not in str(error.value)
    assert "Broken" not in str(error.value) or "test_conformance.py, line" in str(error.value)


# -- algorithms that are no algorithms ------------------------------------------------------------


class NoPersonal(Plain):
    def predict(self, me, w, x, own):
        return me.outputs(w, x)


class OneNumber(NoPersonal):
    def personal(self, me, w, own):
        return w

    def predict(self, me, w, x, own):
        return me.outputs(w, x)[:, 0]


class NoAnswer(Plain):
    def personal(self, me, w, own):
        return (yield w)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (NoPersonal, "NoPersonal has predict but no personal: add"),
        (OneNumber, r"OneNumber.predict returns a tensor \[2\] where the model's outputs are a"),
        (NoAnswer, "NoAnswer.personal yields a question and there is no advise: add"),
    ],
)
def test_methods_that_do_not_fit_are_told_before_the_run(wrong, says):
    with pytest.raises(ar.ArchipelError, match=says):
        ar.LocalEngine(
            wrong(), classification(3, 3, 3, 0), network(3, 3), plan=ar.Plan("one", 1, 1)
        )
