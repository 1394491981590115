# SPDX-License-Identifier: Apache-2.0
"""Policy counts = "sums": how many rows a site has leaves in sums over sites alone."""

import asyncio
from dataclasses import replace

import torch

from archipel.federation import approval
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.site import binding, service
from archipel.federation.site.policy import Policy
from archipel.federation.site.site import Site
from network.processes import Drill

SITES = 3


class Quiet(Drill):
    """A drill whose sites let numbers of rows leave in sums alone."""

    def approve(self, k):
        site, study = Site(self.path(k)), approval.read(self._text)
        replace(Policy.open(), counts="sums").write(site.home)
        binding.bind(site.home / "data", study, self.table(k))
        records = binding.records(site.home / "data", study)
        site.decide(self._text, "approved", binding.facts(records, site.policy.tells_counts))
        return site


class Listening(Coordinator):
    """Keeps all that sites say."""

    heard: list

    async def answer(self, sender, letter):
        self.heard.append(letter)
        return await super().answer(sender, letter)


def test_a_study_weighed_by_rows_runs_and_no_letter_tells_a_number_of_rows(tmp_path):
    """Real sites over TLS; their masked integers, and lengths, are all that depends on it."""
    changes = {
        "study.rounds": 1, "study.evaluate_every": 1, "algorithm.name": "fedavg",
        "wire.sum": "secure", "data.standardise": False, "round.quorum": SITES,
        "round.on_missing": "wait",
    }  # fmt: skip

    async def play():
        async with Quiet(tmp_path, SITES, changes) as drill:
            await drill.enrol()
            coordinator, stop = Listening(drill.home), asyncio.Event()
            coordinator.heard = []
            await coordinator.up(drill.home.address)
            sites = [Site(drill.path(k)) for k in range(SITES)]
            up = [asyncio.create_task(service.up(each, stop, lambda _: None)) for each in sites]
            await coordinator.run(drill.hash)
            await drill.finished()
            stop.set()
            await asyncio.gather(*up)
            await coordinator.down()
            return drill, coordinator.heard

    drill, heard = asyncio.run(asyncio.wait_for(play(), 600))
    data = drill.study.federation()
    rows = {*data.n.tolist(), *data.n_test.tolist()}
    numbers = [
        value
        for letter in heard
        for name, value in letter.fields.items()
        if name in ("n", "gradients", "points", "reached")
    ]
    assert len(numbers) >= SITES * 5 and not rows & {*numbers}
    uploads = [letter for letter in heard if letter.kind == "upload"]
    assert {letter["n"] for letter in uploads} == {0.0}
    simulated = drill.study.run(None, baselines=False, workers=1)
    torch.testing.assert_close(drill.vector(), simulated.vector, rtol=0, atol=5e-5)
