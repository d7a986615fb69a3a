"""D07: row ids that the provider will not take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import RequestTemplate
from airflow_batch_llm.core.spec import Until
from tests.integration.cases.anthropic_replay import ReplayAnthropic
from tests.integration.cases.conftest import Case
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import CHAT, Bench

TEMPLATE = RequestTemplate(CHAT, "claude-test", {"max_tokens": 100})
WANTED = {
    "docs/2026-01-25.md#3": "answer to a",
    "k" * 65: "answer to b",
    "a.b": "answer to c",
    "a_b": "answer to d",
    "é": "answer to e",
    "12": "answer to f",
}


@pytest.fixture
def server() -> Iterator[ReplayAnthropic]:
    with ReplayAnthropic() as provider:
        yield provider


@pytest.fixture
def d07(case: Callable[[str], Case], job: Callable[..., Bench], server: ReplayAnthropic) -> Bench:
    rows = case("D07").folder / "rows.jsonl"
    return replace(job(server, rows=rows), provider="anthropic", template=TEMPLATE)


def outputs(bench: Bench) -> dict[str, str]:
    return {answer.custom_id: answer.output for answer in bench.answers()}


def test_d07_every_row_is_answered_under_its_own_id(d07: Bench, server: ReplayAnthropic) -> None:
    settled = d07.run()
    assert settled.counts["answered"] == 6
    assert outputs(d07) == WANTED
    (requests,) = server.sent
    ids = [request["custom_id"] for request in requests]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", wire_id) for wire_id in ids) and len(set(ids)) == 6
    assert {status for _, _, status in server.calls} == {200}
    d07.assert_accounted(list(WANTED))


@pytest.mark.parametrize("point", ["submit.after_submitted", "reconcile.before_outcomes"])
def test_d07_the_ids_survive_the_process_that_made_them(
    d07: Bench, server: ReplayAnthropic, point: str
) -> None:
    assert was_killed(replace(d07, fault=die_at(point)).run)
    resumed = d07.retry()
    resumed.until(Until.ENDED, submitting=True)
    resumed.run()
    assert outputs(resumed) == WANTED and len(server.sent) == 1
    resumed.assert_accounted(list(WANTED))
