# SPDX-License-Identifier: Apache-2.0
"""Eight peers over mutual TLS learn models of their own and who is like whom; one is killed -9."""

import asyncio
import json

import pytest

from archipel.federation import rehearsal
from archipel.federation.rehearsal import _free_port
from archipel.study.file import Study
from network.test_peers import coordinator, run

PEERS = 8
STUDY = """
[study]
name = "graph"
purpose = "To learn who is like whom."
rounds = 160
evaluate_every = 10

[data]
name = "moons"
parties = 8

[algorithm]
name = "dada"
kappa = 3
alone = 6
graph_rounds = 4
model_rounds = 6

[topology]
pause = 0.1
"""


def last_edges(home):
    """The edges in the last report of a peer, from its own disk."""
    (path,) = home.glob("studies/*/rounds.jsonl")
    told = [json.loads(line) for line in path.read_text().splitlines()]
    return told[-1]["round"], next(each["edges"] for each in reversed(told) if each["edges"])


@pytest.mark.slow
def test_eight_peers_learn_their_graph_and_one_that_is_killed_returns(tmp_path):
    path = tmp_path / "graph.toml"
    path.write_text(STUDY)
    study = Study.read(path)

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, processes, given = one.home.submit(study.toml().encode()), [], []
            for k in range(PEERS):
                given.append({
                    "home": str(tmp_path / f"peer-{k}"), "hash": digest, "party": k,
                    "sites": PEERS, "token": one.home.invite(f"peer-{k}").token(),
                    "study": str(path), "changes": {}, "table": "", "silence": 3.0, "slow": 0.0,
                    "written": [], "listens": f"localhost:{_free_port()}",
                })  # fmt: skip
                processes.append(await rehearsal._start())
                rehearsal._tell(processes[k], given[k])
            await one.approved(digest, PEERS)
            running = asyncio.create_task(one.run(digest))
            while digest not in one.server_studies or one.server_studies[digest].run.done < 15:
                await asyncio.sleep(0.02)
            processes[2].kill()  # -9
            await processes[2].wait()
            before = one.server_studies[digest].run.done
            one.server_studies[digest].engine._silence = 3.0
            while one.server_studies[digest].run.done < before + 5:  # the rest go on
                await asyncio.sleep(0.02)
            processes[2] = await rehearsal._start()
            rehearsal._tell(processes[2], given[2])
            outcome = await running
            return outcome, [await process.wait() for process in processes]

    outcome, codes = run(play(), 400)
    assert codes == [0] * PEERS
    assert outcome.done == 160
    edges = {}
    for k in range(PEERS):
        round_, found = last_edges(tmp_path / f"peer-{k}")
        assert round_ == 160
        edges[k] = {int(j): weight for j, weight in found.items()}
    assert all(edges.values())
    for k in edges:
        assert all(edges[j].get(k) == weight for j, weight in edges[k].items())
    assert outcome.graph is not None
    assert outcome.graph["edges"] > 0
