from __future__ import annotations

import json

import pytest

from tests.unit.server.api import Api, answer, ids, line, lines


def faulty(api: Api, fault: str, **rule: object) -> None:
    api.server.set_scenario({"rows": [{"fault": fault, "match": {"contains": "say 2"}, **rule}]})


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("server_error", 500, None),
        ("rate_limited", 429, "rate_limit_exceeded"),
        ("insufficient_quota", 429, "insufficient_quota"),
        ("bad_request", 400, "invalid_value"),
        ("context_length_exceeded", 400, "context_length_exceeded"),
    ],
)
def test_a_failed_row_stands_in_the_error_file_and_is_not_charged(
    api: Api, fault: str, status: int, code: str | None
) -> None:
    faulty(api, fault)
    batch = api.run(lines(3))
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert ids(api.output(batch)) == ["r-1", "r-3"]
    [row] = api.errors(batch)
    assert (row["custom_id"], row["error"], row["response"]["status_code"]) == ("r-2", None, status)
    assert row["response"]["body"]["error"]["code"] == code
    assert [charge["charged"] for charge in api.server.charges(batch["id"])] == [True, False, True]


def test_code_and_param_of_a_bad_request_can_be_chosen(api: Api) -> None:
    faulty(api, "bad_request", code="odd", param="messages[0]")
    [row] = api.errors(api.run(lines(3)))
    error = row["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("odd", "messages[0]")


def test_a_request_timeout_has_no_response(api: Api) -> None:
    faulty(api, "request_timeout")
    [row] = api.errors(api.run(lines(3)))
    assert (row["response"], row["error"]["code"]) == (None, "request_timeout")


def test_a_missing_row_is_in_neither_file_and_not_charged(api: Api) -> None:
    faulty(api, "missing")
    batch = api.run(lines(3))
    assert ids(api.output(batch) + api.errors(batch)) == ["r-1", "r-3"]
    assert api.server.charges(batch["id"])[1]["charged"] is False


def test_an_error_with_status_200_stands_in_the_output_file_and_is_not_charged(api: Api) -> None:
    faulty(api, "error_in_200")
    batch = api.run(lines(3))
    body = api.output(batch)[1]["response"]["body"]
    assert "choices" not in body and body["error"]["message"]
    assert api.server.charges(batch["id"])[1]["charged"] is False


@pytest.mark.parametrize(
    ("fault", "finish", "content"),
    [
        ("content_filter", "content_filter", None),
        ("refusal", "stop", None),
        ("empty", "stop", ""),
        ("invalid_json", "stop", '{"simulated": '),
    ],
)
def test_a_spoiled_answer_is_a_charged_200(api: Api, fault: str, finish: str, content: str | None) -> None:
    faulty(api, fault)
    batch = api.run(lines(3))
    row = api.output(batch)[1]
    choice = row["response"]["body"]["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == (finish, content)
    assert bool(choice["message"]["refusal"]) == (fault == "refusal")
    charge = api.server.charges(batch["id"])[1]
    assert (charge["charged"], charge["fault"]) == (True, fault)


def test_a_truncated_answer_is_the_beginning_of_the_whole_one(api: Api) -> None:
    whole = answer(api.output(api.run(lines(3)))[1])
    faulty(api, "truncated")
    row = api.output(api.run(lines(3)))[1]
    assert row["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert whole.startswith(answer(row)) and len(answer(row)) < len(whole)


def test_times_counts_the_executions_of_each_id(api: Api) -> None:
    api.server.set_scenario({"rows": [{"fault": "server_error", "times": 2}]})
    assert [len(api.errors(api.run(lines(2)))) for _ in range(3)] == [2, 2, 0]
    assert len(api.errors(api.run(line("r-1") + line("r-new")))) == 1


def test_putting_a_scenario_starts_its_counters_again(api: Api) -> None:
    for _ in range(2):
        api.server.set_scenario({"rows": [{"fault": "server_error", "times": 1}]})
        assert [len(api.errors(api.run(lines(1)))) for _ in range(2)] == [1, 0]


def test_a_batch_keeps_the_scenario_it_was_created_under(api: Api) -> None:
    api.server.set_scenario({"rows": [{"fault": "server_error"}], "pace": {"seconds": 86_400, "hold_at": 0}})
    batch_id = api.start(lines(2))["id"]
    api.server.set_scenario({})
    api.server.release()
    assert len(api.errors(api.until(batch_id))) == 2


def test_the_first_rule_that_fits_and_is_not_used_up_decides(api: Api) -> None:
    rules = [{"fault": "rate_limited", "times": 1}, {"fault": "server_error", "match": {"custom_id": "1$"}}]
    api.server.set_scenario({"rows": rules})
    seen = [[row["response"]["status_code"] for row in api.errors(api.run(lines(2)))] for _ in range(2)]
    assert seen == [[429, 429], [500]]


def test_rows_are_chosen_by_all_conditions_of_a_match(api: Api) -> None:
    match = {"contains": "say", "custom_id": "^r-", "model": "m-1", "every": 4}
    api.server.set_scenario({"rows": [{"fault": "server_error", "match": match}]})
    assert ids(api.errors(api.run(lines(12)))) == ["r-4", "r-8", "r-12"]
    assert api.errors(api.run(lines(12, model="m-2"))) == []


def test_a_fraction_chooses_the_same_rows_each_time_and_others_with_another_salt(api: Api) -> None:
    chosen = []
    for salt in ("a", "a", "b"):
        match = {"fraction": 0.3, "salt": salt, "by": "prompt"}
        api.server.set_scenario({"rows": [{"fault": "server_error", "match": match}]})
        chosen.append(ids(api.errors(api.run(lines(400)))))
    assert chosen[0] == chosen[1] != chosen[2]
    assert 60 < len(chosen[0]) < 180


@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ({"rows": [{"fault": "explode"}]}, "rows.0.fault"),
        ({"rows": [{"fault": "empty", "match": {"custom_id": "("}}]}, "rows.0.match.custom_id"),
        ({"rows": [{"fault": "empty", "times": 0}]}, "rows.0.times"),
        ({"rows": [{"fault": "empty", "match": {"fraction": 2}}]}, "rows.0.match.fraction"),
        ({"calls": [{"on": "create", "fault": "cut"}]}, "calls.0"),
        ({"weather": "bad"}, "weather"),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_place_and_changes_nothing(
    api: Api, scenario: dict, place: str
) -> None:
    url = f"http://127.0.0.1:{api.server.port}/admin/scenario"
    before = api.http.get(url).json()
    reply = api.http.put(url, content=json.dumps(scenario))
    assert reply.status_code == 400
    assert f"{place}: " in reply.json()["error"]["message"]
    assert api.http.get(url).json() == before


def test_the_summary_tells_paid_twice_from_tried_twice(api: Api) -> None:
    before = api.server.summary()
    api.server.set_scenario({"rows": [{"fault": "empty", "match": {"contains": "tried"}, "times": 1}]})
    for _ in range(2):
        api.run(line("sum-1", "tried") + line("sum-2", "paid"))
    after = api.server.summary()
    grown = {key: after[key] - before[key] for key in after}
    assert (grown["executed"], grown["charged"], grown["answered"]) == (4, 4, 3)
    assert (grown["charged_twice"], grown["answered_twice"], grown["sent_after_answer"]) == (2, 1, 1)
