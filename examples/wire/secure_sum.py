"""How a sum is made: masks that cancel, so that the server learns the sum alone.

Bonawitz et al., CCS 2017, https://arxiv.org/abs/1611.04482, Figure 4, for a curious server.
Departures: one key pair a party for both masks and shares; no signatures and no consistency round,
so a server that tells parties different things could learn more; shares are hidden, not
authenticated.

    [wire]
    sum = "secure_sum.py"
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey as Private
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey as Public
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor, int64, uint8

from archipel.aggregation.summation import Total
from archipel.core import Each, places
from archipel.errors import ArchipelError, BelowQuorum

P, SIZE = 2**521 - 1, 66  # the shares' field, and the bytes of one of its numbers


class Everybody(NamedTuple):
    ids: Tensor  # [m]
    keys: Tensor  # [m, 32]


class Inbox(NamedTuple):
    ids: Tensor  # [m] who shared
    boxes: Tensor  # [m, 132] their shares for me: of the key, and of the mask


def as_bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=uint8)


def stream(key: bytes, size: int) -> Tensor:
    """That many bytes from a key."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return as_bytes(cipher.update(bytes(size)))


def numbers(key: bytes, count: int) -> Tensor:
    """A mask: numbers of 64 bits from a key."""
    return stream(key, 8 * count).view(int64)


def agree(private: bytes, public: Tensor, purpose: bytes) -> bytes:
    shared = Private.from_private_bytes(private).exchange(Public.from_public_bytes(bytes(public)))
    return blake2b(shared, key=purpose, digest_size=32).digest()


def pairwise(private: bytes, public: Tensor, mine: int, other: int, count: int) -> Tensor:
    """The mask of two parties: one adds it, the other takes it away."""
    sign = (mine < other) - (mine > other)
    return (
        sign * numbers(agree(private, public, b"mask"), count)
        if sign
        else torch.zeros(count, dtype=int64)
    )


def shares(secret: bytes, random: bytes, threshold: int, count: int) -> list[bytes]:
    """Points 1, 2, ... of a polynomial through the secret: any `threshold` of them tell it."""
    drawn = bytes(stream(blake2b(random, digest_size=32).digest(), 64 * threshold))
    powers = [int.from_bytes(drawn[64 * i : 64 * i + 64]) for i in range(threshold)]
    powers[0] = int.from_bytes(secret)
    return [
        (sum(a * x**i for i, a in enumerate(powers)) % P).to_bytes(SIZE)
        for x in range(1, count + 1)
    ]


def joined(found: dict[int, int]) -> bytes:
    """The secret, from points of the polynomial: its value at 0."""
    total = 0
    for x, y in found.items():
        for other in found:
            y = y * other * pow(other - x, -1, P) % P if other != x else y
        total += y
    return (total % P).to_bytes(SIZE)[-32:]


@dataclass(frozen=True)
class SecureSum:
    threshold: float = 0.5  # share of the parties without which nothing can be unmasked
    bits: int = 40  # after the binary point

    def party(self, me, x, number):  # one party; a stack of them is run one by one
        key, mask, random = (
            bytes(me.secret(f"{what} {number}")) for what in ("key", "mask", "rest")
        )
        public = Private.from_private_bytes(key).public_key().public_bytes_raw()
        everybody = yield torch.tensor(list(public), dtype=uint8)
        ids, keys = everybody.ids, dict(zip(everybody.ids.tolist(), everybody.keys, strict=True))
        most = int(self.threshold * len(ids)) + 1
        both = zip(*(shares(s, random + s, most, len(ids)) for s in (key, mask)), strict=True)
        pads = [stream(agree(key, public, b"shares"), 2 * SIZE) for public in everybody.keys]
        inbox = yield torch.stack(
            [pad ^ as_bytes(a + b) for pad, (a, b) in zip(pads, both, strict=True)]
        )
        fixed = torch.cat([v.flatten().double() for v in x])
        if not fixed.abs().max() < 2 ** (62 - self.bits) / len(ids):
            raise ArchipelError("wire.sum: an upload is too large for SecureSum: clip it first.")
        masked = (fixed * 2**self.bits).round().to(int64) + numbers(mask, len(fixed))
        for other in inbox.ids.tolist():
            masked += pairwise(key, keys[other], int(me.number), other, len(fixed))
        there = set((yield masked).tolist())
        told = []
        for j, box in zip(inbox.ids.tolist(), inbox.boxes, strict=True):
            plain = box ^ stream(agree(key, keys[j], b"shares"), 2 * SIZE)
            told.append(plain[SIZE:] if j in there else plain[:SIZE])
        return torch.stack(told)

    def server(self, uploads, form, number):
        asked, keys = uploads.present, uploads.stack()
        uploads = yield Everybody(asked, keys)
        shared, boxes = uploads.present, uploads.stack().transpose(0, 1)
        at = places(shared, asked)
        uploads = yield Each(Inbox(shared.expand(len(at), -1), boxes[at]))
        there, total = uploads.present, uploads.stack().sum(dim=0)
        uploads = yield there
        points, told = (places(uploads.present, asked) + 1).tolist(), uploads.stack()
        if len(points) <= int(self.threshold * len(asked)):
            raise BelowQuorum(f"wire.sum: {len(points)} parties are too few to unmask the sum.")
        for j, party in enumerate(shared.tolist()):
            found = {x: int.from_bytes(bytes(row[j])) for x, row in zip(points, told, strict=True)}
            secret = joined(found)
            if party in there:
                total = total - numbers(secret, len(total))
                continue
            for other in there.tolist():
                public = keys[asked.tolist().index(other)]
                total = total + pairwise(secret, public, party, other, len(total))
        sums = (total.double() / 2**self.bits).split([leaf.numel() for leaf in form])
        shaped = zip(sums, form, strict=True)
        return Total(tuple(s.view(leaf.shape).to(leaf.dtype) for s, leaf in shaped), there)
