# SPDX-License-Identifier: Apache-2.0
"""Who takes part in a study, who may see it, and what its operator is shown."""

import asyncio
import random

import numpy as np
import pytest
import torch

from archipel.data.shadow import Facts
from archipel.study import Study
from network.test_federation import attend, coordinator, joined, text_of

NAMES = ["aachen", "bonn", "celle", "dessau", "essen"]


def five(tmp_path, algorithm):
    """A study of five tables in a folder, and its bytes without the tables."""
    rng = np.random.default_rng(3)
    (tmp_path / "tables").mkdir()
    for k, name in enumerate(NAMES):
        x, y = rng.normal(k, 1.0, (8 + 3 * k, 3)), rng.integers(2, size=8 + 3 * k)
        rows = [f"{a:.4f},{b:.4f},{c:.4f},{label}" for (a, b, c), label in zip(x, y, strict=True)]
        (tmp_path / "tables" / f"{name}.csv").write_text("\n".join(["a,b,c,ill", *rows]) + "\n")
    tables = {
        "study": {"name": "five", "rounds": 3},
        "data": {"folder": "tables", "target": "ill", "standardise": False},
        "algorithm": {"name": algorithm, "lr": 0.1, "batch_size": 4},
    }
    return Study.parse(tables, tmp_path)


async def approve(one, site, digest, data):
    link = site.link()
    text, _ = await site.fetch(link, digest)
    site.decide(text, "approved", Facts.of(data))
    await site.tell(link)
    await link.close()


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_whoever_approves_first_the_result_is_the_simulations(tmp_path, algorithm, order):
    """E6: parties are numbered by name, so the order of approvals changes no draw."""
    study = five(tmp_path, algorithm)
    fed = study.federation()
    ranks = random.Random(order).sample(range(5), 5)
    assert ranks != sorted(ranks)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest = one.home.submit(study.toml().encode())
            attending = []
            for k in ranks:
                site, data = await joined(one, tmp_path, NAMES[k]), fed.select(np.array([k]))
                await approve(one, site, digest, data)
                attending.append(asyncio.create_task(attend(site, data, digest)))
            assert one.roll.seats(digest) == []  # nobody has a number before the start
            run = await asyncio.wait_for(one.run(digest), 60)
            await asyncio.gather(*attending)
            return run, one.roll.seats(digest)

    run, seats = asyncio.run(play())
    expected = study.run(None, baselines=False)
    assert seats == NAMES
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)


def test_late_sites_get_the_next_numbers_and_nobody_loses_one(tmp_path):
    text = text_of()
    data = Study.parse(text.decode()).federation().select(np.array([0]))

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest = one.home.submit(text)
            sites = {}
            for name in ("kiel", "ulm"):
                sites[name] = await joined(one, tmp_path, name)
                await approve(one, sites[name], digest, data)
            one.home.start("heart")
            for name in ("bonn", "aachen"):
                sites[name] = await joined(one, tmp_path, name)
                await approve(one, sites[name], digest, data)
            sites["kiel"].leave([digest])
            link = sites["kiel"].link()
            await sites["kiel"].tell(link)
            await link.close()
            asked = {}
            for name in ("ulm", "bonn", "aachen"):
                link = sites[name].link()
                asked[name] = await sites[name].place(link, digest)
                await link.close()
            return one.roll.seats(digest), asked, sites["ulm"].shelf.party(digest)

    seats, asked, kept = asyncio.run(asyncio.wait_for(play(), 60))
    assert seats == ["kiel", "ulm", "bonn", "aachen"]
    assert asked == {"ulm": 1, "bonn": 2, "aachen": 3}
    assert kept == 1
