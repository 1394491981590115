"""Sites and coordinators that are killed with signal 9 in a study that promises privacy.

What must hold at the end: of every site and round one upload left, whoever was killed when, and the
ledger counts each once. Nobody takes part in fewer rounds for it.
"""

import asyncio

import pytest

from archipel.federation.coordinator.evidence import Evidence
from archipel.federation.site import ledger
from archipel.federation.site.account import epsilon_of
from archipel.federation.site.site import Site
from archipel.runs.recording import Recorder
from network.killed import COORDINATOR, SITE
from network.test_drill import WAIT, with_drill
from network.test_federation import attend, coordinator, members, text_of


def released(home, digest, site):
    """What left a site, by round from 1: digests of the arrays, without repetitions."""
    found = {}
    for _, item in Evidence(home.evidence).items(digest):
        if item is not None and item.kind == "upload" and item.site == site:
            arrays = tuple(item.signed.rpartition("=")[2].split("\n")[1:])
            found.setdefault(item.round + 1, set()).add(arrays)
    return found


def assure_counted(home, digest, site, rounds):
    """Of every round one upload left, and the ledger has it once."""
    left = released(home, digest, site.name)
    assert {t: len(arrays) for t, arrays in left.items()} == dict.fromkeys(range(1, rounds + 1), 1)
    assert [each.round for each in ledger.entries(site)] == list(range(1, rounds + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "promise",
    [
        {"privacy.unit": "record", "privacy.epsilon": 4.0},
        {"privacy.unit": "party", "privacy.trust": "nobody", "privacy.epsilon": 9.0},
        {"privacy.unit": "party", "privacy.epsilon": 9.0},
    ],
    ids=lambda each: f"{each['privacy.unit']} {each.get('privacy.trust')}",
)
def test_whoever_is_killed_at_whatever_moment_every_round_is_counted_once(tmp_path, promise):
    moments = [(f"site {i % 3}", moment) for i, moment in enumerate(SITE)]
    moments += [("coordinator", moment) for moment in COORDINATOR]

    def doomed(drill, who, moment, t):
        """The process that ends at this moment of round t, instead of the one that runs."""
        process = drill.coordinator if who == "coordinator" else drill.processes[int(who[-1])]
        process.module = "network.killed"
        process.environment = {**process.environment, "KILLED": f"{moment} {t}"}
        return process

    async def killed(drill, process):
        """Wait for its end, and start it as it is."""
        assert await process.wait() == -9
        process.module = "archipel"
        process.environment.pop("KILLED")
        await process.start()

    async def play(drill):
        await drill.enrol()
        await drill.start()
        for i, (who, moment) in enumerate(moments):
            t = 2 * i + 2
            await drill.until_round(2 * i)
            process = doomed(drill, who, moment, t)
            await process.kill()
            await process.start()
            await killed(drill, process)
            print(f"{who} killed in round {t + 1}, {moment}; {drill.done} rounds are done")
        await drill.finished()

    rounds = 2 * len(moments) + 2
    changes = {**WAIT, **promise, "study.rounds": rounds, "algorithm.batch_size": 20}
    drill, _ = with_drill(tmp_path, 3, changes, play, 900)

    assert [row["round"] for row in drill.rows] == list(range(1, rounds + 1))
    assert all(row["counted"] and not row["missing"] for row in drill.rows)
    assert drill.audited() > 0
    planned = promise["privacy.epsilon"]
    for k in range(3):
        site = Site(drill.path(k))
        assure_counted(drill.home, drill.hash, site, rounds)
        spent = [r for each in ledger.entries(site) for r in each.by_record]
        assert 0.95 * planned < epsilon_of(spent, 1e-5) <= planned


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("unit", ["record", "party"])
@pytest.mark.parametrize("moment", ["before the journal", "after the journal"])
def test_a_coordinator_that_comes_back_gets_the_same_and_it_is_counted_once(
    tmp_path, monkeypatch, moment, unit
):
    """The same in one process: the coordinator is gone in round 2, the sites go on asking."""
    changes = {"privacy.unit": unit, "privacy.noise": 1.0}
    changes |= {"privacy.trust": "nobody"} if unit == "party" else {}
    text = text_of("fedavg", **{"algorithm.batch_size": 20, "study.rounds": 3, **changes})
    write, gone = Recorder.round, []

    def dying(self, spent):
        is_it = self._run.done == 2 and not gone
        if is_it and moment == "before the journal":
            gone.append(moment)
            raise Killed
        write(self, spent)
        if is_it:
            gone.append(moment)
            raise Killed

    monkeypatch.setattr(Recorder, "round", dying)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 3)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            with pytest.raises(Killed):
                await one.run(digest)
        async with coordinator(tmp_path / "c") as one:
            run = await one.run(digest)
            assert await asyncio.gather(*attending) == [3] * 3
            return run, one.home, digest, [site for site, _ in sites]

    run, home, digest, sites = asyncio.run(play())

    assert run.done == 3 and gone == [moment]
    for site in sites:
        assure_counted(home, digest, site, 3)
