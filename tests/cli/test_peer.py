"""`archipel peer`, and `archipel rehearse --peers`: studies without a server."""

import contextlib
import io
import runpy
import sys

import pytest
import safetensors.torch
import torch

from cli.test_institutions import EXAMPLE, Federation, free_port

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
            assert "to each neighbour on the graph complete, every round" in review
            one.json("site", "policy", "set", "counts=true", "neighbours=true", *home)
            one.json("site", "approve", digest[:12], "--yes", *home)
            one.up(site, "peer", "up", *home)
        one.json("coordinator", "start", "heart")
        for site in SITES:
            one.until(site, "done, after round 5")
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
