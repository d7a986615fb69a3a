"""The create call carries the requests: one call, streamed, and an honest word on what came of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_batch_llm.backends.anthropic import _body, _body_size
from airflow_batch_llm.backends.base import ApiClient
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    InDoubt,
    LinesRefused,
    ProviderError,
    RateLimited,
    Refused,
    Unreachable,
)
from tests.unit.backends.anthropic.conftest import BATCH, TEMPLATE, Bench, failure
from tests.unit.backends.scripted_server import Reply

LINES = (b'{"custom_id":"w-1","params":{"model":"m"}}', b'{"custom_id":"w-2","params":{"model":"m"}}')
SECRET = "the customer asked about his divorce"


def create(bench: Bench, *lines: bytes, **options: Any) -> RemoteBatch:
    return bench.run(lambda backend: backend.create(bench.order(*(lines or LINES))), **options)


def test_all_requests_go_in_one_call_of_known_length(bench: Bench) -> None:
    bench.server.script = [Reply(200, BATCH)]
    batch = create(bench)
    (sent,) = bench.server.seen("POST", "/messages/batches")
    assert [one["custom_id"] for one in sent.json["requests"]] == ["w-1", "w-2"]
    assert int(sent.headers["content-length"]) == len(sent.body)
    assert "transfer-encoding" not in sent.headers
    assert sent.headers["content-type"] == "application/json"
    assert (batch.id, batch.status, batch.files) == ("msgbatch_1", RemoteStatus.RUNNING, ())
    assert (batch.created_at, batch.counts["total"]) == (1793527200.0, 2)


def test_a_body_is_never_held_whole(bench: Bench) -> None:
    line = b'{"custom_id":"w","params":{"text":"' + b"x" * 700_000 + b'"}}'
    path = bench.order(*[line] * 12).lines
    assert path is not None
    size = path.stat().st_size

    async def pieces() -> list[int]:
        return [len(piece) async for piece in _body(path, size)]

    sizes = asyncio.run(pieces())
    assert sum(sizes) == _body_size(size) and max(sizes) <= 1 << 20


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_length_told_is_that_of_what_is_sent(bench: Bench, count: int) -> None:
    bench.server.script = [Reply(200, BATCH)]
    create(bench, *LINES[:1] * count)
    assert len(bench.server.received[0].json["requests"]) == count


@pytest.mark.parametrize(
    ("options", "shown", "hidden"),
    [
        ({}, {"anthropic-version": "2026-10-21", "x-api-key": "key-1"}, ["authorization", "anthropic-beta"]),
        ({"auth": "bearer"}, {"authorization": "Bearer key-1"}, ["x-api-key"]),
        ({"api_version": "2023-06-01"}, {"anthropic-version": "2023-06-01"}, []),
        ({"betas": ["one", "two-2026"]}, {"anthropic-beta": "one,two-2026"}, []),
        ({"headers": {"anthropic-workspace-id": "w"}}, {"anthropic-workspace-id": "w"}, []),
    ],
)
def test_version_betas_and_key_are_told_in_headers(
    bench: Bench, options: dict[str, Any], shown: dict[str, str], hidden: list[str]
) -> None:
    bench.server.script = [Reply(200, BATCH)]
    create(bench, **options)
    headers = bench.server.received[0].headers
    assert headers.items() >= shown.items()
    assert not set(hidden) & set(headers)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(drop=True),
        Reply(529, failure("overloaded_error")),
        Reply(500, failure("api_error")),
        Reply(503, failure("api_error", error_code="cmek_key_unreachable"), {"retry-after": "1"}),
        Reply(504, failure("timeout_error"), {"x-should-retry": "true"}),
        Reply(409, failure("conflict_error")),
        Reply(200, b"<html>welcome</html>"),
        Reply(200, {"type": "message_batch"}),
        Reply(200, {"id": "req_123", "type": "error", "error": {"type": "timeout_error"}}),
        Reply(200, {"id": "msg_1", "type": "message", "processing_status": "in_progress"}),
        Reply(200, {"id": "req_123", "object": "error"}),
    ],
)
def test_what_may_have_taken_effect_is_in_doubt_and_sent_once(bench: Bench, reply: Reply) -> None:
    bench.server.script = [reply] * 3
    with pytest.raises(InDoubt):
        create(bench)
    assert len(bench.server.received) == 1 and bench.waits == []


def test_a_reply_that_never_comes_is_in_doubt(bench: Bench) -> None:
    bench.server.script = [Reply(hang=True)]
    with pytest.raises(InDoubt):
        create(bench, create_timeout_seconds=0.2)
    assert len(bench.server.received) == 1


def test_without_a_connection_nothing_was_sent(bench: Bench) -> None:
    bench.server.__exit__(None, None, None)
    with pytest.raises(Unreachable):
        create(bench)


def test_a_create_call_has_time_for_its_bytes_beside_that_for_its_reply(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[float] = []

    async def give_up(client: ApiClient, *call: str, seconds: float, **arguments: Any) -> None:
        allowed.append(seconds)
        raise InDoubt("no reply")

    monkeypatch.setattr(ApiClient, "call_once", give_up)
    for lines in (LINES, (b"x" * 4_999_999,)):
        with pytest.raises(InDoubt):
            create(bench, *lines, create_timeout_seconds=60)
    assert 60 < allowed[0] < 61 and allowed[1] == 70


WAIT = {"retry-after": "30"}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(401, failure("authentication_error")), AuthError),
        (Reply(403, failure("permission_error")), AuthError),
        (Reply(402, failure("billing_error")), AccountError),
        (Reply(400, failure("invalid_request_error", error_code="organization_on_hold")), AccountError),
        (
            Reply(400, failure("invalid_request_error", error_code="workspace_human_review_disabled")),
            AccountError,
        ),
        (Reply(400, failure("invalid_request_error", error_code="cmek_key_disabled")), AccountError),
        (
            Reply(429, failure("rate_limit_error", error_code="enforced_spend_limit_reached")),
            AccountError,
        ),
        (
            Reply(429, failure("rate_limit_error", error_code="contract_spend_limit_reached"), WAIT),
            AccountError,
        ),
        (Reply(429, failure("rate_limit_error", f"slower: {SECRET}")), AccountError),
        (
            Reply(400, failure("invalid_request_error", f"Your credit balance is too low. {SECRET}")),
            AccountError,
        ),
        (
            Reply(
                400,
                failure(
                    "invalid_request_error",
                    f"You have reached your specified API usage limits. {SECRET}",
                ),
            ),
            AccountError,
        ),
        (
            Reply(
                400,
                failure(
                    "invalid_request_error",
                    f"This workspace has reached its spend limit. {SECRET}",
                ),
            ),
            AccountError,
        ),
        (Reply(429, failure("rate_limit_error", error_code="ramp_limit_exceeded"), WAIT), RateLimited),
        (Reply(429, failure("rate_limit_error"), WAIT), RateLimited),
        (Reply(400, failure("invalid_request_error", f"requests: too few {SECRET}")), Refused),
        (Reply(404, b"no such route"), Refused),
        (Reply(308, b"", {"location": "https://elsewhere.example/v1"}), Refused),
    ],
)
def test_a_refusal_took_no_effect_is_sent_once_and_quotes_nothing(
    bench: Bench, reply: Reply, kind: type[ProviderError]
) -> None:
    bench.server.script = [reply] * 3
    with pytest.raises(kind) as caught:
        create(bench)
    assert type(caught.value) is kind
    assert len(bench.server.received) == 1 and bench.waits == []
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("code", [None, "ramp_limit_exceeded"])
def test_too_many_calls_name_the_time_to_come_back(bench: Bench, code: str | None) -> None:
    bench.server.script = [Reply(429, failure("rate_limit_error", error_code=code), WAIT)]
    with pytest.raises(RateLimited) as caught:
        create(bench)
    assert (caught.value.retry_after, caught.value.reason) == (30.0, "rate_limited")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (failure("rate_limit_error", "too many batch requests are queued"), {}),
        (failure("rate_limit_error", "the processing queue is full"), WAIT),
        (failure("rate_limit_error", error_code="queue_full"), {}),
        (failure("rate_limit_error", error_code="token_limit_exceeded"), {}),
    ],
)
def test_a_full_queue_is_neither_a_fault_of_the_account_nor_of_the_requests(
    bench: Bench, body: Any, headers: dict[str, str]
) -> None:
    bench.server.script = [Reply(429, body, headers)]
    with pytest.raises(RateLimited) as caught:
        create(bench)
    assert caught.value.reason == "queue_full"


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        (f"requests.0.custom_id: String should match pattern. {SECRET}", [1]),
        ("requests.41.custom_id: Duplicate custom_id", [42]),
        ("requests[7].params: Field required", [8]),
        ("requests.3.custom_id: too long; requests.5.params.model: missing, requests.3.params: x", [4, 6]),
    ],
)
def test_requests_that_are_refused_by_their_place_are_named_by_their_line(
    bench: Bench, message: str, lines: list[int]
) -> None:
    bench.server.script = [Reply(400, failure("invalid_request_error", message))]
    with pytest.raises(LinesRefused) as caught:
        create(bench)
    assert [line.line for line in caught.value.lines] == lines
    assert {(line.code, line.message) for line in caught.value.lines} == {("invalid_request_error", message)}
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "temperature: not supported in this version of the API",
        "`top_p` and `top_k` may not be used",
        "messages.0.content.0.citations: Extra inputs are not permitted",
    ],
)
def test_what_a_version_takes_no_more_is_a_fault_of_requests_that_are_not_known(
    bench: Bench, message: str
) -> None:
    bench.server.script = [Reply(400, failure("invalid_request_error", message))]
    with pytest.raises(LinesRefused) as caught:
        create(bench)
    assert (caught.value.lines, caught.value.reason) == ((), "invalid_request_error")
    assert message not in str(caught.value)


def test_what_is_wrong_with_the_call_is_no_fault_of_its_requests(bench: Bench) -> None:
    message = "anthropic-beta: Unexpected value"
    bench.server.script = [Reply(400, failure("invalid_request_error", message))]
    with pytest.raises(Refused) as caught:
        create(bench)
    assert not isinstance(caught.value, LinesRefused)


def test_too_many_bytes_are_a_fault_of_all_the_requests(bench: Bench) -> None:
    bench.server.script = [Reply(413, failure("request_too_large", "Request exceeds the maximum size"))]
    with pytest.raises(LinesRefused) as caught:
        create(bench)
    assert (caught.value.lines, caught.value.reason) == ((), "request_too_large")


def test_a_gateway_that_refuses_the_bytes_in_html_says_the_same(bench: Bench) -> None:
    bench.server.script = [Reply(413, b"<html>413 Request Entity Too Large</html>")]
    with pytest.raises(LinesRefused) as caught:
        create(bench)
    assert caught.value.reason == "request_too_large"


def test_an_order_with_an_upload_is_refused_before_a_call(bench: Bench) -> None:
    order = bench.order(*LINES)
    upload = type(order)(TEMPLATE, "file-1", {})
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.create(upload))
    with pytest.raises(Refused):
        bench.run(lambda backend: backend.upload(bench.folder / "lines.jsonl", "x"))
    assert bench.server.received == []


def test_a_429_of_a_gateway_says_nothing_of_the_account(bench: Bench) -> None:
    bench.server.script = [Reply(429, b"<html>slow down</html>")]
    with pytest.raises(RateLimited):
        bench.run(lambda backend: backend.create(bench.order(b"{}")))


def test_an_organization_that_is_disabled_is_a_fault_of_the_account(bench: Bench) -> None:
    bench.server.script = [
        Reply(400, failure("invalid_request_error", "This organization has been disabled."))
    ]
    with pytest.raises(AccountError):
        bench.run(lambda backend: backend.create(bench.order(b"{}")))
