"""What scorecard and report say of sums that nobody looks into, and of promises to parties."""

import re

import pytest

import archipel as ar
from archipel.report.html import render

PARTY = {"unit": "party", "epsilon": 8.0, "delta": 1e-2, "clip": 1.0}


def run(total, **privacy):
    tables = {
        "study": {"name": "said", "rounds": 1},
        "data": {"name": "quadratics", "parties": 30},
        "algorithm": {"name": "scaffold"} if "gaussian" in total else {"name": "fedsgd"},
        "wire": {"sum": total},
        "privacy": privacy,
        "round": {"rule": "median"} if "groups" in total else {},
    }
    return ar.Study.parse(tables).run(None, baselines=False)


@pytest.mark.parametrize(
    ("total", "privacy", "says"),
    [
        ("gopa", {}, "made by GOPA, Gopa(.*noise that cancels.*keeps nobody who has published"),
        ("gopa-gaussian:1:100", {}, "made by GOPA, GaussianGopa("),
        ("secure", {}, "made by secure aggregation, SecureSum(.*also where it lies"),
        (
            "secure:groups=5",
            {},
            "sums over groups of parties.*Median() looks at.*also where it lies",
        ),
        ("shuffled:least=30", PARTY | {"trust": "shuffler"}, "shuffler does not work with it"),
    ],
)
def test_every_bundled_sum_says_what_it_hides(total, privacy, says):
    sees = run(total, **privacy).scorecard.privacy.sees

    assert re.search(says.replace("(", r"\(").replace(")", r"\)"), sees), sees
    assert "is for its source to say" not in sees


def test_a_promise_to_parties_is_said_in_whole_sentences():
    done = run("plain", **PARTY)
    page = render(done)

    assert "of the parties that were used" in str(done.scorecard)
    assert "protects nobody. " in page or "protects nobody.<" in page
    assert "partys" not in page and not re.search(r"[a-z]\.\.(?!\.)", page)
