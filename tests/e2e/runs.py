"""One run of a DAG of ``dags/jobs_of_rows.py``, driven over REST, and what the records say about it.

The records are three, and none of them is asked of the package: the server's own database (batches, calls,
executed requests), the ledger's tables and the warehouse's. Where Airflow stands is read from its database:
two dozen stories that all ask its API twice a second would leave it no time for its workers.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, text

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.facts import Places, rows
from example_dags.demo.rest import FINISHED_RUN, AirflowApiError, wait_for
from example_dags.demo.stack import AirflowStack

T = TypeVar("T")

SUBMIT, RECONCILE, RETRY, DEAD_LETTER = TASKS = tuple(
    f"job.{task}" for task in ("submit", "reconcile", "retry", "dead_letter")
)

#: Bodies that the scenario of the stories' server tells apart.
FAILS_ONCE = "This one fails once"
FILTERED = "This one is filtered"
STORIES = {
    "pace": {"seconds": 3600, "hold_at": 0.5},
    "rows": [
        {"match": {"contains": FAILS_ONCE}, "fault": "server_error", "times": 1},
        {"match": {"contains": FILTERED}, "fault": "content_filter"},
    ],
}

#: Seconds that anything in a story may take, all stories running at once on two cores.
PATIENCE = 420.0


@dataclass(frozen=True)
class Task:
    """Where a task instance stands.

    :param pid: of its last process.
    :param trigger: id of what it waits with, None where it does not wait.
    :param triggerer: who runs that, None where nobody does yet.
    """

    state: str | None
    try_number: int
    pid: int | None
    trigger: int | None
    triggerer: int | None


_TASKS = text(
    "SELECT task_id, task_instance.state, try_number, pid, trigger_id, triggerer_id FROM task_instance"
    " LEFT JOIN trigger ON trigger.id = trigger_id WHERE dag_id = :dag_id AND run_id = :run_id"
)
_RUN = text("SELECT state FROM dag_run WHERE dag_id = :dag_id AND run_id = :run_id")


@dataclass(frozen=True)
class Jobs:
    """Starts runs.

    :param stack: the Airflow.
    :param server: the local server whose connection the DAG names.
    :param places: ledger and warehouse.
    :param folder: where the files of rows are.
    :param conn_id: the connection to ``server``.
    """

    stack: AirflowStack
    server: BatchServer
    places: Places
    folder: Path
    conn_id: str = "llm_stories"

    @cached_property
    def airflow_db(self) -> Engine:
        """Airflow's own database."""
        return create_engine(self.stack.env["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], pool_size=8)

    def start(self, dag_id: str, bodies: Sequence[str]) -> Run:
        """Start a run over rows with these bodies, whose ids are of this run alone."""
        self.ready(dag_id)
        run = Run(self, dag_id, f"test__{uuid.uuid4().hex[:12]}")
        run.write_rows({f"{run.run_id}/{number}": body for number, body in enumerate(bodies)})
        run.create()
        return run

    def ready(self, *dag_ids: str) -> None:
        """Wait until the DAGs are there and let them run."""
        for dag_id in dag_ids:
            self.stack.client.wait_dag(dag_id)
            self.stack.client.unpause(dag_id)


@dataclass(frozen=True)
class Run:
    """A run and its job. Ids of rows are ``<run id>/<number>`` where :meth:`Jobs.start` made them."""

    jobs: Jobs
    dag_id: str
    run_id: str

    @property
    def file(self) -> Path:
        """The rows of this run."""
        return self.jobs.folder / f"{self.run_id}.jsonl"

    def write_rows(self, bodies: Mapping[str, str]) -> None:
        """Write the file of rows: id -> body."""
        self.file.write_text(
            "".join(json.dumps({"id": key, "body": body}) + "\n" for key, body in bodies.items())
        )

    # -- what people do --------------------------------------------------------------------------------

    def create(self, *, rows_of: Run | None = None) -> None:
        """Create the run; with the rows of another one, if given."""
        conf = {"rows": str((rows_of or self).file), "conn_id": self.jobs.conn_id}
        self.jobs.stack.client.trigger_run(self.dag_id, conf=conf, run_id=self.run_id)

    def clear(self, *tasks: str, downstream: bool = False) -> None:
        """Clear these tasks, or all of them."""
        self.jobs.stack.client.clear(self.dag_id, self.run_id, tasks or None, downstream=downstream)

    def mark(self, task: str, state: str) -> None:
        """Mark a task ``failed`` or ``success``."""
        self.jobs.stack.client.set_task_state(self.dag_id, self.run_id, task, state)

    def mark_run(self, state: str) -> None:
        """Mark the run ``failed`` or ``success``."""
        self.jobs.stack.client.set_run_state(self.dag_id, self.run_id, state)

    def delete(self) -> None:
        """Delete the run, as the grid view does."""
        self.jobs.stack.client.delete_run(self.dag_id, self.run_id)

    # -- what they wait for ----------------------------------------------------------------------------

    def waits(self, task: str = SUBMIT, *, after_try: int = 0) -> Task:
        """Wait until a task's trigger runs, its batch half done and held; return the task instance.

        :param after_try: a try with a higher number is meant.
        """

        def look() -> Task | None:
            found = self.task(task)
            if found is None or found.state != "deferred" or found.try_number <= after_try:
                return None
            # A trigger that no triggerer has begun to run is told of no mark and no clear.
            return found if f"(ID {found.trigger}) starting" in self._trigger_log(task) else None

        waiting = self._wait(look, f"{task} to wait")
        self._wait(lambda: self.held() or None, "a held batch")
        return waiting

    def reaches(self, task: str, state: str) -> Task:
        """Wait until a task is in this state and return the task instance."""

        def look() -> Task | None:
            found = self.task(task)
            return found if found is not None and found.state == state else None

        return self._wait(look, f"{task} to be {state}")

    def is_over(self) -> str:
        """Wait until the run has ended and return its state."""
        return self._wait(lambda: state if (state := self.state()) in FINISHED_RUN else None, "the end")

    def ends(self) -> str:
        """Let what is held go on, batch by batch, and return the state in which the run ends."""

        def look() -> str | None:
            self.release()
            return state if (state := self.state()) in FINISHED_RUN else None

        return self._wait(look, "the end")

    def has(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition is true.

        :param what: names it in the error.
        """
        self._wait(lambda: condition() or None, what)

    def _wait(self, look: Callable[[], T | None], what: str) -> T:
        return wait_for(look, f"{what} of {self}", PATIENCE, detail=self.told)

    def release(self) -> None:
        """Let the run's batches go on."""
        for batch_id in self.held():
            self.jobs.server.release(batch_id)

    def trigger_let_batches_go_on(self, task: str = SUBMIT) -> None:
        """Wait until a triggerer has called ``on_kill`` of a trigger of the task, which cancelled nothing."""
        self.has(lambda: "batches go on" in self._trigger_log(task), f"on_kill of {task}'s trigger")

    def _trigger_log(self, task: str) -> str:
        """Return what the task's triggers and the triggerers about them have logged."""
        home = self.jobs.stack.home
        folder = home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}" / f"task_id={task}"
        own = [log.read_text() for log in folder.glob("*.trigger.*.log")]
        # What a trigger logs after Airflow gave it up is in the log of the triggerer, with the run's id.
        lines = (line for log in home.glob("components/triggerer*.log") for line in log.open())
        return "".join([*own, *(line for line in lines if self.run_id in line and task in line)])

    # -- what Airflow says -----------------------------------------------------------------------------

    def _airflow(self, statement: Any) -> list[Any]:
        with self.jobs.airflow_db.connect() as connection:
            return list(connection.execute(statement, {"dag_id": self.dag_id, "run_id": self.run_id}))

    def tasks(self) -> dict[str, Task]:
        """Return the task instances there are."""
        return {task_id: Task(*facts) for task_id, *facts in self._airflow(_TASKS)}

    def task(self, task: str) -> Task | None:
        """Return a task instance, None where the run has none."""
        return self.tasks().get(task)

    def state(self) -> str | None:
        """Return the state of the run, None where there is no such run."""
        return next((state for (state,) in self._airflow(_RUN)), None)

    def tries(self, task: str) -> int:
        """Return how often a task was tried."""
        return self.tasks()[task].try_number

    def failures(self, task: str) -> int:
        """Return how many tries of a task failed with an error of its own.

        Not the number of tries: on a busy machine Airflow 3.3 itself fails tries whose trigger fired before
        it heard that the task was deferred, and retries them. Of some it keeps neither record nor log.
        """
        tries = range(1, self.tries(task) + 1)
        return sum("Task failed with exception" in self._log_if_kept(task, number) for number in tries)

    def _log_if_kept(self, task: str, try_number: int) -> str:
        try:
            return self.log(task, try_number)
        except AirflowApiError as error:
            if error.status_code != 404 or try_number == self.tries(task):
                raise
            return ""

    def revision(self) -> int:
        """Return how often the source was read: once, and once more with each clear."""
        ((number,),) = self._ledger("SELECT revision FROM batch_llm_job WHERE dag_id = ? AND run_id = ?")
        return int(number)

    def states(self) -> list[str | None]:
        """Return the states of the four tasks, in their order."""
        tasks = self.tasks()
        return [tasks[task].state if task in tasks else None for task in TASKS]

    def log(self, task: str, try_number: int = 1) -> str:
        """Return the log of a task's try."""
        return self.jobs.stack.client.task_log(self.dag_id, self.run_id, task, try_number)

    def told(self) -> str:
        """Say where everything stands, for the error of a wait."""
        return f"tasks {self.states()}, batches {self.batches()}"

    # -- what the records say --------------------------------------------------------------------------

    def _server(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Query the server's database: ``mine`` are the batches of this run's job."""
        mine = "WITH mine AS (SELECT * FROM batch WHERE json_extract(metadata, '$.batch_llm_job') = ?) "
        return rows(self.jobs.server.database, mine + statement, (self.job_id(), *values))

    def _ledger(self, statement: str) -> list[tuple[Any, ...]]:
        return rows(self.jobs.places.ledger, statement, (self.dag_id, self.run_id))

    def job_id(self) -> str:
        """Return the id of the run's one job, "" while there is none."""
        if not has_table(self.jobs.places.ledger, "batch_llm_job"):
            return ""
        found = self._ledger("SELECT job_id FROM batch_llm_job WHERE dag_id = ? AND run_id = ?")
        assert len(found) <= 1
        return str(found[0][0]) if found else ""

    def batches(self) -> list[tuple[str, str]]:
        """Return id and status of the batches that the server accepted for the job, in their order."""
        return [(str(batch), str(status)) for batch, status in self._server("SELECT id, status FROM mine")]

    def held(self) -> list[str]:
        """Return the batches that have run half their rows and wait to be released."""
        found = self._server("SELECT id FROM mine WHERE status = 'in_progress' AND held = 1 AND next_at > 0")
        return [str(batch) for (batch,) in found]

    def cancel_calls(self) -> int:
        """Return how often the server was asked to cancel a batch of the job."""
        ((number,),) = self._server(
            "SELECT count(*) FROM request JOIN mine ON path = '/v1/batches/' || mine.id || '/cancel'"
        )
        return int(number)

    def executed(self) -> Counter[str]:
        """Return wire id -> how often the server executed the request."""
        found = self._server("SELECT custom_id FROM charge JOIN mine ON charge.batch = mine.seq")
        return Counter(str(wire_id) for (wire_id,) in found)

    def sent_after_answer(self) -> int:
        """Return how many executions were of requests that had a good answer before."""
        ((number,),) = self._server(
            ", mine_charged AS (SELECT charge.* FROM charge JOIN mine ON charge.batch = mine.seq)"
            " SELECT count(*) FROM mine_charged later JOIN mine_charged first USING (custom_id, body_sha256)"
            " WHERE first.charged AND first.fault IS NULL AND first.id < later.id"
        )
        return int(number)

    def letters(self) -> Counter[str]:
        """Return state -> number of the job's dead letters."""
        found = self._ledger(
            "SELECT state, count(*) FROM batch_llm_dead_letter WHERE dag_id = ? AND run_id = ? GROUP BY state"
        )
        return Counter({str(state): int(number) for state, number in found})

    def halted(self) -> str | None:
        """Return the code that the job is halted with."""
        ((code,),) = self._ledger("SELECT halt_code FROM batch_llm_job WHERE dag_id = ? AND run_id = ?")
        return str(code) if code else None

    def landed(self, table: str = "answers") -> list[str]:
        """Return the ids that this run landed in the table, as often as they are there."""
        warehouse = self.jobs.places.warehouse
        if not has_table(warehouse, table):
            return []
        found = rows(warehouse, f"SELECT id FROM {table} WHERE _run_id = ? ORDER BY id", (self.run_id,))
        return [str(key) for (key,) in found]

    def results(self) -> list[str]:
        """Return the lines of all files of answers, of all revisions."""
        folder = self.jobs.places.workspace
        parts = folder.glob(f"*/{self.dag_id}/{self.run_id}/**/results/*/part-*.jsonl")
        found = [line for part in parts for line in part.read_text().splitlines()]
        assert found
        return sorted(found)

    def ids(self, *numbers: int) -> list[str]:
        """Return ids of rows."""
        return [f"{self.run_id}/{number}" for number in numbers]

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}"


def has_table(database: Path, name: str) -> bool:
    """Say whether an SQLite file is there and has this table."""
    return database.exists() and bool(
        rows(database, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,))
    )


def moment(text: str) -> datetime:
    """Return a time that the API shows."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
