"""What a prompt can be made of, and what becomes of it at each endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_batch_llm.core.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.exceptions import PromptError
from airflow_batch_llm.prompts import RowPrompt, UnrenderableRow

NASTY = '{{ 7 * 7 }} {% raw %} "quo\'te" ; DROP TABLE t; \x00\x07\u202eshalom \U0001f600\r\n\u2028'
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}


def _body(prompt: RowPrompt, row: dict[str, Any], endpoint: str = CHAT) -> dict[str, Any]:
    return prompt.resolve({}, endpoint).body(row, "row 'r'")


def _fault(prompt: RowPrompt, row: dict[str, Any], endpoint: str = CHAT) -> str:
    with pytest.raises(UnrenderableRow) as caught:
        _body(prompt, row, endpoint)
    assert str(caught.value).startswith("[BLLM-012] row 'r': ")
    assert "secret" not in str(caught.value)
    return caught.value.fault


# -- examples --------------------------------------------------------------------------------------
def test_examples_stand_between_system_and_user_and_are_no_templates() -> None:
    prompt = RowPrompt(
        "Label: {{ row.body }}",
        system="Be brief.",
        examples=[
            {"user": "Label: {{ row.body }}", "assistant": "{% raw %}"},
            {"row": {"body": "{{ x }}"}, "assistant": {"label": "bug", "n": 1}},
        ],
    )

    assert _body(prompt, {"body": NASTY})["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Label: {{ row.body }}"},
        {"role": "assistant", "content": "{% raw %}"},
        {"role": "user", "content": "Label: {{ x }}"},
        {"role": "assistant", "content": '{"label":"bug","n":1}'},
        {"role": "user", "content": f"Label: {NASTY}"},
    ]


def test_examples_come_from_a_file_beside_the_dag(tmp_path: Path) -> None:
    lines = [{"user": "a", "assistant": "b"}, {"row": {"n": 2}, "assistant": ["c"]}]
    (tmp_path / "few.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    prompt = RowPrompt("{{ row.n }}", examples="few.jsonl")

    resolved = prompt.resolve({"dag": SimpleNamespace(fileloc=str(tmp_path / "dag.py"))})

    assert [message["content"] for message in resolved.body({"n": 1})["messages"]] == [
        "a",
        "b",
        "2",
        '["c"]',
        "1",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"user": "a", "assistant": "b"}\nsecret', "line 2 of examples file .* is no JSON"),
        ('{"user": "a"}', "line 1 of examples file .* is not of the form"),
        ("", "is empty"),
    ],
)
def test_a_file_of_examples_that_is_wrong_is_named_with_its_line(
    content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text(content)

    with pytest.raises(PromptError, match=message) as caught:
        RowPrompt("a", examples=str(file)).resolve({})

    assert "secret" not in str(caught.value)


def test_an_example_whose_row_does_not_fit_the_text_is_named() -> None:
    prompt = RowPrompt("{{ row.body }}", examples=[{"row": {"text": "a"}, "assistant": "b"}])

    with pytest.raises(PromptError, match="example 0: line 1 of the prompt names column 'body'"):
        prompt.resolve({})


# -- several messages ------------------------------------------------------------------------------
HISTORY = [
    {"role": "user", "content": NASTY},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "{{ row.body }}"}]},
]


@pytest.mark.parametrize("value", [HISTORY, json.dumps(HISTORY), json.dumps(HISTORY).encode()])
def test_a_history_stands_before_the_user_message_as_it_is(value: Any) -> None:
    prompt = RowPrompt("{{ row.body }}", system="{{ row.tone }}", history="talk")

    body = _body(prompt, {"body": "now", "tone": "dry", "talk": value})

    system, *talk, user = body["messages"]
    assert (system["content"], user["content"]) == ("dry", "now")
    assert talk == HISTORY


def test_a_history_may_stand_alone_and_may_be_empty() -> None:
    assert _body(RowPrompt(history="talk"), {"talk": HISTORY})["messages"] == HISTORY
    for nothing in (None, "", " ", []):
        messages = _body(RowPrompt("{{ row.a }}", history="talk"), {"a": "x", "talk": nothing})["messages"]
        assert messages == [{"role": "user", "content": "x"}]
    assert _fault(RowPrompt(history="talk"), {"talk": None}) == "history_shape"


@pytest.mark.parametrize(
    "value",
    [
        "secret",
        '{"role": "user", "content": "secret"}',
        7,
        ["secret"],
        [{"content": "secret"}],
        [{"role": "secret", "content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": ["secret"]}],
        [{"role": "assistant", "content": None}],
        [{"role": "tool", "content": "secret"}],
        "[" * 100_000,
    ],
)
def test_a_history_of_another_shape_is_the_rows_fault(value: Any) -> None:
    assert _fault(RowPrompt("a", history="talk"), {"talk": value}) == "history_shape"


def test_a_history_that_utf8_cannot_encode_is_the_rows_fault() -> None:
    talk = [{"role": "user", "content": "\ud83d"}]

    assert _fault(RowPrompt("a", history="talk"), {"talk": talk}) == "unencodable_text"


def test_an_error_names_the_message_and_the_line_that_it_is_in() -> None:
    prompt = RowPrompt(
        messages=[{"role": "system", "content": "a"}, {"role": "user", "content": "\n{{ row.nope }}"}]
    )

    with pytest.raises(PromptError, match=r"row 'r': line 2 of message 1 \(user\) of the prompt names col"):
        _body(prompt, {"a": 1})
    with pytest.raises(PromptError, match="line 1 of the system message names column 'nope'"):
        _body(RowPrompt("{{ row.a }}", system="{{ row.nope }}"), {"a": 1})


# -- tools -----------------------------------------------------------------------------------------
def test_tools_go_into_the_body() -> None:
    choice = {"type": "function", "function": {"name": "find"}}

    body = _body(RowPrompt("{{ row.a }}", tools=[TOOL], tool_choice=choice), {"a": "x"}, RESPONSES)

    assert body == {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "tool_choice": choice}


# -- bodies ----------------------------------------------------------------------------------------
def test_a_body_keeps_what_is_no_text_and_renders_what_is() -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "{{ row.a }}"}]}],
        "logprobs": True,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["{{ row.b }}", None],
    }

    assert _body(RowPrompt(body=body), {"a": NASTY, "b": "{{ a }}"}) == {
        **body,
        "messages": [{"role": "user", "content": [{"type": "text", "text": NASTY}]}],
        "stop": ["{{ a }}", None],
    }


@pytest.mark.parametrize("form", [dict, json.dumps])
def test_a_body_in_a_column_goes_through_as_it_is(form: Any) -> None:
    body = {"input": NASTY, "dimensions": 3, "model": "other", "user": None}

    assert _body(RowPrompt(body_column="request"), {"request": form(body)}, EMBEDDINGS) == body


@pytest.mark.parametrize(
    "value", [None, "", "secret", "[1]", 5, {"inputs": "secret"}, {"input": "a", "model": ""}, b"\xff"]
)
def test_a_body_in_a_column_that_is_none_is_the_rows_fault(value: Any) -> None:
    assert _fault(RowPrompt(body_column="request"), {"request": value}, MODERATIONS) == "body_shape"


def test_a_body_that_lacks_what_its_endpoint_needs_is_refused_when_resolved() -> None:
    with pytest.raises(PromptError, match="body has no 'prompt', which /v1/completions needs"):
        RowPrompt(body={"input": "{{ row.a }}"}).resolve({}, COMPLETIONS)
    assert _body(RowPrompt(body={"input": "{{ row.a }}"}), {"a": "x"}, RESPONSES) == {"input": "x"}
    assert (
        _fault(RowPrompt(body={"input": "a", "model": "{{ row.m }}"}), {"m": ""}, RESPONSES) == "body_shape"
    )


# -- endpoints -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, {"messages": [{"role": "user", "content": NASTY}]}),
        (RESPONSES, {"messages": [{"role": "user", "content": NASTY}]}),
        (COMPLETIONS, {"prompt": NASTY}),
        (EMBEDDINGS, {"input": NASTY}),
        (MODERATIONS, {"input": NASTY}),
    ],
)
def test_a_text_is_a_body_at_every_endpoint_byte_for_byte(endpoint: str, body: dict[str, Any]) -> None:
    assert _body(RowPrompt("{{ row.a }}"), {"a": NASTY}, endpoint) == body


@pytest.mark.parametrize("endpoint", [COMPLETIONS, EMBEDDINGS, MODERATIONS])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("system", {"text": "a", "system": "b"}),
        ("examples", {"text": "a", "examples": [{"user": "a", "assistant": "b"}]}),
        ("history", {"history": "talk"}),
        ("messages", {"messages": [{"role": "user", "content": "a"}]}),
        ("tools", {"text": "a", "tools": [TOOL]}),
    ],
)
def test_what_has_no_meaning_at_an_endpoint_is_refused_by_name(
    name: str, arguments: dict[str, Any], endpoint: str
) -> None:
    with pytest.raises(PromptError, match=f"the prompt has {name}, and the endpoint is {endpoint}"):
        RowPrompt(**arguments).resolve({}, endpoint)


# -- arguments -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": "a", "body": {"messages": []}}, "exactly one of"),
        ({"body": {"messages": []}, "body_column": "b"}, "exactly one of"),
        ({"body": {"messages": []}, "system": "b"}, "takes no system"),
        ({"body_column": "b", "history": "c"}, "takes no history"),
        ({"body": {"messages": [], "stream": True}}, "'stream'"),
        ({"body": {"messages": [], "n": 2}}, "'n'"),
        ({"body": []}, "must be an object"),
        ({"body": {"messages": object()}}, "object"),
        ({"messages": [{"role": "user", "content": "a"}], "history": "b"}, "takes no history"),
        ({"messages": [{"role": "system", "content": "a"}], "images": ["b"]}, "must be the user's"),
        ({"text": "a", "history": ""}, "history is empty"),
        ({"text": "a", "history": 5}, "not a string"),
        ({"text": "a", "examples": [{"user": "a"}]}, "example 0 is not of the form"),
        ({"text": "a", "examples": [{"user": "a", "assistant": ""}]}, "the assistant says nothing"),
        ({"text": "a", "examples": [{"row": "a", "assistant": "b"}]}, "not columns"),
        ({"text": "a", "examples": [{"user": "\ud83d", "assistant": "b"}]}, "half a surrogate"),
        ({"text": "a", "examples": 5}, "not a list or a path"),
        ({"text": "a", "tools": []}, "must be a list"),
        ({"text": "a", "tools": [{"name": "find"}]}, "tool 0 of the prompt has no type"),
        ({"text": "a", "tools": [{"type": "function", "name": "find"}]}, "must be of the chat form"),
        ({"text": "a", "tools": [TOOL, TOOL]}, "two tools of the prompt are called 'find'"),
        ({"text": "a", "tool_choice": "auto"}, "needs tools"),
        ({"text": "a", "tools": [TOOL], "tool_choice": "find"}, "tool_choice can be none, auto, required"),
        (
            {"text": "a", "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "there are: find",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        RowPrompt(**arguments)


def test_an_example_given_as_a_row_needs_a_text() -> None:
    prompt = RowPrompt(history="talk", examples=[{"row": {"a": 1}, "assistant": "b"}])

    with pytest.raises(PromptError, match="example 0 is a row, and the prompt has no text"):
        prompt.resolve({})


def test_a_prompt_is_shown_and_compared_by_all_that_it_says() -> None:
    def made(answer: str) -> RowPrompt:
        return RowPrompt(
            "a", examples=[{"user": "b", "assistant": answer}], history="talk", images=["c"], tools=[TOOL]
        )

    assert made("x") == made("x") != made("y")
    assert hash(made("x")) == hash(made("x"))
    assert json.loads(json.dumps(made("x").serialize())) == made("x").serialize()
    assert "images=[{'url': 'c'}]" in repr(made("x"))


@pytest.mark.parametrize(
    ("prompt", "columns"),
    [
        (RowPrompt("{{ row.a }}", system="{{ row['b'] }}", history="c", images=["{{ row.d }}"]), "abcd"),
        (RowPrompt(body_column="e"), "e"),
        (RowPrompt("{% for name in row %}{{ row[name] }}{% endfor %}"), None),
        (RowPrompt("{{ row | length }}"), None),
    ],
)
def test_a_prompt_knows_the_columns_that_it_reads(prompt: RowPrompt, columns: str | None) -> None:
    assert prompt.resolve({}).reads == (None if columns is None else frozenset(columns))


def test_what_a_template_says_by_chance_is_said_anew_for_every_row() -> None:
    prompt = RowPrompt("{{ topics | random }}", vars={"topics": [str(n) for n in range(1000)]}).resolve({})

    assert len({prompt.body({})["messages"][0]["content"] for _ in range(50)}) > 1


def test_a_template_without_a_row_fails_when_resolved() -> None:
    with pytest.raises(PromptError, match="line 1 of the system message failed with ZeroDivisionError"):
        RowPrompt("{{ row.a }}", system="{{ 1 / zero }}", vars={"zero": 0}).resolve({})
