# SPDX-License-Identifier: Apache-2.0
"""Peers over mutual TLS follow the edges that a study writes down, and its weights."""

import asyncio
import json

import pytest
import safetensors.torch
import torch

from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.federation.approval import brought
from archipel.federation.site.part import party_state_at
from archipel.graphs.named import Described
from archipel.study.file import Study
from network.test_peers import STUDY, attend, coordinator, gathered, run, simulated

EDGES = [(0, 1, 1.0), (0, 2, 1.0), (0, 3, 1.0), (2, 3, 0.5)]
TEXT = STUDY.replace("rounds = 5", "rounds = 2").replace(
    'name = "ring"', 'file = "graph.csv"\nweights = "max_degree"'
)


def test_peers_follow_the_file_of_a_study_as_a_simulation_does(tmp_path):
    file = tmp_path / "graph.csv"
    file.write_text("from,to,weight\n" + "".join(f"peer-{i},peer-{j},{w}\n" for i, j, w in EDGES))
    text = brought(TEXT.encode(), tmp_path).decode()

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, peers = await gathered(one, tmp_path, text)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            outcome = await one.run(digest)
            await asyncio.gather(*tasks)
            return outcome, digest, peers

    outcome, digest, peers = run(play())
    parts = Study.parse(STUDY).parts()
    graph = Described(None, file, "max_degree").over([f"peer-{k}" for k in range(4)])
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


def submitted(folder, rows, **told):
    (folder / "graph.csv").write_text("from,to,weight\n" + rows)
    return approval.read(brought(TEXT.encode(), folder, **told)).topology


def test_edges_of_a_file_are_in_the_study_that_institutions_see(tmp_path):
    found = submitted(tmp_path, "Ulm,Bonn,1\nBonn,Halle-West,0.25\n")
    assert found.name == "edges:Ulm-Bonn,Bonn-Halle-West*0.25"
    assert found.file is None and found.weights == "max_degree"

    found = submitted(tmp_path, "Ulm,Bonn,1\nBonn,2,1e-7\n", parties=["Bonn", "Ulm", "Köln, Süd"])
    assert found.name == "edges:1-0,0-2*1e-07"


def test_a_study_without_a_file_keeps_its_bytes(tmp_path):
    text = STUDY.encode() + b"# why\n"
    assert brought(text, tmp_path) == text
    assert brought(b"\xff", tmp_path) == b"\xff"


def test_many_edges_with_weights_fit_into_a_study(tmp_path):
    rows = "".join(f"{i},{j},0.{i + 1}{j}\n" for j in range(40) for i in range(j))
    assert len(submitted(tmp_path, rows).name.split(",")) == 780


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ('Ulm,"Bonn, Süd",1\n', "row 2 has the party 'Bonn, Süd', which is no site's name"),
        ("Ulm,Bonn,-1\n", "row 2 has the weight '-1'"),
        ("Ulm,Rome,1\n", "row 2 has an unknown party 'Rome'"),
    ],
)
def test_a_file_that_no_study_can_bring_is_refused(tmp_path, rows, why):
    parties = ["Ulm", "Bonn"] if "Rome" in rows else None
    with pytest.raises(ArchipelError, match=f"topology.file: 'graph.csv': {why}"):
        submitted(tmp_path, rows, parties=parties)
