"""What is sent: a chat, a text for a vector, or a body of Gemini's own form, as a line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.backends.gemini_lines import line_encoder
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import Refused

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "finds",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c-1", "type": "function", "function": {"name": "look_up", "arguments": '{"word":"a"}'}},
        {"id": "c-2", "type": "function", "function": {"name": "look_up", "arguments": ""}},
    ],
}
PIXEL = "iVBORw0KGgo="


def encoded(body: Any, endpoint: str = CHAT, model: str = "gemini-3-flash", **values: Any) -> dict[str, Any]:
    """Return the request of a line."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    line = line_encoder(RequestTemplate(endpoint, model, **values))("a-1", raw)
    assert line.endswith(b"}\n") and line.count(b"\n") == 1 and b"\r" not in line
    whole = json.loads(line)
    assert whole.keys() == {"key", "request"} and whole["key"] == "a-1"
    return dict(whole["request"])


def asked(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def refused(body: Any, endpoint: str = CHAT, **values: Any) -> str:
    """Return the reason with which a row is refused; its template is fine."""
    encode = line_encoder(RequestTemplate(endpoint, "gemini-3-flash", **values))
    with pytest.raises(Refused) as told:
        encode("a-1", json.dumps(body).encode())
    return told.value.reason


def refused_template(endpoint: str = CHAT, model: str = "gemini-3-flash", **values: Any) -> str:
    """Return the reason with which a template is refused, before any row."""
    with pytest.raises(Refused) as told:
        line_encoder(RequestTemplate(endpoint, model, **values))
    return told.value.reason


# -- what is said ----------------------------------------------------------------------------------
def test_a_text_is_one_content_and_nothing_is_added() -> None:
    assert encoded(HELLO) == {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


def test_instructions_have_a_place_of_their_own_before_all_else() -> None:
    system, developer = (
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "In German."},
    )
    request = encoded(asked(system, developer, *HELLO["messages"]))
    assert list(request) == ["systemInstruction", "contents"]
    assert request["systemInstruction"] == {"parts": [{"text": "Be brief."}, {"text": "In German."}]}


def test_turns_of_one_role_that_follow_each_other_are_one_content() -> None:
    said = [("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    contents = encoded(asked(*({"role": role, "content": text} for role, text in said)))["contents"]
    assert [(one["role"], [part["text"] for part in one["parts"]]) for one in contents] == [
        ("user", ["a", "b"]),
        ("model", ["c", "d"]),
        ("user", ["e"]),
    ]


def test_images_and_documents_go_with_their_bytes() -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"}},
    ]
    assert encoded(asked({"role": "user", "content": parts}))["contents"][0]["parts"] == [
        {"text": "What is it?"},
        {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
        {"inlineData": {"mimeType": "application/pdf", "data": PIXEL}},
    ]


def test_an_upload_of_the_provider_is_named_and_any_other_address_is_refused() -> None:
    own = "https://generativelanguage.googleapis.com/v1beta/files/abc-1"
    image = {"type": "image_url", "image_url": {"url": own}}
    parts = encoded(asked({"role": "user", "content": [image]}))["contents"][0]["parts"]
    assert parts == [{"fileData": {"fileUri": own}}]
    for url in ("https://example.com/a.png", "http://example.com/a.png", own + "/../x"):
        image = {"type": "image_url", "image_url": {"url": url}}
        assert refused(asked({"role": "user", "content": [image]})) == "content"


def test_how_closely_an_image_is_looked_at_cannot_be_said() -> None:
    image = {"url": f"data:image/png;base64,{PIXEL}", "detail": "high"}
    assert (
        refused(asked({"role": "user", "content": [{"type": "image_url", "image_url": image}]})) == "detail"
    )


# -- tools -----------------------------------------------------------------------------------------
def test_tools_are_declared_and_left_to_the_model() -> None:
    request = encoded(asked(*HELLO["messages"], tools=[LOOK_UP]))
    (tools,) = request["tools"]
    assert tools["functionDeclarations"] == [
        {
            "name": "look_up",
            "description": "finds",
            "parameters": {
                "type": "OBJECT",
                "properties": {"word": {"type": "STRING"}},
                "required": ["word"],
                "propertyOrdering": ["word"],
            },
        }
    ]
    assert request["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}}


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("none", {"mode": "NONE"}),
        ("auto", {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        (
            {"type": "function", "function": {"name": "look_up"}},
            {"mode": "ANY", "allowedFunctionNames": ["look_up"]},
        ),
    ],
)
def test_which_tool_is_called_can_be_chosen(choice: Any, config: dict[str, Any]) -> None:
    request = encoded(HELLO, params={"tools": [LOOK_UP], "tool_choice": choice})
    assert request["toolConfig"]["functionCallingConfig"] == config


def test_a_strict_tool_is_called_as_its_schema_says_or_not_at_all() -> None:
    strict = {"type": "function", "function": {**LOOK_UP["function"], "strict": True}}  # type: ignore[dict-item]
    assert encoded(HELLO, params={"tools": [strict]})["toolConfig"]["functionCallingConfig"] == {
        "mode": "VALIDATED"
    }


def test_a_tool_without_parameters_declares_none_and_odd_ones_go_as_json_schema() -> None:
    anything = {"type": "object", "additionalProperties": {"type": "string"}}
    tools = [
        {"type": "function", "function": {"name": "now"}},
        {
            "type": "function",
            "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}},
        },
        {"type": "function", "function": {"name": "tag", "parameters": {**anything, "properties": {}}}},
        {
            "type": "function",
            "function": {
                "name": "set",
                "parameters": {"type": "object", "properties": {"values": anything}},
            },
        },
    ]
    (made,) = encoded(asked(*HELLO["messages"], tools=tools))["tools"]
    now, stop, tag, put = made["functionDeclarations"]
    assert now == {"name": "now"} and stop == {"name": "stop"}
    assert tag["parametersJsonSchema"] == {**anything, "properties": {}}
    assert put["parametersJsonSchema"]["properties"]["values"] == anything


def test_a_tool_that_is_asked_for_must_be_there() -> None:
    assert refused_template(params={"tool_choice": "required"}) == "tool_choice"


@pytest.mark.parametrize(("model", "signed"), [("gemini-2.5-flash", False), ("gemini-3-pro", True)])
def test_calls_and_their_results_are_a_history(model: str, signed: bool) -> None:
    results = [{"role": "tool", "tool_call_id": one, "content": f"result {one}"} for one in ("c-1", "c-2")]
    request = encoded(asked(*HELLO["messages"], CALLED, *results), model=model)
    _, called, answered = request["contents"]
    assert (called["role"], answered["role"]) == ("model", "user")
    first, second = called["parts"]
    assert first["functionCall"] == {"id": "c-1", "name": "look_up", "args": {"word": "a"}}
    assert second == {"functionCall": {"id": "c-2", "name": "look_up", "args": {}}}
    assert ("thoughtSignature" in first) is signed
    assert [part["functionResponse"] for part in answered["parts"]] == [
        {"id": one, "name": "look_up", "response": {"output": f"result {one}"}} for one in ("c-1", "c-2")
    ]


def test_a_result_of_a_call_that_nobody_made_is_refused() -> None:
    result = {"role": "tool", "tool_call_id": "c-9", "content": "?"}
    assert refused(asked(*HELLO["messages"], CALLED, result)) == "tool_call_id"


def test_arguments_that_are_no_object_are_refused() -> None:
    call = {"id": "c-1", "type": "function", "function": {"name": "f", "arguments": "[1"}}
    assert refused(asked(*HELLO["messages"], {"role": "assistant", "tool_calls": [call]})) == "tool_calls"


# -- settings --------------------------------------------------------------------------------------
def test_settings_go_by_their_own_names() -> None:
    params = {
        "max_tokens": 9,
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 40,
        "seed": 7,
        "stop": "END",
        "presence_penalty": 0.1,
        "frequency_penalty": 0.3,
    }
    assert encoded(HELLO, params=params)["generationConfig"] == {
        "maxOutputTokens": 9,
        "temperature": 0.2,
        "topP": 0.9,
        "topK": 40,
        "seed": 7,
        "stopSequences": ["END"],
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.3,
    }


def test_a_rows_own_settings_go_before_those_of_the_template() -> None:
    request = encoded({**HELLO, "temperature": 1, "stop": ["a", "b"]}, params={"temperature": 0, "seed": 3})
    assert request["generationConfig"] == {"temperature": 1, "seed": 3, "stopSequences": ["a", "b"]}


@pytest.mark.parametrize(
    ("model", "effort", "config"),
    [
        ("gemini-3-flash", "low", {"thinkingLevel": "LOW"}),
        ("models/gemini-3.5-flash", "minimal", {"thinkingLevel": "MINIMAL"}),
        ("gemini-flash-latest", "high", {"thinkingLevel": "HIGH"}),
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "medium", {"thinkingBudget": 8192}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 24576}),
    ],
)
def test_effort_is_said_in_the_words_of_the_models_generation(
    model: str, effort: str, config: dict[str, Any]
) -> None:
    request = encoded(HELLO, model=model, params={"reasoning_effort": effort})
    assert request["generationConfig"]["thinkingConfig"] == config


@pytest.mark.parametrize(
    ("model", "effort"),
    [
        ("gemini-3-flash", "none"),
        ("gemini-2.5-pro", "none"),
        ("gemini-2.5-flash", "xhigh"),
        ("gemini-2.0-flash", "low"),
        ("gemini-3-flash", 3),
    ],
)
def test_an_effort_that_a_model_does_not_know_is_refused(model: str, effort: Any) -> None:
    assert refused_template(model=model, params={"reasoning_effort": effort}) == "reasoning_effort"


@pytest.mark.parametrize(
    "name",
    [
        "logit_bias",
        "logprobs",
        "user",
        "parallel_tool_calls",
        "store",
        "metadata",
        "service_tier",
        "modalities",
    ],
)
def test_what_has_no_equal_is_refused_by_name_before_any_row(name: str) -> None:
    assert refused_template(params={name: True}) == name
    assert refused({**HELLO, name: True}) == name


def test_texts_that_end_an_answer_are_few() -> None:
    assert refused_template(params={"stop": list("abcdef")}) == "stop"
    assert refused_template(params={"stop": 7}) == "stop"


def test_a_marked_prefix_changes_nothing() -> None:
    assert encoded(HELLO, cache_prefix=True) == encoded(HELLO)


# -- form of the answer ----------------------------------------------------------------------------
SCHEMA = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
GEMINI_SCHEMA = {
    "type": "OBJECT",
    "properties": {"kind": {"type": "STRING"}},
    "required": ["kind"],
    "propertyOrdering": ["kind"],
}


def test_a_schema_is_asked_for_in_geminis_own_form() -> None:
    config = encoded(HELLO, output_schema=SCHEMA)["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseSchema": GEMINI_SCHEMA}


def test_a_schema_that_form_cannot_say_is_asked_for_as_it_is() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    config = encoded(HELLO, output_schema=schema)["generationConfig"]
    assert config == {"responseMimeType": "application/json", "responseJsonSchema": schema}


def test_a_callers_own_response_format_is_translated() -> None:
    said = {"type": "json_schema", "json_schema": {"name": "kind", "schema": SCHEMA}}
    assert encoded({**HELLO, "response_format": said})["generationConfig"]["responseSchema"] == GEMINI_SCHEMA
    plain = encoded({**HELLO, "response_format": {"type": "json_object"}})["generationConfig"]
    assert plain == {"responseMimeType": "application/json"}
    assert "generationConfig" not in encoded({**HELLO, "response_format": {"type": "text"}})
    assert refused({**HELLO, "response_format": {"type": "grammar"}}) == "response_format"
    assert refused({**HELLO, "response_format": said}, output_schema=SCHEMA) == "response_format"


# -- vectors ---------------------------------------------------------------------------------------
def test_a_text_for_a_vector_is_one_content() -> None:
    params = {"dimensions": 4, "encoding_format": "float", "task_type": "RETRIEVAL_DOCUMENT"}
    made = encoded({"input": "hello"}, EMBEDDINGS, params=params)
    assert made == {
        "content": {"parts": [{"text": "hello"}]},
        "outputDimensionality": 4,
        "taskType": "RETRIEVAL_DOCUMENT",
    }
    assert encoded({"input": ["hello"], "dimensions": 8}, EMBEDDINGS)["outputDimensionality"] == 8


@pytest.mark.parametrize("given", [["a", "b"], [1, 2, 3], [], 7, None])
def test_several_texts_and_tokens_are_refused(given: Any) -> None:
    assert refused({"input": given}, EMBEDDINGS) == "input"


def test_settings_of_vectors_that_have_no_equal_are_refused() -> None:
    assert refused_template(EMBEDDINGS, params={"user": "me"}) == "user"
    assert refused({"input": "a", "encoding_format": "base64"}, EMBEDDINGS) == "encoding_format"
    assert refused_template(EMBEDDINGS, output_schema=SCHEMA) == "output_schema"
    assert refused({"text": "a"}, EMBEDDINGS) == "missing_input"


# -- bodies of the provider's own form, other endpoints --------------------------------------------
def test_a_body_of_geminis_own_form_is_sent_as_it_is_without_its_model() -> None:
    body = b'{"model": "models/x",\n "contents": [{"parts": [{"text": "a\\n"}]}],\r\n "safetySettings": []}'
    made = encoded(body, native=True)
    assert made == {"contents": [{"parts": [{"text": "a\n"}]}], "safetySettings": []}
    assert encoded(b'{"content": {"parts": []}}', EMBEDDINGS, native=True) == {"content": {"parts": []}}


def test_a_body_that_asks_nothing_is_refused() -> None:
    assert refused({"messages": []}, native=True) == "missing_contents"
    assert refused({"contents": []}, EMBEDDINGS, native=True) == "missing_content"
    assert refused([], native=True) == "not_an_object"
    assert refused({}) == "missing_messages"


@pytest.mark.parametrize("endpoint", ["/v1/responses", "/v1/completions", "/v1/moderations"])
def test_other_endpoints_are_refused(endpoint: str) -> None:
    assert refused_template(endpoint) == "endpoint"


def test_text_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(Refused) as told:
        line_encoder(RequestTemplate(CHAT, "m"))("a-1", b'{"messages":[{"role":"user","content":"\\ud83d"}]}')
    assert told.value.reason in ("not_json", "not_an_object")
