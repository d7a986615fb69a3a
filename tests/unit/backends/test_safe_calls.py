"""Calls that are safe to repeat: when they are repeated, how long is waited, what is raised in the end."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import pytest

from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    NotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unreachable,
)
from tests.unit.backends.conftest import Bench
from tests.unit.backends.scripted_server import Reply

BATCH = {"id": "batch_1", "status": "in_progress"}


def error(
    code: str | None = None, type_: str | None = None, message: str = "secret prompt text"
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def retrieve(bench: Bench, **options: Any) -> Any:
    return bench.run(lambda backend: backend.retrieve("batch_1"), **options)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_a_passing_fault_is_waited_out(bench: Bench, status: int) -> None:
    bench.server.script = [Reply(status, error()), Reply(200, BATCH)]
    assert retrieve(bench).id == "batch_1"
    assert len(bench.waits) == 1
    assert 0.375 <= bench.waits[0] <= 0.5


def test_a_dropped_connection_is_tried_again(bench: Bench) -> None:
    bench.server.script = [Reply(drop=True), Reply(200, BATCH)]
    assert retrieve(bench).id == "batch_1"


def test_waits_grow_and_end_after_the_tries_allowed(bench: Bench) -> None:
    bench.server.script = [Reply(503, b"<html>busy</html>")] * 4
    with pytest.raises(Unreachable):
        retrieve(bench, max_retries=3)
    assert len(bench.server.received) == 4
    assert [0.375 * 2**n <= wait <= 0.5 * 2**n for n, wait in enumerate(bench.waits)] == [True] * 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_not_pass_is_not_repeated(bench: Bench, status: int) -> None:
    bench.server.script = [Reply(status, error("some_code"))]
    with pytest.raises(ProviderError):
        retrieve(bench)
    assert bench.waits == []


@pytest.mark.parametrize(
    ("said", "status", "calls"), [("true", 400, 3), ("false", 503, 1), ("False", 429, 1)]
)
def test_the_servers_own_word_on_retrying_wins(bench: Bench, said: str, status: int, calls: int) -> None:
    bench.server.script = [Reply(status, error(), {"x-should-retry": said})] * 3
    with pytest.raises(ProviderError):
        retrieve(bench)
    assert len(bench.server.received) == calls


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "1200"}, 1.2),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_the_delay_asked_for_is_the_delay_waited(bench: Bench, headers: dict[str, str], wait: float) -> None:
    bench.server.script = [Reply(429, error("rate_limit_exceeded"), headers), Reply(200, BATCH)]
    retrieve(bench)
    assert bench.waits == [pytest.approx(wait)]


def test_a_delay_may_be_a_date_to_come(bench: Bench) -> None:
    date = formatdate(time.time() + 30, usegmt=True)
    bench.server.script = [Reply(503, error(), {"retry-after": date}), Reply(200, BATCH)]
    retrieve(bench)
    assert 20 < bench.waits[0] <= 30


@pytest.mark.parametrize("value", ["soon", "-5", "nan", "inf", "Wed, 99 Foo 2015"])
def test_an_unreadable_delay_is_no_delay(bench: Bench, value: str) -> None:
    bench.server.script = [Reply(429, error(), {"retry-after": value}), Reply(200, BATCH)]
    retrieve(bench)
    assert 0.375 <= bench.waits[0] <= 0.5


@pytest.mark.parametrize(("status", "raised"), [(429, RateLimited), (503, Unreachable)])
def test_a_delay_beyond_the_budget_is_handed_to_the_caller(
    bench: Bench, status: int, raised: type[RateLimited | Unreachable]
) -> None:
    bench.server.script = [Reply(status, error(), {"retry-after": "120"})]
    with pytest.raises(raised) as caught:
        retrieve(bench)
    assert caught.value.retry_after == 120
    assert bench.waits == []


@pytest.mark.parametrize("value", ["99999999999", "1e300", "Wed, 01 Jan 9000 00:00:00 GMT"])
def test_nobody_waits_longer_than_a_day_for_what_a_server_asks(bench: Bench, value: str) -> None:
    bench.server.script = [Reply(429, error(), {"retry-after": value})]
    with pytest.raises(RateLimited) as caught:
        retrieve(bench)
    assert caught.value.retry_after == 86_400


def test_the_budget_holds_for_all_waits_together(bench: Bench) -> None:
    bench.server.script = [Reply(429, error(), {"retry-after": "40"})] * 3
    with pytest.raises(RateLimited):
        retrieve(bench)
    assert bench.waits == [40]


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, error("invalid_api_key"), AuthError),
        (403, error(), AuthError),
        (401, b"no such key", AuthError),
        (400, {"code": "invalid_api_key", "error": "Incorrect key"}, AuthError),
        (400, error("invalid_api_key"), AuthError),
        (429, error("insufficient_quota"), AccountError),
        (429, error(None, "insufficient_quota"), AccountError),
        (403, error("not_available_for_plan"), AccountError),
        (402, {"detail": "no balance"}, AccountError),
        (429, [{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "x"}}], RateLimited),
        (404, error(), NotFound),
        (422, {"detail": [{"loc": ["body"], "msg": "bad"}]}, Refused),
        (400, b"<html>nginx</html>", Refused),
        (500, b"\xff\xfe", Unreachable),
        (501, b"", Unreachable),
        (307, b"", Refused),
        (200, b"<html>login</html>", Unreachable),
        (200, {"status": "in_progress"}, Unreachable),
        (200, b"[" * 100_000, Unreachable),
    ],
)
def test_each_reply_has_its_exception(
    bench: Bench, status: int, body: Any, kind: type[ProviderError]
) -> None:
    bench.server.script = [Reply(status, body)]
    with pytest.raises(kind) as caught:
        retrieve(bench, max_retries=0)
    assert type(caught.value) is kind


def test_a_quota_that_is_used_up_is_not_asked_again(bench: Bench) -> None:
    bench.server.script = [Reply(429, error("insufficient_quota"), {"x-should-retry": "true"})]
    with pytest.raises(AccountError):
        retrieve(bench)
    assert len(bench.server.received) == 1


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_no_exception_quotes_what_the_provider_wrote(bench: Bench, status: int) -> None:
    bench.server.script = [Reply(status, error("some_code"))]
    with pytest.raises(ProviderError) as caught:
        retrieve(bench, max_retries=0)
    assert "some_code" in str(caught.value)
    assert "secret" not in repr(caught.value) + str(caught.value.__cause__)


def test_a_host_that_refuses_connections_is_unreachable(bench: Bench) -> None:
    with pytest.raises(Unreachable):
        bench.server.__exit__(None, None, None)
        retrieve(bench)
    assert len(bench.waits) == 2


def test_a_list_that_does_not_exist_speaks_of_the_base_url(bench: Bench) -> None:
    bench.server.script = [Reply(404, b"not found")]
    with pytest.raises(Refused, match="base URL") as caught:
        bench.run(lambda backend: backend.probe())
    assert f"check the dialect and the base URL {bench.server.base_url}" in str(caught.value)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(401, error("invalid_api_key")),
        Reply(400, error("odd_code")),
        Reply(503, b""),
        Reply(307, b""),
        Reply(200, b"<html>login</html>"),
        Reply(drop=True),
    ],
)
def test_an_error_names_the_address_without_query_or_key(bench: Bench, reply: Reply) -> None:
    bench.server.script = [reply]
    with pytest.raises(ProviderError) as caught:
        bench.run(lambda backend: backend.probe(), max_retries=0)
    told = str(caught.value)
    assert f"GET {bench.server.base_url}/batches: " in told
    assert "limit" not in told and "?" not in told and "key-1" not in told


def test_a_host_that_cannot_be_reached_is_named(bench: Bench) -> None:
    bench.server.__exit__(None, None, None)
    with pytest.raises(Unreachable) as caught:
        retrieve(bench)
    address = f"{bench.server.base_url}/batches/batch_1"
    assert f"GET {address}: no usable reply (ConnectError)" in str(caught.value)


def test_a_backend_can_be_used_from_one_event_loop_after_another(bench: Bench) -> None:
    bench.server.script = [Reply(200, BATCH), Reply(200, BATCH)]
    backend = bench.backend()
    assert asyncio.run(backend.retrieve("batch_1")).id == "batch_1"
    assert asyncio.run(backend.retrieve("batch_1")).id == "batch_1"
