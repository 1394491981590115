# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials (`make sbom`): what is locked to run with, as CycloneDX 1.6.

Names, versions and hashes are those of requirements/run.txt and torch.txt; licences and who asks
for whom come from the installed packages, which must be the locked ones.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "requirements"

# SPDX identifiers, and the words older packages use instead
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT"),
    *("MIT-0", "MIT-CMU", "PSF-2.0", "Zlib", "LLVM-exception"),
    *("Apache 2.0", "Apache Software License", "BSD", "BSD License", "ISC License", "MIT License"),
    "Python Software Foundation License",
}


class Pin(NamedTuple):
    """One locked release and the SHA-256 of each of its files."""

    name: str
    version: str
    hashes: tuple[str, ...]


def pins(lock: Path) -> dict[str, Pin]:
    """Read a lock file: name to pin."""
    joined = re.sub(r"\\\n", " ", lock.read_text())
    lines = [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]
    found = [
        re.fullmatch(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})*)", s) for s in lines
    ]
    for line, match in zip(lines, found, strict=True):
        if match is None:
            raise SystemExit(f"{lock.name}: {line!r} is not a pinned version; run `make lock`.")
    read = [Pin(m[1], m[2], tuple(re.findall(r"sha256:(\w+)", m[3]))) for m in found if m]
    return {canonicalize_name(pin.name): pin for pin in read}


def runtime() -> dict[str, Pin]:
    """Return everything that is locked to run with."""
    return {**pins(LOCKS / "run.txt"), **pins(LOCKS / "torch.txt")}


def installed(pin: Pin) -> Distribution:
    """Return the installed package of a pin; another version is refused."""
    try:
        found = distribution(pin.name)
    except PackageNotFoundError:
        raise SystemExit(f"{pin.name} is locked and not installed; run `make sbom`.") from None
    if Version(found.version).public != pin.version:
        raise SystemExit(
            f"{pin.name} {found.version} is installed and {pin.version} is locked; run `make sbom`."
        )
    return found


def licence(package: Distribution) -> str:
    """Return the SPDX expression of a package or, where it has none, the licence's name."""
    told = package.metadata
    if told["License-Expression"]:
        return str(told["License-Expression"])
    names = [
        value.rsplit(" :: ", 1)[1].split(" (")[0]
        for value in told.get_all("Classifier", [])
        if value.startswith("License :: ") and not value.endswith(":: OSI Approved")
    ]
    short = told["License"] or ""
    return " AND ".join(names) or (short if 0 < len(short) < 40 else "unknown")


def refused(words: str) -> list[str]:
    """Return the parts of a licence that are not on the list of permissive ones."""
    parts = [part.strip(" ()") for part in re.split(r" AND | OR | WITH ", words)]
    return [part for part in parts if part not in PERMISSIVE]


def document() -> dict[str, Any]:
    """Return the bill of materials of this checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = runtime()
    root = f"pkg:pypi/{project['name']}@{project['version']}"
    asked = {root: project["dependencies"]}
    asked |= {_purl(pin): installed(pin).requires or [] for pin in locked.values()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": root,
                "name": project["name"],
                "version": project["version"],
                "purl": root,
                "licenses": [{"expression": project["license"]}],
            }
        },
        "components": [_component(pin) for pin in locked.values()],
        "dependencies": [
            {"ref": ref, "dependsOn": _needed(requires, locked)} for ref, requires in asked.items()
        ],
    }


def _component(pin: Pin) -> dict[str, Any]:
    words = licence(installed(pin))
    spdx = installed(pin).metadata["License-Expression"]
    hashes = {"hashes": [{"alg": "SHA-256", "content": value} for value in pin.hashes]}
    return {
        "type": "library",
        "bom-ref": _purl(pin),
        "name": pin.name,
        "version": pin.version,
        "purl": _purl(pin),
        "licenses": [{"expression": words} if spdx else {"license": {"name": words}}],
        **(hashes if pin.hashes else {}),
    }


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{canonicalize_name(pin.name)}@{pin.version}"


def _needed(requires: list[str], locked: dict[str, Pin]) -> list[str]:
    """Return the locked packages that these requirements name, extras left out."""
    asked = [Requirement(text) for text in requires]
    here = [r for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})]
    names = {canonicalize_name(r.name) for r in here}
    return sorted(_purl(locked[name]) for name in names & locked.keys())


def write(path: Path) -> None:
    """Write the bill of materials; a licence that is not permissive is refused."""
    bill = document()
    for pin in runtime().values():
        if parts := refused(licence(installed(pin))):
            raise SystemExit(
                f"{pin.name} {pin.version} has the licence {', '.join(parts)}, which is not on the "
                "list of permissive ones in release/bom.py; leave it out, or add it there."
            )
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(bill, indent=1) + "\n")
    part.replace(path)


if __name__ == "__main__":
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    target = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "dist" / f"archipel-{version}.cdx.json"
    write(target)
    print(f"{len(runtime())} packages in {target}")
