"""The HTTP client that all backends share: authentication, time-outs, retries of safe calls, errors.

Messages of the exceptions name the call with its address, the status and the provider's error code,
never its text.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx

from airflow_batch_llm import __version__
from airflow_batch_llm.backends.errors import ErrorFacts, parse_error_body
from airflow_batch_llm.backends.openai_verdicts import FILES_FULL_CODES, KEY_CODES, QUEUE_FULL_CODES
from airflow_batch_llm.backends.options import BackendOptions
from airflow_batch_llm.backends.retrying import (
    LONGEST_WAIT,
    Again,
    SafeRetry,
    T,
    retry_after,
    should_retry,
)
from airflow_batch_llm.core.endings import ACCOUNT_CODES
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    ConfigurationError,
    InDoubt,
    NotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unreachable,
)

#: Some CDNs refuse calls without one (Together: 403).
USER_AGENT = f"airflow-batch-llm/{__version__}"
#: Faults that surely came before a request left this machine.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
#: Statuses below 500 that leave open whether a call took effect. 499: a gateway hung up on its server.
_UNDECIDED = frozenset({300, 302, 303, 408, 409, 499})
#: Headers that hold a key, and those that say for whom a call is made.
_KEYS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})
_OF_ACCOUNT = _KEYS | {"openai-organization", "openai-project", "x-goog-user-project"}
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

#: A 404 on a collection (``/batches``) means a wrong base URL, unless it is about the file named in it.
_FILE_PARAMS = frozenset({"input_file_id", "file_id", "id"})
#: Collections whose paths have two parts.
_COLLECTIONS = frozenset({"/messages/batches", "/batch/jobs"})


@dataclass(frozen=True, slots=True)
class Call:
    """A call as messages name it: ``POST https://host/v1/files``, without query or headers.

    :param base: the base URL, which holds no secret.
    :param path: below the base URL, from ``/``.
    """

    method: str
    base: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.base}{self.path}"


class ApiClient:
    """One provider's HTTP API.

    :param base_url: with the version part, e.g. ``https://api.openai.com/v1``.
    :param headers: sent to the provider's own host only (key, organization…).
    :param connect_timeout: seconds to connect.
    :param timeout: seconds without a byte before a call fails.
    :param retry: how safe calls are repeated.
    :param query: parameters of each call's address (Azure: ``api-version``); no secrets.
    :param account: a short name for the account of the key, see :func:`account_of`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str],
        connect_timeout: float,
        timeout: float,
        retry: SafeRetry,
        query: Mapping[str, str] | None = None,
        account: str = "",
    ) -> None:
        self.base_url = _checked_url(base_url)
        self.host = self.base_url.host
        port = f":{self.base_url.port}" if self.base_url.port is not None else ""
        #: Host, port and path, without what a person may change about the same server.
        self.address = f"{self.host}{port}{self.base_url.path.rstrip('/')}"
        self.account = account
        self._headers = dict(headers)
        self._timeout = httpx.Timeout(timeout, connect=connect_timeout)
        self._connect_timeout = connect_timeout
        self._retry = retry
        self._query = dict(query or {})
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    def http(self) -> httpx.AsyncClient:
        """Return the client of the running event loop; connections cannot move between loops."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client = httpx.AsyncClient(
                headers={"user-agent": USER_AGENT},
                timeout=self._timeout,
                follow_redirects=False,
                verify=_tls(),
            )
            self._loop = loop
        return self._client

    def url(self, path: str) -> httpx.URL:
        """Return the address of ``path`` (from ``/``) below the base URL."""
        url = httpx.URL(str(self.base_url).rstrip("/") + path)
        return url.copy_merge_params(self._query) if self._query else url

    def named(self, method: str, path: str) -> Call:
        """Return the call as messages name it."""
        return Call(method, str(self.base_url).rstrip("/"), path)

    def headers_for(self, url: httpx.URL) -> dict[str, str]:
        """Return the headers with the key where ``url`` is the provider's own host, none elsewhere."""
        base = self.base_url
        same = (url.scheme, url.host, _port(url)) == (base.scheme, base.host, _port(base))
        upgraded = url.host == base.host and (_port(base), _port(url)) == (80, 443)
        return dict(self._headers) if same or upgraded else {}

    def timeout(self, seconds: float) -> httpx.Timeout:
        """Return a time-out of ``seconds`` without a byte, with the usual time to connect."""
        return httpx.Timeout(seconds, connect=self._connect_timeout)

    async def pause(self, seconds: float) -> None:
        """Wait between two looks at the same thing."""
        await self._retry.pause(seconds)

    async def repeat(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run an attempt that raises :class:`Again` under the retry rule."""
        return await self._retry.run(attempt)

    async def call(
        self, method: str, path: str, *, keep: frozenset[int] = frozenset(), **arguments: Any
    ) -> httpx.Response:
        """Make a call that is safe to repeat and return its 2xx reply.

        :param keep: statuses that are not worth repeating in this call.
        :raises ProviderError: by status and code, see :func:`error_of`; ``Unreachable`` without a reply.
        """

        call = self.named(method, path)

        async def attempt() -> httpx.Response:
            try:
                reply = await self._send(call, **arguments)
            except httpx.HTTPError as e:
                raise Again(unreachable(call, e)) from e
            if not reply.is_success:
                raise_for(reply, call, keep=keep)
            return reply

        return await self.repeat(attempt)

    async def call_once(
        self,
        method: str,
        path: str,
        *,
        seconds: float,
        refused: Callable[[httpx.Response, Call], None] = lambda reply, call: None,
        **arguments: Any,
    ) -> httpx.Response:
        """Make a call that must not be repeated: exactly one request; return its 2xx reply.

        :param seconds: for the whole call.
        :param refused: is shown a reply by which nothing was done, and may raise what it stands for.
        :raises InDoubt: time-out, reset, 5xx, 408, 409 or 499: it may have taken effect.
        :raises Unreachable: no connection came about, so nothing was sent.
        :raises ProviderError: the provider refused and did nothing.
        """
        call = self.named(method, path)
        try:
            async with asyncio.timeout(seconds):
                reply = await self._send(call, **arguments)
        except _NOT_SENT as e:
            raise unreachable(call, e) from e
        except (httpx.HTTPError, TimeoutError) as e:
            raise InDoubt(f"{call}: no reply ({type(e).__name__}); it may have taken effect") from e
        status = reply.status_code
        if status >= 500 or status in _UNDECIDED:
            raise InDoubt(f"{call}: HTTP {status}; it may have taken effect")
        if not reply.is_success:
            refused(reply, call)
            raise error_of(reply, call)
        return reply

    async def _send(
        self,
        call: Call,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> httpx.Response:
        url = self.url(call.path)
        if params:
            url = url.copy_merge_params(dict(params))
        sent = self.headers_for(url) | dict(headers or {})
        return await self.http().request(call.method, url, headers=sent, **arguments)


def client_for(
    base_url: str,
    headers: Mapping[str, str],
    options: BackendOptions,
    *,
    query: Mapping[str, str] | None = None,
) -> ApiClient:
    """Return the client of a connection: its time-outs, and its own headers before those of the protocol.

    :raises ConfigurationError: an address or a header that cannot be used.
    """
    own = {name.lower() for name in headers}
    # Names differ in no more than case for nobody: two keys would be sent.
    sent = {**{name: v for name, v in options.headers.items() if name.lower() not in own}, **headers}
    for name, value in sent.items():
        if not _HEADER.fullmatch(name):
            raise ConfigurationError("the option 'headers' has a name that no HTTP header can have")
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise ConfigurationError(f"header {name!r} holds characters that HTTP headers cannot carry")
    return ApiClient(
        base_url,
        headers=sent,
        connect_timeout=options.connect_timeout_seconds,
        timeout=options.timeout_seconds,
        retry=SafeRetry(retries=options.max_retries, budget=options.retry_budget_seconds),
        query=query,
        account="" if options.auth == "bearer" else account_of(sent),
    )


def account_of(headers: Mapping[str, str]) -> str:
    """Return a short name for the account that calls with these headers are made for: no secret, eight digits
    of a digest over what tells accounts apart. "" where there is no key."""
    told = sorted((name.lower(), value) for name, value in headers.items() if name.lower() in _OF_ACCOUNT)
    if not any(name in _KEYS for name, _ in told):
        return ""
    return hashlib.sha256(b"account\x01" + repr(told).encode("utf-8")).hexdigest()[:8]


@functools.cache
def _tls() -> ssl.SSLContext:
    """Load the certificates once a process: it takes longer than a call."""
    return httpx.create_ssl_context()


def raise_for(reply: httpx.Response, call: Call, *, keep: frozenset[int] = frozenset()) -> NoReturn:
    """Raise what a reply that is not 2xx stands for, as :class:`Again` where another try may help."""
    error = error_of(reply, call)
    if (
        isinstance(error, (AuthError, AccountError))
        or reply.status_code in keep
        or not should_retry(reply.status_code, reply.headers)
    ):
        raise error
    delay = retry_after(reply.headers)
    raise Again(error, delay if delay is not None else getattr(error, "retry_after", None))


def error_of(reply: httpx.Response, call: Call) -> ProviderError:
    """Return the exception that a reply which is not 2xx stands for. The reply must have been read."""
    status, facts = reply.status_code, parse_error_body(reply.content)
    what = f"{call}: HTTP {status}" + (f", code {facts.code}" if facts.code else "")
    codes = {facts.code.lower(), facts.type.lower()}
    if codes & ACCOUNT_CODES or status == 402:
        return AccountError(f"{what}: the account cannot pay or lacks access; check its plan and balance")
    wait = retry_after(reply.headers)
    wait = min(facts.retry_after, LONGEST_WAIT) if wait is None and facts.retry_after is not None else wait
    if codes & QUEUE_FULL_CODES or (status in (400, 429) and _mentions(facts, QUEUE_FULL_CODES)):
        return RateLimited(f"{what}: the queue is full", retry_after=wait, reason="queue_full")
    if status == 400 and codes & FILES_FULL_CODES:
        what = f"{what}: it holds as many files as it may; delete some there"
        return Refused(what, status_code=400, reason="files_full")
    if status in (401, 403) or (status < 500 and codes & KEY_CODES):
        return AuthError(f"{what}: the key is wrong, revoked or lacks a permission; check the connection")
    if status == 429:
        return RateLimited(f"{what}: too many calls", retry_after=wait)
    of_one = call.path.count("/") > 1 and call.path not in _COLLECTIONS
    if status == 404 and (of_one or facts.param in _FILE_PARAMS):
        return NotFound(f"{what}: the provider knows no such id")
    if status == 404:
        what = f"{what}: no such endpoint; check the dialect and the base URL {call.base}"
        return Refused(what, status_code=404, reason="not_found")
    if status >= 500 or status == 408:
        return Unreachable(f"{what}: the provider has a fault", retry_after=wait)
    if status < 400:
        what = f"{what}: redirected; set the base URL {call.base} to the final address"
        return Refused(what, status_code=status, reason="redirected")
    reason = facts.code or facts.type or f"http_{status}"
    return Refused(f"{what}: refused", status_code=status, reason=reason)


def unreachable(call: Call | str, cause: Exception) -> Unreachable:
    """Return the error of a call without a usable reply."""
    return Unreachable(f"{call}: no usable reply ({type(cause).__name__}); check host and network")


def _mentions(facts: ErrorFacts, codes: frozenset[str]) -> bool:
    """Azure's fail-fast regions name the code in the text only."""
    return any(code in facts.message for code in codes)


def _port(url: httpx.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)


def _checked_url(base_url: str) -> httpx.URL:
    """Return the base URL. What is raised repeats nothing of it: the wrong thing may be a secret."""
    if "@" in base_url:
        # Logs and messages name the address. Not left to the parser: a "/" in the password fools it.
        raise ConfigurationError(
            "the base URL must not hold a user or password (…@host); a key belongs into the password field"
        )
    try:
        url = httpx.URL(base_url.strip().rstrip("/"))
    except (httpx.InvalidURL, TypeError):
        raise ConfigurationError("the base URL is not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError("the base URL must begin with http:// or https:// and name a host")
    if url.query or url.fragment:
        raise ConfigurationError("the base URL must not hold a query or a fragment")
    return url
