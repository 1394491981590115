# SPDX-License-Identifier: Apache-2.0
"""What parties say on a bulletin, phase by phase, and the one form that each has there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from archipel.errors import ArchipelError
from archipel.verifiable.agreement import Twice
from archipel.verifiable.bits import Proof, proof_bytes
from archipel.verifiable.bulletin import in_bytes, in_text
from archipel.verifiable.commitments import Shared, Zero
from archipel.verifiable.group import POINT, SCALAR, Point, scalar, written
from archipel.verifiable.terms import Terms


class Join(NamedTuple):
    """First: a key for pairwise terms, and with whom."""

    key: Point
    picks: tuple[str, ...]

    @property
    def body(self) -> dict[str, Any]:
        return {"key": in_text(self.key.encoded), "picks": list(self.picks)}

    @classmethod
    def read(cls, body: Mapping[str, Any], terms: Terms, name: str) -> Join:
        key, picks = _fields(body, "key", "picks")
        right = (
            isinstance(picks, list)
            and all(isinstance(each, str) and each in terms.parties for each in picks)
            and len(set(picks)) == len(picks) == terms.neighbours
            and name not in picks
        )
        if not right:
            raise ArchipelError(f"picks: not {terms.neighbours} other parties.")
        return cls(Point.read(in_bytes(key)), tuple(picks))


class Commit(NamedTuple):
    """Second: commitments to values, pairwise terms, bits of noise and a share of the coins."""

    values: tuple[Point, ...]
    range: tuple[Point, Proof] | None  # bits of the values, and the proof; None if `same`
    same: tuple[Zero, ...]  # that they are those of an earlier run
    pairs: tuple[tuple[Point, ...], ...]  # of each neighbour, by name
    noise: Point  # bits
    share: bytes  # the hash of what is revealed next

    @property
    def body(self) -> dict[str, Any]:
        found = self.range
        return {
            "values": _points_text(self.values),
            "range": in_text(found[0].encoded + found[1].encoded) if found else "",
            "same": in_text(b"".join(each.encoded for each in self.same)),
            "pairs": _points_text([point for pair in self.pairs for point in pair]),
            "noise": in_text(self.noise.encoded),
            "share": in_text(self.share),
        }

    @classmethod
    def read(cls, body: Mapping[str, Any], terms: Terms, neighbours: int) -> Commit:
        values, proof, same, pairs, noise, share = _fields(
            body, "values", "range", "same", "pairs", "noise", "share"
        )
        d, shown, again, size = terms.size, in_bytes(proof), in_bytes(same), POINT + SCALAR
        if len(again) not in (0, d * size):
            raise ArchipelError(f"same: {len(again)} bytes are not {d} proofs.")
        points = _points(pairs, neighbours * d)
        return cls(
            tuple(_points(values, d)),
            _range(shown, terms.value_bits) if shown else None,
            tuple(Zero.read(again[i : i + size]) for i in range(0, len(again), size)),
            tuple(tuple(points[i : i + d]) for i in range(0, len(points), d)),
            Point.read(in_bytes(noise)),
            _sized("share", in_bytes(share), 32),
        )


class Dispute(NamedTuple):
    """Third, if needed: that a neighbour's commitment is not to the term both have."""

    other: str
    proof: Shared

    @property
    def body(self) -> dict[str, Any]:
        return {"other": self.other, "proof": in_text(self.proof.encoded)}

    @classmethod
    def read(cls, body: Mapping[str, Any], neighbours: Sequence[str]) -> Dispute:
        other, proof = _fields(body, "other", "proof")
        if other not in neighbours:
            raise ArchipelError(f"other = {str(other)[:80]!r}: not a neighbour.")
        return cls(other, Shared.read(in_bytes(proof)))


class Reveal(NamedTuple):
    """Third: its share of the coins."""

    share: bytes

    @property
    def body(self) -> dict[str, Any]:
        return {"share": in_text(self.share)}

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Reveal:
        (share,) = _fields(body, "share")
        return cls(_sized("share", in_bytes(share), 32))


class Publish(NamedTuple):
    """Fourth: the value, hidden by pairwise terms, with its noise, and the proof of that."""

    noise: tuple[Point, ...]
    proof: Proof
    values: tuple[int, ...]
    openings: tuple[int, ...]

    @property
    def body(self) -> dict[str, Any]:
        return {
            "noise": _points_text(self.noise),
            "proof": in_text(self.proof.encoded),
            "values": _scalars_text(self.values),
            "openings": _scalars_text(self.openings),
        }

    @classmethod
    def read(cls, body: Mapping[str, Any], terms: Terms) -> Publish:
        noise, proof, values, openings = _fields(body, "noise", "proof", "values", "openings")
        d = terms.size
        return cls(
            tuple(_points(noise, d)),
            Proof.read(in_bytes(proof), terms.noise_bits),
            _scalars(values, d),
            _scalars(openings, d),
        )


class Correct(NamedTuple):
    """Last, if needed: the pairwise term with a neighbour that never published, opened."""

    other: str
    values: tuple[int, ...]
    openings: tuple[int, ...]

    @property
    def body(self) -> dict[str, Any]:
        return {
            "other": self.other,
            "values": _scalars_text(self.values),
            "openings": _scalars_text(self.openings),
        }

    @classmethod
    def read(cls, body: Mapping[str, Any], terms: Terms, neighbours: Sequence[str]) -> Correct:
        other, values, openings = _fields(body, "other", "values", "openings")
        if other not in neighbours:
            raise ArchipelError(f"other = {str(other)[:80]!r}: not a neighbour.")
        return cls(other, _scalars(values, terms.size), _scalars(openings, terms.size))


class Accuse(NamedTuple):
    """At any time where there is no keeper: that a party told two different things in a phase."""

    other: str
    phase: str
    twice: Twice

    @property
    def body(self) -> dict[str, Any]:
        both = self.twice
        return {
            "other": self.other, "phase": self.phase,
            "first": in_text(both.first), "second": in_text(both.second),
        }  # fmt: skip

    @classmethod
    def read(cls, body: Mapping[str, Any], terms: Terms, phases: Collection[str]) -> Accuse:
        other, phase, first, second = _fields(body, "other", "phase", "first", "second")
        if not isinstance(other, str) or other not in terms.parties:
            raise ArchipelError(f"other = {str(other)[:80]!r}: not a party.")
        if not isinstance(phase, str) or phase not in phases:
            raise ArchipelError(f"phase = {str(phase)[:80]!r}: not one that was.")
        return cls(other, phase, Twice(in_bytes(first), in_bytes(second)))


# -- pieces ----------------------------------------------------------------------------------------


def _fields(body: Mapping[str, Any], *names: str) -> list[Any]:
    """The values of exactly these keys."""
    if set(body) != set(names):
        raise ArchipelError(f"keys {sorted(map(str, body))}: this entry has {sorted(names)}.")
    return [body[name] for name in names]


def _sized(name: str, data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ArchipelError(f"{name}: {len(data)} bytes are not {size}.")
    return data


def _range(data: bytes, size: int) -> tuple[Point, Proof]:
    _sized("range", data, POINT + proof_bytes(size))
    return Point.read(data[:POINT]), Proof.read(data[POINT:], size)


def _points(text: object, count: int) -> list[Point]:
    data = _sized("points", in_bytes(text), count * POINT)
    return [Point.read(data[i : i + POINT]) for i in range(0, len(data), POINT)]


def _scalars(text: object, count: int) -> tuple[int, ...]:
    data = _sized("scalars", in_bytes(text), count * SCALAR)
    return tuple(scalar(data[i : i + SCALAR]) for i in range(0, len(data), SCALAR))


def _points_text(points: Sequence[Point]) -> str:
    return in_text(b"".join(point.encoded for point in points))


def _scalars_text(values: Sequence[int]) -> str:
    return in_text(b"".join(written(value) for value in values))
