# SPDX-License-Identifier: Apache-2.0
"""Secret sharing.  Shamir, Comm. ACM 22(11), 1979, https://doi.org/10.1145/359168.359176.

The secret is the value at 0 of a polynomial of degree t - 1 over a prime field, a share its value
elsewhere: t shares tell the secret, t - 1 tell nothing.

Departures: coefficients are drawn from a key, so that a party that was restarted shares as before;
each has 128 bits more than the prime, and is uniform but for 2^-128.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from archipel.errors import ArchipelError

P = 2**256 + 297  # the first prime beyond what 32 bytes hold
SHARE = 33  # bytes of one of its numbers
_DRAWN = 48  # bytes that a coefficient is made of


def shares(secret: bytes, threshold: int, points: Sequence[int], key: bytes) -> list[bytes]:
    """A share of 32 secret bytes for each point; any `threshold` of them tell the secret.

    Points are different whole numbers from 1; `key` is used for this secret alone.

    >>> told = shares(bytes(range(32)), 2, [1, 2, 3], key=bytes(32))
    >>> join({1: told[0], 3: told[2]}) == bytes(range(32))
    True
    """
    if not 1 <= threshold <= len(points) or len({*points, 0}) <= len(points):
        raise ArchipelError(
            f"threshold = {threshold} for shares at {len(points)} points: give a threshold from 1 "
            "to the number of points, which differ and are from 1."
        )
    stream = Cipher(AES256(key), CTR(bytes(16))).encryptor().update(bytes(_DRAWN * (threshold - 1)))
    powers = [
        int.from_bytes(stream[at : at + _DRAWN], "big") % P for at in range(0, len(stream), _DRAWN)
    ]
    constant, told = int.from_bytes(secret, "big"), list[bytes]()
    for x in points:
        y = 0
        for a in powers:
            y = (y + a) * x % P
        told.append(((y + constant) % P).to_bytes(SHARE, "big"))
    return told


def join(told: Mapping[int, bytes]) -> bytes | None:
    """The secret, of as many shares as its threshold says; None where it would be no 32 bytes.

    Shares that are not of one secret give another one: hold it against what is known of it.
    """
    points = list(told)
    total = 0
    for x in points:
        above = below = 1
        for y in points:
            if y != x:
                above, below = above * y % P, below * (y - x) % P
        total += int.from_bytes(told[x], "big") * above * pow(below, -1, P)
    total %= P
    return total.to_bytes(32, "big") if total < 2**256 else None
