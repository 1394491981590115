# SPDX-License-Identifier: Apache-2.0
"""Which federation it is, and which sites a study is for."""

import sqlalchemy as sa
from alembic import op

revision = "003"
down_revision = "002"


def upgrade() -> None:
    op.create_table("federation", sa.Column("authority", sa.String, primary_key=True))
    op.create_table(
        "access",
        sa.Column("study", sa.String, sa.ForeignKey("studies.hash"), primary_key=True),
        sa.Column("site", sa.String, primary_key=True),
    )
    op.add_column(
        "studies", sa.Column("listed", sa.Boolean, nullable=False, server_default=sa.false())
    )
