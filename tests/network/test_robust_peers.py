# SPDX-License-Identifier: Apache-2.0
"""Peers that keep to a rule whatever others send: over letters as in a simulation."""

import asyncio
from dataclasses import dataclass

import pytest
import safetensors.torch
import torch

import archipel as ar
from archipel import rules
from archipel.aggregation.rule import InTurn
from archipel.algorithms import DSGD
from archipel.engines.network.in_process import Circle, meet
from archipel.engines.network.letters import Letter
from archipel.errors import ArchipelError
from archipel.federation.site.part import party_state_at
from archipel.graphs import topology
from archipel.study.file import Study
from archipel.wire.quantise import Quantise
from network.test_peers import ONE, attend, close, coordinator, gathered, problem, run

SGD = DSGD(lr=0.1, batch_size=4)
RULES = {
    "clipped": rules.ClippedGossip(1),
    "a share": rules.ClippedGossip(0.2),
    "fixed": rules.FixedClippedGossip(0.05),
    "trimmed": rules.TrimmedMean(1),
    "mixed": InTurn((rules.NNM(1), rules.TrimmedMean(1))),
}


def simulated(wire, graph, rounds, adversary=None, away=lambda t: ()):
    data, model = problem()
    options = {"plan": ONE, "topology": graph, "wire": wire, "adversary": adversary}
    with ar.LocalEngine(SGD, data, model, **options) as engine:
        for t in range(rounds):
            engine.round(t, [k for k in range(5) if k not in away(t)])
        return engine.own_models(range(5)).clone()


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        *(("complete", name) for name in RULES),
        *(("ring", name) for name in RULES if name != "mixed"),
    ],
)
def test_rules_over_letters_are_those_of_a_simulation(graph, name):
    data, model = problem()
    wire, joined = ar.Wire(rule=RULES[name]), topology(graph, 5)
    states = run(meet(SGD, data, model, joined, 4, wire=wire))

    close(states, simulated(wire, joined, 4))
    plain = simulated(None, joined, 4)
    alike = isinstance(RULES[name], rules.ClippedGossip)  # where nobody lies nobody is far away
    assert alike or not torch.allclose(torch.stack(states), plain)


def test_steps_and_a_rule_over_letters_are_those_of_a_simulation():
    data, model = problem()
    wire, joined = ar.Wire(up=(Quantise(8),), rule=RULES["clipped"]), topology("complete", 5)
    states = run(meet(SGD, data, model, joined, 4, wire=wire))

    close([state.inner for state in states], simulated(wire, joined, 4))


@dataclass(frozen=True)
class Numbers:
    """Tells each peer a vector of its own number."""

    def telling(self, to):
        return torch.full_like(to.theirs, 10.0 * (1 + to.number))


class Crooked:
    """A peer that tells everybody another vector, and else keeps to the protocol."""

    def __init__(self, circle, k, said):
        self._peer, self._said = circle.begin(k), said
        circle.up[k] = self
        for j, link in self._peer.liveness.links.items():
            link.ask = self._asking(j, link.ask)

    def __getattr__(self, name):
        return getattr(self._peer, name)

    def _asking(self, j, ask):
        async def asked(letter):
            return await ask(self._told(j, letter))

        return asked

    async def answer(self, j, letter):
        return self._told(j, await self._peer.answer(j, letter))

    def _told(self, j, letter):
        if letter.kind != "vector":
            return letter
        return Letter("vector", letter.fields, [self._said(j, x) for x in letter.arrays])


async def lied_to(rule, liar, said, rounds=4, **options):
    """The states of four honest peers among whom one lies."""
    data, model = problem()
    circle = Circle(
        SGD, data, model, topology("complete", 5), rounds, wire=ar.Wire(rule=rule), **options
    )
    for k in range(5):
        circle.begin(k) if k != liar else Crooked(circle, k, said)
    try:
        return await asyncio.gather(*(circle.tasks[k] for k in range(5) if k != liar))
    finally:
        for k in range(5):
            await circle.end(k)


@pytest.mark.parametrize("liar", [0, 2, 4])
@pytest.mark.parametrize("name", ["clipped", "trimmed"])
def test_what_a_liar_does_is_what_a_simulation_says_it_does(name, liar):
    data, _ = problem()
    adversary = ar.Adversary(Numbers(), [data.name(liar)])
    expected = simulated(ar.Wire(rule=RULES[name]), topology("complete", 5), 4, adversary)
    honest = [k for k in range(5) if k != liar]

    said = lambda j, x: torch.full_like(x, 10.0 * (1 + j))  # noqa: E731
    close(run(lied_to(RULES[name], liar, said)), expected[honest])


@pytest.mark.parametrize("number", [torch.nan, 1e20], ids=str)
@pytest.mark.parametrize("liar", [0, 4])
def test_a_vector_that_is_none_stops_nobody(number, liar):
    """It is refused, and the honest go on without who sent it, as without one that is away."""
    play = lied_to(RULES["trimmed"], liar, lambda j, x: torch.full_like(x, number))
    states = torch.stack(run(play))
    honest = [k for k in range(5) if k != liar]

    wire, graph = ar.Wire(rule=RULES["trimmed"]), topology("complete", 5)
    expected = simulated(wire, graph, 4, away=lambda t: (liar,))
    close(list(states), expected[honest])


def test_a_rule_needs_rounds_in_common():
    data, model = problem()
    wire = ar.Wire(rule=RULES["trimmed"])

    async def play():
        Circle(SGD, data, model, topology("ring", 5), 2, asynchronous=True, wire=wire).begin(0)

    with pytest.raises(ArchipelError, match="averages with one at a time"):
        run(play())


STUDY = """
[study]
name = "heart"
rounds = 3
[data]
name = "heart_disease"
[algorithm]
name = "dsgd"
lr = 0.05
[topology]
name = "complete"
[round]
rule = "clipped_gossip:1"
"""


def test_a_rule_between_peers_over_tls_is_its_simulation(tmp_path):
    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, STUDY)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            outcome = await one.run(digest)
            await asyncio.gather(*tasks)
            return outcome, digest, peers

    outcome, digest, peers = run(play())
    study = Study.parse(STUDY)
    parts, options = study.parts(), {"plan": ONE, "topology": topology("complete", 4)}
    with ar.LocalEngine(*parts, wire=study.wire_object, **options) as engine:
        for t in range(3):
            engine.round(t, range(4))
        vectors = engine.own_models(range(4)).clone()
    for k, (site, data) in enumerate(peers):
        kept = site.home / "studies" / digest / "peer" / "own.safetensors"
        party_state, _ = party_state_at(site, digest, data)
        party_state.restore(safetensors.torch.load_file(kept))
        torch.testing.assert_close(party_state.own.state, vectors[k], rtol=1e-6, atol=1e-6)
    assert outcome.done == 3 and not any(cohort.missing for cohort in outcome.participation)
