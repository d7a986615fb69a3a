"""Results that the machine cannot fetch, and a person brings: nothing is paid twice, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_batch_llm.core.by_hand import (
    Declined,
    abandon_results,
    abandon_running,
    accepted_halt,
    adopt,
    settle_accepted,
)
from airflow_batch_llm.core.handed_files import HandedFile
from airflow_batch_llm.core.model import Batch, BatchState, JobState, RemoteBatch, RemoteStatus
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.purge import refuse_unsettled
from airflow_batch_llm.core.reconcile import NOT_FETCHED
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.exceptions import InputError, TransferError
from tests.integration.engine.handing_in import CUT, FORGOTTEN, download, hands_in, keep_lines
from tests.integration.engine.kills import die_at, was_killed
from tests.integration.engine.strangers import Street, street, unmarked_server
from tests.job_bench import CHAT, QUICK, Bench

__all__ = ["street", "unmarked_server"]

TEXTS = {f"t-{n}": f"ticket number {n}." for n in range(6)}
GONE_AT_ONCE = replace(QUICK, gone_after=0.0)
SOME_FAIL = {"rows": [{"match": {"contains": "number 2."}, "fault": "bad_request"}]}


def downloaded(
    bench: Callable[..., Bench], folder: Path, *, then: dict[str, Any] | None = None, **values: Any
) -> tuple[Bench, Batch, list[HandedFile]]:
    """Return a job whose one batch has ended, that batch, and its results as a person has them.

    :param then: the scenario that is in force from then on.
    """
    job = bench(texts=TEXTS, **values)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    return job, batch, download(job, batch, folder, then=then)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_stream_that_is_always_cut_is_handed_in_and_the_job_is_done(
    provider: str, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, provider=provider, options={"max_retries": 0})
    job.until(Until.ENDED, submitting=True)
    job.server.set_scenario(CUT)
    with pytest.raises(TransferError, match=f"batch-llm hand-in {job.key.job_id[:12]} 1-0-0 --output"):
        job.step(Until.RECONCILED)
    (batch,) = job.batches()
    files = download(job, batch, tmp_path, then=CUT)
    downloads = len(job.server.requests("GET"))
    handed = job.call(hands_in(batch, files))
    assert (handed.taken, handed.missing, handed.foreign, handed.changed) == (6, 0, 0, True)
    assert job.until(Until.SETTLED).counts["answered"] == 6
    asked = job.server.requests("GET")[downloads:]
    assert not [c for c in asked if c["path"].endswith(("/content", "/results"))], "nothing is fetched"
    job.assert_accounted()
    assert job.server.summary()["charged"] == 6 and len(job.server.batches()) == 1
    event = next(e for e in job.ledger.events(job.key.job_id) if e.action == "handed_in")
    assert (event.actor, event.reason) == ("ann", "1 files, 6 of 6 rows: from the console")


def test_the_way_out_is_noted_once(bench: Callable[..., Bench]) -> None:
    job = bench(texts=TEXTS, options={"max_retries": 0})
    job.until(Until.ENDED, submitting=True)
    job.server.set_scenario(CUT)
    for _ in range(2):
        with pytest.raises(TransferError, match="If it fails again and again"):
            job.step(Until.RECONCILED)
    told = [event.reason for event in job.ledger.events(job.key.job_id) if event.action == NOT_FETCHED]
    assert len(told) == 1 and told[0].startswith("BLLM-027. If it fails again and again: batch-llm hand-in")


def test_what_a_person_does_not_bring_is_fetched_where_it_can_be(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    """The error file is small, and comes through."""
    job = bench(texts=TEXTS, policy=RowRetry(max_rounds=0), options={"max_retries": 0})
    job.server.set_scenario(SOME_FAIL)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    output, errors = download(job, batch, tmp_path, then=CUT)
    with pytest.raises(Declined, match=r"1 rows .* paid for, again.* error \(BLLM-027\)"):
        job.call(hands_in(batch, [output]))
    assert job.batches() == [batch], "nothing was changed"
    job.server.set_scenario({})
    handed = job.call(hands_in(batch, [output]))
    assert (handed.taken, handed.missing, handed.fetched) == (6, 0, ["error"])
    assert {file["kind"] for file in handed.batch.files} == {"output", "error"}
    # Brought after all: the same file, and no further one.
    again = job.call(hands_in(batch, [errors]))
    assert not again.changed and again.batch.files == handed.batch.files
    job.server.set_scenario(CUT)
    assert job.until(Until.SETTLED).counts["answered"] == 5 and job.open_letters() == {"t-2": "invalid_value"}
    assert job.server.summary()["answered_twice"] == 0


def test_files_that_are_brought_one_after_the_other_are_read_together(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    (whole,) = download(job, batch, tmp_path, then=CUT)
    lines = whole.local.read_bytes().splitlines(keepends=True)
    parts = [replace(whole, local=tmp_path / f"part-{n}") for n in range(2)]
    parts[0].local.write_bytes(b"".join(lines[:4]))
    parts[1].local.write_bytes(b"".join(lines[3:]))
    with pytest.raises(Declined, match="2 rows of batch"):
        job.call(hands_in(batch, parts[:1]))
    job.call(hands_in(batch, parts[:1], pay_again=True))
    handed = job.call(hands_in(batch, parts[1:]))
    assert (handed.taken, handed.missing, handed.repeated) == (6, 0, 1)
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 1


def test_rows_that_are_in_no_file_are_sent_again_where_a_person_says_so(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    (file,) = download(job, batch, tmp_path, then=CUT)
    file.local.write_bytes(file.local.read_bytes()[:-40])
    with pytest.raises(Declined, match="6 lines, and line 6 cannot be read"):
        job.call(hands_in(batch, [file]))
    with pytest.raises(Declined, match=r"1 rows of batch \S+ are not in what was handed in"):
        job.call(hands_in(batch, [file], as_is=True))
    assert job.batches() == [batch]
    handed = job.call(hands_in(batch, [file], as_is=True, pay_again=True))
    assert (handed.taken, handed.missing, handed.paid_again, handed.unreadable) == (5, 1, 1, 1)
    job.server.set_scenario({})
    assert job.until(Until.SETTLED).counts["answered"] == 6
    assert [b["total"] for b in job.server.batches()] == [1, 6]


def test_a_file_of_another_batch_is_refused_and_its_rows_are_not_read(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, options={"max_requests": 3})
    job.until(Until.ENDED, submitting=True)
    first, second = job.batches()
    (file,), (other,) = (download(job, batch, tmp_path, then=CUT) for batch in (first, second))
    with pytest.raises(Declined, match="3 lines, and none is a row of batch"):
        job.call(hands_in(first, [other]))
    together = replace(file, local=tmp_path / "together")
    together.local.write_bytes(b"\xef\xbb\xbf" + other.local.read_bytes() + file.local.read_bytes())
    handed = job.call(hands_in(first, [together]))
    assert (handed.taken, handed.foreign, handed.repeated) == (3, 3, 0)
    job.call(hands_in(second, [other]))
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 2


# -- results that the provider has no more -----------------------------------------------------------
@pytest.mark.parametrize("provider", ["anthropic", "mistral"])
def test_a_lost_batch_whose_results_a_person_has_is_read(
    provider: str, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, provider=provider, settings=GONE_AT_ONCE)
    job.server.set_scenario({"pace": {"seconds": 600}})
    job.step(Until.ENDED, submitting=True)
    job.server.release()
    job.server.wait_for("completed")
    (batch,) = job.batches()
    files = download(job, batch, tmp_path, then=FORGOTTEN)
    assert job.until(Until.SETTLED).halt_code == "BLLM-031"
    assert job.batches()[0].state in (BatchState.LOST, BatchState.RECONCILED)
    job.call(hands_in(batch, files))
    assert job.until(Until.SETTLED).state is JobState.HALTED and len(job.answers()) == 6
    assert job.ledger.resume_job(job.job(), actor="ann", reason="there") is not None
    assert job.until(Until.SETTLED).counts["answered"] == 6 and len(job.server.batches()) == 1
    assert job.server.summary()["charged"] == 6


@pytest.mark.parametrize("before", ["abandoned", "accepted"])
def test_results_that_were_gone_are_read_before_their_rows_are_sent_again(
    before: str, bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job, batch, files = downloaded(bench, tmp_path, then=FORGOTTEN, settings=GONE_AT_ONCE)
    assert job.until(Until.SETTLED).halt_code == "BLLM-031"
    assert job.batches()[0].state is BatchState.RECONCILED
    if before == "abandoned":
        abandon_results(
            job.ledger, job.workspace, job.job(), job.batches()[0], actor="ann", reason="send them again"
        )
    handed = job.call(hands_in(batch, files))
    assert handed.taken == 6 and handed.batch.error_code is None
    if before == "accepted":
        assert job.ledger.accept_job(job.job(), letters=0, actor="ann", reason="enough") is not None
    assert job.ledger.resume_job(job.job(), actor="ann", reason="there") is not None
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 1
    job.assert_accounted()


def test_results_that_are_brought_after_the_job_has_settled_resolve_its_letters(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job, batch, files = downloaded(bench, tmp_path, then=FORGOTTEN, settings=GONE_AT_ONCE)
    halted = job.until(Until.SETTLED)
    assert job.ledger.accept_job(halted, letters=0, actor="ann", reason="enough") is not None
    accepted = accepted_halt(job.job())
    assert accepted is not None
    job.call(lambda engine: settle_accepted(engine.tools, job.job(), accepted))
    assert job.job().state is JobState.SETTLED and len(job.open_letters()) == 6

    job.call(hands_in(batch, files))
    with pytest.raises(InputError, match="handed in and are not read yet"):
        job.call(lambda engine: engine.redrive(actor="ann", reason="again", mark="r"))
    with pytest.raises(Declined, match="handed in after its job had settled"):
        refuse_unsettled(job.ledger, job.job())
    settled = job.until(Until.SETTLED)
    assert settled.counts["answered"] == 6 and job.open_letters() == {} and job.creates() == 1
    refuse_unsettled(job.ledger, settled)


def test_rows_of_an_expired_batch_that_nobody_answered_are_not_asked_about(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, options={"max_retries": 0})
    job.server.set_scenario({"batches": [{"fault": "expire", "after": 0.5, "times": 1}]})
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    output, _ = download(job, batch, tmp_path, then=CUT)
    handed = job.call(hands_in(batch, [output]))
    assert (handed.taken, handed.missing, handed.paid_again) == (3, 3, 0)
    job.server.set_scenario({})
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.server.summary()["charged"] == 6


# -- two at once -------------------------------------------------------------------------------------
def test_a_process_that_dies_before_the_ledger_knows_changes_nothing(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job, batch, files = downloaded(bench, tmp_path, then=CUT)
    dying = replace(job, fault=die_at("hand_in.before_ledger"))
    assert was_killed(lambda: dying.call(hands_in(batch, files)))
    assert job.batches() == [batch]
    handed = job.call(hands_in(batch, files))
    raw = [path.name for path in (job.root / "batch" / batch.batch_id / "raw").iterdir()]
    assert handed.changed and raw == [Path(handed.batch.files[0]["path"]).name], "there is one copy"
    assert not job.call(hands_in(batch, files)).changed
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 1


def test_a_task_that_finds_the_results_gone_leaves_what_is_brought_meanwhile(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job, batch, files = downloaded(bench, tmp_path, then=FORGOTTEN, settings=GONE_AT_ONCE)

    def meanwhile(point: str) -> None:
        if point == "reconcile.before_reconciled" and not job.batches()[0].files:
            with ThreadPoolExecutor() as other:
                other.submit(job.call, hands_in(batch, files)).result()

    replace(job, fault=meanwhile).until(Until.RECONCILED)
    assert job.batches()[0].state is BatchState.RECONCILED and len(job.batches()[0].files) == 1
    assert job.ledger.resume_job(job.job(), actor="ann", reason="there") is not None
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 1


def test_a_round_that_is_about_to_send_the_rows_again_is_dropped(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job, batch, files = downloaded(bench, tmp_path, then=FORGOTTEN, settings=GONE_AT_ONCE)
    halted = job.until(Until.SETTLED)
    abandon_results(job.ledger, job.workspace, halted, job.batches()[0], actor="ann", reason="again")
    assert job.ledger.resume_job(job.job(), actor="ann", reason="send again") is not None

    def meanwhile(point: str) -> None:
        if point == "round.before_pin":
            with ThreadPoolExecutor() as other:
                other.submit(job.call, hands_in(batch, files)).result()

    assert replace(job, fault=meanwhile).run().counts["answered"] == 6
    assert job.creates() == 1 and job.server.summary()["charged"] == 6
    # Now that it was read, there is nothing to bring.
    with pytest.raises(Declined, match="has been read"):
        job.call(hands_in(batch, files))


# -- what else a batch may be ------------------------------------------------------------------------
def test_a_batch_that_runs_has_no_results_yet(bench: Callable[..., Bench], tmp_path: Path) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"pace": {"seconds": 600}})
    job.step(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    file = HandedFile("output", tmp_path / "none")
    file.local.write_bytes(b"{}")
    with pytest.raises(Declined, match="at the provider: its results are not complete"):
        job.call(hands_in(batch, [file]))
    job.server.release()
    job.server.wait_for("completed")
    # It has ended, and no task has seen so: results that are whole are taken.
    handed = job.call(hands_in(batch, download(job, batch, tmp_path, then=CUT)))
    assert handed.batch.state is BatchState.ENDED and handed.batch.provider_status == "done"
    assert job.until(Until.SETTLED).counts["answered"] == 6


def test_a_batch_in_doubt_is_adopted_first(bench: Callable[..., Bench], tmp_path: Path) -> None:
    job = bench(texts=TEXTS)
    job.server.set_scenario({"calls": [{"on": "create", "fault": "dropped", "times": 1}]})
    job.step(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    with pytest.raises(Declined, match="is submitting: .* Say by `batch-llm adopt`"):
        job.call(hands_in(batch, [HandedFile("output", tmp_path / "none")]))


def test_results_of_a_duplicate_are_brought_and_nothing_of_it_is_sent(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    """The primary lacks a row that its duplicate has answered."""
    job = bench(texts=TEXTS, options={"max_retries": 0})
    job.server.set_scenario({"rows": [{"match": {"contains": "number 2."}, "fault": "missing", "times": 1}]})
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    order = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
    headers = {"Authorization": f"Bearer {job.server.api_key}"}
    made = httpx.post(f"{job.server.url}/batches", json=order, headers=headers).raise_for_status().json()
    job.server.wait_for("completed", "completed")
    there = RemoteBatch(made["id"], RemoteStatus.RUNNING, "in_progress")
    duplicate = job.ledger.record_duplicate(batch, there, 1)
    job.server.set_scenario({"calls": [{"on": "download", "fault": "cut", "skip": 1}]})
    with pytest.raises(TransferError, match="hand-in"):
        job.until(Until.RECONCILED)
    files = download(job, duplicate, tmp_path, then=CUT)
    keep_lines(files[0], slice(2, 4))
    handed = job.call(hands_in(duplicate, files))
    assert (handed.taken, handed.missing, handed.paid_again) == (2, 4, 0)
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 2


def test_a_batch_that_may_be_somebody_elses_is_left_alone_and_its_rows_are_read(
    street: Street, tmp_path: Path
) -> None:
    street.stand_still({"on": "create", "fault": "lost_reply", "times": 1})
    job = street.job()
    job.step(Until.ENDED, submitting=True)
    job.expire_leases()
    job.step(Until.ENDED)
    street.run_free()
    street.server.wait_for("completed")
    (batch,) = job.batches()
    assert batch.provisional
    files = download(job, batch, tmp_path, then=FORGOTTEN)
    handed = job.call(hands_in(batch, files))
    assert handed.batch.provisional and handed.batch.files[0]["file_id"] == ""
    assert job.until(Until.SETTLED).counts["answered"] == street.rows
    assert street.touched(batch.provider_batch_id) == [] and street.creates() == 1


def test_what_was_brought_is_neither_given_up_nor_replaced(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    job = bench(texts=TEXTS, settings=GONE_AT_ONCE)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    handed = job.call(hands_in(batch, download(job, batch, tmp_path, then=CUT))).batch
    who = {"actor": "ann", "reason": "no more"}
    for decide in (
        lambda e: abandon_running(e.tools, job.job(), handed, pay_again=True, **who),
        lambda e: adopt(e.tools, job.job(), handed, "batch_other", **who),
    ):
        with pytest.raises(Declined, match="were handed in and are read by the job's tasks"):
            job.call(decide)
    # Whoever read the batch before finds it changed.
    unread = replace(handed, files=())
    assert job.ledger.put_back(unread, reason="queue_full", not_before=None) is None
    assert job.until(Until.SETTLED).counts["answered"] == 6 and job.creates() == 1


def test_a_clear_counts_on_what_was_brought(bench: Callable[..., Bench], tmp_path: Path) -> None:
    job = bench(texts=TEXTS)
    job.until(Until.ENDED, submitting=True)
    (batch,) = job.batches()
    job.call(hands_in(batch, download(job, batch, tmp_path, then=CUT)))
    cleared = job.clear(texts={**TEXTS, "t-9": "a new one."})
    job.server.set_scenario({})
    assert cleared.run().counts["answered"] == 7
    assert [b["total"] for b in cleared.server.batches()] == [1, 6]
    cleared.assert_accounted()
