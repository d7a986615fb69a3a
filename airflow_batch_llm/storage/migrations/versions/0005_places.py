"""Where each batch was sent: a connection may be given another server or another account."""

from __future__ import annotations

import sqlalchemy as sa

from airflow_batch_llm.storage.migrations.new_tables import drop_column, new_column
from airflow_batch_llm.storage.types import ascii_key, long_text

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Of batches from before it is not known: they count as being where their connection
    says."""
    new_column("batch_llm_batch", sa.Column("address", long_text()))
    new_column("batch_llm_batch", sa.Column("account", ascii_key(16)))


def downgrade() -> None:
    """Drop the columns: every batch counts as being where its connection says."""
    drop_column("batch_llm_batch", "account")
    drop_column("batch_llm_batch", "address")
