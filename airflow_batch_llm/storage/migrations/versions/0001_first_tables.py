"""Jobs, batches, dead letters, events and the namespace."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from airflow_batch_llm.storage.migrations.new_tables import new_table
from airflow_batch_llm.storage.types import ascii_key, long_text, name, serial

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    _create_job()
    _create_batch()
    _create_dead_letter()
    new_table(
        "batch_llm_event",
        sa.Column("id", serial(), primary_key=True, autoincrement=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("job_id", ascii_key(32), nullable=False),
        sa.Column("batch_id", ascii_key(100)),
        sa.Column("actor", long_text(), nullable=False),
        sa.Column("action", ascii_key(64), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
    )
    op.create_index("batch_llm_event_job", "batch_llm_event", ["job_id", "id"])
    new_table(
        "batch_llm_meta",
        sa.Column("name", ascii_key(64), primary_key=True),
        sa.Column("value", long_text(), nullable=False),
    )


def downgrade() -> None:
    """Drop the tables and all they hold."""
    for table in ("meta", "event", "dead_letter", "batch", "job"):
        op.drop_table(f"batch_llm_{table}")


def _create_job() -> None:
    new_table(
        "batch_llm_job",
        sa.Column("job_id", ascii_key(32), primary_key=True),
        *_key_columns(),
        sa.Column("conn_id", name(), nullable=False),
        sa.Column("provider", ascii_key(64), nullable=False),
        sa.Column("endpoint", long_text(), nullable=False),
        sa.Column("model", long_text(), nullable=False),
        sa.Column("state", ascii_key(16), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("floor_revision", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("plan_id", ascii_key(64)),
        sa.Column("plan_digest", ascii_key(64)),
        sa.Column("counts", long_text(), nullable=False),
        sa.Column("seen", long_text(), nullable=False),
        sa.Column("deadline_at", sa.Double),
        sa.Column("halt_code", ascii_key(64)),
        sa.Column("settled_at", sa.Double),
        *_time_columns(),
    )
    op.create_index("batch_llm_job_run", "batch_llm_job", ["dag_id", "run_id"])
    op.create_index("batch_llm_job_state", "batch_llm_job", ["state", "updated_at"])


def _create_batch() -> None:
    new_table(
        "batch_llm_batch",
        sa.Column("batch_id", ascii_key(100), primary_key=True),
        sa.Column("job_id", ascii_key(32), nullable=False),
        sa.Column("kind", ascii_key(16), nullable=False),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("state", ascii_key(16), nullable=False),
        sa.Column("conn_id", name(), nullable=False),
        sa.Column("provider", ascii_key(64), nullable=False),
        sa.Column("model", long_text(), nullable=False),
        sa.Column("overrides", long_text(), nullable=False),
        sa.Column("plan_id", ascii_key(64), nullable=False),
        sa.Column("path", long_text(), nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", ascii_key(64), nullable=False),
        sa.Column("upload_bytes", sa.BigInteger, nullable=False),
        sa.Column("est_input_tokens", sa.BigInteger, nullable=False),
        sa.Column("max_output_tokens", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("lease_until", sa.Double),
        sa.Column("not_before", sa.Double),
        sa.Column("first_look_at", sa.Double),
        sa.Column("input_file_id", long_text()),
        sa.Column("provider_batch_id", name()),
        sa.Column("provider_status", ascii_key(64)),
        sa.Column("submitted_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("cancel_asked_by", long_text()),
        sa.Column("cancel_asked_at", sa.Double),
        sa.Column("error_code", long_text()),
        sa.Column("files", long_text(), nullable=False),
        sa.Column("outcomes_sha256", ascii_key(64)),
        sa.Column("judge", ascii_key(128)),
        sa.Column("counts", long_text(), nullable=False),
        *_usage_columns(),
        *_time_columns(),
    )
    op.create_index("batch_llm_batch_job", "batch_llm_batch", ["job_id", "revision", "round", "seq"])
    op.create_index("batch_llm_batch_account", "batch_llm_batch", ["conn_id", "state"])
    op.create_index("batch_llm_batch_provider", "batch_llm_batch", ["provider_batch_id"])


def _create_dead_letter() -> None:
    new_table(
        "batch_llm_dead_letter",
        sa.Column("job_id", ascii_key(32), primary_key=True),
        sa.Column("wire_id", ascii_key(64), primary_key=True),
        sa.Column("custom_id", long_text(), nullable=False),
        sa.Column("custom_id_as", ascii_key(8), nullable=False),
        *_key_columns(),
        sa.Column("revision", sa.Integer, nullable=False),
        sa.Column("provider", ascii_key(64), nullable=False),
        sa.Column("model", long_text(), nullable=False),
        sa.Column("verdict", ascii_key(32), nullable=False),
        sa.Column("code", long_text(), nullable=False),
        sa.Column("message", long_text(), nullable=False),
        sa.Column("exhausted", sa.Boolean, nullable=False),
        sa.Column("request_path", long_text(), nullable=False),
        sa.Column("attempts", long_text(), nullable=False),
        sa.Column("attempt_count", sa.Integer, nullable=False),
        *_usage_columns(),
        sa.Column("state", ascii_key(16), nullable=False),
        sa.Column("actor", long_text(), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("changes", long_text(), nullable=False),
        *_time_columns(),
    )
    op.create_index("batch_llm_dead_letter_state", "batch_llm_dead_letter", ["job_id", "state"])
    op.create_index("batch_llm_dead_letter_dag", "batch_llm_dead_letter", ["dag_id", "state"])


def _key_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("namespace", ascii_key(32), nullable=False),
        sa.Column("dag_id", name(), nullable=False),
        sa.Column("run_id", name(), nullable=False),
        sa.Column("task_id", name(), nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
    ]


def _usage_columns() -> list[sa.Column[Any]]:
    kinds = ("input", "output", "cached", "cache_write", "reasoning")
    return [sa.Column(f"usage_{kind}", sa.BigInteger, nullable=False) for kind in kinds]


def _time_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    ]
