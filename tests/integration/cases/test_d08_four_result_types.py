"""D08: four result types, an error one level down, and a type that nobody knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_batch_llm.core.model import LetterState, RequestTemplate
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.cases.anthropic_replay import ReplayAnthropic
from tests.integration.cases.conftest import Case
from tests.job_bench import CHAT, Bench, drafts_of

TEXTS = {f"r-{n}": f"say {n}" for n in range(1, 7)}
TEMPLATE = RequestTemplate(CHAT, "c-1", {"max_tokens": 100})


@pytest.fixture
def played(
    case: Callable[[str], Case], job: Callable[..., Bench], tmp_path: Path
) -> tuple[Bench, ReplayAnthropic]:
    results = (case("D08").folder / "results.jsonl").read_bytes()
    unread = tmp_path / "unread.jsonl"
    with ReplayAnthropic(results, TEXTS) as server:
        bench = replace(
            job(server, rows=unread),
            provider="anthropic",
            template=TEMPLATE,
            drafts=lambda: drafts_of(TEXTS),
        )
        bench.run()
    return bench, server


def test_d08_each_row_comes_to_what_its_type_says(played: tuple[Bench, ReplayAnthropic]) -> None:
    bench, server = played
    assert {answer.custom_id: answer.output for answer in bench.answers()} == {
        "r-1": "A1",
        "r-2": "answer to say 2",
        "r-3": "answer to say 3",
        "r-4": "answer to say 4",
    }
    assert [sorted(texts) for texts in server.texts_sent()] == [
        sorted(TEXTS.values()),
        ["say 2", "say 3", "say 4"],
    ]
    first = bench.batches()[0]
    assert first.counts == {
        "ok": 1, "server_error": 1, "cancelled": 1, "expired": 1, "bad_request": 1, "unknown": 1,
    }  # fmt: skip
    bench.assert_accounted(list(TEXTS))


def test_d08_the_refused_row_is_dead_under_the_inner_type(played: tuple[Bench, ReplayAnthropic]) -> None:
    bench, _ = played
    letters = {letter.custom_id: letter for letter in bench.letters(LetterState.OPEN)}
    assert letters.keys() == {"r-5", "r-6"}
    refused = letters["r-5"]
    assert (refused.verdict, refused.code) == (Verdict.BAD_REQUEST, "invalid_request_error")
    assert refused.message == "max_tokens: too large"


def test_d08_what_nobody_knows_is_kept_and_told(
    played: tuple[Bench, ReplayAnthropic], case: Callable[[str], Case]
) -> None:
    bench, _ = played
    (letter,) = [letter for letter in bench.letters() if letter.custom_id == "r-6"]
    assert (letter.verdict, letter.code) == (Verdict.UNKNOWN, "paused")
    raw = (bench.root / bench.batches()[0].files[0]["path"]).read_bytes()
    kinds = [json.loads(line)["result"]["type"] for line in raw.splitlines()]
    recorded = case("D08").lines("results.jsonl")
    assert kinds == [json.loads(line)["result"]["type"] for line in recorded]
