# SPDX-License-Identifier: Apache-2.0
"""The coordinator's registry: who was invited, who belongs, which studies there are, who approved.

It lies in SQLite or PostgreSQL. Every operation is one transaction, and those that write take
turns: what one of them has read still holds when it writes. The coordinator has the lease of its
database, which ends with its process however that ends; others may read and write beside it, an
operation at a time. Times are texts, in UTC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, Self

import sqlalchemy as sa

from archipel.errors import ArchipelError, clean, unknown
from archipel.store import membership
from archipel.store.database import (
    File,
    Lease,
    Session,
    as_text,
    engine_of,
    is_sqlite,
    shown,
    take_turn,
    told,
    upgrade,
    version,
)
from archipel.store.files import now
from archipel.store.membership import Invited, Site
from archipel.store.tables import (
    ACCESS,
    APPROVALS,
    FEDERATION,
    INVITATIONS,
    SEATS,
    SITES,
    STUDIES,
    TABLES,
)

STATES = ("open", "running", "done", "stopped", "failed")  # of a study; open asks for approval
DECISIONS = ("approved", "rejected", "withdrawn")


class Submission(NamedTuple):
    """A study that sites are asked to take part in."""

    hash: str
    name: str
    text: bytes  # of the study file
    submitted: str
    state: str
    note: str


class Decision(NamedTuple):
    """What a site said to a study."""

    site: str
    identity: bytes  # that signed it
    decision: str
    facts: dict[str, Any]
    signature: bytes
    time: str


class Place(NamedTuple):
    """What a site is to a study."""

    identity: bytes  # Ed25519 public key of the site
    decision: str | None  # its latest
    party: int | None  # its number, once it has one


class Registry:
    """Who belongs to a federation; `open` it as the coordinator, `read` it as anybody else."""

    def __init__(self, engine: sa.Engine, lease: Lease | None) -> None:
        self._engine = engine
        self._writer = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._lease = lease

    @classmethod
    def open(cls, url: str, authority: str = "", claims: bool = True) -> Self:
        """Take the coordinator's lease and bring the tables up to this version.

        Once claimed, the database is that of the authority's federation, and of no other.
        """
        engine = engine_of(url, leads=True)
        with told(engine):
            registry = cls(engine, File(engine) if is_sqlite(engine) else Session(engine))
        try:
            with registry._writing() as connection:
                upgrade(connection, TABLES)
                if authority and membership.owner(connection, authority) is None and claims:
                    connection.execute(FEDERATION.insert(), {"authority": authority})
        except BaseException:
            registry.close()
            raise
        return registry

    @classmethod
    def read(cls, url: str, authority: str = "") -> Self:
        """Look, or do single operations, while a coordinator may be up."""
        registry = cls(engine_of(url, leads=False), None)
        try:
            with registry._reading() as connection:
                has, needs = version(connection, TABLES)
            if has != needs:
                holds = f"has tables of version {has}" if has else "holds no registry"
                raise ArchipelError(
                    f"database = '{shown(registry._engine)}': {holds} and this Archipel needs "
                    f"version {needs}; start its coordinator once, which brings it there."
                )
            if authority:
                with registry._reading() as connection:
                    membership.owner(connection, authority)
        except BaseException:
            registry.close()
            raise
        return registry

    def close(self) -> None:
        """End the lease."""
        if self._lease is not None:
            self._lease.release()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with told(self._engine), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that no other writer runs beside."""
        with told(self._engine):
            if self._lease is not None:
                self._lease.assure()
            with self._writer.begin() as connection:
                if not is_sqlite(self._engine):
                    take_turn(connection)
                yield connection

    # -- sites ------------------------------------------------------------------------------------

    def invite(self, site: str, secret: bytes, expires: datetime) -> None:
        """Let a site join with a secret, once; its earlier invitations end."""
        membership.check_name(site)
        with self._writing() as connection:
            joined = connection.scalar(
                sa.select(SITES.c.joined).where(SITES.c.name == site, SITES.c.revoked.is_(None))
            )
            if joined is not None:
                raise ArchipelError(
                    f"site = '{site}': belongs to the federation since {joined}; revoke it first, "
                    "or choose another name."
                )
            membership.withdraw(connection, site)
            connection.execute(
                INVITATIONS.insert(),
                {
                    "site": site,
                    "secret": sha256(secret).hexdigest(),
                    "created": now(),
                    "expires": as_text(expires),
                },
            )

    def invitations(self) -> list[Invited]:
        """All that there ever were, oldest first."""
        with self._reading() as connection:
            return membership.invitations(connection)

    def redeem(
        self, site: str, secret: bytes, identity: bytes, serial: str, until: datetime
    ) -> None:
        """Use an invitation up and enter the site with its public key and certificate."""
        with self._writing() as connection:
            invitation = membership.usable(connection, site, secret)
            membership.enter(connection, invitation, identity)
            membership.certify(connection, site, serial, until)

    def renewed(self, name: str, serial: str, until: datetime) -> None:
        """Enter a further certificate of a site."""
        with self._writing() as connection:
            membership.member(connection, name)
            membership.certify(connection, name, serial, until)

    def revoke(self, name: str, reason: str) -> None:
        """Shut a site out, and end the invitation that it may have."""
        with self._writing() as connection:
            here = (SITES.c.name == name) & SITES.c.revoked.is_(None)
            gone = {"revoked": now(), "reason": clean(reason)}
            revoked = connection.execute(SITES.update().where(here).values(gone)).rowcount
            if not membership.withdraw(connection, name) + revoked:
                query = sa.select(SITES.c.name, SITES.c.revoked)
                known = {row.name: row.revoked for row in connection.execute(query)}
                if name not in known:
                    raise unknown("site", name, known)
                raise ArchipelError(
                    f"site = '{name}': was revoked already, on {known[name]}; nothing is left to "
                    "do."
                )

    def admitted(self, name: str, serial: str) -> None:
        """Refuse a site that does not belong here, or a certificate that is not its own."""
        with self._reading() as connection:
            row = connection.execute(
                membership.ADMITTED, {"name": name, "serial": serial}
            ).one_or_none()
        if membership.belonging(name, row).serial is None:
            raise ArchipelError(
                f"site = '{name}': certificate {serial} is none of the site's own; let it join "
                "again by a new invitation."
            )

    def sites(self) -> list[Site]:
        """All that ever joined, by name."""
        with self._reading() as connection:
            return membership.sites(connection)

    def site(self, name: str) -> Site:
        with self._reading() as connection:
            return membership.site(connection, name)

    # -- studies ----------------------------------------------------------------------------------

    def submit(self, name: str, text: bytes, sites: Collection[str] = ()) -> str:
        """Enter a study, for these sites or else for all; return the hash of its bytes.

        The same bytes again add sites to those that are named: whoever is named may have what was
        learnt, and only they see a study that was for some sites from the first.
        """
        digest = sha256(text).hexdigest()
        study: dict[str, Any] = {"hash": digest, "name": clean(name), "text": text}
        study |= {"submitted": now(), "state": "open", "note": "", "listed": bool(sites)}
        with self._writing() as connection:
            membership.check_known(connection, sites)
            there = sa.select(STUDIES.c.id).where(STUDIES.c.hash == digest)
            if connection.scalar(there) is None:
                connection.execute(STUDIES.insert(), study)
            new = sorted(set(sites) - set(membership.named(connection, digest)))
            if new:
                rows = [{"study": digest, "site": site} for site in new]
                connection.execute(ACCESS.insert(), rows)
        return digest

    def studies(self, site: str | None = None) -> list[Submission]:
        """In the order of submission: all, or those that a site may see."""
        query = _studies() if site is None else _studies().where(membership.visible(site))
        with self._reading() as connection:
            return [Submission(*row) for row in connection.execute(query)]

    def named(self, hash: str) -> list[str]:
        """The sites that a study names."""
        with self._reading() as connection:
            return membership.named(connection, hash)

    def study(self, hash: str, site: str | None = None) -> Submission:
        """A study; one that the site may not see is as if it were not there."""
        with self._reading() as connection:
            return _study(connection, hash, site)

    def set_state(self, hash: str, state: str, note: str = "") -> None:
        if state not in STATES:
            raise unknown("state of a study", state, STATES)
        with self._writing() as connection:
            _study(connection, hash)
            change = STUDIES.update().where(STUDIES.c.hash == hash)
            connection.execute(change.values(state=state, note=clean(note)))

    def decide(
        self, hash: str, site: str, decision: str, facts: Mapping[str, Any], signature: bytes
    ) -> None:
        """Enter what a site says to a study; what it said before stays as history."""
        if decision not in DECISIONS:
            raise unknown("decision", decision, DECISIONS)
        try:
            json.dumps(dict(facts), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ArchipelError(
                f"facts of site '{site}': are no JSON ({error}); send texts, finite numbers, lists "
                "and mappings."
            ) from None
        with self._writing() as connection:
            _study(connection, hash)
            row = {
                "study": hash,
                "site": site,
                "identity": membership.member(connection, site).identity,
                "decision": decision,
                "facts": dict(facts),
                "signature": signature,
                "time": now(),
            }
            connection.execute(APPROVALS.insert(), row)

    def decisions(self, hash: str) -> list[Decision]:
        """The latest of each site, in the order of first approval, then of first decision.

        A site that was revoked decides nothing; one that came back with another key decides anew.
        """
        with self._reading() as connection:
            return _latest(connection, hash)

    def place(self, hash: str, site: str) -> Place:
        """What a site is to a study now, in one look."""
        with self._reading() as connection:
            row = connection.execute(membership.PLACE, {"study": hash, "name": site}).one_or_none()
        row = membership.belonging(site, row)
        return Place(row.identity, row.decision, row.party)

    def history(self, hash: str) -> list[Decision]:
        """All decisions about a study, oldest first."""
        with self._reading() as connection:
            query = _decisions(connection, hash, APPROVALS.c.identity)
            return [Decision(*row) for row in connection.execute(query)]

    def number(self, hash: str) -> list[str]:
        """Give each site that approves a study a number, by name; all that have one, in order.

        Numbers never change, so whoever comes later gets the next free ones.
        """
        with self._writing() as connection:
            there = membership.seats(connection, hash)
            latest = _latest(connection, hash)
            approve = {each.site for each in latest if each.decision == "approved"}
            new = sorted(approve - set(there))
            rows = [
                {"study": hash, "site": site, "party": party}
                for party, site in enumerate(new, len(there))
            ]
            if rows:
                connection.execute(SEATS.insert(), rows)
        return there + new

    def party_states(self, hash: str) -> list[str]:
        """The sites that have a number in a study, in the order of these."""
        with self._reading() as connection:
            return membership.seats(connection, hash)


def _studies() -> sa.Select[Any]:
    columns = [STUDIES.c[field] for field in Submission._fields]
    return sa.select(*columns).order_by(STUDIES.c.id)


def _study(connection: sa.Connection, hash: str, site: str | None = None) -> Submission:
    row = None
    if re.fullmatch("[0-9a-f]{64}", hash):  # a site may send anything
        query = _studies().where(STUDIES.c.hash == hash)
        query = query if site is None else query.where(membership.visible(site))
        row = connection.execute(query).one_or_none()
    if row is None:
        raise ArchipelError(
            f"study = '{hash}': no study here has this hash; submit it, or look up the right one."
        )
    return Submission(*row)


def _latest(connection: sa.Connection, hash: str) -> list[Decision]:
    """What each site that belongs said last, in the order of first approval."""
    query = _decisions(connection, hash, SITES.c.identity).where(SITES.c.revoked.is_(None))
    rows = connection.execute(query).all()
    latest: dict[str, Decision] = {}
    first: dict[str, int] = {}
    for number, each in enumerate(Decision(*row) for row in rows):
        latest[each.site] = each
        if each.decision == "approved":
            first.setdefault(each.site, number)
    return sorted(latest.values(), key=lambda each: first.get(each.site, len(rows)))


def _decisions(connection: sa.Connection, hash: str, identity: sa.Column[bytes]) -> sa.Select[Any]:
    """Those about a study that were signed with an identity."""
    _study(connection, hash)
    columns = [APPROVALS.c[field] for field in Decision._fields]
    query = sa.select(*columns).join(SITES).where(APPROVALS.c.identity == identity)
    return query.where(APPROVALS.c.study == hash).order_by(APPROVALS.c.id)
