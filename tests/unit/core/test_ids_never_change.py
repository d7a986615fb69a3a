"""Golden digests: if one of these changes, paid answers of running jobs no longer join to their rows."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_batch_llm.core.ids import WireIds, attempt_token
from airflow_batch_llm.core.jsonl import dumps_canonical
from airflow_batch_llm.core.model import JobKey, RequestTemplate

KEY = JobKey("ns0000000000", "nightly", "scheduled__2026-01-15T02:00:00+00:00", "label_tickets.submit", -1)
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TEMPLATE = RequestTemplate(CHAT, "gpt-5-mini", {"max_tokens": 200}, SCHEMA, "TicketLabel")
BODY = dumps_canonical({"messages": [{"role": "user", "content": "Grüße 1.5 \u2028"}]})


def test_a_job_keeps_its_id() -> None:
    assert KEY.job_id == "b12ce750c1c547aead6a0b2a9c38fae2"
    assert KEY.origin == "179824e1adb2c6ac9c87e4cda3097973"


def test_an_attempt_keeps_its_token() -> None:
    assert attempt_token(KEY, 1, 0, 0, 1) == "a5a94806bb47842f225580c934b03ed7be0e56d81"


def test_a_request_keeps_its_wire_id() -> None:
    native = RequestTemplate(CHAT, "", native=True)
    assert WireIds(KEY, TEMPLATE).derive("42", BODY) == "awnl2uGpjXpgKR3KCVekryiQ3vzID5kSeLwcTXw-0QO0"
    assert WireIds(KEY, native).derive("42", BODY) == "agVw1-dFVmk-w3Q6GuvPbbSqnVoQIhCriKVflrDK8AGU"


def test_marking_the_prefix_for_a_cache_changes_no_wire_id() -> None:
    marked = replace(TEMPLATE, cache_prefix=True)
    assert WireIds(KEY, marked).derive("42", BODY) == WireIds(KEY, TEMPLATE).derive("42", BODY)


def test_whatever_is_asked_differently_has_another_wire_id() -> None:
    other_key = JobKey("ns0000000001", *KEY.parts[1:])
    ids = {
        WireIds(KEY, TEMPLATE).derive("42", BODY),
        WireIds(other_key, TEMPLATE).derive("42", BODY),
        WireIds(KEY, TEMPLATE).derive("43", BODY),
        WireIds(KEY, TEMPLATE).derive("42", BODY + b" "),
        WireIds(KEY, RequestTemplate(CHAT, "gpt-5", {"max_tokens": 200}, SCHEMA)).derive("42", BODY),
        WireIds(KEY, RequestTemplate(CHAT, "gpt-5-mini", {"max_tokens": 201}, SCHEMA)).derive("42", BODY),
        WireIds(KEY, RequestTemplate(CHAT, "gpt-5-mini", {"max_tokens": 200}, {})).derive("42", BODY),
    }
    assert len(ids) == 7


@given(st.text(min_size=1).filter(lambda t: t.isprintable()), st.binary(max_size=50))
def test_any_provider_takes_a_wire_id(custom_id: str, body: bytes) -> None:
    wire_id = WireIds(KEY, TEMPLATE).derive(custom_id, body)
    assert re.fullmatch(r"[A-Za-z0-9_-]{44}", wire_id)
