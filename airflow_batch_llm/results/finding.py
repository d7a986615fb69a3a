"""Which job's results are meant: a task's XCom, a job's id, a folder, or the names of DAG, run and task."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_batch_llm.core.files import plan_job_path, results_path
from airflow_batch_llm.core.model import Job, JobKey
from airflow_batch_llm.core.publish import MANIFEST
from airflow_batch_llm.exceptions import ConfigurationError, ResultsError
from airflow_batch_llm.process_context import outside_of_tasks
from airflow_batch_llm.storage.workspace import ObjectWorkspace

if TYPE_CHECKING:
    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.core.ports import Workspace

#: Fewest characters of a job id that name it.
SHORTEST_PREFIX = 6
_JOB_ID = re.compile(rf"[0-9a-f]{{{SHORTEST_PREFIX},32}}")
#: Last part of the task ids of a group, which all stand for the same job.
_GROUP_TASKS = ("submit", "reconcile", "retry", "dead_letter")


@dataclass(frozen=True)
class Place:
    """Where a job's results are.

    :param folder: relative to the workspace.
    :param description: path of what was asked (``job.json``), where it may be.
    :param job: None where only a folder was named.
    :param books: ledger and workspace of the job, where one was named.
    """

    workspace: Workspace
    folder: str
    description: str | None = None
    job: Job | None = None
    books: tuple[Ledger, Workspace] | None = None

    @property
    def url(self) -> str:
        """The folder's address."""
        return self.workspace.url(self.folder)


def open_books() -> tuple[Ledger, Workspace]:
    """Open the ledger and the workspace that Airflow's configuration names; in tasks and outside of them.

    :raises ConfigurationError, LedgerSchemaError, LedgerUnavailable: they cannot be opened.
    """
    from airflow_batch_llm.hooks.state import open_ledger, open_workspace

    with outside_of_tasks():
        return open_ledger(), open_workspace()


def find_results(
    ref: Any = None,
    *,
    dag_id: str | None = None,
    run_id: str | None = None,
    task_id: str | None = None,
    map_index: int = -1,
    books: tuple[Ledger, Workspace] | None = None,
) -> Place:
    """Return where the results are that are meant. Nothing of them is read.

    :param books: ledger and workspace; None for those that are configured.
    :raises ResultsError: no job, or several, are like that.
    :raises ConfigurationError: the arguments do not fit together.
    """
    names = (dag_id, run_id, task_id)
    if (ref is None) == (names == (None, None, None)):
        raise ConfigurationError(
            "results are named by a task's output, a job id or a folder; or by dag_id, run_id and task_id"
        )
    if ref is None:
        if None in names:
            raise ConfigurationError("dag_id, run_id and task_id are needed together")
        return _of_task(books or open_books(), str(dag_id), str(run_id), str(task_id), map_index)
    if isinstance(ref, Mapping):
        job_id = ref.get("job_id")
        if not isinstance(job_id, str):
            raise ResultsError("the task's output names no job: give what a task of a batch job returns")
        return _of_job(books or open_books(), job_id)
    if hasattr(ref, "__fspath__") or hasattr(ref, "joinpath"):
        return _folder(str(ref))
    if isinstance(ref, str) and _JOB_ID.fullmatch(ref.lower()):
        return _of_job(books or open_books(), ref.lower())
    if isinstance(ref, str) and ("/" in ref or os.path.isdir(ref)):
        return _folder(ref)
    told = f"the {type(ref).__name__}" if not isinstance(ref, str) else repr(ref)
    raise ResultsError(
        f"{told} names no results: give a task's output, a job id ({SHORTEST_PREFIX} or more characters of "
        "it) or a results folder"
    )


def _of_job(books: tuple[Ledger, Workspace], prefix: str) -> Place:
    found = books[0].jobs(prefix=prefix, limit=2)
    if not found:
        raise ResultsError(f"there is no job {prefix} in the ledger")
    if len(found) > 1:
        raise ResultsError(f"several jobs begin with {prefix}; give more of the id")
    return _place(books, found[0])


def _of_task(
    books: tuple[Ledger, Workspace], dag_id: str, run_id: str, task_id: str, map_index: int
) -> Place:
    """Find the job by the submitting task; the name of the group, or of another of its tasks, will do."""
    ledger = books[0]
    prefix, dot, last = task_id.rpartition(".")
    candidates = [task_id, f"{task_id}.submit"]
    if last in _GROUP_TASKS:
        candidates.append(f"{prefix}{dot}submit")
    for candidate in candidates:
        key = JobKey(ledger.namespace(), dag_id, run_id, candidate, map_index)
        if (job := ledger.get_job(key.job_id)) is not None:
            return _place(books, job)
    index = f", map index {map_index}" if map_index >= 0 else ""
    raise ResultsError(f"there is no job of task {task_id} in run {run_id} of DAG {dag_id}{index}")


def _place(books: tuple[Ledger, Workspace], job: Job) -> Place:
    workspace = books[1]
    root = workspace.job_root(job.key)
    described = plan_job_path(root, job.plan_id) if job.plan_id is not None else None
    return Place(workspace, results_path(root, job.revision), described, job, books)


def _folder(address: str) -> Place:
    """Return a folder as it is, wherever it is; that of a job has ``job.json`` two levels above."""
    address = address.rstrip("/").removesuffix(f"/{MANIFEST}")
    local = "://" not in address or address.startswith("file://")
    if local:
        address = os.path.abspath(address.removeprefix("file://"))
    root, _, folder = address.rpartition("/")
    described = None
    if root.endswith("/results"):
        root, folder, described = root.removesuffix("/results"), f"results/{folder}", "job.json"
    if local:
        return Place(ObjectWorkspace(root or "/"), folder, described)
    from airflow.sdk import ObjectStoragePath

    with outside_of_tasks():
        return Place(ObjectWorkspace(ObjectStoragePath(root)), folder, described)
