"""What a person does next in Airflow after a decision, in words."""

from __future__ import annotations

from airflow_batch_llm.core.model import Job


def clear(job: Job, task: str, *, downstream: bool = False) -> str:
    """Say which task of the job's run is to be cleared.

    :param task: ``submit``, ``reconcile``, ``retry`` or ``dead_letter``.
    """
    key = job.key
    where = f"DAG {key.dag_id}, run {key.run_id}"
    if key.map_index >= 0:
        where += f", map index {key.map_index}"
    return f"clear task {task_name(job, task)}{' with downstream' if downstream else ''} of {where}"


def task_name(job: Job, task: str) -> str:
    """Return the id of a task of the job; its kind alone where the submitting task is not ``submit``."""
    owner = str(job.seen.get("owner") or job.key.task_id)
    prefix, dot, last = owner.rpartition(".")
    return f"{prefix}{dot}{task}" if last == "submit" else task


def goes_on(job: Job) -> str:
    """Say how what is pending gets sent."""
    return (
        "Tasks of the job that still run go on by themselves. If they have ended, "
        f"{clear(job, 'retry', downstream=True)}, not submit: what is pending is sent, nothing that is "
        "answered."
    )
