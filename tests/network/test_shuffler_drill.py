# SPDX-License-Identifier: Apache-2.0
"""Shuffled sums where shuffler, coordinator or a site is killed in the middle of a round."""

import asyncio
import random
import subprocess
import sys

import pytest
import torch

import archipel as ar
from aggregation.test_shuffler import free_port
from archipel.aggregation.others import Simulated
from archipel.aggregation.shuffled import ShuffledSum
from archipel.federation.shuffler import ShufflerFolder
from archipel.federation.site.site import Site
from network.processes import Drill, Process
from network.test_drill import WAIT
from network.test_secure_sites import again
from network.test_wire import PARTIES, Federation

SCAFFOLD = ar.Scaffold(lr=0.1, batch_size=4)


class Mix:
    """A shuffler, in a process of its own that is killed and started again."""

    def __init__(self, path):
        self.folder = ShufflerFolder.create(path, f"localhost:{free_port()}", least=3)
        for k in range(PARTIES):
            self.folder.admit(f"party-{k}", Simulated(k, 0).public.hex())
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "archipel", "shuffler", "up", "--home"]
        command.append(str(self.folder.path))
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert "listening" in self.process.stdout.readline()

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    @property
    def answered(self):
        path = self.folder.path / "answered"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def mix(tmp_path):
    made = Mix(tmp_path / "mix")
    yield made
    made.kill()


def test_a_round_goes_on_where_shuffler_and_coordinator_were_killed(mix):
    """Both at every moment that makes a difference; nothing is spent while nobody shuffles."""
    how = ShuffledSum(least=4, shuffler=mix.folder.place.text(), bound=0.5)
    federation = Federation(ar.Wire(sum=how), SCAFFOLD)
    before = federation.engine.vector().clone()

    class Killing(Federation):
        """The shuffler is killed when the first report is there."""

        def answer(self, k, letter, restarts=False):
            if letter["number"] == 1:
                mix.kill()
            return super().answer(k, letter, restarts)

    async def play():
        for _ in range(30):  # nobody shuffles: more often than a site would begin a round anew
            outcome, _, refusals = await again(federation, 0, range(PARTIES))
            assert len(outcome.arrived) == 0 and not refusals
        assert "is not reached" in outcome.given_up and outcome.given_up.count(".") == 2
        assert all(len(each.turn.outbox) == 1 for each in federation.parties)  # no report was made
        mix.start()
        federation.__class__ = Killing
        outcome, _, _ = await again(federation, 0, range(PARTIES))
        assert len(outcome.arrived) == 0 and mix.answered == []
        federation.__class__ = Federation
        mix.start()
        outcome, found, _ = await again(federation, 0, range(PARTIES))  # killed once it is shuffled
        assert len(outcome.arrived) == PARTIES and len(mix.answered) == 1
        outcome = await federation.round(0, range(PARTIES), restarts=[2])
        assert len(outcome.arrived) == PARTIES and len(mix.answered) == 2
        few = await federation.round(1, range(3))
        return found, few

    found, few = asyncio.run(asyncio.wait_for(play(), 600))
    assert not torch.equal(found, before) and not torch.equal(federation.engine.vector(), before)
    assert few.given_up.startswith("wire.sum: 3 parties are there, and 4 is the fewest")


def test_a_line_that_was_cut_by_a_kill_hides_no_later_one(mix):
    """What was answered stays answered, whatever the file ended with."""
    assert mix.folder.first(b"one")
    with (mix.folder.path / "answered").open("a") as file:
        file.write("\nabc")  # killed in the middle of a line
    assert mix.folder.first(b"two")
    assert not mix.folder.first(b"two") and not mix.folder.first(b"one")


@pytest.mark.slow
def test_a_shuffled_study_survives_kills_of_everybody(tmp_path):
    """Real processes over TLS: a site, the coordinator and the shuffler, at each message."""
    mix, draws, sites = Mix(tmp_path / "mix"), random.Random(1), 4
    how = f"shuffled:least=3:bound=0.5:shuffler={mix.folder.place.text()}"
    shuffler = Process(
        tmp_path / "mix.log", "shuffler", "up", "--home", str(mix.folder.path)
    )  # fmt: skip

    async def play(drill):
        await drill.enrol()
        for k in range(sites):
            mix.folder.admit(f"site-{k}", Site(drill.path(k)).identity.public.hex())
        await shuffler.start()
        await drill.start()
        for t, (message, who) in enumerate(
            [(m, who) for m in (1, 2) for who in ("site", "coordinator", "shuffler")], 1
        ):
            k = draws.randrange(sites)
            await drill.until_sent(k, t, message)
            print(f"{who} killed in round {t}, after message {message} of site {k}")
            if who == "coordinator":
                await drill.restart()
                continue
            process = shuffler if who == "shuffler" else drill.processes[k]
            await process.kill()
            await asyncio.sleep(6)  # rounds are tried meanwhile
            await process.start()
        await drill.finished()

    changes = {
        **WAIT, "study.rounds": 7, "study.evaluate_every": 7, "algorithm.name": "scaffold",
        "wire.sum": how,
    }  # fmt: skip

    async def main():
        async with Drill(tmp_path, sites, changes, silence=5.0) as drill:
            try:
                async with asyncio.timeout(1200):
                    await play(drill)
            finally:
                await shuffler.kill()
            return drill

    drill = asyncio.run(main())
    for row in drill.rows:
        print(row["round"], row["counted"], row["missing"], row["waited"])
    assert [row["round"] for row in drill.rows] == list(range(1, 8))
    assert all(row["counted"] and not row["missing"] for row in drill.rows)
    assert len(mix.answered) >= 7
    drill.audited()
