"""What the documentation shows is what happens: commands, outputs, help, links, reference.

A ```console block is a session: after `$`, a command, then what it prints, on either stream. `...`
stands for anything: alone for lines, in a line for a part of it. Decimal numbers may differ in
their last digits. A command ends with 0 unless `# exits with N` stands behind it; a first line `^C`
stops it once it has done some rounds. With `&` behind it, it goes on until the page ends; others
are then tried again for a while where they do not show the same yet. `[y/N]: y` is an answer. Port
8443 stands for a free one. Blocks named in their opening line (```toml heart.toml) are files of the
page's folder, which has a copy of examples/ if it names it. One folder per page, blocks in order.
"""

import importlib.util
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import socket
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
    "archipel.federation.site.service",
    "archipel.federation.coordinator.status",
    "archipel.report.html",
    "archipel.report.figures",
    "archipel.runs.listing",
    "pandas",
    "torch._dynamo",
]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOADED)


def blocks(page):
    """Kind, name and content of every block of a page."""
    return [found.groups() for found in BLOCK.finditer(page.read_text())]


def by_page(pages, slow=()):
    return [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=[pytest.mark.slow] if page.name in slow else [],
        )
        for page in pages
    ]


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


def call(arguments, folder, output, answers=()):
    """In a process of its own: what the shell does with `archipel ...`."""
    *words, last = ["", *arguments]
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if words[-1] == ">":
        arguments = words[1:-1]
        with (folder / last).open("w") as file:
            os.dup2(file.fileno(), 1)
    reading, writing = os.pipe()
    os.write(writing, "".join(f"{answer}\n" for answer in answers).encode())
    os.close(writing)
    sys.stdin = os.fdopen(reading)
    sys.stdout.reconfigure(encoding="utf-8", line_buffering=True)
    sys.stderr.reconfigure(encoding="utf-8", line_buffering=True)
    os.environ.update(SCREEN)
    os.chdir(folder)
    sys.argv = ["archipel", *arguments]
    from archipel.cli import main

    main()


ANSWER = re.compile(r"(?<=\[y/N\]: )\w+$")


def run_archipel(arguments, folder, shown):
    output, stop = folder / ".output", shown[:1] == ["^C"]
    answers = [found[0] for line in shown if (found := ANSWER.search(line))]
    process = FORKS.Process(target=call, args=(arguments, folder, output, answers))
    process.start()
    if stop:
        await_rounds(folder)
        os.kill(process.pid, signal.SIGINT)
    process.join(SECONDS)
    assert process.exitcode is not None, f"{arguments}: not done after {SECONDS} s"
    printed = output.read_text()
    for answer in answers:  # nobody's keyboard echoed them
        printed = re.sub(r"(?<=\[y/N\]: )(?!\w+$)", f"{answer}\n", printed, count=1)
    return process.exitcode, printed


def run_behind(arguments, folder, shown):
    """Start what goes on; return once it shows this, or anything."""
    output = folder / f".output-{time.monotonic_ns()}"
    process = FORKS.Process(target=call, args=(arguments, folder, output), daemon=True)
    process.start()
    for _ in range(20 * SECONDS):
        printed = output.read_text() if output.exists() else ""
        if printed and matches([*shown, "..."], printed.splitlines()):
            return process
        if not process.is_alive():
            break
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"{arguments}\n{printed}")


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
LONG = {  # whose commands are tried elsewhere, too, with fewer parties
    "how-to-average.md", "how-to-fewer-bytes.md", "how-to-rehearse.md", "how-to-resume.md",
    "how-to-secure-sums.md", "how-to-shuffle.md", "how-to-verify-a-sum.md",
    "tutorial-data-manager.md",
}  # fmt: skip


@pytest.mark.parametrize("page", by_page(SESSIONS, LONG))
def test_commands_do_what_the_page_shows(page, tmp_path):
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("tables")
    )
    folder, behind, port = tmp_path, [], free_port()
    try:
        for kind, name, content in blocks(page):
            if name is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(content)
            session = content.replace("8443", port) if kind == "console" else ""
            for text, code, shown in commands(session):
                if text.startswith("cd "):
                    folder /= text.removeprefix("cd ")
                elif text.endswith(" &"):
                    behind.append(run_behind(shlex.split(text)[1:-1], folder, shown))
                else:
                    run_and_compare(text, code, shown, folder, 20 if behind else 0)
    finally:
        for process in behind:
            process.terminate()
            process.join(SECONDS)


def run_and_compare(text, code, shown, folder, tries):
    words, stop = shlex.split(text), shown[:1] == ["^C"]
    for left in range(tries, -1, -1):
        if words[0] == "archipel" and not set(words) & {"|", "&&"}:
            ended, printed = run_archipel(words[1:], folder, shown)
        else:
            ended, printed = run_other(text, folder)

        assert ended == code, f"{text}\n{printed}"
        if not shown[stop:] or matches(shown[stop:], printed.splitlines()):
            return
        assert left, f"{text}\n{printed}"
        time.sleep(0.5)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


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
