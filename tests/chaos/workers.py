"""Plays many schedules in parallel: each worker process has a server and a ledger of its own."""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_batch_llm.backends.base import _tls
from airflow_batch_llm.core.spec import Rerun
from tests.chaos.jobs import new_job, schema_of
from tests.chaos.plans import Plan
from tests.chaos.playing import Outcome, play
from tests.chaos.processes import end_with_parent
from tests.chaos.work import Stage, bench_of
from tests.chaos.worlds import Ledgers, QuickServer, new_folder, open_ledgers, warm_up


@dataclass(frozen=True)
class Order:
    """A schedule to play."""

    ledger: str
    name: str


def play_all(
    seed: int, orders: Iterable[Order], *, jobs: int, mutant: str | None = None
) -> Iterator[Outcome]:
    """Play the schedules and yield what came of them, in the order in which they end.

    :param jobs: worker processes for each kind of ledger.
    """
    by_ledger: dict[str, list[str]] = {}
    for order in orders:
        by_ledger.setdefault(order.ledger, []).append(order.name)
    # Spawned, not forked: a worker forks task processes itself, and must have no threads.
    context = multiprocessing.get_context("spawn")
    outcomes: Any = context.SimpleQueue()
    workers = []
    shares = _shares(by_ledger, jobs)
    for ledger, names in shares:
        # Not a daemon: those must not have children.
        worker = context.Process(target=_work, args=(seed, ledger, names, mutant, outcomes))
        worker.start()
        workers.append(worker)
    try:
        left = len(workers)
        while left:
            outcome = outcomes.get()
            if outcome is None:
                left -= 1
            elif isinstance(outcome, str):
                raise RuntimeError(outcome)
            else:
                yield outcome
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _shares(by_ledger: dict[str, list[str]], jobs: int) -> list[tuple[str, list[str]]]:
    """Deal the schedules out, ledger by ledger in turn until all workers have some."""
    each = {ledger: jobs // len(by_ledger) or 1 for ledger in by_ledger}
    for ledger in list(by_ledger)[: jobs - sum(each.values())]:
        each[ledger] += 1
    return [
        (ledger, names[start :: each[ledger]])
        for ledger, names in by_ledger.items()
        for start in range(min(each[ledger], len(names)))
    ]


def _warm_up(ledgers: Ledgers, folder: Path) -> None:
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
        stage, job = Stage(server, ledgers.new(), folder / "warm"), new_job(plan, 0, "warm")
        bench = bench_of(stage, job, job.source, lambda point: None)
        bench.run()
        bench.clear(rerun=Rerun.FAILED).run()


def _work(seed: int, ledger: str, names: list[str], mutant: str | None, outcomes: Any) -> None:
    end_with_parent()
    warnings.simplefilter("ignore")
    # What the engine logs about the faults it meets would drown everything.
    logging.disable(logging.CRITICAL)
    folder = new_folder()
    try:
        with open_ledgers(ledger, folder) as ledgers:
            _warm_up(ledgers, folder)
            for name in names:
                outcomes.put(play(seed, name, ledgers, folder, mutant=mutant))
        outcomes.put(None)
    except BaseException:
        outcomes.put(traceback.format_exc())
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
