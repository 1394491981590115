"""`archipel average`: its file, its figures, and what it refuses in one sentence."""

import json

import pytest
from typer.testing import CliRunner

from archipel.cli import app
from archipel.errors import ArchipelError
from archipel.federation.numbers import NumbersFile
from archipel.federation.peer.average import card

RUNNER = CliRunner()
FILE = """
[average]
names = ["admissions", "deaths"]
low = 0
high = [2000, 50]
epsilon = 1.0
honest = 1.0

[values]
bonn = [412, 9]
lyon = [388, 12]
oslo = [530, 7]
"""


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.toml"
    path.write_text(FILE)
    return path


def told(*words):
    found = RUNNER.invoke(app, ["average", *map(str, words), "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def test_the_quick_simulation_is_the_whole_protocol(numbers):
    quick, whole = told(numbers), told(numbers, "--whole")

    assert quick == whole
    assert quick["exact"] == {
        "admissions": pytest.approx(1330 / 3),
        "deaths": pytest.approx(28 / 3),
    }
    assert quick["parties"] == 3 and quick["protected"] == "party"


def test_the_promise_is_within_five_percent_of_a_trusted_curator(numbers):
    found = told(numbers, "--parties", "1000", "--epsilon", "0.5")

    assert found["epsilon"] == 0.5
    for name, deviation in found["deviation"].items():
        assert 1 <= deviation / found["deviation_by_a_trusted_curator"][name] < 1.05
        alone = found["deviation_by_everybody_alone"][name]
        assert alone / deviation == pytest.approx(1000**0.5, rel=0.05)


def test_other_seeds_draw_other_noise(numbers):
    assert told(numbers) == told(numbers) != told(numbers, "--seed", "1")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[average]", "[averages]"), "section"),
        (("honest", "honesty"), "honesty"),
        (("low = 0\n", ""), "average.low: is missing"),
        (("high = [2000, 50]", "high = [2000]"), "give one for all numbers, or one for each"),
        (("high = [2000, 50]", 'high = "much"'), "average.high = 'much': give a number"),
        (("epsilon = 1.0", "epsilon = 0.0"), "give an epsilon above 0"),
        (("honest = 1.0", "honest = 0.1"), "a value hides among two or more"),
        (("honest = 1.0", "run = 0"), "average.run = 0"),
        (("honest = 1.0", "neighbours = 2.5"), "average.neighbours = 2.5: give a whole number"),
        (("honest = 1.0", 'form = "plain"'), "form"),
        (("[412, 9]", "[412]"), "values of bonn: 1 of them; give 2"),
        (("[412, 9]", "[4120, 9]"), "values of bonn: admissions is not in its range"),
        (("bonn = [412, 9]\nlyon = [388, 12]\n", ""), "give the numbers of two parties or more"),
        (("[values]", "[values"), "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, change, says):
    path = tmp_path / "numbers.toml"
    path.write_text(FILE.replace(*change))
    found = RUNNER.invoke(app, ["average", str(path)])

    assert isinstance(found.exception, ArchipelError)
    assert says in str(found.exception)
    assert "\n" not in str(found.exception)


@pytest.mark.parametrize("how", [[], ["--whole"], ["--verifiable", "--bulletin", "b.jsonl"]])
def test_a_delta_that_publishing_a_party_would_keep_is_refused(archipel, tmp_path, how):
    for delta, given in (("0.5", []), ("0.34", []), ("0.002", ["--parties", "500"])):
        (tmp_path / "n.toml").write_text(
            FILE.replace("epsilon = 1.0", f"epsilon = 1\ndelta = {delta}")
        )
        done = archipel("average", "n.toml", *how, *given)
        assert done.code == 2 and f"average.delta = {delta}: the mean has" in done.sentence
    assert not (tmp_path / "b.jsonl").exists()


def test_flags_that_exclude_each_other_are_refused(numbers):
    for words, says in (
        ([], "is missing"),
        ([str(numbers), "--peers", "--parties", "5"], "give one of them, or none"),
        ([str(numbers), "--me", "bonn"], "is not among the [[peers]]"),
        (["--card", "localhost:1"], "give --me as well"),
        (["--card", "nowhere", "--me", "bonn"], "address"),
    ):
        found = RUNNER.invoke(app, ["average", *words])
        assert isinstance(found.exception, ArchipelError) and says in str(found.exception)


def test_who_is_trusted_is_simulated(numbers):
    found = {
        trust: told(numbers, "--parties", "200", "--trust", trust)
        for trust in ("server", "sum", "shuffler", "nobody")
    }
    errors = [each["deviation"]["deaths"] for each in found.values()]

    assert [each["trust"] for each in found.values()] == list(found)
    assert errors == sorted(errors)
    assert found["shuffler"] == told(numbers, "--parties", "200", "--trust", "shuffled")
    assert found["shuffler"]["epsilon0"] > 1 and "whose is which" in found["shuffler"]["revealed"]
    assert "neighbours" in found["sum"] and "neighbours" not in found["nobody"]
    for words, says in (
        (["--trust", "me"], "--trust"),
        (["--trust", "shuffler", "--whole"], "--trust shuffler: is simulated, to compare"),
        (["--trust", "nobody", "--peers"], "--trust nobody: is simulated, to compare"),
    ):
        no = RUNNER.invoke(app, ["average", str(numbers), *words])
        assert isinstance(no.exception, ArchipelError) and says in str(no.exception)


def test_cards_are_read_back_and_sessions_name_all_that_is_agreed_on(tmp_path):
    cards = [card(tmp_path / name, name, f"localhost:{port}") for name, port in
             (("bonn", 9001), ("lyon", 9002))]  # fmt: skip
    path = tmp_path / "numbers.toml"
    path.write_text(FILE + "".join(each.text() for each in cards))
    read = NumbersFile.read(path)

    assert read.peers == tuple(cards)
    path.write_text(path.read_text().replace("[412, 9]", "[1, 1]"))
    assert NumbersFile.read(path).session == read.session
    others = [
        NumbersFile.read(path, epsilon=2.0).session,
        NumbersFile(read.question, {}, tuple(cards[:1])).session,
        NumbersFile(read.question, {}, tuple(cards), run=2).session,
    ]
    assert len({read.session, *others}) == 4


def test_a_card_that_somebody_else_made_is_refused(tmp_path):
    made = card(tmp_path / "bonn", "bonn", "localhost:9001")
    path = tmp_path / "numbers.toml"
    path.write_text(FILE + made._replace(name="lyon").text())
    with pytest.raises(ArchipelError, match="the certificate of lyon is not one that it made"):
        NumbersFile.read(path)
