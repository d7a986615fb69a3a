"""Prompts: how a row becomes the body of a request.

Templates are never rendered by Airflow: ``{{ row.body }}`` means a column of the source, and a ticket whose
text holds ``{{ … }}`` stays text.
"""

from airflow_batch_llm.prompts.compiled import CompiledPrompt
from airflow_batch_llm.prompts.faults import UnrenderableRow
from airflow_batch_llm.prompts.images import Image
from airflow_batch_llm.prompts.row_prompt import RowPrompt
from airflow_batch_llm.prompts.templates import Row

__all__ = ["CompiledPrompt", "Image", "Row", "RowPrompt", "UnrenderableRow"]
