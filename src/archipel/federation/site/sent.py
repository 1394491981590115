# SPDX-License-Identifier: Apache-2.0
"""What left a site, as its own audit log says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from archipel.engines.network.letters import VECTORS

if TYPE_CHECKING:
    from archipel.federation.site.site import Site


@dataclass
class Sent:
    """What left a site for one study."""

    uploads: int = 0
    bytes: int = 0
    rounds: set[int] = field(default_factory=set)

    def add(self, detail: Mapping[str, Any]) -> None:
        self.bytes += int(detail["bytes"])
        if detail["kind"] in VECTORS:
            self.uploads += 1
            self.rounds.add(int(detail["round"]))


def sent_by(site: Site) -> dict[str, Sent]:
    """What left a site so far, by study, as its audit log says."""
    found: dict[str, Sent] = {}
    for entry in site.audit.entries():
        if entry.what == "sent":
            study = str(entry.detail["study"])
            found.setdefault(study, Sent()).add(entry.detail)
    return found


def lacks(site: Site, study: str, sent: Mapping[str, Sent]) -> bool:
    """Whether a site worked in a study in rounds of which its audit log names nothing.

    What left in the round under way may not be there yet.
    """
    folder = site.site_studies.folder(study)
    path = folder / "state.safetensors"
    if not path.exists():
        return study not in sent and _has_mixed(folder / "peer")
    if site.site_studies.is_before_answer(study):
        return study not in sent and site.site_studies.has_trained(study)
    return study not in sent or site.site_studies.last(study) > max(sent[study].rounds, default=0)


def _has_mixed(folder: Path) -> bool:
    """Whether a peer did more than begin its first round."""
    path = folder / "own.safetensors"
    if not path.exists():
        return any(folder.glob("*.safetensors"))
    with safe_open(path, "numpy") as state:
        return bool(state.get_tensor("round") > 0) or len([*folder.glob("*.safetensors")]) > 1
