"""Requests are cut into batches by their number, their bytes and, of embeddings, their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, count_inputs
from airflow_batch_llm.core.model import Request, RequestTemplate
from airflow_batch_llm.core.ports import Limits
from airflow_batch_llm.core.shards import ShardWriter, TooLarge
from airflow_batch_llm.storage.workspace import ObjectWorkspace

FIVE_TEXTS = Limits(
    max_requests=4, max_bytes=10_000, max_line_bytes=5_000, window_seconds=86_400, max_inputs=5
)


def cut(folder: Path, inputs: list[Any], endpoint: str = EMBEDDINGS) -> tuple[list[int], list[Any]]:
    """Return how many requests each batch got, and which inputs are too large alone."""
    too_large = []
    with ShardWriter(
        ObjectWorkspace(folder),
        "job",
        "plan",
        template=RequestTemplate(endpoint, "m", native=True),
        limits=FIVE_TEXTS,
        encoder=lambda template: lambda wire_id, body: body,
    ) as shards:
        for place, given in enumerate(inputs):
            body = msgspec.Raw(jsonl.dumps({"model": "m", "input": given}))
            try:
                shards.add(Request(f"r-{place}", f"w-{place}", body), model="m")
            except TooLarge:
                too_large.append(given)
        return [plan.requests for plan in shards.plans()], too_large


def test_an_embeddings_batch_holds_no_more_texts_than_the_provider_takes(tmp_path: Path) -> None:
    three = ["a", "b", "c"]
    assert cut(tmp_path / "1", [three, ["d", "e"], "f", three]) == ([2, 2], [])
    assert cut(tmp_path / "2", ["a"] * 5) == ([4, 1], []), "the number of requests counts as well"


def test_a_request_with_too_many_texts_is_too_large_and_stops_no_other(tmp_path: Path) -> None:
    assert cut(tmp_path, ["a", ["x"] * 6, "b"]) == ([2], [["x"] * 6])


def test_other_endpoints_know_no_texts(tmp_path: Path) -> None:
    assert cut(tmp_path, [["x"] * 6, ["x"] * 6], CHAT) == ([2], [])


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        (b'{"input": "a, b"}', 1),
        (b'{"input": ["a"]}', 1),
        (b'{"model": "m", "input": [ "a", "b" ]}', 2),
        (b'{"input": [1, 2, 3]}', 1),
        (b'{"input": [[1, 2], [3]]}', 2),
        (b'{"input": []}', 1),
        (b'{"prompt": "x"}', 1),
        (b"{", 1),
        (b"[]", 1),
        (b"\xff", 1),
    ],
)
def test_tokens_are_one_text_and_a_list_of_texts_is_many(body: bytes, texts: int) -> None:
    assert count_inputs(body) == texts
