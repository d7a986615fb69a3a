"""Answers that later jobs may take."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_batch_llm.storage.migrations.new_tables import new_table
from airflow_batch_llm.storage.types import ascii_key

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    new_table(
        "batch_llm_answer",
        sa.Column("request_hash", ascii_key(43), primary_key=True),
        sa.Column("task", ascii_key(32), primary_key=True),
        sa.Column("connection", ascii_key(32), primary_key=True),
        sa.Column("job_id", ascii_key(32), nullable=False),
        sa.Column("batch_id", ascii_key(100), nullable=False),
        sa.Column("wire_id", ascii_key(64), nullable=False),
        sa.Column("answered_at", sa.Double, nullable=False),
    )
    op.create_index("batch_llm_answer_job", "batch_llm_answer", ["job_id", "wire_id"])
    op.create_index("batch_llm_answer_age", "batch_llm_answer", ["answered_at"])


def downgrade() -> None:
    """Drop the table: later jobs buy every answer themselves."""
    op.drop_table("batch_llm_answer")
