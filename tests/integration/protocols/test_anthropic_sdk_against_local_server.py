"""The official ``anthropic`` SDK, unchanged, against the local server: an independent judge of its wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock, ToolUseBlock
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from tests.local_server import LocalServer

HELD = {"pace": {"seconds": 86_400, "hold_at": 0.5}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def client(server: LocalServer) -> Iterator[anthropic.Anthropic]:
    server.set_scenario({})
    url = server.url_of("anthropic")
    with anthropic.Anthropic(base_url=url, api_key=server.api_key, max_retries=0) as found:
        yield found


def create(client: anthropic.Anthropic, *some: dict[str, Any], count: int = 0) -> MessageBatch:
    """Create a batch of the requests given, or of so many."""
    changes = some or ({},) * count
    return client.messages.batches.create(
        requests=[
            {
                "custom_id": f"row_{i}",
                "params": {
                    "model": "claude-sonnet-5",
                    "max_tokens": 200,
                    "messages": [{"role": "user", "content": f"say {i}"}],
                    **change,  # type: ignore[typeddict-item]
                },
            }
            for i, change in enumerate(changes)
        ]
    )


def wait(client: anthropic.Anthropic, batch_id: str) -> MessageBatch:
    for _ in range(20_000):
        batch = client.messages.batches.retrieve(batch_id)
        if batch.processing_status == "ended":
            return batch
    raise AssertionError(f"{batch_id} is still {batch.processing_status}")


def results(client: anthropic.Anthropic, batch_id: str) -> list[MessageBatchIndividualResponse]:
    """Return the results, each valid under the SDK's own types."""
    rows = list(client.messages.batches.results(batch_id))
    return [type(row).model_validate(row.model_dump(mode="json")) for row in rows]


def messages(client: anthropic.Anthropic, *some: dict[str, Any]) -> list[Message]:
    rows = results(client, wait(client, create(client, *some).id).id)
    return [row.result.message for row in rows if row.result.type == "succeeded"]


def test_create_poll_and_read_the_results(server: LocalServer, client: anthropic.Anthropic) -> None:
    server.set_scenario({"rows": [{"fault": "server_error", "match": {"custom_id": "3$"}}]})
    made = create(client, count=5)
    assert MessageBatch.model_validate(made.model_dump(mode="json")) == made
    assert made.processing_status == "in_progress" and made.request_counts.processing == 5
    assert made.expires_at == made.created_at + timedelta(hours=24)
    batch = wait(client, made.id)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (4, 1)
    assert batch.ended_at is not None and batch.ended_at >= batch.created_at
    rows = {row.custom_id: row.result for row in results(client, batch.id)}
    assert list(rows) == [f"row_{i}" for i in range(5)]
    failed = rows.pop("row_3")
    assert failed.type == "errored" and failed.error.error.type == "api_error"
    for result in rows.values():
        assert result.type == "succeeded" and isinstance(result.message.content[0], TextBlock)
        assert result.message.usage.service_tier == "batch"
        assert result.message.stop_reason == "end_turn"
    assert server.summary()["charged"] == 4


def test_batches_are_paged_through(client: anthropic.Anthropic) -> None:
    made = [create(client, count=1).id for _ in range(5)][::-1]
    assert [batch.id for batch in client.messages.batches.list(limit=2)][:5] == made
    newer = client.messages.batches.list(limit=2, before_id=made[3])
    assert [batch.id for batch in newer.data] == made[1:3]


def test_a_batch_is_cancelled_with_what_it_has_and_deleted(
    server: LocalServer, client: anthropic.Anthropic
) -> None:
    server.set_scenario(HELD)
    made = create(client, count=4)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.batches.delete(made.id)
    with pytest.raises(anthropic.AnthropicError, match="results_url"):
        client.messages.batches.results(made.id)
    assert any(server.batches()[0]["rows_done"] == 2 for _ in range(20_000))
    assert client.messages.batches.cancel(made.id).cancel_initiated_at is not None
    batch = wait(client, made.id)
    assert (batch.request_counts.succeeded, batch.request_counts.canceled) == (2, 2)
    assert [row.result.type for row in results(client, batch.id)] == ["succeeded"] * 2 + ["canceled"] * 2
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


def test_an_expired_batch_has_expired_rows(server: LocalServer, client: anthropic.Anthropic) -> None:
    server.set_scenario({"batches": [{"fault": "expire", "after": 0.5}]})
    batch = wait(client, create(client, count=2).id)
    assert batch.request_counts.expired == 1
    assert [row.result.type for row in results(client, batch.id)] == ["succeeded", "expired"]


def test_tools_structured_output_and_thinking(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"kind": {"enum": ["billing", "other"]}}, "required": ["kind"]}
    tool = {"name": "sort", "description": "Sorts.", "input_schema": schema}
    called, structured, thought = messages(
        client,
        {"tools": [tool], "tool_choice": {"type": "tool", "name": "sort"}},
        {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        {"thinking": {"type": "adaptive"}},
    )
    (block,) = called.content
    assert isinstance(block, ToolUseBlock) and called.stop_reason == "tool_use"
    assert block.name == "sort" and block.input in ({"kind": "billing"}, {"kind": "other"})
    assert isinstance(structured.content[0], TextBlock)
    assert json.loads(structured.content[0].text)["kind"] in ("billing", "other")
    assert [part.type for part in thought.content] == ["thinking", "text"]
    details = thought.usage.output_tokens_details
    assert details is not None and 0 < details.thinking_tokens < thought.usage.output_tokens


def test_a_marked_prefix_is_written_once_and_read_by_the_others(client: anthropic.Anthropic) -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    system = [{"type": "text", "text": "The rules. " * 40, "cache_control": mark}]
    first, *others = (message.usage for message in messages(client, *[{"system": system}] * 3))
    assert first.cache_creation is not None and first.cache_creation.ephemeral_1h_input_tokens == 110
    assert (first.cache_creation_input_tokens, first.cache_read_input_tokens) == (110, 0)
    assert [(o.cache_creation_input_tokens, o.cache_read_input_tokens) for o in others] == [(0, 110)] * 2
    assert first.input_tokens == others[0].input_tokens


def test_a_batch_of_errors_alone(client: anthropic.Anthropic) -> None:
    batch = wait(client, create(client, {"max_tokens": 0}, {"temperature": 1}, {"messages": []}).id)
    assert batch.request_counts.errored == 3
    for row in results(client, batch.id):
        assert row.result.type == "errored" and row.result.error.request_id is None
        assert row.result.error.error.type == "invalid_request_error"


def test_errors_arrive_as_the_sdks_own_types(server: LocalServer, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.batches.retrieve("msgbatch_none")
    assert missing.value.type == "not_found_error" and missing.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="requests"):
        client.messages.batches.create(requests=[])
    url = server.url_of("anthropic")
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.batches.list()
    server.set_scenario({"batches": [{"fault": "queue_full"}]})
    with pytest.raises(anthropic.RateLimitError):
        create(client, count=1)
    overloaded = {"on": "list", "fault": "error", "status": 529}
    server.set_scenario({"calls": [overloaded]})
    with pytest.raises(anthropic.APIStatusError) as busy:
        client.messages.batches.list()
    assert (busy.value.status_code, busy.value.type) == (529, "overloaded_error")


def test_the_models_are_listed(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["simulated"]
