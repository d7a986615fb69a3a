"""Requests are cut into batches by their number, their bytes and, of embeddings, their texts."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_batch_llm.core import jsonl
from airflow_batch_llm.core.endpoints import CHAT, EMBEDDINGS, count_inputs
from airflow_batch_llm.core.model import BatchPlan, Request, RequestTemplate
from airflow_batch_llm.core.ports import Limits
from airflow_batch_llm.core.shards import ShardWriter, TooLarge, paced
from airflow_batch_llm.exceptions import Refused
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


# -- counts of their own ---------------------------------------------------------------------------
def counts(
    folder: Path, sizes: list[int], *, taken: Collection[int] | None = (), cuts: Collection[int] = ()
) -> tuple[list[int], list[str]]:
    """Return how many requests each batch got, and the ids in the order of the files."""
    limits = Limits(max_requests=6, max_bytes=100, max_line_bytes=100, window_seconds=86_400)
    workspace = ObjectWorkspace(folder)
    with ShardWriter(
        workspace,
        "job",
        "plan",
        template=RequestTemplate(CHAT, "m", native=True),
        limits=limits,
        encoder=lambda template: lambda wire_id, body: body,
        taken=taken,
    ) as shards:
        for place, size in enumerate(sizes):
            if place in cuts:
                shards.cut()
            shards.add(Request(f"r-{place}", f"w-{place}", msgspec.Raw(b"1" * size)), model="m")
        plans = shards.plans()
    ids = []
    for plan in plans:
        data = (folder / "job" / plan.path).read_bytes()
        lines = data.splitlines()
        assert len(lines) == plan.requests and len(data) == plan.bytes
        assert hashlib.sha256(data).hexdigest() == plan.sha256
        decoded = [msgspec.json.decode(line, type=Request) for line in lines]
        assert sum(len(bytes(r.body)) for r in decoded) == plan.upload_bytes <= limits.max_bytes
        assert 1 <= plan.requests <= limits.max_requests
        ids += [r.custom_id for r in decoded]
    return [plan.requests for plan in plans], ids


def test_batches_of_one_job_get_counts_of_their_own(tmp_path: Path) -> None:
    assert counts(tmp_path / "1", [1] * 13)[0] == [6, 5, 2]
    assert counts(tmp_path / "2", [1] * 12)[0] == [6, 5, 1]
    assert counts(tmp_path / "3", [1] * 11)[0] == [6, 5]
    assert counts(tmp_path / "4", [1] * 13, taken=None)[0] == [6, 6, 1], "where marks tell them apart"
    assert counts(tmp_path / "5", [1] * 6, taken=[6])[0] == [5, 1], "the last ones into one more"
    assert counts(tmp_path / "6", [1] * 6, taken=[6, 1])[0] == [4, 2]
    assert counts(tmp_path / "7", [50] * 5)[0] == [2, 1, 2], "two of fifty fill a batch: nothing else is left"
    assert counts(tmp_path / "8", [1] * 4, cuts=[2])[0] == [2, 2], "nor here"
    assert counts(tmp_path / "9", [1] * 8, cuts=[4])[0] == [4, 3, 1]


@given(
    sizes=st.lists(st.integers(1, 60), max_size=40),
    taken=st.sets(st.integers(1, 6)),
    cuts=st.sets(st.integers(0, 40)),
)
@settings(max_examples=60, deadline=None)
def test_whatever_moves_no_request_is_lost_or_changes_places(
    sizes: list[int], taken: set[int], cuts: set[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found, ids = counts(Path(folder) / "a", sizes, taken=taken, cuts=cuts)
        assert ids == [f"r-{place}" for place in range(len(sizes))]
        assert (found, ids) == counts(Path(folder) / "b", sizes, taken=taken, cuts=cuts), "each time the same"


# -- so many in an hour ----------------------------------------------------------------------------
def test_batches_above_what_an_hour_takes_wait_for_their_hour() -> None:
    plans = [BatchPlan(seq, "p", 1, 1, "", 1, "m", 1, 0) for seq in range(7)]
    limits = replace(FIVE_TEXTS, creates_per_hour=3)
    times = [plan.not_before for plan in paced(plans, limits, 1000.0)]
    assert times == [None] * 3 + [4600.0] * 3 + [8200.0]
    later = [replace(plan, not_before=5000.0) for plan in plans]
    assert [plan.not_before for plan in paced(later, limits, 1000.0)] == [5000.0] * 3 + [8600.0] * 3 + [
        12200.0
    ]
    assert paced(plans, FIVE_TEXTS, 1000.0) == tuple(plans)


def test_a_body_that_an_encoder_cannot_take_is_refused_alone(tmp_path: Path) -> None:
    def encode(wire_id: str, body: bytes) -> bytes:
        if b"odd" in body:
            raise TypeError("unhashable type: 'list'")
        return body

    with ShardWriter(
        ObjectWorkspace(tmp_path),
        "job",
        "plan",
        template=RequestTemplate(CHAT, "m", native=True),
        limits=FIVE_TEXTS,
        encoder=lambda template: encode,
    ) as shards:
        shards.add(Request("r-1", "w-1", msgspec.Raw(b"{}")), model="m")
        with pytest.raises(Refused, match="TypeError") as refused:
            shards.add(Request("r-2", "w-2", msgspec.Raw(b'"odd"')), model="m")
        shards.add(Request("r-3", "w-3", msgspec.Raw(b"{}")), model="m")
        assert refused.value.reason == "unencodable" and "unhashable" not in str(refused.value)
        assert [plan.requests for plan in shards.plans()] == [2]
