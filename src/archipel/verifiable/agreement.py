# SPDX-License-Identifier: Apache-2.0
"""Telling everybody the same: of each party all honest ones hear one thing, or that it told two.

Dolev, Strong, SIAM Journal on Computing 12, 1983, https://doi.org/10.1137/0212045. A party signs
what it tells. Whoever hears something new signs it as well and passes it on, and something that
comes in step r counts only with r signatures. After one step more than there are faulty parties,
one of the signatures is of an honest party that passed it on: so whatever one honest party has
heard, all have, whatever the others do, as long as what honest parties send arrives in a step.

Departures: of a party that tells several things two are passed on. They convict it: whoever has
them can show both signatures (`Twice`). What it told counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from archipel.errors import ArchipelError
from archipel.federation.certificates import Identity, verify
from archipel.verifiable.bulletin import in_bytes, in_text

Said = Mapping[int, bytes]  # what others tell in a step, by number
_HASH = 32


class Twice(NamedTuple):
    """Two hashes that a party signed where it tells one thing, each with its signature."""

    first: bytes
    second: bytes

    @classmethod
    def of(cls, one: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> Twice:
        """From hashes and signatures."""
        return cls(*sorted(digest + signature for digest, signature in (one, other)))

    def convicts(self, about: bytes, name: str, key: bytes) -> bool:
        """Whether this party signed both."""
        return self.first[:_HASH] != self.second[:_HASH] and all(
            verify(key, each[_HASH:], statement(about, name, each[:_HASH])) for each in self
        )


class Heard(NamedTuple):
    """What everybody told, as all honest parties have it."""

    told: dict[str, bytes]  # by those who told one thing
    twice: dict[str, Twice]  # those who told two


class Item(NamedTuple):
    """Something that was told, with the signatures of whoever passed it on."""

    by: str
    told: bytes
    signatures: Mapping[str, bytes]


def statement(about: bytes, name: str, digest: bytes) -> bytes:
    """What is signed of something that a party tells about a phase of a run."""
    said = name.encode()
    return b"archipel told\0" + about + len(said).to_bytes(8, "big") + said + digest


def tell_all(
    identity: Identity,
    me: str,
    keys: Mapping[str, bytes],
    about: bytes,
    mine: bytes,
    *,
    speakers: Collection[str],
    faulty: int,
    longest: int,
) -> Generator[bytes, Said, Heard]:
    """Tell all others something, and hear what each speaker tells.

    `keys` has the public key of every party, `about` names the occasion. `faulty` parties may do
    anything, or vanish. What is longer than `longest` was not told.
    """
    heard: dict[str, dict[bytes, Item]] = {name: {} for name in speakers}
    fresh = [_passed_on(identity, me, about, Item(me, mine, {}))] if me in heard else []
    for item in fresh:
        heard[me][sha256(mine).digest()] = item
    for step in range(1, faulty + 2):
        told = yield _written(fresh)
        fresh = []
        for number in sorted(told):
            for item in _read(told[number], longest):
                known, digest = heard.get(item.by), sha256(item.told).digest()
                if known is None or digest in known or len(known) > 1:
                    continue
                if _counts(item, keys, statement(about, item.by, digest), step):
                    known[digest] = _passed_on(identity, me, about, item)
                    fresh.append(known[digest])
    return Heard(
        {name: item.told for name, known in heard.items() for item in known.values()
         if len(known) == 1},
        {name: Twice.of(*((digest, item.signatures[name]) for digest, item in known.items()))
         for name, known in heard.items() if len(known) > 1},
    )  # fmt: skip


def _passed_on(identity: Identity, me: str, about: bytes, item: Item) -> Item:
    signature = identity.sign(statement(about, item.by, sha256(item.told).digest()))
    return item._replace(signatures={**item.signatures, me: signature})


def _counts(item: Item, keys: Mapping[str, bytes], said: bytes, least: int) -> bool:
    """Whether it has the signature of its author, and so many in all."""
    signed = item.signatures
    return (
        item.by in signed
        and len(signed) >= least
        and all(name in keys and verify(keys[name], sign, said) for name, sign in signed.items())
    )


def _written(items: list[Item]) -> bytes:
    plain = [
        [each.by, in_text(each.told), {name: in_text(s) for name, s in each.signatures.items()}]
        for each in items
    ]
    return json.dumps(plain).encode()


def _read(content: bytes, longest: int) -> list[Item]:
    """What can be read of it; who tells something else has told nothing."""
    try:
        return [_item(each, longest) for each in json.loads(content)]
    except (ValueError, TypeError, AttributeError, RecursionError, ArchipelError):
        return []


def _item(plain: Any, longest: int) -> Item:
    by, told, signatures = plain
    told = in_bytes(told)
    if type(by) is not str or len(told) > longest:
        raise ArchipelError("not what a party tells.")
    return Item(by, told, {str(name): in_bytes(each) for name, each in signatures.items()})
