"""The protocols that the server speaks, each under its own path, and their line formats.

OpenAI's is at ``/v1``, Azure's at ``/azure``, Anthropic's at ``/anthropic``, the Gemini API's at ``/gemini``,
Mistral's at ``/mistral``: that is the base URL to give to a client, with what the client adds behind.
"""

from __future__ import annotations

from starlette.routing import Route

from airflow_batch_llm.server.anthropic_api import AnthropicApi
from airflow_batch_llm.server.anthropic_lines import AnthropicDialect
from airflow_batch_llm.server.azure_api import AzureApi
from airflow_batch_llm.server.azure_lines import AzureDialect
from airflow_batch_llm.server.gemini_api import GeminiApi
from airflow_batch_llm.server.gemini_lines import GeminiDialect
from airflow_batch_llm.server.mistral_api import MistralApi
from airflow_batch_llm.server.mistral_lines import MistralDialect
from airflow_batch_llm.server.openai_api import OpenAIApi
from airflow_batch_llm.server.openai_lines import OpenAIDialect
from airflow_batch_llm.server.services import Services
from airflow_batch_llm.server.wire import Dialect


def routes(services: Services) -> list[Route]:
    """Return the routes of every protocol."""
    faces = (OpenAIApi, AzureApi, AnthropicApi, GeminiApi, MistralApi)
    return [route for face in faces for route in face(services).routes()]


def dialects() -> dict[str, Dialect]:
    """Return the line formats by name."""
    known: tuple[Dialect, ...] = (
        OpenAIDialect(),
        AzureDialect(),
        AnthropicDialect(),
        GeminiDialect(),
        MistralDialect(),
    )
    return {dialect.name: dialect for dialect in known}
