"""What the documentation shows is what happens: commands, outputs, help, links, reference.

A ```console block is a session: after `$`, a command, then what it prints, on either stream. `...`
stands for anything: alone for lines, in a line for a part of it. Decimal numbers may differ in
their last digits. A command ends with 0 unless `# exits with N` stands behind it; a first line `^C`
stops it once it has done some rounds. Blocks named in their opening line (```toml heart.toml) are
files of the page's folder. One folder per page, blocks in order.
"""

import importlib.util
import multiprocessing
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCREEN = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb", "NO_COLOR": "1", "PYTHONUTF8": "1"}
SECONDS = 120  # for one command

# imported once, in a process that forks for every command: starting torch takes longer than most
PRELOADED = [
    "archipel.cli",
    "archipel.comparison",
    "archipel.demo",
    "archipel.report.html",
    "archipel.report.figures",
    "archipel.runs",
    "pandas",
    "torch._dynamo",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOADED)


def blocks(page):
    """Kind, name and content of every block of a page."""
    return [found.groups() for found in BLOCK.finditer(page.read_text())]


def by_page(pages):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


# -- commands --------------------------------------------------------------------------------------


def commands(session):
    """The commands of a console block, each with its exit code and the output shown."""
    found = []
    lines = iter(session.splitlines())
    for line in lines:
        if line.startswith("$ "):
            while line.endswith("\\"):
                line = line[:-1] + next(lines).strip()
            text, _, code = line[2:].partition("  # exits with ")
            found.append((text, int(code or 0), []))
        else:
            found[-1][2].append(line)
    return found


def call(arguments, folder, output):
    """In a process of its own: what the shell does with `archipel ...`."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    sys.stderr.reconfigure(encoding="utf-8", line_buffering=True)
    os.environ.update(SCREEN)
    os.chdir(folder)
    sys.argv = ["archipel", *arguments]
    from archipel.cli import main

    main()


def run_archipel(arguments, folder, stop):
    output = folder / ".output"
    process = FORKS.Process(target=call, args=(arguments, folder, output))
    process.start()
    if stop:
        await_rounds(folder)
        os.kill(process.pid, signal.SIGINT)
    process.join(SECONDS)
    assert process.exitcode is not None, f"{arguments}: not done after {SECONDS} s"
    return process.exitcode, output.read_text()


def await_rounds(folder):
    """Wait until a run has its baselines and does rounds."""
    begun = "select baselines is not null and state = 'running' from runs"
    for _ in range(10 * SECONDS):
        time.sleep(0.1)
        for path in folder.glob("runs/[!.]*/journal.db"):
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as journal:
                if journal.execute(begun).fetchone()[0]:
                    time.sleep(0.3)
                    return
    raise AssertionError("no run began")


def run_other(text, folder):
    """A command of the shell, with this Python first in the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        text,
        shell=True,
        cwd=folder,
        env={**os.environ, **SCREEN, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def matches(shown, printed):
    """Whether what a page shows is what was printed."""
    shown = [" ".join(line.split()) for line in shown if line.strip()]
    printed = [" ".join(line.split()) for line in printed if line.strip()]
    return _matches(shown, printed)


def _matches(shown, printed):
    if not shown or not printed:
        return not printed and all(line == "..." for line in shown)
    if shown[0] == "...":
        return any(_matches(shown[1:], printed[n:]) for n in range(len(printed) + 1))
    return same_line(shown[0], printed[0]) and _matches(shown[1:], printed[1:])


NUMBER = re.compile(r"\d+\.\d+")


def same_line(shown, printed):
    pattern = re.escape(NUMBER.sub("\0", shown))
    pattern = pattern.replace(re.escape("..."), ".*?").replace("\0", r"(\d+\.\d+)")
    pattern = pattern.replace(re.escape("\0"), r"(\d+\.\d+)")
    found = re.fullmatch(pattern, printed)
    if found is None:
        return False
    pairs = zip(NUMBER.findall(shown), found.groups(), strict=True)
    return all(abs(float(a) - float(b)) <= 0.02 * max(1, abs(float(a))) for a, b in pairs)


SESSIONS = [page for page in PAGES if any(kind == "console" for kind, *_ in blocks(page))]


@pytest.mark.parametrize("page", by_page(SESSIONS))
def test_commands_do_what_the_page_shows(page, tmp_path):
    for kind, name, content in blocks(page):
        if name is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        for text, code, shown in commands(content) if kind == "console" else []:
            stop = shown[:1] == ["^C"]
            words = shlex.split(text)
            if words[0] == "archipel" and not set(words) & {"|", ">", "&&"}:
                ended, printed = run_archipel(words[1:], tmp_path, stop)
            else:
                ended, printed = run_other(text, tmp_path)

            assert ended == code, f"{text}\n{printed}"
            if shown[stop:]:
                assert matches(shown[stop:], printed.splitlines()), f"{text}\n{printed}"


def test_commands_are_in_blocks_that_are_run():
    for page in PAGES:
        for kind, _, content in blocks(page):
            lines = re.findall(r"^\$ .*", content, re.MULTILINE)
            assert kind == "console" or not lines, f"{page.name}: {lines}"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a 0.871"], ["a  0.874"], True),
        (["a 0.871"], ["a  0.974"], False),
        (["first", "..."], ["first", "x", "y"], True),
        (["...", "last"], ["x", "y"], False),
        (["took ... s"], ["took 3.21 s"], True),
        (["one"], ["one", "two"], False),
    ],
)
def test_matching(shown, printed, same):
    assert matches(shown, printed) is same


# -- reference -------------------------------------------------------------------------------------


def reference():
    spec = importlib.util.spec_from_file_location("make", ROOT / "docs/reference/make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made():
    return reference().pages()


@pytest.mark.parametrize("name", ["algorithms.md", "cli.md", "python.md", "study.md"])
def test_reference_is_up_to_date(name, made):
    there = (ROOT / "docs/reference" / name).read_text()
    assert there == made[name], "run: python docs/reference/make.py"


# -- pages -----------------------------------------------------------------------------------------


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_architecture_names_every_file():
    page = (ROOT / "docs/architecture.md").read_text()
    for path in (ROOT / "src/archipel").iterdir():
        name = path.name if path.suffix == ".py" else f"{path.name}/"
        if not name.startswith("__") and (path.suffix == ".py" or path.is_dir()):
            assert f"`{name}" in page, name


def anchors(page):
    """What a link to a page may name after #."""
    text = re.sub(BLOCK, "", page.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", by_page(PAGES))
def test_links_and_pictures_are_there(page):
    text = re.sub(BLOCK, "", page.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_pictures_are_small():
    for picture in (ROOT / "docs/pictures").glob("*.png"):
        assert picture.stat().st_size < 200_000, picture.name
