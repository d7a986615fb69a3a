"""Which services there are to try, and what the environment must hold for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_batch_llm.backends import providers
from airflow_batch_llm.backends.provider import Provider

#: Provider -> the variable that its own SDK reads the key from, where that is not ``NAME_API_KEY``.
_KEYS = {"azure": "AZURE_OPENAI_API_KEY", "alibaba": "DASHSCOPE_API_KEY", "generic": "LIVE_GENERIC_API_KEY"}
#: Provider -> the variable that its own SDK reads the address from.
_ADDRESSES = {"azure": "AZURE_OPENAI_ENDPOINT"}
#: Provider -> a small, cheap model that answers without thinking first.
_MODELS = {
    "openai": "gpt-4.1-nano",
    "anthropic": "claude-haiku-4-5",
    "gemini": "gemini-2.5-flash-lite",
    "mistral": "mistral-small-latest",
    "groq": "llama-3.1-8b-instant",
}


@dataclass(frozen=True, slots=True)
class Service:
    """One provider with what the environment says of it.

    :param base_url: None for the provider's own address.
    :param missing: variables that are not set; with any of them nothing can be sent.
    """

    provider: Provider
    base_url: str | None
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    api_key: str = field(default="", repr=False)
    missing: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def address(self) -> str:
        """Where it is."""
        return self.base_url or self.provider.base_url or ""


def services(environ: Mapping[str, str]) -> list[Service]:
    """Return every provider as the environment has it; ``LIVE_ONLY`` (names with commas) chooses some.

    :raises ValueError: ``LIVE_ONLY`` names one that there is not.
    """
    wanted = [name.strip() for name in environ.get("LIVE_ONLY", "").split(",") if name.strip()]
    unknown = set(wanted) - set(providers())
    if unknown:
        raise ValueError(
            f"LIVE_ONLY: there is no {', '.join(sorted(unknown))}; there are {', '.join(providers())}"
        )
    return [_service(row, environ) for row in providers().values() if not wanted or row.name in wanted]


def _service(row: Provider, environ: Mapping[str, str]) -> Service:
    stem = row.name.upper().replace("-", "_")
    key_name = _KEYS.get(row.name, f"{stem}_API_KEY")
    options: dict[str, Any] = json.loads(environ.get(f"LIVE_{stem}_OPTIONS") or "{}")
    key = environ.get(key_name, "").strip()
    if row.name == "azure":
        version, token = environ.get("AZURE_OPENAI_API_VERSION"), environ.get("AZURE_OPENAI_AD_TOKEN")
        options = {**({"api_version": version} if version else {}), **options}
        if token and not key:
            key, options = token.strip(), {"auth": "bearer", **options}
    base_url = environ.get(f"LIVE_{stem}_URL") or environ.get(_ADDRESSES.get(row.name, ""))
    deployment = environ.get("AZURE_OPENAI_DEPLOYMENT") if row.name == "azure" else None
    model = environ.get(f"LIVE_{stem}_MODEL") or deployment or _MODELS.get(row.name, "")
    return Service(
        provider=row,
        base_url=base_url or None,
        model=model,
        options=options,
        api_key=key,
        missing=tuple(_missing(row, key_name if not key else "", base_url, model)),
    )


def _missing(row: Provider, key_name: str, base_url: str | None, model: str) -> Iterator[str]:
    stem = row.name.upper().replace("-", "_")
    # A server of one's own may do without a key; that it is to be tried is said by its address.
    if key_name and row.key_required:
        yield key_name
    if row.base_url is None and not base_url:
        yield _ADDRESSES.get(row.name, f"LIVE_{stem}_URL")
    if not model:
        yield "AZURE_OPENAI_DEPLOYMENT" if row.name == "azure" else f"LIVE_{stem}_MODEL"
