"""Connections on which nothing is sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_batch_llm.storage.migrations.new_tables import new_table
from airflow_batch_llm.storage.types import ascii_key, long_text, name

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    new_table(
        "batch_llm_hold",
        sa.Column("conn_id", name(), primary_key=True),
        sa.Column("code", ascii_key(64), nullable=False),
        sa.Column("origin", ascii_key(16), nullable=False),
        sa.Column("job_id", ascii_key(32), nullable=False),
        sa.Column("batch_id", ascii_key(100)),
        sa.Column("actor", long_text(), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("held_at", sa.Double, nullable=False),
        sa.Column("probe_at", sa.Double),
        sa.Column("probes", sa.Integer, nullable=False),
        sa.Column("probe_batch_id", ascii_key(100)),
        sa.Column("version", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop the table: every connection counts as released."""
    op.drop_table("batch_llm_hold")
