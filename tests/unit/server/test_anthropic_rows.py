"""What rows look like over Anthropic's protocol, by what was asked and by what a scenario does to them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local_server import LocalServer
from tests.unit.server.anthropic_client import Anthropic, counts, item, items
from tests.unit.server.api import Api, answer, line

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"type": "string", "enum": ["billing", "other"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
TOOL = {"name": "sort", "input_schema": SCHEMA}
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.fixture
def api(shared_server: LocalServer) -> Anthropic:
    shared_server.set_scenario({})
    return Anthropic(shared_server)


def message(api: Anthropic, text: str = "hello", **changed: Any) -> dict[str, Any]:
    """Return the message that answers one request."""
    (result,) = api.answers([item("a", text, **changed)])
    assert result["type"] == "succeeded", result
    found: dict[str, Any] = result["message"]
    return found


def spoiled(api: Anthropic, fault: str, **rule: Any) -> dict[str, Any]:
    api.server.set_scenario({"rows": [{"fault": fault, **rule}]})
    (result,) = api.answers([item("a")])
    found: dict[str, Any] = result
    return found


# -- answers ---------------------------------------------------------------------------------------
def test_the_same_question_has_the_same_answer_as_over_openai(api: Anthropic) -> None:
    openai = Api(api.server)
    (row,) = openai.output(openai.run(line("a", "what is it?")))
    found = message(api, "what is it?")
    assert found["content"] == [{"type": "text", "text": answer(row), "citations": None}]
    assert (found["type"], found["role"], found["model"]) == ("message", "assistant", "m-1")
    assert (found["stop_reason"], found["stop_sequence"], found["stop_details"]) == ("end_turn", None, None)
    used, usage = row["response"]["body"]["usage"], found["usage"]
    assert usage["service_tier"] == "batch"
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        used["prompt_tokens"],
        used["completion_tokens"],
    )


def test_structured_output_follows_its_schema(api: Anthropic) -> None:
    found = message(
        api, "a billing matter", output_config={"format": {"type": "json_schema", "schema": SCHEMA}}
    )
    assert found["content"][0]["text"] == '{"kind":"billing"}' and found["stop_reason"] == "end_turn"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "sort"}])
def test_a_tool_that_must_be_called_is_called(api: Anthropic, choice: dict[str, Any]) -> None:
    found = message(api, "a billing matter", tools=[TOOL], tool_choice=choice)
    (block,) = found["content"]
    assert block.pop("id").startswith("toolu_")
    assert block == {"type": "tool_use", "name": "sort", "input": {"kind": "billing"}}
    assert found["stop_reason"] == "tool_use"


def test_an_answer_that_is_too_long_is_cut(api: Anthropic) -> None:
    found = message(api, max_tokens=2)
    assert (found["stop_reason"], found["usage"]["output_tokens"]) == ("max_tokens", 2)
    called = message(api, max_tokens=1, tools=[TOOL], tool_choice={"type": "any"})
    assert called["stop_reason"] == "max_tokens" and called["content"][0]["input"] == {}


def test_an_answer_ends_before_a_stop_sequence(api: Anthropic) -> None:
    found = message(api, "one STOP two END", stop_sequences=["END", "STOP"])
    assert found["content"][0]["text"].endswith(": one ")
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "STOP")
    assert message(api, "one", stop_sequences=["END"])["stop_reason"] == "end_turn"


def test_thinking_is_a_block_of_its_own_and_counted_among_the_output(api: Anthropic) -> None:
    asked = {"thinking": {"type": "adaptive"}, "max_tokens": 500}
    found, plain = message(api, **asked), message(api)
    thinking, text = found["content"]
    assert thinking["type"] == "thinking" and thinking["thinking"] and thinking["signature"]
    assert [text] == plain["content"]
    thought = found["usage"]["output_tokens_details"]["thinking_tokens"]
    assert found["usage"]["output_tokens"] == plain["usage"]["output_tokens"] + thought
    hidden = message(api, **{**asked, "thinking": {"type": "adaptive", "display": "omitted"}})
    assert hidden["content"][0]["thinking"] == "" and hidden["usage"] == found["usage"]
    charged = api.server.charges()
    assert charged[-1]["output_tokens"] == found["usage"]["output_tokens"]


# -- the simulated cache ---------------------------------------------------------------------------
def test_the_first_request_with_a_marked_prefix_writes_it_and_the_others_read_it(api: Anthropic) -> None:
    system = [{"type": "text", "text": "x" * 400, **MARK}]
    requests = [item(f"r-{i}", f"say {i}" * 20, system=system) for i in range(3)]
    usages = [result["message"]["usage"] for result in api.answers(requests)]
    rest = 25  # tokens of "say 0" twenty times
    assert [usage["input_tokens"] for usage in usages] == [rest] * 3
    assert [usage["cache_creation_input_tokens"] for usage in usages] == [100, 0, 0]
    assert [usage["cache_read_input_tokens"] for usage in usages] == [0, 100, 100]
    assert usages[0]["cache_creation"] == {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 100}
    (batch,) = [b for b in api.server.batches() if b["total"] == 3][:1]
    assert {charge["input_tokens"] for charge in api.server.charges(batch["id"])} == {100 + rest}


def test_what_differs_before_the_mark_is_another_prefix(api: Anthropic) -> None:
    def system(text: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": text * 100, **MARK}]

    requests = [
        item("a", system=system("abcd")),
        item("b", system=system("efgh")),
        item("c", system=system("abcd"), model="m-2"),
        item("d", system=system("abcd"), tools=[TOOL]),
        item("e", system="abcd" * 100),
        item("f", system=system("abcd")),
    ]
    usages = [result["message"]["usage"] for result in api.answers(requests)]
    assert [usage["cache_read_input_tokens"] for usage in usages] == [0, 0, 0, 0, 0, 100]
    assert [usage["cache_creation_input_tokens"] for usage in usages] == [100, 100, 100, 100, 0, 0]
    again = api.answers([requests[0]])[0]["message"]["usage"]
    assert again["cache_creation_input_tokens"] == 100, "each batch begins with an empty cache"


def test_the_longest_known_prefix_is_read_and_what_follows_up_to_the_last_mark_is_written(
    api: Anthropic,
) -> None:
    def asked(custom_id: str, example: str) -> dict[str, Any]:
        system = [{"type": "text", "text": "x" * 400, **MARK}]
        shown = {"type": "text", "text": example * 200, "cache_control": {"type": "ephemeral"}}
        ask = {"type": "text", "text": "q" * 40}
        return item(custom_id, system=system, messages=[{"role": "user", "content": [shown, ask]}])

    first, second = (result["message"]["usage"] for result in api.answers([asked("a", "a"), asked("b", "b")]))
    assert first["cache_creation"] == {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 100}
    assert second["cache_creation"] == {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 0}
    assert second["cache_read_input_tokens"] == 100


def test_a_mark_on_the_whole_request_is_one_on_its_last_block(api: Anthropic) -> None:
    usages = [
        result["message"]["usage"]
        for result in api.answers([item(name, "x" * 400, **MARK) for name in ("a", "b")])
    ]
    assert [usage["cache_read_input_tokens"] for usage in usages] == [0, 100]
    assert [usage["input_tokens"] for usage in usages] == [0, 0]


# -- errors ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changed",
    [
        {"messages": None},
        {"stream": True},
        {"max_tokens": 0},
        {"max_tokens": None},
        {"temperature": 0.0},
        {"top_p": 1},
        {"top_k": 5},
        {"speed": "fast"},
    ],
)
def test_parameters_are_looked_at_only_when_the_row_runs(api: Anthropic, changed: dict[str, Any]) -> None:
    batch = api.run([item("bad", **changed), item("good")])
    bad, good = (row["result"] for row in api.results(batch["id"]))
    assert good["type"] == "succeeded" and batch["request_counts"] == counts(succeeded=1, errored=1)
    assert bad["type"] == "errored" and bad["error"]["type"] == "error"
    assert bad["error"]["error"]["type"] == "invalid_request_error"
    assert bad["error"]["error"]["message"].startswith(next(iter(changed)))
    assert bad["error"]["request_id"] is None, "it was rejected before it ran"
    charge = api.server.charges(batch["id"])[0]
    assert (charge["custom_id"], charge["status"], charge["charged"]) == ("bad", 400, False)


def test_the_older_version_still_samples(shared_server: LocalServer) -> None:
    shared_server.set_scenario({})
    api = Anthropic(shared_server, "2023-06-01")
    assert message(api, temperature=0.2, top_p=0.5, top_k=4)


def test_an_unknown_model_is_an_error_of_its_rows(api: Anthropic) -> None:
    api.server.set_scenario({"unknown_models": ["m-none"]})
    unknown, known = api.answers([item("a", model="m-none"), item("b")])
    assert known["type"] == "succeeded"
    assert unknown["error"]["error"] == {"type": "invalid_request_error", "message": "model: m-none"}


def test_parameters_that_are_hardly_json_are_an_error_of_their_row(api: Anthropic) -> None:
    body = b'{"requests": [{"custom_id": "a", "params": {"x": "\xff"}}]}'
    made = api.http.post("/batches", content=body).raise_for_status().json()
    assert api.until(made["id"])["request_counts"] == counts(errored=1)
    assert api.results(made["id"])[0]["result"]["error"]["error"]["message"] == "params: not valid JSON"


@pytest.mark.parametrize(
    ("fault", "kind", "details"),
    [
        ("server_error", "api_error", None),
        ("rate_limited", "rate_limit_error", None),
        ("insufficient_quota", "rate_limit_error", {"error_code": "enforced_spend_limit_reached"}),
        ("bad_request", "invalid_request_error", None),
        ("context_length_exceeded", "invalid_request_error", None),
        ("request_timeout", "timeout_error", None),
        ("error_in_200", "api_error", None),
    ],
)
def test_faults_of_rows_are_nested_errors(api: Anthropic, fault: str, kind: str, details: Any) -> None:
    result = spoiled(api, fault)
    assert result["type"] == "errored"
    error = result["error"]
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    assert error["error"].get("details") == details
    assert error["request_id"].startswith("workerreq_")
    if fault == "context_length_exceeded":
        assert error["error"]["message"].startswith("prompt is too long")
    assert not api.server.charges()[-1]["charged"]


def test_a_code_of_anthropics_own_is_told_as_such(api: Anthropic) -> None:
    result = spoiled(api, "bad_request", code="cmek_key_disabled")
    assert result["error"]["error"]["details"] == {"error_code": "cmek_key_disabled"}


@pytest.mark.parametrize(
    ("fault", "reason", "content"),
    [("truncated", "max_tokens", 1), ("content_filter", "refusal", 0), ("empty", "end_turn", 0)],
)
def test_answers_that_are_none_are_told_by_their_stop_reason(
    api: Anthropic, fault: str, reason: str, content: int
) -> None:
    result = spoiled(api, fault)
    assert result["type"] == "succeeded"
    assert result["message"]["stop_reason"] == reason and len(result["message"]["content"]) == content
    assert api.server.charges()[-1]["charged"]


def test_a_refusal_is_explained(api: Anthropic) -> None:
    found = spoiled(api, "refusal")["message"]
    assert found["stop_reason"] == "refusal" and found["content"] == []
    assert found["stop_details"]["type"] == "refusal" and found["stop_details"]["explanation"]


def test_half_a_json_object_is_a_text_like_any_other(api: Anthropic) -> None:
    assert spoiled(api, "invalid_json")["message"]["content"][0]["text"] == '{"simulated": '


def test_a_row_can_be_missing(api: Anthropic) -> None:
    api.server.set_scenario({"rows": [{"fault": "missing", "match": {"custom_id": "r-2"}}]})
    batch = api.run(items(3))
    assert batch["request_counts"] == counts(succeeded=3)
    assert [row["custom_id"] for row in api.results(batch["id"])] == ["r-1", "r-3"]
    api.server.set_scenario({"rows": [{"fault": "missing"}]})
    assert api.results(api.run(items(2))["id"]) == [], "and so can all of them"
