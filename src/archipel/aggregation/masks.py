# SPDX-License-Identifier: Apache-2.0
"""Masks: the key stream of AES-256-CTR as integers modulo 2^32 or 2^64.

Every bit of a mask is a bit of the stream (NIST SP 800-38A), so each integer of the range, the
largest included, is as likely as any other, and the key has all its 256 bits. A mask is never a
tensor of its own: pieces that fit a processor's cache are added to what they hide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint32] | NDArray[np.uint64]

_PIECE = 1 << 17  # bytes; stays in a cache of the second level, with the piece it is added to
_ZEROS = memoryview(bytes(_PIECE))


def mask(words: Words, plus: Iterable[bytes] = (), minus: Iterable[bytes] = ()) -> None:
    """Add the masks of some keys to words and subtract those of others, in place.

    >>> words = np.arange(3, dtype=np.uint32)
    >>> mask(words, plus=[bytes(32)])
    >>> mask(words, minus=[bytes(32)])
    >>> words
    array([0, 1, 2], dtype=uint32)
    """
    streams = [
        (Cipher(AES256(key), CTR(bytes(16))).encryptor(), put)
        for keys, put in ((plus, np.add), (minus, np.subtract))
        for key in keys
    ]
    buffer = bytearray(_PIECE + 15)  # update_into wants room for another block
    drawn = np.frombuffer(buffer, words.dtype.newbyteorder("<"), _PIECE // words.itemsize)
    for at in range(0, len(words), len(drawn)):
        piece = words[at : at + len(drawn)]
        zeros, mine = _ZEROS[: piece.nbytes], drawn[: len(piece)]
        for stream, put in streams:
            stream.update_into(zeros, buffer)
            put(piece, mine, out=piece)
