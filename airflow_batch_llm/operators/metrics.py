"""Sends the numbers of ``metrics.py`` through Airflow's Stats, after each call of the engine.

Whatever goes wrong here is one log line: no job fails for want of a metric.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from airflow_batch_llm.metrics import COUNTERS, Sample, Tally, counted, gauges, tally
from airflow_batch_llm.storage.ledger_facts import read_facts

if TYPE_CHECKING:
    from airflow_batch_llm.core.ledger_port import Ledger
    from airflow_batch_llm.core.model import JobKey
    from airflow_batch_llm.storage.ledger import SqlLedger

log = logging.getLogger(__name__)

#: Any of them on means that somebody listens.
_SWITCHES = ("statsd_on", "statsd_datadog_enabled", "otel_on")


@contextmanager
def measured(ledger: Ledger, key: JobKey, conn_id: str) -> Iterator[None]:
    """Send what the block did to the job, and how the ledger looks after it.

    Nothing is read where no metrics are switched on (``[metrics]`` in airflow.cfg).
    """
    before = _tally(ledger, key.job_id) if _switched_on() else None
    try:
        yield
    finally:
        if before is not None:
            _send(ledger, key, conn_id, before)


def _switched_on() -> bool:
    return any(conf.getboolean("metrics", switch, fallback=False) for switch in _SWITCHES)


def _tally(ledger: Ledger, job_id: str) -> Tally | None:
    try:
        return tally(ledger, job_id)
    except Exception as error:
        log.warning("metrics were not read: %s", type(error).__name__)
        return None


def _send(ledger: Ledger, key: JobKey, conn_id: str, before: Tally) -> None:
    try:
        after = tally(ledger, key.job_id)
        for sample in counted(before, after, conn_id=conn_id, dag_id=key.dag_id):
            _emit(sample)
        for sample in gauges(read_facts(cast("SqlLedger", ledger)), conn_id=conn_id, dag_id=key.dag_id):
            _emit(sample)
    except Exception as error:
        log.warning("metrics were not sent: %s", type(error).__name__)


def _emit(sample: Sample) -> None:
    tags = dict(sample.tags)
    if sample.name in COUNTERS:
        stats.incr(sample.name, int(sample.value), tags=tags)
    else:
        stats.gauge(sample.name, sample.value, tags=tags)
