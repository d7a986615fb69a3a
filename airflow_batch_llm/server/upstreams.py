"""Who answers: the simulated model, or an OpenAI-compatible server that requests are forwarded to."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import httpx
import msgspec
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from airflow_batch_llm.server.chat import ChatCompletions
from airflow_batch_llm.server.completions import Completions
from airflow_batch_llm.server.embeddings import Embeddings
from airflow_batch_llm.server.moderations import Moderations
from airflow_batch_llm.server.responses import Responses
from airflow_batch_llm.server.simulated import MODEL
from airflow_batch_llm.server.wire import Endpoint, Reply, Request


class SimulatedEndpoint(Endpoint, Protocol):
    """An endpoint that the simulated model serves."""

    def simulate(self, request: Request, created: int) -> Reply:
        """Answer one request. :param created: unix seconds for the body."""
        ...


#: The endpoints that a batch can be for.
ENDPOINTS: dict[str, SimulatedEndpoint] = {
    "/v1/chat/completions": ChatCompletions(),
    "/v1/completions": Completions(),
    "/v1/responses": Responses(),
    "/v1/embeddings": Embeddings(),
    "/v1/moderations": Moderations(),
}


def endpoint_of(path: str) -> Endpoint:
    """Return the endpoint of a batch."""
    return ENDPOINTS[path]


class SimulatedUpstream:
    """The simulated model."""

    piece = 1_000

    def answer(self, endpoint: str, requests: Sequence[Request], created: int) -> list[Reply]:
        simulate = ENDPOINTS[endpoint].simulate
        return [simulate(request, created) for request in requests]

    def models(self) -> list[dict[str, Any]]:
        return [{"id": MODEL, "object": "model", "created": 0, "owned_by": "batch-llm"}]

    def close(self) -> None:
        return None


_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


class UpstreamClosed(Exception):
    """The server is stopping: what was asked for is not answered, and nothing may be recorded."""


class ForwardingUpstream:
    """Forwards each request to ``<base_url>/<endpoint without /v1>``, so many at once.

    A server that cannot be reached is tried five times, over about half a minute; then, and on a time-out,
    the row is a ``request_timeout``. Whatever the server answers otherwise is the row's answer.

    :param base_url: ends in ``/v1``.
    :param timeout: seconds for one request.
    """

    def __init__(self, base_url: str, *, key: str | None, concurrency: int, timeout: float) -> None:
        self.piece = concurrency
        self._closed = False
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="upstream")
        self._client = httpx.Client(
            base_url=base_url.rstrip("/"),
            timeout=timeout,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=concurrency),
        )

    def answer(self, endpoint: str, requests: Sequence[Request], created: int) -> list[Reply]:
        path = endpoint.removeprefix("/v1")
        return list(self._pool.map(lambda request: self._forward(path, request), requests))

    def models(self) -> list[dict[str, Any]]:
        """:raises httpx.HTTPError: the server cannot be reached or refuses."""
        found: list[dict[str, Any]] = self._client.get("/models").raise_for_status().json()["data"]
        return found

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _forward(self, path: str, request: Request) -> Reply:
        attempts = Retrying(
            retry=retry_if_exception_type(httpx.ConnectError),
            wait=wait_exponential(min=1, max=15),
            stop=stop_after_attempt(5),
            reraise=True,
        )
        try:
            response = attempts(
                self._client.post, path, content=request.body, headers={"Content-Type": "application/json"}
            )
        except (httpx.HTTPError, RuntimeError):
            if self._closed:
                raise UpstreamClosed from None
            return Reply(0)
        return _reply(response)


def _reply(response: httpx.Response) -> Reply:
    """Write the body anew, on one line; one that is not JSON becomes an error body."""
    try:
        value = _any.decode(response.content)
    except (msgspec.MsgspecError, RecursionError):
        error = {
            "message": "The upstream's answer is not JSON.",
            "type": "server_error",
            "param": None,
            "code": None,
        }
        status = response.status_code if response.status_code != 200 else 502
        return Reply(status, _encoder.encode({"error": error}))
    usage = value.get("usage") if isinstance(value, dict) and response.status_code == 200 else None
    counts = usage if isinstance(usage, dict) else {}
    return Reply(
        response.status_code,
        _encoder.encode(value),
        _count(counts, "prompt_tokens", "input_tokens"),
        _count(counts, "completion_tokens", "output_tokens"),
    )


def _count(counts: dict[str, Any], *names: str) -> int:
    """Return the first count that is there; responses call them otherwise than the older endpoints."""
    return next((int(counts[name]) for name in names if counts.get(name)), 0)
