from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.unit.server.api import Api, ids, lines


def test_an_expired_batch_keeps_its_answers_and_names_the_rest(api: Api) -> None:
    api.server.set_scenario({"batches": [{"fault": "expire", "after": 0.4, "times": 1}]})
    batch = api.run(lines(5))
    assert (batch["status"], batch["completed_at"]) == ("expired", None)
    assert batch["expired_at"]
    assert batch["request_counts"] == {"total": 5, "completed": 2, "failed": 0}
    assert ids(api.output(batch)) == ["r-1", "r-2"]
    errors = api.errors(batch)
    assert ids(errors) == ["r-3", "r-4", "r-5"]
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}
    assert len(api.server.charges(batch["id"])) == 2
    assert api.run(lines(5))["status"] == "completed"


def test_a_full_queue_fails_the_batch_as_often_as_asked(api: Api) -> None:
    api.server.set_scenario({"batches": [{"fault": "queue_full", "times": 2}]})
    ended = [api.run(lines(1)) for _ in range(3)]
    assert [batch["status"] for batch in ended] == ["failed", "failed", "completed"]
    [error] = ended[0]["errors"]["data"]
    assert (error["code"], error["line"], error["param"]) == ("token_limit_exceeded", None, None)


@pytest.mark.parametrize("named", [3, None])
def test_validation_fails_as_told(api: Api, named: int | None) -> None:
    rule = {"fault": "fail_validation", "code": "invalid_request", "line": named}
    api.server.set_scenario({"batches": [rule]})
    [error] = api.run(lines(5))["errors"]["data"]
    assert (error["code"], error["line"]) == ("invalid_request", named)


def test_an_unknown_model_fails_validation(api: Api) -> None:
    api.server.set_scenario({"unknown_models": ["m-1"]})
    [error] = api.run(lines(1))["errors"]["data"]
    assert (error["code"], error["param"]) == ("model_not_found", "body.model")


def test_odd_statuses_are_shown_first_one_a_look(api: Api) -> None:
    api.server.set_scenario({"pace": {"statuses": ["queued", "paused"]}})
    batch_id = api.start(lines(1))["id"]
    shown = [api.get(batch_id) for _ in range(2)]
    assert [batch["status"] for batch in shown] == ["queued", "paused"]
    assert not any(batch["output_file_id"] or batch["completed_at"] for batch in shown)
    assert api.until(batch_id)["status"] == "completed"


def test_file_ids_can_come_later_than_the_end(api: Api) -> None:
    api.server.set_scenario({"results": {"late": 2}})
    batch_id = api.start(lines(1))["id"]
    assert api.until(batch_id)["output_file_id"] is None
    assert api.get(batch_id)["output_file_id"] is None
    assert len(api.output(api.get(batch_id))) == 1


def test_rows_that_failed_can_stand_among_the_answers(api: Api) -> None:
    api.server.set_scenario(
        {
            "rows": [
                {"match": {"custom_id": "^r-2$"}, "fault": "bad_request"},
                {"match": {"custom_id": "^r-3$"}, "fault": "request_timeout"},
            ],
            "results": {"failures_in_output": True},
        }
    )
    batch = api.run(lines(4))
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    output = api.output(batch)
    assert [row["response"]["status_code"] for row in output] == [200, 400, 200]
    assert [row["error"] for row in output] == [None, None, None]
    assert ids(api.errors(batch)) == ["r-3"]


def test_a_cancel_can_lose_answers_that_were_counted(api: Api) -> None:
    api.server.set_scenario({"pace": {"seconds": 86_400, "hold_at": 0.5, "cancel_loses": 1}})
    batch_id = api.start(lines(4))["id"]
    assert api.until(batch_id, ("in_progress",), rows=2)["request_counts"]["completed"] == 2
    api.http.post(f"/batches/{batch_id}/cancel").raise_for_status()
    batch = api.until(batch_id)
    assert batch["request_counts"] == {"total": 4, "completed": 1, "failed": 0}
    assert (ids(api.output(batch)), ids(api.errors(batch))) == (["r-2"], ["r-3", "r-4"])


@pytest.mark.parametrize(
    ("style", "value"), [("null", None), ("empty", ""), ("object", {}), ("absent", None)]
)
def test_an_absent_file_is_shown_as_the_scenario_wants(api: Api, style: str, value: object) -> None:
    api.server.set_scenario({"absent_file_id": style})
    batch = api.run(lines(1))
    assert batch.get("error_file_id") == value
    assert ("error_file_id" in batch) == (style != "absent")


def test_an_absent_file_can_be_one_without_bytes(api: Api) -> None:
    api.server.set_scenario({"absent_file_id": "empty_file"})
    batch = api.run(lines(1))
    assert api.content(batch["error_file_id"]) == b""


def test_shuffled_results_are_the_same_rows_in_another_order(api: Api) -> None:
    api.server.set_scenario({"results": {"shuffle": 7}})
    found = ids(api.output(api.run(lines(50))))
    assert found != sorted(found, key=lambda key: int(key[2:]))
    assert Counter(found) == Counter(f"r-{i}" for i in range(1, 51))
    assert found == ids(api.output(api.run(lines(50))))


def test_rows_can_be_repeated_foreign_and_without_an_id(api: Api) -> None:
    api.server.set_scenario({"results": {"repeat": 2, "foreign": 2, "no_id": 1}})
    found = Counter(ids(api.output(api.run(lines(4)))))
    assert found == {"r-1": 2, "r-2": 2, "r-3": 1, "r-4": 1, "foreign-0": 1, "foreign-1": 1, None: 1}


def test_the_bytes_around_the_rows_can_be_odd(api: Api) -> None:
    wanted = {"bom": True, "crlf": True, "blank_lines": 1, "no_last_newline": True}
    api.server.set_scenario({"results": wanted})
    data = api.content(api.run(lines(2))["output_file_id"])
    assert data.startswith(b"\xef\xbb\xbf{")
    first, blank, last = data.removeprefix(b"\xef\xbb\xbf").split(b"\r\n")
    assert blank == b""
    assert [json.loads(row)["custom_id"] for row in (first, last)] == ["r-1", "r-2"]


def test_a_file_can_end_in_half_a_row(api: Api) -> None:
    api.server.set_scenario({"results": {"broken_last_line": True}})
    whole, broken = api.content(api.run(lines(1))["output_file_id"]).split(b"\n")
    assert whole.startswith(broken) and broken
