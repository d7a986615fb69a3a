"""Which requests are the same. If a golden digest changes, every answer that was bought is bought again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Asked, JobKey, RequestTemplate
from airflow_batch_llm.core.reuse import RequestHashes, Reuse, connection_digest, task_digest, twin_of
from airflow_batch_llm.exceptions import ConfigurationError

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TEMPLATE = RequestTemplate("/v1/chat/completions", "gpt-5-mini", {"max_tokens": 200}, SCHEMA, "TicketLabel")
BODY = dumps_canonical({"messages": [{"role": "user", "content": "Grüße 1.5 \u2028"}]})
KEY = JobKey("ns0000000000", "nightly", "scheduled__2026-01-15T02:00:00+00:00", "label_tickets.submit", -1)


def hash_of(
    template: RequestTemplate = TEMPLATE,
    *,
    provider: str = "openai",
    address: str = "api.openai.com/v1",
    version: str = "",
    body: bytes = BODY,
    model: str = "gpt-5-mini",
    sample: int = 0,
) -> str:
    return RequestHashes(provider, address, template, version).derive(body, model, sample)


def test_a_request_keeps_its_hash() -> None:
    assert hash_of() == "X1NVJ7alpEuDEUQXuKnmngjwxjllFVmITUuLPzBKLMc"
    assert hash_of(replace(TEMPLATE, native=True)) == "MdTqirGMvr24xxavRdPxor7vZF4M_q_mbvHstVCU9QE"


def test_a_scope_keeps_its_digest() -> None:
    assert task_digest(KEY) == "dd79aac0aac760864c4a1c183ef96a97"
    assert connection_digest("llm_batch") == "1fc2b708173530d8fce6d8365c9efa62"


def test_whatever_is_asked_differently_has_another_hash() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"provider": "other"},
        {"address": "127.0.0.1:8765/v1"},
        {"version": "2"},
        {"body": BODY + b" "},
        {"model": "gpt-5"},
        {"sample": 1},
        {"sample": 2},
        {"template": replace(TEMPLATE, endpoint="/v1/responses")},
        {"template": replace(TEMPLATE, params={"max_tokens": 201})},
        {"template": replace(TEMPLATE, output_schema=None)},
        {"template": replace(TEMPLATE, native=True)},
    ]
    assert len({hash_of(**other) for other in others}) == len(others)


def test_neither_names_nor_the_run_nor_a_marked_prefix_makes_a_difference() -> None:
    assert hash_of(replace(TEMPLATE, schema_name="Other")) == hash_of()
    assert hash_of(replace(TEMPLATE, cache_prefix=True)) == hash_of()
    assert task_digest(replace(KEY, run_id="manual", map_index=3)) == task_digest(KEY)
    assert task_digest(replace(KEY, task_id="other")) != task_digest(KEY)


@given(
    st.tuples(st.text(), st.integers(0, 9), st.binary()), st.tuples(st.text(), st.integers(0, 9), st.binary())
)
def test_no_two_requests_have_the_same_hash(
    one: tuple[str, int, bytes], other: tuple[str, int, bytes]
) -> None:
    hashes = RequestHashes("openai", "api.openai.com/v1", TEMPLATE, "")
    first, second = (hashes.derive(body, model, sample) for model, sample, body in (one, other))
    assert (first == second) == (one == other)


def approves(output: Any, row: dict[str, Any]) -> None:
    """Take any answer."""


def test_rows_share_an_answer_unless_a_check_would_see_a_difference() -> None:
    one, other = Asked("1", {"id": 1}, {"title": "a"}), Asked("2", {"id": 2}, {"title": "a"})
    retitled = Asked("2", {"id": 2}, {"title": "b"})
    assert twin_of("h", Judge(), one) == twin_of("h", Judge(), retitled) == ""
    validating, echoing = Judge(validate=approves), Judge(echo={"id": "id"})
    assert twin_of("h", validating, one) == twin_of("h", validating, other) != ""
    assert twin_of("h", validating, one) != twin_of("h", validating, retitled)
    assert twin_of("h", echoing, one) != twin_of("h", echoing, other)
    assert twin_of("h", echoing, other) == twin_of("h", echoing, retitled)
    assert twin_of("h", validating, one) != twin_of("g", validating, one)


@pytest.mark.parametrize(
    "wrong", [{"scope": "dag"}, {"max_age": timedelta(0)}, {"max_age": 3600}, {"version": 2}]
)
def test_what_reuse_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Reuse"):
        Reuse(**wrong)
