"""Every fault that LLMock has for the calls of a batch, and its verdict on us: nothing is reported.

With one exception, which is the point of this package. A create call is never repeated before the provider
was asked whether the last one took effect, and the next one carries another token; LLMock, which tells
repeats by their body, takes that for a client that ``gave_up``: a warning, and asserted to be the only one.

Faults of streams, tools and scripted answers do not touch batches.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import AuthError, ProviderError, Refused
from tests.job_bench import QUICK
from tests.peers.bench import PeerBench
from tests.peers.servers import LLMock

UPLOAD, CREATE, POLL = "/v1/files", "/v1/batches", "/v1/batches/batch_*"
FILE, CONTENT = "/v1/files/file-" + "?" * 24, "/v1/files/file-*/content"
TEXTS = {f"t-{n}": f"ticket {n}" for n in range(4)}
#: A create call and its lease are short; what is gone is gone at once.
SETTINGS = replace(QUICK, create_timeout=1, lease_margin=0.2, gone_after=0.0)
RETRYABLE = [408, 409, 429, 500, 502, 503, 504, 529]
FINAL = [400, 401, 403, 404, 422]


@pytest.fixture
def job(llmock: LLMock, bench_for: Any) -> PeerBench:
    """A job whose engine is called every 1.2 s: sooner than the trigger, but past LLMock's Retry-After."""
    llmock.http.delete("/_llmock/scenario")
    llmock.forget()
    made: PeerBench = bench_for(llmock, texts=TEXTS, settings=SETTINGS, between=1.2)
    return made


def fails(path: str, status: int, times: int = 1, **more: Any) -> dict[str, Any]:
    return {"type": "fail", "status": status, "times": times, "match": {"path": path}, **more}


def findings(llmock: LLMock) -> list[tuple[str, str, str]]:
    """Return (severity, code, call) of all that LLMock has against the client."""
    return [(f["severity"], f["code"], f["path"]) for f in llmock.verdict()["findings"]]


def assert_whole(job: PeerBench) -> None:
    assert job.job().state is JobState.SETTLED and len(job.answers()) == len(TEXTS)
    assert job.creates() == 1
    job.assert_accounted()


@pytest.mark.parametrize("status", RETRYABLE)
def test_a_call_that_may_be_repeated_is_repeated_as_the_server_asks(
    llmock: LLMock, job: PeerBench, status: int
) -> None:
    llmock.fault(*(fails(path, status, times=2) for path in (UPLOAD, POLL, FILE, CONTENT)))
    job.run()
    assert llmock.waiting() == [], "every fault was met"
    assert findings(llmock) == []
    assert_whole(job)


@pytest.mark.parametrize("status", RETRYABLE)
def test_a_create_call_is_not_repeated_before_the_provider_was_asked(
    llmock: LLMock, job: PeerBench, status: int
) -> None:
    llmock.fault(fails(CREATE, status, retry_after=1.0))
    job.run()
    calls = [call for call in llmock.calls() if call["path"] == CREATE]
    posts = [index for index, call in enumerate(calls) if call["method"] == "POST"]
    assert [calls[index]["status"] for index in posts] == [status, 200]
    if status != 429:  # a 429 says by itself that nothing was created
        assert any(call["method"] == "GET" for call in calls[posts[0] + 1 : posts[1]])
    assert findings(llmock) == [("warning", "gave_up", f"POST {CREATE}")]
    assert_whole(job)


@pytest.mark.parametrize("path", [UPLOAD, CREATE, POLL, FILE, CONTENT])
def test_a_slow_call_is_given_up_and_made_good(llmock: LLMock, job: PeerBench, path: str) -> None:
    job.options = {"timeout_seconds": 1.0, "transfer_timeout_seconds": 1.0}
    llmock.fault({"type": "delay", "seconds": 2.0, "match": {"path": path}})
    job.run()
    assert llmock.waiting() == []
    assert findings(llmock) == []
    assert_whole(job)


@pytest.mark.parametrize("status", FINAL)
@pytest.mark.parametrize("path", [UPLOAD, CREATE, POLL, FILE, CONTENT])
def test_a_call_that_is_refused_is_not_repeated_until_somebody_has_mended_it(
    llmock: LLMock, job: PeerBench, path: str, status: int
) -> None:
    llmock.fault(fails(path, status))
    refused: ProviderError | None = None
    try:
        job.run()
    except (AuthError, Refused) as error:
        refused = error
    assert llmock.waiting() == []
    assert findings(llmock) == []
    assert isinstance(refused, AuthError) == (status in (401, 403))
    # Somebody mends it, and has the task tried again; a job that was halted is cleared.
    llmock.forget()
    if job.ledger.get_hold(job.conn_id) is not None:
        job.ledger.release_connection(job.conn_id, actor="somebody", reason="mended")
    mended = job.clear() if job.job().state is JobState.HALTED else job.retry()
    mended.run()
    assert findings(llmock) == []
    assert mended.job().state is JobState.SETTLED and len(mended.answers()) == len(TEXTS)
    mended.assert_accounted()


def test_a_quota_is_kept_to(tmp_path: Path, bench_for: Any) -> None:
    """Ten calls at once, then one in six seconds: LLMock asks for the true wait."""
    with LLMock(tmp_path / "llmock", "--rpm", "10") as strict:
        job = bench_for(strict, texts=TEXTS, settings=SETTINGS, between=0.3)
        job.run()
        assert any(call["status"] == 429 for call in strict.calls())
        assert {found[:2] for found in findings(strict)} <= {("warning", "gave_up")}
        assert all(path == f"POST {CREATE}" for *_, path in findings(strict))
        # Asked last, when there is room for the question.
        assert job.job().state is JobState.SETTLED and len(job.answers()) == len(TEXTS)
        job.assert_accounted()


def test_an_outage_is_sat_out(llmock: LLMock, job: PeerBench) -> None:
    """Nine refused looks; more than ten in a row would be a storm to LLMock, however far apart."""
    job.step(Until.ENDED, submitting=True)
    llmock.fault(fails(POLL, 503, times=9))
    for _ in range(10):
        try:
            job.run()
            break
        except ProviderError:
            job.pause()
    assert findings(llmock) == []
    assert_whole(job)
