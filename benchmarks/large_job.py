"""A large job through the whole stack, measured: rows and seconds per phase, peak memory per process.

::

    python -m benchmarks.large_job --rows 1000000 --row-bytes 800 --source parquet --ledger postgresql

A real Airflow (api-server, scheduler, dag-processor, triggerer, LocalExecutor) runs a DAG of
``batch_llm_group``: rows from Parquet files or a database, a local batch server (a process of its own, the
provider's real limit of 50,000 requests a batch), answers into a table. One row in 200 fails once and one
in 1,000 for good, so there is a retry round and there are dead letters. Every task is a process of its own,
as in production, and is weighed from inside. Ends with status 1 where the sums do not agree or a process of
ours ever held more than ``--limit-mb``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from airflow_batch_llm.core.model import JobKey
from airflow_batch_llm.storage.ledger import SqlLedger
from benchmarks.large_job_names import DAG_ID, FACTS, GROUP_ID, PARQUET, PHASES
from benchmarks.processes import cpu_seconds, machine, peak_mb, peak_mb_of
from benchmarks.warehouse import Warehouse, fill_parquet, open_warehouse
from example_dags.demo.stack import AirflowStack
from tests.local_server import LocalServer

ROOT = Path(__file__).resolve().parent.parent
TASKS = ("submit", "reconcile", "retry", "dead_letter")
SCENARIO = {
    "rows": [
        {"match": {"contains": "[fails once]"}, "fault": "server_error", "times": 1},
        {"match": {"contains": "[fails for good]"}, "fault": "bad_request", "code": "invalid_value"},
    ]
}
DAG_FILE = """\
\"\"\"A DAG for Airflow to find.\"\"\"
from benchmarks.large_job_dag import large_job

dag = large_job()
"""


def main() -> int:
    """Run the job and print the table."""
    args = _arguments()
    folder = Path(tempfile.mkdtemp(prefix="batch-llm-bench-", dir=args.dir))
    folder.chmod(0o755)  # as root, PostgreSQL runs as a user of its own
    try:
        with open_warehouse(args.ledger, folder) as warehouse:
            parquet = ""
            if args.source == "parquet":
                parquet = fill_parquet(folder / "tickets", args.rows, args.row_bytes)
            else:
                warehouse.fill(args.rows, args.row_bytes)
            with LocalServer(folder / "server", scenario=SCENARIO) as server:
                cpu_before = cpu_seconds(server.pid)
                facts = _run_job(folder, server, warehouse, parquet, args)
                facts["processes"]["local batch server"] = {
                    "cpu": cpu_seconds(server.pid) - cpu_before,
                    "peak": peak_mb(server.pid),
                }
                facts["charges"] = server.summary()
            facts["landed"] = warehouse.count("answers")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    faults = _faults(facts, args)
    print(_table(facts, args))
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--row-bytes", type=int, default=800, help="bytes of text in each row")
    parser.add_argument("--source", choices=("parquet", "sql"), default="parquet")
    parser.add_argument("--ledger", choices=("sqlite", "postgresql"), default="postgresql")
    parser.add_argument("--limit-mb", type=float, default=400.0, help="bound of each process (10^6 bytes)")
    parser.add_argument("--dir", help="where the temporary folder is made")
    parser.add_argument("--hours", type=float, default=2.0, help="when to give up")
    return parser.parse_args()


def _run_job(
    folder: Path, server: LocalServer, warehouse: Warehouse, parquet: str, args: argparse.Namespace
) -> dict[str, Any]:
    found, dags = folder / "facts", folder / "dags"
    found.mkdir()
    dags.mkdir()
    (dags / "large_job.py").write_text(DAG_FILE)
    account = {"conn_type": "batch_llm", "host": server.url, "password": server.api_key}
    environment = {
        "AIRFLOW__BATCH_LLM__LEDGER_CONN_ID": "warehouse",
        "AIRFLOW__BATCH_LLM__WORKSPACE": f"file://{folder / 'workspace'}",
        "AIRFLOW__BATCH_LLM__ALLOW_LOCAL_STATE": "True",
        "AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY": "6",
        "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN": "1",
        "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MAX": "2",
        "AIRFLOW_CONN_LLM_BATCH": json.dumps(
            account | {"extra": {"dialect": "openai", "model": "simulated"}}
        ),
        "AIRFLOW_CONN_WAREHOUSE": json.dumps(warehouse.connection),
        FACTS: str(found),
        PARQUET: parquet,
    }
    with AirflowStack(folder / "airflow", dags, env=environment, pythonpath=[ROOT]) as airflow:
        airflow.client.wait_dag(DAG_ID, timeout=120)
        airflow.client.unpause(DAG_ID)
        began = time.perf_counter()
        run_id = airflow.client.trigger_run(DAG_ID)
        state = airflow.client.wait_run(DAG_ID, run_id, args.hours * 3600, every=2.0)
        seconds = time.perf_counter() - began
        triggerer = airflow.components["triggerer"].members()
        weighed = {"peak": max(map(peak_mb, triggerer)), "cpu": sum(map(cpu_seconds, triggerer))}
        if state != "success":
            print(airflow.client.task_states(DAG_ID, run_id), file=sys.stderr)
            for task in TASKS:
                print(airflow.client.task_log(DAG_ID, run_id, f"{GROUP_ID}.{task}")[-3000:], file=sys.stderr)
    facts = _from_tasks(found)
    facts["processes"]["triggerer"] = weighed
    ledger = SqlLedger(warehouse.engine)
    job = ledger.get_job(JobKey(ledger.namespace(), DAG_ID, run_id, f"{GROUP_ID}.submit").job_id)
    assert job is not None
    return facts | {
        "state": state,
        "seconds": seconds,
        "counts": dict(job.counts),
        "letters": sum(ledger.count_dead_letters(job.job_id).values()),
        "batches": [batch.requests for batch in ledger.batches(job.job_id)],
    }


def _from_tasks(folder: Path) -> dict[str, Any]:
    """Return what the tasks' processes wrote down: a task that waits is several processes."""
    seconds: dict[str, float] = defaultdict(float)
    peaks: dict[str, float] = defaultdict(float)
    processes: dict[str, dict[str, float]] = {f"task {task}": {"cpu": 0.0, "peak": 0.0} for task in TASKS}
    for path in folder.glob("*.json"):
        found = json.loads(path.read_text())
        task = processes[f"task {found['task']}"]
        task["cpu"] += found["cpu"]
        task["peak"] = max(task["peak"], *found["peaks"].values())
        for phase, peak in found["peaks"].items():
            peaks[phase] = max(peaks[phase], peak)
        for phase, spent in found["seconds"].items():
            seconds[phase] += spent
    return {"phases": seconds, "peaks": peaks, "processes": processes}


def _faults(facts: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """Say what of the job's promises did not hold."""
    counts, found = facts["counts"], []
    if facts["state"] != "success":
        found.append(f"the DAG run is {facts['state']}")
    if counts["answered"] + counts["dead"] != args.rows or counts["rows"] != args.rows:
        found.append(f"{args.rows} rows, but {counts}")
    if facts["landed"] != counts["answered"] or facts["letters"] != counts["dead"]:
        found.append(f"{facts['landed']} rows landed and {facts['letters']} letters, but {counts}")
    if facts["charges"]["answered_twice"]:
        found.append(f"{facts['charges']['answered_twice']} rows were paid for twice")
    for name, needed in facts["processes"].items():
        if not 0 < needed["peak"] <= args.limit_mb:
            found.append(f"{name}: {needed['peak']:.0f} MB, above {args.limit_mb:.0f}, or not measured")
    return found


def _table(facts: dict[str, Any], args: argparse.Namespace) -> str:
    counts = facts["counts"]
    lines = [
        f"{args.rows:,} rows of {args.row_bytes} bytes from {args.source}, "
        f"ledger and answers on {args.ledger}",
        machine(),
        f"batches: {', '.join(f'{b:,}' for b in facts['batches'])} requests",
        f"answered {counts['answered']:,} (in round 0 {counts.get('answered_round_0', 0):,}, "
        f"later {counts.get('answered_later', 0):,}), dead {counts['dead']:,}; landed {facts['landed']:,}; "
        f"paid twice {facts['charges']['answered_twice']}",
        "",
        f"{'phase':<36}{'seconds':>9}{'rows/s':>12}{'VmHWM, MB':>12}",
    ]
    for name in PHASES:
        seconds = facts["phases"].get(name, 0.0)
        rate, peak = args.rows / max(seconds, 1e-9), facts["peaks"].get(name, 0.0)
        lines.append(f"{name:<36}{seconds:>9.1f}{rate:>12,.0f}{peak:>12.0f}")
    rest = facts["seconds"] - sum(facts["phases"].values())
    lines += [
        f"{'waiting, and Airflow around it':<36}{rest:>9.1f}{'':>12}{facts['peaks']['other']:>12.0f}",
        f"{'all':<36}{facts['seconds']:>9.1f}{args.rows / facts['seconds']:>12,.0f}",
        "",
        f"{'process':<36}{'CPU, s':>9}{'VmHWM, MB':>12}",
        *(
            f"{name:<36}{needed['cpu']:>9.1f}{needed['peak']:>12.0f}"
            for name, needed in facts["processes"].items()
        ),
        f"{'bare: import airflow':<36}{'':>9}{peak_mb_of('import airflow'):>12.0f}",
        f"{'bare: airflow.sdk and a DAG':<36}{'':>9}{peak_mb_of(_BARE_DAG):>12.0f}",
    ]
    return "\n".join(lines)


_BARE_DAG = "from airflow.sdk import DAG, BaseOperator\nDAG('d', schedule=None)"

if __name__ == "__main__":
    sys.exit(main())
