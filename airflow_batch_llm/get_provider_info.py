"""What Airflow reads to know this package: connection type, form, modules, ``[batch_llm]`` settings.

Plain data and no imports: every Airflow command calls this at start-up.
"""

from __future__ import annotations

from typing import Any

_INTEGRATION = "LLM batch jobs"

#: What the form's field "Dialect" offers: the names of the providers (``backends.registry``), in its order.
DIALECTS = (
    "openai", "groq", "nebius", "deepinfra", "parasail", "doubleword", "morph", "alibaba", "litellm",
    "aibrix", "llm-d", "ogx", "generic", "azure", "anthropic", "gemini", "mistral",
)  # fmt: skip


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description (schema: ``airflow/provider_info.schema.json``)."""
    return {
        "package-name": "airflow-batch-llm",
        "name": "Batch LLM",
        "description": (
            "LLM work in bulk through the providers' batch APIs: submit, deferrable wait, reconcile by id, "
            "retry of failed rows, dead letters and re-drive."
        ),
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://platform.openai.com/docs/guides/batch",
                "tags": ["ai", "llm", "batch", "openai"],
            }
        ],
        "hooks": [_modules("airflow_batch_llm.hooks.batch_llm")],
        "operators": [
            _modules(
                "airflow_batch_llm.operators.submit",
                "airflow_batch_llm.operators.reconcile",
                "airflow_batch_llm.operators.retry",
                "airflow_batch_llm.operators.dead_letter",
                "airflow_batch_llm.operators.redrive",
                "airflow_batch_llm.operators.batch_llm",
            )
        ],
        "task-decorators": [
            {
                "name": "batch_llm_rows",
                "class-name": "airflow_batch_llm.decorators.batch_llm_rows.batch_llm_rows_task",
            }
        ],
        "triggers": [_modules("airflow_batch_llm.triggers.batches")],
        "connection-types": [_connection_type()],
        "config": {"batch_llm": {"description": "Settings of airflow-batch-llm.", "options": _options()}},
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": list(names)}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "batch_llm",
        "hook-class-name": "airflow_batch_llm.hooks.batch_llm.BatchLLMHook",
        "hook-name": "LLM batch API",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "login", "port"],
            "relabeling": {"host": "Base URL", "password": "API key"},
            "placeholders": {"host": "https://api.openai.com/v1", "password": "sk-..."},
        },
        "conn-fields": _connection_fields(),
    }


def _connection_fields() -> dict[str, Any]:
    return {
        "dialect": {
            "label": "Dialect",
            "description": (
                "Whose batch protocol is spoken (batch-llm providers); generic: a server with OpenAI's "
                "files and batches."
            ),
            "schema": {"type": "string", "default": "openai", "enum": list(DIALECTS)},
        },
        "model": _text("Default model", "Used where a task names no model, e.g. gpt-5-mini."),
        "max_requests": _number(
            "Max requests per batch", "Lowers the provider's limit of requests in one batch."
        ),
        "max_bytes": _number("Max bytes per batch file", "Lowers the provider's limit of bytes in one file."),
        "max_line_bytes": _number(
            "Max bytes per request", "Requests above it go to the dead letters unsent."
        ),
        "organization": _text("Organization", "Sent as OpenAI-Organization (OpenAI and gateways to it)."),
        "project": _text("Project", "Sent as OpenAI-Project (OpenAI and gateways to it)."),
        "timeout": {
            "label": "Timeout (seconds)",
            "description": "Time allowed for one reply; creating a batch has [batch_llm] create_timeout.",
            "schema": {"type": ["number", "null"], "exclusiveMinimum": 0},
        },
        "completion_window": _text(
            "Completion window",
            "How long a batch may take, as the provider writes it (24h, 7d), where it leaves a choice.",
        ),
        "api_version": _text(
            "API version",
            "Anthropic: the anthropic-version header (2023-06-01). Azure: that version's older paths "
            "(2024-10-21). Gemini: the part of the paths (v1beta). Empty: what this package was made for.",
        ),
        "auth": {
            "label": "Auth",
            "description": (
                "How the key is sent, where there are two ways: key (a header of its own), or bearer (a "
                "Microsoft Entra token for Azure, say). Empty: the provider's usual way."
            ),
            "schema": {"type": ["string", "null"], "enum": ["key", "bearer", None]},
        },
        "inline": {
            "label": "Inline requests",
            "description": (
                "Send the requests with the create call in place of an upload, where a provider has both "
                "(Gemini, Mistral)."
            ),
            "schema": {"type": ["boolean", "null"]},
        },
        "betas": _text("Betas", "Anthropic: names for the anthropic-beta header, with commas between them."),
    }


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def _number(label: str, description: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": description,
        "schema": {"type": ["integer", "null"], "minimum": 1},
    }


def _options() -> dict[str, Any]:
    return {
        "ledger_conn_id": _option(
            "string",
            "",
            "Connection (postgres, mysql or sqlite) of the database for jobs, batches, dead letters and "
            "events. Empty: an SQLite file in AIRFLOW_HOME, for one machine only.",
            example="batch_llm_ledger",
        ),
        "ledger_schema": _option(
            "string", "", "Schema of the ledger's tables (PostgreSQL). Empty: the connection's search path."
        ),
        "workspace": _option(
            "string",
            "",
            "Folder on object storage for requests, raw results and answers. Empty: "
            "{AIRFLOW_HOME}/batch_llm/workspace, for one machine only.",
            example="s3://aws_default@my-bucket/batch_llm",
        ),
        "allow_local_state": _option(
            "boolean",
            "False",
            "Say that a local ledger file or workspace lies on a disk that all workers share. Without it, "
            "local state is refused with executors whose workers may sit on other hosts.",
        ),
        "first_poll_delay": _option(
            "float",
            "10",
            "Seconds from a defer to the trigger's first look at the provider. Not below [workers] "
            "min_heartbeat_interval (5 s): Airflow 3.3 may fail a task whose trigger fires within it.",
        ),
        "poll_interval_min": _option("float", "15", "Shortest time in seconds between two looks."),
        "poll_interval_max": _option("float", "300", "Longest time in seconds between two looks."),
        "create_timeout": _option(
            "float",
            "60",
            "Seconds allowed for the reply to the call that creates a batch; where the requests go along "
            "with it (Anthropic, inline), a second more for each 500 kB of them.",
        ),
        "find_interval": _option(
            "float",
            "60",
            "Seconds between the two looks that must both find nothing before a create call whose reply was "
            "lost is sent again.",
        ),
        "probe_interval_min": _option(
            "float",
            "300",
            "Seconds from a fault of the account, which holds the connection, to the first trial; also how "
            "often a waiting job looks whether the connection was released.",
        ),
        "probe_interval_max": _option(
            "float", "3600", "The time in seconds between two trials of a held connection doubles up to this."
        ),
    }


def _option(type_: str, default: str, description: str, *, example: str | None = None) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": type_,
        "example": example,
        "default": default,
    }
