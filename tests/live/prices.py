"""What a trial may cost at most, known before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping

from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.ports import Backend
from airflow_batch_llm.exceptions import BatchLLMError
from tests.live.rows import MAX_TOKENS, PARTS
from tests.live.services import Service

DEFAULT_MAX_USD = 0.50

#: Model -> at most so many USD for a million tokens, in and out. Synchronous prices of 2026; a batch is half.
PRICES: dict[str, tuple[float, float]] = {
    "gpt-4.1-nano": (0.2, 0.8),
    "gpt-4.1-mini": (0.8, 3.2),
    "gpt-5-nano": (0.1, 0.8),
    "gpt-5-mini": (0.5, 4.0),
    "claude-haiku-4-5": (2.0, 10.0),
    "gemini-2.5-flash-lite": (0.2, 0.8),
    "gemini-2.5-flash": (0.6, 5.0),
    "mistral-small-latest": (0.4, 1.2),
    "llama-3.1-8b-instant": (0.1, 0.2),
}
#: Of a model that nobody gave a price for: dearer than what is sold.
UNKNOWN = (20.0, 150.0)


def read_prices(environ: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return the table with what ``LIVE_PRICES`` adds: ``{"model": [in, out]}``, USD for a million tokens.

    :raises ValueError: it is not of that form.
    """
    given = json.loads(environ.get("LIVE_PRICES") or "{}")
    try:
        return PRICES | {model: (float(price[0]), float(price[1])) for model, price in given.items()}
    except (AttributeError, TypeError, IndexError, KeyError):
        raise ValueError('LIVE_PRICES is not of the form {"model": [USD in, USD out]}') from None


def read_cap(environ: Mapping[str, str]) -> float:
    """Return ``LIVE_MAX_USD``. :raises ValueError: it is no number above 0."""
    cap = float(environ.get("LIVE_MAX_USD") or DEFAULT_MAX_USD)
    if not 0 < cap < float("inf"):
        raise ValueError("LIVE_MAX_USD must be a number above 0")
    return cap


def bound_usd(service: Service, backend: Backend, prices: Mapping[str, tuple[float, float]]) -> float:
    """Return what the rows of a service cost at most, as its own backend would send them.

    No text has more tokens than bytes, and no answer more than its limit. What a provider adds to a request
    by itself (a tool's or a schema's instructions) is far below the difference.
    """
    price_in, price_out = prices.get(service.model, UNKNOWN)
    size, rows = 0, 0
    for part in PARTS:
        sent = [_bytes(backend, part.template(service.model), dumps_canonical(x.body)) for x in part.drafts()]
        size += sum(sent)
        rows += sum(1 for line in sent if line)
    return (size * price_in + rows * MAX_TOKENS * price_out) / 1e6


def _bytes(backend: Backend, template: RequestTemplate, body: bytes) -> int:
    try:
        return len(backend.line_encoder(template)("x" * 44, body))
    except BatchLLMError:  # refused before it is sent
        return 0
