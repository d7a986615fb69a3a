"""The ledger's tables. What each row means is told by the dataclasses of ``core/model.py``.

Times are seconds since the epoch by the database's clock; columns that hold JSON are text written by
us, so that equal values are equal bytes in every database. Without a schema here: engines name one by
``schema_translate_map``. A change here needs a migration in ``migrations/versions``.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, Table

from airflow_batch_llm.storage.types import ascii_key, long_text, name, serial

metadata = MetaData()

job = Table(
    "batch_llm_job",
    metadata,
    Column("job_id", ascii_key(32), primary_key=True),
    Column("namespace", ascii_key(32), nullable=False),
    Column("dag_id", name(), nullable=False),
    Column("run_id", name(), nullable=False),
    Column("task_id", name(), nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("conn_id", name(), nullable=False),
    Column("provider", ascii_key(64), nullable=False),
    Column("endpoint", long_text(), nullable=False),
    Column("model", long_text(), nullable=False),
    Column("state", ascii_key(16), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("floor_revision", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("plan_id", ascii_key(64)),
    Column("plan_digest", ascii_key(64)),
    Column("counts", long_text(), nullable=False),
    Column("seen", long_text(), nullable=False),
    Column("deadline_at", Double),
    Column("halt_code", ascii_key(64)),
    Column("settled_at", Double),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("batch_llm_job_run", "dag_id", "run_id"),
    Index("batch_llm_job_state", "state", "updated_at"),
)

batch = Table(
    "batch_llm_batch",
    metadata,
    Column("batch_id", ascii_key(100), primary_key=True),
    Column("job_id", ascii_key(32), nullable=False),
    Column("kind", ascii_key(16), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("state", ascii_key(16), nullable=False),
    Column("conn_id", name(), nullable=False),
    Column("provider", ascii_key(64), nullable=False),
    Column("model", long_text(), nullable=False),
    Column("overrides", long_text(), nullable=False),
    Column("plan_id", ascii_key(64), nullable=False),
    Column("path", long_text(), nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", ascii_key(64), nullable=False),
    Column("upload_bytes", BigInteger, nullable=False),
    Column("est_input_tokens", BigInteger, nullable=False),
    Column("max_output_tokens", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("lease_until", Double),
    Column("not_before", Double),
    Column("first_look_at", Double),
    Column("input_file_id", long_text()),
    Column("provider_batch_id", name(700)),
    Column("provider_status", ascii_key(64)),
    Column("submitted_at", Double),
    Column("ended_at", Double),
    Column("cancel_asked_by", long_text()),
    Column("cancel_asked_at", Double),
    Column("error_code", long_text()),
    Column("files", long_text(), nullable=False),
    Column("outcomes_sha256", ascii_key(64)),
    Column("judge", ascii_key(128)),
    Column("counts", long_text(), nullable=False),
    Column("usage_input", BigInteger, nullable=False),
    Column("usage_output", BigInteger, nullable=False),
    Column("usage_cached", BigInteger, nullable=False),
    Column("usage_cache_write", BigInteger, nullable=False),
    Column("usage_reasoning", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    # Where the provider shows no mark of ours (empty: no).
    Column("provisional", Boolean),
    Column("not_ours", long_text()),
    # Where it was sent; empty in what is planned, and in rows of before.
    Column("address", long_text()),
    Column("account", ascii_key(16)),
    Index("batch_llm_batch_job", "job_id", "revision", "round", "seq"),
    Index("batch_llm_batch_account", "conn_id", "state"),
    Index("batch_llm_batch_provider", "provider_batch_id"),
)

dead_letter = Table(
    "batch_llm_dead_letter",
    metadata,
    Column("job_id", ascii_key(32), primary_key=True),
    Column("wire_id", ascii_key(64), primary_key=True),
    Column("custom_id", long_text(), nullable=False),
    # "text", or "json": an id with U+0000, which PostgreSQL's text cannot hold, stands as a JSON string.
    Column("custom_id_as", ascii_key(8), nullable=False),
    Column("namespace", ascii_key(32), nullable=False),
    Column("dag_id", name(), nullable=False),
    Column("run_id", name(), nullable=False),
    Column("task_id", name(), nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("provider", ascii_key(64), nullable=False),
    Column("model", long_text(), nullable=False),
    Column("verdict", ascii_key(32), nullable=False),
    Column("code", long_text(), nullable=False),
    Column("message", long_text(), nullable=False),
    Column("exhausted", Boolean, nullable=False),
    Column("request_path", long_text(), nullable=False),
    Column("attempts", long_text(), nullable=False),
    Column("attempt_count", Integer, nullable=False),
    Column("usage_input", BigInteger, nullable=False),
    Column("usage_output", BigInteger, nullable=False),
    Column("usage_cached", BigInteger, nullable=False),
    Column("usage_cache_write", BigInteger, nullable=False),
    Column("usage_reasoning", BigInteger, nullable=False),
    Column("state", ascii_key(16), nullable=False),
    Column("actor", long_text(), nullable=False),
    Column("reason", long_text(), nullable=False),
    # One JSON line per change of state: time, from, to, actor, reason.
    Column("changes", long_text(), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Index("batch_llm_dead_letter_state", "job_id", "state"),
    Index("batch_llm_dead_letter_dag", "dag_id", "state"),
)

event = Table(
    "batch_llm_event",
    metadata,
    Column("id", serial(), primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("job_id", ascii_key(32), nullable=False),
    Column("batch_id", ascii_key(100)),
    Column("actor", long_text(), nullable=False),
    Column("action", ascii_key(64), nullable=False),
    Column("reason", long_text(), nullable=False),
    Index("batch_llm_event_job", "job_id", "id"),
)

hold = Table(
    "batch_llm_hold",
    metadata,
    Column("conn_id", name(), primary_key=True),
    Column("code", ascii_key(64), nullable=False),
    Column("origin", ascii_key(16), nullable=False),
    Column("job_id", ascii_key(32), nullable=False),
    Column("batch_id", ascii_key(100)),
    Column("actor", long_text(), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("held_at", Double, nullable=False),
    Column("probe_at", Double),
    Column("probes", Integer, nullable=False),
    Column("probe_batch_id", ascii_key(100)),
    Column("version", BigInteger, nullable=False),
)

answer = Table(
    "batch_llm_answer",
    metadata,
    Column("request_hash", ascii_key(43), primary_key=True),
    Column("task", ascii_key(32), primary_key=True),
    # Empty where the row was sent again with another model or limit: then it is no answer for other tasks.
    Column("connection", ascii_key(32), primary_key=True),
    Column("job_id", ascii_key(32), nullable=False),
    Column("batch_id", ascii_key(100), nullable=False),
    Column("wire_id", ascii_key(64), nullable=False),
    Column("answered_at", Double, nullable=False),
    Index("batch_llm_answer_job", "job_id", "wire_id"),
    Index("batch_llm_answer_age", "answered_at"),
)

meta = Table(
    "batch_llm_meta",
    metadata,
    Column("name", ascii_key(64), primary_key=True),
    Column("value", long_text(), nullable=False),
)
