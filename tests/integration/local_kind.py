"""An executor of somebody's own that is a kind of LocalExecutor."""

from __future__ import annotations

from airflow.executors.local_executor import LocalExecutor


class PatientLocalExecutor(LocalExecutor):
    """Runs tasks on the scheduler's machine, as its parent does."""
