"""Names come from anywhere: none moves a cursor, becomes a formula, or breaks a line."""

import csv
import io
import json
import zipfile

import numpy as np
import pytest
from rich.console import Console

import archipel as ar
from archipel.cli import main
from archipel.engines.engine import Cause
from archipel.errors import ArchipelError, clean
from archipel.report.export import contents, export
from archipel.report.style import short
from archipel.report.tables import Cell, Column, Table, text_cell
from archipel.runs.participation import Cohort

NAMES = ['=HYPERLINK("http://evil","x")', "@SUM(1)", "\x1b]0;pwned\x07", "\t-1\r+2\udc80"]


def table(label):
    """One row with a number."""
    columns = [Column("name", "name"), Column("value", "value")]
    return Table(label, columns, [[[Cell(label), Cell("-1", -1.0)]]], [label])


def test_what_a_terminal_would_obey_becomes_a_space():
    assert clean("a\x1b[31mb\nc\u202ed\x9be") == "a [31mb c d e"
    assert clean("很长的名字 é 🏝") == "很长的名字 é 🏝"
    assert str(ArchipelError("a\x1b\nb")) == "a\\x1b\\nb"
    assert short("a\x1b[31m\x00\n b") == "a [31m b"


@pytest.mark.parametrize("form", ["md", "csv", "latex"])
def test_tables_have_no_escape_codes(form):
    text = table("e\x1b[31mvil\x07").render(form)
    assert "vil" in text and all(c.isprintable() or c == "\n" for c in text)


def test_tables_in_the_terminal_have_no_escape_codes():
    console = Console(file=io.StringIO(), width=80)
    console.print(table("e\x1b[31mvil\x07"))

    assert "vil" in console.file.getvalue()
    assert "\x1b" not in console.file.getvalue() and "\x07" not in console.file.getvalue()


@pytest.mark.parametrize(
    "start",
    ["=", "+", "-", "@", "\t=", "\r@", " -", "\x00+", "\uff1d", "\uff0b", "\uff0d", "\uff20"],
)
def test_no_text_is_a_formula(start):
    assert text_cell(f"{start}1+1") == f"'{start.strip(chr(0)).strip()}1+1"
    rows = list(csv.reader(io.StringIO(table(f"{start}1+1").render("csv"))))
    assert rows[1][0].startswith("'") and float(rows[1][1]) == -1  # numbers stay numbers


@pytest.fixture
def run():
    """Four parties with names that nobody should have; one is missing, for such a cause."""
    fed = ar.load("heart_disease")
    data = ar.Federation(
        fed.x, fed.y, fed.offsets, fed.test_from, fed.training, fed.task, fed.classes, NAMES
    )
    made = ar.simulate(ar.FedAvg(lr=0.1), data, rounds=2, plan=ar.Plan("one", 4, 1))
    made.participation[0] = Cohort(
        np.arange(4), np.array([1, 2, 3]), np.ones(3), {0: Cause("away", "=1+\x1b[2J")}, True
    )
    return made


def test_exported_tables_are_safe_to_open(run):
    files = {name: text.decode() for name, text in contents(run).items() if name.endswith(".csv")}
    parties = list(csv.DictReader(io.StringIO(files["parties.csv"])))
    answers = list(csv.DictReader(io.StringIO(files["participation.csv"])))

    assert [row["party"] for row in parties] == [
        '\'=HYPERLINK("http://evil","x")', "'@SUM(1)", "]0;pwned", "'-1 +2",
    ]  # fmt: skip
    assert answers[0]["cause"] == "away (=1+ [2J)" and answers[0]["answered"] == "False"
    assert all(c.isprintable() or c == "\n" for text in files.values() for c in text)


@pytest.mark.parametrize("to", ["folder", "all.zip"])
def test_exported_code_may_stand_in_folders(run, tmp_path, to):
    class Study:
        def files(self):
            return {"study.toml": b"", "code/mine.py": b"x = 1"}

    run.study = Study()
    names = export(run, tmp_path / to)

    assert "code/mine.py" in names
    if to == "folder":
        assert (tmp_path / to / "code" / "mine.py").read_bytes() == b"x = 1"
    else:
        assert zipfile.ZipFile(tmp_path / to).read("code/mine.py") == b"x = 1"


def test_the_list_of_runs_obeys_no_data(tmp_path, monkeypatch, capsys):
    rows = ["hospital,age,died"] + [f"{'ab'[i % 2]},{40 + i % 31},{i % 3 % 2}" for i in range(60)]
    (tmp_path / "e\x1b[31mvil.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    columns = ["--set", "data.by=hospital", "--set", "data.target=died"]

    def printed(*arguments):
        monkeypatch.setattr("sys.argv", ["archipel", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
            raise SystemExit(0)
        assert end.value.code in (0, None)
        return capsys.readouterr().out

    printed("run", "fedavg", "--data", "e\x1b[31mvil.csv", *columns, "--rounds", "1", "--workers",
            "1", "--no-baselines", "--name", "x")  # fmt: skip
    told = json.loads(printed("runs", "--json"))["runs"][0]

    assert told["summary"]["data"] == "e\x1b[31mvil"
    assert "e [31mvil" in printed("runs") and "\x1b" not in printed("runs")
    shown = printed("data", "e\x1b[31mvil.csv", *columns)
    assert "e [31mvil" in shown and "\x1b" not in shown
