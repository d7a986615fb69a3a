"""Lines for Mistral: what is renamed, what is refused by name, and that its own models know every member."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mistralai.client import models

from airflow_batch_llm.backends.mistral_chat import PARAMETERS, call_id
from airflow_batch_llm.backends.mistral_lines import line_encoder
from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.exceptions import OutputSchemaError, Refused

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_PTLP8xhu3uwZk4l3", "type": "function", "function": {"name": "count", "arguments": "{}"}}


def encoded(body: Any, endpoint: str = CHAT, **template: Any) -> dict[str, Any]:
    """Return the body of a line as it goes out."""
    encode = line_encoder(RequestTemplate(endpoint, template.pop("model", "m-1"), **template))
    line = encode("w-1", json.dumps(body).encode())
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    sent = json.loads(line)
    assert list(sent) == ["custom_id", "body"] and sent["custom_id"] == "w-1"
    found: dict[str, Any] = sent["body"]
    return found


def chat(*messages: dict[str, Any], params: dict[str, Any] | None = None, **template: Any) -> dict[str, Any]:
    return encoded({"messages": list(messages or (USER,))}, params=params or {}, **template)


def refused(*messages: dict[str, Any], **template: Any) -> str:
    with pytest.raises(Refused) as caught:
        chat(*messages, **template)
    return caught.value.reason


# -- what Mistral's own models say -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("endpoint", "model", "elsewhere"),
    [
        (
            CHAT,
            models.ChatCompletionRequest,
            {"model", "messages", "max_tokens", "tools", "tool_choice", "stream", "n"},
        ),
        (EMBEDDINGS, models.EmbeddingRequest, {"model"}),
        (MODERATIONS, models.ClassificationRequest, {"model"}),
    ],
)
def test_the_parameters_known_are_those_of_its_sdk(endpoint: str, model: Any, elsewhere: set[str]) -> None:
    fields = {field.alias or name for name, field in model.model_fields.items()}
    assert fields - elsewhere == PARAMETERS[endpoint]


def test_a_whole_chat_is_one_that_the_sdk_knows_every_member_of() -> None:
    sent = chat(
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "https://host/a.png", "detail": "high"}},
                {
                    "type": "file",
                    "file": {"file_data": "data:application/pdf;base64,QUJD", "filename": "a.pdf"},
                },
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "3"},
        params={
            "max_completion_tokens": 9,
            "seed": 7,
            "temperature": 0,
            "stop": ["."],
            "tools": [TOOL],
            "tool_choice": "required",
        },
        output_schema={"type": "object", "properties": {"a": {"type": "integer"}}},
        schema_name="count it",
    )
    request = models.ChatCompletionRequest.model_validate({"model": "m-1", **sent})
    assert json.loads(request.model_dump_json(by_alias=True, exclude_unset=True)) == {"model": "m-1", **sent}
    assert (sent["max_tokens"], sent["random_seed"], sent["tool_choice"]) == (9, 7, "any")
    assert sent["messages"][0] == {"role": "system", "content": "Be short."}
    assert sent["response_format"]["json_schema"] == {
        "name": "count_it",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }
    assert "model" not in sent


# -- translation -----------------------------------------------------------------------------------
def test_a_tool_without_parameters_has_a_schema_without_properties() -> None:
    sent = chat(params={"tools": [{"type": "function", "function": {"name": "now"}}]})
    assert sent["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}


def test_ids_of_calls_take_the_one_form_that_the_models_accept_and_still_join() -> None:
    assert call_id("aB3xK9mP2") == "aB3xK9mP2"
    sent = chat(
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "3"},
    )
    made = sent["messages"][1]["tool_calls"][0]["id"]
    assert made == sent["messages"][2]["tool_call_id"] == call_id(str(CALL["id"]))
    assert len(made) == 9 and made.isalnum() and made.isascii()
    assert call_id("call_1") != call_id("call_2")


def test_a_named_tool_is_called_by_name_and_a_choice_without_tools_is_not_sent() -> None:
    named = {"type": "function", "function": {"name": "count"}}
    assert chat(params={"tools": [TOOL], "tool_choice": named})["tool_choice"] == named
    assert "tool_choice" not in chat(params={"tool_choice": "auto"})


def test_a_bodys_own_parameters_win_and_null_takes_one_away() -> None:
    sent = encoded(
        {"messages": [USER], "temperature": 1, "max_tokens": 3, "top_p": None},
        params={"temperature": 0, "max_completion_tokens": 50, "top_p": 0.5},
    )
    assert (sent["temperature"], sent["max_tokens"]) == (1, 3)
    assert "top_p" not in sent and "max_completion_tokens" not in sent


@pytest.mark.parametrize("said", ["m-1", None])
def test_the_batchs_own_model_may_stand_in_a_body_and_is_not_sent_twice(said: str | None) -> None:
    assert "model" not in encoded({"messages": [USER], "model": said})


def test_embeddings_and_moderations_send_their_input_by_mistrals_names() -> None:
    sent = encoded({"input": ["a", "b"]}, EMBEDDINGS, params={"dimensions": 256, "encoding_format": "float"})
    assert sent == {"input": ["a", "b"], "output_dimension": 256, "encoding_format": "float"}
    assert encoded({"input": "a"}, MODERATIONS, params={"stream": False}) == {"input": "a"}


def test_native_bodies_get_the_frame_and_nothing_else() -> None:
    body = {
        "messages": [{"role": "assistant", "content": "So", "prefix": True}],
        "model": "m-2",
        "anything": 1,
    }
    assert encoded(body, native=True) == body
    assert encoded({"messages": []}, native=True) == {"messages": []}
    with pytest.raises(Refused) as caught:
        encoded({"messages": []}, native=True, model="")
    assert caught.value.reason == "missing_model"


# -- refusals --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {"1": 2}},
        {"user": "u"},
        {"store": True},
        {"verbosity": "low"},
        {"functions": [{"name": "f"}]},
        {"stream": True},
        {"n": 2},
        {"service_tier": "flex"},
        {"response_format": {"type": "grammar"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [TOOL]},
        {"model": "m-2"},
        {"unheard_of": 1},
    ],
)
def test_what_mistral_lacks_is_refused_by_name_before_any_row(params: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        line_encoder(RequestTemplate(CHAT, "m-1", params))
    assert caught.value.reason == next(iter(params))
    with pytest.raises(Refused) as caught:
        encoded({"messages": [USER], **params})
    assert caught.value.reason == next(iter(params))


def test_a_seed_under_both_names_is_refused() -> None:
    assert refused(params={"random_seed": 1, "seed": 2}) == "seed"


def test_messages_without_a_place_are_refused() -> None:
    assert refused({"role": "user", "content": "x", "name": "ann"}) == "name"
    assert refused(USER, {"role": "assistant", "content": "So"}) == "role"
    image = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
    assert refused({"role": "assistant", "content": [image]}, USER) == "content"
    image = {"type": "image_url", "image_url": {"url": "https://host/a.png", "detail": "original"}}
    assert refused({"role": "user", "content": [image]}) == "detail"


@pytest.mark.parametrize("endpoint", [COMPLETIONS, RESPONSES])
def test_endpoints_that_mistral_does_not_batch_are_refused_by_name(endpoint: str) -> None:
    with pytest.raises(Refused, match=endpoint.removeprefix("/v1/")) as caught:
        line_encoder(RequestTemplate(endpoint, "m-1"))
    assert caught.value.reason == "endpoint"


@pytest.mark.parametrize(
    ("body", "params", "reason"),
    [
        ({}, {}, "missing_input"),
        ({"input": [[1, 2]]}, {}, "input"),
        ({"input": []}, {}, "input"),
        ({"input": "a"}, {"user": "u"}, "user"),
        ({"input": "a"}, {"encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "model": "m-2"}, {}, "model"),
        ({"input": "a", "messages": []}, {}, "messages"),
    ],
)
def test_inputs_that_cannot_be_sent_are_refused(body: Any, params: Any, reason: str) -> None:
    with pytest.raises(Refused) as caught:
        encoded(body, EMBEDDINGS, params=params)
    assert caught.value.reason == reason


def test_schemas_go_with_chats_only_and_not_beside_a_format() -> None:
    schema = {"type": "object", "properties": {}}
    with pytest.raises(Refused) as caught:
        line_encoder(RequestTemplate(EMBEDDINGS, "m-1", {}, schema))
    assert caught.value.reason == "output_schema"
    with pytest.raises(Refused) as caught:
        line_encoder(RequestTemplate(CHAT, "m-1", {"response_format": {"type": "text"}}, schema))
    assert caught.value.reason == "response_format"
    with pytest.raises(OutputSchemaError):
        line_encoder(RequestTemplate(CHAT, "m-1", {}, {"type": "array"}))


@pytest.mark.parametrize("body", [b"[]", b"x", b'{"messages":[{"role":"user","content":"\\ud800"}]}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Refused):
        line_encoder(RequestTemplate(CHAT, "m-1"))("w", body)
