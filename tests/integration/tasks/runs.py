"""DAG runs in the test's own process: what each task process did, and clears as people make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk.execution_time import supervisor

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG


@dataclass(frozen=True)
class Process:
    """One segment of a task: from the start of its process to success, failure or the next defer."""

    task_id: str
    map_index: int
    try_number: int
    state: str
    error: BaseException | None
    message: Any

    @property
    def trigger_kwargs(self) -> dict[str, Any]:
        """The arguments of the trigger it deferred to."""
        from airflow.sdk.serde import deserialize

        found: Any = deserialize(self.message.trigger_kwargs)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True)
class Run:
    """A DAG run, by its ids."""

    dag_id: str
    run_id: str

    @property
    def state(self) -> str:
        """The run's state as the metadata database has it."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            query = select(DagRun.state).where(DagRun.dag_id == self.dag_id, DagRun.run_id == self.run_id)
            return str(session.scalars(query).one())


@dataclass
class Runs:
    """Runs DAGs and keeps what their task processes did, in order.

    :param sync: makes a DAG known to the metadata database.
    """

    sync: Callable[[DAG], DAG]
    processes: list[Process] = field(default_factory=list)
    _after: dict[str, list[Callable[[], object]]] = field(default_factory=dict)

    @contextmanager
    def recorded(self) -> Iterator[Runs]:
        """Note each task process that ends while this is open; they run as they always do."""
        real = supervisor.run_task_in_process

        def recording(ti: Any, task: Any, client: Any = None) -> Any:
            result = real(ti=ti, task=task, client=client)
            state = str(getattr(result.state, "value", result.state))
            self.processes.append(
                Process(ti.task_id, ti.map_index, ti.try_number, state, result.error, result.msg)
            )
            waiting = self._after.get(ti.task_id)
            if waiting:
                waiting.pop(0)()
            return result

        supervisor.run_task_in_process = recording
        try:
            yield self
        finally:
            supervisor.run_task_in_process = real

    def after(self, task_id: str, act: Callable[[], object]) -> None:
        """Call ``act`` once, when the next process of the task has ended (a defer is an end too)."""
        self._after.setdefault(task_id, []).append(act)

    # -- running -------------------------------------------------------------------------------------
    def run(
        self,
        dag: DAG,
        run_id: str | None = None,
        *,
        interval: tuple[datetime, datetime] | None = None,
        conf: Mapping[str, Any] | None = None,
        triggered_by_assets: bool = False,
    ) -> Run:
        """Run the DAG once, as ``dag.test()`` does, without its pauses.

        :param run_id: None makes a new one.
        :param interval: the data interval; None for a moment, now.
        :param conf: values of the DAG's params.
        :param triggered_by_assets: hand over every asset event there is.
        """
        from airflow.models.asset import AssetEvent
        from airflow.models.dagrun import DagRun, get_or_create_dagrun
        from airflow.sdk import timezone
        from airflow.timetables.base import DataInterval
        from airflow.utils.session import create_session
        from airflow.utils.types import DagRunTriggeredByType, DagRunType
        from sqlalchemy import select

        self.sync(dag)
        now = timezone.utcnow()
        start, end = interval or (now, now)
        with create_session() as session:
            made = get_or_create_dagrun(
                dag=scheduler_form(dag),
                run_id=run_id
                or DagRun.generate_run_id(run_type=DagRunType.MANUAL, logical_date=now, run_after=now),
                start_date=now,
                logical_date=start,
                data_interval=DataInterval(timezone.convert_to_utc(start), timezone.convert_to_utc(end)),
                run_after=now,
                conf=dict(conf) if conf is not None else None,
                triggered_by=DagRunTriggeredByType.TEST,
                triggering_user_name="tests",
                session=session,
            )
            run = Run(made.dag_id, made.run_id)
            if triggered_by_assets:
                made.consumed_asset_events.extend(session.scalars(select(AssetEvent)).all())
            session.commit()
        self.go_on(dag, run)
        return run

    def delete(self, run: Run) -> None:
        """Delete the run with its task instances, as the UI does."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            query = select(DagRun).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id)
            session.delete(session.scalars(query).one())

    def clear(self, dag: DAG, run: Run, *task_ids: str) -> None:
        """Clear tasks as the UI does: ``max_tries`` is raised, the try number goes on."""
        from airflow.models.taskinstance import clear_task_instances
        from airflow.utils.session import create_session

        with create_session() as session:
            chosen = [ti for ti in self._instances(run, session) if ti.task_id in task_ids]
            assert {ti.task_id for ti in chosen} == set(task_ids)
            clear_task_instances(chosen, session)

    def go_on(self, dag: DAG, run: Run) -> str:
        """Run what is not finished, with the scheduler's own dependency rules; returns the run's state."""
        from airflow import settings
        from airflow.models.dagrun import DagRun
        from airflow.sdk import DagRunState, TaskInstanceState
        from airflow.sdk.definitions.dag import _run_task
        from sqlalchemy import select

        session = settings.Session()
        found = session.scalars(
            select(DagRun).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run.run_id)
        ).one()
        found.dag = scheduler_form(dag)
        found.state = DagRunState.RUNNING
        idle = 0
        while found.state == DagRunState.RUNNING:
            session.expire_all()
            ready, _ = found.update_state(session=session)
            for ti in ready:
                ti.try_number += 1
                ti.state = TaskInstanceState.SCHEDULED
            session.commit()
            # Failures and skips take a pass for each task that they reach.
            idle = 0 if ready else idle + 1
            assert idle < 20, f"nothing can run: {self.states(run)}"
            for ti in ready:
                _run_task(ti=ti, task=dag.task_dict[ti.task_id], run_triggerer=True)
        return str(found.state)

    def rerun(self, dag: DAG, run: Run, *task_ids: str) -> str:
        """Clear tasks and run them, and return the run's state; what was noted before is forgotten."""
        self.clear(dag, run, *task_ids)
        self.processes.clear()
        return self.go_on(dag, run)

    # -- looking -------------------------------------------------------------------------------------
    def states(self, run: Run) -> dict[str, str]:
        """Task id -> state as the metadata database has it."""
        from airflow.utils.session import create_session

        with create_session() as session:
            return {ti.task_id: str(ti.state) for ti in self._instances(run, session)}

    def tries(self, run: Run) -> dict[str, int]:
        """Task id -> number of the last try."""
        from airflow.utils.session import create_session

        with create_session() as session:
            return {ti.task_id: ti.try_number for ti in self._instances(run, session)}

    def of(self, task_id: str) -> list[Process]:
        """Return the processes of one task."""
        return [process for process in self.processes if process.task_id == task_id]

    def error_of(self, task_id: str) -> BaseException:
        """Return the error that the task's last process ended with."""
        error = self.of(task_id)[-1].error
        assert error is not None, f"{task_id} ended in {self.of(task_id)[-1].state}"
        return error

    def xcoms(self, run: Run) -> dict[str, bytes]:
        """Return every XCom of the run as stored: ``task/key`` -> bytes."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            rows = session.scalars(
                select(XComModel).where(XComModel.dag_id == run.dag_id, XComModel.run_id == run.run_id)
            ).all()
            return {f"{x.task_id}/{x.key}": json.dumps(x.value).encode() for x in rows}

    def xcom(self, run: Run, task_id: str) -> Any:
        """Return what the task returned."""
        value = json.loads(self.xcoms(run)[f"{task_id}/return_value"])
        while isinstance(value, str):
            value = json.loads(value)
        return value

    @staticmethod
    def _instances(run: Run, session: Any) -> list[TaskInstance]:
        from airflow.models.taskinstance import TaskInstance
        from sqlalchemy import select

        query = select(TaskInstance).where(
            TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id
        )
        return list(session.scalars(query).all())


def scheduler_form(dag: DAG) -> Any:
    """Return the DAG as the scheduler sees it."""
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
