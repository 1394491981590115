# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's running statistics as a part of what parties send, whatever the algorithm.

An algorithm knows nothing of them: around it, the shared state, every party's last upload and, of
peers, the own state have one tensor more, `[s]`. A server takes the mean of what came, weighted as
the algorithm weighs the uploads; peers mix theirs as they mix their models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from archipel.core import Blueprint, Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.talk import Talk
from archipel.models.model import Model
from archipel.tree import Tree, first

OWN_STATISTICS = (
    "every party keeps its own statistics of BatchNorm: a score is of the model as each party has "
    "it, and the shared model that is handed over has their mean, which nobody scored."
)


class Joined(NamedTuple):
    """A state or an upload of the algorithm's, and the statistics that go with it."""

    inner: Tree
    statistics: Tensor | None  # [..., s]; None in all but a round's last upload


def averages(boxes: Boxes, model: Model) -> bool:
    """Whether parties share statistics as they share the model; else each keeps its own."""
    together = boxes.clock == "rounds"
    return model.statistics == "averaged" and together and not boxes.keeps_statistics


def keep_own(boxes: Boxes, model: Model, mixes: bool = True) -> bool:
    """Whether every party has statistics of its own, so that a shared model differs by party."""
    alone = boxes.peer and not mixes
    return bool(model.buffer_spec.size) and (alone or not averages(boxes, model))


def handed_over(shared: Tree) -> Tree:
    """The shared model as those get it who use it: with its statistics, where they are averaged."""
    w, found = first(shared), statistics_of(shared)
    return w if found is None else Joined(w, found)


def statistics_of(state: Tree) -> Tensor | None:
    """The statistics in a state, whatever is around it; None where it has none."""
    while isinstance(state, tuple) and not isinstance(state, Joined):
        state = getattr(state, "inner", None)
    return state.statistics if isinstance(state, Joined) else None


def notes_of(boxes: Boxes, own: bool) -> list[str]:
    """What a run says of statistics that parties keep: `own` is whether they do."""
    if own:
        return [OWN_STATISTICS]
    if boxes.keeps_statistics:
        return [f"the model has no BatchNorm, so nothing of it is a party's own in {boxes.name}."]
    return []


def joined(boxes: Boxes, model: Model, mixes: bool = True) -> Boxes:
    """The algorithm with statistics in its messages, where they are averaged.

    Peers that do not mix keep theirs, as they keep their models.
    """
    if not averages(boxes, model) or not len(model.running) or (boxes.peer and not mixes):
        return boxes
    return (_Peers if boxes.peer else _Server)(boxes, model)


def check_others(model: Model, before: Tensor | None, after: Tensor | None) -> None:
    """Refuse to average a model of which a buffer that is no running statistic was trained."""
    if before is None or after is None or model.statistics == "own":
        return
    moved = (before != after) & ~(before.isnan() & after.isnan())
    moved[..., model.running] = False
    moved[..., model.counting] = False
    parts = moved.reshape(-1, moved.shape[-1]).any(dim=0).split(model.buffer_spec.sizes)
    for name, part in zip(model.buffer_spec.names, parts, strict=True):
        if part.any():
            raise ArchipelError(
                f"the model's buffer '{name}' changes in training and is no layer's running mean "
                'or variance, so no mean of it is known to be right: say statistics = "own" '
                "([model] in a study), and every party keeps its own."
            )


class _Inner:
    """The uploads as the algorithm sees them."""

    def __init__(self, uploads: Uploads) -> None:
        self.uploads, self.by_examples = uploads, False
        self.sampled, self.parties = uploads.sampled, uploads.parties
        self.present = uploads.present

    @property
    def n(self) -> Tensor:
        return self.uploads.n

    def mean(self, by_examples: bool = False) -> Tree:
        self.by_examples |= by_examples
        return self.uploads.mean(by_examples=by_examples).inner

    def stack(self) -> Tree:
        return self.uploads.stack().inner


class _Server(Around):
    """An algorithm with a server, whose parties send their statistics with their last upload."""

    def __init__(self, inner: Boxes, model: Model) -> None:
        super().__init__(inner)
        self._first = model.buffers[model.running]
        self._least = model.least.to(model.dtype)

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Joined, Tree]:
        shared, own = pair(f"{self.name}.init", "shared, own", self.inner.init(w, blueprint))
        return Joined(shared, self._first.clone()), own

    def broadcast(self, shared: Joined, t: int) -> Joined:
        return Joined(self.inner.broadcast(shared.inner, t), shared.statistics)

    def party(self, me: Any, *states: Tree) -> Any:
        shared, own = states
        me.begin(shared.statistics)
        talk = Talk(self.inner.party(me, shared.inner, own))
        while not talk.ended:
            talk.send((yield Joined(talk.said, None)))
        upload, own = pair(f"{self.name}.party", "upload, own", talk.said)
        return Joined(upload, me.statistics), own

    def server(self, shared: Joined, uploads: Uploads) -> Any:
        seen = _Inner(uploads)
        talk = Talk(self.inner.server(shared.inner, seen))
        while not talk.ended:
            seen = _Inner((yield talk.said))
            talk.send(seen)
        mean = seen.uploads.mean(by_examples=seen.by_examples).statistics
        return Joined(talk.said, mean.maximum(self._least))  # whatever came: no negative variance

    def personal(self, me: Any, shared: Joined, own: Tree) -> Any:
        me.begin(shared.statistics, first(shared.inner))
        return self.inner.personal(me, shared.inner, own)

    def advise(self, shared: Joined, uploads: Uploads) -> Tree:
        return self.inner.advise(shared.inner, uploads)


class _Peers(Around):
    """Peers that mix their statistics, after the algorithm's own messages of a round."""

    def __init__(self, inner: Boxes, model: Model) -> None:
        super().__init__(inner)
        self._first = model.buffers[model.running]
        self._least = model.least.to(model.dtype)

    def init(self, w: Vector, blueprint: Blueprint) -> Joined:
        return Joined(self.inner.init(w, blueprint), self._first.clone())

    def party(self, me: Party, *states: Tree) -> Joined:
        (own,) = states
        me.begin(own.statistics)  # type: ignore[attr-defined]
        state = self.inner.party(me, own.inner)
        mixed = me.mix(me.statistics)  # type: ignore[attr-defined]
        return Joined(state, mixed.maximum(self._least))  # late changes may pass below zero
