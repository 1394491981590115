# SPDX-License-Identifier: Apache-2.0
"""Peers over mutual TLS follow the edges that a study writes down, and its weights."""

import asyncio
import json

import safetensors.torch
import torch

from archipel.federation.site.part import party_state_at
from archipel.graphs.named import Described
from archipel.study.file import Study
from network.test_peers import STUDY, attend, coordinator, gathered, run, simulated

EDGES = [(0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0), (2, 3, 0.5)]
NAMED = ",".join(f"peer-{i}-peer-{j}*{weight}" for i, j, weight in EDGES)
TEXT = STUDY.replace("rounds = 5", "rounds = 2").replace(
    'name = "ring"', f'name = "edges:{NAMED}"\nweights = "max_degree"'
)


def test_a_graph_by_names_between_peers_is_the_file_s_in_a_simulation(tmp_path):
    file = tmp_path / "graph.csv"
    file.write_text("from,to,weight\n" + "".join(f"{i},{j},{w}\n" for i, j, w in EDGES))

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, TEXT)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            outcome = await one.run(digest)
            await asyncio.gather(*tasks)
            return outcome, digest, peers

    outcome, digest, peers = run(play())
    parts = Study.parse(STUDY).parts()
    graph = Described(None, file, "max_degree").over([parts[1].name(k) for k in range(4)])
    assert abs(float(graph.sparse()[[0], [1]][0]) - 1 / 4) < 1e-12
    vectors = simulated(*parts, graph, 2)
    for k, (site, data) in enumerate(peers):
        folder = site.home / "studies" / digest
        party_state, _ = party_state_at(site, digest, data)
        party_state.restore(safetensors.torch.load_file(folder / "peer" / "own.safetensors"))
        torch.testing.assert_close(party_state.own.state, vectors[k], rtol=1e-6, atol=1e-6)
        own = {i + j - k: weight for i, j, weight in EDGES if k in (i, j)}
        for line in (folder / "rounds.jsonl").read_text().splitlines():
            assert json.loads(line)["edges"] == {str(j): weight for j, weight in own.items()}
    told = outcome.history[-1]["graph"]
    assert told["name"] == "edges, weights max_degree" and told["edges"] == len(EDGES)
