# SPDX-License-Identifier: Apache-2.0
"""Privacy by party under a sum that nobody looks into: every party adds a share of the noise.

An upload, all vectors of a message together, is clipped to norm C, becomes integers, and gets a
share of integer noise where it leaves (`encoding.py`). Their sum modulo 2^b is made by a protocol
that shows nobody a single upload. There is as much noise in it as a trusted server would have
added, where parties that trust nobody would each add all of that.

Shares are planned for the fewest parties that a sum is told of, and for the honest among them. The
server knows who is in a round, so a sample hides nobody, and a party pays for the rounds that it
took part in. Neighbours are two federations in which one party is replaced: its integers move by
2 R, R the bound of the encoding.

Kairouz, Liu, Steinke, ICML 2021, https://arxiv.org/abs/2102.06387 (discrete Gaussian shares).
Agarwal, Kairouz, Liu, NeurIPS 2021, https://arxiv.org/abs/2110.04995 (Skellam shares).
Departures: those of `encoding.py`; discrete Gaussian noise is accounted as what it is made of
(`shares.py`), Skellam noise by its Rényi divergence as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from archipel.core import Uploads
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.anatomy import Probe
from archipel.exchange.boxes import Around, Boxes
from archipel.exchange.sender import Sender
from archipel.exchange.talk import Talk
from archipel.privacy.encoding import Share
from archipel.privacy.noise import discrete_gaussian, skellam
from archipel.privacy.promise import Kept, Privacy, Use
from archipel.privacy.sources import Source
from archipel.rng import Ints
from archipel.tree import Tree, fill, leaves
from archipel.wire.integers import decode, encode, wrapped


def in_shares(promise: Privacy, shares: Sequence[Share], ids: list[int], most: int) -> Kept:
    """What a promise needs where each party adds a share of the noise to each message.

    A party is in `most` rounds at most, and pays for its own.
    """
    uses = tuple(Use(None, 1, share=share) for share in shares)
    return Kept.planned(promise, "replace", dict.fromkeys(ids, uses), most)


class SharedNoise(Around):
    """Uploads as integers with a share of noise, and what a sum of them stands for.

    It stands around the clip; `forms` are the messages of one party, `shares` their noise.
    """

    def __init__(
        self,
        inner: Boxes,
        forms: Sequence[Tree],
        shares: Sequence[Share],
        noise: float,
        least: int,
    ) -> None:
        super().__init__(inner)
        self._forms, self._shares, self._noise, self._least = forms, shares, noise, least

    def party(self, me: Any, *states: Tree) -> Any:
        talk, number = Talk(self.inner.party(me, *states)), 0
        while not talk.ended:
            talk.send((yield self._sent(me, number, talk.said)))
            number += 1
        upload, own = talk.said  # as the clip returns it
        return self._sent(me, number, upload), own

    def _sent(self, me: Any, number: int, upload: Tree) -> Tensor:
        """All vectors of a message as integers with noise, `[..., d]` modulo 2^b."""
        share, lead = self._shares[number], len(me.lead)
        flat = torch.cat([x.flatten(lead) for x in leaves(upload)], dim=-1)
        encoding = share.encoding(self._noise)
        coded = encode(encoding, me.sender(number), flat)
        noise = drawn(share, self._noise, me.source(f"share {number}"))
        coded += torch.from_numpy(noise).view(*me.lead[-1:], share.size)
        return wrapped(encoding, coded).to(torch.int32)

    def receive(self, number: int, them: Sender, payload: Tree) -> Tree:
        """Vectors of a sum of integers, or of those of one party with all its noise."""
        share, form = self._shares[number], self._forms[number]
        (total,) = leaves(payload)
        flat = decode(share.encoding(self._noise), them, total)
        parts = flat.split([max(1, x.numel()) for x in leaves(form)], dim=-1)
        vectors = [
            part.reshape(*total.shape[:-1], *x.shape).to(x.dtype)
            for part, x in zip(parts, leaves(form), strict=True)
        ]
        return self.inner.receive(number, them, fill(form, vectors))

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        talk = Talk(self.inner.server(shared, self._seen(uploads)))
        while not talk.ended:
            talk.send(self._seen((yield talk.said)))
        return talk.said

    def _seen(self, uploads: Uploads) -> _Means:
        """Fewer parties than noise was planned for are as none."""
        if uploads.sampled < self._least and not isinstance(uploads, Probe):
            raise BelowQuorum(
                f'privacy.trust = "sum": {uploads.sampled} parties are in the sum, and noise was '
                f"planned for {self._least} at least."
            )
        return _Means(uploads, self.name)


def drawn(share: Share, noise: float, source: Source) -> Ints:
    """A share of noise of each party, int64 `[m, d]`."""
    variance = share.variance(noise)
    if share.kind == "gaussian":
        return discrete_gaussian(source, sqrt(variance), share.size)
    return skellam(source, variance, share.size)


class Unweighted(Around):
    """An algorithm whose server is shown means in which every party counts once."""

    def server(self, shared: Tree, uploads: Uploads) -> Any:
        talk = Talk(self.inner.server(shared, _Means(uploads, self.name)))
        while not talk.ended:
            talk.send(_Means((yield talk.said), self.name))
        return talk.said


class _Means:
    """Uploads of which the noisy mean is known, every party counting once."""

    def __init__(self, uploads: Uploads, name: str) -> None:
        self._uploads, self._name = uploads, name

    @property
    def sampled(self) -> int:
        return self._uploads.sampled

    @property
    def parties(self) -> int:
        return self._uploads.parties

    @property
    def present(self) -> Tensor:
        return self._uploads.present

    @property
    def n(self) -> Tensor:
        raise self._refused("uploads.n")

    def mean(self, by_examples: bool = False) -> Tree:
        return self._uploads.mean()

    def stack(self) -> Tree:
        raise self._refused("uploads.stack()")

    def _refused(self, call: str) -> ArchipelError:
        return ArchipelError(
            f'privacy.unit = "party": {self._name} asks for {call}, and sums alone are seen; take '
            'an algorithm that needs means alone, or trust = "nobody".'
        )
