"""The create call: one request on the wire, and an honest word on whether it took effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.core.ids import META_ORIGIN, META_TOKEN
from airflow_batch_llm.core.model import RemoteBatch, RemoteStatus, RequestTemplate
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.exceptions import (
    AccountError,
    AuthError,
    InDoubt,
    NotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unreachable,
)
from tests.unit.backends.conftest import Bench
from tests.unit.backends.scripted_server import Reply

ORDER = CreateOrder(
    template=RequestTemplate("/v1/chat/completions", "m-1"),
    input_file_id="file-in",
    metadata={META_TOKEN: "a123", META_ORIGIN: "o1"},
)
CREATED = {
    "id": "batch_1",
    "status": "validating",
    "created_at": 1_700_000_000,
    "metadata": {META_TOKEN: "a123"},
}


def create(bench: Bench, order: CreateOrder = ORDER, row: Any = "openai", **options: Any) -> RemoteBatch:
    return bench.run(lambda backend: backend.create(order), row, **options)


def coded(code: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": "x", "type": "invalid_request_error", "param": None, "code": code, **more}}


def test_the_order_is_sent_with_token_window_and_expiry(bench: Bench) -> None:
    bench.server.script = [Reply(200, CREATED)]
    batch = create(bench)
    assert (batch.id, batch.status, batch.metadata) == ("batch_1", RemoteStatus.PENDING, {META_TOKEN: "a123"})
    (request,) = bench.server.seen("POST", "/batches")
    assert request.headers["authorization"] == "Bearer key-1"
    assert request.json == {
        "input_file_id": "file-in",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {META_TOKEN: "a123", META_ORIGIN: "o1"},
        "output_expires_after": {"anchor": "created_at", "seconds": 2_592_000},
    }


def test_fields_a_dialect_lacks_are_not_sent(bench: Bench) -> None:
    bench.server.script = [Reply(201, CREATED)]
    create(bench, row=replace(DIALECTS["generic"], metadata=False))
    assert set(bench.server.received[0].json) == {"input_file_id", "endpoint", "completion_window"}


def test_extra_fields_cannot_displace_the_orders_own(bench: Bench) -> None:
    bench.server.script = [Reply(200, CREATED)]
    create(
        bench, replace(ORDER, extra={"completion_window": "7d", "priority": 3, "input_file_id": "file-other"})
    )
    sent = bench.server.received[0].json
    assert (sent["completion_window"], sent["priority"], sent["input_file_id"]) == ("7d", 3, "file-in")


@pytest.mark.parametrize(
    "reply",
    [
        Reply(drop=True),
        Reply(500, b"oops"),
        Reply(502, b"<html>bad gateway</html>"),
        Reply(503, coded("overloaded"), {"retry-after": "1", "x-should-retry": "true"}),
        Reply(408, coded("timeout")),
        Reply(409, coded("conflict")),
        Reply(499, b"client closed request"),
        Reply(303, b"", {"location": "/v1/batches/batch_1"}),
        Reply(200, b"<html>welcome</html>"),
        Reply(200, {"object": "batch"}),
        Reply(200, b'{"id": "batch_1", "sta', promised=4000),
    ],
)
def test_what_may_have_taken_effect_is_in_doubt_and_sent_once(bench: Bench, reply: Reply) -> None:
    bench.server.script = [reply] * 5
    with pytest.raises(InDoubt) as caught:
        create(bench)
    assert f"POST {bench.server.base_url}/batches: " in str(caught.value)
    assert len(bench.server.received) == 1
    assert bench.waits == []


@pytest.mark.parametrize(
    "other",
    [
        {"id": "req_123", "object": "error", "error": {"message": "upstream timed out"}},
        {"id": "req_123", "error": {"message": "upstream timed out"}},
        {"id": "req_123", "type": "error"},
        {"id": "resp_1", "object": "response", "status": "completed"},
        {"id": "file-2", "object": "file", "status": "processed"},
        {"id": "x", "status": "ok", "metadata": {META_TOKEN: "another"}, "input_file_id": "file-2"},
    ],
)
def test_another_object_that_has_an_id_is_not_taken_for_the_batch(
    bench: Bench, other: dict[str, Any]
) -> None:
    bench.server.script = [Reply(200, other)]
    with pytest.raises(InDoubt):
        create(bench)


@pytest.mark.parametrize(
    "shown",
    [
        {"status": "validating"},
        {"object": "batch"},
        {"object": "batch", "status": "brand_new"},
        {"status": "brand_new", "metadata": {META_TOKEN: "a123"}},
        {"object": "job", "metadata": {META_TOKEN: "a123"}},
        {"status": "brand_new", "input_file_id": "file-in"},
    ],
)
def test_one_sign_of_a_batch_is_enough_where_a_server_leaves_out_the_others(
    bench: Bench, shown: dict[str, Any]
) -> None:
    bench.server.script = [Reply(200, {"id": "batch_1", **shown})]
    assert create(bench).id == "batch_1"


def test_a_reply_that_never_comes_is_in_doubt(bench: Bench) -> None:
    bench.server.script = [Reply(hang=True)]
    with pytest.raises(InDoubt):
        create(bench, create_timeout_seconds=0.2)
    assert len(bench.server.received) == 1


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(401, coded("invalid_api_key")), AuthError),
        (Reply(403, coded("forbidden")), AuthError),
        (Reply(402, {"detail": "no balance"}), AccountError),
        (Reply(429, coded("insufficient_quota"), {"x-should-retry": "true"}), AccountError),
        (Reply(429, coded("billing_hard_limit_reached")), AccountError),
        (Reply(400, coded("invalid_value"), {"x-should-retry": "true"}), Refused),
        (Reply(422, {"detail": [{"loc": ["body", "completion_window"], "msg": "bad"}]}), Refused),
        (Reply(404, b"no such route"), Refused),
        (Reply(404, coded("not_found", param="input_file_id")), NotFound),
        (Reply(308, b"", {"location": "https://elsewhere.example/v1/batches"}), Refused),
    ],
)
def test_a_refusal_took_no_effect_and_is_sent_once(
    bench: Bench, reply: Reply, kind: type[ProviderError]
) -> None:
    bench.server.script = [reply] * 5
    with pytest.raises(kind) as caught:
        create(bench)
    assert type(caught.value) is kind
    assert len(bench.server.received) == 1


@pytest.mark.parametrize(("value", "seconds"), [({"retry-after": "90"}, 90.0), ({}, None)])
def test_too_many_creations_name_the_time_to_wait(
    bench: Bench, value: dict[str, str], seconds: float | None
) -> None:
    bench.server.script = [Reply(429, coded("rate_limit_exceeded"), value)]
    with pytest.raises(RateLimited) as caught:
        create(bench)
    assert (caught.value.retry_after, caught.value.reason) == (seconds, "rate_limited")
    assert len(bench.server.received) == 1


@pytest.mark.parametrize(
    "body",
    [
        coded("token_limit_exceeded"),
        {"error": {"code": "BadRequest", "message": "token_limit_exceeded: wait"}},
    ],
)
def test_a_full_queue_is_not_a_refusal(bench: Bench, body: Any) -> None:
    bench.server.script = [Reply(400, body)]
    with pytest.raises(RateLimited) as caught:
        create(bench)
    assert caught.value.reason == "queue_full"


def test_without_a_connection_nothing_was_sent_and_nothing_is_in_doubt(bench: Bench) -> None:
    bench.server.__exit__(None, None, None)
    with pytest.raises(Unreachable):
        create(bench)
