"""Airflow building blocks for LLM work in bulk through the providers' batch APIs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from airflow_batch_llm.core.policy import RowRetry
    from airflow_batch_llm.core.retention import Retention
    from airflow_batch_llm.core.reuse import Reuse
    from airflow_batch_llm.operators.batch_llm import BatchLLMOperator
    from airflow_batch_llm.operators.dead_letter import BatchLLMDeadLetterOperator
    from airflow_batch_llm.operators.reconcile import BatchLLMReconcileOperator
    from airflow_batch_llm.operators.redrive import BatchLLMRedriveOperator
    from airflow_batch_llm.operators.retry import BatchLLMRetryOperator
    from airflow_batch_llm.operators.submit import BatchLLMSubmitOperator
    from airflow_batch_llm.prompts import Image, RowPrompt
    from airflow_batch_llm.results.reading import read_results
    from airflow_batch_llm.sinks.sql import SqlSink
    from airflow_batch_llm.sources.files import FileSource
    from airflow_batch_llm.sources.openai_file import OpenAIBatchFile
    from airflow_batch_llm.sources.results import ResultsSource
    from airflow_batch_llm.sources.rows import RowsSource
    from airflow_batch_llm.sources.sql import SqlSource
    from airflow_batch_llm.task_groups.batch_llm import batch_llm_group

#: Where each public name lives; loaded on first use, so that importing the package costs nothing.
_HOMES = {
    "BatchLLMDeadLetterOperator": "operators.dead_letter",
    "BatchLLMOperator": "operators.batch_llm",
    "BatchLLMReconcileOperator": "operators.reconcile",
    "BatchLLMRedriveOperator": "operators.redrive",
    "BatchLLMRetryOperator": "operators.retry",
    "BatchLLMSubmitOperator": "operators.submit",
    "FileSource": "sources.files",
    "Image": "prompts",
    "OpenAIBatchFile": "sources.openai_file",
    "ResultsSource": "sources.results",
    "Retention": "core.retention",
    "Reuse": "core.reuse",
    "RowPrompt": "prompts",
    "RowRetry": "core.policy",
    "RowsSource": "sources.rows",
    "SqlSink": "sinks.sql",
    "SqlSource": "sources.sql",
    "batch_llm_group": "task_groups.batch_llm",
    "read_results": "results.reading",
}

__all__ = [
    "BatchLLMDeadLetterOperator",
    "BatchLLMOperator",
    "BatchLLMReconcileOperator",
    "BatchLLMRedriveOperator",
    "BatchLLMRetryOperator",
    "BatchLLMSubmitOperator",
    "FileSource",
    "Image",
    "OpenAIBatchFile",
    "ResultsSource",
    "Retention",
    "Reuse",
    "RowPrompt",
    "RowRetry",
    "RowsSource",
    "SqlSink",
    "SqlSource",
    "__version__",
    "batch_llm_group",
    "read_results",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
