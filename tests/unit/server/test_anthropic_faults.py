"""A scenario's faults of batches, calls and results, over Anthropic's protocol."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.local_server import LocalServer
from tests.unit.server.anthropic_client import Anthropic, counts, error_of, items


@pytest.fixture
def api(shared_server: LocalServer) -> Anthropic:
    shared_server.set_scenario({})
    return Anthropic(shared_server)


# -- batches ---------------------------------------------------------------------------------------
def test_an_expired_batch_has_what_was_answered_until_then(api: Anthropic) -> None:
    api.server.set_scenario({"batches": [{"fault": "expire", "after": 0.25, "times": 1}]})
    batch = api.run(items(4))
    assert (batch["processing_status"], batch["request_counts"]) == ("ended", counts(succeeded=1, expired=3))
    rows = api.results(batch["id"])
    assert [row["result"]["type"] for row in rows] == ["succeeded", "expired", "expired", "expired"]
    assert rows[3] == {"custom_id": "r-4", "result": {"type": "expired"}}
    assert len(api.server.charges(batch["id"])) == 1
    assert api.run(items(2))["request_counts"] == counts(succeeded=2)


def test_a_full_queue_refuses_the_create_call_and_leaves_no_batch(api: Anthropic) -> None:
    before = api.server.batches()
    api.server.set_scenario({"batches": [{"fault": "queue_full", "times": 2}]})
    for _ in range(2):
        assert error_of(api.create(items(1)))[:2] == (429, "rate_limit_error")
    assert api.server.batches() == before
    assert api.run(items(1))["request_counts"] == counts(succeeded=1)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"line": 3}, "requests.2: "),
        ({"line": 1, "param": "custom_id"}, "requests.0.custom_id: "),
        ({}, "requests: "),
    ],
)
def test_a_validation_that_fails_refuses_the_create_call_at_its_place(
    api: Anthropic, rule: dict[str, object], told: str
) -> None:
    before = api.server.batches()
    api.server.set_scenario({"batches": [{"fault": "fail_validation", "times": 1, **rule}]})
    status, kind, message = error_of(api.create(items(4)))
    assert (status, kind) == (400, "invalid_request_error") and message.startswith(told)
    assert api.server.batches() == before
    assert api.create(items(4)).status_code == 200


def test_a_create_call_that_is_wrong_uses_up_no_rule(api: Anthropic) -> None:
    api.server.set_scenario({"batches": [{"fault": "queue_full", "times": 1}]})
    assert api.create([]).status_code == 400
    assert [api.create(items(1)).status_code for _ in range(2)] == [429, 200]


# -- calls -----------------------------------------------------------------------------------------
def test_a_lost_reply_leaves_the_batch_behind(api: Anthropic) -> None:
    before = len(api.server.batches())
    api.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    with pytest.raises(httpx.TransportError):
        api.create(items(3))
    newest = api.http.get("/batches", params={"limit": 1}).json()["data"][0]
    assert len(api.server.batches()) == before + 1
    assert sum(newest["request_counts"].values()) == 3
    assert api.until(newest["id"])["request_counts"] == counts(succeeded=3)
    assert api.server.requests("POST", "/anthropic/v1/messages/batches")[-1]["status"] == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (429, "rate_limit_error"),
        (529, "overloaded_error"),
        (500, "api_error"),
        (504, "timeout_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (409, "conflict_error"),
    ],
)
def test_calls_fail_with_the_type_of_their_status(api: Anthropic, status: int, kind: str) -> None:
    rule = {"on": "create", "fault": "error", "status": status, "retry_after": 2, "times": 1}
    api.server.set_scenario({"calls": [rule]})
    before = len(api.server.batches())
    reply = api.create(items(1))
    assert error_of(reply)[:2] == (status, kind) and "details" not in reply.json()["error"]
    assert reply.headers["retry-after"] == "2" and len(api.server.batches()) == before


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("enforced_spend_limit_reached", "enforced_spend_limit_reached"),
        ("insufficient_quota", "enforced_spend_limit_reached"),
        ("ramp_limit_exceeded", "ramp_limit_exceeded"),
    ],
)
def test_a_call_can_fail_with_a_code_of_anthropics(api: Anthropic, code: str, told: str) -> None:
    rule = {"on": "create", "fault": "error", "status": 429, "code": code}
    api.server.set_scenario({"calls": [rule]})
    assert api.create(items(1)).json()["error"]["details"] == {"error_code": told}


@pytest.mark.parametrize(
    ("on", "method", "path"),
    [
        ("list", "GET", "/batches"),
        ("retrieve", "GET", "/batches/{}"),
        ("cancel", "POST", "/batches/{}/cancel"),
        ("download", "GET", "/batches/{}/results"),
        ("delete", "DELETE", "/batches/{}"),
    ],
)
def test_each_kind_of_call_can_fail_once(api: Anthropic, on: str, method: str, path: str) -> None:
    batch = api.run(items(1))
    api.server.set_scenario({"calls": [{"on": on, "fault": "error", "status": 503, "times": 1}]})
    replies = [api.http.request(method, path.format(batch["id"])) for _ in range(2)]
    assert [reply.status_code == 503 for reply in replies] == [True, False]
    assert error_of(replies[0])[1] == "api_error"


def test_a_download_that_is_cut_ends_cleanly_and_one_that_is_reset_does_not(api: Anthropic) -> None:
    batch = api.run(items(6))
    whole = api.http.get(f"/batches/{batch['id']}/results").content
    rules = [{"on": "download", "fault": fault, "at": 0.5, "times": 1} for fault in ("cut", "reset")]
    api.server.set_scenario({"calls": rules})
    cut = api.http.get(f"/batches/{batch['id']}/results")
    assert cut.status_code == 200 and cut.content == whole[: len(whole) // 2]
    with pytest.raises(httpx.TransportError):
        api.http.get(f"/batches/{batch['id']}/results")
    assert api.http.get(f"/batches/{batch['id']}/results").content == whole


# -- looks and results -----------------------------------------------------------------------------
def test_looks_can_show_a_status_that_nobody_knows(api: Anthropic) -> None:
    api.server.set_scenario({"pace": {"statuses": ["daydreaming"]}})
    made = api.start(items(1))
    odd = api.get(made["id"])
    assert (odd["processing_status"], odd["results_url"]) == ("daydreaming", None)
    assert odd["request_counts"] == counts(processing=1)
    assert api.until(made["id"])["request_counts"] == counts(succeeded=1)


def test_counts_can_move_before_the_end(api: Anthropic) -> None:
    pace = {"seconds": 86_400, "hold_at": 0.5, "live_counts": True}
    api.server.set_scenario({"pace": pace, "rows": [{"fault": "bad_request", "match": {"every": 2}}]})
    made = api.start(items(4))
    api.until_held(made["id"], 2)
    running = api.get(made["id"])
    assert running["request_counts"] == counts(processing=2, succeeded=1, errored=1)
    api.server.release(made["id"])
    assert api.until(made["id"])["request_counts"] == counts(succeeded=2, errored=2)


def test_results_can_come_late(api: Anthropic) -> None:
    api.server.set_scenario({"results": {"late": 2}})
    made = api.start(items(1))
    ended = api.until(made["id"])
    assert ended["results_url"] is None
    assert error_of(api.http.get(f"/batches/{made['id']}/results"))[:2] == (404, "not_found_error")
    shown = [api.get(made["id"])["results_url"] for _ in range(2)]
    assert shown[0] is None and shown[1]
    assert len(api.results(made["id"])) == 1


def test_a_batch_can_be_hidden_just_after_its_creation(api: Anthropic) -> None:
    api.server.set_scenario({"pace": {"hidden": 1}})
    made = api.start(items(1))
    assert [api.http.get(f"/batches/{made['id']}").status_code for _ in range(2)] == [404, 200]


def test_results_come_in_another_order_with_rows_that_nobody_sent(api: Anthropic) -> None:
    api.server.set_scenario(
        {"results": {"shuffle": 7, "repeat": 1, "foreign": 1, "no_id": 1, "blank_lines": 1, "crlf": True}}
    )
    made = api.run(items(5))
    content = api.http.get(f"/batches/{made['id']}/results").content
    assert content.count(b"\r\n") == 9
    rows = [json.loads(row) for row in content.split(b"\r\n") if row]
    found = [row["custom_id"] for row in rows]
    own = [one for one in found if one not in (None, "foreign-0")]
    assert None in found and "foreign-0" in found
    assert sorted(set(own)) == [f"r-{i}" for i in range(1, 6)] and len(own) == 6
    assert own != sorted(own)


def test_a_last_row_can_be_broken_off(api: Anthropic) -> None:
    api.server.set_scenario({"results": {"broken_last_line": True}})
    made = api.run(items(2))
    last = api.http.get(f"/batches/{made['id']}/results").content.split(b"\n")[-1]
    assert last.startswith(b'{"custom_id":"r-1"') and not last.endswith(b"}")
