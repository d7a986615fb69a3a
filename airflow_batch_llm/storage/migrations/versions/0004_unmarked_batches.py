"""Batches that a provider without marks may hold for us, and ids that are longer than most."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_batch_llm.storage.migrations.new_tables import drop_column, new_column, widen_column
from airflow_batch_llm.storage.types import long_text, name

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Batches from before were found by their marks, so that they hold nothing there."""
    new_column("batch_llm_batch", sa.Column("provisional", sa.Boolean))
    new_column("batch_llm_batch", sa.Column("not_ours", long_text()))
    # A LiteLLM proxy wraps the provider's ids into its own.
    widen_column("batch_llm_batch", "provider_batch_id", name(700))


def downgrade() -> None:
    """Drop the columns: whatever was adopted provisionally counts as ours for certain."""
    drop_column("batch_llm_batch", "not_ours")
    drop_column("batch_llm_batch", "provisional")
