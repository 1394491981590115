# SPDX-License-Identifier: Apache-2.0
"""BatchNorm's running statistics as a part of what parties send, whatever the algorithm.

An algorithm knows nothing of them: around it, the shared state, every party's last upload and, of
peers, the own state have one tensor more, `[s]`. A server takes the mean of what came, weighted as
the algorithm weighs the uploads; peers mix theirs as they mix their models.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from torch import Tensor

from archipel.core import Blueprint, Party, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import broadcast, first_states, has_personal, is_peer, pair, title
from archipel.models.model import Model
from archipel.tree import first

OWN_STATISTICS = (
    "every party keeps its own statistics of BatchNorm: a score is of the model as each party has "
    "it, and the shared model that is handed over has their mean, which nobody scored."
)


class Joined(NamedTuple):
    """A state or an upload of the algorithm's, and the statistics that go with it."""

    inner: Any
    statistics: Tensor | None  # [..., s]; None in all but a round's last upload


def averages(algorithm: object, model: Model) -> bool:
    """Whether parties share statistics as they share the model; else each keeps its own."""
    keeps = getattr(getattr(algorithm, "inner", algorithm), "keeps_statistics", False)
    return model.statistics == "averaged" and not keeps


def keep_own(algorithm: object, model: Model, mixes: bool = True) -> bool:
    """Whether every party has statistics of its own, so that a shared model differs by party."""
    alone = is_peer(algorithm) and not mixes
    return bool(model.buffer_spec.size) and (alone or not averages(algorithm, model))


def handed_over(shared: Any) -> Any:
    """The shared model as those get it who use it: with its statistics, where they are averaged."""
    w = first(shared)
    return Joined(w, shared.statistics) if isinstance(shared, Joined) else w


def notes_of(algorithm: object, model: Model, own: bool) -> list[str]:
    """What a run says of statistics that parties keep: `own` is whether they do."""
    if own:
        return [OWN_STATISTICS]
    if getattr(algorithm, "keeps_statistics", False):
        name = title(algorithm)
        return [f"the model has no BatchNorm, so nothing of it is a party's own in {name}."]
    return []


def joined(algorithm: Any, model: Model, mixes: bool = True) -> Any:
    """The algorithm with statistics in its messages, where they are averaged.

    Peers that do not mix keep theirs, as they keep their models.
    """
    if isinstance(algorithm, _Server | _Peers) or not averages(algorithm, model):
        return algorithm
    if not len(model.running) or (is_peer(algorithm) and not mixes):
        return algorithm
    return (_Peers if is_peer(algorithm) else _Server)(algorithm, model)


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

    def mean(self, by_examples: bool = False) -> Any:
        self.by_examples |= by_examples
        return self.uploads.mean(by_examples=by_examples).inner

    def stack(self) -> Any:
        return self.uploads.stack().inner


class _Server:
    """An algorithm with a server, whose parties send their statistics with their last upload."""

    def __init__(self, algorithm: Any, model: Model) -> None:
        self.inner = algorithm
        self._first = model.buffers[model.running]
        self._least = model.least.to(model.dtype)
        if has_personal(algorithm):
            self.personal = self._personal
        if hasattr(algorithm, "advise"):
            self.advise = self._advise
        if hasattr(algorithm, "predict"):
            self.predict = algorithm.predict

    def init(self, w: Vector, blueprint: Blueprint) -> tuple[Joined, Any]:
        states = first_states(self.inner, w, blueprint)
        shared, own = pair(f"{title(self)}.init", "shared, own", states)
        return Joined(shared, self._first.clone()), own

    def broadcast(self, shared: Joined) -> Joined:
        return Joined(broadcast(self.inner, shared.inner), shared.statistics)

    def party(self, me: Any, shared: Joined, own: Any) -> Any:
        me.begin(shared.statistics)
        started = self.inner.party(me, shared.inner, own)
        if isinstance(started, Generator):
            return self._talk(me, started)
        return self._last(me, started)

    def _talk(self, me: Any, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        reply = None
        while True:
            try:
                upload = steps.send(reply)
            except StopIteration as end:
                return self._last(me, end.value)
            reply = yield Joined(upload, None)

    def _last(self, me: Any, ended: Any) -> tuple[Joined, Any]:
        upload, own = pair(f"{title(self)}.party", "upload, own", ended)
        return Joined(upload, me.statistics), own

    def server(self, shared: Joined, uploads: Uploads) -> Any:
        seen = _Inner(uploads)
        started = self.inner.server(shared.inner, seen)
        if isinstance(started, Generator):
            return self._listen(started)
        return self._averaged(started, seen)

    def _listen(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        reply = next(steps)
        while True:
            seen = _Inner((yield reply))
            try:
                reply = steps.send(seen)
            except StopIteration as end:
                return self._averaged(end.value, seen)

    def _averaged(self, shared: Any, seen: _Inner) -> Joined:
        mean = seen.uploads.mean(by_examples=seen.by_examples).statistics
        return Joined(shared, mean.maximum(self._least))  # whatever came: no negative variance

    def _personal(self, me: Any, shared: Joined, own: Any) -> Any:
        me.begin(shared.statistics, first(shared.inner))
        return self.inner.personal(me, shared.inner, own)

    def _advise(self, shared: Joined, uploads: Uploads) -> Any:
        return self.inner.advise(shared.inner, uploads)


class _Peers:
    """Peers that mix their statistics, after the algorithm's own messages of a round."""

    def __init__(self, algorithm: Any, model: Model) -> None:
        self.inner = algorithm
        self._first = model.buffers[model.running]
        self._least = model.least.to(model.dtype)

    def init(self, w: Vector, blueprint: Blueprint) -> Joined:
        return Joined(first_states(self.inner, w, blueprint), self._first.clone())

    def party(self, me: Party, own: Joined) -> Joined:
        me.begin(own.statistics)  # type: ignore[attr-defined]
        state = self.inner.party(me, own.inner)
        mixed = me.mix(me.statistics)  # type: ignore[attr-defined]
        return Joined(state, mixed.maximum(self._least))  # late changes may pass below zero
