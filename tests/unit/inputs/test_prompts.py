from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_batch_llm.exceptions import ConfigurationError, PromptError
from airflow_batch_llm.prompts import RowPrompt, UnrenderableRow


def _said(template: str, row: dict[str, Any], **arguments: Any) -> Any:
    return RowPrompt(template, **arguments).resolve({}).body(row)["messages"][-1]["content"]


def test_a_column_is_reached_by_attribute_and_by_item_whatever_its_name() -> None:
    row = {"items": "a", "keys": "b", "_id": "c", "get": "d", "two words": "e", "__class__": "f"}

    said = _said("{{row.items}}{{row.keys}}{{row._id}}{{row.get}}{{row['two words']}}{{row.__class__}}", row)

    assert said == "abcdef"


def test_a_row_that_holds_template_text_stays_text() -> None:
    assert _said("{{ row.body }}", {"body": "{{ 7 * 7 }} {% raw %}"}) == "{{ 7 * 7 }} {% raw %}"


def test_nothing_is_escaped_and_the_last_newline_stays() -> None:
    assert _said("<{{ row.a }}>\n", {"a": "<&>"}) == "<<&>>\n"


def test_none_is_shown_as_nothing() -> None:
    assert _said("[{{ row.a }}]", {"a": None}) == "[]"


def test_columns_can_be_listed_tested_and_given_a_default() -> None:
    row = {"a": 1, "b": 2}

    assert _said("{% for c in row %}{{ c }}={{ row[c] }} {% endfor %}", row) == "a=1 b=2 "
    assert _said("{{ 'a' in row }} {{ 'z' in row }} {{ row | length }}", row) == "True False 2"
    assert _said("{{ row.z | default('-') }}{% if row.z is defined %}z{% endif %}", row) == "-"


def test_system_message_and_vars_are_part_of_the_body() -> None:
    prompt = RowPrompt(
        "{{ row.a }} {{ day }}", system="Be {{ tone }}.", vars={"tone": "brief", "day": "{{ ds }}"}
    )

    resolved = prompt.resolve(
        {"render": lambda value: {k: v.replace("{{ ds }}", "D") for k, v in value.items()}}
    )

    assert resolved.body({"a": "x"}) == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x D"}]
    }
    assert prompt.vars["day"] == "{{ ds }}"


def test_messages_may_hold_parts() -> None:
    prompt = RowPrompt(
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "{{ row.url }}"}}]},
            {"role": "assistant", "content": "{{ row.a }}", "name": "n"},
        ]
    ).resolve({})

    assert prompt.body({"url": "u", "a": "x"}) == {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            {"role": "assistant", "name": "n", "content": "x"},
        ]
    }


@pytest.mark.parametrize("template", ["line\n\n{{ row.nope }}", "line\n\n{{ row['nope'] + 'a' }}"])
def test_a_missing_column_names_column_row_line_and_the_columns_there_are(template: str) -> None:
    prompt = RowPrompt(template).resolve({})

    with pytest.raises(PromptError) as caught:
        prompt.body({"body": "secret text", "id": 1}, "row 'r-1'")

    assert not isinstance(caught.value, UnrenderableRow)
    assert "row 'r-1': line 3 of the prompt names column 'nope'" in str(caught.value)
    assert "it has: body, id" in str(caught.value)


def test_a_column_name_that_comes_from_a_row_is_not_told() -> None:
    prompt = RowPrompt("{{ row[row.body] }}").resolve({})

    with pytest.raises(PromptError) as caught:
        prompt.body({"body": "secret text"})

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ row.a.__class__ }}",
        "{{ row.a.format }}",
        "{{ row.l.append(1) }}",
        "{{ row.a.format.__globals__ }}",
    ],
)
def test_what_the_sandbox_forbids_is_an_error_of_the_prompt(template: str) -> None:
    with pytest.raises(PromptError) as caught:
        RowPrompt(template).resolve({}).body({"a": "x", "l": []})

    assert not isinstance(caught.value, UnrenderableRow)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{{ row.b", "line 2"),
        ("{% if %}", "line 1"),
        ("{{ rwo.a }}", r"unknown names \['rwo'\]"),
        ("{% include 'other' %}", "stand alone"),
        ("\ud83d", "half a surrogate"),
    ],
)
def test_a_template_that_cannot_work_is_refused_when_resolved(template: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        RowPrompt(template).resolve({})


def test_values_that_do_not_go_through_the_template_are_the_rows_fault_and_not_told() -> None:
    prompt = RowPrompt("{{ row.a + 1 }}").resolve({})

    with pytest.raises(
        UnrenderableRow, match="row 'x': line 1 of the prompt failed with TypeError"
    ) as caught:
        prompt.body({"a": "secret text"}, "row 'x'")

    assert caught.value.fault == "prompt_failed"
    assert prompt.body({"a": 1})["messages"][0]["content"] == "2"


def test_text_that_utf8_cannot_encode_is_the_rows_fault() -> None:
    with pytest.raises(UnrenderableRow) as caught:
        _said("{{ row.a }}", {"a": "x\ud83d"})

    assert caught.value.fault == "unencodable_text"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"text": "a", "path": "b"},
        {"messages": [{"role": "user"}]},
        {"messages": ["a"]},
        {"messages": [{"role": "user", "content": "a"}], "system": "b"},
        {"text": "a", "vars": {"row": 1}},
        {"text": "a", "vars": {1: "b"}},
        {"text": "a", "vars": ["b"]},
        {"text": 5},
        {"text": ["a"]},
        {"text": "a", "system": 5},
        {"path": 5},
        {"messages": []},
        {"messages": {"role": "user", "content": "a"}},
        {"messages": 5},
    ],
)
def test_a_prompt_that_makes_no_sense_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        RowPrompt(**arguments)


def test_a_prompt_file_is_read_when_resolved_relative_to_the_dag_file(tmp_path: Path) -> None:
    prompt = RowPrompt(path="prompts/label.txt")
    context = {"dag": SimpleNamespace(fileloc=str(tmp_path / "dag.py"))}
    with pytest.raises(PromptError, match="there is no prompt file"):
        prompt.resolve(context)

    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "label.txt").write_bytes("\ufeffé {{ row.a }}\n".encode())

    assert prompt.resolve(context).body({"a": 1})["messages"][0]["content"] == "é 1\n"


def test_a_templated_path_needs_a_task_to_render_it() -> None:
    with pytest.raises(ConfigurationError, match="only be rendered inside a task"):
        RowPrompt(path="{{ ds }}.txt").resolve({})
