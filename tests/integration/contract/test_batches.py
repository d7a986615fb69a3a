"""Batches: what is paid is read however they end, and nothing is sent twice on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Settings, Until
from airflow_batch_llm.core.verdicts import Verdict
from airflow_batch_llm.exceptions import AuthError, NotFound
from tests.integration.contract.wires import MISTRAL, OPENAI, Wire
from tests.integration.engine.kills import die_at, was_killed
from tests.job_bench import QUICK, Bench

Job = Callable[..., Bench]
Creates = Callable[[Wire], int]
TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(8)}
HALFWAY = {"pace": {"seconds": 3600, "hold_at": 0.5}}
SHORT = Settings(create_timeout=1.0, lease_margin=600.0, look_apart=0.2, queue_wait=0.1)


def submitted(made: Bench) -> str:
    """Submit the job's one batch and return its id at the provider."""
    made.step(Until.ENDED, submitting=True)
    (batch,) = made.batches()
    assert batch.state is BatchState.SUBMITTED and batch.provider_batch_id
    return batch.provider_batch_id


# -- how they end ----------------------------------------------------------------------------------
def test_what_an_expired_batch_answered_lands_and_only_the_rest_is_sent_again(
    wire: Wire, job: Job, creates: Creates
) -> None:
    made = job(wire, texts=TEXTS, policy=RowRetry(max_rounds=0))
    made.server.set_scenario({"batches": [{"fault": "expire", "after": 0.5, "times": 1}]})
    settled = made.run()
    assert settled.counts["answered"] == len(TEXTS) and creates(wire) == 2
    again = 4 if wire.keeps_partial else 8
    assert [batch.requests for batch in made.batches()] == [8, again]
    first = made.batches()[0]
    assert first.counts.get(Verdict.EXPIRED.value) == again, "which charges no row an attempt"
    if wire.keeps_partial:
        made.assert_accounted()


def test_what_a_batch_answered_before_somebody_cancelled_it_lands_and_a_person_decides_on_the_rest(
    wire: Wire, job: Job, creates: Creates
) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario(HALFWAY)
    provider_id = submitted(made)
    made.server.wait_until_held()
    made.call(lambda engine: made.backend(made.server).cancel(provider_id))
    halted = made.retry().run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-032")
    assert len(made.answers()) == (4 if wire.keeps_partial else 0) and made.letters() == []
    made.server.set_scenario({})
    made.ledger.resume_job(made.job(), actor="ann", reason="cancelled by mistake")
    assert made.run().counts["answered"] == len(TEXTS) and creates(wire) == 2


@pytest.mark.parametrize("loser", [OPENAI, MISTRAL], ids=lambda wire: wire.name)
def test_an_answer_that_was_lost_with_a_cancel_is_asked_for_again(
    loser: Wire, job: Job, creates: Creates
) -> None:
    made = job(loser, texts=TEXTS)
    made.server.set_scenario({"pace": {"seconds": 3600, "hold_at": 0.5, "cancel_loses": 1}})
    provider_id = submitted(made)
    made.server.wait_until_held()
    made.call(lambda engine: made.backend(made.server).cancel(provider_id))
    assert made.retry().run().state is JobState.HALTED
    assert len(made.answers()) == 3, "the fourth was counted, and stands in no file"
    made.server.set_scenario({})
    made.ledger.resume_job(made.job(), actor="ann", reason="cancelled by mistake")
    assert made.run().counts["answered"] == len(TEXTS) and creates(loser) == 2
    assert [batch.requests for batch in made.batches()] == [8, 5]


def test_a_cancel_is_asked_for_once_more_without_harm(wire: Wire, job: Job) -> None:
    async def cancel(engine: Any) -> list[Any]:
        backend = made.backend(made.server)
        return [await backend.cancel(provider_id), await backend.cancel(provider_id)]

    made = job(wire, texts=TEXTS)
    made.server.set_scenario(HALFWAY)
    provider_id = submitted(made)
    for shown in made.call(cancel):
        assert shown.id == provider_id
    made.server.wait_for("cancelled")
    (last, _) = made.call(cancel)
    assert last.status.terminal


def test_an_unknown_status_counts_as_running(wire: Wire, job: Job, creates: Creates) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario({"pace": {"statuses": ["daydreaming", "daydreaming", "daydreaming"]}})
    assert made.run().counts["answered"] == len(TEXTS) and creates(wire) == 1


def test_a_full_queue_charges_no_row_and_waits(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS, policy=RowRetry(max_rounds=0))
    made.server.set_scenario({"batches": [{"fault": "queue_full", "times": 2}]})
    assert made.run().counts["answered"] == len(TEXTS)
    assert [batch.requests for batch in made.batches()] == [8]
    made.assert_accounted()


def test_a_line_that_the_provider_refuses_is_cut_out_and_the_others_go_on(wire: Wire, job: Job) -> None:
    """Named or not, at the upload, at the create call or later."""
    made = job(wire, texts=TEXTS, policy=RowRetry(max_rounds=0))
    fault = {"fault": "fail_validation", "code": "invalid_request", "line": 3, "times": 1}
    made.server.set_scenario({"batches": [fault]})
    settled = made.run()
    # Where no line is named, halves of the batch are sent, and this time nothing is refused.
    assert settled.counts["answered"] + settled.counts["dead"] == len(TEXTS)
    assert {letter.custom_id: letter.verdict for letter in made.letters()} in (
        {"t-2": Verdict.BAD_REQUEST},
        {},
    )
    assert made.server.summary()["charged"] == settled.counts["answered"]
    made.assert_accounted()


def test_a_file_that_takes_time_to_become_ready_is_waited_for(wire: Wire, job: Job, creates: Creates) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario({"files_ready_after": 2})
    assert made.run().counts["answered"] == len(TEXTS) and creates(wire) == 1
    made.assert_accounted()


def test_results_that_are_gone_are_not_paid_for_again_without_a_person(
    wire: Wire, job: Job, creates: Creates
) -> None:
    made = job(wire, texts=TEXTS, settings=replace(QUICK, gone_after=0.0))
    made.until(Until.ENDED, submitting=True)
    made.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404}]})
    halted = made.run()
    assert (halted.state, halted.halt_code) == (JobState.HALTED, "BLLM-031")
    assert creates(wire) == 1


# -- nothing twice ---------------------------------------------------------------------------------
def test_a_batch_that_was_accepted_without_a_reply_is_found_and_taken_on(
    form: Wire, job: Job, creates: Creates
) -> None:
    made = job(form, texts=TEXTS, settings=SHORT)
    made.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    assert made.run().counts["answered"] == len(TEXTS)
    assert creates(form) == len(made.server.batches()) == 1
    made.assert_accounted()


def test_a_create_call_that_came_to_nothing_is_repeated_only_after_looks(
    wire: Wire, job: Job, creates: Creates
) -> None:
    made = job(wire, texts=TEXTS, settings=SHORT)
    made.server.set_scenario({"calls": [{"on": "create", "fault": "error", "status": 500, "times": 1}]})
    assert made.step(Until.ENDED, submitting=True).reason == "in_doubt"
    assert creates(wire) == 1
    made.expire_leases()
    assert made.run().counts["answered"] == len(TEXTS)
    assert creates(wire) == 2 and len(made.server.batches()) == 1
    made.assert_accounted()


@pytest.mark.parametrize("point", ["submit.after_create", "reconcile.before_outcomes"])
def test_a_process_that_is_killed_pays_for_nothing_twice(wire: Wire, point: str, job: Job) -> None:
    made = job(wire, texts=TEXTS, settings=replace(QUICK, create_timeout=1, lease_margin=0.2))
    assert was_killed(replace(made, fault=die_at(point)).run)
    made.retry().run()
    assert made.job().counts["answered"] == len(TEXTS)
    assert len(made.server.batches()) == 1
    made.assert_accounted()


def test_a_server_that_is_asked_by_its_token_or_list_shows_our_batch(wire: Wire, job: Job) -> None:
    async def look(engine: Any) -> tuple[list[Any], list[Any]]:
        backend = made.backend(made.server)
        listed = await backend.list_recent(stop_at=lambda batch: False)
        found = await backend.find(listed[0].metadata["batch_llm_token"]) if wire.marks else []
        return listed, found

    made = job(wire, texts=TEXTS)
    made.run()
    (batch,) = made.batches()
    listed, found = made.call(look)
    assert listed[0].id == batch.provider_batch_id
    assert listed[0].created_at is not None and listed[0].counts["total"] == len(TEXTS)
    if wire.marks:
        assert [remote.id for remote in found] == [batch.provider_batch_id]


# -- calls -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fault", [{"fault": "cut", "at": 0.6}, {"fault": "reset", "at": 0.4}, {"fault": "dropped"}]
)
def test_results_that_are_cut_off_are_fetched_again_whole(
    form: Wire, fault: dict[str, Any], job: Job
) -> None:
    made = job(form, texts=TEXTS)
    made.server.set_scenario({"calls": [{"on": "download", "times": 1, **fault}]})
    settled = made.run()
    assert settled.counts["answered"] == settled.counts["answered_round_0"] == len(TEXTS)
    made.assert_accounted()


@pytest.mark.parametrize(
    "rule",
    [
        {"on": "poll", "fault": "error", "status": 429, "retry_after": 0, "times": 2},
        {"on": "poll", "fault": "error", "status": 503, "html": True, "times": 1},
        {"on": "download", "fault": "error", "status": 500, "times": 1},
        {"on": "upload", "fault": "dropped", "times": 1},
        {"on": "upload", "fault": "error", "status": 502, "html": True, "times": 1},
    ],
    ids=lambda rule: f"{rule['on']}-{rule.get('status', rule['fault'])}",
)
def test_a_fault_of_a_call_that_is_safe_to_repeat_is_no_fault_of_the_job(
    wire: Wire, rule: dict[str, Any], job: Job, creates: Creates
) -> None:
    made = job(wire, texts=TEXTS)
    made.server.set_scenario({"calls": [rule]})
    settled = made.run()
    assert settled.counts["answered"] == len(TEXTS) and creates(wire) == 1
    made.assert_accounted()


def test_too_many_create_calls_are_waited_for_and_nothing_is_charged(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    rule = {"on": "create", "fault": "error", "status": 429, "retry_after": 0.05, "times": 2}
    made.server.set_scenario({"calls": [rule]})
    assert made.run().counts["answered"] == len(TEXTS)
    assert len(made.server.batches()) == 1
    made.assert_accounted()


def test_a_wrong_key_is_told_before_anything_is_accepted(form: Wire, job: Job) -> None:
    made = job(form, texts=TEXTS, api_key="wrong-key")
    with pytest.raises(AuthError, match="key"):
        made.step(Until.ENDED, submitting=True)
    assert made.server.batches() == []


def test_a_batch_that_the_provider_denies_is_told_as_such(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    made.until(Until.ENDED, submitting=True)
    provider_id = made.batches()[0].provider_batch_id or ""
    unknown = provider_id[:-4] + ("aaaa" if provider_id[-4:] != "aaaa" else "bbbb")
    with pytest.raises(NotFound):
        made.call(lambda engine: made.backend(made.server).retrieve(unknown))


def test_the_connection_test_says_what_it_reached(form: Wire, job: Job) -> None:
    made = job(form)
    assert "127.0.0.1" in made.call(lambda engine: made.backend(made.server).probe())


def test_what_the_provider_holds_can_be_deleted_and_once_more(wire: Wire, job: Job) -> None:
    made = job(wire, texts=TEXTS)
    made.run()
    (batch,) = made.batches()
    files = [str(file["file_id"]) for file in batch.files]
    assert files
    for _ in range(2):
        for file_id in files:
            made.call(lambda engine, file_id=file_id: made.backend(made.server).delete_file(file_id))
    assert made.job().counts["answered"] == len(made.answers()) == len(TEXTS)
