# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation: the server learns the sum over those who stayed, and nothing else.

Bonawitz et al., CCS 2017, https://eprint.iacr.org/2017/281, Figure 4 with the consistency check
(a server that lies), and for many parties Bell et al., CCS 2020, https://eprint.iacr.org/2020/704,
with neighbours that each party draws for itself (`neighbours`).

Every party u masks its integers x_u with one mask of its own and one of each pair,

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)   modulo 2^b,

so that pairs cancel in the sum. Shares of b_u, and of the key behind the s_uv, lie with its
neighbours: of who stayed they reveal b_u, of who was lost that key, and never both.

A party signs one sum of a round's uploads, in whatever attempt (`roster.check_agreed`): two of
which one has a party more would show what that party sent.

With `groups`, parties are put into as many (`groups.drawn`) once their keys are known, and all that
follows is done in each group by itself: the server learns each group's sum.

What a party does not take from the server: who the others are (it knows their identities), degree
and threshold (they follow from the study and the number of parties), its neighbours (it draws
them), and who stayed (`threshold` of its neighbours sign the same).

Departures: the server names those who stayed and nothing else, so that no party can be in two sets.
An own mask is committed to, and every secret that is put together is held against what its owner
said: a wrong share is found out. A share that does not open is not told, in place of an end: others
suffice. Pseudo-random numbers are the key stream of AES-256-CTR.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from math import ceil, floor
from typing import Any, ClassVar

import torch
from torch import Tensor

from archipel.aggregation import shamir
from archipel.aggregation.coding import Coding, Grid, Terms
from archipel.aggregation.groups import drawn, own_group, padded, together
from archipel.aggregation.keys import SEAL, Session, seal, unseal
from archipel.aggregation.masks import Words, mask
from archipel.aggregation.neighbours import (
    COMPLETE,
    Neighbours,
    Unsafe,
    of_all,
    of_given,
    of_some,
    safe,
)
from archipel.aggregation.roster import (
    HELD,
    Held,
    OwnKeys,
    Roster,
    check_agreed,
    check_sharing,
    check_survivors,
    count_signed,
    read_ids,
    refuse,
    rows_of,
    said_of,
    survivors_of,
)
from archipel.aggregation.summation import Total, grouped
from archipel.aggregation.unmasking import Routes
from archipel.core import Each, Party
from archipel.errors import ArchipelError, BelowQuorum
from archipel.exchange.anatomy import Probe
from archipel.signing import SIGNATURE


@dataclass(frozen=True)
class SecureSum:
    """A sum of which nobody sees a single upload, also where the server lies or parties drop out.

    `[wire] sum = "secure"`; both ends have all of it from the study.
    """

    threshold: float | None = None  # share of a key's holders that must stay; found unless given
    degree: int | None = None  # of them; all up to 20 parties, else found from the last two fields
    bits: int = 32  # of the modulus: 32 or 64
    range: float = 16.0  # of the absolute values that are added up
    examples: int = 65_536  # of one party, at most, where uploads are weighted by them
    colluding: float = 0.1  # share of the parties that may be on the server's side
    dropouts: float = 0.1  # share of the parties that a round of many may lose
    least: int = 2  # parties of a sum, at the fewest: with fewer nothing is unmasked
    groups: int = 1  # that a round's parties are drawn into: a sum of each, for round.rule
    counted: ClassVar[int] = -3  # the message with the masked input, from the last

    def __post_init__(self) -> None:
        if self.degree is not None and self.degree < 2:
            raise ArchipelError(f"degree = {self.degree}: give at least 2 neighbours.")
        for field in ("colluding", "dropouts"):
            if not 0 <= (share := getattr(self, field)) < 0.5:
                raise ArchipelError(f"{field} = {share:g}: give a share from 0 to below 0.5.")
        above = (1 + self.colluding) / 2
        if self.threshold is not None and not (
            2 / 3 <= self.threshold <= 1 and self.threshold > above
        ):
            raise ArchipelError(
                f"threshold = {self.threshold:g}: give a share from 2/3 to 1 and above "
                f"(1 + colluding) / 2 = {above:g}, or leave it out; with less a server that tells "
                "parties different things could unmask one."
            )
        if self.least < 2:
            raise ArchipelError(
                f"least = {self.least}: a sum of one is its upload; give 2 or more."
            )
        if self.groups < 1:
            raise ArchipelError(f"groups = {self.groups}: give a number from 1.")
        if self.examples < 1:
            raise ArchipelError(f"examples = {self.examples}: give a number from 1.")
        Grid(self.range, self.examples, 2, self.bits).check()

    def coding(self, parties: int) -> Coding:
        return Grid(self.range, self.examples, ceil(parties / self.groups), self.bits)

    def fewest(self, parties: int) -> int:
        """How many of a round's parties have to stay, by what is foreseen for it."""
        near = self.neighbours(parties)
        stay = near.threshold if near.complete else ceil((1 - self.dropouts) * parties)
        return max(self.least, stay)

    def colluders(self, parties: int) -> int:
        return floor(self.colluding * parties)

    def neighbours(self, n: int, trial: bool = False) -> Neighbours:
        """Degree k and threshold t among n parties, which nobody tells anybody."""
        k = self.degree
        if trial or n <= COMPLETE or (k is not None and k >= n - 1):
            found = of_all(n, self.colluding)
        elif k is None:
            found = of_some(n, self.colluding, self.dropouts)
        else:
            found = of_given(n, k, self.colluding, self.dropouts)
        if self.threshold is None:
            return found
        t = ceil(self.threshold * found.degree)
        if not found.complete and t < (least := safe(n, found.degree, self.colluding)):
            raise Unsafe(
                f"threshold = {self.threshold:g}: {t} of {found.degree} neighbours are too few "
                f"among {n} parties, of which a share of {self.colluding:g} colludes; give at "
                f"least {ceil(1e4 * least / found.degree) / 1e4:g}, or leave it out."
            )
        return found._replace(threshold=t)

    def party(self, me: Party, x: Terms, number: int) -> Generator[Any, Any, Any]:
        mine, others = int(me.number), me.others
        keys = OwnKeys(*(_bytes(me.secret(f"{what} {number}")) for what in _SECRETS))

        # Round 0: advertise keys
        bare = Session(others.session, me.round, number)
        own = keys.advertised + others.sign(said_of(bare, mine, keys.advertised))
        reply = yield rows_of([own], len(own))[0]
        everybody = len(reply[0])
        if self.groups > 1:
            reply = own_group(mine, reply, self.groups, bare)
        roster = Roster(reply, bare)
        roster.check(mine, own, others)
        session = roster.session

        # Round 1: share keys, with everybody or with those that this party draws
        near = self.neighbours(len(roster.ids), others.trial)
        k, t, masked, complete = near
        held_by = roster.ids if complete else keys.draw(roster.ids, mine, k, session)
        roster.check_signed({*held_by} - {mine}, others)
        sealed = [
            seal(keys.channel.agree(roster.channel(v), session, "shares", (mine, v)), content)
            for v, content in zip(held_by, keys.shared(near, session), strict=True)
        ]
        room = len(held_by) if self.groups == 1 else everybody
        reply = yield (
            padded(torch.tensor(held_by), room, -1),
            padded(rows_of(sealed, HELD + SEAL), room),
        )
        shared = read_ids(reply[0], "shared their keys", roster.ids)
        senders = read_ids(reply[1], "shared with this party", shared)
        check_sharing(shared, senders, held_by, t, complete, mine, others)
        check_agreed(shared, number, others, all_stayed=False)
        held, room = dict[int, Held](), len(reply[2])
        for v, content in zip(senders, reply[2], strict=False):
            key = keys.channel.agree(roster.channel(v), session, "shares", (v, mine))
            held[v] = Held(unseal(key, _bytes(content)))

        # Round 2: masked input, with those that this party drew first and those who drew it so
        words = self.coding(everybody).encode(x, ())
        drew = {v for v in senders if held[v].masks}
        partners = (drew | ({*held_by[:masked]} & {*shared})) - {mine}
        roster.check_signed(partners - {*held_by}, others)
        pairs = {
            v: keys.masks.agree(roster.masks(v), session, "mask", sorted((mine, v)))
            for v in partners
        }
        mask(
            _words(words),
            plus=[keys.own_mask, *(key for v, key in pairs.items() if mine < v)],
            minus=[key for v, key in pairs.items() if mine > v],
        )
        reply = yield words

        # Round 3: consistency check
        if self.groups > 1:
            reply = reply[torch.isin(reply, torch.tensor(roster.ids))]
        survivors = read_ids(reply, "stayed", shared)
        check_survivors(survivors, held_by, t, mine, others, self.least)
        check_agreed(survivors, number, others, all_stayed=True)
        others.agreed[number] = frozenset(survivors)
        statement = survivors_of(session, shared, survivors)
        reply = yield rows_of([others.sign(statement)], SIGNATURE)[0]
        among = {*held_by} & {*survivors}
        agreeing = count_signed(reply, "signed who stayed", statement, among, t, others)
        if agreeing < t:
            raise refuse(
                f"{agreeing} of this party's neighbours signed the same set of those who stayed, "
                f"and {t} are needed: the server may have told others something else"
            )

        # Round 4: unmask. One share of each leaves: of who stayed that of its own mask, of who was
        # lost that of its key.
        told = [held[v].of_mask if v in survivors else held[v].of_key for v in senders]
        return rows_of(told + [b""] * (room - len(told)), 1 + shamir.SHARE)

    def server(self, uploads: Any, form: Terms, number: int) -> Generator[Any, Any, Total]:
        trial, code = isinstance(uploads, Probe), self.coding(len(uploads.present))
        if self.groups == 1:
            return (yield from self._sum(uploads, form, number, code, trial))
        ids, bare = uploads.present.tolist(), Session(uploads.session, uploads.round, number)
        if len(ids) < self.groups and not trial:
            raise BelowQuorum(
                f"wire.sum: {len(ids)} parties are there, and groups = {self.groups} are needed."
            )
        box = partial(self._sum, form=form, number=number, code=code, trial=trial)
        return grouped((yield from together(box, uploads, drawn(ids, self.groups, bare))))

    def _sum(
        self, uploads: Any, form: Terms, number: int, code: Coding, trial: bool
    ) -> Generator[Any, Any, Total]:
        """Of a group, or of all."""
        # Round 0: everybody's keys
        asked, advertised = uploads.present, uploads.stack()
        if len(asked) < 2 and not trial:
            raise BelowQuorum("wire.sum: a sum of one party is what that party sent.")
        near = self.neighbours(len(asked), trial)
        t = 0 if trial else near.threshold  # a trial's uploads are all of one group
        bare = Session(uploads.session, uploads.round, number)
        uploads = yield asked, advertised

        # Round 1: to each the shares that it holds
        shared, (held_by, sealed) = uploads.present, uploads.stack()
        least = 1 if trial else max(self.least, 2)
        _enough(len(shared), least, "shared keys")
        routes = Routes(shared.tolist(), held_by, sealed, near.masked)
        routes.check(shared.tolist(), t)
        uploads = yield Each((shared.expand(len(shared), -1), *routes.incoming()))

        # Round 2: the masked sum of those who stayed
        survivors, total = uploads.present, uploads.total().clone()
        _enough(len(survivors), least, "sent what they masked")
        routes.check(survivors.tolist(), t)
        uploads = yield survivors

        # Round 3: to each what those signed who hold its shares
        signed = uploads.stack().numpy()
        routes.check(uploads.present.tolist(), t)
        uploads = yield Each(routes.signatures(uploads.present.tolist(), signed))

        # Round 4: the sum
        told = dict(zip(uploads.present.tolist(), uploads.stack().numpy(), strict=True))
        if not trial:
            roster = Roster((asked, advertised), bare)
            routes.unmask(_words(total), told, survivors.tolist(), t, roster)
        return Total(code.decode(total, form), survivors)


_SECRETS = ("channel key", "mask key", "own mask", "draws")


def _enough(there: int, needed: int, what: str) -> None:
    if there < needed:
        raise BelowQuorum(f"wire.sum: {there} parties {what}, and {needed} are needed.")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _words(integers: Tensor) -> Words:
    """Integers as words modulo 2^b, of the same memory."""
    found: Words = integers.numpy().view("u4" if integers.dtype == torch.int32 else "u8")
    return found
