# SPDX-License-Identifier: Apache-2.0
"""Who belongs to a federation and may see what: the parts that the registry's operations share.

Each works within the transaction of an operation, and refuses in one sentence what may not be.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NamedTuple

import sqlalchemy as sa

from archipel.errors import ArchipelError, unknown
from archipel.store.database import as_text, shown
from archipel.store.files import now
from archipel.store.tables import (
    ACCESS,
    APPROVALS,
    CERTIFICATES,
    FEDERATION,
    INVITATIONS,
    SEATS,
    SITES,
    STUDIES,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class Invited(NamedTuple):
    """An invitation, without its secret."""

    site: str
    created: str
    expires: str
    used: str | None
    withdrawn: str | None


class Site(NamedTuple):
    """One that belongs, or did."""

    name: str
    identity: bytes
    joined: str
    revoked: str | None
    reason: str | None
    until: str  # when its last certificate ends


def check_name(site: str) -> None:
    """Refuse a name that no site may have."""
    if not _NAME.fullmatch(site):
        raise ArchipelError(
            f"site = '{site}': a site's name has 1 to 40 of a-z, 0-9 and '-', and no '-' in "
            "front; choose such a name."
        )
    if site == "coordinator" or site.startswith("invited"):
        raise ArchipelError(
            f"site = '{site}': no site may be called 'coordinator' or 'invited...', which the "
            "federation itself uses; choose another name."
        )


def invitations(connection: sa.Connection) -> list[Invited]:
    """All that there ever were, oldest first."""
    columns = [INVITATIONS.c[field] for field in Invited._fields]
    rows = connection.execute(sa.select(*columns).order_by(INVITATIONS.c.id))
    return [Invited(*row) for row in rows]


def usable(connection: sa.Connection, site: str, secret: bytes) -> sa.Row[Any]:
    """The invitation that a site's secret is of; refuse one that counts no more."""
    digest = sha256(secret).hexdigest()
    query = sa.select(INVITATIONS).where(INVITATIONS.c.site == site)
    rows = connection.execute(query.order_by(INVITATIONS.c.id)).all()
    if not rows:
        raise ArchipelError(
            f"site = '{site}': was never invited; ask the coordinator for an invitation."
        )
    meant = [row for row in rows if compare_digest(row.secret, digest)]
    if not meant:
        raise ArchipelError(
            f"site = '{site}': the invitation's secret is wrong; copy all of the token, or "
            "ask the coordinator for a new one."
        )
    invitation = meant[-1]
    for what, when in [
        ("was used already, on", invitation.used),
        ("was withdrawn on", invitation.withdrawn),
        ("expired on", invitation.expires if invitation.expires <= now() else None),
    ]:
        if when is not None:
            raise ArchipelError(
                f"site = '{site}': the invitation {what} {when}; use a newer one, or ask "
                "the coordinator for one."
            )
    return invitation


def enter(connection: sa.Connection, invitation: sa.Row[Any], identity: bytes) -> None:
    """Use an invitation up: its site belongs from now on, with this public key."""
    site = invitation.site
    connection.execute(
        INVITATIONS.update().where(INVITATIONS.c.id == invitation.id).values(used=now())
    )
    entry = {"identity": identity, "joined": now(), "revoked": None, "reason": None}
    again = connection.execute(SITES.update().where(SITES.c.name == site).values(entry))
    if again.rowcount:  # a revoked site comes back: what it had counts no more
        connection.execute(CERTIFICATES.delete().where(CERTIFICATES.c.site == site))
    else:
        connection.execute(SITES.insert(), {"name": site, **entry})


def owner(connection: sa.Connection, authority: str) -> str | None:
    """The authority whose federation the database holds; refuse one that is another's."""
    found: str | None = connection.scalar(sa.select(FEDERATION.c.authority))
    if found not in (None, authority):
        raise ArchipelError(
            f"database = '{shown(connection.engine)}': holds another federation, of the authority "
            f"{str(found)[:12]}, and this one's is {authority[:12]}; give each a database of its "
            "own."
        )
    return found


def _admitted() -> sa.Select[Any]:
    """A site, with the certificate that it shows if it is its own."""
    own = CERTIFICATES.c.site == SITES.c.name, CERTIFICATES.c.serial == sa.bindparam("serial")
    query = sa.select(SITES, CERTIFICATES.c.serial).join(CERTIFICATES, sa.and_(*own), isouter=True)
    return query.where(SITES.c.name == sa.bindparam("name"))


def _place() -> sa.Select[Any]:
    """A site, with what it last said to a study and its number there."""
    study, site = sa.bindparam("study", type_=sa.String), sa.bindparam("name", type_=sa.String)
    said = sa.select(APPROVALS.c.decision).order_by(APPROVALS.c.id.desc()).limit(1)
    said = said.where(APPROVALS.c.study == study, APPROVALS.c.site == site)
    said = said.where(APPROVALS.c.identity == SITES.c.identity)
    party = sa.select(SEATS.c.party).where(SEATS.c.study == study, SEATS.c.site == site)
    both = said.scalar_subquery().label("decision"), party.scalar_subquery().label("party")
    return sa.select(SITES, *both).where(SITES.c.name == site)


ADMITTED, PLACE = _admitted(), _place()  # every letter asks them, so they are made once


def belonging(name: str, row: sa.Row[Any] | None) -> sa.Row[Any]:
    """Refuse a site that is unknown or revoked."""
    if row is None:
        raise ArchipelError(
            f"site = '{name}': does not belong to this federation; ask the coordinator for an "
            "invitation."
        )
    if row.revoked is not None:
        raise ArchipelError(
            f"site = '{name}': was revoked on {row.revoked} ({row.reason}); ask the coordinator "
            "for a new invitation."
        )
    return row


def member(connection: sa.Connection, name: str) -> sa.Row[Any]:
    query = sa.select(SITES).where(SITES.c.name == name)
    return belonging(name, connection.execute(query).one_or_none())


def withdraw(connection: sa.Connection, site: str) -> int:
    """End a site's invitations that could still be used; return how many there were."""
    invitations = INVITATIONS.update().where(
        INVITATIONS.c.site == site,
        INVITATIONS.c.used.is_(None),
        INVITATIONS.c.withdrawn.is_(None),
    )
    return connection.execute(invitations.values(withdrawn=now())).rowcount


def certify(connection: sa.Connection, site: str, serial: str, until: datetime) -> None:
    taken = sa.select(CERTIFICATES.c.site).where(CERTIFICATES.c.serial == serial)
    if (owner := connection.scalar(taken)) is not None:
        raise ArchipelError(
            f"site = '{site}': certificate {serial} is in the registry already, of site '{owner}'; "
            "issue another."
        )
    row = {"serial": serial, "site": site, "until": as_text(until)}
    connection.execute(CERTIFICATES.insert(), row)


def _sites() -> sa.Select[Any]:
    until = sa.select(sa.func.max(CERTIFICATES.c.until)).where(CERTIFICATES.c.site == SITES.c.name)
    return sa.select(SITES, until.scalar_subquery())


def sites(connection: sa.Connection) -> list[Site]:
    """All that ever joined, by name."""
    return [Site(*row) for row in connection.execute(_sites().order_by(SITES.c.name))]


def site(connection: sa.Connection, name: str) -> Site:
    row = connection.execute(_sites().where(SITES.c.name == name)).one_or_none()
    if row is None:
        raise unknown("site", name, connection.scalars(sa.select(SITES.c.name)))
    return Site(*row)


def check_known(connection: sa.Connection, sites: Collection[str]) -> None:
    """Refuse names of sites that neither belong nor are invited."""
    members = sa.select(SITES.c.name).where(SITES.c.revoked.is_(None))
    invited = sa.select(INVITATIONS.c.site).where(
        INVITATIONS.c.used.is_(None), INVITATIONS.c.withdrawn.is_(None)
    )
    known = set(connection.scalars(sa.union(members, invited)))
    for site in sites:
        if site not in known:
            raise unknown("site", site, known)


def named(connection: sa.Connection, hash: str) -> list[str]:
    query = sa.select(ACCESS.c.site).where(ACCESS.c.study == hash).order_by(ACCESS.c.site)
    return list(connection.scalars(query))


def visible(site: str) -> sa.ColumnElement[bool]:
    """Of studies: for all, or for this site."""
    named = sa.select(ACCESS.c.study).where(ACCESS.c.site == site)
    return sa.or_(STUDIES.c.listed.is_(False), STUDIES.c.hash.in_(named))


def seats(connection: sa.Connection, hash: str) -> list[str]:
    query = sa.select(SEATS.c.site).where(SEATS.c.study == hash).order_by(SEATS.c.party)
    return list(connection.execute(query).scalars())
