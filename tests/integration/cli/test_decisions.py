"""``cancel``, ``adopt``, ``abandon`` and ``accept`` on jobs at a real server; the tasks are the bench's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.core.by_hand import acceptance_of, accepted_halt, settle_accepted, what_runs
from airflow_batch_llm.core.doubts import token
from airflow_batch_llm.core.engine import Engine
from airflow_batch_llm.core.model import BatchState, Job, JobState, LetterState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Until
from tests.integration.cli.conftest import SQLITE, Command, define_connection, printed_json
from tests.integration.engine.server_since import ServerSince
from tests.job_bench import QUICK, Bench

pytestmark = [SQLITE, pytest.mark.usefixtures("provider")]

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}
WHO = ("--reason", "as ann says", "--actor", "ann")
GONE_AT_ONCE = replace(QUICK, gone_after=0.0)


def retry_and_settle(job: Bench) -> Job:
    """What clearing the retry task with downstream runs."""
    job.until(Until.RETRIED)
    return job.until(Until.SETTLED)


def settle_as_accepted(job: Bench) -> Job:
    """What clearing the dead_letter task runs, for a job that was accepted."""
    halted = job.until(Until.SETTLED)
    accepted = accepted_halt(halted)
    assert accepted is not None

    def close(engine: Engine) -> Job | None:
        return settle_accepted(engine.tools, halted, accepted)

    settled: Job | None = job.call(close)
    assert settled is not None
    return settled


def last_event(job: Bench, action: str) -> tuple[str, str]:
    event = [e for e in job.ledger.events(job.key.job_id) if e.action == action][-1]
    return event.actor, event.reason


# -- cancel ----------------------------------------------------------------------------------------
def test_cancel_halts_first_and_asks_for_every_batch(bench: Callable[..., Bench], command: Command) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3}, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0.4}})
    job.step(Until.ENDED, submitting=True)
    shown = printed_json(command, "cancel", job.key.job_id, *WHO)
    assert (shown["state"], shown["halt_code"], len(shown["asked"])) == ("halted", "BLLM-032", 2)
    assert "clear task labels.dead_letter of DAG tickets" in shown["next"]
    assert {b.cancel_asked_by for b in job.batches()} == {"ann"}
    assert job.actions().index("halted") < job.actions().index("cancel_asked")
    halted = job.run()
    assert halted.state is JobState.HALTED and halted.halt_code == "BLLM-032"
    paid = job.server.summary()["charged"]
    assert 0 < paid == len(job.answers()) < 6 and job.letters() == []

    assert command("resume", job.key.job_id, *WHO)[0] == 0
    job.server.set_scenario({})
    assert retry_and_settle(job).counts["answered"] == 6
    job.assert_accounted()


@pytest.mark.parametrize("by", ["resume", "clear"])
def test_a_change_of_mind_before_the_cancelled_batch_is_read_sends_its_rows(
    by: str, bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    assert command("cancel", job.key.job_id, *WHO)[0] == 0
    job.server.set_scenario({})
    if by == "resume":
        assert command("resume", job.key.job_id, *WHO)[0] == 0
        settled = retry_and_settle(job)
    else:
        settled = job.clear().run()
    assert settled.state is JobState.SETTLED and settled.counts["answered"] == 6
    assert job.server.summary()["charged"] == 6


def test_cancel_can_be_asked_again_and_a_settled_job_has_nothing_to_cancel(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY, "calls": [{"on": "cancel", "fault": "error", "times": 9}]})
    job.step(Until.ENDED, submitting=True)
    status, _, err = command("cancel", job.key.job_id, *WHO)
    assert status == 7 and "run this again" in err and "BLLM-022" in err
    job.server.set_scenario({})
    assert command("cancel", job.key.job_id, *WHO)[0] == 0
    job.server.wait_for("cancelled")
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert job.run().state is JobState.SETTLED
    status, _, err = command("cancel", job.key.job_id, *WHO)
    assert status == 6 and "is settled" in err


def test_cancel_finds_a_batch_whose_create_call_is_in_doubt(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = in_doubt(bench, pace=HALFWAY)
    shown = printed_json(command, "cancel", job.key.job_id, *WHO)
    assert len(shown["asked"]) == 1 and job.batches()[0].state is BatchState.SUBMITTED
    job.server.wait_for("cancelled")


def test_a_batch_that_may_just_be_created_is_told(bench: Callable[..., Bench], command: Command) -> None:
    job = in_doubt(bench, fault="dropped")
    status, _, err = command("cancel", job.key.job_id, *WHO)
    assert status == 7 and "perhaps being created now" in err
    assert job.job().state is JobState.HALTED


# -- adopt -----------------------------------------------------------------------------------------
def in_doubt(
    bench: Callable[..., Bench], fault: str = "lost_reply", pace: dict[str, Any] | None = None, **values: Any
) -> Bench:
    """Return a job whose create call is in doubt, and whose provider could not be looked through."""
    job = bench(texts=TEXTS, options={"max_retries": 0}, **values)
    calls = [{"on": "create", "fault": fault, "times": 1}, {"on": "list", "fault": "error", "status": 503}]
    job.server.set_scenario({"calls": calls, "pace": pace or {}})
    with pytest.raises(Exception, match="BLLM"):
        job.step(Until.ENDED, submitting=True)
    job.server.set_scenario({"pace": pace or {}})
    assert [b.state for b in job.batches()] == [BatchState.SUBMITTING]
    return job


def test_a_batch_in_doubt_is_adopted_by_its_provider_id(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = in_doubt(bench)
    (there,) = job.server.batches()
    shown = printed_json(command, "adopt", job.key.job_id, "1-0-0", there["id"], *WHO)
    assert (shown["state"], shown["provider_batch_id"], shown["named_by_metadata"]) == (
        "submitted", there["id"], True,
    )  # fmt: skip
    assert last_event(job, "adopted") == ("ann", f"provider batch {there['id']}: as ann says")
    assert job.retry().run().counts["answered"] == 6 and job.creates() == 1
    job.assert_accounted()


def test_a_lost_batch_is_adopted_again_and_its_answers_land(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = lost(bench)
    batch = job.batches()[0]
    status, _, err = command("resume", job.key.job_id, *WHO)
    assert status == 6 and batch.batch_id in err
    assert command("adopt", job.key.job_id, batch.batch_id, batch.provider_batch_id or "", *WHO)[0] == 0
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert retry_and_settle(job).counts["answered"] == 6
    assert job.creates() == 2 and job.server.summary()["charged"] == 6
    job.assert_accounted()


def lost(bench: Callable[..., Bench]) -> Bench:
    """Return a job that is halted because the provider denied its first batch once."""
    job = bench(texts=TEXTS, options={"max_requests": 3}, settings=GONE_AT_ONCE)
    job.server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 404, "times": 1}]})
    assert job.run().halt_code == "BLLM-031"
    assert [b.state for b in job.batches()] == [BatchState.LOST, BatchState.RECONCILED]
    return job


def test_what_is_not_ours_is_not_adopted(
    bench: Callable[..., Bench], command: Command, server: ServerSince, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = in_doubt(bench)
    (ours,) = [b["id"] for b in job.server.batches()]
    other = bench(texts={"x": "one"}, run_id="other")
    other.run()
    theirs = other.batches()[0].provider_batch_id or ""

    def told(batch: str, provider_id: str) -> str:
        status, _, err = command("adopt", job.key.job_id, batch, provider_id, *WHO)
        assert status == 6
        return err

    assert "is batch" in told("1-0-0", theirs)
    assert "knows no batch batch_none" in told("1-0-0", "batch_none")
    assert command("adopt", job.key.job_id, "1-0-9", ours, *WHO)[0] == 4
    stranger = bench(texts={"x": "one"}, run_id="stranger")
    stranger.until(Until.ENDED, submitting=True)
    gone = stranger.batches()[0].provider_batch_id or ""
    forget(stranger)
    assert "another job" in told("1-0-0", gone)
    assert job.batches()[0].state is BatchState.SUBMITTING
    assert command("adopt", job.key.job_id, "1-0-0", ours, *WHO)[0] == 0
    assert "only one in doubt or lost" in told("1-0-0", ours)
    define_connection(monkeypatch, "llm", server, password="wrong")
    beside = in_doubt(bench, run_id="beside")
    status, _, err = command("adopt", beside.key.job_id, "1-0-0", "batch_none", *WHO)
    assert status == 1 and "BLLM-020" in err


def forget(job: Bench) -> None:
    """Let the ledger not know what the job's batches are called at the provider."""
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE batch_llm_batch SET provider_batch_id = 'x-' || batch_id WHERE job_id = ?",
            (job.key.job_id,),
        )


def test_metadata_and_row_counts_must_not_contradict(bench: Callable[..., Bench], command: Command) -> None:
    job = in_doubt(bench)
    batch = job.batches()[0]

    def made(rows: int, **metadata: str) -> str:
        """Make a batch at the provider with somebody's own client."""
        return job.server.make_batch([f"r-{n}" for n in range(rows)], metadata)

    short, unnamed = made(2), made(6)
    right = token(job.job(), batch, 1)
    status, _, err = command("adopt", job.key.job_id, "1-0-0", short, *WHO)
    assert status == 6 and "holds 2 requests" in err
    wrong = made(6, batch_llm_token=right[:-1] + "x")
    status, _, err = command("adopt", job.key.job_id, "1-0-0", wrong, *WHO)
    assert status == 6 and "another batch of this job" in err
    status, out, _ = command("adopt", job.key.job_id, "1-0-0", unnamed, *WHO)
    assert status == 0 and "no metadata of ours" in out


def test_one_provider_id_is_adopted_once_in_the_whole_ledger(
    bench: Callable[..., Bench], command: Command
) -> None:
    one, two = in_doubt(bench), in_doubt(bench, run_id="run-two")
    there = one.server.make_batch([f"r-{n}" for n in range(6)], {})
    assert command("adopt", one.key.job_id, "1-0-0", there, *WHO)[0] == 0
    status, _, err = command("adopt", two.key.job_id, "1-0-0", there, *WHO)
    assert status == 6 and f"is batch {one.batches()[0].batch_id} already" in err


# -- abandon ---------------------------------------------------------------------------------------
def test_an_abandoned_batch_is_sent_again_after_a_resume(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = lost(bench)
    status, _, err = command("abandon", job.key.job_id, "1-0-0", *WHO)
    assert status == 6 and "--yes-pay-again" in err and "adopt costs nothing" in err
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 0
    halted = job.until(Until.SETTLED)
    assert halted.state is JobState.HALTED and job.letters() == [], "its rows are pending, not dead"
    status, _, err = command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)
    assert status == 6 and "nothing it was paid for is missing" in err
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert retry_and_settle(job).counts == {**job.job().counts, "answered": 6, "dead": 0, "pending": 0}
    assert job.creates() == 3 and len(job.answers()) == 6
    assert last_event(job, "written_off") == ("ann", "as ann says")


def test_a_batch_that_never_ends_is_given_up(bench: Callable[..., Bench], command: Command) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3})
    job.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0.4, "cancel_seconds": 600}})
    job.step(Until.ENDED, submitting=True)
    status, _, err = command("abandon", job.key.job_id, "1-0-0", *WHO)
    assert status == 6 and "--yes-pay-again" in err and "not read" in err
    assert job.server.statuses() == ["in_progress", "in_progress"]
    for _ in range(2):
        status, _, err = command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)
        assert status == 7 and "was asked to cancel" in err and "run this again" in err
    assert sorted(job.server.statuses()) == ["cancelling", "in_progress"]
    long_ago(job)
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 0
    assert last_event(job, "written_off") == ("ann", "as ann says")
    job.server.set_scenario({})
    job.server.release(job.batches()[1].provider_batch_id or "")
    done = job.retry().run()
    assert done.counts["answered"] == 6 and done.state is JobState.SETTLED
    assert job.creates() == 3 and sorted(a.custom_id for a in job.answers()) == sorted(TEXTS)


def test_a_running_batch_that_a_cancel_ends_is_read_and_not_given_up(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0))
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 7
    job.server.wait_for("cancelled")
    long_ago(job)
    status, _, err = command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)
    assert status == 6 and "is cancelled at the provider" in err
    halted = job.retry().run()
    assert halted.halt_code == "BLLM-032" and len(job.answers()) == 3


def long_ago(job: Bench) -> None:
    """Let the time that a provider gets to cancel a batch be over."""
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_batch SET cancel_asked_at = cancel_asked_at - 1000")


def test_results_that_are_gone_are_abandoned(bench: Callable[..., Bench], command: Command) -> None:
    job = bench(texts=TEXTS, settings=GONE_AT_ONCE, policy=RowRetry(max_rounds=0))
    job.until(Until.ENDED, submitting=True)
    job.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404}]})
    assert job.until(Until.SETTLED).halt_code == "BLLM-031"
    job.server.set_scenario({})
    assert command("resume", job.key.job_id, *WHO)[0] == 6
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 0
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert retry_and_settle(job).counts["answered"] == 6 and job.creates() == 2
    assert len(job.answers()) == 6


def test_a_batch_of_an_earlier_revision_that_is_lost_in_this_one_counts(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS, settings=GONE_AT_ONCE)
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    cleared = job.clear()
    cleared.server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 404, "times": 1}]})
    assert cleared.run().halt_code == "BLLM-031"
    assert command("resume", job.key.job_id, *WHO)[0] == 6
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 0
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert retry_and_settle(cleared).counts["answered"] == 6 and len(cleared.answers()) == 6


def test_a_create_call_in_doubt_is_given_up_only_when_it_is_surely_over(
    bench: Callable[..., Bench], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__BATCH_LLM__FIND_INTERVAL", "600")
    job = in_doubt(bench, fault="dropped")
    status, _, err = command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)
    assert status == 6 and "perhaps being created now" in err
    job.expire_leases()
    status, _, err = command("abandon", job.key.job_id, "1-0-0", *WHO)
    assert status == 6 and "asked twice" in err and "--yes-pay-again" in err
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 0
    assert last_event(job, "submitting_left") == ("ann", "abandoned: as ann says")
    assert job.retry().run().counts["answered"] == 6
    job.assert_accounted()


def test_a_create_call_that_took_effect_is_never_given_up(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = in_doubt(bench)
    job.expire_leases()
    status, _, err = command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)
    assert status == 6 and "is at the provider as" in err
    assert job.retry().run().counts["answered"] == 6 and job.creates() == 1


# -- accept ----------------------------------------------------------------------------------------
def test_an_accepted_job_settles_with_what_it_has_and_sends_nothing_more(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 2})
    refusal = {"on": "create", "fault": "error", "status": 401, "skip": 2}
    job.server.set_scenario(
        {"calls": [refusal], "rows": [{"match": {"contains": "number 1."}, "fault": "server_error"}]}
    )
    assert job.run().halt_code == "BLLM-020"
    creates = job.creates()
    job.server.set_scenario({})
    shown = printed_json(command, "accept", job.key.job_id, *WHO)
    assert shown["next"].startswith("Now clear task labels.dead_letter of DAG tickets")
    assert last_event(job, "accepted") == ("ann", "as ann says")
    settled = settle_as_accepted(job)
    assert settled.state is JobState.SETTLED and settled.halt_code is None
    assert (settled.counts["answered"], settled.counts["dead"], settled.counts["pending"]) == (3, 3, 0)
    assert job.open_letters() == {"t-1": "server_error", "t-4": "never_sent", "t-5": "never_sent"}
    assert {(x.actor, x.reason) for x in job.letters()} == {("ann", "as ann says")}
    accepted = acceptance_of(settled)
    assert accepted is not None and (accepted.letters, accepted.halted) == (3, False)
    assert job.until(Until.SETTLED).state is JobState.SETTLED and job.creates() == creates
    job.assert_accounted()
    # The rows are not gone for good: a clear is a person's decision, too.
    assert job.clear().run().counts["answered"] == 6
    assert acceptance_of(job.job()) is None
    assert {x.state for x in job.letters()} == {LetterState.RESOLVED}
    job.assert_accounted()


def test_running_batches_are_cancelled_first_or_the_job_is_not_accepted(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": HALFWAY})
    job.step(Until.ENDED, submitting=True)
    status, _, err = command("accept", job.key.job_id, *WHO)
    assert status == 6 and "is running" in err
    job.ledger.halt_job(job.job(), "BLLM-020", "key")
    status, _, err = command("accept", job.key.job_id, *WHO)
    assert status == 6 and "--cancel" in err and acceptance_of(job.job()) is None
    assert command("accept", job.key.job_id, "--cancel", *WHO)[0] == 0
    assert command("accept", job.key.job_id, *WHO)[0] == 6, "once is enough"
    settled = settle_as_accepted(job)
    assert (settled.counts["answered"], settled.counts["dead"]) == (3, 3)
    assert set(job.open_letters().values()) == {"batch_cancelled"}
    job.assert_accounted()


def test_a_resume_takes_an_acceptance_back(bench: Callable[..., Bench], command: Command) -> None:
    job = lost(bench)
    assert command("accept", job.key.job_id, *WHO)[0] == 0
    assert command("abandon", job.key.job_id, "1-0-0", "--yes-pay-again", *WHO)[0] == 0
    assert command("resume", job.key.job_id, *WHO)[0] == 0
    assert acceptance_of(job.job()) is None
    job.ledger.halt_job(job.job(), "BLLM-020", "key")
    assert job.until(Until.SETTLED).state is JobState.HALTED, "nobody has accepted this halt"


def test_rows_of_a_lost_batch_die_when_the_job_is_accepted(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = lost(bench)
    assert command("accept", job.key.job_id, *WHO)[0] == 0
    settled = settle_as_accepted(job)
    assert (settled.counts["answered"], settled.counts["dead"]) == (3, 3)
    assert set(job.open_letters().values()) == {"batch_lost"} and job.creates() == 2
    job.until(Until.RETRIED)
    assert job.creates() == 2, "a clear of later tasks sends nothing either"


def test_accepted_letters_of_a_settled_job_are_counted(bench: Callable[..., Bench], command: Command) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    job.run()
    shown = printed_json(command, "accept", job.key.job_id, *WHO)
    assert shown["accepted_dead_letters"] == 1
    accepted = acceptance_of(job.job())
    assert accepted is not None and (accepted.letters, accepted.actor) == (1, "ann")


def test_letters_that_were_accepted_say_nothing_about_a_halt_in_a_later_re_drive(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request"}]})
    job.run()
    assert command("accept", job.key.job_id, *WHO)[0] == 0
    job.server.set_scenario({"pace": {"seconds": 600, "hold_at": 0}})
    assert command("dead-letters", "redrive", job.key.job_id, "--all", *WHO)[0] == 0
    job.step(Until.RETRIED)
    assert command("cancel", job.key.job_id, *WHO)[0] == 0
    assert accepted_halt(job.until(Until.SETTLED)) is None
    assert command("accept", job.key.job_id, *WHO)[0] == 0
    settled = settle_as_accepted(job)
    assert (settled.counts["answered"], settled.counts["dead"]) == (5, 1)
    assert [x.state for x in job.letters()] == [LetterState.OPEN]
    job.assert_accounted()


def test_an_accepted_job_waits_for_a_batch_that_is_still_being_cancelled(
    bench: Callable[..., Bench], command: Command
) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": {**HALFWAY, "cancel_seconds": 600}})
    job.step(Until.ENDED, submitting=True)
    halted = job.ledger.halt_job(job.job(), "BLLM-043", "late")
    assert halted is not None and command("accept", job.key.job_id, "--cancel", *WHO)[0] == 0
    accepted = accepted_halt(job.job())
    assert accepted is not None
    assert job.call(lambda e: settle_accepted(e.tools, job.job(), accepted)) is None
    waiting = job.call(lambda e: what_runs(e.tools, job.job()))
    assert waiting.provider_batches == (job.batches()[0].provider_batch_id,) and not waiting.done
    job.server.release()
    assert settle_as_accepted(job).counts["answered"] == 3
    assert job.call(lambda e: what_runs(e.tools, job.job())) is None
