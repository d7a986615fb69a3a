"""What a purge changes in the ledger: with a mark, in one transaction, and only where nothing has changed."""

from __future__ import annotations

import pytest

from airflow_batch_llm.core.model import BatchState, JobState
from airflow_batch_llm.core.ports import FileInfo
from airflow_batch_llm.storage.ledger import SqlLedger
from tests.integration.storage.ledgers import actions, batch_in, job_in, letter, new_job, running_job, some

pytestmark = pytest.mark.parametrize("address", ["sqlite", "postgresql", "psycopg2", "mysql"], indirect=True)
WHO = {"actor": "ann", "reason": "asked to be forgotten"}


@pytest.mark.parametrize("state", [JobState.STAGING, JobState.RUNNING])
def test_a_job_under_way_takes_no_mark(ledger: SqlLedger, state: JobState) -> None:
    job = job_in(ledger, state)
    assert ledger.note_purge(job, "purge_begun", seen={"purged": 1}, **WHO) is None
    assert "purge_begun" not in actions(ledger, job.job_id)


def test_the_mark_is_a_compare_and_set_with_its_event(ledger: SqlLedger) -> None:
    job = job_in(ledger, JobState.SETTLED)
    marked = some(ledger.note_purge(job, "purge_begun", seen={"purged": 1}, **WHO))
    assert dict(marked.seen)["purged"] == 1 and marked.version == job.version + 1
    assert ledger.note_purge(job, "purge_begun", seen={}, **WHO) is None, "somebody was first"
    event = ledger.events(job.job_id)[-1]
    assert (event.action, event.actor, event.reason) == ("purge_begun", *WHO.values())


def test_every_job_is_met_once(ledger: SqlLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_batch_llm.storage.ledger_purge.CHUNK", 2)
    jobs = {new_job(ledger, f"task-{n}").job_id for n in range(5)}
    assert sorted(job.job_id for job in ledger.iter_jobs()) == sorted(jobs)
    assert list(ledger.iter_jobs(dag_id="another")) == list(ledger.iter_jobs(states=[JobState.SETTLED])) == []


def test_outcomes_and_raw_files_change_together_where_they_are_still_the_same(ledger: SqlLedger) -> None:
    batch = batch_in(ledger, BatchState.RECONCILED)
    files = [{**file, "path": "elsewhere"} for file in batch.files]
    changed = some(ledger.rewrite_outcomes(batch, outcomes_sha256="9" * 64, files=files))
    assert (changed.outcomes_sha256, changed.files[0]["path"]) == ("9" * 64, "elsewhere")
    assert (changed.state, changed.counts, changed.usage) == (batch.state, batch.counts, batch.usage)
    assert ledger.rewrite_outcomes(batch, outcomes_sha256="8" * 64, files=files) is None


def test_requests_move_for_all_batches_and_letters_that_name_them(ledger: SqlLedger) -> None:
    job = running_job(ledger, batches=2)
    path, other = [batch.path for batch in ledger.batches(job.job_id)]
    ledger.insert_dead_letters([letter(job, "w1", request_path=path), letter(job, "w2", request_path=other)])
    assert ledger.move_requests(job.job_id, path, "new", FileInfo(7, "7" * 64)) == 1
    batches = ledger.batches(job.job_id)
    assert [(b.path, b.bytes, b.sha256) for b in batches][0] == ("new", 7, "7" * 64)
    assert batches[1].path == other
    assert [x.request_path for x in ledger.dead_letters(job.job_id)] == ["new", other]


def test_a_plan_moves_only_in_a_settled_job(ledger: SqlLedger) -> None:
    job = job_in(ledger, JobState.RUNNING)
    assert ledger.move_plan(job, "p1", "p9", "9" * 64) is None
    settled = some(ledger.settle_job(job, {}))
    moved = some(ledger.move_plan(settled, "p1", "p9", "9" * 64))
    assert (moved.plan_id, moved.plan_digest, moved.version) == ("p9", "9" * 64, settled.version + 1)
    seen = some(ledger.mark_seen(moved, {"previous_plan": "p0"}))
    before = some(ledger.move_plan(seen, "p0", "p8", "8" * 64))
    assert (before.plan_id, before.plan_digest, before.seen["previous_plan"]) == ("p9", "9" * 64, "p8")


def test_letters_lose_what_they_quote_and_nothing_else(ledger: SqlLedger) -> None:
    job, other = running_job(ledger), running_job(ledger, "other")
    ledger.insert_dead_letters([letter(job, "w1", message="quotes"), letter(job, "w2", message="")])
    ledger.insert_dead_letters([letter(other, "w1", message="quotes")])
    assert ledger.forget_messages(job.job_id) == 1
    assert [x.message for x in ledger.dead_letters(job.job_id)] == ["", ""]
    assert [x.message for x in ledger.dead_letters(other.job_id)] == ["quotes"]


@pytest.mark.parametrize("custom_id", ["ann@example.org", "nul\x00", "it's (here)", "🙂" * 80])
def test_an_id_goes_out_of_letters_and_events(ledger: SqlLedger, custom_id: str) -> None:
    job = running_job(ledger)
    ledger.insert_dead_letters(
        [letter(job, "w1", custom_id, message="m"), letter(job, "w2", "bob", message="m")]
    )
    told = f"line 1 ({custom_id[:64]!r}): bad; line 2 ('bob'): bad"
    ledger.add_event(job.job_id, "lines_refused", reason=told)
    assert ledger.erase_letters(job.job_id, {custom_id: "erased:1", "nobody": "erased:2"}) == 1
    erased, bob = sorted(ledger.dead_letters(job.job_id), key=lambda x: x.wire_id)
    assert (erased.custom_id, erased.message, erased.request_path) == ("erased:1", "", "")
    assert (bob.custom_id, bob.message) == ("bob", "m") and bob.request_path
    assert ledger.events(job.job_id)[-1].reason == "line 1 (erased:1): bad; line 2 ('bob'): bad"
    assert ledger.find_dead_letters(custom_id=custom_id) == []
