"""The threat model's claims are held by tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "threat-model.md"
CLAIM = re.compile(r"\b([a-z_]+) ((?:`[a-z0-9_]+`(?:, )?)+)")


def claims():
    """File and part of a test's name, for every test that a table of the page names."""
    for line in PAGE.read_text().splitlines():
        cells = line.split("|")
        if len(cells) == 5 and not set(cells[3].strip()) <= {"-", " "}:
            for file, names in CLAIM.findall(cells[3]):
                for name in re.findall("`([a-z0-9_]+)`", names):
                    yield file, name


def named(file):
    here = sorted(TESTS.rglob("test_*.py"), key=lambda path: path.parent.name == "network")
    found = {path.stem.removeprefix("test_"): path for path in here}  # those of the network last
    return re.findall(r"^def (test_\w+)", found[file].read_text(), flags=re.M)


@pytest.mark.parametrize(("file", "name"), sorted(set(claims())))
def test_a_claim_of_the_threat_model_is_held_by_a_test(file, name):
    assert [test for test in named(file) if name in test]


def test_every_row_of_the_threat_model_names_a_test():
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    unheld = [row[1] for row in rows if row[3].strip() != "Shown by" and not CLAIM.search(row[3])]

    assert not unheld
    assert len(set(claims())) > 100
