# SPDX-License-Identifier: Apache-2.0
"""What a party of a secure sum has and is told: its keys, who takes part, who shared, who stayed.

All that the server relays is checked here before a party goes on, and each refusal says why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from torch import Tensor

from archipel.aggregation import shamir
from archipel.aggregation.keys import KEY, KeyPair, Session, digest, hkdf
from archipel.aggregation.neighbours import Neighbours
from archipel.core import Others
from archipel.errors import ArchipelError
from archipel.signing import SIGNATURE

ADVERTISED = 3 * KEY  # bytes: the keys of shares and of masks, and what an own mask is held against
HELD = 1 + 2 * shamir.SHARE  # bytes that one party holds of another: two shares, and a mark


class Refusal(ArchipelError):
    """A party goes no further: what the server says could show more than a sum."""


class Signed(Refusal):
    """This party signed another sum of the round: nothing more comes of it without all of those."""


SIGNED = "refused (signed another sum of the round)"  # what a site says of it


def refuse(why: str) -> Refusal:
    return Refusal(f"wire.sum: {why}; this party takes no further part in this attempt.")


def check_agreed(found: Iterable[int], number: int, others: Others, all_stayed: bool) -> None:
    """Refuse another sum than the one that this party signed before, of the same uploads.

    Two sums of a round that differ in one party show what that party sent. So what was masked once
    is masked again only among parties with whom the same sum can come out.
    """
    before, now = others.agreed.get(number), {*found}
    if before is not None and not (before == now if all_stayed else before <= now):
        gone, more = len(before - now), len(now - before) if all_stayed else 0
        raise Signed(
            f"wire.sum: this party signed a sum of {len(before)} parties in this round before, and "
            f"the server asks for another one, without {gone} of them and with {more} more; the "
            "two could show what one party sent, so it waits for those or for the next round."
        )


@dataclass(frozen=True)
class OwnKeys:
    """A party's keys in one sum, made of secrets of the round."""

    channel_secret: bytes  # behind what is sealed for one party
    mask_secret: bytes  # behind masks of pairs; shared
    own_mask: bytes  # the key of the party's own mask; shared
    draws: bytes  # what shares and neighbours are drawn from

    @cached_property
    def channel(self) -> KeyPair:
        return KeyPair(self.channel_secret)

    @cached_property
    def masks(self) -> KeyPair:
        return KeyPair(self.mask_secret)

    @property
    def advertised(self) -> bytes:
        return self.channel.public + self.masks.public + committed(self.own_mask)

    def draw(self, ids: Sequence[int], mine: int, k: int, session: Session) -> list[int]:
        """k others, uniformly and without replacement: nobody but this party knows beforehand."""
        key = hkdf(self.draws, session.named("neighbours"), b"")
        others = [v for v in ids if v != mine]
        stream = Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(16 * len(others)))
        marks = [stream[at : at + 16] for at in range(0, len(stream), 16)]
        return [v for _, v in sorted(zip(marks, others, strict=True))][:k]

    def shared(self, near: Neighbours, session: Session) -> list[bytes]:
        """What each of those is told who hold shares: of the mask key, of the own mask.

        Before them is a byte, whether this party masks with it.
        """
        points, threshold = range(1, near.degree + 1), near.threshold
        of_key, of_mask = (
            shamir.shares(secret, threshold, points, hkdf(self.draws, session.named(what), b""))
            for what, secret in (("key", self.mask_secret), ("own mask", self.own_mask))
        )
        return [
            bytes([i < near.masked]) + one + other
            for i, (one, other) in enumerate(zip(of_key, of_mask, strict=True))
        ]


def committed(own_mask: bytes) -> bytes:
    """What is told of an own mask beforehand: enough to know it by, nothing to find it by."""
    return digest(b"archipel own mask", own_mask)


def said_of(session: Session, party: int, advertised: bytes) -> bytes:
    """What a party signs of its keys."""
    return session.named("advertise keys", b"%d" % party, advertised)


def survivors_of(session: Session, shared: Sequence[int], survivors: Sequence[int]) -> bytes:
    """What a party signs of who shared keys and who stayed."""
    return session.named("survivors", _listed(sorted(shared)), _listed(sorted(survivors)))


def _listed(ids: Iterable[int]) -> bytes:
    return " ".join(map(str, ids)).encode()


def read_ids(told: Tensor, what: str, among: Iterable[int] | None = None) -> list[int]:
    """Numbers of parties that the server tells, each once and known; below 0 are none."""
    found = [number for number in told.flatten().tolist() if number >= 0]
    if len(set(found)) < len(found):
        raise refuse(f"the server names a party twice among those who {what}")
    if among is not None and not set(found) <= {*among}:
        stranger = min(set(found) - {*among})
        raise refuse(
            f"the server has party {stranger} among those who {what}, and it was not one before"
        )
    return found


class Roster:
    """Who takes part: everybody's keys, signed by their owners."""

    def __init__(self, told: tuple[Tensor, Tensor], session: Session) -> None:
        self.ids = read_ids(told[0], "take part")
        rows = [row.numpy().tobytes() for row in told[1].reshape(-1, ADVERTISED + SIGNATURE)]
        if len(rows) != len(self.ids):
            raise refuse(f"the server has {len(rows)} keys of {len(self.ids)} parties")
        self._rows: dict[int, bytes] = dict(zip(self.ids, rows, strict=True))
        self._bare = session
        self.session = session._replace(
            among=session.named("roster", _listed(self.ids), b"".join(rows))
        )

    def check(self, mine: int, own: bytes, others: Others) -> None:
        """Refuse a roster of too few, without this party, or with other keys for it."""
        check_count(len(self.ids), others, "take part")
        if self._rows.get(mine) != own:
            raise refuse("the server has other keys for this party than its own")

    def check_signed(self, parties: Iterable[int], others: Others) -> None:
        """Refuse keys, of those whom this party shares or masks with, that are not their own."""
        for number in parties:
            row = self._rows[number]
            said = said_of(self._bare, number, row[:ADVERTISED])
            if not others.signed(number, row[ADVERTISED:], said):
                raise refuse(
                    f"the keys of party {number} are not signed, for this round, by the party "
                    "that is known here by this number"
                )

    def channel(self, party: int) -> bytes:
        return self._rows[party][:KEY]

    def masks(self, party: int) -> bytes:
        return self._rows[party][KEY : 2 * KEY]

    def commitment(self, party: int) -> bytes:
        return self._rows[party][2 * KEY : ADVERTISED]


def check_count(found: int, others: Others, what: str, least: int = 2) -> None:
    """Refuse a sum of too few: of one party it is that party's upload."""
    least = max(least, others.least)
    if found < least and not others.trial:
        raise refuse(f"{found} parties {what}, and this party wants at least {least} in a sum")


class Held:
    """What a party holds of another, as that one sealed it; nothing where it does not open."""

    def __init__(self, content: bytes | None) -> None:
        right = content is not None and len(content) == HELD
        self._content = content if right and content is not None else b""

    @property
    def masks(self) -> bool:
        """Whether the other masks with this party."""
        return self._content[:1] == b"\1"

    @property
    def of_key(self) -> bytes:
        """The share of its mask key, as it is told: after a byte that says that there is one."""
        return b"\1" + self._content[1 : 1 + shamir.SHARE] if self._content else b""

    @property
    def of_mask(self) -> bytes:
        """The share of its own mask, in the same way."""
        return b"\1" + self._content[1 + shamir.SHARE :] if self._content else b""


def check_sharing(
    shared: Sequence[int], senders: Sequence[int], held_by: Sequence[int], threshold: int,
    complete: bool, mine: int, others: Others,
) -> None:  # fmt: skip
    """Refuse a set of those who shared keys that leaves this party with too few neighbours."""
    check_count(len(shared), others, "shared their keys")
    if mine not in shared:
        raise refuse("the server leaves this party out of those who shared their keys")
    if complete and set(senders) != set(shared):
        missing = len(set(shared) - set(senders))
        raise refuse(f"the server withholds the shares of {missing} parties that shared theirs")
    left = len({*held_by} & {*shared})
    if left < threshold:
        raise refuse(
            f"{left} of the {len(held_by)} neighbours that this party has drawn are left, and "
            f"{threshold} are needed"
        )


def check_survivors(
    survivors: Sequence[int], held_by: Sequence[int], threshold: int, mine: int, others: Others,
    least: int = 2,
) -> None:  # fmt: skip
    """Refuse a sum of too few, without this party, or that too few of its neighbours are in."""
    check_count(len(survivors), others, "stayed", least)
    if mine not in survivors:
        raise refuse("the server says that this party did not stay, which answers it")
    left = len({*held_by} & {*survivors})
    if left < threshold:
        raise refuse(
            f"{left} of the {len(held_by)} neighbours that this party has drawn stayed, and "
            f"{threshold} are needed"
        )


def count_signed(
    told: tuple[Tensor, Tensor], what: str, statement: bytes, among: Collection[int], enough: int,
    others: Others,
) -> int:  # fmt: skip
    """How many of these parties signed a statement, each counted once; `enough` at the most."""
    signers, found = read_ids(told[0], what), 0
    for v, signature in zip(signers, told[1], strict=False):
        if found < enough and v in among:
            found += others.signed(v, signature.numpy().tobytes(), statement)
    return found


def rows_of(contents: Sequence[bytes], size: int) -> Tensor:
    """Bytes as rows `uint8 [count, size]`, filled up with zeros."""
    whole = b"".join(each.ljust(size, b"\0") for each in contents)
    return (
        torch.frombuffer(bytearray(whole), dtype=torch.uint8).view(-1, size)
        if whole
        else (torch.zeros(0, size, dtype=torch.uint8))
    )
