"""Rows that bring their own body: sent with others of their model, changed with their round."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from airflow_batch_llm import Image, RowPrompt, RowsSource
from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.sources.base import RowReader
from tests.job_bench import Bench

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


class _Pictures(RowReader):
    """Rows as a database gives them, bytes included."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__(["id"], "pictures")
        self._rows = rows

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return iter(enumerate(self._rows, start=1))


def _drafts(prompt: RowPrompt, rows: list[dict[str, Any]]) -> Callable[[], Iterator[Draft]]:
    return lambda: RowsSource(rows, key="id").resolve({}).drafts(prompt.resolve({}))


def _body(text: str, **members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **members}


def _sent(job: Bench, round_: int) -> dict[str, dict[str, Any]]:
    lines = [
        json.loads(line)
        for batch in job.batches()
        if batch.round == round_
        for line in (job.root / batch.path).read_bytes().splitlines()
    ]
    return {line["custom_id"]: line["body"] for line in lines}


def test_rows_that_name_models_are_sent_in_batches_of_one_model(bench: Callable[..., Bench]) -> None:
    rows = [
        {"id": "a", "request": _body("one", model="m-7")},
        {"id": "b", "request": json.dumps(_body("two"))},
        {"id": "c", "request": _body("three", model="m-8", max_tokens=50)},
        {"id": "d", "request": "not JSON"},
        {"id": "e", "request": _body("five", model="m-7", stream=True)},
    ]
    job = bench(drafts=_drafts(RowPrompt(body_column="request"), rows))

    job.run()

    assert sorted(batch.model for batch in job.batches()) == ["m-1", "m-7", "m-8"]
    assert {answer.custom_id: answer.model for answer in job.answers()} == {
        "a": "m-7",
        "b": "m-1",
        "c": "m-8",
    }
    assert job.open_letters() == {"d": "body_shape", "e": "stream"}
    job.assert_accounted(["a", "b", "c", "d", "e"])


def test_a_row_that_cannot_be_sent_is_told_with_the_reason(bench: Callable[..., Bench]) -> None:
    rows = [{"id": "a", "request": _body("one")}, {"id": "b", "request": _body("two", stream=True)}]
    job = bench(drafts=_drafts(RowPrompt(body_column="request"), rows))

    job.run()

    (letter,) = job.ledger.dead_letters(job.key.job_id)
    assert (letter.custom_id, letter.code) == ("b", "stream")
    assert "remove 'stream'" in letter.message and "BLLM" not in letter.message


def test_what_a_row_says_itself_is_changed_with_its_round(bench: Callable[..., Bench]) -> None:
    rows = [
        {"id": "limit", "request": _body("cut me", max_tokens=50)},
        {"id": "other", "request": _body("empty me", model="m-7", max_tokens=50)},
        {"id": "plain", "request": _body("cut me too")},
    ]
    job = bench(
        drafts=_drafts(RowPrompt(body_column="request"), rows),
        policy=RowRetry(max_rounds=1, escalate_to="m-9"),
    )
    job.server.set_scenario(
        {
            "rows": [
                {"match": {"contains": "cut me"}, "fault": "truncated", "times": 1},
                {"match": {"contains": "empty me"}, "fault": "empty", "times": 1},
            ]
        }
    )

    done = job.run()

    assert done.counts["answered"] == 3
    assert _sent(job, 0)["other"] == rows[1]["request"]
    again = _sent(job, 1)
    assert again["limit"] == _body("cut me", max_tokens=200), "the task's 100, doubled, goes before its own"
    assert again["other"] == _body("empty me", model="m-9", max_tokens=50)
    assert again["plain"] == _body("cut me too")
    assert {answer.custom_id: answer.model for answer in job.answers()}["other"] == "m-9"


def test_a_row_whose_image_cannot_be_sent_dies_and_the_others_go_on(bench: Callable[..., Bench]) -> None:
    rows = [{"id": "a", "photo": PNG}, {"id": "b", "photo": b"text"}, {"id": "c", "photo": None}]
    prompt = RowPrompt("What is it?", images=[Image(column="photo")])
    job = bench(drafts=lambda: _Pictures(rows).drafts(prompt.resolve({})))

    job.run()

    assert [answer.custom_id for answer in job.answers()] == ["a"]
    assert job.open_letters() == {"b": "image_kind", "c": "image_missing"}
    url = _sent(job, 0)["a"]["messages"][0]["content"][1]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,iVBOR")
