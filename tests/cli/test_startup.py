"""Commands that compute nothing wait for nothing that computes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from archipel.algorithms import FedAvg
from archipel.cli import app, outline
from archipel.cli.listing import _first_line
from archipel.data import datasets
from archipel.graphs import TOPOLOGIES
from archipel.runs.simulation import simulate
from archipel.study import plugins
from archipel.study.file import Study

HEAVY = ("torch", "scipy", "sklearn", "pandas", "matplotlib")

# in one process: each command, and what of the above it loaded, is a line
WORK = """
import contextlib, io, json, sys
from archipel.cli import app

heavy = set(json.loads(sys.argv[1]))
for line in sys.stdin:
    words, code = json.loads(line), 0
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            app(words, standalone_mode=False)
    except BaseException as error:
        code = repr(error)
    print(json.dumps([words, str(code), sorted(heavy & set(sys.modules)), out.getvalue()]))
"""


def loaded(commands, folder):
    """What each command loads that computes; all in one process, for that takes a second."""
    done = subprocess.run(
        [sys.executable, "-c", WORK, json.dumps(HEAVY)],
        input="\n".join(map(json.dumps, commands)),
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def commands_of(group, words=()):
    """Every command there is, and every group of them."""
    yield list(words)
    for name, command in getattr(group, "commands", {}).items():
        yield from commands_of(command, (*words, name))


HELP = [[*words, "--help"] for words in commands_of(typer.main.get_command(app))]


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """A coordinator, a site and a peer, with a study that was read here before; and a run."""
    from datetime import timedelta

    from archipel.federation.coordinator.folder import CoordinatorFolder
    from network.homes import made_site, study_text

    folder = tmp_path_factory.mktemp("homes")
    simulate(FedAvg(), "heart_disease", rounds=1, workers=1, out=folder / "runs" / "one")
    home = CoordinatorFolder.create(folder / "C", "test", "localhost:9")
    home.invite("ulm", timedelta(days=1))
    text = study_text()
    home.submit(text)
    for name in ("S", "P"):
        site = made_site(folder / name)
        site.site_studies.put(text)
        site.site_studies.gist(site.site_studies.known()[0])
        site.decide(text, "approved")
    about = json.loads((folder / "P" / "site.json").read_text())
    (folder / "P" / "site.json").write_text(json.dumps(about | {"listens": "localhost:9"}))
    return folder


COMMANDS = [
    ["list"],
    ["list", "algorithms"],
    ["list", "data"],
    ["list", "models", "--json"],
    ["list", "topologies"],
    ["show", "scaffold"],
    ["runs"],
    ["runs", "--json"],
    *(["site", *words.split(), "--home", "S"] for words in (
        "pause", "resume", "studies", "budget", "budget --json", "audit", "audit --verify",
        "anchors", "policy show", "policy set counts=true", "leave heart",
    )),
    *(["coordinator", *words.split(), "--home", "C"] for words in (
        "status", "status --check --json", "sites", "invite bonn", "revoke ulm --reason lost",
        "audit", "anchors", "evidence heart", "stop heart",
    )),
    ["coordinator", "init", "--name", "other", "--address", "localhost:9", "--home", "D"],
    ["peer", "fingerprint", "--home", "P"],
    ["peer", "roster", "heart", "--home", "P"],
]  # fmt: skip
REFUSED = {"roster"}  # before the study starts


def test_commands_that_compute_nothing_load_nothing_that_computes(homes):
    found = loaded(COMMANDS, homes)

    assert [words for words, *_ in found] == COMMANDS
    for words, code, heavy, said in found:
        assert heavy == [], f"{' '.join(words)} loads {', '.join(heavy)}"
        refused = bool(REFUSED & set(words))
        assert code.startswith("ArchipelError") if refused else code == "0", (words, code, said)
        assert words != ["runs"] or "FedAvg on heart_disease" in said


def test_help_loads_nothing_that_computes(tmp_path):
    found = loaded(HELP, tmp_path)

    assert len(found) == len(HELP) > 40
    for words, code, heavy, said in found:
        assert heavy == [], f"{' '.join(words)} loads {', '.join(heavy)}"
        assert code == "0", said
        assert "Usage:" in said


TABLE = "hospital,age,ill\n" + "".join(f"h{k % 3},{k % 50},{k % 2}\n" for k in range(90))


def test_a_run_whose_table_is_gone_is_reported_and_exported_without_torch(tmp_path):
    (tmp_path / "table.csv").write_text(TABLE)
    data = {"file": "table.csv", "by": "hospital", "target": "ill"}
    study = Study.of("scaffold", tmp_path, data=data, study={"rounds": 2, "name": "s"})
    study.run(tmp_path / "runs", workers=1)
    (tmp_path / "table.csv").unlink()

    found = loaded([
        ["export", "last", "--to", "exported"],
        ["export", "last", "--to", "exported.zip", "--json"],
        ["report", "last", "--json"],
        ["report", "last", "--figures", "figures"],
        ["export", "last", "--bundle", "bundle"],
    ], tmp_path)  # fmt: skip

    for words, code, heavy, said in found:
        assert code == "0", (words, code, said)
        vector = "--bundle" in words  # which is written with the weights
        assert vector or heavy == (["matplotlib"] if words[0] == "report" else []), words
    assert "changed since, or is gone" in (tmp_path / "runs" / "s-001" / "report.html").read_text()
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    assert (tmp_path / "figures" / "curve.svg").is_file()


def test_a_study_is_read_again_by_another_version(homes, monkeypatch):
    from archipel.federation.site import studies as site_studies
    from archipel.federation.site.site import Site

    found = Site(homes / "S").site_studies
    (study,) = found.known()
    assert found.gist(study).rounds == 10
    asked = []
    monkeypatch.setattr(site_studies, "version", lambda _: "0.0")
    read = site_studies.approval.read
    monkeypatch.setattr(
        site_studies.approval, "read", lambda text: asked.append(text) or read(text)
    )
    assert found.gist(study).rounds == 10
    assert len(asked) == 1


# -- what is bundled, as the source says it --------------------------------------------------------


def test_the_source_says_what_there_is():
    for kind in ("algorithm", "model"):
        told = {name: _first_line(plugins.find(kind, name)) for name in plugins.names(kind)}
        assert outline.bundled_of(kind) == told
        assert outline.names(kind) == plugins.names(kind)
    assert outline.names("data") == plugins.names("data")
    assert outline.data() == {name: about.source for name, about in datasets().items()}
    assert outline.topologies() == TOPOLOGIES


@pytest.mark.parametrize("name", ["pefll", "apgd2", "lenet"])
def test_the_source_is_found(name):
    import inspect

    kind = "model" if name == "lenet" else "algorithm"
    assert outline.file_of(name) == Path(inspect.getsourcefile(plugins.find(kind, name)))
