"""How a run gets red for each reason that the runbook knows, and how the cause is mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_batch_llm import RowRetry
from airflow_batch_llm.hooks.state import open_ledger
from tests.integration.cli.runbook.stage import Stage
from tests.integration.tasks.conftest import set_llm
from tests.integration.tasks.desk import RECONCILE, SUBMIT

HALFWAY = {"seconds": 600, "hold_at": 0.5}


@dataclass(frozen=True)
class Red:
    """A reason for a red run.

    :param make: runs the DAG until it is red.
    :param task: the task that fails.
    :param code: what its error names.
    :param mend: takes the cause away.
    """

    make: Callable[[Stage], None]
    code: str
    task: str = "label.dead_letter"
    mend: Callable[[Stage], None] = lambda stage: stage.server.set_scenario({})


def _small_batches(stage: Stage) -> None:
    set_llm(stage.monkeypatch, stage.server, extra={"max_requests": 2})


def _refused_after_one(**error: Any) -> Callable[[Stage], None]:
    """One batch is accepted, the next create call is refused."""

    def make(stage: Stage) -> None:
        _small_batches(stage)
        stage.server.set_scenario({"calls": [{"on": "create", "fault": "error", "skip": 1, **error}]})
        stage.start()

    return make


def _rows_blame_the_account(stage: Stage) -> None:
    match = {"custom_id": ".*", "every": 2}
    stage.server.set_scenario({"rows": [{"match": match, "fault": "insufficient_quota"}]})
    stage.start()


def _batch_is_refused(stage: Stage) -> None:
    refusal = {"fault": "fail_validation", "code": "model_not_found", "times": 1}
    stage.server.set_scenario({"batches": [refusal]})
    _small_batches(stage)
    stage.start()


def _first_batch_is_denied(stage: Stage) -> None:
    """The provider denies the first of three batches, a while after it was accepted."""
    _small_batches(stage)
    stage.server.set_scenario({"pace": HALFWAY})

    old = "UPDATE batch_llm_batch SET submitted_at = submitted_at - 1000 WHERE job_id = {job} AND seq = 0"

    def deny() -> None:
        stage.sql(old)
        stage.server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 404}]})
        stage.server.release()

    stage.runs.after(SUBMIT, deny)
    stage.runs.after(SUBMIT, lambda: stage.server.set_scenario({}))
    stage.start()


def _results_are_gone(stage: Stage) -> None:
    def later() -> None:
        stage.sql("UPDATE batch_llm_batch SET ended_at = ended_at - 1000 WHERE job_id = {job}")

    stage.server.set_scenario({"calls": [{"on": "download", "fault": "error", "status": 404}]})
    stage.runs.after(SUBMIT, later)
    stage.runs.after(SUBMIT, later)
    stage.start()


def _results_never_come_whole(stage: Stage) -> None:
    stage.monkeypatch.setattr("airflow_batch_llm.backends.retrying._FIRST_DELAY", 0.0)
    stage.server.set_scenario({"calls": [{"on": "download", "fault": "cut"}]})
    stage.start()


def _cancelled_by_somebody(stage: Stage) -> None:
    def cancel() -> None:
        (batch,) = open_ledger().batches(stage.job_id())
        stage.cancel_at_provider(batch.provider_batch_id or "")

    stage.server.set_scenario({"pace": HALFWAY})
    stage.runs.after(SUBMIT, cancel)
    stage.start()


def _cancelled_by_command(stage: Stage) -> None:
    stage.server.set_scenario({"pace": HALFWAY})
    stage.runs.after(SUBMIT, lambda: stage.command(["cancel", "JOB", "--reason", "not today"]))
    stage.start()


def _another_ledger(stage: Stage) -> None:
    """The connection of the ledger names an empty database, after the first batch was accepted."""
    stage.server.set_scenario({"pace": HALFWAY})

    def switch() -> None:
        stage.use_ledger(stage.workspace.parent / "other.db")
        stage.server.release()

    stage.runs.after(SUBMIT, switch)
    stage.start()


def _submit_cleared_alone(stage: Stage) -> None:
    stage.start()
    assert stage.run is not None
    stage.warehouse.execute("UPDATE tickets SET body = 'another text.' WHERE id = 1")
    stage.runs.rerun(stage.dag, stage.run, SUBMIT)


def _bad_rows(**match: Any) -> Callable[[Stage], None]:
    def make(stage: Stage) -> None:
        stage.server.set_scenario({"rows": [{"match": match, "fault": "bad_request"}]})
        stage.start()

    return make


def _file_changed_by_somebody(stage: Stage) -> None:
    """The plan says that a row was refused, which the ledger does not know of."""

    def change() -> None:
        (refused,) = stage.workspace.glob("**/plan-*/refused.jsonl")
        refused.write_text('{"custom_id":"9","wire_id":"x","verdict":"bad_request","code":"x"}\n')

    stage.runs.after("label.retry", change)
    stage.start()


def _file_is_back(stage: Stage) -> None:
    (refused,) = stage.workspace.glob("**/plan-*/refused.jsonl")
    refused.write_text("")


def _too_late(stage: Stage) -> None:
    """The job's time is over while its batch runs, and something wakes the task."""
    stage.server.set_scenario({"pace": HALFWAY})

    def wake() -> None:
        stage.sql("UPDATE batch_llm_job SET deadline_at = deadline_at - 1000000 WHERE job_id = {job}")
        stage.server.set_scenario({"calls": [{"on": "retrieve", "fault": "error", "status": 404}]})

    stage.runs.after(SUBMIT, wake)
    stage.runs.after(SUBMIT, lambda: stage.server.set_scenario({}))
    stage.start(on_deadline="fail", job_timeout=timedelta(hours=2), row_retry=RowRetry(max_rounds=0))


def _change_the_dag(stage: Stage) -> None:
    stage.server.set_scenario({})
    stage.values["max_tokens"] = 200


REDS: dict[str, Red] = {
    "BLLM-020": Red(_refused_after_one(status=401), "BLLM-020"),
    "BLLM-021": Red(_rows_blame_the_account, "BLLM-021"),
    "BLLM-023": Red(_batch_is_refused, "BLLM-023"),
    "BLLM-027": Red(_results_never_come_whole, "BLLM-027", RECONCILE, lambda stage: None),
    "BLLM-031 a lost batch": Red(_first_batch_is_denied, "BLLM-031"),
    "BLLM-031 results that are gone": Red(_results_are_gone, "BLLM-031"),
    "BLLM-032": Red(_cancelled_by_somebody, "BLLM-032"),
    "BLLM-033": Red(_another_ledger, "BLLM-033", SUBMIT, lambda stage: stage.use_ledger(None)),
    "BLLM-034": Red(_submit_cleared_alone, "BLLM-034", SUBMIT),
    "BLLM-040": Red(_bad_rows(contains="number 2."), "BLLM-040"),
    "BLLM-041": Red(_bad_rows(), "BLLM-041", mend=_change_the_dag),
    "BLLM-042": Red(_file_changed_by_somebody, "BLLM-042", mend=_file_is_back),
    "BLLM-043": Red(_too_late, "BLLM-043"),
}

#: What fails before any batch was accepted: the submitting task itself.
REFUSED_AT_ONCE = {
    "BLLM-020": {"on": "create", "fault": "error", "status": 403},
    "BLLM-021": {"on": "create", "fault": "error", "status": 400, "code": "billing_hard_limit_reached"},
    "BLLM-023": {"on": "create", "fault": "error", "status": 400, "code": "invalid_request"},
    "BLLM-023 for the file": {"on": "upload", "fault": "error", "status": 400, "code": "invalid_request"},
}
CANCELLED_BY_COMMAND = Red(_cancelled_by_command, "BLLM-032")
