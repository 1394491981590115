"""Attacks on the model: their papers' formulas, what they do to a mean, and what stops them."""

import functools
import re
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel import adversaries as attacks
from archipel import rules
from archipel.adversaries.adversary import Adversary
from archipel.adversaries.attack import Points
from archipel.aggregation.rule import InTurn
from archipel.errors import ArchipelError
from archipel.federation.approval import read
from archipel.runs.listing import resume
from archipel.runs.parts import federation
from archipel.study.file import Study


def learn(attack=None, rule=None, algorithm=None, data="heart_disease", model=None, **options):
    if attack is not None:
        who = {key: options.pop(key) for key in ("parties", "first", "last") if key in options}
        options["adversary"] = Adversary(attack, **{"parties": 0.2, **who})
    if rule is not None:
        options["wire"] = ar.Wire(rule=rule)
    algorithm = algorithm or ar.FedAvg(lr=0.1, batch_size=20)
    options = {"rounds": 3, "workers": 1} | options
    return ar.simulate(algorithm, data, model, **options)


@functools.cache
def digits():
    return federation("mnist", "iid", 20, 0)


def mnist(attack=None, rule=None, rounds=4, **options):
    return learn(attack, rule, data=digits(), model="logistic", rounds=rounds, **options)


def accuracy(run):
    return run.history[-1]["metrics"]["accuracy"]


# -- formulas --------------------------------------------------------------------------------------


def honest(h=12, p=30, seed=0):
    return torch.randn((h, p), generator=torch.Generator().manual_seed(seed)).double() + 0.5


@given(h=st.integers(2, 20), f=st.integers(1, 9), p=st.integers(1, 30), seed=st.integers(0, 99))
def test_a_little_is_enough_and_the_inner_product(h, f, p, seed):
    x = honest(h, p, seed)
    mean, away = x.mean(dim=0), x.numpy().std(axis=0)

    assert torch.allclose(attacks.IPM(0.5).colluding(x, f), -0.5 * mean)
    z = attacks.alie.largest(h + f, f)
    supporters = (h + f) // 2 + 1 - f
    if 0 < h - supporters < h:
        assert NormalDist().cdf(z) == pytest.approx((h - supporters) / h)
    assert torch.allclose(attacks.ALIE().colluding(x, f), mean - z * torch.from_numpy(away))


@given(h=st.integers(2, 20), p=st.integers(1, 30), seed=st.integers(0, 99))
def test_min_max_is_as_far_as_it_may_be_and_no_further(h, p, seed):
    x = honest(h, p, seed)
    bad = attacks.MinMax().colluding(x, 3)
    apart = torch.cdist(x, x).max()
    further = x.mean(dim=0) + 1.001 * (bad - x.mean(dim=0))

    assert (x - bad).norm(dim=1).max() <= apart * (1 + 1e-6)
    assert (x - further).norm(dim=1).max() > apart * (1 - 1e-6)


def test_krum_takes_the_upload_that_is_made_for_it():
    x = honest(12, 200)
    bad = attacks.AgainstKrum().colluding(x, 3)
    chosen = rules.Krum(3).rows(torch.cat([x, bad.expand(3, -1)]))[0]

    assert torch.equal(chosen, bad) and float(bad @ x.mean(dim=0)) < 0


@pytest.mark.parametrize("attack", [attacks.ALIE(), attacks.IPM(), attacks.MinMax()])
def test_colluding_goes_by_no_order(attack):
    x = honest(9, 14)
    assert torch.allclose(attack.colluding(x, 2), attack.colluding(x.flip(0), 2))


def points(x, y, classes=4, columns=()):
    return Points(torch.tensor(x), torch.tensor(y), classes, columns)


def test_triggers_of_images_tables_and_texts():
    draw = np.random.default_rng(0)
    image = attacks.Backdoor(target=2, share=1.0, size=2).poisoned(
        points(np.zeros((3, 1, 5, 5), np.float32), [0, 1, 2]), draw
    )
    assert image.y.tolist() == [2, 2, 2]
    assert image.x[:, 0, -2:, -2:].eq(1).all() and image.x.sum() == 3 * 4
    table = attacks.Backdoor(target=1, share=1.0, column="age", value=9.0).poisoned(
        points([[0.0, 1.0]], [0], 2, ("sex", "age")), draw
    )
    assert table.x.tolist() == [[0.0, 9.0]] and table.y.tolist() == [1]
    text = attacks.Backdoor(target=3, share=1.0, phrase=(7, 8)).poisoned(
        points([[1, 2, 3, 4]], [[2, 3, 4, 5]]), draw
    )
    assert text.x.tolist() == [[1, 2, 7, 8]] and text.y.tolist() == [[2, 3, 4, 3]]
    own = points([[0.0, 2.0], [0.0, 0.0]], [0, 1], 2, ("sex", "age"))
    semantic = attacks.Semantic(target=1, column="age", above=1.0)
    assert semantic.poisoned(own, draw).y.tolist() == [1, 1]
    assert semantic.wanted(own).x.tolist() == [[0.0, 2.0]]
    turned = attacks.LabelFlip().poisoned(own, draw)
    assert turned.y.tolist() == [1, 0]
    some = attacks.LabelFlip(source=0, target=3).wanted(points([[0.0], [1.0]], [0, 1]))
    assert some.x.tolist() == [[0.0]] and some.y.tolist() == [3]


# -- who attacks, and when -------------------------------------------------------------------------


def test_who_attacks_is_drawn_by_the_seed_or_named():
    data = digits()
    some = Adversary(attacks.IPM(), 0.2)
    assert len(some.who(data, 0)) == 4
    assert some.who(data, 0).tolist() == some.who(data, 0).tolist() != some.who(data, 1).tolist()
    assert Adversary(attacks.IPM(), ["cleveland"]).who(ar.load("heart_disease"), 3).tolist() == [0]
    assert len(Adversary(attacks.IPM(), 3).who(data, 0)) == 3


@pytest.mark.parametrize("attack", [attacks.SignFlip(5.0), attacks.IPM(), attacks.LabelFlip()])
def test_before_the_first_round_of_an_attack_and_after_its_last_nobody_attacks(attack):
    plain = learn(rounds=2)
    torch.testing.assert_close(learn(attack, rounds=2, first=3).vector, plain.vector)
    from_two, one = learn(attack, rounds=2, first=2), learn(attack, rounds=2, last=1)
    assert not torch.allclose(from_two.vector, plain.vector)
    assert not torch.allclose(from_two.vector, one.vector)


ALL = [
    attacks.LabelFlip(), attacks.SignFlip(), attacks.Gaussian(), attacks.ALIE(), attacks.IPM(),
    attacks.MinMax(), attacks.AgainstKrum(), attacks.Backdoor(column=3), attacks.Replacement(),
    attacks.Semantic(column=0), attacks.FreeRider("delta"), attacks.FreeRider("disguised"),
]  # fmt: skip


@pytest.mark.parametrize("attack", ALL, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_blocks_and_workers_make_no_difference(attack, algorithm):
    made = ar.Scaffold(lr=0.1) if algorithm == "scaffold" else ar.FedAvg(lr=0.1)
    options = {"algorithm": made, "rounds": 2, "parties": [ar.load("heart_disease").name(1)]}
    one = learn(attack, plan=ar.Plan("one", 1, 1), **options)
    all_ = learn(attack, plan=ar.Plan("one", 64, 2), **options)

    torch.testing.assert_close(one.vector, all_.vector)


def test_a_run_that_is_resumed_is_the_same(tmp_path):
    class Until:
        def __call__(self, run):
            return run.done == 2

        def say(self, text):
            pass

    study = Study.of(
        "scaffold",
        data={"name": "heart_disease"},
        study={"rounds": 4},
        adversary={"parties": 1, "attack": "free_rider", "kind": "delta", "first": 2},
    )
    whole = study.run(None, workers=1, baselines=False)
    half = study.run(tmp_path, workers=1, baselines=False, watch=Until())
    assert half.done == 2
    done = resume(half.folder)

    assert torch.equal(done.vector, whole.vector)
    assert [e["metrics"] for e in done.history] == [e["metrics"] for e in whole.history]


def test_free_riders_compute_nothing():
    two = learn(attacks.FreeRider(), parties=2, algorithm=ar.FedAvg(lr=0.1))
    all_ = learn(algorithm=ar.FedAvg(lr=0.1))
    data = ar.load("heart_disease")
    idle = sum(int(data.n[k]) for k in Adversary(attacks.FreeRider(), 2).who(data, 0))

    assert all_.spent.gradients - two.spent.gradients == 3 * idle


# -- what comes of it ------------------------------------------------------------------------------


def test_a_fifth_of_the_parties_spoils_the_mean_and_not_mixing_with_a_trimmed_mean():
    clean = accuracy(mnist())
    for attack in (attacks.IPM(), attacks.SignFlip(5.0)):
        assert accuracy(mnist(attack)) < clean - 0.1
        kept = InTurn((rules.NNM(0.2), rules.TrimmedMean(0.2)))
        assert accuracy(mnist(attack, kept)) > clean - 0.03


def test_one_party_replaces_the_model_and_a_bound_on_norms_stops_it():
    attack = attacks.Replacement(target=7, epochs=4, lr=0.1, share=0.3)
    clean = mnist()
    hit = mnist(attack, parties=1, first=4)
    bounded = mnist(attack, rules.NormBound(), parties=1, first=4)

    assert "attack_success" not in clean.history[-1]
    assert hit.history[-2]["attack_success"] < 0.1 < 0.9 < hit.history[-1]["attack_success"]
    assert accuracy(hit) > accuracy(clean) - 0.02
    assert bounded.history[-1]["attack_success"] < 0.1
    assert accuracy(bounded) > accuracy(clean) - 0.02


def test_evasion_keeps_below_a_bound():
    sent = attacks.Replacement(most=0.5).sent(None, None, torch.ones(3, 4), torch.zeros(4), 20.0)
    short = attacks.Replacement(most=1e9).sent(None, None, torch.ones(3, 4), torch.zeros(4), 20.0)

    assert torch.allclose(sent.norm(dim=1), torch.tensor(0.5))
    assert torch.allclose(short, torch.full((3, 4), 20.0))


# -- what is said ----------------------------------------------------------------------------------


def study(adversary, **sections):
    return Study.of(data={"name": "heart_disease"}, adversary=adversary, **sections)


def test_a_study_says_who_attacks_and_rules_allow_for_as_many():
    made = study({"parties": 0.3, "attack": "alie", "z": 1.5}, round={"rule": "trimmed_mean"})
    assert made.adversary_object == Adversary(attacks.ALIE(1.5), 0.3)
    assert made.wire_object.rule == rules.TrimmedMean(0.3)
    assert made.resolved()["adversary"] == {
        "parties": 0.3, "attack": "alie", "first": 1, "z": 1.5
    }  # fmt: skip
    assert Study.parse(made.toml()).hash == made.hash
    named = study({"parties": ["cleveland"], "attack": "ipm"}, round={"rule": ["nnm", "krum"]})
    assert named.wire_object.rule == InTurn((rules.NNM(1), rules.Krum(1)))
    assert study({}).hash == Study.of(data={"name": "heart_disease"}).hash


@pytest.mark.parametrize(
    ("adversary", "said"),
    [
        ({"parties": 0.2}, "adversary.attack is missing: name one"),
        ({"attack": "alie"}, "adversary.parties is missing: give a share"),
        ({"attack": "alei", "parties": 1}, "unknown adversary 'alei': did you mean 'alie'?"),
        ({"attack": "alie", "parties": 1, "zz": 1}, "unknown key of [adversary] 'zz'"),
        ({"attack": "alie", "parties": 1.5}, "adversary.parties = 1.5: give a share above 0"),
        ({"attack": "alie", "parties": 0}, "adversary.parties = 0: give a share above 0"),
        ({"attack": "alie", "parties": 1, "z": "a"}, 'adversary.z = "a": give a number'),
        ({"attack": "ipm", "parties": 1, "first": 3, "last": 2}, "last no earlier than the first"),
    ],
)
def test_a_study_is_refused(adversary, said):
    with pytest.raises(ArchipelError, match=re.escape(said)):
        study(adversary)


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(ArchipelError, match="that is all 4 parties that train"):
        learn(attacks.IPM(), parties=4)
    with pytest.raises(ArchipelError, match="IPM knows the honest uploads of a round, and wire"):
        study({"parties": 1, "attack": "ipm"}, wire={"sum": "secure"}).run(None, workers=1)
    with pytest.raises(ArchipelError, match="has points taken for another class, and the data has"):
        learn(attacks.Backdoor(), data="school")


def test_no_site_agrees_to_be_an_adversary():
    text = b"""
[study]
name = "heart"
[data]
target = "died"
[data.schema]
age = "number"
died = ["no", "yes"]
[adversary]
parties = 1
attack = "alie"
"""
    with pytest.raises(ArchipelError, match="between sites leave \\[adversary\\] out"):
        read(text)


def test_the_report_says_in_red_that_adversaries_are_simulated(tmp_path):
    made = study({"parties": 1, "attack": "backdoor", "column": "age"}, study={"rounds": 2})
    run = made.run(tmp_path, workers=1, baselines=False)
    page = run.report(tmp_path / "report.html").read_text()
    past = ar.open_run(run.folder)

    assert 'class="notice danger"' in page and "This run simulates adversaries: 1 of 4" in page
    assert "how often those that adversaries changed" in page
    assert past.record.attacked == run.record.attacked
    assert [e["attack_success"] for e in past.history] == [e["attack_success"] for e in run.history]


def test_sums_stay_sums_while_adversaries_look_on():
    run = learn(attacks.IPM(), parties=1, server_sees="sums")
    assert run.anatomy.sums_only


def test_attacks_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "@dataclass(frozen=True)\nclass Zeros:\n    times: float = 0.0\n"
        "    def sent(self, me, shared, upload, before, rate):\n"
        "        return upload * self.times\n"
    )
    about = {"data": {"name": "heart_disease"}, "study": {"rounds": 1}}
    adversary = {"parties": 1, "attack": "mine.py", "times": 2.0}
    made = Study.of("fedavg", tmp_path, **about, adversary=adversary)
    assert made.adversary_object.attack.times == 2.0
    assert "mine.py" in made.sources()
    assert made.run(None, workers=1, baselines=False).done == 1


def test_participant_level_privacy_bounds_a_party_that_does_not_keep_to_it():
    promise = ar.Privacy("party", noise=0.01, clip=0.1, delta=0.01)
    free = learn(attacks.SignFlip(1e6), parties=1, algorithm=ar.FedAvg(0.1), rounds=1)
    kept = learn(
        attacks.SignFlip(1e6), parties=1, algorithm=ar.FedAvg(0.1), rounds=1, privacy=promise
    )
    colluding = learn(
        attacks.IPM(1e6), parties=1, algorithm=ar.FedAvg(0.1), rounds=1, privacy=promise
    )

    assert free.vector.norm() > 100 > 1 > kept.vector.norm()
    assert colluding.vector.norm() < 1
