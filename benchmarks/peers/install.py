# SPDX-License-Identifier: Apache-2.0
"""Create one virtual environment per peer under `.bench/envs` (`make bench-peers`).

A peer that cannot be installed leaves its reason in `.bench/envs/<peer>.failed`, which speed.py
prints in its place. Standard library only; name peers to install only those.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / ".bench" / "envs"
REQUIREMENTS = Path(__file__).parent / "requirements"
PEERS = ("pfl", "flwr", "fedlab", "fedjax", "opacus")


def python(peer: str) -> Path:
    """Return the interpreter of the peer's environment."""
    return ENVS / peer / "bin" / "python"


def failure(peer: str) -> str | None:
    """Return why the peer cannot run, or None."""
    reason = ENVS / f"{peer}.failed"
    if reason.exists():
        return reason.read_text().strip()
    if not (ENVS / peer / ".ready").exists():
        return "not installed; run `make bench-peers`"
    return None


def install(peer: str) -> None:
    """Install a peer, or leave the reason why not."""
    ready, failed = ENVS / peer / ".ready", ENVS / f"{peer}.failed"
    if ready.exists():
        print(f"{peer}: ready")
        return
    print(f"{peer}: installing into {ready.parent.relative_to(ROOT)}", flush=True)
    failed.unlink(missing_ok=True)
    pip = [str(python(peer)), "-m", "pip", "install", "--quiet"]
    steps = [
        [sys.executable, "-m", "venv", str(ENVS / peer)],
        [*pip, "-r", str(REQUIREMENTS / f"{peer}.txt")],
    ]
    alone = REQUIREMENTS / f"{peer}-nodeps.txt"
    if alone.exists():  # its dependencies are those of the first file
        steps.append([*pip, "--no-deps", "--no-build-isolation", "-r", str(alone)])
    steps.append([str(python(peer)), "-c", _version_check(peer)])
    for step in steps:
        done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True, env=_surroundings())
        if done.returncode:
            lines = [s for s in done.stderr.splitlines() if s and not s.startswith("WARNING")]
            errors = [s for s in lines if s.startswith("ERROR")] or lines[-1:]
            reason = "; ".join(errors)[:500] or f"exit status {done.returncode}"
            failed.write_text(f"cannot be installed: {reason}\n")
            print(f"{peer}: {failed.read_text().strip()}", flush=True)
            return
    ready.touch()
    print(f"{peer}: ready", flush=True)


def _surroundings() -> dict[str, str]:
    """The environment without what was set for ours: a peer has versions of its own."""
    ours = ("PIP_CONSTRAINT", "PIP_REQUIREMENT", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _version_check(peer: str) -> str:
    return f"from importlib.metadata import version; print(version({peer!r}))"


def versions(peer: str) -> dict[str, str]:
    """Return the versions that matter in the peer's environment."""
    names = ("pfl", "flwr", "ray", "fedlab", "fedjax", "opacus", "jax", "jaxlib", "torch", "numpy")
    code = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        f"for name in {names!r}:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass"
    )
    done = subprocess.run([str(python(peer)), "-c", code], capture_output=True, text=True)
    return dict(line.split() for line in done.stdout.splitlines())


if __name__ == "__main__":
    ENVS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or PEERS:
        install(name)
