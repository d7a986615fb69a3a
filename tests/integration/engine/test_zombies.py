"""A process that was suspended past its lease and posts all the same: found, cancelled, read, harmless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_batch_llm.core.model import Batch, BatchKind, BatchState, JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.spec import Settings, Until
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.engine.processes import Died, Suspended
from tests.job_bench import Bench

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
#: Leases end where a test says so.
SLOW = Settings(create_timeout=30.0, lease_margin=600.0, look_apart=0.02, queue_wait=0.1)
#: Batches run half of their rows and stand still.
HALFWAY = {"seconds": 600, "hold_at": 0.5}
BAD = {"match": {"contains": "number 5."}, "fault": "bad_request", "code": "invalid_value"}
ONCE = {"match": {"contains": "number 5."}, "fault": "server_error", "times": 1}


def submit(bench: Bench) -> None:
    """What the submit task does, without waiting for the end of what it sent."""
    bench.step(Until.ENDED, submitting=True)


def send_again(bench: Bench) -> None:
    """What the next try does: the lease has ended, the batch is not there, so it is sent once more."""
    bench.expire_leases()
    for _ in range(200):
        progress = bench.step(Until.ENDED, submitting=True)
        if progress.provider_batches:
            return
        bench.wait(progress)
    raise AssertionError("never sent")


def kinds(bench: Bench) -> list[BatchKind]:
    return [batch.kind for batch in bench.batches()]


def duplicate(bench: Bench) -> Batch:
    (found,) = [batch for batch in bench.batches() if batch.kind is BatchKind.DUPLICATE]
    return found


def finish(bench: Bench) -> None:
    bench.server.release()
    bench.until(Until.SETTLED)
    assert bench.job().state is JobState.SETTLED


def test_it_is_cancelled_recorded_and_read(bench: Callable[..., Bench], any_ledger: SqlLedger) -> None:
    b = bench(texts=TEXTS, settings=SLOW, ledger=any_ledger)
    b.server.set_scenario({"pace": HALFWAY, "rows": [BAD]})
    with Suspended(b, "submit.before_create", submit) as late:
        send_again(b.retry())
        assert b.creates() == 1
        late.wake()
    assert late.error is None and b.creates() == 2
    finish(b)
    assert kinds(b) == [BatchKind.PRIMARY, BatchKind.DUPLICATE]
    assert {batch.state for batch in b.batches()} == {BatchState.RECONCILED}
    assert b.batches()[0].attempt == 2 and b.batches()[0].provider_status == "done"
    assert duplicate(b).attempt == 1 and duplicate(b).provider_status == "cancelled"
    assert sum(duplicate(b).counts.values()) == 6, "its rows were read, one by one"
    assert sorted(b.server.statuses()) == ["cancelled", "completed"]
    assert b.actions().count("duplicate") == 1
    assert sorted(a.custom_id for a in b.answers()) == [f"t-{n}" for n in range(5)]
    assert b.open_letters() == {"t-5": "invalid_value"}
    assert b.creates() == 2


def test_one_that_dies_before_it_can_tell_is_found_by_its_token(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY})
    with Suspended(b, "submit.before_create", submit, dies_at="submit.after_create") as late:
        send_again(b.retry())
        late.wake()
    assert isinstance(late.error, Died) and kinds(b) == [BatchKind.PRIMARY]
    finish(b)
    assert duplicate(b).provider_status in ("cancelled", "done") and len(b.answers()) == 6
    assert b.creates() == 2


def test_one_that_posts_when_all_has_been_read_and_dies_is_found_by_the_next_settlement(
    bench: Callable[..., Bench],
) -> None:
    """Its upload is still there: it could not be deleted when the batch that counts was read."""
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"calls": [{"on": "delete", "fault": "error", "status": 400}]})
    with Suspended(b, "submit.before_create", submit, dies_at="submit.after_create") as late:
        b.expire_leases()
        b.retry().run()
        late.wake()
    assert isinstance(late.error, Died) and kinds(b) == [BatchKind.PRIMARY]
    b.until(Until.SETTLED)
    assert duplicate(b).state is BatchState.RECONCILED and duplicate(b).attempt == 1
    assert b.job().counts["answered"] == 6 and b.creates() == 2


def test_one_that_dies_between_the_record_and_the_cancel_is_cancelled_by_the_next(
    bench: Callable[..., Bench],
) -> None:
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY})
    with Suspended(b, "submit.before_create", submit, dies_at="submit.after_duplicate") as late:
        send_again(b.retry())
        late.wake()
    assert isinstance(late.error, Died) and duplicate(b).state is BatchState.SUBMITTED
    assert b.server.statuses() == ["in_progress", "in_progress"]
    b.step(Until.ENDED)
    assert b.server.statuses()[0] == "in_progress" and b.server.statuses()[1] != "in_progress"
    finish(b)
    assert duplicate(b).provider_status == "cancelled" and b.job().counts["answered"] == 6


def test_its_answers_count_and_are_not_paid_for_again(bench: Callable[..., Bench]) -> None:
    """The primary's row fails; the duplicate has its answer: nothing is sent for it, in no later round."""
    b = bench(texts=TEXTS, settings=SLOW)
    with Suspended(b, "submit.before_create", submit, dies_at="submit.after_create") as late:
        b.server.set_scenario({"rows": [{"match": {"contains": "number 5."}, "fault": "server_error"}]})
        b.expire_leases()
        b.retry().until(Until.ENDED, submitting=True)
        b.server.set_scenario({})
        late.wake()
    b.server.wait_for("completed", "completed")
    finish(b)
    assert b.creates() == 2 and b.job().round == 0
    assert sorted(a.custom_id for a in b.answers()) == sorted(TEXTS)
    assert len([c for c in b.server.charges() if c["charged"]]) == 11, "five twice, the sixth once"


def test_the_batch_that_counts_is_not_taken_for_its_duplicates_duplicate(bench: Callable[..., Bench]) -> None:
    """The earlier attempt was adopted, the later one came too late: only the later one is cancelled."""
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY})
    with (
        Suspended(b, "submit.before_create", submit, dies_at="submit.after_create") as first,
        Suspended(b.retry(), "submit.before_create", send_again) as second,
    ):
        assert b.batches()[0].attempt == 2
        first.wake()
        assert b.retry().step(Until.ENDED, submitting=True).provider_batches, "attempt 1 is adopted"
        second.wake()
    assert second.error is None
    while duplicate(b).state is not BatchState.RECONCILED:
        b.step(Until.RECONCILED)
    assert duplicate(b).attempt == 2
    primary, upload = b.batches()[0].provider_batch_id, b.batches()[0].input_file_id
    assert duplicate(b).input_file_id == upload
    assert b.server.requests("DELETE", f"/v1/files/{upload}") == [], "the primary still needs its input"
    assert [x["status"] for x in b.server.batches() if x["id"] == primary] == ["in_progress"]
    finish(b)
    assert b.job().counts["answered"] == 6 and b.job().halt_code is None
    assert len(b.server.requests("DELETE", f"/v1/files/{upload}")) == 1


def test_a_duplicate_that_failed_before_it_ran_is_never_sent_again(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY})
    with Suspended(b, "submit.before_create", submit, dies_at="submit.after_duplicate") as late:
        send_again(b.retry())
        b.server.set_scenario({"batches": [{"fault": "queue_full", "times": 1}]})
        late.wake()
    b.server.wait_for("in_progress", "failed")
    finish(b)
    assert b.creates() == 2
    assert b.server.summary()["answered_twice"] == 0 and b.job().counts["answered"] == 6


def test_a_cancelled_duplicate_is_not_adopted_by_the_next_attempt(bench: Callable[..., Bench]) -> None:
    """Attempt 2 died before it posted; attempt 1 posted late and was cancelled: attempt 3 sends."""
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY})
    with Suspended(b, "submit.before_create", submit) as first:
        with Suspended(
            b.retry(), "submit.before_create", send_again, dies_at="submit.before_create"
        ) as second:
            second.wake()
        first.wake()
    assert isinstance(second.error, Died) and b.creates() == 1
    send_again(b.retry())
    finish(b)
    assert b.batches()[0].attempt == 3 and b.creates() == 2
    assert b.job().halt_code is None and b.job().counts["answered"] == 6


@pytest.mark.parametrize("dies_at", [None, "submit.after_create"])
def test_after_a_clear_it_is_found_beside_what_was_withdrawn(
    dies_at: str | None, bench: Callable[..., Bench]
) -> None:
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY})
    with Suspended(b, "submit.before_create", submit, dies_at=dies_at) as late:
        cleared = b.clear()
        send_again(cleared)
        assert [batch.state for batch in b.batches()] == [BatchState.SUPERSEDED, BatchState.SUBMITTED]
        late.wake()
    b.server.release()
    cleared.run()
    assert kinds(b) == [BatchKind.PRIMARY, BatchKind.DUPLICATE, BatchKind.PRIMARY]
    assert duplicate(b).state is BatchState.RECONCILED and duplicate(b).revision == 1
    assert b.job().counts["answered"] == 6 and b.creates() == 2


def test_a_duplicate_decides_nothing_about_rows_that_failed_for_good(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"pace": HALFWAY, "rows": [BAD]})
    with Suspended(b, "submit.before_create", submit) as late:
        send_again(b.retry())
        late.wake()
    finish(b)
    cleared = b.clear()
    cleared.run()
    assert cleared.creates() == 2, "what is dead stays dead"
    assert cleared.open_letters() == {"t-5": "invalid_value"}


def test_a_duplicate_hides_no_batch_in_flight_from_a_clear(bench: Callable[..., Bench]) -> None:
    """The duplicate has ended, the primary still runs: a clear neither sends its rows nor forgets them."""
    b = bench(texts=TEXTS, settings=SLOW, policy=RowRetry(max_rounds=1))
    b.server.set_scenario({"pace": HALFWAY, "rows": [ONCE]})
    with Suspended(b, "submit.before_create", submit) as late:
        send_again(b.retry())
        late.wake()
    while duplicate(b).state is not BatchState.RECONCILED:
        b.step(Until.RECONCILED)
    cleared = b.clear()
    submit(cleared)
    assert cleared.job().counts["kept_in_flight"] + cleared.job().counts.get("kept_answered", 0) == 6
    assert cleared.creates() == 2
    cleared.server.wait_for("cancelled", "in_progress", in_order=False)
    cleared.server.set_scenario({})
    cleared.server.release()
    cleared.run()
    assert cleared.job().counts["answered"] == 6, "the row that failed once was sent again"
    assert cleared.creates() == 3 and cleared.open_letters() == {}


def test_late_processes_of_a_job_that_is_done_change_nothing(bench: Callable[..., Bench]) -> None:
    b = bench(texts=TEXTS, settings=SLOW)
    b.server.set_scenario({"rows": [BAD]})
    with Suspended(b, "submit.before_create", submit, dies_at="submit.after_duplicate") as late:
        b.expire_leases()
        done = b.retry().run()
        late.wake()
    again = replace(b, fault=lambda point: None).until(Until.SETTLED)
    assert again.counts == done.counts
    assert duplicate(b).state is BatchState.RECONCILED
    assert b.open_letters() == {"t-5": "invalid_value"} and b.creates() == 2
