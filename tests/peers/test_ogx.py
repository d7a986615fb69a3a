"""OGX: real files and batches, worked off by one process in front of a chat server.

It differs from OpenAI: ``response.body`` is a JSON string; a clean batch has an error file of no bytes; a
failed row names no code, its HTTP status stands in the text; a cancel throws finished rows away; a process
that is killed leaves its batches ``in_progress``, and after that a cancel ``cancelling``, for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import OnDeadline, Until
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import drafts_of
from tests.peers.bench import PeerBench
from tests.peers.chat_server import SLOW, ChatServer
from tests.peers.servers import Ogx

SERVER_ERROR = (500, {"message": "boom", "type": "server_error", "code": None})
RATE_LIMIT = (429, {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"})
TOO_LONG = (400, {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"})


def texts(name: str, number: int = 10) -> dict[str, str]:
    """Return prompts that no other test asks for."""
    return {f"t-{n}": f"{name} {n}" for n in range(number)}


def assert_paid_once(job: PeerBench, chat: ChatServer) -> None:
    """Each answered row was answered once by the model; each dead one never."""
    answered = {answer.custom_id for answer in job.answers()}
    times = {custom_id: chat.answered[text] for custom_id, text in job.texts.items()}
    assert times == {custom_id: int(custom_id in answered) for custom_id in job.texts}


@pytest.mark.parametrize("dialect", ["openai", "generic", "ogx"])
def test_a_clean_job_in_several_batches_lands_whole(
    ogx: Ogx, chat: ChatServer, bench_for: Any, dialect: str
) -> None:
    job = bench_for(ogx, texts=texts(f"clean {dialect}"), dialect=dialect, options={"max_requests": 4})
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["request_counts"]["total"] for batch in job.remote()) == [2, 4, 4]
    assert {answer.custom_id: answer.output for answer in job.answers()} == {
        custom_id: f"heard {text}" for custom_id, text in job.texts.items()
    }
    assert {(a.usage["input"], a.usage["output"]) for a in job.answers()} == {(3, 4)}
    for batch in job.batches():
        assert {file["kind"]: file["bytes"] > 0 for file in batch.files} == {"output": True, "error": False}
    job.assert_accounted()
    assert_paid_once(job, chat)


def test_rows_that_fail_are_told_apart_by_the_status_in_their_text(
    ogx: Ogx, chat: ChatServer, bench_for: Any
) -> None:
    job = bench_for(ogx, texts=texts("faulty"), options={"max_requests": 6}, policy=RowRetry(max_rounds=2))
    chat.fail("faulty 1", SERVER_ERROR)
    chat.fail("faulty 2", RATE_LIMIT, RATE_LIMIT)
    chat.fail("faulty 3", *[SERVER_ERROR] * 9)
    chat.fail("faulty 4", TOO_LONG)
    drafts = drafts_of(job.texts)
    drafts[5] = replace(drafts[5], body=drafts[5].body | {"temperature": "hot"})
    job.drafts = lambda: iter(drafts)
    assert job.run().state is JobState.SETTLED
    first = job.verdicts(round=0)
    assert {custom_id: verdict for custom_id, (verdict, _) in first.items() if verdict != "ok"} == {
        "t-1": "server_error",
        "t-2": "rate_limited",
        "t-3": "server_error",
        "t-4": "bad_request",
        "t-5": "bad_request",
    }
    assert {custom_id for custom_id, (verdict, _) in job.verdicts(round=1).items() if verdict == "ok"} == {
        "t-1"
    }
    assert set(job.open_letters()) == {"t-3", "t-4", "t-5"}
    assert (chat.asked["faulty 3"], chat.asked["faulty 4"], chat.asked["faulty 5"]) == (3, 1, 0)
    job.assert_accounted()
    assert_paid_once(job, chat)


def test_a_model_that_ogx_does_not_have_halts_the_job_once(
    ogx: Ogx, chat: ChatServer, bench_for: Any
) -> None:
    job = bench_for(ogx, texts=texts("no model", 3))
    job.template = replace(job.template, model="chat/no-such")
    halted = job.run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-023")
    assert job.creates() == 1 and len(job.pending()) == 3
    again = job.clear(template=replace(job.template, model=Ogx.model))
    assert again.run().state is JobState.SETTLED
    again.assert_accounted()
    assert_paid_once(again, chat)


def test_an_upload_that_is_gone_is_sent_again(ogx: Ogx, chat: ChatServer, bench_for: Any) -> None:
    deleted: list[str] = []

    def fault(point: str) -> None:
        if point == "submit.before_create" and not deleted:
            (batch,) = job.batches()
            ogx.http.delete(f"/v1/files/{batch.input_file_id}").raise_for_status()
            deleted.append(batch.input_file_id)

    job = bench_for(ogx, texts=texts("gone upload", 3), fault=fault)
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["status"] for batch in job.remote()) == ["completed", "failed"]
    job.assert_accounted()
    assert_paid_once(job, chat)


def test_a_worker_that_dies_after_the_create_call_finds_its_batch_again(
    ogx: Ogx, chat: ChatServer, bench_for: Any
) -> None:
    job = bench_for(ogx, texts=texts("lost worker", 4), fault=die_at("submit.after_create"))
    assert was_killed(lambda: job.step(Until.ENDED, submitting=True))
    later = job.retry(fault=lambda point: None)
    assert later.run().state is JobState.SETTLED
    assert later.creates() == 1
    later.assert_accounted()
    assert_paid_once(later, chat)


def held_back(job: PeerBench, chat: ChatServer) -> None:
    """Submit the job and wait until its slow rows are with the model, which keeps them."""
    chat.hold()
    job.step(Until.ENDED, submitting=True)
    chat.wait_until_asked([text for text in job.texts.values() if SLOW in text])


def test_a_batch_that_somebody_else_cancels_halts_and_can_be_resumed(
    ogx: Ogx, chat: ChatServer, bench_for: Any
) -> None:
    job = bench_for(ogx, texts=texts("cancelled", 3) | {"t-9": f"cancelled {SLOW}"})
    held_back(job, chat)
    (remote,) = job.remote()
    ogx.http.post(f"/v1/batches/{remote['id']}/cancel").raise_for_status()
    halted = job.run()
    chat.release()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    # What was answered before is thrown away by OGX: there is no file to read.
    assert job.pending() == sorted(job.texts) and job.remote()[0]["output_file_id"] is None
    job.ledger.resume_job(halted, actor="somebody", reason="it was a mistake")
    assert job.run().state is JobState.SETTLED
    job.assert_accounted()
    assert job.creates() == 2


def test_a_job_past_its_time_is_cancelled_and_a_clear_sends_it_again(
    ogx: Ogx, chat: ChatServer, bench_for: Any
) -> None:
    job = bench_for(ogx, texts={"t-0": f"overdue {SLOW}"}, job_timeout=3600.0)
    held_back(job, chat)
    let_time_pass(job, "deadline_at", "batch_llm_job")
    assert job.retry().run().state is JobState.SETTLED
    chat.release()
    assert job.remote()[0]["status"] == "cancelled" and set(job.open_letters()) == {"t-0"}
    job.assert_accounted()
    cleared = job.clear(job_timeout=3600.0)
    assert cleared.run().counts["answered"] == 1
    cleared.assert_accounted()
    assert job.creates() == 2


def killed(ogx: Ogx, chat: ChatServer, job: PeerBench) -> None:
    """Kill OGX while it works on two batches of the job, and start it again."""
    held_back(job, chat)
    ogx.kill9()
    chat.release()
    ogx.restart()
    assert [batch["status"] for batch in job.remote()] == ["in_progress", "in_progress"]


def test_a_job_can_end_halted_although_its_batches_never_end(
    ogx: Ogx, chat: ChatServer, bench_for: Any
) -> None:
    slow = {f"t-{n}": f"stuck {SLOW} {n}" for n in range(2)}
    job = bench_for(
        ogx, texts=slow, options={"max_requests": 1}, job_timeout=3600.0, on_deadline=OnDeadline.FAIL
    )
    killed(ogx, chat, job)
    let_time_pass(job, "deadline_at", "batch_llm_job")
    halted = job.retry().run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-043")
    assert job.pending() == sorted(slow) and job.creates() == 2


def test_batches_that_a_killed_server_neither_ends_nor_cancels_are_sent_again_in_the_end(
    ogx: Ogx, chat: ChatServer, bench_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench_for(
        ogx,
        texts=texts("killed", 3) | {"t-8": f"killed {SLOW} 1", "t-9": f"killed {SLOW} 2"},
        options={"max_requests": 4},
    )
    killed(ogx, chat, job)
    let_time_pass(job, "submitted_at", "batch_llm_batch")
    job.step(Until.ENDED)
    assert job.actions().count("cancel_asked") == 2
    job.step(Until.ENDED)
    assert [batch["status"] for batch in job.remote()] == ["cancelling", "cancelling"]
    assert {batch.state for batch in job.batches()} == {BatchState.SUBMITTED}
    # An hour later, the window being over, nothing can be at work on them any more.
    later = replace(
        DIALECTS["generic"],
        limits=replace(DIALECTS["generic"].limits, window_seconds=0.0),
        cancel_seconds=0.0,
    )
    monkeypatch.setitem(DIALECTS, "generic", later)
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["status"] for batch in job.remote()) == ["cancelling"] * 2 + ["completed"] * 2
    job.assert_accounted()


def let_time_pass(job: PeerBench, column: str, table: str) -> None:
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {table} SET {column} = {column} - 1000000")


def test_ids_and_texts_of_any_kind_come_back_as_they_were(ogx: Ogx, chat: ChatServer, bench_for: Any) -> None:
    odd = {"a b": "ünïcödé 🙂", "x" * 300: "line\nbreak\u2028and more", 'q"uote': "tab\tand \\ and \u0000"}
    job = bench_for(ogx, texts=odd)
    assert job.run().state is JobState.SETTLED
    assert {answer.custom_id: answer.output for answer in job.answers()} == {
        custom_id: f"heard {text}" for custom_id, text in odd.items()
    }
    job.assert_accounted()
