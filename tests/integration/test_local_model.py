"""The real local model behind the real server: batches, grammar, limits, charges, kills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.local_server import LocalServer
from tests.unit.server.api import Api, answer, line

pytest.importorskip("xllamacpp")

ARGS = ("--local-model", "--local-parallel", "2", "--local-context", "256")
SCHEMA = {
    "type": "object",
    "properties": {"language": {"enum": ["en", "fr"]}, "sure": {"type": "boolean"}},
    "required": ["language", "sure"],
    "additionalProperties": False,
}
EXAMPLES = [
    ("The till is broken.", '{"language":"en","sure":true}'),
    ("Le lecteur ne marche pas.", '{"language":"fr","sure":true}'),
]


def shaped(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def few_shot(custom_id: str, text: str, **body: Any) -> bytes:
    messages = [{"role": "system", "content": "Tell the language."}]
    for said, wanted in EXAMPLES:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": wanted}]
    messages.append({"role": "user", "content": text})
    return line(
        custom_id, **{"messages": messages, "max_tokens": 24, "response_format": shaped(SCHEMA), **body}
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("local-model"), args=ARGS) as server:
        yield server


@pytest.fixture
def api(server: LocalServer) -> Api:
    return Api(server)


def body(row: dict[str, Any]) -> dict[str, Any]:
    return row["response"]["body"]


def test_few_shot_labels_follow_the_schema_and_are_charged_with_the_tokens_of_the_model(
    api: Api, server: LocalServer
) -> None:
    texts = ["Where is my order?", "Où est ma commande ?", "Where is my order?"]
    batch = api.run(b"".join(few_shot(f"r-{i}", text) for i, text in enumerate(texts)))
    rows = api.output(batch)
    labels = [json.loads(answer(row)) for row in rows]
    assert [set(label) for label in labels] == [{"language", "sure"}] * 3
    assert labels[0] == labels[2]
    assert {body(row)["model"] for row in rows} == {"gemma3-270m"}
    charged = [(c["input_tokens"], c["output_tokens"]) for c in server.charges(batch["id"])]
    used = [body(row)["usage"] for row in rows]
    assert charged == [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in used]
    assert used[0]["prompt_tokens"] > 40 and batch["usage"]["output_tokens"] == sum(c[1] for c in charged)


def test_max_tokens_cut_the_answer(api: Api) -> None:
    batch = api.run(few_shot("cut", "hello", max_tokens=2) + line("free", "Once upon a time", max_tokens=3))
    cut, free = (body(row) for row in api.output(batch))
    for answered, tokens in ((cut, 2), (free, 3)):
        assert answered["choices"][0]["finish_reason"] == "length"
        assert answered["usage"]["completion_tokens"] == tokens


def test_a_row_that_cannot_be_answered_stops_no_other(api: Api) -> None:
    image = [{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]
    batch = api.run(
        few_shot("schema", "x", response_format=shaped({"$ref": "#/nowhere"}))
        + line("long", "word " * 400)
        + line("image", messages=[{"role": "user", "content": image}])
        + few_shot("good", "hello")
    )
    codes = {row["custom_id"]: body(row)["error"]["code"] for row in api.errors(batch)}
    assert codes == {
        "schema": "invalid_json_schema",
        "long": "context_length_exceeded",
        "image": "unsupported_content",
    }
    assert [row["custom_id"] for row in api.output(batch)] == ["good"]


def test_completions_go_on_with_the_text(api: Api) -> None:
    request = {"custom_id": "c", "method": "POST", "url": "/v1/completions"}
    asked = {"model": "m", "prompt": "One, two, three, four,", "max_tokens": 4}
    data = json.dumps({**request, "body": asked}).encode() + b"\n"
    (row,) = api.output(api.run(data, endpoint="/v1/completions"))
    assert body(row)["object"] == "text_completion"
    assert "five" in body(row)["choices"][0]["text"]


def test_killed_in_the_middle_it_goes_on_and_charges_each_row_once(tmp_path) -> None:
    with LocalServer(tmp_path, args=ARGS) as server:
        api = Api(server)
        batch = api.start(b"".join(few_shot(f"r-{i}", f"Question number {i}") for i in range(8)))
        api.until(batch["id"], rows=1)
        server.kill9()
        server.restart()
        ended = api.until(batch["id"])
        assert ended["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
        assert sorted(row["custom_id"] for row in api.output(ended)) == sorted(f"r-{i}" for i in range(8))
        assert (server.summary()["charged"], server.summary()["charged_twice"]) == (8, 0)
        api.start(line("endless", "Once upon a time", max_tokens=4000))
        assert server.stop() == 0
        assert "Once" not in server.log
