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

**Adaptive clip** (`clip = "adaptive"`). With its upload a party says whether it was no longer than
C: b_k in {0, 1}. The clip follows the share that shall be, gamma, of a noisy count:

    C <- C exp(-eta_C (b - gamma)),  b = (sum_k b_k + N(0, sigma_b^2)) / m

Where a party is replaced, the sum of uploads moves by 2 C and the count by 1, so with noise
z_u C in the one and sigma_b in the other, all that a round shows is at distance
((2 / z_u)^2 + (1 / sigma_b)^2)^1/2 = 2 (z_u^-2 + (2 sigma_b)^-2)^1/2. That is 2 / z, as with noise
z and a clip that is given, for z_u = (z^-2 - (2 sigma_b)^-2)^-1/2. The clip of a round follows from
what was shown before. sigma_b is m / 20, or z where that is more: z_u is then 1.16 z at most.

Andrew, Thakkar, McMahan, Ramaswamy, NeurIPS 2021, https://arxiv.org/abs/1905.03871, Algorithm 1.
Departures: neighbours replace a party, as everywhere here, so bits need not be centred at 1/2; the
paper's sigma_b is m / 20 whatever z is, and its z <= 2 sigma_b is then the user's to see to.

**Correlated noise** (`correlated`). The noise of a round's sum is x_t + z_t of
`privacy.correlated`, x_t being the sum over z C. Its state is in the shared state, which a server
keeps and never sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archipel.core import Blueprint, Uploads, Vector
from archipel.errors import ArchipelError
from archipel.exchange.anatomy import Message, pair
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.talk import Talk
from archipel.privacy.correlated import Participation, State, Strategy
from archipel.privacy.promise import Kept, Privacy, Use, correlation
from archipel.privacy.release import FixedSize
from archipel.tree import Tree, fill, leaves

Noise = Callable[[Tensor, str, int], Tensor]  # values + N(0, I), for a purpose in a round
_CLIPS = 1e-6, 1e6  # of the start, between which a clip that adapts stays


def planned(
    promise: Privacy,
    messages: int,
    ids: list[int],
    cohort: int,
    rounds: int,
    most: int,
    separation: int = 1,
) -> Kept:
    """What a promise by party needs, in a study of so many rounds.

    A party is in `most` at most, and in one of `separation` rounds that follow each other.
    """
    among = len(ids)
    if promise.trust == "nobody":
        uses = (Use(None, 1, messages),)
        return Kept.planned(promise, "replace", dict.fromkeys(ids, uses), most)
    if promise.correlated is not None:
        who = Participation(rounds, separation, most)
        uses = (Use(None, 1, messages, correlation(promise.correlated, who)),)
    else:
        uses = (Use(None if cohort >= among else FixedSize(cohort, among), 1, messages),)
    return Kept.planned(promise, "replace", dict.fromkeys(ids, uses), rounds, always=True)


def check_messages(promise: Privacy, name: str, messages: int) -> None:
    """Refuse rounds of several messages where noise or clip follows from round to round."""
    field = "clip" if promise.adaptive else "correlated" if promise.correlated else None
    if field is not None and promise.unit == "party" and messages > 1:
        raise ArchipelError(
            f'privacy.{field} = "{getattr(promise, field)}": {name} sends {messages} messages in a '
            f"round, and it is one; take another algorithm, or another {field}."
        )


def in_reports(promise: Privacy, reports: int, messages: int, ids: list[int], most: int) -> Kept:
    """The same where each message is a report that so many of them hide; noise is 1 / ε0."""
    uses = (Use(None, 1, messages, reports=reports),)
    return Kept.planned(promise, "replace", dict.fromkeys(ids, uses), most)


def bounded(boxes: Boxes, kept: Kept) -> Boxes:
    """The algorithm whose uploads are clipped; with noise, where nobody is trusted."""
    if boxes.peer:
        raise ArchipelError(
            f'privacy.unit = "party": {boxes.name} has no server, and what peers mix is not '
            'clipped yet; take privacy.unit = "record", or an algorithm with a server.'
        )
    return _Bounded(boxes, kept)


def summed(
    boxes: Boxes, messages: tuple[Message, ...], kept: Kept, noise: Noise, cohort: int
) -> Boxes:
    """The algorithm on its wire, whose server is given noisy means alone, where it is trusted.

    `messages` are those of its round, and `cohort` the parties of one.
    """
    if kept.promise.trust != "server":
        return boxes
    numbers = sum(leaf.numel() for leaf in leaves(messages[0].upload))
    return _Summed(boxes, kept, noise, cohort, numbers)


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
        if not leaves(upload):
            return upload
        lead = me.lead
        wide = [leaf.detach().expand(*lead, *leaf.shape[len(lead) :]) for leaf in leaves(upload)]
        if promise.trust == "server":
            clip = promise.first_clip if me.bound is None else me.bound
            me.fits = (norm_of(wide, len(lead)) <= at(clip))[..., None].to(wide[0].dtype)
            return fill(upload, clipped(wide, len(lead), clip))
        cut = clipped(wide, len(lead), promise.first_clip)
        if promise.trust == "sum":
            return fill(upload, cut)
        deviation = next(iter(self._kept.noise.values())) * promise.first_clip  # the same for all
        flat = torch.cat([x.flatten(len(lead)) for x in cut], -1)
        noisy = me.noised(flat / deviation, f"message {number}") * deviation
        sizes = [x.flatten(len(lead)).shape[-1] for x in wide]
        parts = zip(noisy.split(sizes, dim=-1), wide, strict=True)
        return fill(upload, [part.view(x.shape).to(x.dtype) for part, x in parts])


class Guarded(NamedTuple):
    """What a server keeps: the algorithm's shared state, its clip and the state of its noise."""

    inner: Tree
    clip: Tensor | None  # [1] where it adapts
    noise: State | None  # where it is correlated


class Told(NamedTuple):
    """What parties get where the clip adapts."""

    inner: Tree
    clip: Tensor  # [1]


class Counted(NamedTuple):
    """An upload, and whether it was no longer than the clip: 1, or 0."""

    inner: Tree
    fits: Tensor  # [..., 1]


class _Summed(Around):
    """Clips what arrives, and shows the server noisy means."""

    def __init__(self, inner: Boxes, kept: Kept, noise: Noise, cohort: int, numbers: int) -> None:
        super().__init__(inner)
        self._promise, self._noise, self._round = kept.promise, noise, 0
        (use,) = next(iter(kept.uses.values()))
        self._strategy = None if use.correlation is None else use.correlation.strategy
        self._numbers = numbers  # of an upload
        z = next(iter(kept.noise.values()))
        self._of_count = max(cohort / 20, z)  # sigma_b
        self._of_sum = z  # z_u
        if self._promise.adaptive:
            self._of_sum = (z**-2 - (2 * self._of_count) ** -2) ** -0.5
        self._clip: float | Tensor = self._promise.first_clip  # of this round

    @property
    def _guards(self) -> bool:
        return self._promise.adaptive or self._strategy is not None

    def init(self, w: Vector, blueprint: Blueprint) -> Tree:
        states = self.inner.init(w, blueprint)
        if not self._guards:
            return states
        shared, own = pair(f"{self.name}.init", "shared, own", states)
        clip = w.new_full((1,), self._promise.clip_start) if self._promise.adaptive else None
        start = None if self._strategy is None else self._strategy.start(w.new_zeros(self._numbers))
        return Guarded(shared, clip, start), own

    def broadcast(self, shared: Tree, t: int) -> Tree:
        self._round = t
        if not self._guards:
            return self.inner.broadcast(shared, t)
        sent = self.inner.broadcast(shared.inner, t)
        if shared.clip is None:
            return sent
        self._clip = shared.clip
        return Told(sent, shared.clip)

    def party(self, me: Any, *states: Tree) -> Any:
        if not self._promise.adaptive:
            return self.inner.party(me, *states)
        told, own = states
        self._clip = me.bound = told.clip  # workers have no other way to know it
        upload, own = pair(
            f"{self.name}.party", "upload, own", Talk(self.inner.party(me, told.inner, own)).said
        )
        return Counted(upload, me.fits), own

    def personal(self, me: Any, shared: Tree, own: Tree) -> Any:
        return self.inner.personal(me, shared.inner if self._promise.adaptive else shared, own)

    def advise(self, shared: Tree, uploads: Uploads) -> Tree:
        return self.inner.advise(shared.inner if self._guards else shared, uploads)

    def receive(self, number: int, them: Sender, payload: Tree) -> Tree:
        said = payload.inner if self._promise.adaptive else payload
        upload = self.inner.receive(number, them, said)
        cut = fill(upload, clipped(leaves(upload), len(them.lead), self._clip))
        if not self._promise.adaptive:
            return cut
        return Counted(cut, payload.fits.nan_to_num(0.0).clamp(0.0, 1.0))

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        inner, noise = (shared.inner, shared.noise) if self._guards else (shared, None)
        seen = self._seen(shared, uploads, 0)
        talk, number = Talk(self.inner.server(inner, seen)), 0
        while not talk.ended:
            number += 1
            seen = self._seen(shared, (yield talk.said), number)
            talk.send(seen)
        if not self._guards:
            return talk.said
        return Guarded(talk.said, self._adapted(shared.clip, seen.share), seen.after or noise)

    def _adapted(self, clip: Tensor | None, share: float | None) -> Tensor | None:
        """C exp(-eta_C (b - gamma)); as it was where the server asked for nothing."""
        if clip is None or share is None:
            return clip
        promise = self._promise
        low, high = (promise.clip_start * limit for limit in _CLIPS)
        factor = exp(min(1.0, max(-1.0, -promise.clip_rate * (share - promise.clip_quantile))))
        return (clip * factor).clamp(low, high)

    def _seen(self, shared: Tree, uploads: Uploads, number: int) -> NoisyMeans:
        clip = self._promise.first_clip if not self._promise.adaptive else float(shared.clip)

        def noise(values: Tensor, again: int = 0) -> Tensor:
            return self._noise(values, f"sum {number}" + f" {again}" * (again > 0), self._round)

        return NoisyMeans(
            uploads, self._of_sum * clip, noise, self.name,
            self._of_count if self._promise.adaptive else None,
            self._strategy, shared.noise if self._guards else None,
        )  # fmt: skip


@dataclass
class NoisyMeans:
    """Uploads of which a server is shown one noisy mean of each message."""

    uploads: Uploads
    deviation: float  # of the noise in a sum: z C
    noise: Callable[[Tensor, int], Tensor]
    name: str
    of_count: float | None = None  # deviation of the noise in how many fit; None: nobody says
    strategy: Strategy | None = None
    before: State | None = None  # of its noise
    after: State | None = None
    share: float | None = None  # of the uploads that fit, once a mean was asked for
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
            over = self.deviation / self.sampled
            said = mean if self.of_count is None else mean.inner
            flat = torch.cat([leaf.reshape(-1) for leaf in leaves(said)]) / over
            if self.of_count is not None:
                fits = mean.fits.reshape(1).to(flat) * (self.sampled / self.of_count)
                *_, count = together = self._noisy(torch.cat([flat, fits]))
                flat, self.share = together[:-1], float(count) * self.of_count / self.sampled
            else:
                flat = self._noisy(flat)
            parts = (flat * over).split([leaf.numel() for leaf in leaves(said)])
            like = zip(parts, leaves(said), strict=True)
            self._mean = fill(said, [part.view(leaf.shape).to(leaf.dtype) for part, leaf in like])
        return self._mean

    def _noisy(self, sums: Tensor) -> Tensor:
        """With noise of deviation 1, independent or correlated over rounds."""
        if self.strategy is None:
            return self.noise(sums, 0)
        assert self.before is not None
        self.after, found = self.strategy.add(self.before, sums.double(), self.noise)
        return found.to(sums.dtype)

    def _refused(self, call: str, what: str) -> ArchipelError:
        return ArchipelError(
            f'privacy.unit = "party": {self.name} asks for {call}, {what}, which noise in a sum '
            'does not protect; take an algorithm that needs means alone, or trust = "nobody".'
        )


def clipped(vectors: list[Tensor], lead: int, clip: float | Tensor) -> list[Tensor]:
    """Vectors `[..., *shape]`, scaled down where they are longer than `clip`, all together.

    What is not finite becomes 0: it would move a sum without bound. A clip may be one for each
    setting of a sweep, `[..., 1]`.
    """
    norm = norm_of(vectors, lead)
    factor = (at(clip) * (1 - 1e-6) / norm.clamp_min(1e-300)).clamp_max(1.0)
    factor = torch.where(norm.isfinite(), factor, 0.0)
    return [
        (x.nan_to_num(0.0, 0.0, 0.0) * factor.view(*factor.shape, *[1] * (x.dim() - lead))).to(
            x.dtype
        )
        for x in vectors
    ]


def norm_of(vectors: list[Tensor], lead: int) -> Tensor:
    """Of all vectors `[..., *shape]` together, `[...]`."""
    squares = [x.double().flatten(lead).square().sum(dim=-1) for x in vectors]
    return torch.stack(squares).sum(dim=0).sqrt()


def at(clip: float | Tensor) -> float | Tensor:
    """A clip beside norms `[...]`."""
    return clip[..., 0].double() if isinstance(clip, Tensor) else clip
