"""LLMock: a mock of OpenAI's files and batches that breaks calls on demand and judges the client.

Its batches answer every row, and take three seconds for it. It differs from OpenAI: nothing is checked
before a batch runs; a batch that is cancelled has no results; files and batches are in its memory only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import QUICK
from tests.peers.servers import LLMock

TEXTS = {f"t-{n}": f"ticket {n}" for n in range(10)}


@dataclass(frozen=True)
class Quotes:
    """A schema that takes texts which quote the prompt, as some of LLMock's do."""

    json_schema: Mapping[str, Any] = field(default_factory=dict)
    name: str = "quotes"
    fingerprint: str = "quotes"

    def parse(self, text: str) -> Any:
        if "ticket" not in text:
            raise ValueError("does not quote the prompt")
        return {"quote": text}

    read = parse


@pytest.fixture(autouse=True)
def _fresh(llmock: LLMock) -> None:
    llmock.forget()


@pytest.mark.parametrize("dialect", ["openai", "generic"])
def test_a_clean_job_in_several_batches_lands_whole(llmock: LLMock, bench_for: Any, dialect: str) -> None:
    job = bench_for(llmock, texts=TEXTS, dialect=dialect, options={"max_requests": 4})
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["request_counts"]["total"] for batch in job.remote()) == [2, 4, 4]
    assert len(job.answers()) == 10 and all(answer.output for answer in job.answers())
    job.assert_accounted()
    assert llmock.verdict()["findings"] == []


def test_rows_whose_answers_do_not_fit_are_sent_again_to_another_model(
    llmock: LLMock, bench_for: Any
) -> None:
    job = bench_for(
        llmock,
        texts={f"t-{n}": f"ticket {n}" for n in range(24)},
        judge=Judge(Quotes()),
        policy=RowRetry(max_rounds=2, escalate_to="another-model"),
        options={"max_requests": 16},
    )
    assert job.run().state is JobState.SETTLED
    misfits = [
        {custom_id for custom_id, (verdict, _) in job.verdicts(round=number).items() if verdict != "ok"}
        for number in range(3)
    ]
    assert set(job.texts) > misfits[0] > misfits[1] == misfits[2] == set(job.open_letters()) != set()
    assert {answer.model for answer in job.answers()} == {LLMock.model, "another-model"}
    job.assert_accounted()
    assert llmock.verdict()["findings"] == []


def test_a_worker_that_dies_after_the_create_call_finds_its_batch_again(
    llmock: LLMock, bench_for: Any
) -> None:
    job = bench_for(llmock, texts=TEXTS, fault=die_at("submit.after_create"))
    assert was_killed(lambda: job.step(Until.ENDED, submitting=True))
    later = job.retry(fault=lambda point: None)
    assert later.run().state is JobState.SETTLED
    assert later.creates() == 1
    later.assert_accounted()
    assert llmock.verdict()["findings"] == []


def test_a_batch_that_somebody_else_cancels_halts_and_can_be_resumed(llmock: LLMock, bench_for: Any) -> None:
    job = bench_for(llmock, texts=TEXTS)
    job.step(Until.ENDED, submitting=True)
    llmock.http.post(f"/v1/batches/{job.remote()[0]['id']}/cancel").raise_for_status()
    halted = job.run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    job.ledger.resume_job(halted, actor="somebody", reason="it was a mistake")
    assert job.run().state is JobState.SETTLED
    assert job.creates() == 2
    job.assert_accounted()


def test_batches_of_a_killed_server_are_lost_and_never_sent_again_unasked(
    llmock: LLMock, bench_for: Any
) -> None:
    job = bench_for(llmock, texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    job.step(Until.ENDED, submitting=True)
    llmock.kill9()
    llmock.restart()
    halted = job.run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-031")
    assert [batch.state for batch in job.batches()] == [BatchState.LOST] and job.creates() == 0
    assert llmock.verdict()["findings"] == []
    cleared = job.clear()
    assert cleared.run().state is JobState.SETTLED
    cleared.assert_accounted()
    assert cleared.creates() == 1
