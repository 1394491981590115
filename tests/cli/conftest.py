"""The command, called as from a shell: in this process for speed, or as a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from archipel.cli import main
from archipel.store.folder import JOURNAL

COMMAND = str(Path(sys.executable).parent / "archipel")


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one strict document on standard output."""
        return json.loads(self.out, parse_constant=_no_constant)

    @property
    def sentence(self):
        """The one line on standard error."""
        (line,) = self.err.splitlines()
        assert line.startswith("archipel: ") and line.endswith(".")
        return line.removeprefix("archipel: ")


def _no_constant(name):
    raise ValueError(f"{name} is no JSON")


@pytest.fixture
def archipel(tmp_path, monkeypatch, capsys):
    """Call the command in a folder of its own; nothing half-written may stay there."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["archipel", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        done = Done(code, *capsys.readouterr())
        assert "Traceback" not in done.err
        assert leftovers(tmp_path) == []
        return done

    return call


def leftovers(folder):
    """Files on their way, and folders of runs without a journal."""
    hidden = [path for path in folder.rglob(".*") if path.name not in (".cache", ".forecasts")]
    empty = [
        path
        for path in (folder / "runs").glob("*")
        if path.is_dir()
        and path.name != ".forecasts"
        and not [*path.glob(JOURNAL), *path.glob(f"*/{JOURNAL}")]
    ]
    return [str(path) for path in hidden + empty]


@pytest.fixture
def process(tmp_path):
    """Call the installed command as a process of its own."""

    def call(*arguments, stderr=subprocess.PIPE, **options):
        done = subprocess.run(
            [COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=tmp_path,
            timeout=600,
            **options,
        )
        return Done(done.returncode, done.stdout, done.stderr or "")

    return call


@pytest.fixture
def patients(tmp_path):
    """A table of three hospitals, one of which has a name that is markup."""
    names = ["[red]north[/red]", "south [/]", "east"]
    rows = ["hospital,age,pressure,died"]
    rows += [f"{names[i % 3]},{40 + i % 31},{i % 17 - 8},{int(i % 31 > 14)}" for i in range(90)]
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(rows))
    return path
