# SPDX-License-Identifier: Apache-2.0
"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("site", sa.String, nullable=False, index=True),
        sa.Column("secret", sa.String, nullable=False),
        sa.Column("created", sa.String, nullable=False),
        sa.Column("expires", sa.String, nullable=False),
        sa.Column("used", sa.String),
        sa.Column("withdrawn", sa.String),
    )
    op.create_table(
        "sites",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("identity", sa.LargeBinary, nullable=False),
        sa.Column("joined", sa.String, nullable=False),
        sa.Column("revoked", sa.String),
        sa.Column("reason", sa.String),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String, primary_key=True),
        sa.Column("site", sa.String, sa.ForeignKey("sites.name"), nullable=False, index=True),
        sa.Column("until", sa.String, nullable=False),
    )
    op.create_table(
        "studies",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("hash", sa.String, nullable=False, unique=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
        sa.Column("submitted", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("note", sa.String, nullable=False),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study", sa.String, sa.ForeignKey("studies.hash"), nullable=False, index=True),
        sa.Column("site", sa.String, sa.ForeignKey("sites.name"), nullable=False),
        sa.Column("identity", sa.LargeBinary, nullable=False),
        sa.Column("decision", sa.String, nullable=False),
        sa.Column("facts", sa.JSON, nullable=False),
        sa.Column("signature", sa.LargeBinary, nullable=False),
        sa.Column("time", sa.String, nullable=False),
    )
    op.create_table(
        "seats",
        sa.Column("study", sa.String, sa.ForeignKey("studies.hash"), primary_key=True),
        sa.Column("site", sa.String, sa.ForeignKey("sites.name"), primary_key=True),
        sa.Column("party", sa.Integer, nullable=False),
        sa.UniqueConstraint("study", "party"),
    )
