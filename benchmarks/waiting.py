"""Waiting, measured: what a thousand deferred tasks of one connection cost their triggerer.

::

    python -m benchmarks.waiting --triggers 1000 --interval 60 --minutes 5

The local batch server, a process of its own, holds as many batches, all of them running. A further process
has one event loop and in it one ``BatchLLMTrigger`` a batch, which look every ``--interval`` seconds and
began at different times. After three intervals CPU, the loop's lag and the calls that the server got are
taken for ``--minutes``; then all batches end, and every trigger must fire. The same for ``LLMBatchTrigger``
of apache-airflow-providers-common-ai, where that is installed, with ``--beside common-ai``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import machine
from benchmarks.waiting_run import KINDS
from tests.local_server import LocalServer

ROOT = Path(__file__).resolve().parent.parent
#: Longer than any measurement: batches end when they are released.
_HELD = {"pace": {"seconds": 86_400, "hold_at": 0.0}}


def run(kind: str, count: int, interval: float, seconds: float) -> dict[str, Any]:
    """Measure one kind of trigger against a server of its own.

    :raises SystemExit: a trigger did not fire with the end of its batch.
    """
    with (
        tempfile.TemporaryDirectory(prefix="batch-llm-waiting-") as home,
        LocalServer(scenario=_HELD) as server,
    ):
        ids = _make_batches(server, count)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.waiting_run", kind, str(interval), str(seconds)],
            cwd=ROOT,
            env=_environment(server, home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(ids))
        process.stdin.close()
        calls: list[int] = []
        found: dict[str, Any] = {}
        for line in process.stdout:
            if line.strip() in ("ready", "done"):
                calls.append(_calls(server))
            elif line.startswith("{"):
                found = json.loads(line)
            if line.strip() == "done":
                server.release()
        if process.wait() or list(found.get("statuses", {}).values()) != [count]:
            raise SystemExit(f"{kind}: not every trigger fired as it should: {found.get('statuses')}")
        return {**found, "calls_a_minute": 60 * (calls[1] - calls[0]) / seconds}


def _environment(server: LocalServer, home: str) -> dict[str, str]:
    account = {"host": server.url, "password": server.api_key}
    return {
        **os.environ,
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_LLM_BATCH": json.dumps(
            {**account, "conn_type": "batch_llm", "extra": {"dialect": "generic"}}
        ),
        "AIRFLOW_CONN_COMMON_AI": json.dumps({**account, "conn_type": "pydanticai"}),
    }


def _make_batches(server: LocalServer, count: int) -> list[str]:
    """Create the batches, of one request each."""
    body = {"model": "m-1", "messages": [{"role": "user", "content": "Label this."}]}
    line = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    key = {"Authorization": f"Bearer {server.api_key}"}
    with httpx.Client(base_url=server.url, headers=key, timeout=60) as client:
        sent = client.post(
            "/files",
            data={"purpose": "batch"},
            files={"file": ("one.jsonl", json.dumps(line).encode() + b"\n")},
        )
        order = {
            "input_file_id": sent.raise_for_status().json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            # As long as what the package sends.
            "metadata": {f"batch_llm_{n}": "0123456789abcdef" * 2 for n in range(4)},
        }
        return [client.post("/batches", json=order).raise_for_status().json()["id"] for _ in range(count)]


def _calls(server: LocalServer) -> int:
    return sum(call["method"] == "GET" for call in server.requests())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What waiting for many batches of one connection costs.")
    parser.add_argument("--triggers", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between looks (default 60)")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to measure (default 5)")
    parser.add_argument("--beside", choices=sorted(set(KINDS) - {"ours"}), help="measure this one, too")
    args = parser.parse_args()
    kinds = ["ours", *([args.beside] if args.beside else [])]
    found = {kind: run(kind, args.triggers, args.interval, 60 * args.minutes) for kind in kinds}
    print(f"{args.triggers} triggers of one connection, looking every {args.interval:g} s, measured for")
    print(f"{args.minutes:g} minutes, {machine()}\n")
    print(f"{'':38}" + "".join(f"{kind:>12}" for kind in kinds))
    for title, name in (
        ("CPU, % of one core", "cpu"),
        ("  the same loop before, idle", "idle_cpu"),
        ("event-loop lag, p99, ms", "lag_p99"),
        ("  the same loop before, idle", "idle_lag_p99"),
        ("event-loop lag, longest, ms", "lag_max"),
        ("HTTP calls a minute", "calls_a_minute"),
        ("memory of the process, VmHWM, MB", "peak"),
    ):
        print(f"{title:38}" + "".join(f"{found[kind][name]:>12.1f}" for kind in kinds))


if __name__ == "__main__":
    main()
