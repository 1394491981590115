"""What is locked, what the demo installs, and what a release holds."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _script(name):
    spec = importlib.util.spec_from_file_location(
        f"release_{name}", ROOT / "release" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bom, floors, make = _script("bom"), _script("floors"), _script("make")
EXTRAS = PROJECT["project"]["optional-dependencies"]
ASKED = {
    "run.txt": PROJECT["project"]["dependencies"],
    "build.txt": PROJECT["build-system"]["requires"],
    "dev.txt": PROJECT["project"]["dependencies"] + [r for extra in EXTRAS.values() for r in extra],
}


@pytest.mark.parametrize("lock", ASKED)
def test_every_dependency_is_locked_within_its_bounds(lock):
    pins = bom.pins(LOCKS / lock) | bom.pins(LOCKS / "torch.txt")

    for requirement in map(Requirement, ASKED[lock]):
        assert pins[canonicalize_name(requirement.name)].version in requirement.specifier


@pytest.mark.parametrize("lock", ASKED)
def test_what_is_locked_asks_for_nothing_that_is_not(lock):
    torch = {} if lock == "build.txt" else bom.pins(LOCKS / "torch.txt")
    pins = bom.pins(LOCKS / lock) | torch

    for pin in pins.values():
        for requirement in map(Requirement, bom.installed(pin).requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert pins[canonicalize_name(requirement.name)].version in requirement.specifier


@pytest.mark.parametrize("lock", ASKED)
def test_every_locked_file_has_a_hash_but_torch_whose_file_differs_by_index(lock):
    pins = bom.pins(LOCKS / lock)

    assert all(pin.hashes for pin in pins.values())
    assert "torch" not in pins


def test_wheels_of_other_platforms_are_locked_too():
    pins = bom.pins(LOCKS / "run.txt")

    # a release with compiled parts has a file for each system and version of Python
    assert all(len(pins[name].hashes) > 10 for name in ("numpy", "scipy", "grpcio", "cffi"))


def test_the_locks_agree():
    run, build, dev = (bom.pins(LOCKS / lock) for lock in ASKED)

    assert run.items() <= dev.items()
    assert build.items() <= dev.items()


@pytest.mark.parametrize("lock", [*ASKED, "torch.txt"])
def test_a_lock_names_no_index_and_no_folder(lock):
    assert bom.pins(LOCKS / lock)  # refuses lines that are options, such as --index-url
    assert not re.search(r"://|[\s=]/\w", (LOCKS / lock).read_text())


@pytest.mark.parametrize("line", ["numpy>=2", "numpy", "--index-url somewhere", "-r other.txt"])
def test_a_line_that_is_not_a_pin_is_refused(line, tmp_path):
    lock = tmp_path / "run.txt"
    lock.write_text(f"{line} \\\n    --hash=sha256:{'0' * 64}\n")

    with pytest.raises(SystemExit, match="is not a pinned version"):
        bom.pins(lock)


@pytest.mark.parametrize("pin", bom.runtime().values(), ids=lambda pin: pin.name)
def test_what_is_locked_to_run_with_has_a_permissive_licence(pin):
    assert bom.refused(bom.licence(bom.installed(pin))) == []


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("MIT", []),
        ("(Apache-2.0 WITH LLVM-exception) AND MIT", []),
        ("GPL-3.0-only", ["GPL-3.0-only"]),
        ("MIT AND LGPL-3.0-or-later", ["LGPL-3.0-or-later"]),
        ("unknown", ["unknown"]),
    ],
)
def test_a_licence_that_is_not_on_the_list_is_named(words, parts):
    assert bom.refused(words) == parts


def test_the_bill_of_materials_names_every_locked_package_with_its_hashes(tmp_path):
    bill = bom.document()

    locked = bom.runtime()
    listed = {part["name"]: part for part in bill["components"]}
    refs = {part["bom-ref"] for part in bill["components"]}
    assert listed.keys() == {pin.name for pin in locked.values()}
    for pin in locked.values():
        part = listed[pin.name]
        assert part["purl"] == f"pkg:pypi/{pin.name}@{pin.version}"
        assert [h["content"] for h in part.get("hashes", [])] == list(pin.hashes)
        assert part["licenses"]
    asked = {ref for entry in bill["dependencies"] for ref in entry["dependsOn"]}
    assert asked == refs  # each is there because another asks for it


def test_a_bill_with_another_licence_is_refused_and_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(bom, "PERMISSIVE", bom.PERMISSIVE - {"MIT"})

    with pytest.raises(SystemExit, match="has the licence MIT"):
        bom.write(tmp_path / "bill.json")

    assert list(tmp_path.iterdir()) == []


def _commands(target):
    """What `make` would run for a target, from nothing."""
    make = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.check_output(make, cwd=ROOT, text=True, env=outside)


def test_the_demo_installs_the_package_and_what_it_needs_alone():
    commands = _commands("demo")
    installed = bom.pins(LOCKS / "run.txt").keys() | bom.pins(LOCKS / "build.txt").keys()

    assert re.findall(r"-r (\S+)", commands) == [
        f"requirements/{n}.txt" for n in ("run", "build", "torch")
    ]
    assert "[" not in commands  # no extra
    tools = {canonicalize_name(Requirement(r).name) for extra in EXTRAS.values() for r in extra}
    assert not tools & installed


def test_tests_install_the_rest():
    assert "-r requirements/dev.txt" in _commands("test")


def test_a_floor_is_one_version():
    pinned = [Requirement(text).specifier for text in floors.floors()]

    extras = len(EXTRAS["frames"]) + len(EXTRAS["postgres"])
    assert len(pinned) == len(ASKED["run.txt"]) + extras
    assert all(re.fullmatch(r"==[\d.]+", str(bound)) for bound in pinned)


def test_each_peer_of_the_benchmarks_is_free_of_our_versions():
    install = (ROOT / "benchmarks" / "peers" / "install.py").read_text()

    assert "constraint" not in install


def test_a_changed_work_tree_is_not_released(tmp_path, monkeypatch):
    clone = tmp_path / "clone"
    subprocess.check_call(["git", "clone", "--quiet", ROOT, clone])
    (clone / "stray.py").write_text("")
    monkeypatch.setattr(make, "ROOT", clone)

    with pytest.raises(SystemExit, match=r"1 file.* not as committed \(\?\? stray.py"):
        make.refuse_changes()


def test_two_builds_are_the_same_bytes_and_hold_the_committed_sources(tmp_path):
    sdist, wheel = make.build(tmp_path)

    make.check_contents(sdist, wheel)


@pytest.mark.slow
def test_a_release_is_built_tried_and_summed(tmp_path):
    clone = tmp_path / "clone"
    subprocess.check_call(["git", "clone", "--quiet", ROOT, clone])

    done = subprocess.run([sys.executable, clone / "release" / "make.py"], capture_output=True)

    assert done.returncode == 0, done.stderr
    sums = [line.split() for line in (clone / "dist" / "SHA256SUMS").read_text().splitlines()]
    assert len(sums) == 3
    subprocess.check_call(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=clone / "dist")
