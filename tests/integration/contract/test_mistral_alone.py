"""What only Mistral does: reads that lag behind the create call, and a whole file refused for one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_batch_llm.core.drafts import Draft
from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.contract.wires import MISTRAL, MISTRAL_INLINE, Wire
from tests.job_bench import QUICK, Bench

Job = Callable[..., Bench]
Creates = Callable[[Wire], int]

TEXTS = {f"t-{n}": f"ticket {n}" for n in range(6)}


def test_a_batch_that_is_not_found_by_its_id_yet_is_not_taken_for_lost(job: Job, creates: Creates) -> None:
    """Although no time is allowed for it, and by another process too."""
    made = job(MISTRAL, texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    made.server.set_scenario({"pace": {"hidden": 1_000}})
    made.step(Until.ENDED, submitting=True)
    assert [batch.state is not BatchState.LOST for batch in made.batches()] == [True]
    assert made.retry().run().state is JobState.SETTLED
    assert made.job().counts["answered"] == len(TEXTS)
    assert creates(MISTRAL) == 1
    assert any(call["status"] == 404 for call in made.server.requests("GET") if "/jobs/" in call["path"])


def faulty(number: int) -> Callable[[], list[Draft]]:
    """Native bodies of which one has a role that Mistral does not know."""

    def body(place: int) -> dict[str, Any]:
        role = "prophet" if place == number else "user"
        return {"messages": [{"role": role, "content": f"ticket {place}"}]}

    return lambda: [
        Draft(line=place, custom_id=f"t-{place}", body=body(place), row={"id": place}, key={"id": place})
        for place in range(1, 7)
    ]


def one_dies(made: Bench, wire: Wire, creates: int) -> None:
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (5, 1)
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict) == ("t-3", Verdict.BAD_REQUEST)
    assert creates == sum(call["path"].endswith(wire.creates) for call in made.server.requests("POST"))


def test_a_line_that_mistral_refuses_dies_alone_without_a_search(job: Job) -> None:
    template = MISTRAL.template(native=True, params={})
    made = job(MISTRAL, drafts=faulty(3), template=template, policy=RowRetry(max_rounds=0))
    one_dies(made, MISTRAL, creates=1)
    uploads = [call for call in made.server.requests("POST") if call["path"].endswith(MISTRAL.uploads)]
    assert len(uploads) <= 4  # all, one line alone (twice at most), the others


def test_requests_that_go_along_are_refused_line_by_line_as_well(job: Job) -> None:
    template = MISTRAL_INLINE.template(native=True, params={})
    made = job(MISTRAL_INLINE, drafts=faulty(3), template=template, policy=RowRetry(max_rounds=0))
    one_dies(made, MISTRAL_INLINE, creates=2)
