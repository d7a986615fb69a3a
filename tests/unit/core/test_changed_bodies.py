"""Bodies of the rows themselves, changed for a retry where they name model and output limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from airflow_batch_llm.core.changed_bodies import with_own_members_changed
from airflow_batch_llm.core.endpoints import CHAT, RESPONSES
from airflow_batch_llm.core.model import Request, RequestTemplate

LARGER = {"max_tokens": 200}


def changed(
    body: dict[str, Any],
    overrides: dict[str, Any] = LARGER,
    *,
    raised: Callable[[int], int] | None = None,
    **template: Any,
) -> dict[str, Any]:
    made = RequestTemplate(**{"endpoint": CHAT, "model": "m-1", **template})
    request = Request("t-1", "w-1", body=msgspec.Raw(msgspec.json.encode(body)))
    found: dict[str, Any] = msgspec.json.decode(
        with_own_members_changed(request, made, "m-2", overrides, raised=raised).body
    )
    return found


def test_a_body_that_names_neither_stays_as_it_is() -> None:
    assert changed({"messages": []}) == {"messages": []}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_a_limit_is_changed_where_the_body_names_it(name: str) -> None:
    assert changed({"messages": [], "model": "m-0", name: 100}) == {"messages": [], "model": "m-2", name: 200}


@pytest.mark.parametrize(("endpoint", "name"), [(CHAT, "max_tokens"), (RESPONSES, "max_output_tokens")])
def test_a_ready_made_body_is_given_what_it_lacks(endpoint: str, name: str) -> None:
    assert changed({"input": "x"}, native=True, endpoint=endpoint) == {
        "input": "x",
        "model": "m-2",
        name: 200,
    }


@pytest.mark.parametrize(
    ("own", "again"),
    [
        ({}, {"generationConfig": {"maxOutputTokens": 200}}),
        ({"generationConfig": None}, {"generationConfig": {"maxOutputTokens": 200}}),
        ({"generationConfig": {"topK": 1}}, {"generationConfig": {"topK": 1, "maxOutputTokens": 200}}),
        (
            {"generation_config": {"max_output_tokens": 9, "top_k": 1}},
            {"generation_config": {"max_output_tokens": 200, "top_k": 1}},
        ),
        ({"generation_config": {"maxOutputTokens": 9}}, {"generation_config": {"maxOutputTokens": 200}}),
    ],
)
def test_the_limit_of_geminis_own_bodies_stands_among_their_settings(
    own: dict[str, Any], again: dict[str, Any]
) -> None:
    found = changed({"contents": [], **own}, native=True)
    assert found == {"contents": [], "model": "m-2", **again}


def test_a_body_keeps_its_limit_where_only_the_model_changes() -> None:
    own = {"contents": [], "generationConfig": {"maxOutputTokens": 9}}
    assert changed(own, {}, native=True) == {**own, "model": "m-2"}


@pytest.mark.parametrize("own", [{"max_tokens": 4000}, {"max_tokens": None}, {"max_tokens": "many"}])
def test_a_body_never_gets_a_smaller_limit_than_its_own(own: dict[str, Any]) -> None:
    larger = own["max_tokens"] == 4000
    assert changed(own)["max_tokens"] == (4000 if larger else 200)
    assert changed(own, raised=lambda limit: 2 * limit)["max_tokens"] == (8000 if larger else 200)


def test_a_larger_limit_of_geminis_own_bodies_is_raised_too() -> None:
    own = {"contents": [], "generationConfig": {"maxOutputTokens": 4000}}
    found = changed(own, raised=lambda limit: 2 * limit, native=True)
    assert found["generationConfig"] == {"maxOutputTokens": 8000}
