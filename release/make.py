# SPDX-License-Identifier: Apache-2.0
"""Build wheel and sdist, try them in a clean environment, and lay them in dist/ (`make release`).

Beside them: the bill of materials and SHA256SUMS. Nothing is signed and nothing is uploaded. The
same commit gives the same bytes: it is built twice, from two clones, the second wheel from the
sdist. dist/ is written only once everything has passed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
BESIDE = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"}
MADE = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}

# run in the clean environment, in an empty folder
EVERY_NAME = """
import archipel, pathlib, pkgutil, sys
assert sys.prefix in archipel.__file__, archipel.__file__
for name in archipel.__all__:
    getattr(archipel, name)
for module in pkgutil.walk_packages(archipel.__path__, "archipel."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
"""
SHORT_RUN = ["run", "fedavg", "--data", "heart_disease", "--rounds", "3"]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command without this checkout in its path; return what it prints."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["SOURCE_DATE_EPOCH"] = _git("log", "-1", "--format=%ct")
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        words = " ".join(map(str, command))
        raise SystemExit(f"{done.stdout}{done.stderr}\nNo release: `{words}` failed.")
    return done.stdout


def _git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def refuse_changes() -> None:
    """Refuse a work tree that is not its commit."""
    changed = _git("status", "--porcelain").splitlines()
    if changed:
        raise SystemExit(
            f"No release: {len(changed)} files are not as committed ({changed[0].strip()}, …); "
            "commit or stash them first."
        )


def build(into: Path) -> tuple[Path, Path]:
    """Build sdist and wheel twice and compare the bytes; return the two files."""
    made = []
    for name, targets in (("first", ["--sdist", "--wheel"]), ("second", [])):
        clone, out = into / name / "clone", into / name / "out"
        run("git", "clone", "--quiet", ROOT, clone)
        run(sys.executable, "-m", "build", "--no-isolation", *targets, "--outdir", out, clone)
        made.append((*out.glob("*.tar.gz"), *out.glob("*.whl")))
    for one, other in zip(*made, strict=True):
        if one.name != other.name or one.read_bytes() != other.read_bytes():
            raise SystemExit(f"No release: two builds of {one.name} differ.")
    sdist, wheel = made[0]
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Refuse an archive that holds anything but the committed sources, or not all of them."""
    source = set(_git("ls-tree", "-r", "--name-only", "HEAD", "src").splitlines())
    with tarfile.open(sdist) as tar:
        packed = {name.split("/", 1)[1] for name in tar.getnames()}
    _same(sdist, packed, source | BESIDE | {"PKG-INFO", ".gitignore"})
    with zipfile.ZipFile(wheel) as archive:
        info = "-".join(wheel.name.split("-")[:2]) + ".dist-info/"
        wanted = {name.removeprefix("src/") for name in source} | {info + name for name in MADE}
        _same(wheel, set(archive.namelist()), wanted)
        metadata = Metadata.from_email(archive.read(info + "METADATA"), validate=True)
    if (metadata.description or "").strip() != _git("show", "HEAD:README.md"):
        raise SystemExit(f"No release: the description in {wheel.name} is not README.md.")


def _same(archive: Path, packed: set[str], wanted: set[str]) -> None:
    for words, names in (("holds", packed - wanted), ("lacks", wanted - packed)):
        if names:
            raise SystemExit(f"No release: {archive.name} {words} {', '.join(sorted(names))}.")


def try_out(wheel: Path, folder: Path) -> Path:
    """Install the wheel with the locked versions, use it, and return its interpreter."""
    python, locks = folder / "venv" / "bin" / "python", ROOT / "requirements"
    pip = (python, "-m", "pip", "install", "--quiet", "--no-compile")
    run(sys.executable, "-m", "venv", folder / "venv")
    run(*pip, "--require-hashes", "-r", locks / "run.txt")
    run(*pip, "-r", locks / "torch.txt")
    run(*pip, "--no-deps", wheel)
    run(python, "-m", "pip", "check")
    empty = folder / "empty"
    empty.mkdir()
    run(python, "-c", EVERY_NAME, cwd=empty)
    run(python.with_name("archipel"), *SHORT_RUN, cwd=empty)
    return python


def lay_out(files: list[Path], folder: Path) -> None:
    """Put the files and their SHA256SUMS in place of what dist/ held."""
    ready = folder / "dist"
    ready.mkdir()
    for file in files:
        shutil.copyfile(file, ready / file.name)
    sums = [f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in sorted(files)]
    (ready / "SHA256SUMS").write_text("".join(sums))
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.copytree(ready, DIST)


def main() -> None:
    """Make a release, or say why not."""
    refuse_changes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = build(folder)
        check_contents(sdist, wheel)
        python = try_out(wheel, folder)
        bill = folder / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json"
        run(python, ROOT / "release" / "bom.py", bill)
        lay_out([wheel, sdist, bill], folder)
    print((DIST / "SHA256SUMS").read_text(), end="")
    print(f"In {DIST}: built twice with the same bytes and tried in a clean environment.")


if __name__ == "__main__":
    main()
