"""`archipel audit`: of a study file and of a run, as a page, a table and JSON."""

import json

import pytest

STUDY = """
[study]
name = "small"
rounds = 1
[data]
name = "heart_disease"
[model]
name = "mlp"
widths = [16]
[algorithm]
name = "fedsgd"
lr = 0.1
batch_size = 1
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(STUDY)
    return tmp_path


def test_json_has_every_adversary_with_its_attacks(study, archipel):
    done = archipel("audit", "small.toml", "--quick", "--attacks", "exact,labels", "--json")
    found = json.loads(done.out)

    assert [each["who"] for each in found["adversaries"]] == [
        "server", "sums", "malicious_server", "peer", "group", "public", "malicious_party",
    ]  # fmt: skip
    server = found["adversaries"][0]
    assert {"who", "sees", "attacks"} <= server.keys()
    assert {"name", "score", "interval", "ceiling"} <= server["attacks"][0].keys()
    assert server["attacks"][0]["score"] == 1.0
    assert found["adversaries"][5]["attacks"] == []  # the public has no upload


def test_the_page_begins_with_the_sentence_and_loads_nothing(study, archipel):
    done = archipel("audit", "small.toml", "--quick", "--attacks", "exact", "--to", "a.html")
    page = (study / "a.html").read_text()

    assert "could make 100 % of the records" in done.out
    assert page.index("could make 100 % of the records") < page.index("Adversary by adversary")
    assert "http" not in page.split("<body>")[1]
    assert "default-src 'none'" in page


def test_a_run_is_audited_by_its_name(study, archipel):
    archipel("run", "small.toml", "--no-baselines")
    done = archipel("audit", "last", "--quick", "--attacks", "labels", "--json")

    assert json.loads(done.out)["study"] == "small"


def test_an_attack_that_nobody_knows_is_named(study, archipel):
    done = archipel("audit", "small.toml", "--attacks", "magic")

    assert done.code != 0
    assert "unknown attack 'magic'" in done.err
