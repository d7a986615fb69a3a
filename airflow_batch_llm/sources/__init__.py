"""Where requests come from."""

from __future__ import annotations

from airflow_batch_llm.sources.base import ResolvedSource, Source
from airflow_batch_llm.sources.files import FileSource
from airflow_batch_llm.sources.openai_file import OpenAIBatchFile
from airflow_batch_llm.sources.results import ResultsSource
from airflow_batch_llm.sources.rows import RowsSource, as_source
from airflow_batch_llm.sources.sql import SqlSource

__all__ = [
    "FileSource",
    "OpenAIBatchFile",
    "ResolvedSource",
    "ResultsSource",
    "RowsSource",
    "Source",
    "SqlSource",
    "as_source",
]
