"""Gemini's requests and replies as OpenAI's: pure functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.server.gemini_members import EMBED, GENERATE, Malformed
from airflow_batch_llm.server.gemini_replies import error_of, response_of
from airflow_batch_llm.server.gemini_requests import chat_of, embeddings_of
from airflow_batch_llm.server.translation import Answer, BadRequest, Call, Failure, read_chat
from airflow_batch_llm.server.wire import Reply

PROPERTIES = {"city": {"type": "STRING"}}
WEATHER = {
    "name": "weather",
    "description": "Look it up.",
    "parameters": {"type": "OBJECT", "properties": PROPERTIES},
}
CLOCK = {"name": "clock", "parametersJsonSchema": {"type": "object"}}


def chat(*contents: dict[str, Any], **members: Any) -> dict[str, Any]:
    asked = contents or ({"parts": [{"text": "hello"}]},)
    request = GENERATE({"contents": list(asked), **members}, "request")
    made: dict[str, Any] = json.loads(chat_of("m-1", request))
    return made


def answer(**changed: Any) -> Answer:
    values: dict[str, Any] = {
        "digest": "d1", "created": 1, "model": "m-1", "text": "fine", "calls": (), "finish": "stop",
        "stopped_by": None, "refusal": None, "thinking": None, "input_tokens": 10, "cached_tokens": 0,
        "output_tokens": 5, "reasoning_tokens": 0, **changed,
    }  # fmt: skip
    return Answer(**values)


# -- requests --------------------------------------------------------------------------------------
def test_instructions_and_turns_become_messages() -> None:
    body = chat(
        {"role": "user", "parts": [{"text": "one"}, {"text": "two"}]},
        {"role": "model", "parts": [{"text": "thinking", "thought": True}, {"text": "three"}]},
        {"parts": [{"text": "four"}]},
        system_instruction={"parts": [{"text": "Be brief."}]},
    )
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]


def test_images_and_documents_become_parts() -> None:
    body = chat(
        {
            "parts": [
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
                {"inline_data": {"mime_type": "application/pdf", "data": "AAAA"}},
                {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x.example/1.jpg"}},
            ]
        }
    )
    image, document, address = body["messages"][0]["content"]
    assert image["image_url"]["url"] == "data:image/png;base64,AAAA"
    assert document["file"]["file_data"] == "data:application/pdf;base64,AAAA"
    assert address["image_url"]["url"] == "https://x.example/1.jpg"


def test_calls_and_their_responses_find_each_other_by_name_or_id() -> None:
    body = chat(
        {"parts": [{"text": "Weather and time?"}]},
        {
            "role": "model",
            "parts": [
                {"functionCall": {"name": "weather", "args": {"city": "Rome"}}},
                {"functionCall": {"name": "clock", "id": "c-2"}},
                {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "clock", "id": "c-2", "response": {"hour": 7}}},
                {"functionResponse": {"name": "weather", "response": {"output": "sunny"}}},
                {"functionResponse": {"name": "weather", "response": {"result": "rain"}}},
            ],
        },
    )
    _, calls, *results = body["messages"]
    made = [(call["id"], json.loads(call["function"]["arguments"])) for call in calls["tool_calls"]]
    assert made == [("call_1", {"city": "Rome"}), ("c-2", {}), ("call_3", {"city": "Oslo"})]
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in results] == [
        ("tool", "c-2", '{"hour":7}'),
        ("tool", "call_1", "sunny"),
        ("tool", "call_3", "rain"),
    ]


@pytest.mark.parametrize(
    ("calling", "names", "choice"),
    [
        (None, ["weather", "clock"], "auto"),
        ({"mode": "AUTO"}, ["weather", "clock"], "auto"),
        ({"mode": "NONE"}, ["weather", "clock"], "none"),
        ({"mode": "ANY"}, ["weather", "clock"], "required"),
        (
            {"mode": "ANY", "allowed_function_names": ["clock"]},
            ["clock"],
            {"type": "function", "function": {"name": "clock"}},
        ),
    ],
)
def test_functions_become_tools(calling: dict[str, Any] | None, names: list[str], choice: Any) -> None:
    body = chat(
        tools=[{"function_declarations": [WEATHER]}, {"functionDeclarations": [CLOCK]}],
        toolConfig={"functionCallingConfig": calling},
    )
    assert [tool["function"]["name"] for tool in body["tools"]] == names
    assert body["tool_choice"] == choice
    if "weather" in names:
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        assert body["tools"][0]["function"] == {
            "name": "weather",
            "description": "Look it up.",
            "parameters": parameters,
        }


def test_settings_that_mean_the_same_are_renamed() -> None:
    config = {
        "temperature": 0.2, "topP": 0.9, "topK": 40, "seed": 7, "maxOutputTokens": 5,
        "stopSequences": ["END"],
        "presencePenalty": 0.1, "frequencyPenalty": 0.3, "thinkingConfig": {"thinkingLevel": "LOW"},
    }  # fmt: skip
    body = chat(generationConfig=config)
    del body["messages"]
    assert body == {
        "model": "m-1", "temperature": 0.2, "top_p": 0.9, "top_k": 40, "seed": 7, "max_tokens": 5,
        "stop": ["END"], "presence_penalty": 0.1, "frequency_penalty": 0.3, "reasoning_effort": "low",
    }  # fmt: skip


def test_both_kinds_of_schemas_become_json_schema() -> None:
    theirs = {
        "type": "OBJECT",
        "properties": {
            "note": {"type": "STRING", "nullable": True, "max_length": "9"},
            "label": {"type": "STRING", "format": "enum", "enum": ["a", "b"]},
            "pet": {"ref": "#/defs/Pet"},
            "list": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}, {"type": "NUMBER"}]}},
        },
        "required": ["label"],
        "additionalProperties": False,
        "defs": {"Pet": {"type": "OBJECT", "additionalProperties": {"type": "STRING"}}},
        "propertyOrdering": ["label", "note"],
    }
    same = {
        "type": "object",
        "properties": {
            "label": {"type": "string", "format": "enum", "enum": ["a", "b"]},
            "note": {"type": ["string", "null"], "maxLength": 9},
            "pet": {"$ref": "#/$defs/Pet"},
            "list": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "number"}]}},
        },
        "required": ["label"],
        "additionalProperties": False,
        "$defs": {"Pet": {"type": "object", "additionalProperties": {"type": "string"}}},
    }
    for given in ({"responseSchema": theirs}, {"response_json_schema": same}):
        body = chat(generationConfig={"responseMimeType": "application/json", **given})
        schema = body["response_format"]["json_schema"]["schema"]
        assert schema == same and list(schema["properties"])[0] == "label"
    plain = chat(generationConfig={"responseMimeType": "application/json"})
    assert plain["response_format"] == {"type": "json_object"}


def test_names_inside_of_the_callers_own_objects_are_left_alone() -> None:
    schema = {"type": "object", "properties": {"snake_case": {"type": "string"}, "odd name": {}}}
    body = chat(
        {"role": "model", "parts": [{"function_call": {"name": "f", "args": {"snake_case": None}}}]},
        generation_config={"response_mime_type": "application/json", "response_json_schema": schema},
    )
    assert body["response_format"]["json_schema"]["schema"] == schema
    call = body["messages"][0]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"snake_case": None}


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"tools": [{"codeExecution": {}}]}, "tools.codeExecution"),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"responseLogprobs": True}}, "generationConfig.responseLogprobs"),
        ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseJsonSchema": {}}}, "generationConfig.responseMimeType"),
        (
            {
                "generationConfig": {
                    "responseMimeType": "application/json",
                    "responseSchema": {},
                    "responseJsonSchema": {},
                }
            },
            "generationConfig.responseSchema",
        ),
        ({"contents": [{"role": "wizard", "parts": []}]}, "contents.role"),
        ({"contents": [{"parts": [{"executableCode": {}}]}]}, "contents.parts.executableCode"),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]},
            "contents.parts.functionResponse",
        ),
        (
            {
                "tools": [{"functionDeclarations": [WEATHER]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["g"]}},
            },
            "toolConfig.functionCallingConfig",
        ),
    ],
)
def test_what_cannot_be_done_here_is_refused_by_its_place(members: dict[str, Any], place: str) -> None:
    request = GENERATE({"contents": [{"parts": [{"text": "hello"}]}], **members}, "request")
    with pytest.raises(BadRequest) as told:
        chat_of("m-1", request)
    assert told.value.param == place


@pytest.mark.parametrize(
    "given",
    [
        {"contents": [{"parts": [{"text": "a", "texts": "b"}]}]},
        {"generationConfig": {"max_tokens": 5}},
        {"generationConfig": {"temperature": "warm"}},
        {"generationConfig": {"maxOutputTokens": "inf"}},
        {"generationConfig": {"maxOutputTokens": True}},
        {"toolConfig": {"functionCallingConfig": {"mode": "SOMETIMES"}}},
        {"contents": [{"parts": [{"functionCall": {"args": []}}]}]},
        {"generationConfig": {"responseSchema": {"oneOf": []}}},
    ],
)
def test_a_request_with_unknown_members_or_wrong_types_cannot_be_read(given: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        GENERATE({"contents": [], **given}, "request")


def test_a_content_becomes_the_input_of_embeddings() -> None:
    request = EMBED(
        {
            "content": {"parts": [{"text": "a"}, {"text": "b"}]},
            "output_dimensionality": 8,
            "taskType": "CLUSTERING",
        },
        "request",
    )
    assert json.loads(embeddings_of("e", request)) == {"model": "e", "input": "a\nb", "dimensions": 8}
    with pytest.raises(BadRequest):
        embeddings_of("e", EMBED({"content": {"parts": []}}, "request"))


# -- replies ---------------------------------------------------------------------------------------
def test_thoughts_are_counted_beside_the_answer_and_cached_tokens_within_the_prompt() -> None:
    thought = answer(cached_tokens=4, reasoning_tokens=2, thinking="hm")
    usage = response_of(thought, thoughts=False)["usageMetadata"]
    assert {name: count for name, count in usage.items() if name != "promptTokensDetails"} == {
        "promptTokenCount": 10,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 15,
    }
    [shown] = response_of(thought, thoughts=True)["candidates"]
    assert shown["content"]["parts"] == [{"text": "hm", "thought": True}, {"text": "fine"}]


def test_tool_calls_end_with_stop_and_broken_ones_are_malformed() -> None:
    call = Call("c-1", "weather", {"city": "Rome"})
    [whole] = response_of(answer(text=None, calls=(call,), finish="tool_calls"), thoughts=False)["candidates"]
    assert whole["finishReason"] == "STOP"
    assert whole["content"]["parts"] == [{"functionCall": {"name": "weather", "args": {"city": "Rome"}}}]
    torn = Call("c-1", "weather", '{"ci')
    [broken] = response_of(answer(text=None, calls=(torn,)), thoughts=False)["candidates"]
    assert broken["finishReason"] == "MALFORMED_FUNCTION_CALL" and "parts" not in broken["content"]
    [cut] = response_of(answer(text=None, calls=(torn,), finish="length"), thoughts=False)["candidates"]
    assert cut["finishReason"] == "MAX_TOKENS"


@pytest.mark.parametrize(
    ("status", "code"),
    [(0, 4), (200, 13), (400, 3), (401, 16), (403, 7), (404, 5), (422, 3), (429, 8), (500, 13), (503, 14)],
)
def test_http_statuses_become_codes_of_google_rpc(status: int, code: int) -> None:
    assert error_of(Failure(status, "It failed."))["code"] == code


def test_an_error_names_the_place_but_a_prompt_that_is_too_long_is_told_as_there() -> None:
    assert error_of(Failure(400, "No.", param="tools"))["message"] == "No. (tools)"
    told = error_of(Failure(400, "x", code="context_length_exceeded"))
    assert told["code"] == 3 and "(128001) exceeds the maximum number of tokens" in told["message"]
    assert isinstance(read_chat(Reply(0)), Failure)
