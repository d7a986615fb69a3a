"""``batch-llm purge --custom-id``: one row goes out of every place, and the job works on without it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_batch_llm import read_results
from airflow_batch_llm.core.erase import erase
from airflow_batch_llm.core.erase_lists import erased_id
from airflow_batch_llm.core.model import JobState
from airflow_batch_llm.core.policy import RowRetry
from airflow_batch_llm.core.reuse import Reuse
from airflow_batch_llm.core.spec import Rerun
from airflow_batch_llm.results.parquet import drop_rows
from tests.integration.cli.conftest import SQLITE, Command, printed_json
from tests.integration.purge.conftest import WHO, files_with, ledger_texts, outcomes_of
from tests.integration.results.conftest import formats
from tests.job_bench import Bench

pytestmark = [SQLITE, pytest.mark.usefixtures("provider")]

ANN = "ann@example.org"
TEXTS = {ANN: "quokka letter", "bob": "wombat letter", "eve": "bad wombat", "dan": "bad quokka"}
BAD = {"rows": [{"match": {"contains": "bad"}, "fault": "bad_request"}]}
ONCE = RowRetry(max_rounds=0)


@pytest.fixture
def job(bench: Callable[..., Bench]) -> Bench:
    """Two answers, two dead rows, in two batches; results as Parquet too."""
    made = bench(texts=TEXTS, policy=ONCE, options={"max_requests": 2}, results_formats=formats())
    made.server.set_scenario(BAD)
    made.run()
    return made


def gone(job: Bench, custom_id: str, *texts: str) -> None:
    """See that nothing of the row is left, in files of any form or in the ledger."""
    assert files_with(job.folder, custom_id, *texts) == {}
    assert not any(text in ledger_texts(job) for text in (custom_id, *texts))
    for path in job.folder.rglob("*.parquet"):
        import pyarrow.parquet as pq

        assert custom_id not in pq.read_table(path).column("custom_id").to_pylist()


def results(job: Bench) -> dict[str, Any]:
    return {answer.custom_id: answer.output for answer in job.answers()}


def test_an_answered_row_goes_from_every_place_and_all_others_stay(job: Bench, command: Command) -> None:
    answer, bob = str(results(job)[ANN]), results(job)["bob"]
    before, outcomes = job.job(), outcomes_of(job)
    done = printed_json(command, "purge", "--custom-id", ANN, *WHO)["jobs"]
    assert [(job_["job_id"], job_["rows"]) for job_ in done] == [(job.key.job_id, 1)]
    gone(job, ANN, "quokka letter", answer)
    assert results(job) == {"bob": bob}
    assert outcomes_of(job) == outcomes, "verdicts and wire ids stay"
    assert job.job().counts == before.counts and job.job().state is JobState.SETTLED
    manifest = json.loads((job.root / "results" / "1" / "_manifest.json").read_text())
    assert (manifest["rows"], manifest["erased"]) == (1, 1)
    assert [e.actor for e in job.ledger.events(job.key.job_id) if e.action == "erased"] == ["ann"]
    assert len(list(job.folder.rglob("requests*.jsonl"))) == 2, "no old copy is left"
    assert printed_json(command, "purge", "--custom-id", ANN, *WHO)["jobs"] == []


def test_a_dead_row_goes_with_its_letter_and_is_not_sent_again(job: Bench, command: Command) -> None:
    with job.ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE batch_llm_dead_letter SET message = 'bad quokka is bad' WHERE custom_id = 'dan'"
        )
    assert len(printed_json(command, "purge", "--custom-id", "dan", *WHO)["jobs"]) == 1
    gone(job, "bad quokka")
    letters = {letter.custom_id: letter for letter in job.letters()}
    assert set(letters) == {"eve", erased_id("dan")} and letters[erased_id("dan")].message == ""
    job.server.set_scenario({})
    words = ("dead-letters", "redrive", job.key.job_id, "--all", "--wait", "--reason", "mended")
    assert printed_json(command, *words)["redriven"] == 1
    assert set(results(job)) == {ANN, "bob", "eve"}


def test_a_clear_after_it_pays_nothing_again_and_the_sums_agree(job: Bench, command: Command) -> None:
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    paid = job.server.summary()["charged"]
    job.server.set_scenario({})
    without = {custom_id: text for custom_id, text in TEXTS.items() if custom_id != ANN}
    again = job.clear(texts={**without, "new": "a new one"}, rerun=Rerun.FAILED)
    assert again.run().counts["answered"] == 4 and set(results(again)) == {"bob", "eve", "dan", "new"}
    assert job.server.summary()["charged"] == paid + 3
    gone(job, ANN, "quokka letter")


def test_a_row_that_is_still_in_the_source_counts_as_answered_and_is_in_no_results(
    job: Bench, command: Command
) -> None:
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    paid = job.server.summary()["charged"]
    again = job.clear()
    settled = again.run()
    assert (settled.counts["answered"], settled.counts["erased"]) == (2, 1)
    assert set(results(again)) == {"bob"} and job.server.summary()["charged"] == paid
    # The source has brought the row back into the list of rows; erased once more, it is gone again.
    assert files_with(job.folder, ANN) != {}
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    gone(job, ANN, "quokka letter")


def test_every_job_that_has_the_row_loses_it_and_those_that_have_not_settled_are_named(
    bench: Callable[..., Bench], command: Command
) -> None:
    first, other, running = bench(texts=TEXTS), bench(texts={"bob": "b"}), bench(texts={ANN: "quokka note"})
    first.run()
    other.run()
    running.server.set_scenario({"pace": {"seconds": 600}})
    running.step(1, submitting=True)  # type: ignore[arg-type]
    words = ("purge", "--custom-id", ANN, "--custom-id", "dan", *WHO, "--json")
    status, out, _ = command(*words)
    shown = json.loads(out)
    assert status == 7 and [job["rows"] for job in shown["jobs"]] == [2]
    assert [job["job_id"] for job in shown["passed_over"]] == [running.key.job_id]
    assert files_with(first.root, ANN, "quokka letter", "bad quokka") == {}
    assert other.job().version == 0 or "erase_begun" not in other.actions()


def test_a_dry_run_only_counts(job: Bench, command: Command) -> None:
    shown = printed_json(command, "purge", "--custom-id", ANN, "--dry-run", *WHO)
    assert shown["jobs"][0]["rows"] == 1 and set(results(job)) == {ANN, "bob"}
    assert "erase_begun" not in job.actions()


# -- rows that share an answer -----------------------------------------------------------------------
def test_an_answer_that_another_row_shares_stays_that_rows(
    bench: Callable[..., Bench], command: Command
) -> None:
    texts = {ANN: "the same letter", "bob": "the same letter", "eve": "another"}
    job = bench(texts=texts, reuse=Reuse(scope="job"))
    job.run()
    before = results(job)
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    gone(job, ANN)
    assert results(job) == {"bob": before["bob"], "eve": before["eve"]}
    again = job.clear(texts={"bob": texts["bob"], "eve": texts["eve"]})
    assert again.run().counts["answered"] == 2 and results(again) == results(job)
    assert job.server.summary()["charged"] == 2
    # The last one that shares it takes it along.
    assert command("purge", "--custom-id", "bob", *WHO)[0] == 0
    gone(job, "the same letter", str(before["bob"]))


def test_no_later_row_takes_an_answer_that_was_erased(bench: Callable[..., Bench], command: Command) -> None:
    first = bench(texts={ANN: "the same letter", "eve": "another"}, reuse=Reuse(scope="task"))
    first.run()
    second = bench(texts={ANN: "the same letter"}, reuse=Reuse(scope="task"))
    second.run()
    assert second.answers()[0].origin == "reused" and second.server.summary()["charged"] == 2
    done = printed_json(command, "purge", "--custom-id", ANN, *WHO)["jobs"]
    assert len(done) == 2
    gone(first, ANN, "the same letter")
    for again in (
        first.clear(texts={"eve": "another", "bob": "the same letter"}),
        second.clear(texts={"bob": "the same letter"}),
        bench(texts={"bob": "the same letter"}, reuse=Reuse(scope="task")),
    ):
        paid = first.server.summary()["charged"]
        again.run()
        assert "bob" in results(again)
        assert first.server.summary()["charged"] <= paid + 1
        assert all(answer.output for answer in again.answers())


def test_a_reused_row_is_erased_and_its_job_settles_again(
    bench: Callable[..., Bench], command: Command
) -> None:
    bench(texts={ANN: "one letter", "eve": "another"}, reuse=Reuse(scope="task")).run()
    job = bench(texts={ANN: "one letter", "eve": "another"}, reuse=Reuse(scope="task"))
    job.run()
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    gone(job, ANN, "one letter")
    settled = job.retry().settle()
    assert (settled.counts["answered"], settled.counts["erased"]) == (2, 1) and set(results(job)) == {"eve"}


# -- crashes ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("settles", [True, False])
def test_wherever_it_dies_the_job_stays_whole_and_the_next_one_finishes_it(
    bench: Callable[..., Bench], command: Command, settles: bool
) -> None:
    """``settles``: the last task is cleared in between, and publishes what is left."""
    job = bench(texts=TEXTS, policy=ONCE, options={"max_requests": 2}, results_formats=formats())
    job.server.set_scenario(BAD)
    job.run()
    seen: set[str] = set()

    def attempt(number: int) -> bool:
        """Die at the n-th point; says whether it came to its end."""
        count = itertools.count(1)

        def fault(point: str) -> None:
            seen.add(point)
            if next(count) == number:
                raise KeyboardInterrupt

        work = erase(
            job.ledger, job.workspace, job.job(), [ANN], actor="ann", reason="r", backend_of=None,
            drop_rows={".parquet": drop_rows}, fault=fault,
        )  # fmt: skip
        try:
            job.call(lambda engine: work)
        except KeyboardInterrupt:
            return False
        return True

    for number in itertools.count(1):
        finished = attempt(number)
        assert set(results(job)) in ({ANN, "bob"}, {"bob"}), "what is published can be read"
        if settles:
            job.retry().settle()
            assert set(results(job)) in ({ANN, "bob"}, {"bob"})
        if finished:
            break
    points = {"erase.begun", "erase.requests", "erase.outcomes", "erase.batch", "erase.swept", "erase.plan"}
    assert seen == (points if settles else points | {"erase.manifest"})
    job.retry().settle()
    assert set(results(job)) == {"bob"}
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    gone(job, ANN, "quokka letter")


def test_read_results_works_on_after_an_erasure(
    job: Bench, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("purge", "--custom-id", ANN, *WHO)[0] == 0
    rows = list(read_results(job.root / "results" / "1"))
    assert [row["custom_id"] for row in rows] == ["bob"]
