"""What a server is started with: folder, address, key, limits, upstream."""

from __future__ import annotations

import ipaddress
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from airflow_batch_llm.exceptions import ConfigurationError

KEY_VARIABLE = "BATCH_LLM_SERVER_KEY"
UPSTREAM_KEY_VARIABLE = "BATCH_LLM_UPSTREAM_KEY"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """The key that clients must send, and where it came from (``--api-key``, the variable, ``generated``)."""

    value: str = field(repr=False)
    source: str

    @property
    def explicit(self) -> bool:
        """Say whether a person chose the key."""
        return self.source != "generated"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one batch may hold. Defaults are OpenAI's (50,000 requests, 200 MB); a line is at most 16 MB."""

    max_requests: int = 50_000
    max_bytes: int = 200_000_000
    max_line_bytes: int = 16_000_000

    def of(self, protocol: str) -> ServerLimits:
        """Return the limits of a protocol: its own where nothing else was asked for."""
        own, default = _OWN_LIMITS.get(protocol), ServerLimits()
        if own is None:
            return self
        return ServerLimits(
            own.max_requests if self.max_requests == default.max_requests else self.max_requests,
            own.max_bytes if self.max_bytes == default.max_bytes else self.max_bytes,
            own.max_line_bytes if self.max_line_bytes == default.max_line_bytes else self.max_line_bytes,
        )


#: Where a protocol's own limits are other than OpenAI's.
_OWN_LIMITS = {
    "anthropic": ServerLimits(100_000, 256_000_000, 32_000_000),
    "azure": ServerLimits(100_000),
    "gemini": ServerLimits(1_000_000, 2_000_000_000, 100_000_000),
    "mistral": ServerLimits(1_000_000, 512_000_000),
}


@dataclass(frozen=True, slots=True)
class LocalModelSettings:
    """How the local model is run.

    :param file: a GGUF file of your own; None: the model of the extra ``local``.
    :param parallel: requests that it works on at the same time.
    :param context: tokens that one request may have, prompt and answer together.
    :param threads: None: one for each core but one.
    """

    file: Path | None = None
    parallel: int = 4
    context: int = 4_096
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything a server needs to start.

    :param folder: where the SQLite file and the stored files are kept.
    :param upstream: base URL of an OpenAI-compatible server (``http://…/v1``); None: the simulated model.
    :param upstream_concurrency: requests at the upstream at once.
    :param upstream_timeout: seconds that one request may take there, or at the local model.
    :param local_model: answer with a model in this process; not together with ``upstream``.
    """

    folder: Path
    key: ApiKey
    host: str = "127.0.0.1"
    port: int = 8765
    limits: ServerLimits = ServerLimits()
    scenario: Path | None = None
    upstream: str | None = None
    upstream_concurrency: int = 8
    upstream_timeout: float = 600.0
    local_model: LocalModelSettings | None = None

    def check(self) -> None:
        """Refuse to listen beyond this machine with a key nobody chose, and two that answer.

        :raises ConfigurationError: the address is not loopback and the key was generated, or there is an
            upstream and a local model.
        """
        if self.upstream is not None and self.local_model is not None:
            raise ConfigurationError("requests go to --upstream or to --local-model, not to both")
        if not is_loopback(self.host) and not self.key.explicit:
            raise ConfigurationError(
                f"{self.host} can be reached from other machines: choose a key with --api-key or "
                f"{KEY_VARIABLE} first, or listen on 127.0.0.1"
            )


def resolve_key(given: str | None) -> ApiKey:
    """Return the key from the argument, else from BATCH_LLM_SERVER_KEY, else a fresh one.

    :raises ConfigurationError: the key given is empty or cannot be sent in a header.
    """
    for value, source in ((given, "--api-key"), (os.environ.get(KEY_VARIABLE), KEY_VARIABLE)):
        if value is None:
            continue
        if not value or not value.isascii() or not value.isprintable() or value != value.strip():
            raise ConfigurationError(
                f"the key from {source} must be printable ASCII without spaces around it"
            )
        return ApiKey(value, source)
    return ApiKey("local-" + secrets.token_urlsafe(24), "generated")


def is_loopback(host: str) -> bool:
    """Say whether ``host`` can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
