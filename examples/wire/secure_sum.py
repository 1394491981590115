"""How a sum is made: masks that cancel, so that the server learns the sum alone. On one page.

To read, and to begin one's own with; the one to use is Archipel's own, wire.sum = "secure".

Bonawitz et al., CCS 2017, https://arxiv.org/abs/1611.04482, Figure 4, for a curious server.
Departures: one key pair a party for both masks and shares; no signatures and no consistency round,
so a server that tells parties different things could learn more; shares are hidden, not
authenticated.

    [wire]
    sum = "secure_sum.py"
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey as Private
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey as Public
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor, int64, uint8

from archipel.aggregation.summation import Total
from archipel.core import Each, places
from archipel.errors import ArchipelError, BelowQuorum
from archipel.tree import leaves

P, SIZE = 2**521 - 1, 66  # the shares' field, and the bytes of one of its numbers


def stream(key: bytes, size: int) -> Tensor:
    """That many bytes from a key."""
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return torch.frombuffer(bytearray(cipher.update(bytes(size))), dtype=uint8)


def agree(private: bytes, public: Tensor, purpose: str) -> bytes:
    """A key that two parties have in common, for one purpose."""
    shared = Private.from_private_bytes(private).exchange(Public.from_public_bytes(bytes(public)))
    return blake2b(shared, key=purpose.encode(), digest_size=32).digest()


def pairwise(private: bytes, public: Tensor, mine: int, other: int, count: int) -> Tensor:
    """The mask of two parties: one adds it, the other takes it away."""
    sign = (mine < other) - (mine > other)
    return sign * stream(agree(private, public, "mask"), 8 * count).view(int64)


def shares(secret: bytes, random: bytes, threshold: int, count: int) -> Tensor:
    """Points 1, 2, ... of a polynomial through the secret: any `threshold` of them tell it."""
    drawn = secret.rjust(64, b"\0") + bytes(stream(random, 64 * (threshold - 1)))
    powers = [int.from_bytes(drawn[i : i + 64]) for i in range(0, 64 * threshold, 64)]
    points = [sum(a * x**i for i, a in enumerate(powers)) % P for x in range(1, count + 1)]
    return torch.tensor([list(point.to_bytes(SIZE)) for point in points], dtype=uint8)


def joined(points: list[int], told: Tensor) -> bytes:
    """The secret, from points of the polynomial: its value at 0."""
    weights = [prod(y * pow(y - x, -1, P) for y in points if y != x) for x in points]
    total = sum(int.from_bytes(bytes(row)) * w for row, w in zip(told, weights, strict=True))
    return (total % P).to_bytes(SIZE)[-32:]


@dataclass(frozen=True)
class SecureSum:
    threshold: float = 0.5  # share of the parties without which nothing can be unmasked
    bits: int = 40  # after the binary point

    def party(self, me, x, number):  # one party; a stack of them is run one by one
        key, mask, a, b = (bytes(me.secret(f"{what} {number}")) for what in ("key", "mask", 1, 2))
        public, mine = Private.from_private_bytes(key).public_key(), int(me.number)
        ids, keys = yield torch.tensor(list(public.public_bytes_raw()), dtype=uint8)
        most, known = int(self.threshold * len(ids)) + 1, dict(zip(ids.tolist(), keys, strict=True))
        both = torch.cat([shares(key, a, most, len(ids)), shares(mask, b, most, len(ids))], dim=1)
        pads = [stream(agree(key, known[j], f"from {mine}"), 2 * SIZE) for j in known]
        senders, boxes = yield both ^ torch.stack(pads)
        fixed = torch.cat([v.flatten().double() for v in leaves(x)])
        if not fixed.abs().max() < 2 ** (62 - self.bits) / len(ids):
            raise ArchipelError("wire.sum: an upload is too large for SecureSum: clip it first.")
        masked = (fixed * 2**self.bits).round().to(int64) + stream(mask, 8 * len(fixed)).view(int64)
        masked += sum(pairwise(key, known[j], mine, j, len(fixed)) for j in senders.tolist())
        there = yield masked
        pads = [stream(agree(key, known[j], f"from {j}"), 2 * SIZE) for j in senders.tolist()]
        of_key, of_mask = (boxes ^ torch.stack(pads)).split(SIZE, dim=1)
        return torch.where(torch.isin(senders, there).unsqueeze(1), of_mask, of_key)

    def server(self, uploads, form, number):
        asked, keys = uploads.present, uploads.stack()
        uploads = yield asked, keys
        shared, boxes = uploads.present, uploads.stack().transpose(0, 1)  # [to, from, 132]
        uploads = yield Each((shared.expand(len(shared), -1), boxes[places(shared, asked)]))
        there, total = uploads.present, uploads.stack().sum(dim=0)
        uploads = yield there
        points, told = (places(uploads.present, asked) + 1).tolist(), uploads.stack()
        if len(points) <= int(self.threshold * len(asked)):
            raise BelowQuorum(f"wire.sum: {len(points)} parties are too few to unmask the sum.")
        for j, party in enumerate(shared.tolist()):
            secret = joined(points, told[:, j])
            if party in there:
                total -= stream(secret, 8 * len(total)).view(int64)
            else:
                for k in places(there, asked):
                    total += pairwise(secret, keys[k], party, int(asked[k]), len(total))
        sums = (total.double() / 2**self.bits).split([x.numel() for x in leaves(form)])
        made = tuple(s.view_as(x).to(x.dtype) for s, x in zip(sums, leaves(form), strict=True))
        return Total(made, there)
