"""``python -m example_dags.demo``: the nightly example from end to end, without any key.

A real Airflow (scheduler, dag-processor, triggerer, api-server) runs ``nightly_ticket_labels`` (with
``--model local``: ``few_shot_ticket_kinds``) for the night of 2026-01-15 against the local batch server,
which is told to fail some rows once and some for good. Then the fault is lifted and the dead letters are
re-driven. After each the table, and the proof that the sums agree. Exit status 0 only if every check holds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from example_dags.demo.batch_server import BatchServer
from example_dags.demo.facts import Night, Places, collect
from example_dags.demo.models import MODELS, DemoModel, agreement
from example_dags.demo.processes import end_recorded_sessions
from example_dags.demo.progress import Progress
from example_dags.demo.report import Check, all_hold, checks, table, xcom_check
from example_dags.demo.rest import DagImportFailed
from example_dags.demo.stack import ADMIN, ADMIN_PASSWORD, AirflowStack
from example_dags.demo.warehouse import load_tickets

HERE = Path(__file__).parent
DAGS = HERE.parent
REPOSITORY = DAGS.parent

REDRIVE_DAG_ID = "redrive_dead_letters"
INTERVAL = (datetime(2026, 1, 15, 2, tzinfo=UTC), datetime(2026, 1, 16, 2, tzinfo=UTC))

#: Marks a folder as ours, to be emptied at the next start.
MARKER = ".batch-llm-demo"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    args = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    folder = fresh_folder(args.dir)
    try:
        return run_demo(folder, MODELS[args.model], stay=args.ui)
    except DagImportFailed as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m example_dags.demo", description=__doc__.split("\n")[0])
    parser.add_argument("--ui", action="store_true", help="leave Airflow running until Ctrl-C")
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="simulated",
        help="who answers; local needs the extra `local` (default: %(default)s)",
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(".demo"), help="where everything is kept until the next start"
    )
    return parser.parse_args(argv)


def fresh_folder(folder: Path) -> Path:
    """Return the folder, emptied, after ending what an earlier demo there left running.

    :raises SystemExit: it holds files and is not a demo's folder.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        # Importing Airflow makes AIRFLOW_HOME, which may lie inside.
        only_airflow_home = {path.name for path in folder.iterdir()} == {"airflow"}
        if not (folder / MARKER).exists() and not only_airflow_home:
            raise SystemExit(f"{folder} holds files that are not the demo's; choose another --dir")
        for record in folder.glob("*/sessions.json"):
            end_recorded_sessions(record)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder


def run_demo(folder: Path, model: DemoModel, *, stay: bool) -> int:
    """Run everything in an empty folder; all processes have ended when this returns.

    :param model: who answers.
    :param stay: leave Airflow running until Ctrl-C.
    """
    progress = Progress()
    places = Places(
        folder / "warehouse.db", folder / "airflow" / "batch_llm", folder / "server" / "server.db"
    )
    progress.say(f"{load_tickets(places.warehouse)} tickets loaded into table tickets of {places.warehouse}")
    server = BatchServer(
        folder / "server",
        scenario=HERE / "scenario.json",
        arguments=model.arguments,
        start_timeout=model.start_timeout,
    )
    with server:
        progress.say(f"local batch server listens on {server.url} and is told to fail some rows")
        progress.say(f"the model that answers is {server.model()}: {model.about}")
        progress.say("starting Airflow: api-server, scheduler, dag-processor, triggerer")
        with airflow_for(folder, places, server) as stack:
            progress.say(f"Airflow is up: {stack.url} (user {ADMIN}, password {ADMIN_PASSWORD})")
            found = show_both_runs(stack, server, places, progress, model)
            status = 0 if all_hold(found) else 1
            if stay:
                _stay(stack, server, model)
            progress.say("stopping Airflow and the batch server")
    progress.say("all processes have ended; the files stay until the next start")
    print("\nAll checks hold." if status == 0 else "\nSOME CHECKS FAILED, see above.")
    return status


def airflow_for(folder: Path, places: Places, server: BatchServer) -> AirflowStack:
    """Return an Airflow, not yet started, with the example DAGs and their two connections."""
    return AirflowStack(
        folder / "airflow",
        DAGS,
        pythonpath=[REPOSITORY],
        env={
            "AIRFLOW_CONN_LLM_BATCH": server.connection(),
            "AIRFLOW_CONN_WAREHOUSE": json.dumps({"conn_type": "sqlite", "host": str(places.warehouse)}),
            # The demo starts its runs by hand; without this Airflow would also start one for last night.
            "AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False",
            # Look every second instead of every 15. The first look stays at 10 s: see the setting.
            "AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY": "10",
            "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN": "1",
            "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MAX": "2",
        },
    )


def show_both_runs(
    stack: AirflowStack, server: BatchServer, places: Places, progress: Progress, model: DemoModel
) -> list[Check]:
    """Run the night and then the re-drive, print a table after each, and return all checks."""
    for dag_id in (model.dag_id, REDRIVE_DAG_ID):
        stack.client.wait_dag(dag_id)
        stack.client.unpause(dag_id)
    progress.say(f"run {model.dag_id} for {INTERVAL[0]:%Y-%m-%d %H:%M} to {INTERVAL[1]:%Y-%m-%d %H:%M} UTC")
    run_id = stack.client.trigger_run(model.dag_id, interval=INTERVAL)
    night = Night(model.dag_id, run_id, *INTERVAL, table=model.table)
    ran = _finish(stack, server, progress, model.dag_id, run_id, model.run_timeout)
    found = _show("After the night", places, night, model, ran)

    server.put_scenario({})
    progress.say(f"the fault is lifted; a person starts {REDRIVE_DAG_ID}")
    redrive_id = stack.client.trigger_run(
        REDRIVE_DAG_ID,
        conf={
            "dag_id": model.dag_id,
            "run_id": run_id,
            "task_id": model.submit_task,
            "table": model.table,
            "reason": "demo: the provider's fault is mended",
        },
    )
    ran = _finish(stack, server, progress, REDRIVE_DAG_ID, redrive_id, model.run_timeout)
    sizes = {**_xcom_sizes(stack, model.dag_id, run_id), **_xcom_sizes(stack, REDRIVE_DAG_ID, redrive_id)}
    found += _show("After the re-drive", places, night, model, [*ran, xcom_check(sizes)])
    return found


def _finish(
    stack: AirflowStack, server: BatchServer, progress: Progress, dag_id: str, run_id: str, timeout: float
) -> list[Check]:
    state = stack.client.wait_run(
        dag_id,
        run_id,
        timeout,
        on_look=lambda run: progress.watch(stack.client, server, dag_id, run_id),
    )
    tasks = stack.client.task_instances(dag_id, run_id)
    again = [task for task in tasks if task["try_number"] > 1]
    found = [
        Check(f"the run of {dag_id} is green", state == "success", state),
        Check("every task needed one try", not again, f"{len(tasks)} tasks, {len(again)} tried again"),
    ]
    for task in tasks:
        if task["state"] == "failed" or task in again:
            print(f"log of the first try of {task['task_id']}:")
            print(stack.client.task_log(dag_id, run_id, task["task_id"], 1), flush=True)
    return found


def _show(title: str, places: Places, night: Night, model: DemoModel, ran: list[Check]) -> list[Check]:
    try:
        facts = collect(places, night)
        same = agreement(places.warehouse) if model.table == "ticket_kinds" else None
    except (LookupError, OSError, sqlite3.OperationalError) as error:
        found = [*ran, Check("the rows of the night can be read", False, str(error))]
        print("\n".join(map(str, found)), flush=True)
        return found
    found = [*checks(facts), *ran]
    print(f"\n{title} (the model that answered is {model.name}: {model.about})\n")
    print(table(facts, places))
    if same is not None:
        print(f"kinds that agree with a person's: {same}")
    print("\nCounted from rows:\n" + "\n".join(map(str, found)) + "\n", flush=True)
    return found


def _xcom_sizes(stack: AirflowStack, dag_id: str, run_id: str) -> dict[str, int]:
    sizes = {}
    for instance in stack.client.task_instances(dag_id, run_id):
        task_id = instance["task_id"]
        sizes[f"{dag_id}.{task_id}"] = len(json.dumps(stack.client.xcoms(dag_id, run_id, task_id)).encode())
    return sizes


def _stay(stack: AirflowStack, server: BatchServer, model: DemoModel) -> None:
    print(
        f"Airflow:      {stack.url}/dags/{model.dag_id}\n"
        f"login:        user {ADMIN}, password {ADMIN_PASSWORD}\n"
        f"batch server: {server.url}/v1\n"
        "Ctrl-C ends everything.",
        flush=True,
    )
    try:
        while all(component.running for component in stack.components.values()):
            time.sleep(1)
        print("a component of Airflow has ended; see its log in", stack.home / "components", flush=True)
    except KeyboardInterrupt:
        print(flush=True)


if __name__ == "__main__":
    sys.exit(main())
