"""The one table of the OpenAI family: every line of it decides, whatever the row looks like otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.backends.openai_rows import decode_row
from airflow_batch_llm.backends.openai_verdicts import RULES, Part, Rule
from airflow_batch_llm.core.model import Row
from airflow_batch_llm.core.verdicts import MEANINGS, STANDING, Verdict


def words(part: Part) -> list[Any]:
    return [
        pytest.param(word, rule.verdict, id=str(word))
        for rule in RULES
        if rule.part is part
        for word in rule.words
    ]


def decoded(response: Any = ..., error: Any = ..., **members: Any) -> Row:
    """Decode a row; ``...`` leaves a member out, as servers do that omit nulls."""
    line = {"custom_id": "w", "response": response, "error": error, **members}
    return decode_row(json.dumps({k: v for k, v in line.items() if v is not ...}).encode())


def test_a_word_stands_in_one_line_of_its_part() -> None:
    for part in Part:
        found = [word for rule in RULES if rule.part is part for word in rule.words]
        assert len(found) == len(set(found)), part
        assert all(word == str(word).lower() for word in found if isinstance(word, str))


def test_every_verdict_of_a_row_is_in_the_table_and_every_verdict_has_a_place() -> None:
    of_rows = set(Verdict) - {Verdict.MISSING}  # no row at all
    assert {rule.verdict for rule in RULES} == of_rows
    assert set(STANDING) == set(MEANINGS) == set(Verdict)
    assert all(rule.why for rule in RULES)


def failures(error: dict[str, Any]) -> list[Row]:
    """The same error in every place that a server has been seen to put it."""
    text = json.dumps({"error": error})
    return [
        decoded(None, error),
        decoded(error=error),
        decoded({}, error),
        decoded({"request_id": "x"}, error),
        decoded({"status_code": 200, "body": {"error": error}}, None),
        decoded({"status_code": 200, "request_id": "x"}, error),
        decoded({"status_code": 200, "body": text}),
        decoded({"status_code": 0, "body": {"error": error}}),
    ]


@pytest.mark.parametrize("member", ["code", "type"])
@pytest.mark.parametrize(("word", "verdict"), words(Part.CODE))
def test_a_code_decides_wherever_it_stands(word: str, verdict: Verdict, member: str) -> None:
    for spelt in (word, word.upper()):
        for row in failures({"message": "some text", member: spelt}):
            assert (row.verdict, row.code) == (verdict, spelt)
    # Beside a status that says less, in either file.
    row = decoded({"status_code": 400, "body": {"error": {member: word}}})
    assert row.verdict is verdict


@pytest.mark.parametrize(("word", "verdict"), words(Part.STATUS))
def test_a_status_decides_where_no_code_does(word: int | str, verdict: Verdict) -> None:
    status = {"4xx": 418, "5xx": 599}.get(str(word), word)
    errors = ({"error": "some text"}, {"error": {"code": None}}, {"detail": "a b"})
    for body in (..., None, {}, "", "<html>", *errors):
        response = {"status_code": status, "body": body}
        for row in (
            decoded({k: v for k, v in response.items() if v is not ...}),
            decoded({"status_code": str(status)}),
        ):
            assert (row.verdict, row.code) == (verdict, f"http_{status}"), body
    error = {"object": "error", "message": "m", "code": status}
    assert decoded(None, error).verdict is verdict
    assert decoded(None, {**error, "code": str(status)}).verdict is verdict, "DeepInfra"
    # A type that only says which side was at fault says less than a status.
    assert decoded({"status_code": status, "body": {"error": {"type": "invalid_request_error"}}}).verdict is (
        verdict
    )


@pytest.mark.parametrize(("word", "verdict"), words(Part.TYPE))
def test_a_type_that_says_little_decides_last(word: str, verdict: Verdict) -> None:
    for row in failures({"message": "some text", "type": word}):
        assert (row.verdict, row.code) == (verdict, word)


@pytest.mark.parametrize(("word", "verdict"), words(Part.FINISH))
def test_a_finish_reason_decides_over_the_text(word: str, verdict: Verdict) -> None:
    for spelt in (word, word.upper()):
        for text in ("some text", [{"type": "text", "text": "some text"}]):
            choice = {"message": {"content": text}, "finish_reason": spelt}
            bodies = {"choices": [choice]}, json.dumps({"choices": [choice]})
            for body in bodies:
                row = decoded({"status_code": 200, "body": body})
                assert (row.verdict, row.text) == (verdict, "some text")
                assert bool(row.code) == (verdict is not Verdict.OK)


@pytest.mark.parametrize(("word", "verdict"), words(Part.FINISH))
def test_a_response_is_judged_by_its_status_or_what_kept_it_from_being_complete(
    word: str, verdict: Verdict
) -> None:
    part = {"type": "output_text", "text": "some text", "annotations": []}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    reasons: list[dict[str, Any]] = [{"status": word}]
    if verdict is not Verdict.OK:
        reasons.append({"status": "incomplete", "incomplete_details": {"reason": word}})
    for reason in reasons:
        row = decoded({"status_code": 200, "body": {"object": "response", "output": [message], **reason}})
        assert (row.verdict, row.text) == (verdict, "some text")
        assert bool(row.code) == (verdict is not Verdict.OK)


def answered(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": "stop"}]}


CALL = {"id": "t1", "type": "function", "function": {"name": "out", "arguments": "{}"}}
VECTOR = {"object": "embedding", "index": 0, "embedding": [0.5, -1]}
SHAPES: dict[str, list[Row]] = {
    "refusal": [
        decoded({"status_code": 200, "body": answered(content=content, refusal="I can't.")})
        for content in (None, "", "So:")
    ],
    "no_content": [
        decoded({"status_code": 200, "body": answered(content=content)}) for content in (None, "", " \n", [])
    ],
    "no_body": [decoded({"status_code": 200, "body": body}) for body in (None, {}, "")]
    + [decoded({"status_code": 200})],
    "no_choice": [decoded({"status_code": 200, "body": {"choices": choices}}) for choices in ([], [None])],
    "no_choices": [
        decoded({"status_code": 200, "body": body})
        for body in (
            {"id": "c"},
            [1],
            "words",
            {"choices": "c"},
            {"data": [{"id": "a model"}]},
            {"results": [{"index": 0, "relevance_score": 0.5}]},
            {"results": [{"flagged": "no", "categories": {}, "category_scores": {}}]},
        )
    ],
    "bad_tool_call": [
        decoded({"status_code": 200, "body": {"choices": [{"message": {"tool_calls": calls}}]}})
        for calls in (
            [None],
            ["words"],
            [{"id": "t1"}],
            [{"id": "t1", "function": {"name": "", "arguments": "{}"}}],
            [{"id": "t1", "type": "function", "function": {"name": "out", "arguments": '{"a": 1'}}],
            [{"id": "t1", "type": "function", "function": {"name": "out", "arguments": "[1]"}}],
            [CALL, {**CALL, "function": {"name": "out", "arguments": "plain words"}}],
        )
    ],
    "no_vector": [
        decoded({"status_code": 200, "body": {"data": data}})
        for data in ([], [{"embedding": []}], [{"embedding": ""}], [VECTOR, {"embedding": [], "index": 1}])
    ],
    "bad_vector": [
        decoded({"status_code": 200, "body": {"data": data}})
        for data in (
            [{"embedding": [None, 1.0]}],
            [{"embedding": ["a"]}],
            [{"embedding": [True]}],
            [{"embedding": {"0": 1.0}}],
            [{"embedding": "AAA"}],
            [{"embedding": "words"}],
            [{"embedding": "AACAfw=="}],  # an infinity
            [VECTOR, VECTOR],
            [VECTOR, {**VECTOR, "index": 2}],
        )
    ],
    "no_result": [decoded({"status_code": 200, "body": {"id": "m", "results": []}})],
    "error_text": [
        decoded(None, "engine is dead"),
        decoded(error="engine is dead"),
        decoded({"status_code": 200}, "engine is dead"),
        decoded(None, {"message": "engine is dead"}),
        decoded({"status_code": 200, "body": {"error": "engine is dead"}}),
    ],
    "no_status": [decoded({"request_id": "x"}), decoded({"status_code": None, "body": None}, {"code": None})],
    "no_response": [decoded(), decoded(None), decoded({}), decoded("text"), decoded(None, {"code": None})],
    "other_protocol": [
        decoded(custom_id=..., recordId="w", modelOutput={"content": []}),
        decoded(custom_id=None, recordId="w", error={"errorCode": 400}),
    ],
    "not_json": [decode_row(line) for line in (b"", b"{", b'{"custom_id":"w"', b"\xff\xfe", b"nope")],
    "not_an_object": [decode_row(line) for line in (b"[]", b"null", b"7", b'"w"')],
}


def shape_rules() -> list[Rule]:
    return [rule for rule in RULES if rule.part is Part.SHAPE]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_has_its_code_and_its_verdict(shape: str) -> None:
    (rule,) = [rule for rule in shape_rules() if shape in rule.words]
    for row in SHAPES[shape]:
        assert (row.verdict, row.code) == (rule.verdict, shape)
        assert row.wire_id == ("" if shape in ("not_json", "not_an_object") else "w")


def test_an_error_that_is_not_listed_is_unknown_and_keeps_its_code() -> None:
    for row in failures({"message": "some text", "code": "of_tomorrow"}):
        assert (row.verdict, row.code) == (Verdict.UNKNOWN, "of_tomorrow")


def test_every_shape_of_the_table_is_shown_here() -> None:
    # "undecodable" is what is left for surprises: no line is known that reaches it.
    shown = {*SHAPES, "unknown_error", "undecodable", "prompt_blocked"}  # the last one is Gemini's
    assert {word for rule in shape_rules() for word in rule.words} == shown


# -- what each self-hosted system writes -----------------------------------------------------------
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"}
BODY = {"id": "c", "object": "chat.completion", "model": "m", "choices": [CHOICE]}


@pytest.mark.parametrize(
    ("line", "verdict", "code"),
    [
        pytest.param({"response": {"status_code": 200, "body": BODY}}, "ok", "", id="AIBrix: no error key"),
        pytest.param(
            {"response": {"status_code": 200, "body": json.dumps(BODY)}, "error": None}, "ok", "", id="OGX"
        ),
        pytest.param({"response": BODY}, "ok", "", id="a completion without its envelope"),
        pytest.param(
            {
                "response": {"status_code": 400, "request_id": "vb"},
                "error": {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400},
            },
            "bad_request",
            "BadRequestError",
            id="vLLM: no body, and the error beside the response",
        ),
        pytest.param(
            {
                "response": None,
                "error": {"object": "error", "message": "x", "type": "BadRequestError", "code": 400},
            },
            "bad_request",
            "BadRequestError",
            id="vLLM: response null",
        ),
        pytest.param(
            {
                "response": {"status_code": 500, "request_id": "vb"},
                "error": {"message": "x", "type": "InternalServerError", "code": 500},
            },
            "server_error",
            "InternalServerError",
            id="vLLM: the engine failed",
        ),
        pytest.param(
            {
                "response": {"status_code": 404},
                "error": {"message": "x", "type": "NotFoundError", "code": 404},
            },
            "bad_request",
            "NotFoundError",
            id="vLLM: no such model",
        ),
        pytest.param(
            {"response": None, "error": {"code": "runner_lost", "message": "x"}},
            "cancelled",
            "runner_lost",
            id="LiteLLM: its replica was restarted",
        ),
        pytest.param(
            {"error": {"code": "batch_failed"}}, "cancelled", "batch_failed", id="llm-d: the batch failed"
        ),
        pytest.param(
            {"response": {"status_code": 429, "body": {"detail": "too busy"}}, "error": None},
            "rate_limited",
            "http_429",
            id="a 4xx in the output file",
        ),
        pytest.param(
            {"response": None, "error": {"code": "500", "message": "x", "param": None, "type": None}},
            "server_error",
            "http_500",
            id="DeepInfra: the status as a text in the code",
        ),
        pytest.param(
            {"error": {"code": "batch_client_error", "message": "x"}},
            "bad_request",
            "batch_client_error",
            id="Together",
        ),
    ],
)
def test_a_row_as_its_system_writes_it(line: dict[str, Any], verdict: str, code: str) -> None:
    row = decode_row(json.dumps({"id": "q", "custom_id": "w", **line}).encode())
    assert (row.wire_id, row.verdict, row.code) == ("w", verdict, code)
