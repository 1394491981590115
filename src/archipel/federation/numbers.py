# SPDX-License-Identifier: Apache-2.0
"""The file of a private mean: what is averaged, this party's numbers, and who the parties are.

    [average]
    names = ["admissions", "deaths"]
    low = 0
    high = [2000, 50]
    epsilon = 1.0

    [values]
    bonn = [412, 9]

    [[peers]]
    name = "bonn"
    address = "bonn.example.org:9001"
    certificate = "-----BEGIN CERTIFICATE-----..."
    identity = "5f1c..."

All but [values] is the same at every party, and has a name of its own (`session`). Sites of a
federation, whose coordinator passes on what they say, have [[sites]] in the place of [[peers]],
each with a name and an identity.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from archipel.aggregation.averaging import Question
from archipel.errors import ArchipelError, unknown
from archipel.federation.certificates import is_of_ones_own
from archipel.federation.roster import check_address

_LISTS = ("low", "high", "contribution")
_SECTIONS = ("average", "values", "peers", "sites")
_HEX = re.compile("[0-9a-f]{64}")


class Card(NamedTuple):
    """A peer, as others find it."""

    name: str
    address: str
    certificate: str  # PEM, that it made itself
    identity: str = ""  # Ed25519 public key in hexadecimal, where it signs what it says

    def text(self) -> str:
        """As it stands in everybody's file."""
        signs = f'identity = "{self.identity}"\n' if self.identity else ""
        return (
            f'[[peers]]\nname = "{self.name}"\naddress = "{self.address}"\n{signs}'
            f'certificate = """\n{self.certificate}"""\n'
        )


class Seat(NamedTuple):
    """A site, as others know it."""

    name: str
    identity: str  # Ed25519 public key in hexadecimal

    def text(self) -> str:
        """As it stands in everybody's file."""
        return f'[[sites]]\nname = "{self.name}"\nidentity = "{self.identity}"\n'


@dataclass(frozen=True)
class NumbersFile:
    """What the file says."""

    question: Question
    values: Mapping[str, tuple[float, ...]]
    peers: tuple[Card, ...] = ()  # by name
    run: int = 1  # raised to ask the same again
    sites: tuple[Seat, ...] = ()  # by name

    @property
    def session(self) -> str:
        """Names all that parties have to agree on."""
        peers = [each._asdict() for each in self.peers]
        same = {"question": asdict(self.question), "peers": peers, "run": self.run}
        if self.sites:
            same["sites"] = [each._asdict() for each in self.sites]
        return sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()

    @classmethod
    def read(cls, path: Path, epsilon: float | None = None) -> NumbersFile:
        """Read a file; `epsilon` stands in place of its own."""
        try:
            found = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ArchipelError(f"'{path}': cannot be read ({error}).") from None
        for key in found:
            if key not in _SECTIONS:
                raise unknown("section", key, _SECTIONS)
        table = _table(found, "average")
        if epsilon is not None:
            table = {**table, "epsilon": epsilon}
        run = table.pop("run", 1)
        if type(run) is not int or run < 1:
            raise ArchipelError(f"average.run = {run!r}: give a whole number from 1.")
        values = {name: _row(name, row) for name, row in _table(found, "values").items()}
        if "peers" in found and "sites" in found:
            raise ArchipelError("peers, sites: give one of them: [[peers]] talk to each other.")
        return cls(
            _question(table), values, _cards(found.get("peers", [])), run,
            _seats(found.get("sites", [])),
        )  # fmt: skip


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise ArchipelError(f"{name}: give a table, [{name}].")
    return dict(table)


def _question(table: Mapping[str, Any]) -> Question:
    known = [each.name for each in fields(Question)]
    for key in table:
        if key not in known:
            raise unknown("average", key, [*known, "run"])
    for key in ("low", "high", "epsilon"):
        if key not in table:
            raise ArchipelError(f"average.{key}: is missing; give {key} = a number.")
    given = dict(table)
    names = given.get("names", ["value"])
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise ArchipelError(f'average.names = {names!r}: give a list of names, such as ["deaths"].')
    given["names"] = tuple(names)
    for key in _LISTS:
        if key not in given:
            continue
        ends = given[key] if isinstance(given[key], list) else [given[key]] * len(names)
        given[key] = tuple(_number(f"average.{key}", each) for each in ends)
    for key in ("epsilon", "delta", "honest", "dropouts"):
        if key in given:
            given[key] = _number(f"average.{key}", given[key])
    k = given.get("neighbours")
    if k is not None and type(k) is not int:
        raise ArchipelError(f"average.neighbours = {k!r}: give a whole number, or leave it out.")
    try:
        return Question(**given)
    except ArchipelError as error:
        raise ArchipelError(f"average.{error}") from None


def _number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArchipelError(f"{field} = {value!r}: give a number.")
    return float(value)


def _row(name: str, row: Any) -> tuple[float, ...]:
    row = row if isinstance(row, list) else [row]
    return tuple(_number(f"values.{name}", each) for each in row)


def _cards(found: Any) -> tuple[Card, ...]:
    if not isinstance(found, list):
        raise ArchipelError("peers: give a table for each of them, [[peers]].")
    cards = []
    for each in found:
        known = set(Card._fields)
        if not isinstance(each, dict) or not known - {"identity"} <= set(each) <= known:
            raise ArchipelError(
                "peers: each has a name, an address, a certificate and an identity, as 'archipel "
                "average --card' prints them."
            )
        card = Card(**{key: str(value) for key, value in each.items()})
        card = card._replace(certificate=card.certificate.lstrip())
        check_address(card.address)
        if not is_of_ones_own(card.certificate, card.name):
            raise ArchipelError(
                f"peers: the certificate of {card.name} is not one that it made; have it run "
                "'archipel average --card' and send you what that prints."
            )
        if card.identity:
            _check_identity("peers", card.name, card.identity)
        cards.append(card)
    if len({each.name for each in cards}) < len(cards):
        raise ArchipelError("peers: one name is there twice; give every party its own.")
    return tuple(sorted(cards))


def _seats(found: Any) -> tuple[Seat, ...]:
    if not isinstance(found, list):
        raise ArchipelError("sites: give a table for each of them, [[sites]].")
    seats = []
    for each in found:
        if not isinstance(each, dict) or set(each) != set(Seat._fields):
            raise ArchipelError(
                "sites: each has a name and an identity, as 'archipel average --site HOME' prints "
                "them."
            )
        seat = Seat(str(each["name"]), str(each["identity"]))
        _check_identity("sites", seat.name, seat.identity)
        seats.append(seat)
    for what in ("name", "identity"):
        if len({getattr(each, what) for each in seats}) < len(seats):
            raise ArchipelError(f"sites: one {what} is there twice; give every site its own.")
    return tuple(sorted(seats))


def _check_identity(section: str, name: str, identity: str) -> None:
    if not _HEX.fullmatch(identity):
        raise ArchipelError(
            f"{section}: the identity of {name} is no key of 64 hexadecimal digits; have it send "
            "you what 'archipel average' prints of it."
        )
