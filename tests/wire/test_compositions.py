# SPDX-License-Identifier: Apache-2.0
"""Any two steps together work for whole rounds, or are refused before the first with a reason."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.plan import Plan, threads
from archipel.errors import ArchipelError
from archipel.exchange.sender import Sender
from archipel.tree import leaves
from archipel.vector import ParamSpec
from archipel.wire import (
    STEPS,
    Clip,
    Entropy,
    Float16,
    LowRank,
    PowerSGD,
    Quantise,
    RandomK,
    RandomMask,
    Rotate,
    Sign,
    Subsample,
    TopK,
)
from archipel.wire.chain import Chain
from problems import classification, network
from wire.examples import Int8

PARTIES = 4
DATA = classification(PARTIES, 6, 3, 0)
ALL = [
    Clip(1.0), Entropy(), Float16(), LowRank(0.5), PowerSGD(1), Quantise(4), RandomK(0.5),
    RandomMask(0.5), Rotate(), Sign(), Subsample(0.5), TopK(0.5),
]  # fmt: skip
assert {type(step) for step in ALL} == set(STEPS.values())
PAIRS = [*((step,) for step in ALL), *itertools.product(ALL, ALL)]
ALGORITHMS = {
    "fedavg": ar.FedAvg(lr=0.1, batch_size=4),
    "scaffold": ar.Scaffold(lr=0.1, batch_size=4),
    "pefll": ar.PeFLL(local_steps=2, batch_size=4, size=4, hidden=5),
    "pfedhn": ar.PFedHN(local_steps=2, batch_size=4, size=4, hidden=5),
    "fedrep": ar.FedRep(lr=0.05, batch_size=4),
    "dsgd": ar.DSGD(lr=0.1, batch_size=4),
}
STACKED = Plan("stacked", PARTIES, 1)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices are quicker alone."""
    with threads(1):
        yield


def engine(algorithm, wire, plan=STACKED):
    graph = {"topology": ar.topology("ring", PARTIES)} if isinstance(algorithm, ar.DSGD) else {}
    model = network(6, 3, hidden=8)
    return ar.LocalEngine(algorithm, DATA, model, plan=plan, wire=wire, **graph)


def tried(algorithm, field, steps):
    """None where rounds go well; what is said where the wire is refused, and that is at once."""
    try:
        made = engine(algorithm, ar.Wire(**{field: steps}))
    except ArchipelError as error:
        return str(error)
    with made:
        for t in range(2):
            outcome = made.round(t, range(PARTIES))
            assert len(outcome.arrived) == PARTIES, (steps, outcome)
        assert all(bool(torch.isfinite(leaf).all()) for leaf in made.state().values())
    return None


def check_said(said, field, steps):
    """One sentence with the field and the steps that disagree."""
    assert said.startswith(f"wire.{field}: ") and said.endswith(".") and "\n" not in said, said
    named = {type(step).__name__ for step in steps if type(step).__name__ in said}
    assert named or "has no server" in said, said


@pytest.mark.parametrize("field", ["up", "down"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "fedavg" else pytest.mark.slow) for name in ALGORITHMS],
)
def test_two_steps_work_or_are_refused_before_the_start(name, field):
    results = {}
    for steps in PAIRS:
        results[steps] = tried(ALGORITHMS[name], field, steps)
    for steps, said in results.items():
        if said is None:
            continue
        check_said(said, field, steps)
        if len(steps) == 2 and all(results[(step,)] is None for step in steps):
            assert all(type(step).__name__ in said for step in steps), said  # it is the two
    works = sum(said is None for said in results.values())
    assert works < len(PAIRS) and (works or (name, field) == ("dsgd", "down"))


@pytest.mark.parametrize("field", ["up", "down"])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "fedavg"])
def test_single_steps_and_the_papers_chain(name, field):
    chains = [(step,) for step in ALL]
    chains += [(Rotate(), Subsample(0.5), Quantise(4), Entropy()), (Rotate(), Quantise(8))]
    for steps in chains:
        said = tried(ALGORITHMS[name], field, steps)
        if said is not None:
            check_said(said, field, steps)
    if field == "up" and name != "dsgd":
        assert said is None


# -- what has to be refused ------------------------------------------------------------------------

REFUSED = [
    ("fedavg", "up", (Quantise(), Rotate()), "Rotate needs numbers, and Quantise before it makes"),
    ("fedavg", "up", (Sign(), Float16(), TopK(0.1)), "TopK needs numbers, and Sign before it"),
    ("fedavg", "up", (Quantise(), Clip(1.0)), "Clip needs numbers, and Quantise before it"),
    ("fedavg", "up", (Entropy(), Float16()), "Float16 stands after Entropy, .*: put Entropy last"),
    ("fedavg", "up", (Entropy(), Entropy()), "Entropy stands after Entropy"),
    ("fedavg", "up", (Rotate(), Sign()), "Sign adds what it left out .*, and Rotate before it"),
    ("fedavg", "up", (Rotate(), Float16(), TopK(0.1)), "TopK adds what .*, and Rotate before it"),
    ("fedavg", "up", (Subsample(0.5), TopK(0.1)), "TopK adds .* and Subsample before it sends"),
    ("fedavg", "up", (RandomMask(0.5), Sign()), "Sign adds .* and RandomMask before it sends"),
    ("fedavg", "up", (LowRank(0.5), PowerSGD()), "PowerSGD adds .* and LowRank before it sends"),
    ("fedavg", "up", (Rotate(), Int8()), "Int8 adds what it left out .* and Rotate before it"),
    ("fedavg", "up", (PowerSGD(), Clip(1.0)), "Clip bounds a norm, and PowerSGD before it"),
    ("fedavg", "up", (Rotate(), LowRank(0.5)), "LowRank restricts training itself.* Rotate stands"),
    ("fedavg", "up", (LowRank(0.5), RandomMask(0.5)), "RandomMask restricts .* LowRank stands"),
    ("scaffold", "up", (LowRank(0.5),), "LowRank restricts training to a subspace"),
    ("scaffold", "up", (RandomMask(0.5),), "RandomMask restricts training to a subspace"),
    ("fedrep", "up", (LowRank(0.5),), "LowRank restricts .* FedRep sends none of the model's lay"),
    ("dsgd", "up", (RandomMask(0.5),), "RandomMask restricts a party's training"),
    ("dsgd", "up", (Sign(),), "Sign: what travels here is a model, not its change, .* an error of"),
    ("dsgd", "up", (Subsample(0.25),), "Subsample: what travels here is a model"),
    ("dsgd", "up", (Rotate(), Quantise(1)), "Rotate, Quantise: what travels here"),
    ("fedavg", "down", (TopK(0.9),), "TopK keeps a state for each sender, and the server keeps"),
    ("fedavg", "down", (PowerSGD(4),), "PowerSGD keeps a state for each sender"),
    ("fedavg", "down", (Sign(),), "Sign keeps a state for each sender"),
    ("fedavg", "down", (Subsample(0.25),), "Subsample: what travels here is a model"),
    ("fedavg", "down", (Quantise(1),), "Quantise: what travels here is a model"),
    ("fedavg", "down", (LowRank(0.5),), "LowRank restricts a party's training"),
]


@pytest.mark.parametrize(("name", "field", "steps", "said"), REFUSED, ids=lambda x: str(x)[:60])
def test_what_cannot_be_is_refused_before_the_start(name, field, steps, said):
    with pytest.raises(ArchipelError, match=f"^wire.{field}: .*(?:{said})"):
        engine(ALGORITHMS[name], ar.Wire(**{field: steps}))


# -- what arrives is what was sent -----------------------------------------------------------------

SPEC = ParamSpec(("w", "b"), ((16, 24), (8,)))


def arrives(steps, rounds):
    """The mean of what arrives of one upload in some rounds, as far from it as its norm."""
    x = torch.randn(SPEC.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chain = Chain.fitted(steps, x, Sender(0, 0, 0, np.array([0])), SPEC)
    own, total = chain.init(), torch.zeros_like(x)
    for t in range(rounds):
        me = Sender(0, t, 0, np.array([0]))
        payload, own = chain.send(me, x, own)
        total = total + chain.receive(replace(me, me=None), payload)
    return float((total / rounds - x).norm() / x.norm())


LOSSLESS = [step for step in ALL if not isinstance(step, Clip | LowRank | RandomMask)]


@pytest.mark.parametrize(
    "steps", [(a, b) for a, b in itertools.product(LOSSLESS, LOSSLESS)], ids=repr
)
def test_what_two_steps_leave_out_of_an_upload_comes_with_the_next(steps):
    """Over many rounds all of it: no two steps that fit lose a part for good."""
    try:
        early, late = arrives(steps, 20), arrives(steps, 320)
    except ArchipelError:
        return
    assert late < 2e-3 or late < 0.5 * early


# -- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        (ar.FedAvg(lr=0.05), (Rotate(), Subsample(0.5), Quantise(4), Entropy())),
        (ar.Scaffold(lr=0.05), (Rotate(), Quantise(8), Entropy())),
        (ar.FedAvg(lr=0.05), (LowRank(0.5), Quantise(8))),
    ],
    ids=repr,
)
def test_a_simulation_learns_and_its_plans_agree(algorithm, steps):
    wire = ar.Wire(up=steps)
    run = ar.simulate(algorithm, "heart_disease", rounds=6, workers=1, wire=wire)
    plain = ar.simulate(algorithm, "heart_disease", rounds=6, workers=1)
    loss, expected = (each.history[-1]["metrics"]["loss"] for each in (run, plain))

    assert abs(loss - expected) < 0.1
    found = [learnt(ar.FedAvg(lr=0.1, batch_size=4), wire, plan) for plan in PLANS]
    for state, up in found[1:]:
        assert up == found[0][1]
        for one, other in zip(state, found[0][0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


PLANS = [Plan("one", 1, 1), STACKED, Plan("stacked", 2, 1)]


def learnt(algorithm, wire, plan):
    with engine(algorithm, wire, plan) as made:
        up = [made.round(t, range(PARTIES)).up for t in range(3)]
        return list(made.state().values()), up


@pytest.mark.parametrize("down", [(Float16(),), (Rotate(), Quantise(8), Entropy())], ids=repr)
def test_a_sweep_with_a_way_down_is_its_runs(down):
    wire = ar.Wire(up=(Quantise(8), Entropy()), down=down)
    options = {"rounds": 2, "workers": 1, "wire": wire}
    both = ar.sweep(ar.FedAvg(), "heart_disease", None, {"lr": [0.03, 0.1]}, **options)
    for lr, swept in zip([0.03, 0.1], both, strict=True):
        alone = ar.simulate(ar.FedAvg(lr=lr), "heart_disease", **options)
        torch.testing.assert_close(swept.vector, alone.vector, rtol=1e-3, atol=1e-3)


FEEDBACK = [(TopK(0.2),), (Sign(), Entropy()), (PowerSGD(1),), (RandomK(0.3), Quantise(4))]


@pytest.mark.parametrize("steps", FEEDBACK, ids=repr)
@pytest.mark.parametrize("algorithm", [ar.FedAvg(lr=0.1), ar.Scaffold(lr=0.05)], ids=repr)
def test_error_feedback_survives_a_stop_bit_for_bit(tmp_path, steps, algorithm):
    options = {"rounds": 6, "workers": 1, "wire": ar.Wire(up=steps), "out": tmp_path / "run"}
    whole = ar.simulate(algorithm, "heart_disease", **{**options, "out": None})
    stopped = ar.simulate(algorithm, "heart_disease", on_round=lambda run: run.done == 3, **options)
    resumed = ar.simulate(algorithm, "heart_disease", **options)

    assert (stopped.done, resumed.state) == (3, "done")
    assert torch.equal(resumed.vector, whole.vector)
    assert resumed.spent.up == whole.spent.up


def test_own_states_of_the_steps_are_in_a_checkpoint():
    """Else the test above could pass without any."""
    with engine(ALGORITHMS["fedavg"], ar.Wire(up=(TopK(0.2),))) as made:
        made.round(0, range(PARTIES))
        kept = leaves(made.own_states(range(PARTIES)))
        assert any(bool(leaf.any()) for leaf in kept)
