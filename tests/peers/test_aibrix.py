"""AIBrix's metadata service in its dry run: real files and batches, each request answered by its own body.

So a row's body says what its answer will be. It differs from OpenAI: status ``scheduling``; absent fields
left out; a batch whose window closed is called ``completed``, with an output file that answers 404; a server
that was killed goes on with its batches and loses the rows that it had in hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.backends.dialects import DIALECTS
from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Rerun, Until
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import QUICK, drafts_of
from tests.peers.bench import PeerBench
from tests.peers.servers import AIBrix

#: More rows than AIBrix echoes in some seconds.
MANY = {f"t-{n:03}": f"ticket {n}" for n in range(600)}
FEW = {f"t-{n}": f"ticket {n}" for n in range(10)}


def echoed(texts: dict[str, str], finish: dict[str, str] | None = None) -> Callable[[], list[Draft]]:
    """Return drafts whose bodies are their own answers.

    :param finish: custom_id -> finish reason, where it is not ``stop``.
    """

    def answer(draft: Draft) -> dict[str, Any]:
        message = {"role": "assistant", "content": f"heard {texts[draft.custom_id]}"}
        reason = (finish or {}).get(draft.custom_id, "stop")
        return {
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }

    return lambda: [replace(draft, body=draft.body | answer(draft)) for draft in drafts_of(texts)]


@pytest.fixture
def make(aibrix: AIBrix, bench_for: Callable[..., PeerBench]) -> Callable[..., PeerBench]:
    def bench(texts: dict[str, str], finish: dict[str, str] | None = None, **values: Any) -> PeerBench:
        return bench_for(aibrix, texts=texts, drafts=echoed(texts, finish), **values)

    return bench


def wait_until(job: PeerBench, said: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look at the job's newest batch until it is as wanted."""
    for _ in range(12_000):
        remote = job.remote()[-1]
        if said(remote):
            return remote
        threading.Event().wait(0.01)
    raise AssertionError(f"the batch stays {remote['status']} with {remote.get('request_counts')}")


def some_are_done(remote: dict[str, Any]) -> bool:
    return remote.get("request_counts", {}).get("completed", 0) >= 20


def assert_all_landed(job: PeerBench) -> None:
    assert {answer.custom_id: answer.output for answer in job.answers()} == {
        custom_id: f"heard {text}" for custom_id, text in job.texts.items()
    }
    job.assert_accounted()


@pytest.mark.parametrize("dialect", ["openai", "generic", "aibrix"])
def test_a_clean_job_in_several_batches_lands_whole(make: Callable[..., PeerBench], dialect: str) -> None:
    job = make(FEW, dialect=dialect, options={"max_requests": 4})
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["request_counts"]["total"] for batch in job.remote()) == [2, 4, 4]
    assert {(a.usage["input"], a.usage["output"]) for a in job.answers()} == {(3, 4)}
    assert_all_landed(job)


def test_rows_without_a_good_answer_are_sent_again_and_die_in_the_end(make: Callable[..., PeerBench]) -> None:
    finish = {"t-1": "length", "t-2": "content_filter", "t-3": "abort"}
    job = make(FEW, finish, policy=RowRetry(max_rounds=2), options={"max_requests": 6})
    assert job.run().state is JobState.SETTLED
    assert {
        custom_id: verdict for custom_id, (verdict, _) in job.verdicts(round=0).items() if verdict != "ok"
    } == {
        "t-1": "truncated",
        "t-2": "filtered",
        "t-3": "server_error",
    }
    assert set(job.verdicts(round=1)) == set(job.verdicts(round=2)) == {"t-1", "t-3"}
    assert set(job.open_letters()) == set(finish)
    job.assert_accounted()


def test_an_upload_that_is_gone_is_sent_again(aibrix: AIBrix, make: Callable[..., PeerBench]) -> None:
    deleted: list[str] = []

    def fault(point: str) -> None:
        if point == "submit.before_create" and not deleted:
            (batch,) = job.batches()
            aibrix.http.delete(f"/v1/files/{batch.input_file_id}").raise_for_status()
            deleted.append(batch.input_file_id)

    job = make(FEW, fault=fault)
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["status"] for batch in job.remote()) == ["completed", "failed"]
    assert_all_landed(job)


def test_a_line_that_is_refused_dies_and_takes_no_other_with_it(make: Callable[..., PeerBench]) -> None:
    job = make(FEW)
    whole = job.drafts()
    faulty = replace(whole[3], body={name: x for name, x in whole[3].body.items() if name != "messages"})
    job.drafts = lambda: [*whole[:3], faulty, *whole[4:]]
    assert job.run().state is JobState.SETTLED
    assert job.open_letters() == {"t-3": "validation_error"}
    assert sorted(batch["status"] for batch in job.remote()) == ["completed", "failed"]
    job.assert_accounted()


def test_a_worker_that_dies_after_the_create_call_finds_its_batch_again(
    make: Callable[..., PeerBench],
) -> None:
    job = make(FEW, fault=die_at("submit.after_create"))
    assert was_killed(lambda: job.step(Until.ENDED, submitting=True))
    later = job.retry(fault=lambda point: None)
    assert later.run().state is JobState.SETTLED
    assert later.creates() == 1
    assert_all_landed(later)


def test_what_a_cancelled_batch_had_answered_lands(aibrix: AIBrix, make: Callable[..., PeerBench]) -> None:
    job = make(MANY)
    job.step(Until.ENDED, submitting=True)
    remote = wait_until(job, some_are_done)
    aibrix.http.post(f"/v1/batches/{remote['id']}/cancel").raise_for_status()
    halted = job.run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    landed = len(job.answers())
    assert 20 <= landed < len(MANY) and len(job.pending()) == len(MANY) - landed
    job.ledger.resume_job(halted, actor="somebody", reason="it was a mistake")
    assert job.run().state is JobState.SETTLED
    assert sorted(batch["request_counts"]["total"] for batch in job.remote()) == sorted(
        [len(MANY), len(MANY) - landed]
    )
    assert_all_landed(job)


def test_a_server_that_was_killed_loses_rows_and_they_are_sent_again(
    aibrix: AIBrix, make: Callable[..., PeerBench]
) -> None:
    job = make(MANY)
    job.step(Until.ENDED, submitting=True)
    wait_until(job, some_are_done)
    aibrix.kill9()
    aibrix.restart()
    assert job.run().state is JobState.SETTLED
    first = job.verdicts(round=0)
    assert {verdict for verdict, _ in first.values()} <= {"ok", "missing"}
    lost = [custom_id for custom_id, (verdict, _) in first.items() if verdict == "missing"]
    assert set(job.verdicts(round=1)) == set(lost)
    assert_all_landed(job)


def test_a_window_that_closed_is_called_completed_and_its_results_are_not_there(
    aibrix: AIBrix, make: Callable[..., PeerBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    shortest = replace(DIALECTS["generic"], completion_window="1m")  # AIBrix takes nothing shorter
    monkeypatch.setitem(DIALECTS, "generic", shortest)
    job = make(MANY, settings=replace(QUICK, gone_after=1.0))
    job.step(Until.ENDED, submitting=True)
    remote = wait_until(job, some_are_done)
    aibrix.suspend()
    while time.time() <= remote["expires_at"]:
        threading.Event().wait(0.5)
    aibrix.resume()
    halted = job.run()
    (remote,) = job.remote()
    assert remote["status"] == "completed" and 0 < remote["request_counts"]["completed"] < len(MANY)
    assert aibrix.http.get(f"/v1/files/{remote['output_file_id']}/content").status_code == 404
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-031")
    assert job.pending() == sorted(MANY), "whether they are paid for again is a person's decision"
    assert {batch.state for batch in job.batches()} == {BatchState.RECONCILED}
    monkeypatch.undo()
    cleared = job.clear(rerun=Rerun.MISSING)
    assert cleared.run().state is JobState.SETTLED
    assert_all_landed(cleared)
