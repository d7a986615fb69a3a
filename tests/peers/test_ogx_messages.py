"""OGX's message batches: Anthropic's protocol, worked off by one process in front of a chat server.

It differs from Anthropic: a failed row's error is not nested and names no code, its HTTP status stands in the
text; nothing is checked at the create call but that ids differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, JobState, RequestTemplate
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import CHAT, QUICK
from tests.peers.bench import PeerBench
from tests.peers.chat_server import SLOW, ChatServer
from tests.peers.servers import Ogx
from tests.peers.test_ogx import RATE_LIMIT, SERVER_ERROR, TOO_LONG, assert_paid_once, texts

TEMPLATE = RequestTemplate(CHAT, Ogx.translated_model, {"max_tokens": 100})


@pytest.fixture
def job_with(ogx: Ogx, bench_for: Any) -> Any:
    def make(prompts: dict[str, str], **values: Any) -> PeerBench:
        values.setdefault("template", TEMPLATE)
        made: PeerBench = bench_for(ogx, texts=prompts, dialect="anthropic", path="", **values)
        return made

    return make


def held(ogx: Ogx) -> list[dict[str, Any]]:
    """Return the message batches that OGX holds."""
    reply = ogx.http.get("/v1/messages/batches", params={"limit": 1000}).raise_for_status()
    found: list[dict[str, Any]] = reply.json()["data"]
    return found


def test_a_clean_job_in_several_batches_lands_whole(ogx: Ogx, chat: ChatServer, job_with: Any) -> None:
    before = len(held(ogx))
    job = job_with(texts("clean message"), options={"max_requests": 4})
    assert job.run().state is JobState.SETTLED
    assert {answer.custom_id: answer.output for answer in job.answers()} == {
        custom_id: f"heard {text}" for custom_id, text in job.texts.items()
    }
    assert {(a.usage["input"], a.usage["output"]) for a in job.answers()} == {(3, 4)}
    assert len(held(ogx)) == before + len(job.batches())
    job.assert_accounted()
    assert_paid_once(job, chat)


def test_rows_that_fail_are_told_apart_by_the_status_in_their_text(chat: ChatServer, job_with: Any) -> None:
    prompts = texts("failing message", 4)
    for number, fault in enumerate((SERVER_ERROR, RATE_LIMIT, TOO_LONG)):
        chat.fail(f"failing message {number}", *[fault] * 3)
    job = job_with(prompts, policy=RowRetry(max_rounds=3))
    job.run()
    verdicts = {custom_id: verdict for custom_id, (verdict, _) in job.verdicts(round=0).items()}
    assert verdicts["t-0"] == "server_error" and verdicts["t-1"] == "rate_limited"
    assert verdicts["t-2"] in ("bad_request", "too_large") and verdicts["t-3"] == "ok"
    assert sorted(answer.custom_id for answer in job.answers()) == ["t-0", "t-1", "t-3"]
    job.assert_accounted()


def test_a_worker_that_dies_after_the_create_call_finds_its_batch_again(
    ogx: Ogx, chat: ChatServer, job_with: Any
) -> None:
    before = len(held(ogx))
    job = job_with(texts("found message"), settings=replace(QUICK, create_timeout=5, lease_margin=1))
    dying = replace(job, fault=die_at("submit.after_create"))
    assert was_killed(lambda: dying.step(Until.ENDED, submitting=True))
    assert [batch.state for batch in job.batches()] == [BatchState.SUBMITTING]
    job.retry().run()
    assert len(job.answers()) == 10 and len(held(ogx)) == before + 1
    job.assert_accounted()
    assert_paid_once(job, chat)


def test_what_a_cancelled_batch_answered_lands(ogx: Ogx, chat: ChatServer, job_with: Any) -> None:
    quick, slow = texts("quick message", 3), f"cancelled message {SLOW}"
    chat.hold()
    try:
        job = job_with({**quick, "t-slow": slow})
        job.step(Until.ENDED, submitting=True)
        chat.wait_until_asked([*quick.values(), slow])
        (batch,) = job.batches()
        job.call(lambda engine: job.backend(ogx).cancel(batch.provider_batch_id or ""))
        halted = job.retry().run()
    finally:
        chat.release()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    assert {answer.custom_id for answer in job.answers()} <= set(quick)
    assert job.pending() == sorted({*job.texts} - {answer.custom_id for answer in job.answers()})
