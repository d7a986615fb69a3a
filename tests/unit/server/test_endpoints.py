"""The endpoints beside chat, as the simulated model serves them."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import jsonschema
import msgspec
import pytest

from airflow_batch_llm.server.embeddings import DIMENSIONS, vector
from airflow_batch_llm.server.rows import RowRunner
from airflow_batch_llm.server.upstreams import ENDPOINTS, SimulatedUpstream
from airflow_batch_llm.server.wire import Request
from tests.unit.server.api import Api, ids

COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"
EMBEDDINGS, MODERATIONS = "/v1/embeddings", "/v1/moderations"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "say it"},
    RESPONSES: {"input": "say it"},
    EMBEDDINGS: {"input": "say it"},
    MODERATIONS: {"input": "say it"},
}


def ask(endpoint: str, **body: Any) -> tuple[int, dict[str, Any]]:
    raw = msgspec.json.encode({"model": "any", **body})
    reply = ENDPOINTS[endpoint].simulate(Request(1, "r-1", "any", raw), 7)
    return reply.status, json.loads(reply.body)


def refusal(endpoint: str, **body: Any) -> tuple[str | None, str | None]:
    status, said = ask(endpoint, **body)
    assert status == 400, said
    return said["error"]["code"], said["error"]["param"]


def line(endpoint: str, custom_id: str, **body: Any) -> bytes:
    whole = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": {"model": "m-1", **body}}
    return json.dumps(whole).encode() + b"\n"


# -- completions -----------------------------------------------------------------------------------
def test_each_text_of_a_prompt_is_completed() -> None:
    _, body = ask(COMPLETIONS, prompt=["say one", "say two"])
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    alone = [ask(COMPLETIONS, prompt=text)[1]["choices"][0]["text"] for text in ("say one", "say two")]
    assert [choice["text"] for choice in body["choices"]] == alone
    assert alone[0] != alone[1]


def test_max_tokens_cuts_a_completion_and_says_so() -> None:
    _, body = ask(COMPLETIONS, prompt="say it", max_tokens=2)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


# -- responses -------------------------------------------------------------------------------------
def words_of(body: dict[str, Any]) -> str:
    return "".join(part["text"] for item in body["output"] for part in item.get("content", ()))


def test_a_response_answers_the_last_words_of_the_user() -> None:
    items = [
        {"role": "user", "content": "first"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "say it"}, {"type": "input_image"}]},
    ]
    _, of_items = ask(RESPONSES, input=items, instructions="be kind")
    _, of_text = ask(RESPONSES, input="say it")
    assert words_of(of_items) == words_of(of_text) != ""
    assert of_items["usage"]["input_tokens"] > of_text["usage"]["input_tokens"]


def test_max_output_tokens_leave_a_response_incomplete() -> None:
    _, whole = ask(RESPONSES, input="say it")
    _, cut = ask(RESPONSES, input="say it", max_output_tokens=2)
    assert (whole["status"], whole["incomplete_details"]) == ("completed", None)
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert words_of(whole).startswith(words_of(cut))
    assert cut["usage"]["output_tokens"] == 2


def test_a_text_format_is_followed() -> None:
    schema = {"type": "object", "properties": {"label": {"enum": ["bug", "billing"]}}, "required": ["label"]}
    text = {"format": {"type": "json_schema", "name": "label", "schema": schema, "strict": True}}
    _, body = ask(RESPONSES, input="My invoice was charged twice", text=text)
    assert json.loads(words_of(body)) == {"label": "billing"}
    _, as_json = ask(RESPONSES, input="x", text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(words_of(as_json)), dict)
    broken = {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#/none"}}}
    assert refusal(RESPONSES, input="x", text=broken)[0] == "invalid_json_schema"


def test_a_forced_function_is_called_with_valid_arguments() -> None:
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = [{"type": "web_search"}, {"type": "function", "name": "count", "parameters": parameters}]
    for choice in ("required", {"type": "function", "name": "count"}):
        _, body = ask(RESPONSES, input="x", tools=tools, tool_choice=choice)
        [item] = body["output"]
        assert (item["type"], item["name"]) == ("function_call", "count")
        jsonschema.validate(json.loads(item["arguments"]), parameters)
    assert words_of(ask(RESPONSES, input="x", tools=tools)[1])
    assert refusal(RESPONSES, input="x", tools=tools, tool_choice={"name": "other"})[1] == "tool_choice"


# -- embeddings ------------------------------------------------------------------------------------
def cosine(one: str, two: str) -> float:
    return sum(a * b for a, b in zip(vector(one, DIMENSIONS), vector(two, DIMENSIONS), strict=True))


def test_texts_that_share_words_are_near_and_others_are_not() -> None:
    text = "The invoice was charged twice to my card"
    same = cosine(text, "My card was charged twice for the invoice")
    some = cosine(text, "The invoice came by post and my card is new")
    none = cosine(text, "Parcel tracking says nothing since Tuesday")
    assert same > 0.85 > some > 0.35 > abs(none)


@pytest.mark.parametrize("text", ["x", "word " * 500, "!!", "日本語", "🙂", "\u0000"])
@pytest.mark.parametrize("dimensions", [1, 2, 64, 1536, 3072])
def test_vectors_are_of_length_one_and_always_the_same(text: str, dimensions: int) -> None:
    found = vector(text, dimensions)
    assert len(found) == dimensions
    assert math.hypot(*found) == pytest.approx(1, abs=1e-5)
    assert vector(text, dimensions) == found


def test_both_encodings_hold_the_same_numbers() -> None:
    for dimensions in (DIMENSIONS, 1536):
        wish = {} if dimensions == DIMENSIONS else {"dimensions": dimensions}
        _, as_floats = ask(EMBEDDINGS, input="say it", **wish)
        _, as_base64 = ask(EMBEDDINGS, input="say it", encoding_format="base64", **wish)
        packed = base64.b64decode(as_base64["data"][0]["embedding"])
        assert list(struct.unpack(f"<{dimensions}f", packed)) == as_floats["data"][0]["embedding"]


def test_each_input_has_its_vector_in_order() -> None:
    _, body = ask(EMBEDDINGS, input=["one", "two"])
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert [entry["embedding"] for entry in body["data"]] == [
        vector(text, DIMENSIONS).tolist() for text in ("one", "two")
    ]
    assert len(ask(EMBEDDINGS, input=[[1, 2], [3]])[1]["data"]) == 2
    assert len(ask(EMBEDDINGS, input=[1, 2])[1]["data"]) == 1


# -- moderations -----------------------------------------------------------------------------------
def test_words_of_the_list_flag_their_category_and_the_one_it_belongs_to() -> None:
    _, body = ask(MODERATIONS, input=["What a gory day: gore everywhere", "A fine day"])
    bad, good = body["results"]
    assert [name for name, found in bad["categories"].items() if found] == ["violence", "violence/graphic"]
    assert bad["flagged"] and not good["flagged"] and not any(good["categories"].values())
    for result in (bad, good):
        for name, found in result["categories"].items():
            assert (result["category_scores"][name] > 0.5) == found


def test_parts_are_one_input_and_pictures_count_where_they_may() -> None:
    parts = [{"type": "text", "text": "kill"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    [result] = ask(MODERATIONS, input=parts)[1]["results"]
    assert result["flagged"]
    applied = result["category_applied_input_types"]
    assert (applied["violence"], applied["hate"]) == (["text", "image"], ["text"])


# -- what is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("endpoint", "body", "code", "param"),
    [
        (COMPLETIONS, {}, "missing_required_parameter", "prompt"),
        (COMPLETIONS, {"prompt": 7}, "invalid_type", "prompt"),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        (COMPLETIONS, {"prompt": "x", "temperature": 3}, "invalid_value", "temperature"),
        (COMPLETIONS, {"prompt": "x" * 600_000}, "context_length_exceeded", "prompt"),
        (RESPONSES, {}, "missing_required_parameter", "input"),
        (RESPONSES, {"input": []}, "empty_array", "input"),
        (RESPONSES, {"input": [{"content": "x"}]}, "invalid_value", "input"),
        (RESPONSES, {"input": [{"role": "critic", "content": "x"}]}, "invalid_value", "input"),
        (RESPONSES, {"input": "x", "max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        (RESPONSES, {"input": "x" * 600_000}, "context_length_exceeded", "input"),
        (EMBEDDINGS, {"input": ""}, "invalid_value", "input"),
        (EMBEDDINGS, {"input": []}, "empty_array", "input"),
        (EMBEDDINGS, {"input": [1, "a"]}, "invalid_type", "input"),
        (EMBEDDINGS, {"input": "x", "dimensions": 0}, "invalid_value", "dimensions"),
        (EMBEDDINGS, {"input": "x", "encoding_format": "hex"}, "invalid_type", "encoding_format"),
        (EMBEDDINGS, {"input": "x" * 40_000}, "context_length_exceeded", "input"),
        (EMBEDDINGS, {"input": ["x"] * 2_049}, "array_above_max_length", "input"),
        (MODERATIONS, {"input": {}}, "invalid_type", "input"),
        (MODERATIONS, {"input": [{"type": "sound"}]}, "invalid_type", "input"),
    ],
)
def test_a_wrong_body_is_a_bad_request_with_its_parameter(
    endpoint: str, body: dict[str, Any], code: str, param: str
) -> None:
    assert refusal(endpoint, **body) == (code, param)


# -- batches ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("endpoint", BODIES)
def test_a_batch_of_any_endpoint_runs_and_is_charged(api: Api, endpoint: str) -> None:
    data = b"".join(line(endpoint, f"r-{i}", **BODIES[endpoint]) for i in range(3))
    batch = api.run(data, endpoint=endpoint)
    assert (batch["status"], batch["endpoint"]) == ("completed", endpoint)
    assert ids(api.output(batch)) == ["r-0", "r-1", "r-2"]
    charges = list(api.server.charges(batch["id"]))
    assert [charge["charged"] for charge in charges] == [True] * 3
    assert all((charge["input_tokens"] > 0) == (endpoint != MODERATIONS) for charge in charges)
    assert batch["usage"]["input_tokens"] == sum(charge["input_tokens"] for charge in charges)


@pytest.mark.parametrize("endpoint", BODIES)
def test_rows_are_chosen_by_the_words_of_any_endpoints_prompt(api: Api, endpoint: str) -> None:
    api.server.set_scenario({"rows": [{"fault": "server_error", "match": {"contains": "say it"}}]})
    [member] = BODIES[endpoint]
    other = line(endpoint, "r-2", **{member: "another"})
    batch = api.run(line(endpoint, "r-1", **BODIES[endpoint]) + other, endpoint=endpoint)
    assert (ids(api.errors(batch)), ids(api.output(batch))) == (["r-1"], ["r-2"])


SPOILED = [
    (COMPLETIONS, "truncated", lambda body: body["choices"][0]["finish_reason"] == "length"),
    (COMPLETIONS, "content_filter", lambda body: body["choices"][0]["finish_reason"] == "content_filter"),
    (COMPLETIONS, "empty", lambda body: body["choices"][0]["text"] == ""),
    (COMPLETIONS, "invalid_json", lambda body: body["choices"][0]["text"].startswith("{")),
    (RESPONSES, "truncated", lambda body: body["incomplete_details"] == {"reason": "max_output_tokens"}),
    (RESPONSES, "content_filter", lambda body: body["incomplete_details"] == {"reason": "content_filter"}),
    (RESPONSES, "refusal", lambda body: body["output"][0]["content"][0]["type"] == "refusal"),
    (RESPONSES, "empty", lambda body: words_of(body) == ""),
    (RESPONSES, "invalid_json", lambda body: words_of(body).startswith("{")),
    (EMBEDDINGS, "empty", lambda body: body["data"] == []),
    (MODERATIONS, "empty", lambda body: body["results"] == []),
    *((endpoint, "error_in_200", lambda body: body["error"]["message"]) for endpoint in BODIES),
]


@pytest.mark.parametrize(("endpoint", "fault", "shows"), SPOILED)
def test_a_scenario_spoils_the_answers_of_any_endpoint(
    api: Api, endpoint: str, fault: str, shows: Any
) -> None:
    api.server.set_scenario({"rows": [{"fault": fault}]})
    batch = api.run(line(endpoint, "r-1", **BODIES[endpoint]), endpoint=endpoint)
    [row] = api.output(batch)
    assert row["response"]["status_code"] == 200 and shows(row["response"]["body"])
    [charge] = api.server.charges(batch["id"])
    assert (charge["fault"], charge["charged"]) == (fault, fault != "error_in_200")


@pytest.mark.parametrize(
    ("endpoint", "fault"), [(COMPLETIONS, "refusal"), (EMBEDDINGS, "truncated"), (MODERATIONS, "refusal")]
)
def test_a_fault_that_an_endpoint_cannot_have_leaves_its_answers_alone(
    api: Api, endpoint: str, fault: str
) -> None:
    data = line(endpoint, "r-1", **BODIES[endpoint])
    [whole] = api.output(api.run(data, endpoint=endpoint))
    api.server.set_scenario({"rows": [{"fault": fault}]})
    batch = api.run(data, endpoint=endpoint)
    [row] = api.output(batch)
    bodies = [found["response"]["body"] for found in (row, whole)]
    assert {**bodies[0], "created": 0, "created_at": 0} == {**bodies[1], "created": 0, "created_at": 0}
    assert [charge["fault"] for charge in api.server.charges(batch["id"])] == [None]


def test_an_embeddings_batch_above_50_000_inputs_fails_with_the_line(api: Api) -> None:
    data = b"".join(line(EMBEDDINGS, f"r-{i}", input=["x"] * 2_000) for i in range(26))
    batch = api.run(data, endpoint=EMBEDDINGS)
    assert batch["status"] == "failed"
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == [("invalid_request", 26)]


def test_a_line_for_another_endpoint_than_the_batchs_fails_validation(api: Api) -> None:
    batch = api.run(line(MODERATIONS, "r-1", input="x"), endpoint=EMBEDDINGS)
    assert batch["errors"]["data"][0]["code"] == "invalid_url"


# -- memory ----------------------------------------------------------------------------------------
def test_long_answers_are_made_in_pieces_and_every_row_is_there_once(api: Api) -> None:
    rows = 400  # 400 x 3,072 floats are 26 MB of JSON: more than three pieces
    data = b"".join(
        line(EMBEDDINGS, f"r-{i}", input=f"text {i}", dimensions=3_072, encoding_format="float")
        for i in range(rows)
    )
    batch = api.run(data, endpoint=EMBEDDINGS)
    assert batch["request_counts"] == {"total": rows, "completed": rows, "failed": 0}
    size = 0
    found = []
    for row in api.content(batch["output_file_id"]).splitlines():
        size += len(row)
        found.append(msgspec.json.decode(row)["custom_id"])
    assert found == [f"r-{i}" for i in range(rows)]
    assert size > 24_000_000
    assert len(list(api.server.charges(batch["id"]))) == rows


def test_one_piece_ends_soon_after_8_mb_of_answers(mocker: Any) -> None:
    from airflow_batch_llm.server.openai_lines import OpenAIDialect

    faults = mocker.Mock()
    faults.choose.return_value = None
    batch = mocker.Mock(id="batch_1", seq=1, endpoint=EMBEDDINGS, in_progress_at=1, created_at=1)
    runner = RowRunner(batch, OpenAIDialect(), ENDPOINTS[EMBEDDINGS], SimulatedUpstream(), faults)
    lines = [line(EMBEDDINGS, f"r-{i}", input="x", dimensions=3_072).rstrip() for i in range(400)]
    piece = runner.execute(1, lines)
    assert 0 < piece.rows < 200
    assert 8_000_000 <= len(piece.output) < 11_000_000
    assert len(piece.charges) == piece.output.count(b"\n") == piece.rows
