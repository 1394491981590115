# SPDX-License-Identifier: Apache-2.0
"""Letters: all that crosses a wire, as bytes and back.

A letter has a kind, fields, and arrays. As bytes:

    magic "ARC1" | length of the header, 4 bytes | header in msgpack | zeros | arrays

Zeros fill up to a multiple of 8 bytes, so that arrays need not be copied to be computed with.

The header is a map of kind, fields and the arrays' dtypes and shapes; arrays are raw and little-
endian. Kinds, their fields and the dtypes are closed sets: a reader makes numbers, text and tensors
of what it gets, never objects, and refuses a letter before it takes memory for it. No code, no
class names, no pickle.

A letter's name is the SHA-256 of its header and of the SHA-256 of each array: who signs the arrays
and who names the letter hash their bytes once. One file, since the list of kinds is a third of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Any

import msgpack

from archipel.errors import ArchipelError

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"ARC1"
MOST_HEADER = 1 << 20  # bytes
PIECE = 1 << 20  # bytes that are sent at a time
MOST_ARRAYS, MOST_DIMENSIONS, MOST_NUMBERS = 4096, 8, 1 << 40
MOST_CONTAINERS = 2 * MOST_ARRAYS + 32  # lists and maps of a header: two for an array, some fields

_DTYPES = {  # tag: torch's name, and bytes of a number
    "b1": ("bool", 1),
    "bf": ("bfloat16", 2),
    "f2": ("float16", 2),
    "f4": ("float32", 4),
    "f8": ("float64", 8),
    "i1": ("int8", 1),
    "i2": ("int16", 2),
    "i4": ("int32", 4),
    "i8": ("int64", 8),
    "u1": ("uint8", 1),
}
_TAGS = {f"torch.{name}": tag for tag, (name, _) in _DTYPES.items()}

Fields = Mapping[str, Any]

# every kind of letter, and its fields; a field may be missing only where its kinds allow None
KINDS: dict[str, dict[str, tuple[type, ...]]] = {
    # a site asks
    "enrol": {"site": (str,), "secret": (bytes,), "request": (bytes,), "identity": (bytes,)},
    "renew": {"request": (bytes,)},
    "hello": {"version": (str,), "approved": (list,)},
    "study": {"study": (str,)},
    "approve": {"study": (str,), "decision": (str,), "facts": (dict,), "signature": (bytes,)},
    "place": {"study": (str,)},
    "next": {
        "study": (str,),
        "pending": (int,),
        "busy": (str, type(None)),  # what a party does that asks for nothing
        "reached": (int, type(None)),  # how far it is with it: a number that grows
        "scale": (str, type(None)),  # the name of the scale that its data is on
        "last": (int, type(None)),  # the last round that it was in, where nobody waits for anybody
    },
    "ready": {"study": (str,), "round": (int,), "answers": (bytes,)},  # it has trained
    "upload": {
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "attempt": (int,),
        "version": (int, type(None)),  # the round that its work began in, if it may be another
        "n": (float,),
        "gradients": (int,),
        "answers": (bytes,),
        "log": (str, type(None)),  # anchor of the sender's audit log
        "signature": (bytes,),
    },
    "scores": {
        "study": (str,),
        "round": (int,),
        "metrics": (dict,),
        "own": (dict, type(None)),
        "points": (int,),
        "signature": (bytes,),
    },
    "away": {"study": (str,), "reason": (str,)},
    "scale": {"study": (str,)},
    "sums": {"study": (str,), "signature": (bytes,)},
    "roster": {"study": (str,)},
    "members": {"study": (str,)},
    "told": {
        "study": (str,),
        "round": (int,),
        "metrics": (dict, type(None)),
        "points": (int,),
        "missing": (dict,),
        "gradients": (int,),
        "up": (int,),
        "down": (int,),
        "edges": (dict, type(None)),  # a peer's own, with their weights, where they are learned
        "log": (str, type(None)),
        "signature": (bytes,),
    },
    "model": {"study": (str,)},
    "ask": {"study": (str,), "number": (int,), "signature": (bytes,)},
    # the coordinator answers
    "certificate": {"certificate": (bytes,), "authority": (bytes,)},
    "welcome": {"studies": (dict,)},
    "text": {"text": (str,), "members": (str,)},
    "thanks": {},
    "seat": {"study": (str,), "party": (int,)},
    "wait": {"seconds": (float,)},
    "wanted": {"study": (str,)},
    "scaling": {"study": (str,)},
    "rescaled": {"study": (str,)},
    "work": {
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "attempt": (int,),
        "log": (str, type(None)),
    },
    "admitted": {  # the round that an upload of a version is for
        "study": (str,),
        "round": (int,),
        "joined": (int,),
        "attempt": (int,),
        "log": (str, type(None)),
    },
    "again": {"study": (str,), "round": (int,)},  # what was sent of this version was lost
    "verdict": {"study": (str,), "round": (int,), "counted": (bool,)},
    "evaluate": {"study": (str,), "round": (int,)},
    "learnt": {"study": (str,), "rounds": (int,)},
    "advice": {"study": (str,), "number": (int,)},
    "done": {"study": (str,), "rounds": (int,)},
    "peers": {
        "study": (str,),
        "roster": (bytes,),
        "signature": (bytes,),
        "revoked": (bytes,),
        "revoked_signature": (bytes,),
    },
    "known": {"study": (str,), "members": (bytes,)},
    "refused": {"reason": (str,)},
    # one peer to another
    "vector": {
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "base": (bytes, type(None)),  # digest of the vector that this one is a change of
        "holds": (bytes, type(None)),  # digest of the other end's vector, as the sender has it
        "signature": (bytes,),
    },
    "beat": {
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "doing": (str,),
        "gave_up": (list, type(None)),
        "whole": (bool, type(None)),  # a change is of no use here, the vector itself would be
    },
    "news": {  # what a peer that woke says to its neighbours: what they hold of it gets this number
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "degree": (float,),
        "signature": (bytes,),
    },
    "copy": {  # the whole of what a peer tells
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "degree": (float,),
        "signature": (bytes,),
    },
    "asks": {"study": (str,), "round": (int,), "number": (int,)},  # for that
    "holds": {"study": (str,), "round": (int,), "number": (int,)},  # what a peer has of another
    "edge": {  # between the two peers, and how often it changed
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "weight": (float,),
        "signature": (bytes,),
    },
    "meet": {  # what a peer gives another in a meeting, and is given there
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "meeting": (int,),
        "signature": (bytes,),
    },
    "met": {  # what became of a meeting; None: a question, or not decided
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "meeting": (int,),
        "counts": (bool, type(None)),
    },
    "token": {  # with how often it was passed on, and found again
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "hop": (int,),
        "epoch": (int,),
        "signature": (bytes,),
    },
    "seen": {  # the newest that a peer has seen of a token, and whether it gave the asker's anew
        "study": (str,),
        "round": (int,),
        "number": (int,),
        "hop": (int,),
        "epoch": (int,),
        "lost": (bool,),
    },
    "view": {  # where members are, each in its own words: as many of each
        "study": (str,),
        "parties": (list,),
        "addresses": (list,),
        "numbers": (list,),
        "signatures": (list,),
    },
    "relay": {  # a site tells the others something, through the coordinator, and asks for theirs
        "study": (str,),
        "number": (int,),
        "wanted": (list,),
        "signature": (bytes,),
    },
    "heard": {"signatures": (dict,)},  # of the sites whose bytes are its arrays, in this order
    "said": {"study": (str,), "number": (int,)},  # to all, in a private mean: bytes are its array
}

VECTORS = ("upload", "vector", "news", "copy", "meet", "token")  # what was computed


class BadLetter(ArchipelError):
    """Bytes that are no letter."""


@dataclass(frozen=True)
class Letter:
    """What one side says to the other."""

    kind: str
    fields: Fields = field(default_factory=dict)
    arrays: Sequence[Tensor] = ()
    header: bytes = b""  # as it came
    hashed: Sequence[bytes] | None = None  # SHA-256 of each array, where it is known

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @cached_property
    def digests(self) -> Sequence[bytes]:
        """SHA-256 of each array."""
        if self.hashed is not None:
            return self.hashed
        return [digest(tensor) for tensor in self.arrays]

    @property
    def forms(self) -> list[tuple[str, list[int]]]:
        """Dtype and shape of each array."""
        for tensor in self.arrays:
            if str(tensor.dtype) not in _TAGS:
                raise ArchipelError(f"a letter holds no {tensor.dtype}: convert it to float32.")
        return [(_TAGS[str(tensor.dtype)], list(tensor.shape)) for tensor in self.arrays]

    @cached_property
    def name(self) -> bytes:
        """Of a letter that came."""
        return sha256(b"".join([self.header, *self.digests])).digest()

    @cached_property
    def sealed(self) -> Sealed:
        """As it is sent, however often."""
        return Sealed(self)

    def adding(self, **fields: Any) -> Letter:
        """The same with more fields; arrays that were hashed are not hashed again."""
        return replace(self, fields={**self.fields, **fields}, hashed=self.digests)


def encode(letter: Letter) -> bytearray:
    """A letter as bytes."""
    return bytearray().join(_parts(_pack(letter), letter))


def _pack(letter: Letter) -> bytes:
    """A letter's header."""
    _check(letter.kind, letter.fields)
    header: bytes = msgpack.packb([letter.kind, dict(letter.fields), letter.forms])
    if len(header) > MOST_HEADER:
        raise ArchipelError(f"the header of a letter has {len(header)} bytes: send fewer fields.")
    return header


def _parts(header: bytes, letter: Letter) -> list[memoryview]:
    """All its bytes, one after another, where they lie."""
    start = MAGIC + len(header).to_bytes(4, "little") + header + bytes(-len(header) % 8)
    return [memoryview(start), *(_raw(tensor) for tensor in letter.arrays)]


def digest(tensor: Tensor) -> bytes:
    """SHA-256 of an array."""
    return sha256(_raw(tensor)).digest()


def _raw(tensor: Tensor) -> memoryview:
    """The bytes of an array."""
    import torch

    whole = tensor.detach().contiguous().reshape(-1)
    if whole.dtype == torch.bfloat16:  # numpy has none
        whole = whole.view(torch.int16)
    flat = whole.numpy()
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view("u1").data


def decode(data: bytes | bytearray | memoryview) -> Letter:
    """The letter that the bytes are; its arrays share their memory."""
    if bytes(data[:4]) != MAGIC or len(data) < 8:
        raise BadLetter("not a letter: it begins with other bytes.")
    length = int.from_bytes(data[4:8], "little")
    if length > MOST_HEADER or 8 + length > len(data):
        raise BadLetter(f"a header of {length} bytes in a letter of {len(data)}.")
    header = bytes(data[8 : 8 + length])
    kind, fields, forms = _header(header)
    sizes, at = [_size(form) for form in forms], 8 + length + -length % 8
    if at + sum(sizes) != len(data) or any(data[8 + length : at]):
        raise BadLetter(f"arrays of {sum(sizes)} bytes announced, {len(data) - at} sent.")
    _check(kind, fields)
    arrays = []
    for (tag, shape), size in zip(forms, sizes, strict=True):
        arrays.append(_tensor(data, at, size, tag, shape))
        at += size
    return Letter(kind, fields, arrays, header)


def _tensor(data: Any, at: int, size: int, tag: str, shape: list[int]) -> Tensor:
    import torch  # many letters hold no array, and whoever sends these need not wait for it

    dtype: torch.dtype = getattr(torch, _DTYPES[tag][0])
    if size == 0:
        return torch.empty(shape, dtype=dtype)
    where = memoryview(data)[at : at + size]
    if where.readonly or at % dtype.itemsize:
        where = memoryview(bytearray(where))
    if dtype == torch.bool and bool((torch.frombuffer(where, dtype=torch.uint8) > 1).any()):
        raise BadLetter("an array of truth values that are neither 0 nor 1.")
    return torch.frombuffer(where, dtype=dtype).view(shape)


def _header(data: bytes) -> tuple[str, dict[str, Any], list[Any]]:
    made = 0

    def count(container: Any) -> Any:
        """A header of a megabyte could make a million of them: it ends with the first too many."""
        nonlocal made
        made += 1
        if made > MOST_CONTAINERS:
            raise ValueError
        return container

    try:
        found = msgpack.unpackb(
            data,
            strict_map_key=True,
            max_ext_len=0,
            max_array_len=MOST_ARRAYS,
            max_map_len=MOST_ARRAYS,
            object_hook=count,
            list_hook=count,
        )
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise BadLetter(f"a header that is not msgpack ({type(error).__name__}).") from None
    match found:
        case [str(kind), dict(fields), list(forms)] if len(forms) <= MOST_ARRAYS:
            return kind, fields, forms
    raise BadLetter("a header of another form than [kind, fields, arrays].")


def _size(form: Any) -> int:
    """Bytes of an array of that form."""
    match form:
        case [str(tag), list(shape)] if tag in _DTYPES and len(shape) <= MOST_DIMENSIONS:
            known = all(type(side) is int and 0 <= side <= MOST_NUMBERS for side in shape)
            if known and prod(max(side, 1) for side in shape) <= MOST_NUMBERS:  # strides fit, too
                return prod(shape) * _DTYPES[tag][1]
    raise BadLetter(f"an array of a form that is not known: {str(form)[:80]}.")


def _check(kind: str, fields: Fields) -> None:
    """Refuse kinds and fields that are not in the list."""
    if kind not in KINDS:
        raise BadLetter(f"a letter of unknown kind {kind[:40]!r}.")
    known = KINDS[kind]
    for name in fields:
        if name not in known:
            raise BadLetter(f"a {kind} with an unknown field {str(name)[:40]!r}.")
    for name, types in known.items():
        value = fields.get(name)
        if type(value) not in types:
            raise BadLetter(f"a {kind} whose {name} is a {type(value).__name__}.")
        _check_value(kind, name, value)


def _check_value(kind: str, name: str, value: Any) -> None:
    """Fields are plain: numbers, text, bytes, and one level of lists or maps of them."""
    inside: Iterator[Any] | list[Any] = []
    if type(value) is list:
        inside = value
    elif type(value) is dict:
        if not all(type(key) is str for key in value):
            raise BadLetter(f"a {kind} whose {name} has keys that are not text.")
        inside = list(value.values())
    for each in inside:
        if type(each) not in (str, int, float, bool, bytes, type(None)):
            raise BadLetter(f"a {kind} whose {name} holds a {type(each).__name__}.")


class Sealed:
    """A letter's bytes and its name, made once for all who get it."""

    def __init__(self, letter: Letter) -> None:
        header = _pack(letter)
        self.pieces = list(_cut(_parts(header, letter)))
        self.size = sum(map(len, self.pieces))
        self.content = sum(tensor.numel() * tensor.element_size() for tensor in letter.arrays)
        self.name = replace(letter, header=header, hashed=letter.digests).name

    def since(self, at: int) -> Iterator[bytes]:
        """The bytes from number `at` on, in pieces."""
        first, inside = divmod(at, PIECE)
        for piece in self.pieces[first:]:
            yield piece[inside:]
            inside = 0


def _cut(parts: Iterable[memoryview]) -> Iterator[bytes]:
    """The same bytes in pieces, all of the same size but the last."""
    begun: list[memoryview] = []
    room = PIECE
    for part in parts:
        rest = part
        while rest:
            begun.append(rest[:room])
            rest, room = rest[room:], room - len(begun[-1])
            if room == 0:
                yield b"".join(begun)
                begun, room = [], PIECE
    if begun:
        yield b"".join(begun)
