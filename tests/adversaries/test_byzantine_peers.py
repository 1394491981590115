# SPDX-License-Identifier: Apache-2.0
"""Peers that lie to their neighbours: what they say, what it does, and what is left of a run."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel import adversaries as attacks
from archipel import rules
from archipel.adversaries.attack import Hears
from archipel.aggregation.rule import InTurn
from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from archipel.errors import ArchipelError
from archipel.graphs import topology
from archipel.runs.listing import resume
from archipel.study.file import Study
from archipel.wire.quantise import Quantise
from problems import classification, network

DATA, NET = classification(7, 3, 3, seed=1), network(3, 3)
ROBUST = {
    "clipped": rules.ClippedGossip(0.2),
    "fixed": rules.FixedClippedGossip(0.5),
    "trimmed": rules.TrimmedMean(1),
    "mixed": InTurn((rules.NNM(1), rules.TrimmedMean(1))),
}


def hears(h=4, f=2, p=5, seed=0):
    draw = np.random.default_rng(seed)
    x = torch.from_numpy(draw.standard_normal((1 + h + f, p)))
    weights = torch.from_numpy(draw.random(h + f) / (2 * (h + f)))
    return Hears(3, x[0], x[1 : h + 1], weights[:h], x[h + 1 :], weights[h:], draw)


@pytest.mark.parametrize("seed", range(5))
def test_dissensus_undoes_what_honest_neighbours_do(seed):
    to = hears(seed=seed)

    def mean(said):
        pull = (to.weights[:, None] * (to.honest - to.mine)).sum(dim=0)
        return to.mine + pull + to.lying.sum() * (said - to.mine)

    torch.testing.assert_close(mean(attacks.Dissensus(1.0).telling(to)), to.mine)
    away = mean(attacks.Dissensus(3.0).telling(to)) - to.mine
    honest = mean(to.mine) - to.mine
    torch.testing.assert_close(away, -2 * honest)


def test_flipped_signs_and_noise_by_neighbour():
    to = hears()
    assert torch.equal(attacks.SignFlip(2.0).telling(to), -2 * to.theirs)
    one, other = attacks.Gaussian(2.0).telling(to), attacks.Gaussian(2.0).telling(to)
    assert one.shape == to.theirs.shape and not torch.equal(one, other)


@dataclass(frozen=True)
class Says:
    """Tells every peer another number, or what is none."""

    number: float | None = None

    def telling(self, to):
        said = float(to.number) if self.number is None else self.number
        return torch.full_like(to.theirs, said)


def played(rule=None, attack=None, who=("2",), graph="complete", rounds=2, algorithm=None, **given):
    """An engine after some rounds of peers."""
    wire = ar.Wire(rule=rule) if rule is not None else None
    adversary = None
    if attack is not None:
        adversary = ar.Adversary(attack, [DATA.name(int(k)) for k in who])
    options = {"topology": topology(graph, 7), "wire": wire, "plan": Plan("one", 7, 1), **given}
    algorithm = algorithm or ar.DSGD(batch_size=2)
    with LocalEngine(algorithm, DATA, NET, adversary=adversary, **options) as engine:
        for t in range(rounds):
            engine.round(t, range(7))
        return engine.own_models(range(7)).clone(), engine


def test_every_neighbour_is_told_something_else():
    """On a ring, 1 and 3 hear party 2; the plain mean takes a third of what it says."""
    honest, _ = played(graph="ring", rounds=1)
    found, engine = played(attack=Says(), graph="ring", rounds=1)
    steps = played(graph="ring", rounds=1, algorithm=ar.DSGD(batch_size=2))[0]
    assert torch.equal(honest, steps)

    told = {k: found[k] - honest[k] for k in (1, 3)}
    for k, change in told.items():  # (k - x_2) / 3, whatever x_2 was
        torch.testing.assert_close(3 * (change - told[1]), torch.full_like(change, k - 1.0))
    for k in (0, 2, 4, 5, 6):  # adversaries are told the truth
        torch.testing.assert_close(found[k], honest[k])
    assert engine.vector().equal(found[[0, 1, 3, 4, 5, 6]].mean(dim=0))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, 1e30])
@pytest.mark.parametrize("name", ROBUST)
def test_a_peer_that_sends_anything_breaks_nobody(name, number):
    clean, _ = played(ROBUST[name])
    found, _ = played(ROBUST[name], Says(float(number)))
    assert float((found - clean).abs().max()) < 1.0
    with pytest.raises(ArchipelError, match="no longer finite"):
        played(None, Says(torch.nan), graph="ring")


@pytest.mark.parametrize("name", ROBUST)
def test_the_number_of_workers_has_no_say(name):
    one, _ = played(ROBUST[name], attacks.Gaussian())
    several, _ = played(ROBUST[name], attacks.Gaussian(), plan=Plan("one", 2, 3))
    assert torch.equal(one, several)


def test_settings_of_a_sweep_run_as_by_themselves():
    rates = [0.1, 0.02]
    together, _ = played(ROBUST["trimmed"], attacks.ALIE(3.0), sweep={"lr": rates})
    for s, lr in enumerate(rates):
        alone, _ = played(ROBUST["trimmed"], attacks.ALIE(3.0), algorithm=ar.DSGD(lr, batch_size=2))
        torch.testing.assert_close(together[:, s], alone)


def test_what_adversaries_have_themselves_is_no_result():
    _, engine = played(None, Says(5.0), rounds=0)
    with engine:
        scores = engine.evaluate(own=True, split="train")
    assert torch.isnan(scores.parties["loss"])[:7].tolist() == [k == 2 for k in range(7)]
    n = DATA.n[:7].double()
    counted = torch.tensor([k != 2 for k in range(7)])
    mean = float((scores.parties["loss"][:7] * n)[counted].sum() / n[counted].sum())
    assert scores.pooled["loss"] == pytest.approx(mean)


def test_wrong_labels_are_those_of_adversaries_alone():
    honest, _ = played(graph="ring", rounds=1, algorithm=ar.DSGD(batch_size=None))
    flipped, _ = played(
        None, attacks.LabelFlip(), graph="ring", rounds=1, algorithm=ar.DSGD(batch_size=None)
    )
    same = [torch.equal(a, b) for a, b in zip(honest, flipped, strict=True)]
    assert same == [True, False, False, False, True, True, True]


def test_statistics_of_a_model_pass_the_rule_as_well():
    """They are a second vector of every round, shorter than the model."""
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    given = {"topology": topology("complete", 7), "plan": Plan("one", 7, 1)}
    wire, adversary = ar.Wire(rule=ROBUST["trimmed"]), ar.Adversary(Says(1e30), 1)
    engine = LocalEngine(
        ar.DSGD(batch_size=4), DATA, ar.Model(module), wire=wire, adversary=adversary, **given
    )
    with engine:
        for t in range(2):
            engine.round(t, range(7))
        assert float(engine.buffers().abs().max()) < 100
        assert float(engine.vector().abs().max()) < 100


def test_steps_of_a_wire_go_with_a_rule():
    plain, _ = played(ROBUST["clipped"], attacks.IPM())
    wire = ar.Wire(up=(Quantise(8),), rule=ROBUST["clipped"])
    coded, _ = played(None, attacks.IPM(), wire=wire)
    assert 0 < float((coded - plain).abs().max()) < 0.2


HEART = """
[study]
name = "peers"
rounds = 6
[data]
name = "heart_disease"
[algorithm]
name = "dsgd"
batch_size = 20
[topology]
name = "complete"
[adversary]
parties = 1
attack = "dissensus"
epsilon = 4.0
[round]
rule = "{}"
"""


def test_a_study_says_who_attacks_and_what_helps(tmp_path):
    run = Study.parse(HEART.format("trimmed_mean")).run(tmp_path, baselines=False)
    assert "TrimmedMean(f=1) says what a peer takes of its neighbours' vectors" in (
        run.scorecard.privacy.wire
    )
    assert "knowing what the honest send" in run.record.attacked
    assert "1 of the 3 neighbours of" in run.record.attacked
    again = resume(run.folder)
    assert torch.equal(again.vector, run.vector)


def test_plain_gossip_falls_apart_and_rules_hold_it_together():
    def spread(rule):
        models, _ = played(rule, attacks.Dissensus(4.0), rounds=12, who=("2",))
        honest = models[[0, 1, 3, 4, 5, 6]]
        return float((honest - honest.mean(dim=0)).norm(dim=1).max())

    apart = spread(None)
    assert all(spread(rule) < apart / 10 for rule in ROBUST.values())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"attack": attacks.FreeRider()}, "FreeRider is an attack on what a server is sent"),
        ({"attack": attacks.Replacement()}, "take dissensus"),
        ({"attack": attacks.IPM(), "algorithm": ar.Gossip()}, "Gossip does not; take dsgd"),
        ({"attack": attacks.IPM(), "graph": "peer_sampling:3"}, "who there is"),
        ({"rule": rules.TrimmedMean(1), "algorithm": ar.Gossip()}, "the wire of Gossip"),
        ({"rule": rules.TrimmedMean(1), "algorithm": ar.Alone(), "topology": None},
         "mix with nobody"),
        ({"rule": rules.TrimmedMean(1), "algorithm": ar.GradientTracking()}, "has to keep"),
        ({"attack": attacks.IPM(), "algorithm": ar.Choco(), "wire": ar.Wire(up=(Quantise(4),))},
         "hold copies of each other's"),
        ({"algorithm": ar.Choco(),
          "wire": ar.Wire(up=(Quantise(4),), rule=rules.TrimmedMean(1))}, "add codes to copies"),
        ({"attack": attacks.Dissensus(), "algorithm": ar.FedAvg(), "topology": None},
         "Dissensus tells neighbours different things"),
        ({"rule": rules.ClippedGossip(1), "algorithm": ar.FedAvg(), "topology": None},
         "ClippedGossip is for peers"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused(given, why):
    with pytest.raises(ArchipelError, match=why):
        played(**given)


@pytest.mark.parametrize("algorithm", [ar.GradientTracking(batch_size=2), ar.Choco(batch_size=2)])
def test_other_algorithms_that_mix_can_be_attacked(algorithm):
    honest, _ = played(algorithm=algorithm)
    attacked, _ = played(attack=attacks.SignFlip(3.0), algorithm=algorithm)
    assert float((honest - attacked).abs().max()) > 0.01
