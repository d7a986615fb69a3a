from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.local_server import LocalServer
from tests.unit.server.gemini_client import Gemini, keys, lines, request, text_of

SAID = [request("say 1"), request("say 2"), request("say 3")]


@pytest.fixture
def gemini(shared_server: LocalServer) -> Gemini:
    shared_server.set_scenario({})
    return Gemini(shared_server)


def faulty(gemini: Gemini, /, fault: str, **more: Any) -> None:
    gemini.server.set_scenario({"rows": [{"fault": fault, "match": {"contains": "say 2"}}], **more})


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("server_error", 13),
        ("rate_limited", 8),
        ("insufficient_quota", 8),
        ("bad_request", 3),
        ("context_length_exceeded", 3),
        ("request_timeout", 4),
        ("error_in_200", 13),
    ],
)
def test_a_failed_row_stands_among_the_others_with_a_code_of_google_rpc(
    gemini: Gemini, fault: str, code: int
) -> None:
    faulty(gemini, fault)
    done = gemini.until_done(gemini.start(lines(3)))
    assert done["metadata"]["state"] == "BATCH_STATE_SUCCEEDED"
    assert done["metadata"]["batchStats"]["failedRequestCount"] == "1"
    rows = gemini.rows(done)
    assert keys(rows) == ["r-1", "r-2", "r-3"]
    assert rows[1].keys() == {"key", "error"} and rows[1]["error"]["code"] == code
    charges = gemini.server.charges(done["name"].removeprefix("batches/"))
    assert [charge["charged"] for charge in charges] == [True, False, True]


def test_an_inline_row_that_failed_keeps_its_metadata(gemini: Gemini) -> None:
    faulty(gemini, "bad_request")
    rows = gemini.run_inline(*SAID)
    assert rows[1]["metadata"] == {"key": "r-2"} and rows[1]["error"]["code"] == 3


def test_errors_of_rows_may_be_called_status(gemini: Gemini) -> None:
    faulty(gemini, "rate_limited", gemini={"row_errors": "status"})
    row = gemini.run(lines(3))[1]
    assert row.keys() == {"key", "status"} and row["status"]["code"] == 8


@pytest.mark.parametrize(
    ("fault", "finish"),
    [("truncated", "MAX_TOKENS"), ("content_filter", "SAFETY"), ("empty", "STOP"), ("invalid_json", "STOP")],
)
def test_a_spoiled_answer_says_how_it_ended(gemini: Gemini, fault: str, finish: str) -> None:
    whole = text_of(gemini.run(lines(3))[1])
    faulty(gemini, fault)
    [candidate] = gemini.run(lines(3))[1]["response"]["candidates"]
    assert candidate["finishReason"] == finish
    parts = candidate["content"].get("parts")
    if fault == "truncated":
        assert whole.startswith(parts[0]["text"]) and len(parts[0]["text"]) < len(whole)
    else:
        assert parts == ([{"text": '{"simulated": '}] if fault == "invalid_json" else None)


def test_a_refusal_is_a_prompt_that_was_blocked(gemini: Gemini) -> None:
    faulty(gemini, "refusal")
    response = gemini.run(lines(3))[1]["response"]
    assert response["promptFeedback"]["blockReason"] and "candidates" not in response
    assert response["usageMetadata"]["promptTokenCount"] > 0


def test_vectors_can_fail_and_be_empty(gemini: Gemini) -> None:
    asked = [{"content": {"parts": [{"text": text}]}} for text in ("one", "say 2", "three")]
    for fault, code in (("empty", None), ("error_in_200", 13), ("bad_request", 3)):
        faulty(gemini, fault)
        rows = gemini.run_inline(*asked, call="asyncBatchEmbedContent")
        assert [row["metadata"]["key"] for row in rows] == ["r-1", "r-2", "r-3"]
        assert rows[0]["response"]["embedding"]["values"]
        if code is None:
            assert rows[1]["response"]["embedding"] == {}
        else:
            assert rows[1]["error"]["code"] == code


def test_a_missing_row_is_counted_and_stands_nowhere(gemini: Gemini) -> None:
    faulty(gemini, "missing")
    done = gemini.until_done(gemini.start(lines(3)))
    assert done["metadata"]["batchStats"] == {"requestCount": "3", "successfulRequestCount": "3"}
    assert keys(gemini.rows(done)) == ["r-1", "r-3"]


def test_a_request_that_nobody_here_can_answer_fails_alone(gemini: Gemini) -> None:
    before = gemini.server.summary()
    search = request("say 2", tools=[{"googleSearch": {}}])
    rows = gemini.run_inline(SAID[0], search)
    assert "response" in rows[0] and rows[1]["error"]["code"] == 3
    assert "tools.googleSearch" in rows[1]["error"]["message"]
    assert gemini.server.summary()["charged"] == before["charged"] + 1


def test_results_come_as_the_scenario_wants_them(gemini: Gemini) -> None:
    odd = {"shuffle": 7, "repeat": 1, "foreign": 1, "no_id": 1, "blank_lines": 1, "bom": True, "crlf": True}
    gemini.server.set_scenario({"results": {**odd, "broken_last_line": True}})
    done = gemini.until_done(gemini.start(lines(3)))
    content = gemini.content(done["response"]["responsesFile"])
    assert content.startswith(b"\xef\xbb\xbf{") and not content.endswith(b"}")
    whole = [line for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\r\n") if line.endswith(b"}}")]
    assert content.count(b"\r\n\r\n") == 1 and len(whole) == 6
    rows = [json.loads(line) for line in whole]
    assert Counter(map(str, keys(rows))) == {"r-1": 2, "r-2": 1, "r-3": 1, "foreign-0": 1, "None": 1}
    inline = [row.get("metadata", {}) for row in gemini.run_inline(*SAID)]
    assert sorted(map(str, keys(inline))) == sorted(map(str, keys(rows)))


def test_usage_leaves_out_zeros_and_adds_up(gemini: Gemini) -> None:
    name = gemini.start(lines(2))
    rows = gemini.rows(gemini.until_done(name))
    charges = gemini.server.charges(name.removeprefix("batches/"))
    for row, charge in zip(rows, charges, strict=True):
        usage = row["response"]["usageMetadata"]
        assert usage["promptTokenCount"] == charge["input_tokens"]
        assert usage["candidatesTokenCount"] == charge["output_tokens"]
        assert usage["totalTokenCount"] == charge["input_tokens"] + charge["output_tokens"]
        assert "cachedContentTokenCount" not in usage and "thoughtsTokenCount" not in usage


def test_rules_match_keys_prompts_and_models(gemini: Gemini) -> None:
    rules = [
        {"fault": "bad_request", "match": {"custom_id": "1$", "model": "m-1"}, "times": 1},
        {"fault": "bad_request", "match": {"model": "models/m-1"}},
    ]
    gemini.server.set_scenario({"rows": rules})
    assert [list(row) for row in gemini.run(lines(2))] == [["key", "error"], ["key", "response"]]
    assert [list(row) for row in gemini.run(lines(2))] == [["key", "response"]] * 2
