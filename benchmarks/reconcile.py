"""Reconcile, measured: rows a second from the result file on the provider's side to stored outcomes.

::

    python -m benchmarks.reconcile --rows 50000 --row-bytes 830

The same rows over the same HTTP server (a process of its own), side by side:

- ours: ``reconcile_batch``, that is retrieve, download, store raw, decode, judge, write outcomes, ledger;
- a bare loop of each JSON parser over the file on disk, which is as fast as Python can be;
- ``stream_results_to_jsonl`` of apache-airflow-providers-common-ai, where that is installed.

Once with text answers, once with answers that must fit a schema (a pydantic model).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from airflow_batch_llm.core.judge import Judge
from airflow_batch_llm.core.model import Batch, BatchState
from airflow_batch_llm.core.reconcile import reconcile_batch
from airflow_batch_llm.core.spec import Until
from airflow_batch_llm.schemas import answer_schema
from airflow_batch_llm.storage.migrate import open_default_sqlite
from benchmarks.processes import machine
from benchmarks.result_server import COMMON_KEY
from tests.job_bench import Bench, drafts_of

ROOT = Path(__file__).resolve().parent.parent


class Label(BaseModel):
    """The answer of the structured rows."""

    label: Literal["billing", "bug", "other"]
    summary: str


class _Server:
    """The address of a result server, as a bench wants it."""

    api_key = "test-key"

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def result_server(row_bytes: int, *, structured: bool) -> Iterator[_Server]:
    """Start a result server in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.result_server", "--row-bytes", str(row_bytes)]
    process = subprocess.Popen(
        command + ["--structured"] * structured,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield _Server(process.stdout.readline().strip())
    finally:
        process.stdin.close()
        process.wait(20)


def seconds_of(function: Callable[[], Any], tries: int) -> float:
    """Return the median of several runs."""
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        function()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure_ours(server: _Server, folder: Path, rows: int, tries: int, judge: Judge) -> tuple[float, Path]:
    """Return seconds for one batch, and its raw result file."""
    ledger = open_default_sqlite(folder / "ledger.db")
    drafts = drafts_of({f"t-{n}": f"row {n}" for n in range(rows)})
    found = []
    for number in range(tries):
        bench = Bench(
            server=server,  # type: ignore[arg-type]
            ledger=ledger,
            folder=folder / "workspace",
            drafts=lambda: drafts,
            task_id=f"task-{number}",
            judge=judge,
        )
        bench.until(Until.ENDED, submitting=True)
        (batch,) = bench.batches()
        found.append(asyncio.run(_reconcile(bench, batch)))
        (batch,) = bench.batches()
        if batch.state is not BatchState.RECONCILED or batch.counts != {"ok": rows}:
            raise SystemExit(f"reconciled to {batch.state} {batch.counts}")
    return statistics.median(found), bench.root / str(batch.files[0]["path"])


async def _reconcile(bench: Bench, batch: Batch) -> float:
    tools = bench.tools()
    job = bench.job()
    template = tools.template(job)
    began = time.perf_counter()
    await reconcile_batch(tools, job, batch, template)
    spent = time.perf_counter() - began
    await tools.backend.aclose()
    return spent


def bare_loop(path: Path, decode: Callable[[bytes], Any]) -> Callable[[], int]:
    """Return a loop that parses every line of a file and does nothing else."""

    def loop() -> int:
        with path.open("rb") as file:
            return sum(decode(line) is not None for line in file)

    return loop


def common_ai(server: _Server, folder: Path, rows: int, *, structured: bool) -> Callable[[], Any] | None:
    """Return common-ai's landing of the same rows, None where it is not installed."""
    try:
        package = "airflow.providers.common.ai.batch"
        adapters = importlib.import_module(f"{package}.openai")
        results = importlib.import_module(f"{package}.results")
        schema = importlib.import_module(f"{package}.output_schema")
        from airflow.sdk import ObjectStoragePath
    except ImportError:
        return None
    adapter = adapters.OpenAIBatchAdapter(api_key=server.api_key, base_url=server.url)
    spec = schema.build_output_spec(Label if structured else str)

    def land() -> None:
        counts, _ = results.stream_results_to_jsonl(
            adapter=adapter,
            batch_id=f"common-{rows}",
            output_spec=spec,
            request_count=rows,
            custom_id_prefix=COMMON_KEY,
            destination=ObjectStoragePath(f"file://{folder}/common.jsonl"),
        )
        if counts["success"] != rows:
            raise SystemExit(f"common-ai landed {counts}")

    adapter.get_batch(f"common-{rows}")  # the server makes the file now, outside of the measurement
    return land


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--row-bytes", type=int, default=830)
    parser.add_argument("--tries", type=int, default=3, help="the median counts")
    args = parser.parse_args()
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    print(f"{args.rows:,} rows of {args.row_bytes} bytes, median of {args.tries}, {machine()}\n")
    print(f"{'':<44}{'text, rows/s':>16}{'schema, rows/s':>16}")
    columns = [_column(args, structured=structured) for structured in (False, True)]
    for name in columns[0]:
        cells = [f"{args.rows / c[name]:>16,.0f}" if c.get(name) else f"{'-':>16}" for c in columns]
        print(f"{name:<44}{''.join(cells)}")


def _column(args: argparse.Namespace, *, structured: bool) -> dict[str, float | None]:
    with tempfile.TemporaryDirectory(prefix="batch-llm-bench-") as name:
        folder = Path(name)
        with result_server(args.row_bytes, structured=structured) as server:
            judge = Judge(answer_schema(Label)) if structured else Judge()
            ours, raw = measure_ours(server, folder, args.rows, args.tries, judge)
            times: dict[str, float | None] = {"ours: reconcile_batch, over HTTP": ours}
            land = common_ai(server, folder, args.rows, structured=structured)
            times["common-ai: stream_results_to_jsonl, over HTTP"] = land and seconds_of(land, args.tries)
            for parser in ("msgspec.json.decode", "orjson.loads", "json.loads"):
                times[f"bare loop: {parser}, from disk"] = _bare(raw, parser, args.tries)
        return times


def _bare(raw: Path, parser: str, tries: int) -> float | None:
    if parser == "msgspec.json.decode":
        return seconds_of(bare_loop(raw, msgspec.json.Decoder().decode), tries)
    try:
        loads: Callable[[bytes], Any] = importlib.import_module(parser.partition(".")[0]).loads
    except ImportError:
        return None
    return seconds_of(bare_loop(raw, loads), tries)


if __name__ == "__main__":
    main()
