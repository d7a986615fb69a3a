"""What the trigger waits with, against the peers: one list call for all batches of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.triggers.waiting import WaitOrder, wait
from tests.peers.bench import PeerBench
from tests.peers.servers import LLMock
from tests.peers.test_aibrix import echoed

TEXTS = {f"t-{n}": f"waited for {n}" for n in range(12)}


def wait_for(job: PeerBench) -> dict[str, Any]:
    """Wait for the job's batches as the trigger does, in its own loop with its own client."""
    order = WaitOrder(
        tuple(batch.provider_batch_id or "" for batch in job.batches()), interval_min=0.5, interval_max=0.5
    )

    async def open_backend() -> Any:
        return job.backend(job.server)

    return asyncio.run(wait(order, job.conn_id, open_backend))


@pytest.mark.parametrize("peer", ["ogx", "llmock", "aibrix"])
def test_six_batches_are_waited_for_with_list_calls(
    peer: str, request: pytest.FixtureRequest, bench_for: Callable[..., PeerBench]
) -> None:
    drafts = echoed(TEXTS) if peer == "aibrix" else None
    server = request.getfixturevalue(peer)
    job = bench_for(server, texts=TEXTS, drafts=drafts, options={"max_requests": 2})
    job.step(Until.ENDED, submitting=True)
    assert wait_for(job) == {"version": 1, "status": "ended", "ended": 6}
    assert job.run().state is JobState.SETTLED and len(job.answers()) == 12
    job.assert_accounted()
    if isinstance(server, LLMock):
        looks = [
            call["path"] for call in server.calls() if call["method"] == "GET" and "files" not in call["path"]
        ]
        assert "/v1/batches" in looks


@pytest.mark.parametrize("status", [429, 503])
def test_llmock_has_nothing_against_how_we_wait(
    llmock: LLMock, bench_for: Callable[..., PeerBench], status: int
) -> None:
    llmock.forget()
    job = bench_for(llmock, texts=TEXTS, options={"max_requests": 2})
    job.step(Until.ENDED, submitting=True)
    llmock.fault({"type": "fail", "status": status, "times": 4, "match": {"path": "/v1/batches"}})
    assert wait_for(job)["status"] == "ended"
    assert llmock.waiting() == [] and llmock.verdict()["findings"] == []
    assert job.run().state is JobState.SETTLED
    job.assert_accounted()
