# SPDX-License-Identifier: Apache-2.0
"""Adversaries as the local engine simulates them: what goes around an algorithm, and their data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from archipel.adversaries.adversary import Adversary
from archipel.adversaries.around import Adversarial, Colluding
from archipel.data.federation import Federation
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Anatomy
from archipel.exchange.boxes import Boxes
from archipel.exchange.uploads import Ask
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

    @classmethod
    def of(
        cls,
        adversary: Adversary | None,
        data: Federation,
        seed: int,
        boxes: Boxes,
        wire: Wire,
        privacy: Privacy | None,
    ) -> Attacked:
        """Draw who they are and poison their points; refuse what cannot be simulated."""
        if adversary is None:
            return cls()
        who, clip, name = adversary.who(data, seed), None, type(adversary.attack).__name__
        if boxes.peer:
            raise ArchipelError(
                f"adversary.attack: {name} is an attack on what a server is sent, and "
                f"{boxes.name} has none; take an algorithm with a server, or leave [adversary] out."
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
        if self.adversary is None or self.adversary.omniscient:
            return boxes
        return Adversarial(boxes, self.adversary, self.who, self.parties)

    def outside(self, boxes: Boxes, messages: int) -> Boxes:
        """All that is around it with adversaries that know what others send."""
        if self.adversary is None or not self.adversary.omniscient:
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
        return self.poisoned if len(ids) and ids[0] in self.who else data
