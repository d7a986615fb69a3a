"""Azure OpenAI: OpenAI's protocol behind other addresses, with files that need time and a window without end.

Reference: learn.microsoft.com, "Azure OpenAI batch" (Foundry), v1 API and the API with ``api-version``.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_batch_llm.backends.base import client_for
from airflow_batch_llm.backends.dialects import Dialect
from airflow_batch_llm.backends.openai import OpenAIBackend
from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.backends.options import BackendOptions, particular
from airflow_batch_llm.backends.provider import Form, Provider
from airflow_batch_llm.core.endpoints import CHAT, RESPONSES
from airflow_batch_llm.core.ports import Backend, Limits
from airflow_batch_llm.exceptions import ConfigurationError, NotFound, Refused

_DAY = 86_400
#: An upload or a result may live from 14 to 30 days.
_EXPIRY = (14 * _DAY, 30 * _DAY)
#: The first version of the legacy API that knows when files expire.
_EXPIRY_SINCE = "2025-03-01"
#: Versions that stand for the paths without a version.
_V1_VERSIONS = frozenset({"preview", "latest", "v1"})
_VERSION = Form(
    r"(?i:\d{4}-\d{2}-\d{2}(-[a-z0-9]+)?|v1|preview|latest)",
    "a date, such as 2024-10-21 or 2025-04-01-preview, or one of v1, preview and latest",
)
#: Least and most seconds between two looks at a file that is not ready.
_LOOK_AGAIN = (0.5, 10.0)
#: How long a file may stay unready, in seconds, before the create call is left to say what is wrong.
_SETTLING = 900.0

_NOT_READY = frozenset({"uploaded", "pending", "notrunning", "running", "processing", "importing"})
_UNREADABLE = frozenset({"error", "failed"})
_GONE = frozenset({"deleting", "deleted"})

_V1 = Dialect(
    name="azure",
    title="Azure OpenAI",
    base_url=None,
    limits=Limits(
        max_requests=100_000,
        max_bytes=200_000_000,
        max_line_bytes=200_000_000,  # no limit on a line is documented
        # Azure ends no batch by itself: one that is late is still at work. After as long as an upload lives
        # at least, its input may be gone.
        window_seconds=float(_EXPIRY[0]),
    ),
    endpoints=frozenset({CHAT, RESPONSES}),
    auth_header="api-key",
    auth_prefix="",
    max_tokens_field="max_completion_tokens",
    input_expiry=_EXPIRY,
    output_expiry=_EXPIRY,
    notes=(
        "The model is the name of a deployment of the type Global Batch or Data Zone Batch.",
        "Batches do not expire: one is given up after 14 days, a job after its `job_timeout`.",
        "Embeddings, completions and moderations are not offered in batches.",
        "With `api_version` the API with dates is used; before 2025-03-01-preview its files do not expire, "
        "and are deleted as soon as they were read.",
    ),
)
_LEGACY = replace(
    _V1,
    paths={CHAT: "/chat/completions"},
    max_tokens_field="max_tokens",  # what the older versions know
)


class AzureBackend(OpenAIBackend):
    """OpenAI's protocol as Azure speaks it."""

    async def ready(self, file_id: str, *, waited: float = 0.0) -> float | None:
        """Return None where an upload was processed, else in how many seconds to ask again.

        :raises NotFound: the upload is gone.
        :raises Refused: Azure could not read it.
        """
        file = await self._files.describe(file_id)
        status = (file.status or "").lower()
        if status in _GONE:
            raise NotFound(f"file {file.id} was deleted at {self.provider}")
        if status in _UNREADABLE:
            raise Refused(f"file {file.id} could not be read by {self.provider}", reason="file_unreadable")
        if status not in _NOT_READY:
            return None
        least, most = _LOOK_AGAIN
        return None if waited > _SETTLING else min(max(waited / 2, least), most)


def _build(provider: Provider, address: str, api_key: str, options: BackendOptions) -> Backend:
    version = None if (options.api_version or "v1").lower() in _V1_VERSIONS else options.api_version
    dialect = _LEGACY if version else _V1
    if version and version < _EXPIRY_SINCE:
        _refuse_expiry(options)
        dialect = replace(dialect, input_expiry=None, output_expiry=None)
    if options.auth == "bearer":
        headers = {"Authorization": f"Bearer {api_key}"}
    else:
        headers = {dialect.auth_header: api_key}
    query = {"api-version": version} if version else None
    client = client_for(_base_url(address, version), headers, options, query=query)
    return AzureBackend(dialect, client, options, limits=provider.limits)


def _refuse_expiry(options: BackendOptions) -> None:
    """Refuse what the older versions have no place for."""
    for name in ("input_expiry_seconds", "output_expiry_seconds"):
        if name in particular(options):
            raise ConfigurationError(
                f"option {name!r} of provider 'azure' needs api_version {_EXPIRY_SINCE}-preview or newer"
            )


def _base_url(address: str, version: str | None) -> str:
    """Return where files and batches are; the address may end at the resource, at ``/openai`` or ``/v1``."""
    address = address.strip().rstrip("/")
    for ending in ("/v1", "/openai"):
        address = address.removesuffix(ending).rstrip("/")
    return f"{address}/openai" if version else f"{address}/openai/v1"


def providers() -> tuple[Provider, ...]:
    """Return Azure's row."""
    return (
        Provider(
            name=_V1.name,
            title=_V1.title,
            protocol="azure",
            base_url=None,
            limits=_V1.limits,
            endpoints=_V1.endpoints,
            build=_build,
            decode=decode_row,
            example_url="https://my-resource.openai.azure.com",
            notes=_V1.notes,
            options={**_V1.options(), "api_version": _VERSION, "auth": None},
        ),
    )
