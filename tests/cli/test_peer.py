"""`archipel peer`, and `archipel rehearse --peers`: studies without a server."""

import asyncio
import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from cli.test_institutions import EXAMPLE, Federation, free_port
from network.test_peers import coordinator, gathered, run

SITES = ["cleveland", "hungarian", "va"]
RING = """
[study]
name = "ring"
rounds = 2
[data]
name = "heart_disease"
[algorithm]
name = "dsgd"
lr = 0.1
[topology]
name = "ring"
"""


@pytest.mark.slow
def test_peers_learn_from_their_own_tables(tmp_path):
    one = Federation(tmp_path)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setattr(sys, "argv", ["tables.py", str(tmp_path)])
        runpy.run_path(str(EXAMPLE / "tables.py"))
    (tmp_path / "tables" / "switzerland.csv").unlink()
    text = (tmp_path / "study.toml").read_text().replace("rounds = 20", "rounds = 5")
    text = text.replace('"fedavg"', '"dsgd"') + '\n[topology]\nname = "complete"\n'
    (tmp_path / "study.toml").write_text(text)
    try:
        one.json("coordinator", "init", "--name", "cardio", "--address", one.address)
        digest = one.json("coordinator", "submit", "study.toml")["study"]
        one.coordinator_up()
        one.until("coordinator", "up at")
        for site in SITES:
            home, address = ("--home", site), f"localhost:{free_port()}"
            (tmp_path / f"{site}.token").write_text(
                one.json("coordinator", "invite", site)["token"]
            )
            one.json("peer", "join", f"{site}.token", "--address", address, "--yes", *home)
            one.json("site", "data", "add", "heart", f"tables/{site}.csv", *home)
            review = one.json("site", "review", "heart", *home)["text"]
            assert "to each neighbour on the graph complete" in " ".join(review.split())
            one.json("site", "policy", "set", "counts=true", "neighbours=true", *home)
            approved = one("site", "approve", digest[:12], "--yes", *home)
            assert "It runs while 'archipel peer up' does." in approved.out  # E13
            one.up(site, "peer", "up", *home)
        one.json("coordinator", "start", "heart")
        for site in SITES:
            one.until(site, "done, after round 5")
            listed = one.json("peer", "roster", "heart", "--home", site)
            assert listed["accepted"]
            assert sum(row["known"].startswith("known") for row in listed["peers"]) == 2
        one.until("coordinator", "heart: done, 5 rounds")
    finally:
        for process in one.processes.values():
            process.kill()
            process.wait()

    done = one("run", "study.toml", "--no-baselines", "--json")
    assert done.code == 0, done.err
    models = [
        safetensors.torch.load_file(tmp_path / site / "studies" / digest / "model.safetensors")
        for site in SITES
    ]
    (run,) = (tmp_path / "runs").iterdir()
    mean = safetensors.torch.load_file(run / "model.safetensors")  # of the peers' models
    for name, tensor in mean.items():
        found = torch.stack([model[name] for model in models]).mean(dim=0)
        torch.testing.assert_close(found, tensor, rtol=1e-4, atol=1e-5)
    (there,) = (tmp_path / "coordinator" / "runs").iterdir()
    assert not (there / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "arguments", "sentence"),
    [
        ("", [], "dsgd has no server: say --peers"),
        ('name = "dsgd"|name = "fedavg"', ["--peers"], "fedavg has a server: leave --peers out"),
    ],
)
def test_a_rehearsal_is_told_what_the_study_is(archipel, tmp_path, change, arguments, sentence):
    old, _, new = change.partition("|")
    text = RING.replace(old, new) if change else RING
    (tmp_path / "ring.toml").write_text(text)
    done = archipel("rehearse", "ring.toml", *arguments)

    assert done.code == 2
    assert sentence in done.sentence


def test_a_pace_of_ones_own_is_for_peers(archipel, tmp_path):
    (tmp_path / "ring.toml").write_text(RING + "asynchronous = true\n")
    done = archipel("run", "ring.toml")
    assert done.code == 2
    assert "a simulation has its rounds in common" in done.sentence

    text = RING.replace('name = "dsgd"', 'name = "fedavg"') + "asynchronous = true\n"
    (tmp_path / "server.toml").write_text(text)
    done = archipel("run", "server.toml")
    assert done.code == 2
    assert "fedavg has a server" in done.sentence


def test_a_peer_says_where_it_is_reached(archipel, tmp_path):
    done = archipel("peer", "join", "token", "--address", "nowhere")
    assert done.code == 2
    assert "address = 'nowhere': give host:port" in done.sentence

    done = archipel("peer", "up")
    assert done.code == 2
    assert "no site there" in done.sentence


@pytest.fixture
def peers(tmp_path):
    """Two peers of a study that started, whose coordinator is down since; its hash, and homes."""

    async def play():
        async with coordinator(tmp_path / "coordinator") as one:
            digest, found = await gathered(one, tmp_path, RING, 2)
            one.home.start(digest)
            one.registry.number(digest)
            server_study, _ = one._server_study(digest, asyncio.get_running_loop())
            for site, _ in found:
                folder = site.site_studies.folder(digest)
                (folder / "offered.json").write_bytes(server_study.roster.to_json())
            return digest, [str(site.home) for site, _ in found]

    return run(play(), 60)


def test_a_peers_key_is_read_out_listed_and_confirmed(archipel, peers):
    """H5: what two operators need for a telephone call."""
    digest, (mine, other) = peers
    words = archipel("peer", "fingerprint", "--home", other, "--json").json["fingerprint"]
    before = archipel("peer", "roster", "ring", "--home", mine, "--json").json
    refused = archipel("peer", "trust", "nobody", "--home", mine)
    archipel("peer", "trust", "peer-1", "--home", mine, "--yes")
    after = archipel("peer", "roster", digest[:12], "--home", mine, "--json").json
    again = archipel("peer", "trust", "peer-1", "--home", mine, "--yes")
    anew = archipel("peer", "trust", "peer-1", "--anew", "--home", mine, "--yes", "--json").json

    assert len(words.split()) == 12
    assert [row["known"] for row in before["peers"]] == ["this peer", "new"]
    assert before["peers"][1]["fingerprint"] == words
    assert before["peers"][1]["address"].startswith("localhost:")
    assert before["accepted"] is False
    assert "no roster that waits here has it" in refused.sentence
    assert after["peers"][1]["known"].startswith("known since 2")
    assert "only if it has joined anew, say --anew" in again.sentence
    assert anew == {"peer": "peer-1", "fingerprint": words}


def test_with_the_coordinator_down_a_peer_says_how_far_it_is(archipel, peers):
    """E13: a study between peers goes on, and its state used to be unknown."""
    digest, (mine, _) = peers
    path = Path(mine) / "studies" / digest / "rounds.jsonl"
    unknown = archipel("site", "studies", "--home", mine, "--json").json
    path.write_text('{"round": 1}\n{"round": 2')
    known = archipel("site", "studies", "--home", mine, "--json").json
    status = archipel("coordinator", "status", "--json").json

    assert unknown["studies"][0]["state"] == "unknown"
    assert known["coordinator"] is False
    assert known["studies"][0]["state"] == "between peers, this one at round 1 of 2"
    assert status["studies"][0]["state"].startswith("goes on between peers")
