"""A DAG for proving the stack: a task that waits for a file in the triggerer and returns its interval."""

from __future__ import annotations

from typing import Any

import pendulum
from airflow.sdk import DAG, BaseOperator, Param
from airflow.sdk.definitions.context import Context
from airflow.timetables.interval import CronDataIntervalTimetable

from tests.e2e.probe_trigger import FileTrigger


class WaitForFile(BaseOperator):
    template_fields = ("path",)

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def execute(self, context: Context) -> None:
        self.defer(trigger=FileTrigger(self.path), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, str]:
        return {
            "start": context["data_interval_start"].isoformat(),
            "end": context["data_interval_end"].isoformat(),
            **event,
        }


with DAG(
    "probe_deferrable",
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    end_date=pendulum.datetime(2026, 1, 31, tz="UTC"),
    catchup=False,
    max_active_runs=4,
    params={"path": Param("/nonexistent/probe", type="string")},
) as dag:
    WaitForFile(task_id="wait", path="{{ params.path }}")
