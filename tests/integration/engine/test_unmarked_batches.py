"""A create call without a reply at a provider without marks: its batch is known by time, count and rows.

Nobody else's batch is ever cancelled, deleted or kept, and nothing is sent while one of ours may be there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_batch_llm.cli.show import batch_facts
from airflow_batch_llm.core import doubts, strange_results
from airflow_batch_llm.core.by_hand import Declined, abandon_doubt, abandon_running, adopt, cancel
from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, Job, JobState, RemoteBatch
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.ports import CreateOrder
from airflow_batch_llm.core.spec import Settings, Until
from airflow_batch_llm.core.unmarked import Whose
from airflow_batch_llm.exceptions import InDoubt, LedgerLost, TransferError
from airflow_batch_llm.storage.ledger import SqlLedger
from airflow_batch_llm.storage.migrate import open_default_sqlite
from tests.integration.engine.processes import Died, Suspended
from tests.integration.engine.strangers import Street, in_doubt, step_until, street, submit, unmarked_server
from tests.integration.engine.test_time_limits import let_time_pass
from tests.job_bench import Bench

__all__ = ["street", "unmarked_server"]


def only(bench: Bench) -> Batch:
    (found,) = [batch for batch in bench.batches() if batch.kind is BatchKind.PRIMARY]
    return found


def finish(bench: Bench, street: Street) -> Job:
    street.run_free()
    return bench.until(Until.SETTLED)


def provisional(street: Street, fault: str = "dropped", **values: Any) -> tuple[Bench, Bench]:
    """Return a job that has adopted a stranger's batch provisionally, and the stranger."""
    job = in_doubt(street, fault, **values)
    stranger = street.stranger()
    step_until(job, lambda: only(job).provisional)
    assert only(job).provider_batch_id == only(stranger).provider_batch_id
    return job, stranger


# -- ours ------------------------------------------------------------------------------------------
def test_one_that_has_ended_is_known_by_its_rows_at_once(street: Street) -> None:
    job = street.job()
    street.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    done = job.run()
    assert done.counts["answered"] == street.rows and street.creates() == 1
    assert only(job).attempt == 1 and "looked" not in job.actions()
    job.assert_accounted()


def test_one_that_runs_is_adopted_provisionally_when_the_lease_is_over_and_confirmed_by_its_rows(
    street: Street,
) -> None:
    street.stand_still({"on": "create", "fault": "lost_reply", "times": 1})
    job = street.job()
    submit(job)
    assert job.step(Until.ENDED).reason == "in_doubt" and only(job).state is BatchState.SUBMITTING
    job.expire_leases()
    progress = job.step(Until.ENDED)
    batch = only(job)
    assert batch.provisional and batch.state is BatchState.SUBMITTED
    assert progress.provisional == progress.provider_batches == (batch.provider_batch_id,)
    assert batch_facts(batch)["provisional"] is True
    done = finish(job, street)
    assert done.counts["answered"] == street.rows and street.creates() == 1
    assert not only(job).provisional and only(job).provider_batch_id == batch.provider_batch_id
    happened = [a for a in job.actions() if a in ("adopted_provisionally", "provisional_confirmed", "looked")]
    assert happened == ["adopted_provisionally", "provisional_confirmed"]
    job.assert_accounted()


def test_what_came_to_nothing_is_sent_again_after_two_looks(street: Street) -> None:
    job = in_doubt(street, "dropped")
    assert finish(job, street).counts["answered"] == street.rows
    assert street.creates() == 2 and only(job).attempt == 2
    happened = [a for a in job.actions() if a in ("submitting", "looked", "submitting_left", "submitted")]
    assert happened == ["submitting", "looked", "submitting_left", "submitting", "submitted"]
    job.assert_accounted()


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_others_have_sent_is_read_and_passed_over(when: str, street: Street) -> None:
    """Their batch has ended: its rows say that it is not ours, and it is not read twice."""
    street.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1, "skip": 1}]})
    stranger = street.stranger() if when == "before" else None
    if stranger is None:
        street.server.set_scenario({"calls": [{"on": "create", "fault": "lost_reply", "times": 1}]})
    job = street.job(settings=Settings(create_timeout=5.0, lease_margin=600.0, look_apart=0.02))
    submit(job)
    stranger = stranger or street.stranger()
    done = job.run()
    assert done.counts["answered"] == street.rows
    theirs = only(stranger).provider_batch_id
    assert only(job).provider_batch_id != theirs
    street.assert_only_looked_at(stranger)
    job.assert_accounted()


class OtherClock:
    """A provider whose clock differs from ours: all that it says of times is shifted by so many seconds."""

    def __init__(self, backend: Any, seconds: float) -> None:
        self._backend, self._seconds = backend, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _shifted(self, remote: RemoteBatch) -> RemoteBatch:
        return replace(remote, created_at=(remote.created_at or 0.0) + self._seconds)

    async def create(self, order: CreateOrder) -> RemoteBatch:
        return self._shifted(await self._backend.create(order))

    async def retrieve(self, batch_id: str) -> RemoteBatch:
        return self._shifted(await self._backend.retrieve(batch_id))

    async def list_recent(self, **values: Any) -> list[RemoteBatch]:
        return [self._shifted(remote) for remote in await self._backend.list_recent(**values)]

    async def list_since(self, oldest: float) -> list[RemoteBatch]:
        listed = map(self._shifted, await self._backend.list_since(oldest - self._seconds))
        return [remote for remote in listed if (remote.created_at or 0.0) >= oldest]


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_a_clock_that_is_an_hour_wrong_hides_no_batch_of_ours(seconds: float, street: Street) -> None:
    street.stand_still({"on": "create", "fault": "lost_reply", "times": 1})
    job = street.job(around_backend=lambda backend: OtherClock(backend, seconds))
    submit(job)
    job.expire_leases()
    job.step(Until.ENDED)
    assert only(job).state is BatchState.SUBMITTED
    assert finish(job, street).counts["answered"] == street.rows
    assert street.creates() == 1
    job.assert_accounted()


def test_a_list_that_has_no_end_proves_nothing(street: Street) -> None:
    job = in_doubt(street, "dropped")

    class Endless:
        def __init__(self, backend: Any) -> None:
            self._backend = backend

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backend, name)

        async def list_since(self, oldest: float) -> Any:
            raise InDoubt("the list of batches did not come to an end")

    endless = replace(job, around_backend=Endless)
    for _ in range(3):
        with pytest.raises(InDoubt):
            endless.step(Until.ENDED)
    assert street.creates() == 1 and "looked" not in job.actions()
    assert finish(job, street).counts["answered"] == street.rows


# -- somebody else's -------------------------------------------------------------------------------
def check_that_a_stranger_is_let_go(street: Street, job: Bench, stranger: Bench) -> None:
    street.run_free()
    done = job.until(Until.SETTLED)
    assert done.counts["answered"] == street.rows and done.revision == 1 and done.round == 0
    batch = only(job)
    assert batch.attempt == 2 and batch.not_ours == (only(stranger).provider_batch_id,)
    happened = [a for a in job.actions() if a.startswith("provisional") or a in ("looked", "submitted")]
    assert happened == ["provisional_disowned", "looked", "submitted"], "two looks, and then it was sent"
    assert street.creates() == 3, "ours twice, theirs once"
    street.assert_only_looked_at(stranger)
    job.assert_accounted()


def test_a_stranger_taken_for_ours_is_let_go_when_its_rows_tell(
    street: Street, any_ledger: SqlLedger
) -> None:
    check_that_a_stranger_is_let_go(street, *provisional(street, ledger=any_ledger))


def test_an_engine_that_believes_a_count_takes_others_rows_for_its_own(
    street: Street, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test before this one guards: without the looks at the rows, it fails."""

    async def all_are_ours(*args: Any) -> Whose:
        return Whose.OURS

    job, stranger = provisional(street)
    monkeypatch.setattr(doubts, "whose_is", all_are_ours)
    with pytest.raises(TransferError, match="holds no row of it"):
        check_that_a_stranger_is_let_go(street, job, stranger)
    assert "odd_rows" not in job.actions() and job.batches()[0].state is BatchState.ENDED
    monkeypatch.setattr(strange_results.Held, "lacks_answers", lambda held: False)
    with pytest.raises(AssertionError):
        check_that_a_stranger_is_let_go(street, job, stranger)
    assert "odd_rows" in job.actions() and job.batches()[0].counts == {"missing": street.rows}


@pytest.mark.parametrize("by", ["batch_timeout", "job_timeout", "cancel"])
def test_a_stranger_is_not_cancelled_whatever_time_or_people_say(by: str, street: Street) -> None:
    job, stranger = provisional(street, job_timeout=3600.0)
    if by == "batch_timeout":
        let_time_pass(job, "submitted_at", "batch_llm_batch")
    elif by == "job_timeout":
        let_time_pass(job, "deadline_at", "batch_llm_job")
    else:
        found = job.call(
            lambda engine: cancel(
                lambda conn: engine.tools, job.ledger, job.job(), actor="ann", reason="stop"
            )
        )
        assert found.unsure == {only(job).batch_id: only(job).provider_batch_id} and not found.whole
        assert found.asked == []
    for _ in range(3):
        job.step(Until.ENDED)
    assert only(job).cancel_asked_at is None
    assert street.touched(only(stranger).provider_batch_id) == []
    street.run_free()
    job.until(Until.ENDED)
    street.assert_only_looked_at(stranger)
    assert only(job).provider_batch_id != only(stranger).provider_batch_id


def test_a_stranger_that_its_owner_deletes_stops_the_job_for_a_person(street: Street) -> None:
    """Nobody can tell any more whose it was: nothing is sent, and nothing lands."""
    quick = Settings(create_timeout=30.0, lease_margin=600.0, look_apart=0.02, gone_after=0.0)
    job, stranger = provisional(street, settings=quick)
    street.run_free()
    theirs = only(stranger).provider_batch_id
    stranger.retry().run()
    stranger.call(lambda engine: engine.tools.backend.delete_file(theirs))
    job.until(Until.SETTLED)
    assert job.job().state is JobState.HALTED and job.job().halt_code == "BLLM-031"
    assert only(job).state is BatchState.LOST and street.creates() == 2 and job.answers() == []


# -- several ---------------------------------------------------------------------------------------
def test_of_several_nobody_is_adopted_until_they_can_be_told_apart(street: Street) -> None:
    job = in_doubt(street, "lost_reply")
    strangers = [street.stranger("one"), street.stranger("two")]
    for _ in range(4):
        progress = job.step(Until.ENDED)
        assert progress.reason == "candidates" and progress.not_before is not None
    assert only(job).state is BatchState.SUBMITTING and job.actions().count("candidates") == 1
    (told,) = [e.reason for e in job.ledger.events(job.key.job_id) if e.action == "candidates"]
    assert all(str(only(stranger).provider_batch_id) in told for stranger in strangers)
    done = finish(job, street)
    assert done.counts["answered"] == street.rows and street.creates() == 3 and only(job).attempt == 1
    for stranger in strangers:
        street.assert_only_looked_at(stranger)
    job.assert_accounted()


def test_two_batches_of_ours_in_doubt_wait_and_each_gets_its_own(street: Street) -> None:
    """Their counts are the same, and so is the provider: what runs may be the other one's."""
    street.stand_still({"on": "create", "fault": "lost_reply", "times": 1})
    one = street.job(run_id="one")
    submit(one)
    street.stand_still({"on": "create", "fault": "dropped", "times": 1})
    two = street.job(one.ledger, run_id="two")
    submit(two)
    one.expire_leases()
    for bench in (one, two):
        assert bench.step(Until.ENDED).reason == "candidates"
    street.run_free()
    for bench in (two, one):
        assert bench.retry().run().counts["answered"] == street.rows
        bench.assert_accounted()
    assert (only(one).attempt, only(two).attempt) == (1, 2) and street.creates() == 3


def test_a_person_adopts_the_right_one_of_several_and_is_told_of_a_wrong_one(street: Street) -> None:
    job = in_doubt(street, "lost_reply")
    stranger = street.stranger()
    ids = {batch["id"] for batch in street.server.batches()}
    (ours,) = ids - {only(stranger).provider_batch_id}

    def say(provider_id: str) -> tuple[Batch, bool]:
        found: tuple[Batch, bool] = job.call(
            lambda engine: adopt(engine.tools, job.job(), only(job), provider_id, actor="ann", reason="it is")
        )
        return found

    adopted, told = say(str(only(stranger).provider_batch_id))
    assert adopted.provisional and not told
    adopted, told = say(ours)
    assert adopted.provisional and adopted.provider_batch_id == ours, "a person changes their mind"
    street.server.release(only(stranger).provider_batch_id)
    step_until(stranger, lambda: only(stranger).state is BatchState.ENDED)
    with pytest.raises(Declined, match="its rows are not those"):
        say(str(only(stranger).provider_batch_id))
    done = finish(job, street)
    assert done.counts["answered"] == street.rows and street.creates() == 2
    street.assert_only_looked_at(stranger)


def test_a_person_who_knows_that_none_is_ours_has_the_batch_sent_again(street: Street) -> None:
    job, stranger = provisional(street)

    def give_up(pay_again: bool) -> Batch:
        by_state = abandon_running if only(job).state is BatchState.SUBMITTED else abandon_doubt
        found: Batch = job.call(
            lambda engine: by_state(
                engine.tools, job.job(), only(job), actor="ann", reason="theirs", pay_again=pay_again
            )
        )
        return found

    with pytest.raises(Declined, match="--yes-pay-again"):
        give_up(pay_again=False)
    assert only(job).not_ours == (only(stranger).provider_batch_id,)
    assert give_up(pay_again=True).state is BatchState.UPLOADED
    assert finish(job, street).counts["answered"] == street.rows
    assert street.touched(only(stranger).provider_batch_id) == [] and street.creates() == 3
    street.assert_only_looked_at(stranger)


# -- late ones -------------------------------------------------------------------------------------
def test_the_process_that_gets_its_reply_after_all_puts_its_batch_in_the_strangers_place(
    street: Street,
) -> None:
    street.stand_still()
    job = street.job()
    with Suspended(job, "submit.after_create", submit) as late:
        stranger = street.stranger()
        street.server.wait_until_held()
        ours = next(b["id"] for b in street.server.batches() if b["id"] != only(stranger).provider_batch_id)
        hidden = replace(job, first_try=False, around_backend=lambda backend: Without(backend, ours))
        job.expire_leases()
        step_until(hidden, lambda: only(job).provisional)
        assert only(job).provider_batch_id == only(stranger).provider_batch_id
        late.wake()
    assert late.error is None
    assert only(job).provider_batch_id == ours and not only(job).provisional
    done = finish(job, street)
    assert done.counts["answered"] == street.rows and street.creates() == 2 and only(job).attempt == 1
    assert [b.kind for b in job.batches()] == [BatchKind.PRIMARY]
    street.assert_only_looked_at(stranger)
    job.assert_accounted()


class Without:
    """A provider whose list does not show a batch yet."""

    def __init__(self, backend: Any, hidden: str) -> None:
        self._backend, self._hidden = backend, hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def list_since(self, oldest: float) -> Any:
        return [b for b in await self._backend.list_since(oldest) if b.id != self._hidden]


def test_what_another_job_of_ours_has_provisionally_goes_to_the_job_it_is_of(street: Street) -> None:
    """A process of the first job posts late; by then that job is not in doubt, and the second one is."""
    street.stand_still()
    first = street.job(run_id="first", policy=RowRetry(max_rounds=0))
    with Suspended(first, "submit.after_create", submit) as late:
        leave_in_doubt(first)
        second = in_doubt(street, "dropped", ledger=first.ledger, run_id="second")
        step_until(second, lambda: only(second).provisional)
        late.wake()
    assert late.error is None
    (duplicate,) = [b for b in first.batches() if b.kind is BatchKind.DUPLICATE]
    assert only(second).state is BatchState.SUBMITTING
    assert only(second).not_ours == (duplicate.provider_batch_id,)
    send_now(first)
    street.run_free()
    for bench in (first.retry(), second):
        assert bench.run().counts["answered"] == street.rows
    assert only(second).attempt == 2 and duplicate.provider_batch_id not in [
        batch.provider_batch_id for batch in second.batches()
    ]


def leave_in_doubt(bench: Bench) -> None:
    """Let the machine have found nothing: the batch waits to be sent again."""
    (batch,) = bench.ledger.batches(bench.key.job_id)
    left = bench.ledger.leave_submitting(
        batch, reason="not_at_provider", not_before=bench.ledger.now() + 3600
    )
    assert left is not None


def send_now(bench: Bench) -> None:
    with bench.ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE batch_llm_batch SET not_before = NULL")


def test_one_that_posts_after_the_batch_was_sent_again_is_found_by_its_rows_and_read(street: Street) -> None:
    """Its row failed in the batch that counts; the late one has the answer, which is not paid for again."""
    job = street.job()
    bad = {"match": {"contains": "number 1."}, "fault": "server_error"}
    with Suspended(job, "submit.before_create", submit, dies_at="submit.after_create") as late:
        street.server.set_scenario({"rows": [bad]})
        job.expire_leases()
        job.retry().until(Until.ENDED, submitting=True)
        street.server.set_scenario({})
        late.wake()
    assert isinstance(late.error, Died)
    done = job.until(Until.SETTLED)
    (duplicate,) = [b for b in job.batches() if b.kind is BatchKind.DUPLICATE]
    assert duplicate.state is BatchState.RECONCILED and duplicate.cancel_asked_by == "machine"
    assert done.counts["answered"] == street.rows and street.creates() == 2 and done.round == 0
    assert street.touched(duplicate.provider_batch_id) == [], "it had ended"


# -- clears and lost ledgers -----------------------------------------------------------------------
def test_after_a_clear_the_rows_of_a_batch_that_was_a_strangers_go_into_the_next_round(
    street: Street,
) -> None:
    job, stranger = provisional(street)
    cleared = job.clear()
    submit(cleared)
    assert cleared.job().counts["kept_in_flight"] == street.rows and street.creates() == 2
    street.run_free()
    done = cleared.run()
    assert done.revision == 2 and done.counts["answered"] == street.rows and street.creates() == 3
    assert [(b.revision, b.round, b.state) for b in job.batches()] == [
        (1, 0, BatchState.RECONCILED),
        (2, 1, BatchState.RECONCILED),
    ]
    assert job.batches()[0].error_code == "not_created" and job.batches()[0].provider_batch_id is None
    street.assert_only_looked_at(stranger)
    cleared.assert_accounted()


def test_a_ledger_that_was_set_back_is_told_where_the_provider_holds_what_it_does_not_know(
    street: Street, tmp_path: Any
) -> None:
    """The namespace is the same, the job is not there, its files are, and so is its batch."""
    street.stand_still()
    job = street.job()
    submit(job)
    set_back = open_default_sqlite(tmp_path / "back.db")
    copy_namespace(job.ledger, set_back)
    with pytest.raises(LedgerLost, match="delete the job's folder"):
        replace(job, ledger=set_back).step(Until.ENDED, submitting=True)
    assert street.creates() == 1 and set_back.get_job(job.key.job_id) is None


def test_a_ledger_that_was_set_back_goes_on_where_the_provider_holds_nothing_unknown(
    street: Street, tmp_path: Any
) -> None:
    job = in_doubt(street, "dropped")
    set_back = open_default_sqlite(tmp_path / "back.db")
    copy_namespace(job.ledger, set_back)
    street.run_free()

    class Nothing(Without):
        async def list_since(self, oldest: float) -> Any:
            return []

    again = replace(job, ledger=set_back, around_backend=lambda backend: Nothing(backend, ""))
    assert again.run().counts["answered"] == street.rows


def copy_namespace(old: SqlLedger, new: SqlLedger) -> None:
    name = old.namespace()
    new.namespace()
    with new.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE batch_llm_meta SET value = '{name}' WHERE name = 'namespace'")
    new._namespace = None
