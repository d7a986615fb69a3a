"""What a person does next in Airflow after a decision, in words."""

from __future__ import annotations

from airflow_batch_llm.core.by_hand import ONE_TASK
from airflow_batch_llm.core.model import Job


def clear(job: Job, task: str, *, downstream: bool = False) -> str:
    """Say which task of the job's run is to be cleared.

    :param task: ``submit``, ``reconcile``, ``retry`` or ``dead_letter``.
    """
    key = job.key
    where = f"DAG {key.dag_id}, run {key.run_id}"
    _, index = _owner(job)
    if index:
        where += f", map index {index}"
    downstream = downstream and not job.seen.get(ONE_TASK)
    return f"clear task {task_name(job, task)}{' with downstream' if downstream else ''} of {where}"


def task_name(job: Job, task: str) -> str:
    """Return the id of a task of the job; its kind alone where the submitting task is not ``submit``.

    The one-task form has only one: the next clear of it carries out what was decided.
    """
    owner, _ = _owner(job)
    if job.seen.get(ONE_TASK):
        return owner
    prefix, dot, last = owner.rpartition(".")
    return f"{prefix}{dot}{task}" if last == "submit" else task


def _owner(job: Job) -> tuple[str, str]:
    """Return the submitting task and its map index, "" where it is not mapped."""
    owner, _, index = str(job.seen.get("owner") or job.key.task_id).partition("[")
    if job.key.map_index >= 0:
        index = str(job.key.map_index)
    return owner, index.rstrip("]")


def goes_on(job: Job) -> str:
    """Say how what is pending gets sent."""
    which = clear(job, "retry", downstream=True) + ("" if job.seen.get(ONE_TASK) else ", not submit")
    return (
        f"Tasks of the job that still run go on by themselves. If they have ended, {which}: what is pending "
        "is sent, nothing that is answered."
    )
