"""`archipel verify` and `archipel average --verifiable`: what they print, and how they end."""

import pytest

NUMBERS = """
[average]
names = ["admissions", "deaths"]
low = 0
high = [200, 50]
contribution = 1
epsilon = 2.0
delta = 1e-3

[values]
bonn = [41, 9]
lyon = [38, 12]
oslo = [53, 7]
"""


@pytest.fixture
def bulletin(archipel, tmp_path):
    (tmp_path / "numbers.toml").write_text(NUMBERS)
    done = archipel("average", "numbers.toml", "--verifiable", "--bulletin", "b.jsonl", "--json")
    assert done.code == 0
    return done.json


def test_a_verifiable_mean_is_written_and_verified(archipel, bulletin):
    done = archipel("verify", "b.jsonl", "--json", "--head", bulletin["head"])
    (run,) = done.json["runs"]

    assert done.code == 0 and done.json["right"] is True
    assert run["mean"] == bulletin["estimate"] and run["deviation"] == bulletin["deviation"]
    assert run["epsilon"] == bulletin["spent"] <= 2.0 and run["protected"] == "person"
    assert abs(run["mean"]["admissions"] - 44) < 7 * run["deviation"]["admissions"]
    told = archipel("verify", "b.jsonl").out
    assert "Every signature and every proof holds." in told
    assert "It costs every person epsilon" in told


def test_whoever_changed_the_file_is_found_out(archipel, bulletin, tmp_path):
    path = tmp_path / "b.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    cut = archipel("verify", "b.jsonl")
    path.write_bytes(lines[0])
    kept = archipel("verify", "b.jsonl", "--head", bulletin["head"], "--json")

    assert cut.code == kept.code == 1
    assert "log cut" in cut.out and "has no verified mean" in cut.out
    assert {fault["kind"] for fault in kept.json["faults"]} == {"log cut"}


def test_a_changed_file_is_the_files_fault_and_nothing_is_added_to_it(archipel, bulletin, tmp_path):
    path = tmp_path / "b.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"by":"oslo"' in line and b"commit" in line)
    lines[at] = lines[at].replace(b'"seen":"', b'"seen":"0', 1)
    one = b"".join(lines)
    for content in (one, whole.replace(b"oslo", b"oslu"), b"".join(lines[:at]), whole[:-40]):
        path.write_bytes(content)
        told = archipel("verify", "b.jsonl")
        refused = archipel("average", "numbers.toml", "--verifiable", "--bulletin", "b.jsonl")

        assert told.code == 1 and "log c" in told.out and "Nobody is charged" in told.out
        assert not any(f"{name}:" in told.out for name in ("bonn", "lyon", "oslo", "oslu"))
        assert "repeated" not in told.out and "unchanged copy" in told.out
        assert refused.code == 2 and "b.jsonl" in refused.sentence
        assert path.read_bytes() == content


def test_wrong_usage_is_one_sentence(archipel, bulletin, tmp_path):
    assert (
        "--bulletin b.jsonl: is written with --verifiable"
        in archipel("average", "numbers.toml", "--bulletin", "b.jsonl").sentence
    )
    assert (
        "--verifiable: has every message"
        in archipel("average", "numbers.toml", "--verifiable", "--whole").sentence
    )
    done = archipel("verify", "nothing.jsonl")
    assert done.code == 2 and "cannot be read" in done.sentence
    (tmp_path / "other.jsonl").write_text("hello\n")
    assert archipel("verify", "other.jsonl").code == 1
