"""Two jobs on one connection whose account is at fault: one tells it, the other waits, and both go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_batch_llm.core.holds import release_command
from airflow_batch_llm.core.model import BatchState, Hold, HoldOrigin, Job, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import OnDeadline, Progress, Until
from airflow_batch_llm.exceptions import AccountError, AuthError
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.processes import Interrupted, Suspended
from tests.integration.engine.test_time_limits import let_time_pass
from tests.job_bench import QUICK, Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
HALFWAY = {"seconds": 600, "hold_at": 0.5}
NO_CREDIT = {"rows": [{"match": {}, "fault": "insufficient_quota"}]}
#: Trials are due only when a test says so.
PATIENT = replace(QUICK, probe_first=600.0, probe_max=3600.0)


def refuses(on: str = "create", status: int = 401, **more: Any) -> dict[str, Any]:
    return {"calls": [{"on": on, "fault": "error", "status": status, **more}]}


@dataclass
class Pair:
    """Two jobs of one connection."""

    first: Bench
    second: Bench

    @property
    def server(self) -> Any:
        return self.first.server

    @property
    def ledger(self) -> SqlLedger:
        return self.first.ledger

    def hold(self) -> Hold | None:
        return self.ledger.get_hold("llm")

    def trial_is_due(self) -> None:
        """Let the time of the next trial have come."""
        with self.ledger.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE batch_llm_hold SET probe_at = probe_at - 10000")

    def meets(self, scenario: dict[str, Any]) -> None:
        """Let the first job meet a fault, which it tells, and whose connection is then held."""
        self.server.set_scenario(scenario)
        with pytest.raises((AuthError, AccountError)):
            self.first.step(Until.ENDED, submitting=True)
        assert self.hold() is not None

    def events(self) -> list[str]:
        """What was done to the connection, in order."""
        found = [
            e for job in ("", self.first.key.job_id, self.second.key.job_id) for e in self.ledger.events(job)
        ]
        names = {"connection_held", "connection_released", "probe_taken", "probe_hurried"}
        return [e.action for e in sorted(found, key=lambda e: e.time) if e.action in names]


@pytest.fixture
def jobs(any_ledger: SqlLedger, bench: Callable[..., Bench]) -> Pair:
    return pair(any_ledger, bench)


@pytest.fixture
def two(ledger: SqlLedger, bench: Callable[..., Bench]) -> Pair:
    """The same, on SQLite only."""
    return pair(ledger, bench)


def pair(ledger: SqlLedger, bench: Callable[..., Bench]) -> Pair:
    common: dict[str, Any] = {
        "texts": TEXTS,
        "ledger": ledger,
        "settings": PATIENT,
        "policy": RowRetry(max_rounds=0),
    }
    return Pair(bench(task_id="a.submit", **common), bench(task_id="b.submit", **common))


def third(jobs: Pair) -> Bench:
    """Return one more job of the connection, with one row."""
    return replace(jobs.second, task_id="c.submit", texts={"c-1": "a third one."})


def assert_waits(job: Bench, *, tries: int = 0, **how: Any) -> Progress:
    """See that a pass of the job tells no error and waits for the connection.

    :param tries: create calls that it makes all the same, as its turn to try has come.
    """
    creates = job.creates()
    progress = job.step(Until.ENDED, **how)
    assert not progress.done and progress.reason == "connection_held"
    assert progress.job.state is JobState.RUNNING and progress.not_before is not None
    assert job.creates() == creates + tries
    return progress


def goes_on(job: Bench, *, submitting: bool = False) -> Job:
    """Run what is left of a job that waited."""
    job.until(Until.ENDED, submitting=submitting)
    for until in (Until.RECONCILED, Until.RETRIED, Until.SETTLED):
        done = job.until(until)
    assert done.state is JobState.SETTLED and done.counts["answered"] == len(job.texts)
    job.assert_accounted()
    return done


# -- a call that is refused ------------------------------------------------------------------------
def test_one_job_tells_the_fault_the_other_waits_and_goes_on_when_it_is_mended(
    jobs: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.meets(refuses())
    hold = jobs.hold()
    assert hold is not None
    assert (hold.code, hold.origin, hold.job_id) == ("BLLM-020", HoldOrigin.CALL, jobs.first.key.job_id)
    progress = assert_waits(jobs.second, submitting=True)
    assert progress.not_before == hold.probe_at
    told = [record for record in caplog.records if release_command("llm") in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR", "WARNING"]
    assert all("tried again from 2" in record.getMessage() for record in told)
    assert jobs.first.batches()[0].state is BatchState.UPLOADED, "its row is charged nothing"
    assert {b.state for b in jobs.second.batches()} == {BatchState.PLANNED}, "not even uploaded"

    jobs.server.set_scenario({})
    assert_waits(jobs.second)
    jobs.trial_is_due()
    goes_on(jobs.second)
    assert jobs.hold() is None
    assert jobs.first.clear().run().counts["answered"] == 6
    assert jobs.events() == ["connection_held", "probe_taken", "connection_released"]
    assert jobs.server.summary()["answered_twice"] == 0


def test_lack_of_credit_told_by_a_call_holds_the_connection_too(two: Pair) -> None:
    two.meets(refuses(status=429, code="insufficient_quota"))
    hold = two.hold()
    assert hold is not None and (hold.code, hold.origin) == ("BLLM-021", HoldOrigin.CALL)
    two.server.set_scenario({})
    two.trial_is_due()
    goes_on(two.second, submitting=True)
    assert two.hold() is None


def test_a_trial_that_fails_is_no_error_and_the_next_one_comes_later(two: Pair) -> None:
    two.meets(refuses())
    assert_waits(two.second, submitting=True)
    waits = []
    for probes in (1, 2, 3, 4):
        two.trial_is_due()
        before = two.ledger.now()
        assert_waits(two.second, tries=1)
        hold = two.hold()
        assert hold is not None and hold.probes == probes and hold.probe_at is not None
        waits.append(round((hold.probe_at - before) / 600.0, 1))
    assert waits == [2.0, 4.0, 6.0, 6.0], "the time between two trials doubles, up to an hour"
    assert {b.state for b in two.second.batches()} <= {BatchState.PLANNED, BatchState.UPLOADED}


def test_a_key_that_is_refused_is_tried_without_sending_a_file(two: Pair) -> None:
    two.meets(refuses())
    two.server.set_scenario(
        {"calls": [{"on": on, "fault": "error", "status": 401} for on in ("list", "upload")]}
    )
    assert_waits(two.second, submitting=True)
    uploads = len(two.server.requests("POST", "/v1/files"))
    two.trial_is_due()
    assert_waits(two.second)
    assert len(two.server.requests("POST", "/v1/files")) == uploads


def test_a_job_that_meets_the_fault_while_the_hold_of_another_stands_only_waits(two: Pair) -> None:
    """Both were past the gate when the key was revoked."""
    two.server.set_scenario(refuses())
    process = Suspended(two.second, "submit.before_create", lambda b: b.step(Until.ENDED, submitting=True))
    with process, pytest.raises(AuthError):
        two.first.step(Until.ENDED, submitting=True)
    assert process.error is None
    assert two.second.job().state is JobState.RUNNING
    assert_waits(two.second)
    assert two.events() == ["connection_held"]


def test_a_job_with_paid_batches_halts_and_another_waits(two: Pair) -> None:
    first = replace(two.first, options={"max_requests": 3})
    two.server.set_scenario(refuses(skip=1))
    assert first.run() and first.job().halt_code == "BLLM-020"
    assert len(first.answers()) == 3
    assert_waits(two.second, submitting=True)
    two.server.set_scenario({})
    assert first.clear().run().counts["answered"] == 6, "a clear is a person's act: the trial is due at once"
    assert two.hold() is None
    goes_on(two.second)


def test_a_clear_makes_the_trial_due_also_where_nothing_is_mended(two: Pair) -> None:
    two.meets(refuses())
    cleared = two.first.clear()
    assert_waits(cleared, submitting=True, tries=1)
    assert_waits(cleared)
    assert two.events() == ["connection_held", "probe_hurried", "probe_taken"]


def test_other_connections_go_on(two: Pair) -> None:
    two.meets(refuses(times=1))
    assert replace(two.second, conn_id="other").run().counts["answered"] == 6
    assert two.hold() is not None


# -- rows that blame the account -------------------------------------------------------------------
def test_rows_without_credit_hold_the_connection_until_a_batch_is_answered(jobs: Pair) -> None:
    jobs.server.set_scenario(NO_CREDIT)
    assert jobs.first.run().halt_code == "BLLM-021"
    hold = jobs.hold()
    assert hold is not None and hold.origin is HoldOrigin.ROWS and jobs.first.letters() == []
    assert_waits(jobs.second, submitting=True)

    jobs.trial_is_due()
    other = third(jobs)
    jobs.server.set_scenario({"pace": {**HALFWAY, "hold_at": 0}})
    tries = jobs.second.step(Until.ENDED)
    assert tries.provider_batches and tries.reason == "running"
    assert_waits(other, submitting=True)
    jobs.trial_is_due()
    assert_waits(other)
    hold = jobs.hold()
    assert hold is not None and hold.probe_batch_id == jobs.second.batches()[0].batch_id, "one is enough"

    jobs.server.set_scenario({})
    jobs.server.release()
    goes_on(jobs.second)
    assert jobs.hold() is None
    goes_on(other)
    assert jobs.first.clear().run().counts["answered"] == 6


def test_a_trial_whose_rows_blame_the_account_again_leaves_the_hold_and_its_rows_pending(two: Pair) -> None:
    two.server.set_scenario(NO_CREDIT)
    two.first.run()
    assert_waits(two.second, submitting=True)
    two.trial_is_due()
    progress = two.second.step(Until.ENDED)
    while progress.provider_batches:
        progress = two.second.step(Until.ENDED)
    two.second.step(Until.RECONCILED)
    progress = two.second.step(Until.RETRIED)
    assert not progress.done and progress.reason == "connection_held"
    assert progress.job.state is JobState.RUNNING and progress.job.round == 1
    assert two.second.creates() == 2 and two.second.letters() == []
    two.server.set_scenario({})
    two.trial_is_due()
    goes_on(two.second)
    assert two.hold() is None


def test_the_other_batches_of_the_job_that_tries_follow_at_once(two: Pair) -> None:
    """Its rows are judged while its submitting task still waits for the rest to be sent."""
    two.server.set_scenario(NO_CREDIT)
    two.first.run()
    two.server.set_scenario({})
    two.trial_is_due()
    second = replace(two.second, options={"max_requests": 2})
    assert second.until(Until.ENDED, submitting=True).state is JobState.RUNNING
    assert two.hold() is None
    assert [b.state for b in second.batches()][0] is BatchState.RECONCILED
    goes_on(second)
    assert second.creates() == 4


def test_a_batch_refused_for_lack_of_credit_holds_the_connection(two: Pair) -> None:
    two.server.set_scenario({"batches": [{"fault": "fail_validation", "code": "billing_hard_limit_reached"}]})
    assert two.first.run().halt_code == "BLLM-021"
    assert_waits(two.second, submitting=True)
    two.trial_is_due()
    progress = two.second.step(Until.ENDED)
    assert progress.job.state is JobState.RUNNING and two.events()[-1] == "probe_taken"
    two.server.set_scenario({})
    two.trial_is_due()
    goes_on(two.second)


def test_rows_of_a_second_job_that_ran_meanwhile_stay_pending_and_it_is_not_halted(two: Pair) -> None:
    two.server.set_scenario({**NO_CREDIT, "pace": {"seconds": 600, "hold_at": 0}})
    two.first.step(Until.ENDED, submitting=True)
    two.second.step(Until.ENDED, submitting=True)
    two.server.release()
    two.server.wait_for("completed", "completed")
    assert two.first.run().halt_code == "BLLM-021"
    two.second.until(Until.RECONCILED)
    progress = two.second.step(Until.SETTLED)
    assert not progress.done and progress.reason == "connection_held"
    assert two.second.letters() == [] and two.events() == ["connection_held"]


# -- reading ---------------------------------------------------------------------------------------
def test_what_is_paid_is_read_while_the_connection_is_held(two: Pair) -> None:
    two.second.until(Until.ENDED, submitting=True)
    two.meets(refuses())
    assert two.second.until(Until.SETTLED).counts["answered"] == 6
    assert two.hold() is not None


# -- processes that die, and that come at once -----------------------------------------------------
@pytest.mark.parametrize("point", ["hold.probe_taken", "submit.after_create", "submit.after_submitted"])
def test_a_job_that_dies_while_it_tries_blocks_nobody_for_ever(two: Pair, point: str) -> None:
    two.meets(refuses())
    two.server.set_scenario({})
    two.trial_is_due()
    second = replace(two.second, fault=die_at(point))
    assert was_killed(lambda: second.step(Until.ENDED, submitting=True))
    two.trial_is_due()
    goes_on(third(two), submitting=True)
    assert two.hold() is None
    goes_on(two.second.retry())
    assert len(two.server.batches()) == 2


def test_a_trial_that_nobody_reads_is_taken_over(two: Pair) -> None:
    """The rows tell, but the job that sent them died: the next one sends its own batch."""
    two.server.set_scenario(NO_CREDIT)
    two.first.run()
    two.server.set_scenario({"pace": {**HALFWAY, "hold_at": 0}})
    two.trial_is_due()
    two.second.step(Until.ENDED, submitting=True)
    two.server.set_scenario({})
    two.server.release()
    two.server.wait_for("completed", "completed")
    other = third(two)
    assert_waits(other, submitting=True)
    two.trial_is_due()
    goes_on(other)
    assert two.hold() is None


@pytest.mark.parametrize("scenario", [refuses(), NO_CREDIT])
def test_a_job_that_dies_before_it_tells_the_fault_tells_it_when_it_runs_again(
    two: Pair, scenario: dict[str, Any]
) -> None:
    two.server.set_scenario(scenario)
    killed = replace(two.first, fault=die_at("hold.after_made"))
    assert was_killed(killed.run)
    assert two.hold() is not None and two.first.job().state is JobState.RUNNING
    if scenario is NO_CREDIT:
        assert two.first.retry().run().halt_code == "BLLM-021"
    else:
        with pytest.raises(AuthError, match="batch-llm release --conn llm"):
            two.first.retry().run()
    assert two.events() == ["connection_held"]


def test_of_two_jobs_that_try_at_once_one_sends(jobs: Pair) -> None:
    jobs.meets(refuses())
    jobs.server.set_scenario(refuses())
    other = third(jobs)
    for job in (jobs.second, other):
        assert_waits(job, submitting=True)
    jobs.trial_is_due()
    with Suspended(jobs.second, "hold.probe_taken", lambda b: assert_waits(b, tries=1)) as process:
        assert_waits(other)
    assert process.error is None
    # Both see that the trial is due; who comes second finds it taken.
    jobs.trial_is_due()
    ledger: Any = Interrupted(
        jobs.ledger,
        after=lambda name, _: name == "get_hold",
        act=lambda: assert_waits(jobs.second, tries=1),
    )
    assert_waits(replace(other, ledger=ledger), tries=1)
    assert ledger.happened and jobs.events().count("probe_taken") == 2


def test_a_key_revoked_while_a_create_call_is_in_doubt_is_told_and_the_batch_is_found_later(
    two: Pair,
) -> None:
    killed = replace(two.first, fault=die_at("submit.after_create"))
    assert was_killed(lambda: killed.step(Until.ENDED, submitting=True))
    two.server.set_scenario(refuses("list"))
    first = two.first.retry()
    with pytest.raises(AuthError):
        first.step(Until.ENDED, submitting=True)
    assert two.hold() is not None and two.events() == ["connection_held"]
    two.server.set_scenario({})
    goes_on(first)
    assert two.first.creates() == 1


# -- people ----------------------------------------------------------------------------------------
def test_a_persons_hold_is_ended_by_a_release_only(two: Pair) -> None:
    two.ledger.hold_connection(
        "llm", code="", origin=HoldOrigin.PERSON, actor="ann", reason="invoice", probe_at=None
    )
    assert_waits(two.first, submitting=True)
    two.trial_is_due()
    assert_waits(two.first)
    assert_waits(two.first.clear(), submitting=True)
    assert two.ledger.release_connection("llm", actor="ann", reason="paid") is not None
    goes_on(two.first.clear(), submitting=True)
    assert two.events() == ["connection_held", "connection_released"]


def test_a_release_lets_all_go_on(two: Pair) -> None:
    two.meets(refuses(times=1))
    assert_waits(two.second, submitting=True)
    two.ledger.release_connection("llm", actor="ann", reason="new key")
    goes_on(two.second)
    goes_on(two.first)


# -- the end of a job's time -----------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["collect", "fail"])
def test_a_held_connection_does_not_carry_a_job_past_its_time(two: Pair, mode: str) -> None:
    two.meets(refuses())
    second = replace(two.second, job_timeout=3600.0, on_deadline=OnDeadline(mode))
    assert_waits(second, submitting=True)
    let_time_pass(second, "deadline_at", "batch_llm_job")
    ended = second.run()
    assert ended.state is (JobState.SETTLED if mode == "collect" else JobState.HALTED)
    assert len(second.letters()) == (6 if mode == "collect" else 0)
    assert second.creates() == 1
