# SPDX-License-Identifier: Apache-2.0
"""The journals of runs."""

import sqlalchemy as sa
from alembic import op

revision = "002"
down_revision = "001"


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("description", sa.JSON, nullable=False),
        sa.Column("hash", sa.String, nullable=False),
        sa.Column("plan", sa.JSON),
        sa.Column("environment", sa.JSON, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("started", sa.String, nullable=False),
        sa.Column("ended", sa.String),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("baselines", sa.JSON),
        sa.Column("summary", sa.JSON),
        sa.Column("scorecard", sa.JSON),
    )
    op.create_table(
        "roster",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("party", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("training_points", sa.BigInteger, nullable=False),
        sa.Column("test_points", sa.BigInteger, nullable=False),
        sa.Column("trains", sa.Boolean, nullable=False),
    )
    op.create_table(
        "rounds",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("sampled", sa.JSON, nullable=False),
        sa.Column("missing", sa.JSON, nullable=False),
        sa.Column("late", sa.JSON, nullable=False),
        sa.Column("counted", sa.Boolean, nullable=False),
        sa.Column("waited", sa.Integer, nullable=False),
        sa.Column("blocked", sa.JSON, nullable=False),
        sa.Column("gradients", sa.BigInteger, nullable=False),
        sa.Column("bytes_up", sa.BigInteger, nullable=False),
        sa.Column("bytes_down", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "evaluations",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("entry", sa.JSON, nullable=False),
    )
    op.create_table(
        "party_metrics",
        sa.Column("run", sa.String, primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True),
        sa.Column("metric", sa.String, primary_key=True),
        sa.Column("values", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run", sa.String, nullable=False, index=True),
        sa.Column("time", sa.String, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("text", sa.String, nullable=False),
    )
