from __future__ import annotations

import json
from typing import Any

import pytest

from tests.local_server import LocalServer
from tests.unit.server.gemini_client import (
    Gemini,
    error_of,
    inlined,
    keys,
    line,
    lines,
    places,
    request,
    text_of,
)

GOOD = request("hello")


@pytest.fixture
def gemini(shared_server: LocalServer) -> Gemini:
    shared_server.set_scenario({})
    return Gemini(shared_server)


def nothing_came_of(gemini: Gemini, before: dict[str, int]) -> bool:
    return gemini.server.summary() == before


@pytest.mark.parametrize("spelling", ["snake_case", "camelCase"])
def test_a_batch_can_be_asked_for_in_either_spelling(gemini: Gemini, spelling: str) -> None:
    snake = spelling == "snake_case"
    config = {"max_output_tokens": 2} if snake else {"maxOutputTokens": 2}
    asked = request("hello", **{"generation_config" if snake else "generationConfig": config})
    batch = {
        "display_name" if snake else "displayName": "nightly",
        "input_config" if snake else "inputConfig": inlined(asked),
    }
    created = gemini.http.post("/v1beta/models/m-1:batchGenerateContent", json={"batch": batch})
    metadata = created.raise_for_status().json()["metadata"]
    assert (metadata["displayName"], metadata["state"]) == ("nightly", "BATCH_STATE_PENDING")
    done = gemini.until_done(created.json()["name"])
    [row] = done["response"]["inlinedResponses"]["inlinedResponses"]
    assert row["response"]["candidates"][0]["finishReason"] == "MAX_TOKENS"
    file = {"file_name" if snake else "fileName": gemini.file(line("r-1", **{"generation_config": config}))}
    assert gemini.create(file).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        (b"{not json", "line"),
        (b"[]", "line"),
        (b'{"key": 7, "request": {"contents": [{"parts": []}]}}', "key"),
        (b'{"key": "r-2"}', "request"),
        (b'{"key": "r-2", "request": {}}', "request.contents"),
        (b'{"key": "r-2", "request": {"contents": []}}', "request.contents"),
        (b'{"request": {"contents": [{"parts": [{"txt": "a"}]}]}}', "request.contents[0].parts[0]"),
        (b'{"request": {"contents": {"parts": []}}}', "request.contents"),
        (
            b'{"request": {"contents": [{"parts": []}], "generationConfig": {"maxOutputTokens": 1.5}}}',
            "request.generationConfig.maxOutputTokens",
        ),
        (
            b'{"request": {"contents": [{"parts": []}], "messages": []}}',
            "request",
        ),
        (b"\xff", "line"),
        (b"", "line"),
    ],
)
def test_one_line_that_cannot_be_read_refuses_the_whole_batch(
    gemini: Gemini, wrong: bytes, place: str
) -> None:
    before = gemini.server.summary()
    name = gemini.file(line("r-1") + wrong + b"\n" + line("r-3"))
    refused = gemini.create({"file_name": name})
    assert error_of(refused) == (400, "INVALID_ARGUMENT")
    assert places(refused) == [f"line 2: {place}"]
    assert nothing_came_of(gemini, before)


def test_one_inline_request_that_cannot_be_read_refuses_the_whole_batch(gemini: Gemini) -> None:
    before = gemini.server.summary()
    refused = gemini.create(inlined(GOOD, {"contents": [{"parts": [{"text": 7}]}]}, GOOD))
    assert error_of(refused) == (400, "INVALID_ARGUMENT")
    assert places(refused) == ["batch.inputConfig.requests.requests[1].request.contents[0].parts[0].text"]
    assert nothing_came_of(gemini, before)
    listed = gemini.list("files").get("files", [])
    assert not [file for file in listed if file["name"].startswith("files/inline")]


def test_whole_numbers_may_be_strings_and_nulls_are_as_left_out(gemini: Gemini) -> None:
    asked = request("hello", generationConfig={"maxOutputTokens": "2", "seed": None}, toolConfig=None)
    [row] = gemini.run_inline(asked)
    assert row["response"]["candidates"][0]["finishReason"] == "MAX_TOKENS"


def test_keys_may_be_missing_and_may_repeat(gemini: Gemini) -> None:
    rows = gemini.run(line("r-1", "one") + line("r-1", "two") + line(None, "three") + line("", "four"))
    assert keys(rows) == ["r-1", "r-1", None, None]
    assert [text_of(row).split()[-1] for row in rows] == ["one", "two", "three", "four"]


def test_metadata_of_a_files_line_takes_nothing_from_its_key(gemini: Gemini) -> None:
    data = json.dumps({"key": "r-1", "metadata": {"key": "other"}, "request": GOOD}).encode()
    assert keys(gemini.run(data)) == ["r-1"]


def test_inline_requests_get_their_metadata_back(gemini: Gemini) -> None:
    items = [
        {"request": GOOD, "metadata": {"key": "r-1", "more": "kept"}},
        {"request": GOOD, "metadata": {"other": "x"}},
        {"request": GOOD},
    ]
    created = gemini.create({"requests": {"requests": items}}).raise_for_status()
    rows = gemini.until_done(created.json()["name"])["response"]["inlinedResponses"]["inlinedResponses"]
    assert [row.get("metadata") for row in rows] == [{"key": "r-1", "more": "kept"}, {"other": "x"}, None]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ({}, ["batch.inputConfig"]),
        ({"requests": {"requests": []}}, ["batch.inputConfig"]),
        ({"fileName": "files/a", "requests": {"requests": [{"request": GOOD}]}}, ["batch.inputConfig"]),
        ({"file": "files/a"}, ["body.batch.inputConfig"]),
        ({"requests": [{"request": GOOD}]}, ["body.batch.inputConfig.requests"]),
    ],
)
def test_a_batch_has_either_a_file_or_requests(
    gemini: Gemini, source: dict[str, Any], place: list[str]
) -> None:
    refused = gemini.create(source)
    assert error_of(refused) == (400, "INVALID_ARGUMENT") and places(refused) == place


def test_a_file_without_requests_is_refused(gemini: Gemini) -> None:
    assert error_of(gemini.create({"file_name": gemini.file(b"")})) == (400, "INVALID_ARGUMENT")


def test_a_call_of_more_than_20_mb_is_refused(gemini: Gemini) -> None:
    before = gemini.server.summary()
    long = request("x" * (7 * 1024 * 1024))
    assert error_of(gemini.create(inlined(long, long, long))) == (400, "INVALID_ARGUMENT")
    assert nothing_came_of(gemini, before)
    assert gemini.create(inlined(long, long)).status_code == 200


def test_a_body_that_is_no_json_is_refused(gemini: Gemini) -> None:
    path = "/v1beta/models/m-1:batchGenerateContent"
    for body in (b"", b"{", b"[]", b'"x"'):
        assert error_of(gemini.http.post(path, content=body)) == (400, "INVALID_ARGUMENT")


def test_a_model_that_nobody_knows_is_not_found(gemini: Gemini) -> None:
    gemini.server.set_scenario({"unknown_models": ["m-9"]})
    assert error_of(gemini.create(inlined(GOOD), model="m-9")) == (404, "NOT_FOUND")
    assert error_of(gemini.http.get("/v1beta/models/m-9")) == (404, "NOT_FOUND")
    assert gemini.create(inlined(GOOD)).status_code == 200
    assert gemini.list("models")["models"][0]["name"] == "models/simulated"


def test_a_wrong_key_is_an_invalid_argument(gemini: Gemini) -> None:
    stranger = Gemini(gemini.server, **{"x-goog-api-key": "wrong"})
    refused = stranger.create(inlined(GOOD))
    assert error_of(refused) == (400, "INVALID_ARGUMENT")
    assert refused.json()["error"]["details"][0]["reason"] == "API_KEY_INVALID"


def test_a_full_queue_refuses_the_call_and_says_when_to_try_again(gemini: Gemini) -> None:
    gemini.server.set_scenario(
        {"batches": [{"fault": "queue_full", "times": 1}], "gemini": {"retry_delay": 2.5}}
    )
    before = gemini.server.summary()
    refused = gemini.create(inlined(GOOD))
    assert error_of(refused) == (429, "RESOURCE_EXHAUSTED")
    [detail] = refused.json()["error"]["details"]
    assert detail["@type"].endswith("google.rpc.RetryInfo") and detail["retryDelay"] == "2.5s"
    assert nothing_came_of(gemini, before)
    assert gemini.create(inlined(GOOD)).status_code == 200


def test_a_batch_that_is_to_fail_validation_is_refused(gemini: Gemini) -> None:
    rules = [{"fault": "fail_validation", "line": 2, "times": 2}, {"fault": "fail_validation", "times": 1}]
    gemini.server.set_scenario({"batches": rules})
    source = {"file_name": gemini.file(lines(3))}
    told = [gemini.create(source), gemini.create(inlined(GOOD, GOOD)), gemini.create(inlined(GOOD))]
    assert {error_of(reply) for reply in told} == {(400, "INVALID_ARGUMENT")}
    assert [places(reply) for reply in told] == [
        ["line 2: request"],
        ["batch.inputConfig.requests.requests[1].request"],
        [],
    ]
    assert gemini.create(source).status_code == 200


def test_a_rule_that_is_not_about_the_call_is_left_to_the_batch(gemini: Gemini) -> None:
    rules = [{"fault": "expire", "after": 0, "times": 1}, {"fault": "queue_full", "times": 1}]
    gemini.server.set_scenario({"batches": rules})
    first = gemini.until_done(gemini.start_inline(GOOD))
    assert first["metadata"]["state"] == "BATCH_STATE_EXPIRED"
    assert gemini.create(inlined(GOOD)).status_code == 429


def test_refusals_may_stand_in_a_list(gemini: Gemini) -> None:
    rule = {"on": "list", "fault": "error", "status": 429, "retry_after": 3, "times": 1}
    gemini.server.set_scenario(
        {"batches": [{"fault": "queue_full"}], "calls": [rule], "gemini": {"errors_in_list": True}}
    )
    for reply, status in ((gemini.create(inlined(GOOD)), 429), (gemini.create({}), 400)):
        [told] = reply.json()
        assert told["error"]["code"] == reply.status_code == status
    [told] = gemini.http.get("/v1beta/batches").json()
    assert told["error"]["details"][-1]["retryDelay"] == "3s"


def test_a_create_call_without_a_reply_has_made_its_batch(gemini: Gemini) -> None:
    gemini.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    with pytest.raises(Exception, match="disconnected"):
        gemini.create(inlined(GOOD), display_name="mine alone")
    [found] = [
        batch
        for batch in gemini.list(pageSize="5")["operations"]
        if batch["metadata"].get("displayName") == "mine alone"
    ]
    assert gemini.until_done(found["name"])["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"


def test_embeddings_are_read_from_files_and_from_the_call(gemini: Gemini) -> None:
    asked = {"content": {"parts": [{"text": "one text"}]}, "output_dimensionality": 8}
    call = "asyncBatchEmbedContent"
    [inline] = gemini.run_inline(asked, call=call)
    data = json.dumps({"key": "r-1", "request": asked}).encode()
    created = gemini.create({"file_name": gemini.file(data)}, call=call).raise_for_status().json()
    assert created["metadata"]["@type"].endswith("EmbedContentBatch")
    [row] = gemini.rows(gemini.until_done(created["name"]))
    assert row["response"] == inline["response"] and len(row["response"]["embedding"]["values"]) == 8
    assert row["response"]["tokenCount"] == 2
    refused = gemini.create(inlined(GOOD), call=call)
    assert error_of(refused) == (400, "INVALID_ARGUMENT")
