"""Requests: one way to ask, whatever the protocol, and a clear no where it has no place for something."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.exceptions import Refused
from airflow_batch_llm.schemas import answer_schema
from tests.integration.contract.wires import Wire
from tests.job_bench import Bench

Job = Callable[..., Bench]
Told = Callable[..., Any]
TEXTS = {f"t-{n}": f"ticket number {n} about a refund." for n in range(4)}
LABEL = {
    "type": "object",
    "properties": {
        "label": {"enum": ["refund", "delivery", "other"]},
        "urgent": {"type": "boolean"},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["label", "urgent", "notes"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Look the weather up.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
    )
).decode()


def asked(*bodies: dict[str, Any]) -> Callable[[], list[Draft]]:
    return lambda: [
        Draft(line=n, custom_id=f"r-{n}", body=body, row={"id": n}, key={"id": n})
        for n, body in enumerate(bodies, start=1)
    ]


def outputs(made: Bench) -> dict[str, Any]:
    return {answer.custom_id: answer.output for answer in made.answers()}


def test_structured_answers_fit_the_schema_and_are_those_of_openai(
    form: Wire, job: Job, over_openai: Told
) -> None:
    schema = answer_schema(LABEL)

    def tell(over: Wire) -> Any:
        template = over.template(output_schema=schema.json_schema)
        made = job(over, texts=TEXTS, template=template, judge=Judge(schema))
        assert made.run().counts["answered"] == len(TEXTS)
        return outputs(made)

    told = tell(form)
    assert told == over_openai("labels", tell)
    assert {output["label"] for output in told.values()} == {"refund"}


def test_an_answer_that_breaks_the_schema_is_asked_for_again(wire: Wire, job: Job) -> None:
    schema = answer_schema(LABEL)
    made = job(wire, texts=TEXTS, template=wire.template(output_schema=LABEL), judge=Judge(schema))
    rule = {"match": {"contains": "number 2"}, "fault": "invalid_json", "times": 1}
    made.server.set_scenario({"rows": [rule]})
    assert made.run().counts["answered"] == len(TEXTS)
    assert [batch.requests for batch in made.batches()] == [4, 1]


def test_tool_calls_come_back_in_one_form(wire: Wire, job: Job, over_openai: Told) -> None:
    def tell(over: Wire) -> Any:
        choice = {"type": "function", "function": {"name": "weather"}}
        params = {"max_tokens": 100, "tools": [WEATHER], "tool_choice": choice}
        made = job(over, texts={"r-1": "Weather in Rome?"}, template=over.template(params=params))
        made.run()
        (call,) = outputs(made)["r-1"]
        assert call["id"]
        return call["type"], call["function"]["name"], json.loads(call["function"]["arguments"])

    assert tell(wire) == over_openai("tools", tell) == ("function", "weather", {"city": "Rome"})


def test_instructions_examples_and_a_history_with_tools_are_sent(
    wire: Wire, job: Job, over_openai: Told
) -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Paris?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "user", "content": "And is it nice there?"},
    ]
    params = {"max_tokens": 100, "tools": [WEATHER], "tool_choice": "auto"}

    def tell(over: Wire) -> Any:
        template = over.template(params=params)
        made = job(over, drafts=asked({"messages": history}), template=template)
        assert made.run().counts["answered"] == 1
        return outputs(made)

    told = tell(wire)
    assert told == over_openai("history", tell) and "And is it nice there?" in told["r-1"]


def test_an_image_is_sent_with_its_bytes(wire: Wire, job: Job) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    made = job(wire, drafts=asked({"messages": [{"role": "user", "content": parts}]}))
    assert made.run().counts["answered"] == 1
    assert "What is this?" in outputs(made)["r-1"]


def test_parameters_that_mean_the_same_everywhere_are_taken(wire: Wire, job: Job) -> None:
    options = {"api_version": "2023-06-01"} if wire.provider == "anthropic" else {}
    params = {"max_tokens": 5, "temperature": 0.2, "top_p": 0.9, "stop": ["END"]}
    template, policy = wire.template(params=params), RowRetry(max_rounds=0)
    made = job(wire, texts={"r-1": "a " * 50}, template=template, options=options, policy=policy)
    made.run()
    (letter,) = made.letters()
    assert letter.verdict == "truncated", "the limit arrived: the simulated model says more than 5 tokens"


@pytest.mark.parametrize(
    ("params", "reason"),
    [({"stream": True}, "stream"), ({"n": 3}, "n")],
    ids=["stream", "n"],
)
def test_what_no_batch_can_do_is_refused_by_name(
    form: Wire, params: dict[str, Any], reason: str, job: Job
) -> None:
    made = job(form, texts=TEXTS)
    with pytest.raises(Refused, match=reason) as told:
        made.backend(made.server).line_encoder(form.template(params={"max_tokens": 9, **params}))
    assert told.value.reason == reason


def test_an_endpoint_that_a_protocol_lacks_is_refused_by_name(form: Wire, job: Job) -> None:
    made = job(form)
    backend = made.backend(made.server)
    if form.embeddings:
        backend.line_encoder(form.template("/v1/embeddings", params={}))
        return
    with pytest.raises(Refused) as told:
        backend.line_encoder(form.template("/v1/embeddings", params={}))
    assert told.value.reason == "endpoint"


def test_vectors_are_those_of_openai(wire: Wire, job: Job, over_openai: Told) -> None:
    if not wire.embeddings:
        pytest.skip(f"{wire.name} batches make no vectors; that they are refused is tested above")

    def tell(over: Wire) -> Any:
        template = over.template("/v1/embeddings", params={})
        made = job(over, drafts=asked({"input": "one text"}, {"input": "another"}), template=template)
        assert made.run().counts["answered"] == 2
        return outputs(made)

    told, expected = tell(wire), over_openai("vectors", tell)
    assert told.keys() == expected.keys()
    for custom_id, vector in expected.items():
        assert told[custom_id] == pytest.approx(vector, abs=1e-6)


def test_a_row_that_cannot_be_asked_dies_alone_and_is_told_by_name(wire: Wire, job: Job) -> None:
    odd = {"messages": [{"role": "user", "content": [{"type": "hologram", "hologram": "…"}]}]}
    fine = {"messages": [{"role": "user", "content": "hello"}]}
    if wire.provider in ("openai", "azure"):
        odd = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    made = job(wire, drafts=asked(odd, fine))
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (1, 1)
    (letter,) = made.letters()
    assert letter.custom_id == "r-1" and letter.code in ("content", "stream")
    assert made.server.summary()["executed"] == 1


def test_a_marked_prefix_changes_no_answer(wire: Wire, job: Job) -> None:
    told = []
    for cached in (False, True):
        body = {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        }
        made = job(wire, drafts=asked(body), template=wire.template(cache_prefix=cached, shared_messages=1))
        made.run()
        told.append([(answer.custom_id, answer.wire_id[:1], answer.output) for answer in made.answers()])
    assert told[0] == told[1] and len(told[0]) == 1
