# SPDX-License-Identifier: Apache-2.0
"""A sum of reports of which nobody knows whose is which.

Girgis, Data, Diggavi, Kairouz, Suresh, AISTATS 2021, https://arxiv.org/abs/2008.07180, Algorithm 1
(clipped, quantised, randomised and shuffled updates); Bittau et al., Prochlo, SOSP 2017,
https://arxiv.org/abs/1710.00901 (who shuffles). Each party tells a few coordinates of its upload,
by one bit each, so that the report is ε0-private by itself (`privacy/randomisers.py`); seals it for
the shuffler around a layer for the server (`onion.py`); and signs it. The server hands all of them
to the shuffler (`shuffler.py`), which returns them in no order. From bits of coordinates the server
estimates the sum; it is right on average, and its error falls with the number of parties.

1. A party says that it is there, and is told the server's public key for this round: where enough
   are there and the shuffler answers, so that no report is made in vain.
2. It sends its sealed report.

In a simulation reports are not sealed, and drawn from the seed: shuffling changes no sum.

Departures: coordinates are sampled and no mini-batch is; uploads are clipped coordinate by
coordinate (`bound`), which a rotation before it (wire.up = ["rotate"]) has do the least harm; a
report is sealed twice in place of a trusted machine.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor, uint8

from archipel.aggregation import onion
from archipel.aggregation.coding import Terms, Vectors
from archipel.aggregation.keys import KEY, Session
from archipel.aggregation.others import Between
from archipel.aggregation.shuffler import Batch, Place, statement
from archipel.aggregation.summation import Total
from archipel.core import Party
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.anatomy import Probe
from archipel.privacy.randomisers import Coordinates
from archipel.privacy.shuffling import honest
from archipel.signing import SIGNATURE

_SHOWN = KEY + SIGNATURE  # bytes before a sealed report


@dataclass(frozen=True)
class ShuffledSum:
    """A sum of randomised reports of which nobody knows whose is which, for thousands of parties.

    `[wire] sum = "shuffled"`: reports of `least` parties or more, or no sum.
    """

    least: int = 100  # reports that hide each other
    shuffler: str = ""  # HOST/PORT/CERTIFICATE/KEY; a simulation needs none
    honest: float = 1.0  # share of the parties that do not work with the server
    bound: float | None = None  # of each coordinate; three times the mean one of norm `clip`
    clip: float = 1.0  # norm of an upload, about; privacy.clip where that is promised
    epsilon0: float | None = None  # of each report by itself; found for [privacy], or 1

    def __post_init__(self) -> None:
        if self.least < 2:
            raise ArchipelError(f"least = {self.least}: one report hides nothing; give 2 or more.")
        honest(self.least, self.honest)
        for field in ("bound", "clip", "epsilon0"):
            value = getattr(self, field)
            if value is not None and not 0 < value < inf:
                raise ArchipelError(f"{field} = {value}: give a finite number above 0.")
        if self.shuffler:
            Place.read(self.shuffler)

    @property
    def reports(self) -> int:
        """Reports that are counted on to hide each other."""
        return honest(self.least, self.honest)

    def randomiser(self, size: int) -> Coordinates:
        """What tells a vector of so many coordinates."""
        if size >= 1 << 31:
            raise ArchipelError(f"wire.sum: an upload of {size} numbers is too long for reports.")
        bound = self.bound or self.clip * min(1.0, 3 / sqrt(size))
        return Coordinates(self.epsilon0 or 1.0, size, bound)

    def check_shuffler(self) -> None:
        """Refuse reports that nobody shuffles."""
        if not self.shuffler:
            raise ArchipelError(
                'wire.sum = "shuffled": between institutions reports need a shuffler; say '
                "shuffled:shuffler=..., with what 'archipel shuffler init' printed."
            )

    # -- a party -----------------------------------------------------------------------------------

    def party(self, me: Party, x: Terms, number: int) -> Generator[Any, Any, Any]:
        if x.n:
            raise ArchipelError(
                "wire.sum: ShuffledSum counts every party once, and the algorithm asks for a mean "
                'weighted by examples; promise [privacy] unit = "party", trust = "shuffler", with '
                "which it does, or take another sum."
            )
        others: Any = me.others
        if isinstance(others, Between):
            self.check_shuffler()
        about = Session(others.session, me.round, number).named("report")
        key = yield torch.zeros(1, dtype=uint8)
        flat = torch.cat([v.detach().flatten() for v in x.uploads]).double().numpy()
        source: Any = me
        told = self.randomiser(len(flat)).report(flat[None], source.source(f"report {number}"))
        content = told.astype("<u4").tobytes()
        if not self.shuffler:
            return _tensor(content)
        inner, outer, mark = (
            bytes(me.secret(f"{what} {number}").tolist()) for what in ("inner", "outer", "mark")
        )
        own = onion.Secrets(inner, outer, mark[: onion.MARK])
        server = bytes(key.tolist())
        sealed = onion.sealed(content, server, Place.read(self.shuffler).key, about, own)
        signature = others.sign(statement(about, self.least, server, sealed))
        return _tensor(others.public + signature + sealed)

    # -- the server --------------------------------------------------------------------------------

    def server(self, uploads: Any, form: Terms, number: int) -> Generator[Any, Any, Total]:
        trial, private = isinstance(uploads, Probe), X25519PrivateKey.generate()
        if not trial:  # before anybody makes a report, which costs of its privacy
            self._enough(uploads.present, "are there")
            self._reach()
        uploads = yield _tensor(private.public_key().public_bytes_raw())
        rows, present = uploads.stack().numpy(), uploads.present
        if not trial:
            self._enough(present, "sent a report")
        contents = [row.tobytes() for row in rows]
        if self.shuffler and not trial:
            about = Session(uploads.session, uploads.round, number).named("report")
            contents = self._shuffled(contents, about, private)
        way = self.randomiser(sum(v.numel() for v in form.uploads))
        wide = 4 * way.told
        told = [np.frombuffer(each[:wide], "<u4") for each in contents if len(each) >= wide]
        right = [each for each in told if (each < 2 * way.size).all()]
        if not right:
            raise BelowQuorum("wire.sum: no report could be read.")
        total = way.estimate(np.stack(right)) * (len(present) / len(right))
        return Total(_split(total, form.uploads), present)

    def _enough(self, present: Tensor, what: str) -> None:
        if (there := len(present)) < self.least:
            raise BelowQuorum(
                f"wire.sum: {there} parties {what}, and {self.least} is the fewest that hide each "
                "other."
            )

    def _reach(self) -> None:
        """Give the round up where nobody would shuffle it."""
        if self.shuffler:
            try:
                Place.read(self.shuffler).reach()
            except ArchipelError as error:
                raise BelowQuorum(f"wire.sum: {error}") from None

    def _shuffled(self, rows: list[bytes], about: bytes, private: X25519PrivateKey) -> list[bytes]:
        """What was in the reports, in an order that the shuffler alone drew."""
        shown = private.public_key().public_bytes_raw()
        batch = Batch(
            about, self.least, shown, [row[:KEY] for row in rows],
            [row[KEY:_SHOWN] for row in rows], [row[_SHOWN:] for row in rows],
        )  # fmt: skip
        try:
            inner = Place.read(self.shuffler).ask(batch)
        except ArchipelError as error:  # the round changes nothing, whoever is to blame
            raise BelowQuorum(f"wire.sum: {error}") from None
        return onion.opened(inner, private.private_bytes_raw(), about)


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=uint8)


def _split(total: Any, form: Vectors) -> Vectors:
    parts = torch.from_numpy(total).split([v.numel() for v in form])
    return tuple(part.view(v.shape).to(v.dtype) for part, v in zip(parts, form, strict=True))
