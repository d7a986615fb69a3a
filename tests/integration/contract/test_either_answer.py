"""What nobody has confirmed about the services, or is told in two ways: a job comes to the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Settings, Until
from airflow_batch_llm.core.verdicts import Verdict
from tests.integration.contract.wires import ANTHROPIC, AZURE, GEMINI, MISTRAL, OPENAI, Wire
from tests.job_bench import Bench

Job = Callable[..., Bench]
Creates = Callable[[Wire], int]
TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(8)}
SHORT = Settings(create_timeout=1.0, lease_margin=600.0, look_apart=0.2, queue_wait=0.1)


def named(value: Any) -> str | None:
    return value.name if isinstance(value, Wire) else None


@pytest.mark.parametrize(
    ("over", "quirk"),
    [
        (AZURE, {"type_drift": True}),
        (GEMINI, {"gemini": {"job_states": True, "row_errors": "status"}}),
        (OPENAI, {"absent_file_id": "empty_file"}),
    ],
    ids=named,
)
def test_rows_mean_the_same_however_batches_are_shown(over: Wire, quirk: dict[str, Any], job: Job) -> None:
    made = job(over, texts=TEXTS, policy=RowRetry(max_rounds=1))
    rules = [
        {"match": {"contains": "number 3."}, "fault": "server_error", "times": 1},
        {"match": {"contains": "number 7."}, "fault": "bad_request"},
    ]
    made.server.set_scenario({"rows": rules, **quirk})
    settled = made.run()
    assert (settled.counts["answered"], settled.counts["dead"]) == (7, 1)
    assert [batch.requests for batch in made.batches()] == [8, 1], "only the row that can pass is sent again"
    (letter,) = made.letters()
    assert (letter.custom_id, letter.verdict) == ("t-7", Verdict.BAD_REQUEST)
    made.assert_accounted()


def test_a_lost_batch_is_known_by_its_count_although_counts_move(job: Job, creates: Creates) -> None:
    made = job(ANTHROPIC, texts=TEXTS, settings=SHORT)
    pace = {"seconds": 3600, "hold_at": 0.5, "live_counts": True}
    lost = [{"on": "create", "fault": "lost_reply", "times": 1}]
    made.server.set_scenario({"calls": lost, "pace": pace})
    made.step(Until.ENDED, submitting=True)
    made.server.wait_until_held()
    made.server.release()
    assert made.retry().run().counts["answered"] == len(TEXTS)
    assert creates(ANTHROPIC) == len(made.server.batches()) == 1
    made.assert_accounted()


@pytest.mark.parametrize(
    ("over", "quirk", "kept"),
    [
        (GEMINI, {"gemini": {"cancelled_results": True}}, 4),
        (MISTRAL, {"pace": {"cancel_completes": True}}, 8),
    ],
    ids=named,
)
def test_whatever_a_cancelled_batch_shows_lands_and_only_the_rest_is_sent_again(
    over: Wire, quirk: dict[str, Any], kept: int, job: Job, creates: Creates
) -> None:
    made = job(over, texts=TEXTS)
    pace = {"seconds": 3600, "hold_at": 0.5, **quirk.get("pace", {})}
    made.server.set_scenario(quirk | {"pace": pace})
    made.step(Until.ENDED, submitting=True)
    (batch,) = made.batches()
    made.server.wait_until_held()
    made.call(lambda engine: made.backend(made.server).cancel(batch.provider_batch_id))
    ended = made.retry().run()
    assert len(made.answers()) == kept
    assert (ended.state is JobState.HALTED) == (kept < 8), "where all is answered, nothing is left to decide"
    if ended.state is JobState.HALTED:
        assert ended.halt_code == "BLLM-032", "what somebody else has cancelled is for a person"
        made.server.set_scenario({})
        made.ledger.resume_job(made.job(), actor="ann", reason="cancelled by mistake")
        ended = made.run()
    assert (ended.state, ended.counts["answered"]) == (JobState.SETTLED, len(TEXTS))
    assert [one.requests for one in made.batches()] == ([8, 8 - kept] if kept < 8 else [8])
    assert creates(over) == len(made.batches())


def test_a_row_that_failed_in_a_batch_cancelled_elsewhere_is_not_sent_again_without_a_person(
    job: Job, creates: Creates
) -> None:
    """Although every row has a result, and this one's would be tried again by itself."""
    made = job(MISTRAL, texts=TEXTS)
    pace = {"seconds": 3600, "hold_at": 0.5, "cancel_completes": True}
    failing = {"match": {"contains": "number 7."}, "fault": "server_error", "times": 1}
    made.server.set_scenario({"pace": pace, "rows": [failing]})
    made.step(Until.ENDED, submitting=True)
    (batch,) = made.batches()
    made.server.wait_until_held()
    made.call(lambda engine: made.backend(made.server).cancel(batch.provider_batch_id))
    halted = made.retry().run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    assert len(made.answers()) == 7 and creates(MISTRAL) == 1
    made.server.set_scenario({})
    made.ledger.resume_job(made.job(), actor="ann", reason="cancelled by mistake")
    assert made.run().counts["answered"] == len(TEXTS)


@pytest.mark.parametrize(
    ("over", "rule", "quirk"),
    [
        (GEMINI, {}, {"gemini": {"errors_in_list": True, "retry_delay": 0.1}}),
        (MISTRAL, {"status": 403}, {}),
        (AZURE, {"at_create": True}, {}),
    ],
    ids=named,
)
def test_a_full_queue_is_waited_out_however_it_is_told(
    over: Wire, rule: dict[str, Any], quirk: dict[str, Any], job: Job
) -> None:
    made = job(over, texts=TEXTS, settings=SHORT)
    made.server.set_scenario({"batches": [{"fault": "queue_full", "times": 1, **rule}], **quirk})
    assert made.run().counts["answered"] == len(TEXTS)
    made.assert_accounted()
