"""Sums of groups: who is in which, the exact sums whoever is lost, and rules over them."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

import archipel as ar
from aggregation.protocol import MESSAGES, Me, play, terms
from archipel import adversaries, rules
from archipel.aggregation.groups import drawn
from archipel.aggregation.keys import Session
from archipel.aggregation.roster import Refusal
from archipel.aggregation.secure import SecureSum
from archipel.audit.subject import Subject
from archipel.errors import ArchipelError, BelowQuorum
from archipel.wire.wire import Wire
from archipel.worth.measuring import _in_sight
from problems import classification, linear, network, regression

HOW = SecureSum(groups=3, range=100.0)


def uploads(ids, d=5):
    draw = np.random.default_rng(len(ids))
    return {k: terms(torch.from_numpy(draw.uniform(-4, 4, d))) for k in ids}


def groups_of(ids, how=HOW, t=0, seed=0):
    return drawn(ids, how.groups, Session(b"simulation %d" % seed, t, 0))


# -- who is in which -------------------------------------------------------------------------------


def test_everybody_is_in_one_group_of_as_many_or_one_fewer():
    for n in range(1, 40):
        found = drawn(range(100, 100 + n), 6, Session(b"s", n, 0))
        assert sorted(k for group in found for k in group) == [*range(100, 100 + n)]
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_groups_are_drawn_anew_in_every_round_and_alike_for_all():
    """Chi-square of how often party 0 meets each of the others, at alpha = 1e-4."""
    met = np.zeros(12)
    for t in range(2000):
        own = next(g for g in drawn(range(12), 3, Session(b"s", t, 0)) if 0 in g)
        met[[k for k in own if k]] += 1
    assert stats.chisquare(met[1:]).pvalue > 1e-4


def test_who_takes_part_in_what_order_is_told_has_no_say():
    one = drawn([5, 3, 9, 1], 2, Session(b"s", 0, 0))
    assert one == drawn([9, 1, 3, 5], 2, Session(b"s", 0, 0))


# -- the sums --------------------------------------------------------------------------------------


def integers(how, xs, among):
    code, form = how.coding(len(xs)), next(iter(xs.values()))
    rows = [code.encode(xs[k], ()).numpy() for k in among]
    return code.decode(torch.from_numpy(np.sum(rows, axis=0, dtype=rows[0].dtype)), form)[0]


@pytest.mark.parametrize("stage", range(1, 5))
def test_each_is_the_sum_of_its_integers_whoever_is_lost_and_when(stage):
    xs = uploads(range(20, 35))
    groups = groups_of([*xs])
    lost = groups[1][0]

    found = play(HOW, xs, answers={lost: stage})

    late = stage > MESSAGES.index("masked")
    stayed = [[k for k in group if late or k != lost] for group in groups]
    assert found.counts.tolist() == [len(group) for group in stayed]
    assert found.present.tolist() == sorted(k for group in stayed for k in group)
    for row, group in zip(found.sums[0], stayed, strict=True):
        assert torch.equal(row, integers(HOW, xs, group))


def test_too_few_left_of_one_group_end_the_round():
    xs = uploads(range(9))
    lost = groups_of([*xs])[2][:2]
    with pytest.raises(BelowQuorum, match="are needed"):
        play(HOW, xs, answers=dict.fromkeys(lost, 2))
    with pytest.raises(BelowQuorum, match=r"2 parties are there, and groups = 3 are needed"):
        play(HOW, uploads(range(2)))


def test_a_party_wants_its_own_minimum_in_its_group():
    """Nine parties suffice a policy of four; groups of three do not."""
    xs = uploads(range(9))
    mes = {k: Me(k, least=4 if k == 7 else 0) for k in xs}
    with pytest.raises(Refusal, match=r"3 parties take part, and this party wants at least 4"):
        play(HOW, xs, mes=mes)
    assert len(play(SecureSum(), xs, mes=mes).present) == 9


def test_a_group_sees_who_of_it_stayed_and_no_other_is_smuggled_in():
    xs = uploads(range(12))
    mine = next(group for group in groups_of([*xs]) if 0 in group)

    def lie(step, k, reply):
        if step == 2 and k == 0:
            return reply[~torch.isin(reply, torch.tensor(mine[-1]))]
        return reply

    with pytest.raises(Refusal, match="signed the same set"):
        play(HOW, xs, lie=lie)


# -- rules over them -------------------------------------------------------------------------------


def run(how, rule, **options):
    given = {"rounds": 3, "seed": 1, "workers": 1, **options}
    return ar.simulate(
        ar.FedAvg(lr=0.1, local_steps=3, batch_size=8),
        regression(12, 4, seed=0),
        linear(4),
        wire=Wire(rule=rule, sum=how),
        **given,
    )


def test_the_protocol_and_the_integers_alone_give_the_same_bits():
    exact = run(HOW, rules.Median())
    whole = run(HOW, rules.Median(), protocols=True)
    assert torch.equal(exact.vector, whole.vector)
    assert exact.anatomy.sums_only and whole.anatomy.sums_only


def test_a_rule_over_groups_holds_where_the_sum_falls():
    lies = ar.Adversary(adversaries.SignFlip(40.0), 1)
    clean = run(HOW, rules.Median()).vector
    kept = run(HOW, rules.Median(), adversary=lies).vector - clean
    lost = run(SecureSum(range=1e3), None, adversary=lies).vector - clean
    assert 10 * kept.norm() < lost.norm()


def test_means_of_groups_are_those_of_their_uploads():
    """With one group per party the median is that of single uploads, to the grid's step."""
    each = SecureSum(groups=4, range=8.0, bits=64)
    data, model = regression(12, 4, seed=0), linear(4)
    algorithm = ar.FedAvg(lr=0.1, local_steps=3, batch_size=8)
    wire = Wire(rule=rules.NormBound(1e6), sum=each)
    bound = ar.simulate(algorithm, data, model, rounds=1, seed=1, workers=1, wire=wire)
    plain = Wire(rule=rules.NormBound(1e6))
    same = ar.simulate(algorithm, data, model, rounds=1, seed=1, workers=1, wire=plain)
    assert torch.allclose(bound.vector, same.vector, atol=1e-5)


@pytest.mark.parametrize(
    "how, rule, says",
    [
        (SecureSum(), rules.Median(), r'round.rule: Median .* "secure:groups=5", say wire.sum'),
        (SecureSum(groups=4), None, "groups = 4 show a sum of each group, and no round.rule looks"),
        (SecureSum(groups=7), rules.Median(), r"2 parties .* in each sum of groups = 7, .* 12; "
         "give groups=6 or fewer"),
        (SecureSum(groups=3, least=5), rules.Median(), "5 parties have to be in each sum"),
        (SecureSum(groups=3), rules.TrimmedMean(2), r"TrimmedMean with f = 2 needs 5 uploads and "
         "has 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(how, rule, says):
    with pytest.raises(ArchipelError, match=says):
        run(how, rule)
    with pytest.raises(ArchipelError, match="groups = 0: give a number from 1"):
        SecureSum(groups=0)


def test_audits_and_worth_refuse_what_they_do_not_measure():
    tables = {
        "study": {"name": "g", "rounds": 1}, "data": {"name": "quadratics", "parties": 8},
        "wire": {"sum": "secure:groups=3"}, "round": {"rule": "median"},
    }  # fmt: skip
    study = ar.Study.parse(tables)
    with pytest.raises(ArchipelError, match=r"audit: wire.sum, groups = 3: .* not measured"):
        Subject.of(study)
    with pytest.raises(ArchipelError, match=r"groups = 3: round.rule looks at groups' means"):
        _in_sight(study.options(), None)


@dataclass(frozen=True)
class Lookers:
    def init(self, w):
        return w, None

    def party(self, me, w, own):
        return me.grad(w, me.batch(2)), own

    def server(self, w, uploads):
        return w - uploads.stack()[0]


def test_who_looks_at_single_uploads_is_given_no_group_for_one():
    with pytest.raises(ArchipelError, match=r"groups = 3 show means of groups, and Lookers"):
        ar.simulate(
            Lookers(), regression(12, 4, seed=0), linear(4), rounds=1,
            wire=Wire(rule=rules.Median(), sum=HOW),
        )  # fmt: skip


def test_a_rule_over_an_upload_without_numbers_is_refused():
    data, model = classification(4, 4, 3, seed=0), network(4, 3)
    with pytest.raises(ArchipelError, match="the algorithm's last upload of a round"):
        ar.simulate(ar.PFedHN(), data, model, rounds=1, wire=Wire(rule=rules.Median()))
