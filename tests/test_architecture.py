"""Imports go one way, the public names are there, and documentation runs."""

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import archipel

SOURCE = Path(archipel.__file__).parent
ROOT = SOURCE.parents[1]

# A module may import from its own layer and those before it. A package is named whole, or a module
# of it where that lies deeper than the rest.
LAYERS = [
    {"errors", "picture", "plain", "signing"},
    {
        "tree",
        "rng",
        "vector",
        "measures",
        "metrics",
        "bounds",
        "privacy",
        "devices",
        "sampling",
        "training.schedules",
        "training.optimisers",
        "training.limits",
        "models.losses",
    },
    {"core", "graphs", "data", "models"},
    {"training", "exchange", "models.model", "models.flops", "models.networks", "models.units"},
    {"algorithms", "aggregation", "rules", "adversaries"},
    {
        "models.stacked",
        "models.recorded",
        "models.clipped",
        "models.private",
        "wire",
        "privacy.budgeted",
        "privacy.door",
        "privacy.noisy_sum",
        "privacy.party",
        "privacy.record",
    },
    {"engines", "store"},
    {"conformance", "attacks"},
    {"runs", "scorecard", "report", "forecast"},
    {"study", "runs.listing", "estimators", "bundle"},
    {"audit", "worth", "comparison", "demo", "federation", "verifiable"},
    {"cli", "__main__"},
]
LAYER = {name: depth for depth, names in enumerate(LAYERS) for name in names}


def layer(module):
    """How deep a module lies: as it is named in LAYERS, or else as its package."""
    parts = module.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(LAYER[name] for name in names if name in LAYER)


def imported(path):
    """Archipel's modules that a file imports, not counting those for types alone."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in guarded:
            parts = node.module.split(".")
            if parts[0] == "archipel":
                inside = ".".join(parts[1:])
                yield from (f"{inside}.{alias.name}".strip(".") for alias in node.names)


FILES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    part = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for name in imported(path):
        assert layer(name) <= layer(part), f"{part} must not import {name}"


@pytest.mark.parametrize("path", sorted((SOURCE / "algorithms").glob("[a-z]*.py")), ids=str)
def test_algorithms_know_neither_engines_nor_files(path):
    allowed = ("core", "errors", "tree", "vector", "training", "models.networks")
    allowed += ("algorithms.dada",)  # one paper: plain and boosted
    assert all(name.startswith(allowed) for name in imported(path))
    assert "Departures:" in path.read_text()


def test_waiting_for_some_time_is_asyncios_timeout():
    """Up to Python 3.11 `wait_for` forgets a cancellation that comes with what is waited for."""
    assert [path for path in FILES if "asyncio.wait_for(" in path.read_text()] == []


def test_only_model_and_losses_know_torch_func():
    named = [path for path in FILES if "torch.func" in path.read_text()]
    users = {path.name for path in named if "torch.func" in code(path)}
    assert users == {"model.py", "losses.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_long_module_says_why_it_is_one_file(path):
    text = path.read_text()
    if len(text.splitlines()) > 400:
        assert "One file, " in (ast.get_docstring(ast.parse(text)) or ""), "split it, or say why"


def code(path):
    """A file without its docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            first.value.value = ""
    return ast.unparse(tree)


PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_tree_on_the_page_names_every_package_and_module():
    tree = PAGE.split("src/archipel/\n")[1].split("```")[0]
    named = [line.split()[0] for line in tree.splitlines()]
    there = [path.name for path in SOURCE.glob("*.py")]
    there += [f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")]

    assert sorted(named) == sorted(there)


@pytest.mark.parametrize("line", [line for line in PAGE.splitlines() if ".py`" in line])
def test_files_that_the_page_names_are_in_the_tree(line):
    package = re.match(r"\| `([\w/]+/)` \|", line)
    folders = [SOURCE / package[1]] if package else [SOURCE, ROOT]
    for name in re.findall(r"`([\w/]+\.py)`", line):
        assert any((folder / name).exists() for folder in folders), name


@pytest.mark.parametrize("where, most", [("in simulation", 4), ("between institutions", 6)])
def test_a_round_is_followed_in_a_few_files(where, most):
    section = PAGE.split(f"## The path of a round, {where}\n")[1].split("\n## ")[0]
    files = re.findall(r"^\d\. `([\w/]+\.py)`", section, re.MULTILINE)

    assert 0 < len(files) <= most
    assert all((SOURCE / name).exists() for name in files)


def test_public_names():
    assert sorted(archipel.__all__, key=str.lower) == sorted(set(archipel.__all__), key=str.lower)
    for name in archipel.__all__:
        assert hasattr(archipel, name)


MODULES = [info.name for info in pkgutil.walk_packages([str(SOURCE)], "archipel.")]


@pytest.mark.parametrize("name", ["archipel", *MODULES])
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0


def snippets():
    """Python in README and docs, one program per file."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = {page.name: page.read_text().split("```python\n")[1:] for page in pages}
    return [
        pytest.param("\n".join(block.split("```")[0] for block in found), id=name)
        for name, found in blocks.items()
        if found
    ]


@pytest.mark.parametrize("program", snippets())
def test_snippets_run(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "snippet", "exec"), {"__name__": "snippet"})
