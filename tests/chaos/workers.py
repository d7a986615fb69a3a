"""Plays many schedules in parallel: each worker process has a server and a ledger of its own."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from airflow_batch_llm.backends.base import _tls
from airflow_batch_llm.core.spec import Rerun
from tests.chaos.jobs import new_job, schema_of
from tests.chaos.plans import Plan
from tests.chaos.playing import Outcome, Setting, play
from tests.chaos.processes import end_with_parent
from tests.chaos.work import Stage, bench_of
from tests.chaos.worlds import Ledgers, QuickServer, new_folder, open_ledgers, warm_up


@dataclass(frozen=True)
class Order:
    """A schedule to play.

    :param protocol: what its connection speaks, where that is another one than the setting's.
    """

    ledger: str
    name: str
    protocol: str | None = None


def play_all(setting: Setting, orders: Iterable[Order], *, jobs: int) -> Iterator[Outcome]:
    """Play the schedules and yield what came of them, in the order in which they end.

    :param jobs: worker processes for each kind of ledger.
    """
    by_ledger: dict[str, list[Order]] = {}
    for order in orders:
        by_ledger.setdefault(order.ledger, []).append(order)
    # Spawned, not forked: a worker forks task processes itself, and must have no threads.
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, Any] = {}
    for ledger, share in _shares(by_ledger, jobs):
        here, there = context.Pipe(duplex=False)
        # Not a daemon: those must not have children.
        worker = context.Process(target=_work, args=(setting, ledger, share, there))
        worker.start()
        there.close()
        workers[here] = worker
    left = set(workers)
    try:
        while left:
            for here in cast("list[Connection]", wait(left)):
                try:
                    yield here.recv()
                except EOFError:
                    left.remove(here)
                    workers[here].join()
                    if workers[here].exitcode:
                        raise RuntimeError(f"a worker ended with status {workers[here].exitcode}") from None
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join()


def _shares(by_ledger: dict[str, list[Order]], jobs: int) -> list[tuple[str, list[Order]]]:
    """Deal the schedules out, ledger by ledger in turn until all workers have some."""
    each = {ledger: jobs // len(by_ledger) or 1 for ledger in by_ledger}
    for ledger in list(by_ledger)[: jobs - sum(each.values())]:
        each[ledger] += 1
    return [
        (ledger, orders[start :: each[ledger]])
        for ledger, orders in by_ledger.items()
        for start in range(min(each[ledger], len(orders)))
    ]


def _warm_up(ledgers: Ledgers, folder: Path, protocol: str) -> None:
    """Load and compile once what each task process would load and compile for itself."""
    warm_up()
    _tls()
    schema = schema_of(1)
    assert schema is not None
    with suppress(ValueError):
        schema.parse("{}")
    plan = Plan("warm", 0, ledgers.kind, "")
    with QuickServer(folder / "warm" / "server") as server:
        server.set_scenario({"rows": [{"match": {"contains": "number 1."}, "fault": "bad_request"}]})
        stage = Stage(server, ledgers.new(), folder / "warm", protocol=protocol)
        job = new_job(plan, 0, "warm")
        bench = bench_of(stage, job, job.source, lambda point: None)
        bench.run()
        bench.clear(rerun=Rerun.FAILED).run()


def _work(setting: Setting, ledger: str, orders: list[Order], told: Connection) -> None:
    # Told to end, or left alone, a worker takes its database server along.
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    # What the engine logs about the faults it meets would drown everything.
    logging.disable(logging.CRITICAL)
    folder = new_folder()
    try:
        with open_ledgers(ledger, folder) as ledgers:
            _warm_up(ledgers, folder, setting.protocol)
            for order in orders:
                of_order = replace(setting, protocol=order.protocol or setting.protocol)
                told.send(play(of_order, order.name, ledgers, folder))
    except KeyboardInterrupt:
        pass  # told to end
    finally:
        shutil.rmtree(folder, ignore_errors=True)
