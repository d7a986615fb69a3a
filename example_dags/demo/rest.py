"""A client for the parts of Airflow's REST API that the demo and the end-to-end tests use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

T = TypeVar("T")

FINISHED_RUN = frozenset({"success", "failed"})

#: Calls of one client at a time. Airflow's api-server (3.3) looks a token up in its event loop: with as many
#: calls as it has database connections (15), that look-up waits for a call that waits for the event loop.
AT_ONCE = 6

#: Refresh the token well before Airflow's default life of a day ends.
TOKEN_SECONDS = 3600.0


class AirflowApiError(RuntimeError):
    """Airflow answered with an error status."""

    def __init__(self, method: str, path: str, response: httpx.Response) -> None:
        super().__init__(f"{method} {path}: HTTP {response.status_code}: {response.text[:500]}")
        self.status_code = response.status_code


class DagImportFailed(RuntimeError):
    """A DAG is not there because DAG files do not import.

    :param errors: file name -> Airflow's stack trace.
    """

    def __init__(self, dag_id: str, errors: Mapping[str, str]) -> None:
        texts = (f"{file}:\n{trace.rstrip()}" for file, trace in errors.items())
        super().__init__("\n\n".join([f"Airflow has no DAG {dag_id}: a DAG file does not import.", *texts]))
        self.errors = dict(errors)


class AirflowClient:
    """Airflow's REST API with a user's token.

    :param base_url: address of the api-server, without a path.
    :param user: user name of the simple auth manager.
    :param password: that user's password.
    """

    def __init__(self, base_url: str, user: str, password: str) -> None:
        self._http = httpx.Client(base_url=base_url, timeout=30.0)
        self._credentials = {"username": user, "password": password}
        self._token = ""
        self._token_until = 0.0
        self._free = threading.BoundedSemaphore(AT_ONCE)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # -- plain calls -----------------------------------------------------------------------------------

    def token(self) -> str:
        """Return a bearer token, fetched when the last one is old."""
        if time.monotonic() >= self._token_until:
            response = self._http.post("/auth/token", json=self._credentials)
            if response.is_error:
                raise AirflowApiError("POST", "/auth/token", response)
            self._token = response.json()["access_token"]
            self._token_until = time.monotonic() + TOKEN_SECONDS
        return self._token

    def request(self, method: str, path: str, *, json: Any = None, params: Any = None) -> Any:
        """Call ``/api/v2`` + path and return the decoded answer (None where there is none).

        :raises AirflowApiError: any status from 400 up.
        """
        with self._free:
            response = self._http.request(
                method,
                f"/api/v2{path}",
                json=json,
                params=params,
                headers={"Authorization": f"Bearer {self.token()}"},
            )
        if response.is_error:
            raise AirflowApiError(method, path, response)
        return response.json() if response.content else None

    def get(self, path: str, **params: Any) -> Any:
        """GET with query parameters."""
        return self.request("GET", path, params=params)

    def post(self, path: str, json: Any = None) -> Any:
        """POST a JSON body."""
        return self.request("POST", path, json=json)

    def patch(self, path: str, json: Any = None, **params: Any) -> Any:
        """PATCH a JSON body."""
        return self.request("PATCH", path, json=json, params=params)

    def health(self) -> dict[str, str]:
        """Return component -> status (``healthy``, ``unhealthy``, or "" before its first heartbeat)."""
        answer = self._http.get("/api/v2/monitor/health").raise_for_status().json()
        return {name: (part or {}).get("status") or "" for name, part in answer.items()}

    # -- DAGs and runs ---------------------------------------------------------------------------------

    def import_errors(self) -> dict[str, str]:
        """Return file name -> stack trace of the DAG files that do not import."""
        errors = self.get("/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in errors}

    def wait_dag(self, dag_id: str, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until the dag-processor has written the DAG down and return it.

        :param timeout: seconds.
        :raises DagImportFailed: it is not there, and a DAG file does not import.
        :raises TimeoutError: it did not appear, although every file imports.
        """

        def look() -> dict[str, Any] | None:
            try:
                return dict(self.get(f"/dags/{dag_id}"))
            except AirflowApiError as error:
                if error.status_code != 404:
                    raise
            if errors := self.import_errors():
                raise DagImportFailed(dag_id, errors)
            return None

        return wait_for(look, f"DAG {dag_id}", timeout)

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler run the DAG."""
        self.patch(f"/dags/{dag_id}", {"is_paused": False})

    def trigger_run(
        self,
        dag_id: str,
        *,
        interval: tuple[datetime, datetime] | None = None,
        conf: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Create a run and return its id.

        :param interval: data interval; its start is the logical date. None: a run without either.
        :param conf: values for the DAG's params.
        """
        body: dict[str, Any] = {"logical_date": None, "conf": dict(conf or {})}
        if interval is not None:
            start, end = (moment.isoformat() for moment in interval)
            body |= {"logical_date": start, "data_interval_start": start, "data_interval_end": end}
        if run_id is not None:
            body["dag_run_id"] = run_id
        return str(self.post(f"/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """Return one run."""
        return dict(self.get(f"{_run_path(dag_id, run_id)}"))

    def runs(self, dag_id: str, **params: Any) -> list[dict[str, Any]]:
        """Return the DAG's runs; ``params`` filter them (``run_type``, ``state``, …)."""
        return list(self.get(f"/dags/{dag_id}/dagRuns", limit=1000, **params)["dag_runs"])

    def wait_run(
        self,
        dag_id: str,
        run_id: str,
        timeout: float = 120.0,
        *,
        every: float = 0.5,
        on_look: Callable[[dict[str, Any]], None] | None = None,
    ) -> str:
        """Wait until the run has ended and return its state, ``success`` or ``failed``.

        :param timeout: seconds.
        :param every: seconds between two looks.
        :param on_look: called with the run after each look.
        :raises TimeoutError: it has not ended; the message names the states of its tasks.
        """

        def look() -> str | None:
            run = self.run(dag_id, run_id)
            if on_look is not None:
                on_look(run)
            return str(run["state"]) if run["state"] in FINISHED_RUN else None

        return wait_for(
            look,
            f"the end of run {run_id} of {dag_id}",
            timeout,
            every=every,
            detail=lambda: str(self.task_states(dag_id, run_id)),
        )

    # -- task instances --------------------------------------------------------------------------------

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return the run's task instances, mapped ones included, in the order they started."""
        answer = self.get(f"{_run_path(dag_id, run_id)}/taskInstances", limit=1000, order_by="start_date")
        return list(answer["task_instances"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Return task id (``id[index]`` for mapped ones) -> state, None before it was looked at."""
        states = {}
        for instance in self.task_instances(dag_id, run_id):
            index = instance["map_index"]
            name = instance["task_id"] if index < 0 else f"{instance['task_id']}[{index}]"
            states[name] = instance["state"]
        return states

    def wait_task(
        self, dag_id: str, run_id: str, task_id: str, states: Sequence[str], timeout: float = 60.0
    ) -> dict[str, Any]:
        """Wait until an unmapped task instance is in one of ``states`` and return it.

        :param timeout: seconds.
        :raises TimeoutError: it did not get there; the message names the states of all tasks.
        """

        def look() -> dict[str, Any] | None:
            for instance in self.task_instances(dag_id, run_id):
                if instance["task_id"] == task_id and instance["state"] in states:
                    return instance
            return None

        return wait_for(
            look,
            f"{task_id} in one of {list(states)}",
            timeout,
            every=0.2,
            detail=lambda: str(self.task_states(dag_id, run_id)),
        )

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str) -> Any:
        """Mark a task instance ``success``, ``failed`` or ``skipped`` by hand."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}"
        return self.patch(path, {"new_state": state})

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> Any:
        """Mark a run ``success``, ``failed`` or ``queued`` by hand."""
        return self.patch(_run_path(dag_id, run_id), {"state": state})

    def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete a run that has ended or has not begun, with its task instances and their logs' rows."""
        self.request("DELETE", _run_path(dag_id, run_id))

    def clear(
        self,
        dag_id: str,
        run_id: str,
        task_ids: Sequence[str] | None = None,
        *,
        downstream: bool = False,
    ) -> list[str]:
        """Clear tasks of a run (all of them by default), whatever their state, and return which.

        :param downstream: clear what depends on them too.
        """
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": None if task_ids is None else list(task_ids),
            "only_failed": False,
            "reset_dag_runs": True,
            "include_downstream": downstream,
        }
        answer = self.post(f"/dags/{dag_id}/clearTaskInstances", body)
        return [instance["task_id"] for instance in answer["task_instances"]]

    def xcoms(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return key -> value of all XComs of a task instance, values as JSON holds them."""
        base = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries"
        entries = self.get(base, map_index=map_index, limit=1000)["xcom_entries"]
        values = {}
        for entry in entries:
            # The list says which keys there are; only the single entry says the value.
            key = entry["key"]
            values[key] = self.get(f"{base}/{quote(key)}", map_index=map_index)["value"]
        return values

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """Return a try's log as lines of text, the texts of exceptions among them."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        content = self.get(path, full_content=True)["content"]
        if isinstance(content, str):
            return content
        errors = (error for line in content for error in line.get("error_detail") or ())
        return "\n".join([*(str(line["event"]) for line in content), *(str(e["exc_value"]) for e in errors)])

    # -- connections -----------------------------------------------------------------------------------

    def put_connection(self, conn_id: str, fields: Mapping[str, Any]) -> None:
        """Create a connection, or change the one that is there.

        :param fields: ``conn_type``, ``host``, ``password``, ``extra`` (a JSON text) … as the API names them.
        """
        body = {"connection_id": conn_id, **fields}
        try:
            self.post("/connections", body)
        except AirflowApiError as error:
            if error.status_code != 409:
                raise
            self.patch(f"/connections/{quote(conn_id)}", body)

    # -- backfills -------------------------------------------------------------------------------------

    def create_backfill(
        self,
        dag_id: str,
        start: datetime,
        end: datetime,
        *,
        max_active_runs: int = 3,
        reprocess: str = "none",
    ) -> int:
        """Start a backfill and return its id.

        :param start: earliest logical date.
        :param end: latest logical date.
        :param reprocess: ``none``, ``failed`` or ``completed``.
        """
        body = {
            "dag_id": dag_id,
            "from_date": start.isoformat(),
            "to_date": end.isoformat(),
            "max_active_runs": max_active_runs,
            "reprocess_behavior": reprocess,
        }
        return int(self.post("/backfills", body)["id"])

    def wait_backfill(
        self, backfill_id: int, timeout: float = 180.0, *, on_look: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Wait until the backfill has ended and return it.

        :param timeout: seconds.
        :param on_look: called at each look.
        :raises TimeoutError: runs of it still go on.
        """

        def look() -> dict[str, Any] | None:
            on_look()
            backfill = dict(self.get(f"/backfills/{backfill_id}"))
            return backfill if backfill["completed_at"] else None

        return wait_for(look, f"the end of backfill {backfill_id}", timeout)


def wait_for(
    look: Callable[[], T | None],
    what: str,
    timeout: float,
    *,
    every: float = 0.5,
    detail: Callable[[], str] = lambda: "",
) -> T:
    """Call ``look`` until it returns something and return that.

    :param what: named in the error.
    :param timeout: seconds.
    :param every: seconds between two looks.
    :param detail: added to the error.
    :raises TimeoutError: nothing came.
    """
    give_up = time.monotonic() + timeout
    while (found := look()) is None:
        if time.monotonic() > give_up:
            raise TimeoutError(f"waited {timeout:.0f} s in vain for {what}. {detail()}")
        time.sleep(every)
    return found


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"
