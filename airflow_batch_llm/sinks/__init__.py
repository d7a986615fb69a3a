"""Where answers go."""

from __future__ import annotations

from airflow_batch_llm.sinks.sql import SqlSink

__all__ = ["SqlSink"]
