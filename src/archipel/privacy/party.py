# SPDX-License-Identifier: Apache-2.0
"""Privacy by party: uploads are clipped, and get noise where they leave or where they are added up.

A party's upload, all vectors of a message together, is clipped to norm C. Noise of deviation z C is
added by every party for itself (trust = "nobody"), or once to the sum (trust = "server"), or in
shares to a sum that nobody looks into (trust = "sum", `noisy_sum.py`):

    mean = (sum_k clip(x_k, C) + N(0, z^2 C^2 I)) / m

The clip stands between the algorithm and the wire, so that steps that change a norm come after it;
who trusts the server has it clip again what arrives of them. Means are over parties, each counting
once: a weight by records would tell how many a party has, and how much it may move the mean.

Neighbours are two federations that differ in all records of one party: it is replaced, and its
upload may move by 2 C. The m parties of a round are drawn without replacement where nobody but the
server knows who they are; every round then counts for everybody, and for those who trust nobody
only the rounds that they took part in do, as for those who trust a sum alone.

McMahan, Ramage, Talwar, Zhang, ICLR 2018, https://arxiv.org/abs/1710.06963, Algorithm 1.
Departures: a round has a fixed number of parties, in place of a Poisson sample; weights are 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.talk import Talk
from archipel.privacy.encoding import Share
from archipel.privacy.promise import Kept, Privacy, Use
from archipel.privacy.release import FixedSize
from archipel.tree import Tree, fill, leaves

Noise = Callable[[Tensor, str, int], Tensor]  # values + N(0, I), for a purpose in a round


def planned(
    promise: Privacy,
    messages: int,
    ids: list[int],
    cohort: int,
    rounds: int,
    most: int,
    shares: Sequence[Share] = (),
    reports: int | None = None,
) -> Kept:
    """What a promise by party needs, in a study of so many rounds; a party is in `most` at most.

    `shares` are those of the noise in each message, where parties add such; `reports` are those
    that hide each other, where they are shuffled.
    """
    among = len(ids)
    if shares:
        each = tuple(Use(None, 1, 1, share) for share in shares)
        return Kept.planned(promise, "replace", dict.fromkeys(ids, each), most)
    if promise.trust in ("nobody", "shuffler"):
        uses = (Use(None, 1, messages, reports=reports),)
        return Kept.planned(promise, "replace", dict.fromkeys(ids, uses), most)
    uses = (Use(None if cohort >= among else FixedSize(cohort, among), 1, messages),)
    return Kept.planned(promise, "replace", dict.fromkeys(ids, uses), rounds, always=True)


def bounded(boxes: Boxes, kept: Kept) -> Boxes:
    """The algorithm whose uploads are clipped; with noise, where nobody is trusted."""
    if boxes.peer:
        raise ArchipelError(
            f'privacy.unit = "party": {boxes.name} has no server, and what peers mix is not '
            'clipped yet; take privacy.unit = "record", or an algorithm with a server.'
        )
    return _Bounded(boxes, kept)


def summed(boxes: Boxes, kept: Kept, noise: Noise) -> Boxes:
    """The algorithm on its wire, whose server is given noisy means alone, where it is trusted."""
    return _Summed(boxes, kept, noise) if kept.promise.trust == "server" else boxes


class _Bounded(Around):
    """Clips each message where it leaves the algorithm."""

    def __init__(self, inner: Boxes, kept: Kept) -> None:
        super().__init__(inner)
        self._kept = kept

    def party(self, me: Any, *states: Tree) -> Any:
        talk, number = Talk(self.inner.party(me, *states)), 0
        while not talk.ended:
            talk.send((yield self._said(me, number, talk.said)))
            number += 1
        upload, own = pair(f"{self.name}.party", "upload, own", talk.said)
        return self._said(me, number, upload), own

    def personal(self, me: Any, shared: Tree, own: Tree) -> Any:
        """A model that a party makes for itself does not leave it; what it asks the server does."""
        talk = Talk(self.inner.personal(me, shared, own))
        if not talk.ended:
            raise ArchipelError(
                f'privacy.unit = "party": {self.name} asks the server for a model of a party\'s '
                "own with what is not clipped; take an algorithm that does not."
            )
        return talk.said

    def _said(self, me: Any, number: int, upload: Tree) -> Tree:
        promise = self._kept.promise
        whole = [leaf for leaf in leaves(upload) if not leaf.is_floating_point()]
        if whole:
            raise ArchipelError(
                f'privacy.unit = "party": {self.name} sends whole numbers ({whole[0].dtype}), '
                "which are not clipped; take an algorithm that sends vectors."
            )
        lead = me.lead
        wide = [leaf.detach().expand(*lead, *leaf.shape[len(lead) :]) for leaf in leaves(upload)]
        if promise.trust != "nobody":
            return fill(upload, clipped(wide, len(lead), promise.clip))
        flat = torch.cat([x.flatten(len(lead)) for x in clipped(wide, len(lead), promise.clip)], -1)
        z = next(iter(self._kept.noise.values()))  # the same at every party
        noisy = me.noised(flat / (z * promise.clip), f"message {number}") * (z * promise.clip)
        sizes = [x.flatten(len(lead)).shape[-1] for x in wide]
        parts = zip(noisy.split(sizes, dim=-1), wide, strict=True)
        return fill(upload, [part.view(x.shape).to(x.dtype) for part, x in parts])


class _Summed(Around):
    """Clips what arrives, and shows the server noisy means."""

    def __init__(self, inner: Boxes, kept: Kept, noise: Noise) -> None:
        super().__init__(inner)
        self._kept, self._noise, self._round = kept, noise, 0

    def broadcast(self, shared: Tree, t: int) -> Tree:
        self._round = t
        return self.inner.broadcast(shared, t)

    def receive(self, number: int, them: Sender, payload: Tree) -> Tree:
        upload = self.inner.receive(number, them, payload)
        return fill(upload, clipped(leaves(upload), len(them.lead), self._kept.promise.clip))

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        talk, number = Talk(self.inner.server(shared, self._seen(uploads, 0))), 0
        while not talk.ended:
            number += 1
            talk.send(self._seen((yield talk.said), number))
        return talk.said

    def _seen(self, uploads: Uploads, number: int) -> NoisyMeans:
        deviation = self._kept.promise.clip * next(iter(self._kept.noise.values()))
        purpose = f"sum {number}"
        return NoisyMeans(
            uploads, deviation, lambda x: self._noise(x, purpose, self._round), self.name
        )


@dataclass
class NoisyMeans:
    """Uploads of which a server is shown one noisy mean of each message."""

    uploads: Uploads
    deviation: float  # of the noise in a sum: z C
    noise: Callable[[Tensor], Tensor]
    name: str
    _mean: Tree = None

    @property
    def sampled(self) -> int:
        return self.uploads.sampled

    @property
    def parties(self) -> int:
        return self.uploads.parties

    @property
    def present(self) -> Tensor:
        return self.uploads.present

    @property
    def n(self) -> Tensor:
        raise self._refused("uploads.n", "how many records a party has")

    def stack(self) -> Tree:
        raise self._refused("uploads.stack()", "single uploads")

    def mean(self, by_examples: bool = False) -> Tree:
        """The same each time it is asked, and every party counts once."""
        if self._mean is None:
            mean = self.uploads.mean()
            flat = torch.cat([leaf.reshape(-1) for leaf in leaves(mean)])
            over = self.deviation / self.sampled
            noisy = self.noise(flat / over) * over
            parts = noisy.split([leaf.numel() for leaf in leaves(mean)])
            like = zip(parts, leaves(mean), strict=True)
            self._mean = fill(mean, [part.view(leaf.shape).to(leaf.dtype) for part, leaf in like])
        return self._mean

    def _refused(self, call: str, what: str) -> ArchipelError:
        return ArchipelError(
            f'privacy.unit = "party": {self.name} asks for {call}, {what}, which noise in a sum '
            'does not protect; take an algorithm that needs means alone, or trust = "nobody".'
        )


def clipped(vectors: list[Tensor], lead: int, clip: float) -> list[Tensor]:
    """Vectors `[..., *shape]`, scaled down where they are longer than `clip`, all together.

    What is not finite becomes 0: it would move a sum without bound.
    """
    squares = [x.double().flatten(lead).square().sum(dim=-1) for x in vectors]
    norm = torch.stack(squares).sum(dim=0).sqrt()
    factor = (clip * (1 - 1e-6) / norm.clamp_min(1e-300)).clamp_max(1.0)
    factor = torch.where(norm.isfinite(), factor, 0.0)
    return [
        (x.nan_to_num(0.0, 0.0, 0.0) * factor.view(*factor.shape, *[1] * (x.dim() - lead))).to(
            x.dtype
        )
        for x in vectors
    ]
