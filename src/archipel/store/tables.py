# SPDX-License-Identifier: Apache-2.0
"""The tables of the coordinator's registry. Times are texts, in UTC."""

from __future__ import annotations

import sqlalchemy as sa

from archipel.store.journal import METADATA as JOURNAL

METADATA = sa.MetaData()

INVITATIONS = sa.Table(
    "invitations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("site", sa.String, nullable=False, index=True),
    sa.Column("secret", sa.String, nullable=False),  # its SHA-256
    sa.Column("created", sa.String, nullable=False),
    sa.Column("expires", sa.String, nullable=False),
    sa.Column("used", sa.String),
    sa.Column("withdrawn", sa.String),
)
SITES = sa.Table(
    "sites",
    METADATA,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("identity", sa.LargeBinary, nullable=False),  # Ed25519 public key
    sa.Column("joined", sa.String, nullable=False),
    sa.Column("revoked", sa.String),
    sa.Column("reason", sa.String),
)
CERTIFICATES = sa.Table(
    "certificates",
    METADATA,
    sa.Column("serial", sa.String, primary_key=True),
    sa.Column("site", sa.ForeignKey(SITES.c.name), nullable=False, index=True),
    sa.Column("until", sa.String, nullable=False),
)
STUDIES = sa.Table(
    "studies",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hash", sa.String, nullable=False, unique=True),  # SHA-256 of the text
    sa.Column("name", sa.String, nullable=False),
    sa.Column("text", sa.LargeBinary, nullable=False),
    sa.Column("submitted", sa.String, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("note", sa.String, nullable=False),
    sa.Column("listed", sa.Boolean, nullable=False, server_default=sa.false()),  # see ACCESS
)
ACCESS = sa.Table(  # who a listed study is for; of others, who may have the model without a part
    "access",
    METADATA,
    sa.Column("study", sa.ForeignKey(STUDIES.c.hash), primary_key=True),
    sa.Column("site", sa.String, primary_key=True),  # that joined or was invited
)
FEDERATION = sa.Table(
    "federation",
    METADATA,
    sa.Column("authority", sa.String, primary_key=True),  # SHA-256 of its key: one row
)
APPROVALS = sa.Table(
    "approvals",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("study", sa.ForeignKey(STUDIES.c.hash), nullable=False, index=True),
    sa.Column("site", sa.ForeignKey(SITES.c.name), nullable=False),
    sa.Column("identity", sa.LargeBinary, nullable=False),  # whose signature it is
    sa.Column("decision", sa.String, nullable=False),
    sa.Column("facts", sa.JSON, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    sa.Column("time", sa.String, nullable=False),
)
SEATS = sa.Table(
    "seats",
    METADATA,
    sa.Column("study", sa.ForeignKey(STUDIES.c.hash), primary_key=True),
    sa.Column("site", sa.ForeignKey(SITES.c.name), primary_key=True),
    sa.Column("party", sa.Integer, nullable=False),
    sa.UniqueConstraint("study", "party"),
)
TABLES = METADATA.tables.keys() | JOURNAL.tables.keys()  # of the database: runs are there, too
