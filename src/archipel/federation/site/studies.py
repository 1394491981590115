# SPDX-License-Identifier: Apache-2.0
"""The studies that a site knows: their exact bytes, what the site decided, and its place in each.

All of it lies in the site's folder, so that a site can look and decide while nobody answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import safe_open

from archipel.errors import ArchipelError
from archipel.federation import approval
from archipel.store.files import write

if TYPE_CHECKING:
    from archipel.study.file import Study


class Decision(NamedTuple):
    """What the site says to a study."""

    decision: str  # approved, rejected or withdrawn
    facts: Mapping[str, Any]  # that it tells about its data
    told: bool = False  # whether the coordinator knows
    refused: str = ""  # why the coordinator did not accept it


class Gist(NamedTuple):
    """What is told of a study without reading it again."""

    rounds: int


class SiteStudies:
    """A folder with a folder for each study, by its hash."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def folder(self, study: str) -> Path:
        return self.path / study

    def put(self, text: bytes) -> str:
        """Keep the bytes of a study; return their hash."""
        study = approval.hash_of(text)
        path = self.folder(study) / "study.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_bytes() != text:
            write(path, text)
        return study

    def text(self, study: str) -> bytes:
        """The bytes that a hash names, and no others."""
        path = self.folder(study) / "study.toml"
        text = path.read_bytes()
        if approval.hash_of(text) != study:
            raise ArchipelError(
                f"'{path}': was changed and is not the study of this hash any more; 'archipel site "
                "studies' gets it anew."
            )
        return text

    def read(self, study: str) -> Study:
        return approval.read(self.text(study))

    def gist(self, study: str) -> Gist:
        """What was noted of a study that this version could read; it is read where nothing is."""
        text, path = self.text(study), self.folder(study) / "gist.json"
        if path.exists():
            noted = json.loads(path.read_bytes())
            if noted.pop("version") == version("archipel"):
                return Gist(**noted)
        gist = Gist(approval.read(text).study.rounds)
        write(path, json.dumps({"version": version("archipel"), **gist._asdict()}).encode())
        return gist

    def known(self) -> list[str]:
        """The studies that are here, in the order in which they came."""
        found = self.path.glob("*/study.toml")
        return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    def name(self, study: str) -> str:
        """What a study calls itself; empty where it cannot be read here."""
        try:
            return approval.name_of(self.text(study))
        except (ArchipelError, FileNotFoundError):
            return ""

    def find(self, name: str) -> str:
        """The one study of a name, or of the beginning of a hash."""
        return approval.find({study: self.name(study) for study in self.known()}, name)

    def namesakes(self, name: str, besides: str) -> list[str]:
        """Other studies of a name, or of one that looks like it."""
        folded = approval.folded(name)
        found = [each for each in self.known() if approval.folded(self.name(each)) == folded]
        return [each for each in found if each != besides]

    # -- what was looked at ------------------------------------------------------------------------

    def reviewed(self, study: str) -> bool:
        """Whether somebody was shown here what approving these bytes would mean."""
        return (self.folder(study) / "reviewed").exists()

    def review(self, study: str, text: str) -> None:
        """Note that somebody was shown this."""
        write(self.folder(study) / "reviewed", text.encode())

    # -- what was decided --------------------------------------------------------------------------

    def decision(self, study: str) -> Decision | None:
        path = self.folder(study) / "decision.json"
        return Decision(**json.loads(path.read_bytes())) if path.exists() else None

    def decide(self, study: str, decision: Decision) -> None:
        write(self.folder(study) / "decision.json", json.dumps(decision._asdict()).encode())

    def approved(self) -> list[str]:
        """The studies that this site agreed to."""
        return [study for study in self.known() if self.has_approved(study)]

    def has_approved(self, study: str) -> bool:
        found = self.decision(study)
        return found is not None and found.decision == "approved"

    def untold(self) -> list[str]:
        """Those whose decision the coordinator does not know yet."""
        decided = {study: self.decision(study) for study in self.known()}
        return [study for study, each in decided.items() if each and not each.told]

    # -- the site's place --------------------------------------------------------------------------

    def told(self, study: str) -> None:
        """The coordinator knows the decision."""
        decision = self.decision(study)
        assert decision is not None
        self.decide(study, decision._replace(told=True, refused=""))

    def end(self, study: str, rounds: int) -> None:
        """The site has heard that the study is over."""
        write(self.folder(study) / "rounds", str(rounds).encode())

    def goes_on(self, study: str) -> None:
        """A study goes on of which the site had heard that it is over: it plans something again."""
        (self.folder(study) / "rounds").unlink(missing_ok=True)

    def has_counted(self, study: str) -> bool:
        """Whether the site took part in a round that counted, or in a later one than the first.

        A coordinator that says of no round that it counted gets no round twice.
        """
        folder = self.folder(study)
        if (folder / "peer").exists():
            return True
        path = folder / "state.safetensors"
        return path.exists() and (self.has_trained(study) or self.last(study) > 0)

    def has_trained(self, study: str) -> bool:
        """Whether the site heard of a round of its own that it counted."""
        with safe_open(self.folder(study) / "state.safetensors", "numpy") as state:
            return bool(state.get_tensor("own.trained"))

    def last(self, study: str) -> int:
        """The round that this site worked in last, counted from 0; -1 before the first."""
        path = self.folder(study) / "state.safetensors"
        with safe_open(path, "numpy") as state:
            return int(state.get_tensor("last")[0])

    def is_before_answer(self, study: str) -> bool:
        """Whether this site has begun a round and nothing of it has left."""
        path = self.folder(study) / "state.safetensors"
        with safe_open(path, "numpy") as state:
            is_begun = "turn.gradients" in {*state.keys()}
            return is_begun and len(state.get_tensor("turn.gradients")) == 0

    def paid(self, study: str) -> int:
        """The round that was charged last, counted from 0, as this site's state says; else -1."""
        path = self.folder(study) / "state.safetensors"
        with safe_open(path, "numpy") as state:
            name = "paid" if "paid" in {*state.keys()} else "last"  # of an older version
            return int(state.get_tensor(name)[0])

    def drop_round(self, study: str) -> None:
        """Forget the round that is open, which was computed on another scale; all else stays.

        Something of it may have left, so its rows of correlated noise are used up.
        """
        path = self.folder(study) / "state.safetensors"
        if path.exists():
            import torch
            from safetensors.torch import load_file, save

            from archipel.engines.network.party_state import DROPPED

            state = load_file(path)
            kept = {name: each for name, each in state.items() if not name.startswith("turn.")}
            again = kept["last"].clone()
            again[0] = -1
            if len(kept) < len(state):
                kept[DROPPED] = torch.ones(1, dtype=torch.int64)
            write(path, save({**kept, "last": again}))

    def is_over(self, study: str) -> bool:
        """Whether the site has heard that the study ended."""
        return (self.folder(study) / "rounds").exists()

    def is_open(self, study: str) -> bool:
        """Whether the site took part and has not heard how it ended."""
        folder = self.folder(study)
        return (folder / "state.safetensors").exists() and not (folder / "rounds").exists()

    def seated(self, study: str, party: int) -> None:
        """The coordinator gave the site a number, which it keeps."""
        write(self.folder(study) / "party", str(party).encode())

    def has_party(self, study: str) -> bool:
        return (self.folder(study) / "party").exists()

    def party(self, study: str) -> int:
        """The site's number in the study."""
        if not self.has_party(study):
            raise ArchipelError(
                f"study {study[:12]}: this site has no number in it yet; it gets one when the "
                "study starts and the coordinator can be reached."
            )
        return int((self.folder(study) / "party").read_text())
