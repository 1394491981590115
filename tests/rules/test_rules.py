"""Rules for the mean: their papers' formulas, order, and what arbitrary liars can do."""

import re
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel import rules
from archipel.aggregation.rule import InTurn
from archipel.errors import ArchipelError
from archipel.exchange.uploads import Received
from archipel.study.file import Study

RULES = {
    "median": rules.Median(),
    "trimmed_mean": rules.TrimmedMean(0.2),
    "krum": rules.Krum(0.2),
    "multi_krum": rules.MultiKrum(0.2),
    "bulyan": rules.Bulyan(0.2),
    "geometric_median": rules.GeometricMedian(),
    "centred_clipping": rules.CentredClipping(5.0),
    "norm_bound": rules.NormBound(),
    "nnm": rules.NNM(0.2),
    "bucketing": rules.Bucketing(2),
    "fltrust": rules.FLTrust(0),
}
BOUNDED = ("norm_bound", "bucketing", "centred_clipping", "fltrust")
ROBUST = [name for name in RULES if name not in BOUNDED]


def rows(m: int, p: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((m, p))).float()


def mean(name: str, x: torch.Tensor) -> torch.Tensor:
    return RULES[name].rows(x).mean(dim=0)


# from two columns on, a geometric median is one point
shapes = st.tuples(st.integers(15, 30), st.integers(2, 40), st.integers(0, 1000))


@pytest.mark.parametrize("name", RULES)
@given(shape=shapes)
def test_equal_uploads_are_their_own_mean(name, shape):
    m, p, seed = shape
    one = rows(1, p, seed)
    one = one / one.norm() * 4  # within the radius of centred clipping

    assert torch.allclose(mean(name, one.expand(m, p)), one[0], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in RULES if name not in ("bucketing", "fltrust")])
@given(shape=shapes)
def test_the_order_of_uploads_has_no_say(name, shape):
    m, p, seed = shape
    x = rows(m, p, seed)
    turned = x[torch.from_numpy(np.random.default_rng(seed).permutation(m))]

    assert torch.allclose(mean(name, turned), mean(name, x), atol=1e-5)


@pytest.mark.parametrize("name", RULES)
@given(shape=shapes)
def test_shifted_uploads_have_a_shifted_mean(name, shape):
    if name in ("centred_clipping", "norm_bound", "fltrust", "bucketing"):
        return  # they measure from 0, and buckets are drawn anew
    m, p, seed = shape
    x = rows(m, p, seed)

    assert torch.allclose(mean(name, x + 2), mean(name, x) + 2, atol=1e-4)


WORST = [float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e19, 1e30]


@pytest.mark.parametrize("name", RULES)
@given(
    seed=st.integers(0, 1000),
    lies=st.lists(st.sampled_from(WORST), min_size=3, max_size=3),
    some=st.booleans(),
)
def test_arbitrary_numbers_keep_within_the_honest_radius(name, seed, lies, some):
    x = rows(15, 8, seed)
    honest = x.clone()
    for place, lie in zip((1, 7, 14), lies, strict=True):
        x[place, :: 3 if some else 1] = lie
    centre = honest[[k for k in range(15) if k not in (1, 7, 14)]]
    radius = (centre - centre.mean(dim=0)).norm(dim=1).max()
    found = mean(name, x)
    if name in ("bucketing", "nnm"):  # which another rule follows
        found = rules.Median().rows(RULES[name].rows(x))[0]

    assert torch.isfinite(found).all()
    if name in ROBUST:
        assert (found - centre.mean(dim=0)).norm() <= radius + 1e-4
    elif name == "norm_bound":
        assert found.norm() <= centre.norm(dim=1).max() + 1e-4
    elif name == "fltrust":
        assert found.norm() <= honest[0].norm() + 1e-4


def test_norms_above_the_bound_are_scaled_down_to_it():
    x = rows(9, 30)
    x[4] *= 1000
    found = rules.NormBound(3.0).rows(x)

    assert found.norm(dim=1).max() <= 3.0 + 1e-5
    assert torch.allclose(found[4] / found[4].norm(), x[4] / x[4].norm(), atol=1e-6)


@given(shape=st.tuples(st.integers(7, 20), st.integers(1, 30), st.integers(0, 1000)))
def test_krum_takes_the_upload_with_the_nearest_others(shape):
    m, p, seed = shape
    f = (m - 3) // 2
    x = rows(m, p, seed)
    scores = []
    for i in range(m):
        apart = sorted(float((x[i] - x[j]).double().square().sum()) for j in range(m) if j != i)
        scores.append(sum(apart[: m - f - 2]))

    assert torch.equal(rules.Krum(f).rows(x)[0], x[int(np.argmin(scores))])


@given(shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(0, 1000)))
def test_bulyan_averages_the_numbers_nearest_to_the_median_of_those_chosen(shape):
    f, p, seed = shape
    m = 4 * f + 3
    x = rows(m, p, seed)
    left, chosen = list(range(m)), []
    while len(chosen) < m - 2 * f:
        scores = []
        for i in left:
            apart = sorted(float((x[i] - x[j]).double().square().sum()) for j in left if j != i)
            scores.append(sum(apart[: max(len(left) - f - 2, 1)]))
        chosen.append(left.pop(int(np.argmin(scores))))
    some = x[chosen].double().numpy()
    middle = np.median(some, axis=0)
    near = np.sort(np.abs(some - middle), axis=0)[m - 4 * f - 1]
    wanted = np.array(
        [some[np.abs(some[:, j] - middle[j]) <= near[j] + 1e-12, j].mean() for j in range(p)]
    )

    assert np.allclose(rules.Bulyan(f).rows(x)[0].numpy(), wanted, atol=1e-5)


@given(shape=st.tuples(st.integers(3, 20), st.integers(2, 30), st.integers(0, 1000)))
def test_the_geometric_median_has_no_descent_left(shape):
    m, p, seed = shape
    x = rows(m, p, seed)
    z = rules.GeometricMedian(2000).rows(x)[0].double()
    apart = x.double() - z
    length = apart.norm(dim=1, keepdim=True)
    pull = (apart / length.clamp(min=1e-9)).sum(dim=0).norm()

    assert pull <= 1.0 + 1e-3 if length.min() < 1e-3 else pull < 0.05 * m


def test_nearest_neighbour_mixing_is_the_mean_of_the_nearest():
    x = rows(9, 5)
    found = rules.NNM(3).rows(x)
    for i in range(9):
        near = (x - x[i]).norm(dim=1).argsort()[:6]
        assert torch.allclose(found[i], x[near].mean(dim=0), atol=1e-6)


def test_buckets_share_every_upload_once_and_repeat():
    x = rows(11, 4)
    found = rules.Bucketing(3).rows(x)
    sizes = torch.tensor([3.0, 3.0, 3.0, 2.0])

    assert found.shape == (4, 4)
    assert torch.allclose(sizes @ found, x.sum(dim=0), atol=1e-5)
    assert torch.equal(found, rules.Bucketing(3).rows(x))


def test_fltrust_counts_by_the_cosine_to_the_trusted_upload():
    x = rows(6, 40)
    x[3] = -x[0]
    cosine = (x @ x[0]) / (x.norm(dim=1) * x[0].norm())
    trust = cosine.clamp(min=0)
    wanted = (
        (trust[:, None] * x / x.norm(dim=1, keepdim=True)).sum(dim=0) * x[0].norm() / trust.sum()
    )

    assert torch.allclose(rules.FLTrust(0).rows(x, 0)[0], wanted, atol=1e-5)


def received(x: torch.Tensor, y: torch.Tensor) -> Received:
    present = torch.arange(10, 10 + len(x))
    return Received(present, 50, {}, rows=(x, y), counts=torch.full((len(x),), 1e9))


def test_all_tensors_of_an_upload_are_one_row_and_counts_have_no_say():
    x, y = rows(11, 6), rows(11, 8, 1).view(11, 2, 4)
    x[4] = 1e6
    found = rules.MultiKrum(1)(received(x, y))
    scores = rules.krum.scores(rules.rows.distances(torch.cat([x, y.flatten(1)], 1)), 1)
    kept = scores.argsort()[:10].sort().values

    assert found.sampled == 11 and found.parties == 50
    assert torch.allclose(found.mean(by_examples=True)[0], x[kept].mean(dim=0))
    assert torch.allclose(found.mean()[1], y[kept].mean(dim=0))
    with pytest.raises(ArchipelError, match=r"calls uploads.stack\(\), and round.rule has made"):
        found.stack()


def test_one_rule_after_another():
    x, y = rows(15, 6), rows(15, 3, 1)
    x[[2, 9]] = 1e6
    found = InTurn((rules.NNM(2), rules.TrimmedMean(2)))(received(x, y))
    wanted = rules.TrimmedMean(2).rows(rules.NNM(2).rows(torch.cat([x, y], dim=1)))[0]

    assert torch.allclose(torch.cat(found.mean()), wanted)


def test_a_study_names_rules_one_or_several():
    one = Study.of(data={"name": "heart_disease"}, round={"rule": "krum:1:3"})
    both = Study.of(data={"name": "heart_disease"}, round={"rule": ["nnm:1", "median"]})

    assert one.wire_object.rule == rules.Krum(1, 3)
    assert both.wire_object.rule == InTurn((rules.NNM(1), rules.Median()))
    assert both.resolved()["round"]["rule"] == ["nnm:f=1", "median"]
    assert Study.parse(both.toml()).hash == both.hash


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"wire": {"rule": "krum:1"}}, 'is a key of [round]; say round.rule = "krum:1".'),
        ({"round": {"rule": "krum"}}, "how many parties may lie is not said: give a number or a"),
        ({"round": {"rule": "krumm:1"}}, "unknown rule 'krumm': did you mean 'krum'"),
        ({"round": {"rule": "krum:x"}}, 'round.rule: krum.f = "x": give a whole number or a num'),
    ],
)
def test_a_study_is_refused_that_says_of_a_rule_what_cannot_be(sections, said):
    with pytest.raises(ArchipelError, match=re.escape(said)):
        Study.of(data={"name": "heart_disease"}, **sections)


@dataclass(frozen=True)
class Lied:
    """FedAvg in which the first two parties send thirty times the opposite."""

    lr: float = 0.1
    local_steps: int = 5
    batch_size: int = 10

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        lies = torch.where(me.number < 2, -30.0, 1.0)
        return lies * (me.descend(w, self).w - w), None

    def server(self, w, uploads):
        return w + uploads.mean()


def test_two_liars_of_twelve_spoil_the_mean_and_no_rule():
    def accuracy(rule=None):
        options = {} if rule is None else {"wire": ar.Wire(rule=rule)}
        run = ar.simulate(
            Lied(), "mnist", "logistic", partition="iid", parties=12, rounds=6, workers=1, **options
        )
        return run.history[-1]["metrics"]["accuracy"]

    assert accuracy() < 0.5
    assert accuracy(InTurn((rules.NNM(2), rules.TrimmedMean(2)))) > 0.75
    assert accuracy(rules.GeometricMedian()) > 0.75


@pytest.mark.parametrize(
    ("rule", "m", "said"),
    [
        (rules.Krum(2), 6, "Krum with f = 2 needs 7 uploads and has 6: sample more parties"),
        (rules.Bulyan(2), 10, "Bulyan with f = 2 needs 11 uploads and has 10"),
        (rules.TrimmedMean(3), 6, "TrimmedMean with f = 3 needs 7 uploads and has 6"),
        (rules.TrimmedMean(0.5), 6, "TrimmedMean.f = 0.5: give a number of parties, or a share"),
        (rules.NNM(-1), 6, "NNM.f = -1: give a number of parties, or a share below 0.5"),
        (rules.NormBound(0.0), 6, "NormBound.most = 0.0: give a number above 0"),
        (rules.CentredClipping(0.0), 6, "CentredClipping(radius=0.0, steps=3): give numbers above"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(rule, m, said):
    with pytest.raises(ArchipelError, match=r"^round\.rule: ") as error:
        rule.rows(rows(m, 4))
    assert said in str(error.value)


def test_the_trusted_party_has_to_be_there():
    with pytest.raises(ArchipelError, match=r"FLTrust.root = 3: that party sent nothing"):
        replace(rules.FLTrust(), root=3)(received(rows(4, 3), rows(4, 2)))


def test_blocks_of_columns_make_no_difference(monkeypatch):
    x = rows(15, 3000)
    whole = {name: mean(name, x) for name in RULES if name != "bucketing"}
    monkeypatch.setattr(sys.modules["archipel.rules.rows"], "_SORTED", 1)
    monkeypatch.setattr(sys.modules["archipel.rules.rows"], "_MULTIPLIED", 1)

    for name, before in whole.items():
        assert torch.allclose(mean(name, x), before, atol=1e-5), name
