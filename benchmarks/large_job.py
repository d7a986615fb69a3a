"""A large job through the whole stack, measured: rows and seconds per phase, peak memory per process.

::

    python -m benchmarks.large_job --rows 1000000 --row-bytes 800 --source parquet --ledger postgresql

A DAG of ``batch_llm_group`` runs in a process of its own (``dag.test()``: real tasks, real trigger),
reads its rows from Parquet files or a database, sends them to a local batch server (a process of its own, the
provider's real limit of 50,000 requests a batch), and writes answers back. One row in 200 fails once
and one in 1,000 for good, so there is a retry round and there are dead letters. Ends with status 1
where the sums do not agree or a process of ours ever held more than ``--limit-mb``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds, machine, peak_mb, peak_mb_of
from benchmarks.warehouse import Warehouse, fill_parquet, open_warehouse
from tests.local_server import LocalServer

ROOT = Path(__file__).resolve().parent.parent
SCENARIO = {
    "rows": [
        {"match": {"contains": "[fails once]"}, "fault": "server_error", "times": 1},
        {"match": {"contains": "[fails for good]"}, "fault": "bad_request", "code": "invalid_value"},
    ]
}


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
                began, cpu_before = time.perf_counter(), cpu_seconds(server.pid)
                facts = _run_job(folder, server, warehouse, parquet)
                facts["seconds"] = time.perf_counter() - began
                facts["server_cpu"] = cpu_seconds(server.pid) - cpu_before
                facts["server_mb"] = peak_mb(server.pid)
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
    return parser.parse_args()


def _run_job(folder: Path, server: LocalServer, warehouse: Warehouse, parquet: str) -> dict[str, Any]:
    home, facts = folder / "airflow", folder / "facts.json"
    (home / "dags").mkdir(parents=True)
    account = {"conn_type": "batch_llm", "host": server.url, "password": server.api_key}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__BATCH_LLM__WORKSPACE": f"file://{folder / 'workspace'}",
        "AIRFLOW__BATCH_LLM__FIRST_POLL_DELAY": "0",
        "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MIN": "0.2",
        "AIRFLOW__BATCH_LLM__POLL_INTERVAL_MAX": "0.5",
        "AIRFLOW_CONN_LLM_BATCH": json.dumps(
            account | {"extra": {"dialect": "openai", "model": "simulated"}}
        ),
        "AIRFLOW_CONN_WAREHOUSE": json.dumps(warehouse.connection),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "BATCH_LLM_BENCH_FACTS": str(facts),
        "BATCH_LLM_BENCH_PARQUET": parquet,
    }
    if warehouse.ledger_url is not None:
        environment["AIRFLOW__BATCH_LLM__LEDGER_CONN_ID"] = "warehouse"
    command = [sys.executable, "-m", "benchmarks.large_job_run"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode or not facts.exists():
        raise SystemExit(f"the run ended with {run.returncode}:\n{run.stdout[-4000:]}\n{run.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(facts.read_text())
    return found


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
    for name in ("task_mb", "server_mb"):
        if facts[name] > args.limit_mb:
            found.append(f"{name}: {facts[name]:.0f} MB, above {args.limit_mb:.0f}")
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
        f"{'phase':<34}{'seconds':>9}{'rows/s':>12}{'VmHWM, MB':>12}",
    ]
    for name, seconds in facts["phases"].items():
        rate, peak = args.rows / max(seconds, 1e-9), facts["peaks"][name]
        lines.append(f"{name:<34}{seconds:>9.1f}{rate:>12,.0f}{peak:>12.0f}")
    rate, peak = args.rows / facts["seconds"], facts["peaks"]["other"]
    lines += [
        f"{'all; VmHWM of what is around it':<34}{facts['seconds']:>9.1f}{rate:>12,.0f}{peak:>12.0f}",
        "",
        f"{'process':<34}{'CPU, s':>9}{'VmHWM, MB':>12}",
        f"{'tasks and trigger (dag.test)':<34}{facts['task_cpu']:>9.0f}{facts['task_mb']:>12.0f}",
        f"{'  the same before the run':<34}{'':>9}{facts['task_mb_before']:>12.0f}",
        f"{'local batch server':<34}{facts['server_cpu']:>9.0f}{facts['server_mb']:>12.0f}",
        f"{'bare: import airflow':<34}{'':>9}{peak_mb_of('import airflow'):>12.0f}",
        f"{'bare: airflow.sdk and a DAG':<34}{'':>9}{peak_mb_of(_BARE_DAG):>12.0f}",
    ]
    return "\n".join(lines)


_BARE_DAG = "from airflow.sdk import DAG, BaseOperator\nDAG('d', schedule=None)"

if __name__ == "__main__":
    sys.exit(main())
