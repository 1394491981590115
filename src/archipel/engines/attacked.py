# SPDX-License-Identifier: Apache-2.0
"""Adversaries as the local engine simulates them: what goes around an algorithm, and their data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archipel import rng
from archipel.adversaries.adversary import Adversary
from archipel.adversaries.around import Adversarial, Colluding
from archipel.adversaries.attack import Hears
from archipel.data.federation import Federation
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import Boxes
from archipel.exchange.uploads import Ask
from archipel.graphs import Topology
from archipel.graphs.sampled import PeerSampling
from archipel.privacy.promise import Privacy
from archipel.rng import Ints
from archipel.wire.wire import Wire


@dataclass(frozen=True)
class Attacked:
    """Whom a simulation has as adversaries; nobody unless given."""

    adversary: Adversary | None = None
    who: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    poisoned: Federation | None = None  # what they train on, where it is not their own
    parties: int = 0  # that train
    clip: float | None = None  # norm of an upload that the server takes, at most
    peers: bool = False  # whether they are peers, who lie to their neighbours

    @classmethod
    def of(
        cls,
        adversary: Adversary | None,
        data: Federation,
        seed: int,
        boxes: Boxes,
        wire: Wire,
        privacy: Privacy | None,
        topology: Topology | None = None,
    ) -> Attacked:
        """Draw who they are and poison their points; refuse what cannot be simulated."""
        if adversary is None:
            return cls()
        who, clip, name = adversary.who(data, seed), None, type(adversary.attack).__name__
        if boxes.peer:
            _check_peers(adversary.attack, boxes, topology, wire)
            return cls(adversary, who, adversary.poisoned(data, who, seed), peers=True)
        if not any(hasattr(adversary.attack, each) for each in _AT_SERVERS):
            raise ArchipelError(
                f"adversary.attack: {name} tells neighbours different things, and {boxes.name} has "
                "a server, which hears each party once; take ipm or alie, or an algorithm without "
                "a server, such as dsgd."
            )
        if adversary.omniscient:
            if wire.sum is not None:
                raise ArchipelError(
                    f"adversary.attack: {name} knows the honest uploads of a round, and wire.sum: "
                    f"{type(wire.sum).__name__} shows them to nobody; take an attack that knows "
                    "its own alone, such as sign_flip or replacement."
                )
            if privacy is not None and privacy.unit == "party":
                if privacy.clip == "adaptive":
                    raise ArchipelError(
                        f'adversary.attack: {name}, privacy.clip = "adaptive": what its uploads '
                        "are clipped to is not known where they are made; give a number as clip."
                    )
                clip = privacy.first_clip
        poisoned = adversary.poisoned(data, who, seed)
        return cls(adversary, who, poisoned, len(data.able), clip)

    def inside(self, boxes: Boxes) -> Boxes:
        """The algorithm with adversaries, before anything is around it."""
        if self.adversary is None or self.adversary.omniscient or self.peers:
            return boxes
        return Adversarial(boxes, self.adversary, self.who, self.parties)

    def outside(self, boxes: Boxes, messages: int) -> Boxes:
        """All that is around it with adversaries that know what others send."""
        if self.adversary is None or not self.adversary.omniscient or self.peers:
            return boxes
        return Colluding(boxes, self.adversary, self.who, messages, self.clip)

    def seen(self, anatomy: Anatomy, singly: bool = False) -> Anatomy:
        """A round as the engine collects it: single uploads where somebody looks at them."""
        if not (singly or (self.adversary is not None and self.adversary.omniscient)):
            return anatomy
        if not anatomy.messages:  # of peers
            return anatomy
        looked = 0 if singly else len(anatomy.messages) - 1  # from this message on
        asks = frozenset[Ask]({"stack", "n"})
        return anatomy._replace(
            messages=tuple(
                message._replace(asks=asks) if number >= looked else message
                for number, message in enumerate(anatomy.messages)
            )
        )

    def apart(self, ids: Ints, some: list[int]) -> list[list[int]]:
        """Places among `ids`: honest parties, and adversaries."""
        if self.adversary is None or self.adversary.omniscient:
            return [some]
        lies = np.isin(ids[some], self.who)
        parts = ([at for at, lie in zip(some, lies, strict=True) if lie == mine] for mine in (0, 1))
        return [part for part in parts if part]

    def data(self, data: Federation, ids: Ints, t: int) -> Federation:
        """What these parties train on in round t."""
        if self.adversary is None or self.poisoned is None or not self.adversary.at_work(t):
            return data
        attacks = self.peers or (len(ids) and ids[0] in self.who)  # peers' rows differ, all at once
        return self.poisoned if attacks else data

    @property
    def uncounted(self) -> Ints:
        """Adversaries among peers: what they have themselves is no result of the run."""
        return self.who if self.peers else self.who[:0]

    def check(self, anatomy: Anatomy, name: str) -> None:
        """Refuse peers that hold copies of each other's vectors, to which codes are added."""
        if self.peers and anatomy.whole:
            raise ArchipelError(
                f"adversary.attack, wire.up: neighbours of {name} hold copies of each other's "
                "vectors, and what an adversary could make of those by codes is not simulated; "
                "leave wire.up out, or take dsgd."
            )

    def lies(self, t: int) -> bool:
        """Whether peers are told something else in round t than honest ones would."""
        attack = None if self.adversary is None else self.adversary.attack
        says = hasattr(attack, "telling") or hasattr(attack, "colluding")
        return self.peers and says and self.adversary is not None and self.adversary.at_work(t)

    def heard(self, to: int, around: Ints, x: Tensor, weights: Tensor, key: Key) -> Tensor:
        """`[1 + d, p] -> [d, p]`: what the neighbours `around` of a peer tell it.

        The first row is its own. Adversaries are told the truth.
        """
        mine, theirs = x[0], x[1:]
        lying = torch.from_numpy(np.isin(around, self.who))
        f = int(lying.sum())
        if not f or to in self.who or self.adversary is None:
            return theirs
        attack: Any = self.adversary.attack
        honest = theirs[~lying]
        if hasattr(attack, "telling"):
            draw = rng.generator(*key, to, "telling")
            parts = (honest, weights[~lying], theirs[lying], weights[lying])
            said = attack.telling(Hears(to, mine, *parts, draw))
        else:
            said = attack.colluding(torch.cat([mine[None], honest]), f)
        told = theirs.clone()
        told[lying] = said.to(x.dtype)
        return told


Key = tuple[int | str, ...]
_AT_SERVERS = ("poisoned", "door", "sent", "colluding")


def _check_peers(attack: object, boxes: Boxes, topology: Topology | None, wire: Wire) -> None:
    """Refuse what peers that lie cannot be simulated with."""
    name = type(attack).__name__
    if boxes.clock != "rounds" or topology is None:
        raise ArchipelError(
            f"adversary.attack: {name} is simulated where peers mix in rounds, and {boxes.name} "
            "does not; take dsgd, gradient_tracking or choco, or leave [adversary] out."
        )
    if isinstance(topology, PeerSampling):
        raise ArchipelError(
            f"adversary.attack: {name} lies about vectors, and in topology.name = "
            f"{topology.name!r} adversaries would also lie about who there is, which is not "
            "simulated; take a graph such as random_regular."
        )
    if hasattr(attack, "door") or not any(hasattr(attack, each) for each in _AMONG_PEERS):
        raise ArchipelError(
            f"adversary.attack: {name} is an attack on what a server is sent, and {boxes.name} "
            "has none; take dissensus, alie, ipm, sign_flip, gaussian or label_flip, or an "
            "algorithm with a server."
        )


_AMONG_PEERS = ("poisoned", "telling", "colluding")
