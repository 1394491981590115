# SPDX-License-Identifier: Apache-2.0
"""Sums of groups between sites: letters as bytes, a policy that wants more, what a review says."""

import asyncio

import pytest
import torch

import archipel as ar
from archipel import rules
from archipel.aggregation.groups import drawn
from archipel.aggregation.keys import Session
from archipel.aggregation.others import session_of
from archipel.aggregation.roster import Refusal
from archipel.aggregation.secure import SecureSum
from archipel.engines.plan import Plan
from archipel.federation import approval
from archipel.federation.site import binding
from archipel.federation.site.dangers import dangers
from archipel.federation.site.exposure import Rows
from archipel.federation.site.looking import exposure_of
from archipel.federation.site.policy import Policy
from archipel.tree import first
from network.homes import study_text
from network.test_wire import DATA, FEDAVG, PARTIES, Federation, network, party_of

WIRE = ar.Wire(rule=rules.Median(), sum=SecureSum(groups=2))


def uploads():
    """What each party sends in the first round."""
    found = []
    for k in range(PARTIES):
        with ar.LocalEngine(FEDAVG, DATA, network(4, 3), plan=Plan("one", 1, 1)) as engine:
            before = engine.vector().clone()
            engine.round(0, [k])
            found.append(engine.vector() - before)
    return torch.stack(found), before


@pytest.mark.parametrize("lost", [{}, {3: 4}])
def test_the_server_gets_the_median_of_the_groups_means(lost):
    federation = Federation(WIRE)

    outcome = asyncio.run(asyncio.wait_for(federation.round(0, range(PARTIES), lost), 60))

    if not len(outcome.arrived):  # of the group of two both have to stay
        assert lost and "are needed" in outcome.given_up
        return
    session = Session(session_of("s", federation.engine._attempt), 0, 0)
    sent, before = uploads()
    means = [sent[group].mean(dim=0) for group in drawn(range(PARTIES), 2, session)]
    expected = before + torch.stack(means).median(dim=0).values
    both = before + torch.stack(means).mean(dim=0)  # the median of two
    found = first(federation.engine.shared)
    assert min((found - each).abs().max() for each in (expected, both)) < 1e-4


class Wants:
    least, scores = 4, 10

    def check_upload(self, records, rows):
        pass

    def check_model(self, model, w):
        pass


def test_a_site_is_in_no_group_that_is_smaller_than_it_wants():
    """Five sites suffice a policy of four, and no group of them does."""
    for how, refuses in ((SecureSum(), False), (SecureSum(groups=2), True)):
        wire = ar.Wire(rule=rules.Median() if refuses else None, sum=how)
        federation = Federation(wire)
        federation.parties[1] = party_of(1, wire, rules=Wants())
        playing = federation.round(0, range(PARTIES))
        if refuses:
            with pytest.raises(Refusal, match="this party wants at least 4 in a sum"):
                asyncio.run(asyncio.wait_for(playing, 60))
        else:
            assert len(asyncio.run(asyncio.wait_for(playing, 60)).arrived) == PARTIES


@pytest.mark.parametrize(("groups", "met"), [(3, True), (4, False)])
def test_a_policy_judges_the_smallest_group(groups, met):
    """A round of nine, of which three have to be in every sum."""
    policy = Policy(least_sites=3)
    wire = {"sum": f"secure:groups={groups}"}
    study = approval.read(study_text(wire=wire, round={"quorum": 9, "rule": "median"}))
    found = exposure_of(study, binding.schema_of(study).empty(), Rows(160, 40))
    alone = approval.read(study_text(wire={"sum": "secure"}, round={"quorum": 9}))
    single = exposure_of(alone, binding.schema_of(alone).empty(), Rows(160, 40))

    judged = {rule.key: rule for rule in policy.judge(found)}["least_sites"]

    assert judged.met is met
    assert f"at least 3 (round.quorum in {groups} groups)" in judged.said
    assert any(f"drawn into {groups} groups" in each for each in dangers(found, policy))
    assert found.numbers == single.numbers
