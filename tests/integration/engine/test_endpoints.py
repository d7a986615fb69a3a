"""Jobs of the endpoints beside chat, from the drafts to the published answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.endpoints import COMPLETIONS, EMBEDDINGS, MODERATIONS, RESPONSES
from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.server.embeddings import vector
from tests.job_bench import Bench

TEXTS = {"a": "My invoice was charged twice.", "b": "I will kill you.", "c": "Where is my parcel?"}
IDS = list(TEXTS)


def drafts(body_of: Callable[[str], dict[str, Any]]) -> Callable[[], list[Draft]]:
    return lambda: [
        Draft(line=line, custom_id=custom_id, body=body_of(text), row={"text": text}, key={"id": custom_id})
        for line, (custom_id, text) in enumerate(TEXTS.items(), start=1)
    ]


def outputs(job: Bench) -> dict[str, Any]:
    job.run()
    job.assert_accounted(IDS)
    return {answer.custom_id: answer.output for answer in job.answers()}


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_are_published_and_a_row_that_failed_gets_its_own_in_a_later_round(
    bench: Callable[..., Bench], encoding: str
) -> None:
    params = {"dimensions": 16, "encoding_format": encoding}
    job = bench(template=RequestTemplate(EMBEDDINGS, "m-1", params), drafts=drafts(lambda t: {"input": t}))
    job.server.set_scenario({"rows": [{"fault": "empty", "match": {"contains": "parcel"}, "times": 1}]})
    assert outputs(job) == {custom_id: vector(text, 16).tolist() for custom_id, text in TEXTS.items()}
    assert len(job.batches()) == 2


def test_flags_are_answers(bench: Callable[..., Bench]) -> None:
    found = outputs(
        bench(template=RequestTemplate(MODERATIONS, "m-1"), drafts=drafts(lambda t: {"input": t}))
    )
    assert {custom_id: output["flagged"] for custom_id, output in found.items()} == {
        "a": False,
        "b": True,
        "c": False,
    }


@pytest.mark.parametrize(
    ("endpoint", "body_of"),
    [
        (COMPLETIONS, lambda text: {"prompt": text}),
        (RESPONSES, lambda text: {"messages": [{"role": "user", "content": text}]}),
    ],
)
def test_a_truncated_text_is_asked_for_again_with_a_larger_limit(
    bench: Callable[..., Bench], endpoint: str, body_of: Callable[[str], dict[str, Any]]
) -> None:
    job = bench(template=RequestTemplate(endpoint, "m-1", {"max_tokens": 8}), drafts=drafts(body_of))
    found = outputs(job)
    assert all(TEXTS[custom_id] in output for custom_id, output in found.items())
    assert len(job.batches()) > 1


def test_a_row_that_an_endpoint_cannot_take_dies_alone_before_anything_is_sent(
    bench: Callable[..., Bench],
) -> None:
    def body_of(text: str) -> dict[str, Any]:
        return {"input": text, "tools": [{}]} if "kill" in text else {"input": text}

    job = bench(template=RequestTemplate(EMBEDDINGS, "m-1"), drafts=drafts(body_of))
    assert set(outputs(job)) == {"a", "c"}
    assert job.open_letters() == {"b": "tools"}


class WrongNumber:
    """A backend whose server says a vector twice, or leaves one out, while it has ``faults`` left."""

    def __init__(self, backend: Any, faults: list[int]) -> None:
        self._backend, self._faults = backend, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def download(self, batch: Any, file: Any, local: Path) -> None:
        await self._backend.download(batch, file, local)
        if not self._faults:
            return
        change, lines = self._faults.pop(), []
        for line in map(json.loads, local.read_text().splitlines()):
            data = line["response"]["body"]["data"]
            data[:] = [*data, {**data[0], "index": len(data)}] if change > 0 else data[:-1]
            lines.append(json.dumps(line))
        local.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("texts", "change"),
    [("one text", 1), (["two", "texts"], 1), (["two", "texts"], -1), ([5, 6, 7], 1), ([[5], [6]], -1)],
)
def test_vectors_too_many_or_too_few_are_no_answer(
    bench: Callable[..., Bench], texts: Any, change: int
) -> None:
    faults = [change]
    job = bench(
        template=RequestTemplate(EMBEDDINGS, "m-1", native=True),
        drafts=lambda: [Draft(1, "a", {"model": "m-1", "input": texts}, model="m-1")],
        around_backend=lambda backend: WrongNumber(backend, faults),
    )
    done = job.run()
    assert [dict(batch.counts) for batch in job.batches()] == [{"server_error": 1}, {"ok": 1}]
    assert done.counts["answered"] == 1
