# SPDX-License-Identifier: Apache-2.0
"""Who could attack a study, and what each sees of it: under its wire, its sums and its noise."""

from __future__ import annotations

from typing import Literal, NamedTuple

from archipel.attacks.case import Has
from archipel.exchange.anatomy import Anatomy
from archipel.privacy.promise import Privacy

Who = Literal["server", "sums", "malicious_server", "peer", "group", "public", "malicious_party"]
TITLES: dict[Who, str] = {
    "server": "An honest but curious server",
    "sums": "A server that sees sums only",
    "malicious_server": "A malicious server",
    "peer": "Another party",
    "group": "A colluding group",
    "public": "The public, with the final model",
    "malicious_party": "A malicious party",
}


class Adversary(NamedTuple):
    """Somebody who wants to know."""

    who: Who
    sees: str
    has: frozenset[Has]
    bounded: bool  # whether what the study promises holds against it
    there: bool = True

    @property
    def title(self) -> str:
        return TITLES[self.who]


def adversaries(anatomy: Anatomy, peer: bool, promise: Privacy | None) -> list[Adversary]:
    """Everybody, with what each sees of a study whose rounds have this anatomy."""
    found = _among_peers(promise) if peer else _with_server(anatomy, promise)
    return [each._replace(has=each.has | {"final"}) if each.there else each for each in found]


def _among_peers(promise: Privacy | None) -> list[Adversary]:
    kept = promise is not None
    none = "There is no server."
    vectors = "The vectors that its neighbours send it, round by round"
    return [
        Adversary("server", none, frozenset(), kept, there=False),
        Adversary("sums", none, frozenset(), kept, there=False),
        Adversary("malicious_server", none, frozenset(), kept, there=False),
        Adversary("peer", f"{vectors}.", frozenset({"single"}), kept),
        Adversary(
            "group", "The vectors that any of them is sent by its neighbours, round by round.",
            frozenset({"single"}), kept,
        ),
        Adversary("public", "The mean of the peers' models, at the end.", frozenset(), kept),
        Adversary(
            "malicious_party", f"{vectors}; it may send them any vector in turn.",
            frozenset({"single"}), kept,
        ),
    ]  # fmt: skip


def _with_server(anatomy: Anatomy, promise: Privacy | None) -> list[Adversary]:
    trust = None if promise is None or promise.unit == "record" else promise.trust
    kept, summed = promise is not None, anatomy.summed
    each = "Every party's upload of every round by itself, as it arrives, and the model it sends"
    sums = "The sum of a round's uploads and how many there are, and the model it sends"
    models: frozenset[Has] = frozenset({"models"})
    mean: frozenset[Has] = frozenset({"models", "mean"})
    single: frozenset[Has] = frozenset({"models", "mean", "single"})
    noise = " Noise is in all of it." if kept and trust in (None, "nobody") else ""
    if summed:
        by = anatomy.wire.sum.partition("(")[0]
        curious = Adversary(
            "server", f"{sums}: {by} shows it no upload by itself.{noise}", mean,
            kept and trust != "server",
        )  # fmt: skip
    else:
        late = " Noise is added after it has seen them." if trust == "server" else noise
        curious = Adversary("server", f"{each}.{late}", single, kept and trust != "server")
    if not anatomy.sums_only:
        only = Adversary(
            "sums", "Its code asks to see every upload, so no server of this study sees sums only.",
            frozenset(), kept, there=False,
        )  # fmt: skip
    else:
        added = " Noise is in them." if trust == "server" else noise
        only = Adversary(
            "sums", f"What its code asks for, and nothing beside it: means over a round.{added}",
            mean, kept,
        )  # fmt: skip
    group_words, group_has, group_kept = _group(summed, trust, kept)
    told = "The model of every round, and what it sent itself"
    return [
        curious,
        only,
        Adversary(
            "malicious_server", f"{curious.sees} It may send any model it likes instead.",
            curious.has | {"sends"}, kept and trust in (None, "nobody"),
        ),
        Adversary("peer", f"{told}.{noise}", models, kept),
        Adversary("group", group_words, group_has, group_kept),
        Adversary("public", "The model at the end.", frozenset(), kept),
        Adversary(
            "malicious_party", f"{told}, which may be anything.{noise}", models | {"acts"}, kept,
        ),
    ]  # fmt: skip


def _group(summed: bool, trust: str | None, kept: bool) -> tuple[str, frozenset[Has], bool]:
    mean: frozenset[Has] = frozenset({"models", "mean"})
    single: frozenset[Has] = frozenset({"models", "mean", "single"})
    if trust == "server":
        said = (
            "All parties but one, without the server, which this study trusts: the model of every "
            "round, and all uploads but one. What they take off leaves one upload with the noise."
        )
        return said, mean, True
    if not summed:
        said = "The server and all parties but one: what the server sees by itself is as much."
        return said, single, kept
    if trust is not None:
        said = (
            "The server and all parties but one. They take their uploads and their noise off the "
            "sum; what is left has one party's noise alone, and the promise is not made against so "
            "many. Attacks are given the sum."
        )
        return said, mean, False
    said = (
        "The server and all parties but one: they take their own uploads off the sum, and what is "
        "left is the upload of the one. No sum hides a party from all others."
    )
    return said, single, kept
