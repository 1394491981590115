"""A study between sites, each with a table of its own: a real coordinator, real letters and TLS."""

import asyncio
import threading

import numpy as np

from archipel.data.shadow import Facts
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.rehearsal import _free_port
from archipel.federation.site import binding
from archipel.federation.site import service as service
from archipel.federation.site.policy import Policy
from archipel.federation.site.site import Site
from archipel.runs.listing import open_run

STUDY = """# every byte of it is approved, this line too
[study]
name = "stroke"
purpose = "To see what a report knows."
rounds = {rounds}
metric = "auc"
[data]
target = "died"
missing = "mean"
[data.schema]
age = "number"
pressure = "number"
kind = ["a", "b", "c"]
died = [0, 1]
[algorithm]
name = "{algorithm}"
lr = 0.1
batch_size = 10
"""
NAMES = ("aachen", "bonn", "kiel", "ulm")
PAUSE = (2, 4)  # the last site pauses after round 2 and is back after round 4


def rows_of(k):
    return 80 + 20 * k


def write_table(path, k):
    """A hospital's table; what predicts death differs a little from one to the next."""
    draws = np.random.default_rng(k)
    lines = ["age,pressure,kind,died"]
    for _ in range(rows_of(k)):
        age, pressure = draws.normal(60 + 2 * k, 10), draws.normal(130, 15)
        risk = (age - 60) / 8 + (pressure - 130) / (30 + 20 * k) + draws.normal(0, 1)
        lines.append(f"{age:.1f},{pressure:.1f},{'abc'[draws.integers(3)]},{int(risk > 0.3)}")
    path.write_text("\n".join(lines) + "\n")


class Gate:
    """A watch that holds a study after some rounds until it is let go."""

    def __init__(self, *rounds):
        self._held = {t: (threading.Event(), threading.Event()) for t in rounds}

    def __call__(self, run):
        if run.done in self._held:
            there, go = self._held[run.done]
            there.set()
            assert go.wait(60)

    def say(self, text):
        pass

    async def at(self, t):
        """Return when round t is done, with what lets the study go on."""
        there, go = self._held[t]
        assert await asyncio.to_thread(there.wait, 60)
        return go


async def _approve(home, folder, digest, k, counts):
    """A site joins, binds its table and approves, as `site approve` does with or without counts."""
    site = await Site.join(folder / NAMES[k], home.invite(NAMES[k]))
    Policy.open().write(site.home)
    link = site.link()
    text, _ = await site.fetch(link, digest)
    study, table = site.site_studies.read(digest), folder / f"{NAMES[k]}.csv"
    write_table(table, k)
    binding.bind(site.home / "data", study, table)
    facts = binding.facts(binding.records(site.home / "data", study), counts)
    assert isinstance(facts, Facts)
    site.decide(text, "approved", facts)
    await site.tell(link)
    await link.close()
    return site


async def _play(folder, home, digest, tell, pause):
    gate, stop = Gate(*(PAUSE if pause else ())), asyncio.Event()
    one = Coordinator(home, silence=60.0)
    await one.up(home.address)
    sites = [await _approve(home, folder, digest, k, told) for k, told in enumerate(tell)]
    up = [asyncio.create_task(service.up(site, stop, lambda text: None)) for site in sites]
    running = asyncio.create_task(one.run(digest, gate))
    if pause:
        go = await gate.at(PAUSE[0])
        sites[-1].pause()
        go.set()
        go = await gate.at(PAUSE[1])
        sites[-1].resume()
        while len(sites) - 1 not in one.server_studies[digest].engine.presence.asked:
            await asyncio.sleep(0.02)
        go.set()
    run = await running
    stop.set()
    await asyncio.gather(*up)
    await one.down()
    return run, sites


def study_between_sites(folder, algorithm="fedavg", tell=(False,) * 4, pause=False, rounds=6):
    """Play a study; return its run as it went, as its folder tells it, its hash, and the sites."""
    home = CoordinatorFolder.create(folder / "coordinator", "test", f"localhost:{_free_port()}")
    digest = home.submit(STUDY.format(algorithm=algorithm, rounds=rounds).encode())
    played = _play(folder, home, digest, tell, pause)
    run, sites = asyncio.run(asyncio.wait_for(played, 120))
    return run, open_run(home.run_of(digest)), digest, sites
