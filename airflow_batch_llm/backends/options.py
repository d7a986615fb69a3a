"""What a connection may set for a backend beside address and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_batch_llm.exceptions import ConfigurationError

_THIRTY_DAYS = 2_592_000


class BackendOptions(BaseModel):
    """Options of a backend. Times are seconds, sizes are bytes; None means the dialect's own value.

    :param headers: further headers for each call to the provider's host.
    :param timeout_seconds: seconds without a byte before a call fails.
    :param transfer_timeout_seconds: the same for uploads and downloads.
    :param create_timeout_seconds: for the whole create call; leases must be longer.
    :param max_retries: tries after the first of a safe call.
    :param retry_budget_seconds: waiting between the tries of one call, all in all.
    :param input_expiry_seconds: when an uploaded file expires; 0 for the provider's own rule.
    :param output_expiry_seconds: the same for result files.
    :param completion_window: how long a batch may take, as the provider writes it (``24h``, ``7d``), where
        it leaves a choice.
    :param api_version: version of the provider's API: Anthropic's header, Azure's legacy query, the part of
        Gemini's paths. None for the newest that this package was made for.
    :param betas: names for Anthropic's ``anthropic-beta`` header.
    :param auth: how the key is sent, where a protocol has two ways: ``key`` (a header of its own) or
        ``bearer`` (an Entra token, say). None for the protocol's usual way.
    :param inline: send the requests with the create call in place of an upload, where a protocol has both.

    Beyond :data:`COMMON` a provider takes only those that ``Provider.options`` names.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    organization: str | None = None
    project: str | None = None
    headers: dict[str, str] = {}
    max_requests: int | None = Field(default=None, gt=0)
    max_bytes: int | None = Field(default=None, gt=0)
    max_line_bytes: int | None = Field(default=None, gt=0)
    connect_timeout_seconds: float = Field(default=10.0, gt=0)
    timeout_seconds: float = Field(default=60.0, gt=0)
    transfer_timeout_seconds: float = Field(default=600.0, gt=0)
    create_timeout_seconds: float = Field(default=120.0, gt=0)
    max_retries: int = Field(default=2, ge=0, le=10)
    retry_budget_seconds: float = Field(default=60.0, ge=0)
    input_expiry_seconds: int = Field(default=_THIRTY_DAYS, ge=0)
    output_expiry_seconds: int = Field(default=_THIRTY_DAYS, ge=0)
    completion_window: str | None = Field(default=None, pattern=r"^[A-Za-z0-9]{1,20}$")
    api_version: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.-]{1,40}$")
    betas: tuple[str, ...] = ()
    auth: Literal["key", "bearer"] | None = None
    inline: bool = False


#: What every backend takes. All others are a provider's own.
COMMON = frozenset(
    {
        "headers",
        "max_requests",
        "max_bytes",
        "max_line_bytes",
        "connect_timeout_seconds",
        "timeout_seconds",
        "transfer_timeout_seconds",
        "create_timeout_seconds",
        "max_retries",
        "retry_budget_seconds",
    }
)
#: Those that only some providers take, in the order in which they are told.
PARTICULAR = tuple(name for name in BackendOptions.model_fields if name not in COMMON)
#: Those of them that no connection has a field for: code sets them.
IN_CODE = frozenset({"input_expiry_seconds", "output_expiry_seconds"})


def particular(options: BackendOptions) -> dict[str, Any]:
    """Return what was asked of the provider beyond :data:`COMMON`. None, False, 0 and "" ask for nothing."""
    return {
        name: value
        for name in PARTICULAR
        if name in options.model_fields_set and (value := getattr(options, name))
    }


def read_options(options: Mapping[str, Any]) -> BackendOptions:
    """Check the options of a connection.

    :raises ConfigurationError: an option is unknown or has a wrong value; the message names it.
    """
    try:
        return BackendOptions.model_validate(dict(options))
    except ValidationError as e:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['type']}" for fault in e.errors())
        known = ", ".join(BackendOptions.model_fields)
        # Not chained: the cause would quote header values.
        raise ConfigurationError(f"wrong backend options ({faults}). Known options: {known}") from None
