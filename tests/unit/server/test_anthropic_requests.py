"""Messages bodies into OpenAI's chat: what is carried over, and what is refused in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_batch_llm.server.anthropic_requests import NEWER, OLDER, to_chat
from airflow_batch_llm.server.translation import BadRequest
from tests.unit.server.anthropic_client import params

PNG = "iVBORw0KGgo="
TOOL = {"name": "look_up", "description": "Finds.", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"name": "look_up", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}


def chat(version: str = NEWER, **changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_chat(params(**changed), version))
    return found


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def refusal(version: str = NEWER, **changed: Any) -> str:
    """Return the words of the refusal."""
    with pytest.raises(BadRequest) as refused:
        to_chat(params(**changed), version)
    return str(refused.value)


# -- carried over ----------------------------------------------------------------------------------
def test_words_come_over_whichever_way_they_are_written() -> None:
    text = {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    plain = chat(system="be brief")
    assert plain == chat(system=[text], messages=user({"type": "text", "text": "hello"}))
    assert plain == {
        "model": "m-1",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "max_tokens": 100,
    }


def test_images_come_over_by_address_and_as_bytes() -> None:
    sources = (
        {"type": "url", "url": "https://example.com/a.png"},
        {"type": "base64", "media_type": "image/png", "data": PNG},
    )
    found = chat(messages=user(*({"type": "image", "source": source} for source in sources)))
    assert found["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]


def test_documents_come_over_as_files_or_as_their_text() -> None:
    def parts(source: dict[str, Any], **more: Any) -> Any:
        block = {"type": "document", "source": source, **more}
        return chat(messages=user(block, {"type": "text", "text": "sum up"}))["messages"][0]["content"][:-1]

    data = f"data:application/pdf;base64,{PNG}"
    pdf = {"type": "base64", "media_type": "application/pdf", "data": PNG}
    assert parts(pdf) == [{"type": "file", "file": {"filename": "document", "file_data": data}}]
    assert parts(pdf, title="bill.pdf")[-1]["file"]["filename"] == "bill.pdf"
    assert parts({"type": "url", "url": "https://example.com/a.pdf"})[0]["type"] == "file"
    words = {"type": "text", "media_type": "text/plain", "data": "long text"}
    assert [part["text"] for part in parts(words, title="T", context="C")] == ["T", "C", "long text"]
    pages = {"type": "content", "content": [{"type": "text", "text": "page one"}]}
    assert parts(pages) == parts({"type": "content", "content": "page one"})


def test_a_history_with_tools_comes_over_in_its_order() -> None:
    history = [
        {"role": "user", "content": "where is it"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"q": "it"}},
                {"type": "tool_use", "id": "toolu_2", "name": "look_up", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "here"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [{"type": "text", "text": "there"}],
                },
                {"type": "text", "text": "and now?"},
            ],
        },
    ]
    found = chat(messages=history, tools=[TOOL])["messages"]
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user"]
    assert found[1]["content"] == "I look"
    assert [(call["id"], call["function"]["arguments"]) for call in found[1]["tool_calls"]] == [
        ("toolu_1", '{"q":"it"}'),
        ("toolu_2", "{}"),
    ]
    assert [(m["tool_call_id"], m["content"]) for m in found[2:4]] == [
        ("toolu_1", "here"),
        ("toolu_2", "there"),
    ]


def test_an_answer_of_a_tool_without_words_is_an_empty_text() -> None:
    block = {"type": "tool_result", "tool_use_id": "toolu_1"}
    assert chat(messages=user(block))["messages"] == [
        {"role": "tool", "content": "", "tool_call_id": "toolu_1"}
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look_up"}, {"type": "function", "function": {"name": "look_up"}}),
    ],
)
def test_tools_and_their_choice_come_over(choice: dict[str, Any], expected: Any) -> None:
    found = chat(tools=[TOOL], tool_choice=choice)
    assert found["tools"] == [{"type": "function", "function": FUNCTION}]
    assert found["tool_choice"] == expected and "parallel_tool_calls" not in found
    alone = chat(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})
    assert alone["parallel_tool_calls"] is False
    strict = chat(tools=[{**TOOL, "type": "custom", "strict": True}])["tools"][0]
    assert strict == {"type": "function", "function": {**FUNCTION, "strict": True}}


def test_settings_come_over_under_their_other_names() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    found = chat(
        OLDER,
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "low"},
        metadata={"user_id": "u"},
        service_tier="auto",
        inference_geo="us",
    )
    assert found["stop"] == ["END"]
    assert (found["temperature"], found["top_p"], found["top_k"]) == (0.5, 0.9, 3)
    assert found["response_format"]["json_schema"]["schema"] == schema
    assert not {"metadata", "service_tier", "inference_geo", "reasoning_effort"} & found.keys()


@pytest.mark.parametrize(
    ("thinking", "effort", "expected"),
    [
        ({"type": "enabled", "budget_tokens": 1_024}, None, "high"),
        ({"type": "adaptive"}, "low", "low"),
        ({"type": "disabled"}, "low", None),
        (None, "low", None),
    ],
)
def test_thinking_is_asked_for_as_effort(thinking: Any, effort: str | None, expected: str | None) -> None:
    found = chat(thinking=thinking, output_config={"effort": effort}, max_tokens=2_000)
    assert found.get("reasoning_effort") == expected


# -- refused ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"model": None}, "model: Field required"),
        ({"messages": None}, "messages: Field required"),
        ({"messages": []}, "messages: at least one"),
        ({"messages": "hello"}, "messages: at least one"),
        ({"messages": ["hello"]}, "messages.0.role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages.0.content: text content blocks"),
        ({"messages": user({"type": "text", "text": ""})}, "messages.0.content.0: text content blocks"),
        ({"messages": user({"type": "video"})}, "messages.0.content.0"),
        (
            {"messages": user({"type": "tool_use", "id": "a", "name": "b", "input": {}})},
            "messages.0.content.0",
        ),
        ({"messages": user({"type": "tool_result"})}, "messages.0.content.0.tool_use_id"),
        ({"messages": user({"type": "image"})}, "messages.0.content.0.source"),
        ({"messages": user({"type": "image", "source": {"type": "file", "file_id": "f"}})}, "messages.0"),
        ({"messages": user({"type": "image", "source": {"type": "url", "url": "file:///x"}})}, "messages.0"),
        (
            {
                "messages": user(
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%"}}
                )
            },
            "messages.0.content.0.source.data",
        ),
        (
            {
                "messages": user(
                    {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": PNG}}
                )
            },
            "messages.0.content.0.source.media_type",
        ),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater"),
        ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
        ({"stream": True}, "stream"),
        ({"speed": "fast"}, "speed: Extra inputs"),
        ({"n": 2}, "n: Extra inputs"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"stop_sequences": [" "]}, "stop_sequences"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema: Field required"),
        ({"tools": [{"name": "a", "input_schema": {}}]}, "tools.0.input_schema.type"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: may only"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.enabled.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, "max_tokens: must be greater"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
        (
            {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "9m"}}]},
            "cache_control.ttl",
        ),
        (
            {"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 5},
            "cache_control: at most 4",
        ),
    ],
)
def test_what_is_wrong_is_refused_at_its_place(changed: dict[str, Any], place: str) -> None:
    for version in (OLDER, NEWER):
        assert refusal(version, **changed).startswith(place)


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
def test_the_newer_version_refuses_sampling_at_any_value(name: str) -> None:
    assert chat(OLDER, **{name: 1})[name] == 1
    assert refusal(NEWER, **{name: 1}).startswith(f"{name}: ")
    with pytest.raises(BadRequest, match=name):
        to_chat({**params(), name: None}, NEWER)
    assert refusal(OLDER, **{name: "x"}).startswith(f"{name}: ")


def test_the_older_version_bounds_the_temperature() -> None:
    assert refusal(OLDER, temperature=1.5).startswith("temperature: ")


def test_the_newer_version_refuses_documents_of_the_assistant_and_citations_of_the_user() -> None:
    text = {"type": "text", "media_type": "text/plain", "data": "x"}
    said = [{"role": "assistant", "content": [{"type": "document", "source": text}]}]
    cited = user({"type": "text", "text": "a", "citations": [{"type": "char_location"}]})
    for messages, place in ((said, "messages.0.content.0"), (cited, "messages.0.content.0.citations")):
        assert chat(OLDER, messages=messages)
        assert refusal(NEWER, messages=messages).startswith(place)
    assert chat(NEWER, messages=user({"type": "text", "text": "a", "citations": []}))
