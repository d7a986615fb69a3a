"""LLMock's other faces: Mistral's jobs, Anthropic's message batches, Groq's and Together's files and batches.

Whole jobs of our own clients against a server that somebody else wrote. It is no judge of details: it answers
every row, keeps whatever it is told, and ends a batch that is cancelled without results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.spec import Until
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import QUICK
from tests.peers.bench import PeerBench
from tests.peers.servers import LLMock

TEXTS = {f"t-{n}": f"ticket {n}" for n in range(10)}


@dataclass(frozen=True)
class Face:
    """One of LLMock's protocols.

    :param path: base URL of a client.
    :param batches: the list of batches below the server's root.
    """

    dialect: str
    path: str
    batches: str

    def held(self, server: LLMock) -> list[str]:
        """Return the ids of the batches that the server holds."""
        reply = server.http.get(self.batches, params={"limit": 1000}).raise_for_status()
        return [batch["id"] for batch in reply.json()["data"]]


FACES = (
    Face("mistral", "/mistral", "/mistral/v1/batch/jobs"),
    Face("anthropic", "/anthropic", "/anthropic/v1/messages/batches"),
    Face("groq", "/groq/openai/v1", "/groq/openai/v1/batches"),
    Face("generic", "/together/v1", "/together/v1/batches"),
)


@pytest.fixture(params=FACES, ids=lambda face: face.path)
def face(request: pytest.FixtureRequest, llmock: LLMock) -> Face:
    llmock.forget()
    found: Face = request.param
    return found


def job_over(face: Face, llmock: LLMock, bench_for: Any, **values: Any) -> PeerBench:
    values.setdefault("texts", TEXTS)
    made: PeerBench = bench_for(llmock, dialect=face.dialect, path=face.path, **values)
    return made


def test_a_clean_job_in_several_batches_lands_whole(face: Face, llmock: LLMock, bench_for: Any) -> None:
    before = face.held(llmock)
    job = job_over(face, llmock, bench_for, options={"max_requests": 4})
    assert job.run().state is JobState.SETTLED
    assert [answer.custom_id for answer in job.answers()] == list(TEXTS)
    assert all(answer.output and answer.usage["output"] for answer in job.answers())
    batches = job.batches()
    assert sum(batch.requests for batch in batches) == 10 and len(batches) >= 3
    assert len(face.held(llmock)) == len(before) + len(batches)
    job.assert_accounted()


def test_a_worker_that_dies_after_the_create_call_finds_its_batch_again(
    face: Face, llmock: LLMock, bench_for: Any
) -> None:
    before = face.held(llmock)
    job = job_over(face, llmock, bench_for, settings=replace(QUICK, create_timeout=5, lease_margin=1))
    dying = replace(job, fault=die_at("submit.after_create"))
    assert was_killed(lambda: dying.step(Until.ENDED, submitting=True))
    assert [batch.state for batch in job.batches()] == [BatchState.SUBMITTING]
    job.retry().run()
    assert len(job.answers()) == 10
    assert len(face.held(llmock)) == len(before) + 1
    job.assert_accounted()


def test_a_batch_that_somebody_cancelled_is_a_persons_matter(
    face: Face, llmock: LLMock, bench_for: Any
) -> None:
    job = job_over(face, llmock, bench_for)
    job.step(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    job.call(lambda engine: job.backend(llmock).cancel(batch.provider_batch_id or ""))
    halted = job.retry().run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    assert job.answers() == [] and job.pending() == sorted(TEXTS)
