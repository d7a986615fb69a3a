"""Answers and sinks as these tests need them."""

from __future__ import annotations

import json
from typing import Any

from airflow_batch_llm.core.drafts import Answer, LandingInfo
from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.sinks import SqlSink
from airflow_batch_llm.sinks.table_sink import SqlTableSink

KEY = JobKey("n", "d", "run-1", "t")
INFO = LandingInfo(KEY, "job-1", 1)

BOOKKEEPING = ", ".join(
    ["_custom_id TEXT", "_model TEXT", "_job_id TEXT", "_run_id TEXT", "_job_created_at DOUBLE PRECISION"]
    + ["_revision BIGINT", "_round BIGINT", "_landed_at TEXT"]
)


def answer_of(number: int, output: Any = "text", **changes: Any) -> Answer:
    fields: dict[str, Any] = {
        "custom_id": str(number),
        "wire_id": f"w{number}",
        "output": output,
        "model": "m-1",
        "usage": {},
        "finish_reason": "stop",
        "round": 0,
        "key": {"id": number},
    }
    return Answer(**(fields | changes))


def sink_of(
    conn_id: str,
    table: str = "labels",
    schema: Any = None,
    *,
    endpoint: str = "/v1/chat/completions",
    carry: tuple[str, ...] = (),
    **arguments: Any,
) -> SqlTableSink:
    arguments = {"key": ["id"], **arguments}
    declared = SqlSink(conn_id, table, **arguments)
    return declared.resolve({}, answer_schema(schema), endpoint=endpoint, carry=carry)


def plain_json(value: Any) -> Any:
    """Return what a column holds of JSON: drivers of PostgreSQL parse it."""
    return json.loads(value) if isinstance(value, str) else value
