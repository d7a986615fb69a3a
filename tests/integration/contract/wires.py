"""The protocols that the contract is tested over, and where they differ in what they can do at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_batch_llm.core.model import RequestTemplate
from tests.job_bench import CHAT


@dataclass(frozen=True)
class Wire:
    """One protocol in one of its forms.

    :param options: of the backend.
    :param creates: how the path of a create call ends.
    :param uploads: how the path of an upload ends; "" where the requests go along with the create call.
    :param polls: whether a batch is looked at, or listed, below the path of the create call.
    :param keeps_partial: whether answers of a batch that ended early can be read.
    :param marks: whether a batch can be found by its token.
    :param has_files: whether results are files, that may come in any order and with anything between.
    :param odd_row: makes a row of a type that nobody knows, for an id.
    """

    name: str
    provider: str
    creates: str
    uploads: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    keeps_partial: bool = True
    marks: bool = True
    odd_row: Callable[[str], dict[str, Any]] = lambda wire_id: {"custom_id": wire_id, "response": {"x": 1}}
    embeddings: bool = True

    def template(self, endpoint: str = CHAT, **values: Any) -> RequestTemplate:
        """Return a template that is the same for every protocol."""
        values.setdefault("params", {"max_tokens": 100})
        return RequestTemplate(endpoint, "m-1", **values)

    def odd_line(self, wire_id: str) -> bytes:
        """Return a result line of a type that nobody knows."""
        return json.dumps(self.odd_row(wire_id)).encode()


OPENAI = Wire("openai", "openai", "/v1/batches", "/v1/files")
AZURE = Wire("azure", "azure", "/openai/v1/batches", "/openai/v1/files", embeddings=False)
AZURE_LEGACY = Wire(
    "azure-legacy",
    "azure",
    "/openai/batches",
    "/openai/files",
    {"api_version": "2024-10-21"},
    embeddings=False,
)
ANTHROPIC = Wire(
    "anthropic",
    "anthropic",
    "/v1/messages/batches",
    marks=False,
    odd_row=lambda wire_id: {"custom_id": wire_id, "result": {"type": "paused"}},
    embeddings=False,
)
GEMINI = Wire(
    "gemini",
    "gemini",
    ":batchGenerateContent",
    "/upload/v1beta/files",
    keeps_partial=False,
    odd_row=lambda wire_id: {"key": wire_id, "postponed": {}},
)
GEMINI_INLINE = Wire(
    "gemini-inline",
    "gemini",
    ":batchGenerateContent",
    options={"inline": True},
    keeps_partial=False,
    odd_row=lambda wire_id: {"key": wire_id, "postponed": {}},
)
MISTRAL = Wire("mistral", "mistral", "/v1/batch/jobs", "/v1/files")
MISTRAL_INLINE = Wire("mistral-inline", "mistral", "/v1/batch/jobs", options={"inline": True})

#: Every behaviour is tested over these.
WIRES = (OPENAI, AZURE, ANTHROPIC, GEMINI, MISTRAL)
#: Other forms of the same protocols: what depends on the form is tested over them too.
FORMS = (*WIRES, AZURE_LEGACY, GEMINI_INLINE, MISTRAL_INLINE)
