"""A study whose sites have no privacy left stops, says so, and keeps what it has."""

import asyncio
import threading
import time

import pytest

from archipel.errors import BudgetSpent
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.site import ledger, service
from archipel.federation.site.policy import Policy
from archipel.federation.site.site import Site
from archipel.runs.listing import open_run
from network.test_federation import coordinator, members, text_of

PRIVATE = {
    "algorithm.batch_size": "none",
    "privacy.unit": "record",
    "privacy.noise": 1e-9,
    "privacy.clip": 100.0,
    "round.quorum": 3,
}


async def play(tmp_path, monkeypatch, text, spoil):
    """Three sites, as `archipel site up` has them; returns how the study ended, and who knows."""
    async with coordinator(tmp_path / "c") as one:
        digest, sites = await members(one, tmp_path, text, 3)
        tables = {site.name: data for site, data in sites}

        async def data_of(site, link, study):
            return tables[site.name]

        monkeypatch.setattr(service, "data_of", data_of)
        services = [service.Service(site, lambda _: None) for site, _ in sites]
        for site, _ in sites:
            Policy.open().write(site.home)
        spoil(sites[1][0], digest)
        run = asyncio.create_task(one.run(digest))
        await asyncio.sleep(0.1)
        for each in services:
            each.begin(digest)
        try:
            with pytest.raises(BudgetSpent) as ended:
                await asyncio.wait_for(run, 300)
        finally:
            for each in services:
                await each.end()
        return str(ended.value), one.registry.study(digest), [site for site, _ in sites], one.home


def test_it_stops_in_the_middle_and_keeps_what_it_has(tmp_path, monkeypatch):
    """One site has counted two rounds that this study does not know of."""
    text = text_of("scaffold", **PRIVATE)

    def spoil(site, digest):
        charge = ledger.Charging.__call__

        def twice(self, t, kept, noise):
            if self.site.name == site.name and t < 2:
                charge(self, t, kept, b"an attempt that left")
            charge(self, t, kept, noise)

        monkeypatch.setattr(ledger.Charging, "__call__", twice)

    said, study, sites, home = asyncio.run(play(tmp_path, monkeypatch, text, spoil))

    assert said.startswith("round 3: the privacy budget of 1 of 3 sites is spent (site-1) and a")
    assert "what was learnt in 2 rounds is kept" in said
    assert (study.state, study.note) == ("stopped", said)
    assert [[e.round for e in ledger.entries(site)] for site in sites] == [
        [1, 2, 3], [1, 1, 2, 2], [1, 2, 3]
    ]  # fmt: skip
    run = open_run(home.run_of(study.hash))
    assert (run.done, run.state) == (2, "stopped")
    assert run.vector.norm() > 0 and len(run.history) == 2


def test_it_does_not_begin_where_a_site_says_that_it_cannot(tmp_path, monkeypatch):
    """Not even where the coordinator cannot listen yet when it is told."""
    text, told = text_of("scaffold", **PRIVATE), threading.Event()
    made, away = Coordinator._server_study, Site.away

    def later(self, digest, events):
        assert told.wait(120)
        time.sleep(0.5)
        return made(self, digest, events)

    async def tell(*about, **how):
        told.set()
        await away(*about, **how)

    monkeypatch.setattr(Coordinator, "_server_study", later)
    monkeypatch.setattr(Site, "away", tell)

    def spoil(site, digest):
        Policy.open().changed(["epsilon=1.0"]).write(site.home)

    said, study, sites, _ = asyncio.run(play(tmp_path, monkeypatch, text, spoil))

    assert said.startswith("round 1: the privacy budget of 1 of 3 sites is spent (site-1)")
    assert study.state == "stopped"
    assert all(ledger.entries(site) == [] for site in sites)
