"""Answers after the job: read by programs, published as Parquet."""

from __future__ import annotations

from airflow_batch_llm.results.reading import Results, read_results

__all__ = ["Results", "read_results"]
